package observe_test

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/autoscaler-plugin/enginemetrics"
	"remuda/autoscaler-plugin/observe"
)

// series is one engine that the server has scraped.
type series struct {
	labels           map[string]string
	model            string
	kv, waiting, run float64
	// age is how long ago it was scraped, below 0 for one that has dropped out.
	age float64
}

// server answers the queries of this package as Prometheus would, over its series.
type server struct {
	*httptest.Server
	mu       sync.Mutex
	series   []series
	queries  []string
	headers  http.Header
	refuse   func(http.ResponseWriter) // answers in place of the rest
	warnings []string
}

// scraped is the server's clock, in Unix seconds.
const scraped = 1_800_000_000.0

func newServer(t testing.TB, all ...series) *server {
	s := &server{series: all}
	s.Server = httptest.NewServer(http.HandlerFunc(s.query))
	t.Cleanup(s.Close)
	return s
}

func (s *server) query(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := r.URL.Query().Get("query")
	s.queries, s.headers = append(s.queries, r.URL.Path+" "+q), r.Header
	if s.refuse != nil {
		s.refuse(w)
		return
	}
	type one struct {
		Metric map[string]string `json:"metric"`
		Value  [2]any            `json:"value"`
	}
	result := []one{}
	counted := map[string]bool{}
	for _, e := range s.series {
		if !strings.HasPrefix(q, "count by") && !matches(q, e) {
			continue
		}
		labels := map[string]string{"model_name": e.model}
		for k, v := range e.labels {
			labels[k] = v
		}
		v := 0.0
		switch {
		case strings.HasPrefix(q, "count by"):
			if counted[e.model] {
				continue
			}
			counted[e.model] = true
			labels, v = map[string]string{"model_name": e.model}, 1
		case strings.HasPrefix(q, "timestamp("):
			if e.age < 0 {
				continue
			}
			v = scraped - e.age
		case strings.Contains(q, "kv_cache_usage_perc"):
			v = e.kv
		case strings.Contains(q, "num_requests_waiting"):
			v = e.waiting
		default:
			v = e.run
		}
		result = append(result, one{labels, [2]any{scraped, strconv.FormatFloat(v, 'g', -1, 64)}})
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"status": "success", "warnings": s.warnings, "data": map[string]any{"resultType": "vector", "result": result}})
}

// matches tells whether a query's matchers choose a series.
func matches(q string, e series) bool {
	_, rest, ok := strings.Cut(q, "{")
	if !ok {
		return true
	}
	inside, _, _ := strings.Cut(rest, "}")
	for _, m := range strings.Split(inside, ",") {
		name, value, _ := strings.Cut(m, "=")
		value, _ = strconv.Unquote(value)
		have := e.labels[name]
		if name == "model_name" {
			have = e.model
		}
		if have != value {
			return false
		}
	}
	return true
}

func (s *server) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queries)
}

func source(t testing.TB, s *server, change func(*observe.PrometheusConfig)) *observe.Prometheus {
	t.Helper()
	cfg := observe.PrometheusConfig{Address: s.URL}
	if change != nil {
		change(&cfg)
	}
	p, err := observe.NewPrometheus(cfg)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

func replicaLabel(name string) map[string]string { return map[string]string{"replica": name} }

func promReport(t testing.TB, p *observe.Prometheus, q observe.Question) observe.Report {
	t.Helper()
	r, err := p.Report(t.Context(), q)
	require.NoError(t, err)
	return r
}

var (
	askManaged = observe.Question{Model: "llama", Shown: "llama", Dialects: map[string]string{"a100": "vllm"},
		Replicas: []string{"llama:a100:1", "llama:a100:2", "llama:l4:3"}}
	askPlain = observe.Question{Model: "llama", Shown: "llama"}
)

func TestReplicasOfTheController(t *testing.T) {
	s := newServer(t,
		series{replicaLabel("llama:a100:1"), "llama", 0.5, 3, 7, 4},       // by its name
		series{replicaLabel("2"), "llama", 0.6, 1, 2, 4},                  // by its ID
		series{replicaLabel("llama:l4:3:primary"), "llama", 0.1, 0, 1, 4}, // by its Consul service
		series{replicaLabel("llama:a100:dead"), "llama", 0.9, 9, 9, -1},   // dead, and not forgotten yet
		series{replicaLabel("mistral:a100:1"), "mistral", 0.9, 9, 9, 4})   // another model
	r := promReport(t, source(t, s, nil), askManaged)
	got := map[string]observe.Reported{}
	for _, e := range r.Engines {
		got[e.View.Replica] = e
	}
	require.Len(t, got, 4)
	one := got["llama:a100:1"]
	require.Equal(t, enginemetrics.ClassOK, one.View.Class)
	require.Equal(t, []enginemetrics.Value{enginemetrics.Of(0.5), enginemetrics.Of(3), enginemetrics.Of(7)}, []enginemetrics.Value{one.View.KVUsage, one.View.Waiting, one.View.Running})
	require.Equal(t, 4*time.Second, one.View.Age)
	require.Equal(t, "a100", got["llama:a100:2"].Variant)
	require.Equal(t, "l4", got["llama:l4:3"].Variant)
	require.Equal(t, enginemetrics.ClassStale, got["llama:a100:dead"].View.Class)
	require.Empty(t, r.Notes)
	require.Empty(t, r.Findings)
	require.Equal(t, 4, s.count())
	require.True(t, strings.HasPrefix(s.queries[0], "/api/v1/query "))
}

func TestAPairIsOneReplica(t *testing.T) {
	s := newServer(t,
		series{replicaLabel("llama:a100:1:primary"), "llama", 0.5, 3, 7, -1},
		series{replicaLabel("llama:a100:1:shadow"), "llama", 0.2, 0, 1, 4})
	r := promReport(t, source(t, s, nil), askManaged)
	require.Len(t, r.Engines, 1)
	require.Equal(t, enginemetrics.Of(0.2), r.Engines[0].View.KVUsage, "the one that is scraped speaks for it")
}

func TestAnIDOfTwoReplicasSaysNothing(t *testing.T) {
	s := newServer(t, series{replicaLabel("1"), "llama", 0.5, 3, 7, 4})
	q := askManaged
	q.Replicas = []string{"llama:a100:1", "llama:l4:1"}
	r := promReport(t, source(t, s, nil), q)
	require.Equal(t, "1", r.Engines[0].View.Replica)
	require.Len(t, r.Notes, 1)
	require.Contains(t, r.Notes[0], "the label must be the replica's name")
}

func TestJobGroupsByTheirLabels(t *testing.T) {
	s := newServer(t,
		series{map[string]string{"instance": "10.0.0.1:8000", "group": "a", "job": "x"}, "llama", 0.5, 3, 7, 4},
		series{map[string]string{"instance": "10.0.0.2:8000", "group": "b", "job": "x"}, "llama", 0.6, 1, 2, 4},
		series{map[string]string{"instance": "10.0.0.3:8000", "group": "b", "job": "x"}, "llama", 0.9, 9, 9, -1},
		series{map[string]string{"instance": "10.0.0.4:8000", "group": "b", "job": "y"}, "llama", 0.6, 1, 2, 4})
	p := source(t, s, func(c *observe.PrometheusConfig) { c.Match = []enginemetrics.Matcher{{Name: "job", Value: "x"}} })
	q := askPlain
	q.Group = &observe.JobGroup{Variant: "a", Slots: 8, Match: []enginemetrics.Matcher{{Name: "group", Value: "a"}}}
	r := promReport(t, p, q)
	require.Len(t, r.Engines, 1)
	require.Equal(t, "a", r.Engines[0].Variant)
	require.Equal(t, 8, r.Engines[0].Slots)
	require.False(t, r.Engines[0].Gone)

	q.Group = &observe.JobGroup{Variant: "b", Match: []enginemetrics.Matcher{{Name: "group", Value: "b"}}}
	r = promReport(t, p, q)
	require.Len(t, r.Engines, 2)
	require.Equal(t, []string{"b", "b"}, []string{r.Engines[0].Variant, r.Engines[1].Variant})
	require.Equal(t, []bool{false, true}, []bool{r.Engines[0].Gone, r.Engines[1].Gone})
}

// A server that relabels: the label of the model, those of a replica, and the names of series.
func TestNamesOfAServerOfItsOwn(t *testing.T) {
	s := newServer(t, series{map[string]string{"workload": "llama:a100:1", "model_id": "llama", "namespace": "prod"}, "", 0.5, 3, 7, 4})
	p := source(t, s, func(c *observe.PrometheusConfig) {
		c.ModelLabel, c.ReplicaLabels = "model_id", []string{"workload"}
		c.Match, c.Series = []enginemetrics.Matcher{{Name: "namespace", Value: "prod"}}, map[string]string{"kv_usage": "my:kv_cache_usage_perc", "waiting": "my:num_requests_waiting"}
	})
	r := promReport(t, p, askManaged)
	require.Len(t, r.Engines, 1)
	require.Equal(t, enginemetrics.Of(3), r.Engines[0].View.Waiting)
	s.mu.Lock()
	defer s.mu.Unlock()
	asked := strings.Join(s.queries, "\n")
	require.Contains(t, asked, `max_over_time(my:kv_cache_usage_perc{namespace="prod",model_id="llama"}[1m])`)
	require.Contains(t, asked, `max_over_time(my:num_requests_waiting{`)
	require.Contains(t, asked, `max_over_time(vllm:num_requests_running{`)
}

func TestOneGroupWithoutAName(t *testing.T) {
	s := newServer(t, series{map[string]string{"instance": "10.0.0.1:8000"}, "llama", 0.5, 3, 7, 4}, series{nil, "llama", 0.5, 3, 7, 4})
	s.warnings = []string{"a shard did not answer"}
	r := promReport(t, source(t, s, nil), askPlain)
	require.Equal(t, observe.DefaultVariant, r.Engines[0].Variant)
	require.Len(t, r.Notes, 2)
	require.Contains(t, r.Notes[0], "no label that names a replica")
	require.Equal(t, "Prometheus warning: a shard did not answer", r.Notes[1])
}

func TestOtherModelsRaiseAnAlarm(t *testing.T) {
	s := newServer(t, series{replicaLabel("x"), "meta-llama/Llama-3-8B", 0.5, 3, 7, 4})
	r := promReport(t, source(t, s, nil), askPlain)
	require.Empty(t, r.Engines)
	require.Equal(t, []enginemetrics.Finding{{Kind: enginemetrics.LabelMismatch, Want: []string{"llama"}, Seen: []string{"meta-llama/Llama-3-8B"}}}, r.Findings)
	require.Equal(t, 5, s.count(), "only then it is asked which models there are")

	r = promReport(t, source(t, newServer(t), nil), askPlain)
	require.Equal(t, enginemetrics.NoSeries, r.Findings[0].Kind)
}

func TestEnginesWithoutMetricsAreNotAskedFor(t *testing.T) {
	s := newServer(t)
	q := askManaged
	q.Dialects = map[string]string{"a100": "ollama"}
	r := promReport(t, source(t, s, nil), q)
	require.Empty(t, r.Engines)
	require.Zero(t, s.count())
}

func TestServersThatDoNotAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		refuse func(http.ResponseWriter)
		want   string
	}{
		"an error of its own": {func(w http.ResponseWriter) {
			w.WriteHeader(http.StatusUnprocessableEntity)
			fmt.Fprint(w, `{"status":"error","errorType":"execution","error":"too many samples"}`)
		}, "too many samples"},
		"another program": {func(w http.ResponseWriter) { http.Error(w, "who are you?", http.StatusForbidden) }, "is not a Prometheus server"},
		"elsewhere": {func(w http.ResponseWriter) {
			w.Header().Set("Location", "http://192.0.2.1/")
			w.WriteHeader(http.StatusFound)
		}, "302"},
		"too much": {func(w http.ResponseWriter) { fmt.Fprint(w, strings.Repeat(" ", enginemetrics.MaxBytes+1)) }, "too large"},
		"not JSON": {func(w http.ResponseWriter) { fmt.Fprint(w, "<html>") }, "invalid character"},
		"a matrix": {func(w http.ResponseWriter) {
			fmt.Fprint(w, `{"status":"success","data":{"resultType":"matrix","result":[]}}`)
		}, "must be vector"},
		"never": {nil, "deadline"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, series{replicaLabel("llama:a100:1"), "llama", 0.5, 3, 7, 4})
			s.refuse = c.refuse
			over := make(chan struct{})
			if name == "never" {
				s.refuse = func(http.ResponseWriter) { <-over }
			}
			p := source(t, s, func(cfg *observe.PrometheusConfig) {
				if name == "never" {
					cfg.Timeout = 50 * time.Millisecond
				}
			})
			_, err := p.Report(t.Context(), askManaged)
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, `model "llama"`)
			close(over)
			s.mu.Lock()
			s.refuse = nil
			s.mu.Unlock()
			if name != "never" {
				require.Len(t, promReport(t, p, askManaged).Engines, 1)
			}
		})
	}
}

func TestCredentials(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*observe.PrometheusConfig)
		header string
		want   string
	}{
		"a token":  {func(c *observe.PrometheusConfig) { c.Token = "s3cret" }, "Authorization", "Bearer s3cret"},
		"a user":   {func(c *observe.PrometheusConfig) { c.User, c.Password = "a", "b" }, "Authorization", "Basic YTpi"},
		"a header": {func(c *observe.PrometheusConfig) { c.Headers = map[string]string{"X-Scope-OrgID": "t1"} }, "X-Scope-Orgid", "t1"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			promReport(t, source(t, s, c.change), askPlain)
			require.Equal(t, c.want, s.headers.Get(c.header))
		})
	}
}

func TestTLSAndAPath(t *testing.T) {
	s := &server{series: []series{{replicaLabel("llama:a100:1"), "llama", 0.5, 3, 7, 4}}}
	s.Server = httptest.NewTLSServer(http.StripPrefix("/tenant", http.HandlerFunc(s.query)))
	t.Cleanup(s.Close)
	file := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600))
	cfg := observe.PrometheusConfig{Address: s.URL + "/tenant/", CACert: file}
	p, err := observe.NewPrometheus(cfg)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	require.Len(t, promReport(t, p, askManaged).Engines, 1)

	cfg.CACert = filepath.Join(t.TempDir(), "none")
	_, err = observe.NewPrometheus(cfg)
	require.ErrorContains(t, err, "CA certificate")
}

func TestBadPrometheusConfigs(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*observe.PrometheusConfig)
		want   string
	}{
		"no address":            {func(c *observe.PrometheusConfig) { c.Address = "" }, "address"},
		"a user in the address": {func(c *observe.PrometheusConfig) { c.Address = "http://a:b@prometheus:9090" }, "without a user"},
		"two ways":              {func(c *observe.PrometheusConfig) { c.Token, c.User = "a", "b" }, "token and user"},
		"a password alone":      {func(c *observe.PrometheusConfig) { c.Password = "b" }, "password"},
		"a line break":          {func(c *observe.PrometheusConfig) { c.Token = "a\nb" }, "line break"},
		"a bad header":          {func(c *observe.PrometheusConfig) { c.Headers = map[string]string{"a b": "c"} }, `header "a b"`},
		"a negative window":     {func(c *observe.PrometheusConfig) { c.Window = -1 }, "window"},
		"series of nothing":     {func(c *observe.PrometheusConfig) { c.Series = map[string]string{"tokens": "a"} }, `series has "tokens"`},
		"a bad name of series":  {func(c *observe.PrometheusConfig) { c.Series = map[string]string{"running": "a b"} }, "metric name"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := observe.PrometheusConfig{Address: "http://127.0.0.1:9090"}
			c.change(&cfg)
			_, err := observe.NewPrometheus(cfg)
			require.ErrorContains(t, err, c.want)
			require.NotContains(t, err.Error(), "a:b@")
		})
	}
}
