package dialect_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/lockd/engine/dialect"
)

// fakeVLLM answers as vLLM's API server does (vllm/entrypoints/openai and
// vllm/entrypoints/serve). Its fields are what a test wants to go wrong.
type fakeVLLM struct {
	recorder
	health     int // status of /health, 0 for 200
	models     string
	metrics    string
	serverInfo string
	asleep     bool
	devMode    bool // the routes for sleeping exist
	stuck      bool // accepts changes and makes none
	slow       int  // looks at /is_sleeping before a change shows
	lag        int  // of which so many are left
	crash      bool // answers 200 to /sleep and dies of it
	dead       bool
}

const idleMetrics = `# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="meta/llama"} 0.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="meta/llama"} 0.0
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="meta/llama"} 0.0
# HELP vllm:e2e_request_latency_seconds Histogram of e2e request latency in seconds.
# TYPE vllm:e2e_request_latency_seconds histogram
vllm:e2e_request_latency_seconds_bucket{engine="0",le="0.3",model_name="meta/llama"} 0.0
vllm:e2e_request_latency_seconds_bucket{engine="0",le="+Inf",model_name="meta/llama"} 0.0
vllm:e2e_request_latency_seconds_count{engine="0",model_name="meta/llama"} 0.0
vllm:e2e_request_latency_seconds_sum{engine="0",model_name="meta/llama"} 0.0
`

func newFakeVLLM() *fakeVLLM {
	return &fakeVLLM{
		models:  `{"object":"list","data":[{"id":"meta/llama","object":"model","created":1,"owned_by":"vllm","root":"/models/llama","max_model_len":8192}]}`,
		metrics: idleMetrics, devMode: true,
	}
}

func (f *fakeVLLM) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.note(r)
	f.mu.Lock()
	defer f.mu.Unlock()
	switch route := r.Method + " " + r.URL.Path; {
	case route == "GET /health":
		if f.dead {
			w.WriteHeader(http.StatusServiceUnavailable)
		} else if f.health != 0 {
			w.WriteHeader(f.health)
		}
	case route == "GET /v1/models":
		_, _ = io.WriteString(w, f.models)
	case route == "GET /metrics":
		_, _ = io.WriteString(w, f.metrics)
	case route == "GET /server_info" && f.serverInfo != "":
		_, _ = io.WriteString(w, f.serverInfo)
	case f.devMode && route == "POST /sleep":
		f.set(true)
		f.dead = f.crash
	case f.devMode && route == "POST /wake_up":
		f.set(false)
	case f.devMode && route == "GET /is_sleeping":
		state := f.asleep
		if f.lag > 0 {
			f.lag--
			state = !state
		}
		_ = json.NewEncoder(w).Encode(map[string]bool{"is_sleeping": state})
	default:
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"detail":"Not Found"}`)
	}
}

func (f *fakeVLLM) set(asleep bool) {
	if !f.stuck && f.asleep != asleep {
		f.asleep, f.lag = asleep, f.slow
	}
}

func TestVLLMSleepsAndWakes(t *testing.T) {
	fake := newFakeVLLM()
	d := engine(t, "vllm", dialect.Config{Model: "meta/llama"}, fake)
	require.NoError(t, d.Healthy(soon(t)))
	require.NoError(t, d.Load(soon(t)))
	require.True(t, d.CanSleep())
	require.NoError(t, d.Serving(soon(t)))
	fake.take()

	require.NoError(t, d.Sleep(soon(t)))
	require.Equal(t, []string{
		"GET /is_sleeping", "GET /metrics", "POST /sleep?level=1", "GET /is_sleeping", "GET /health",
	}, fake.take())
	asleep, err := d.Sleeping(soon(t))
	require.NoError(t, err)
	require.True(t, asleep)
	require.ErrorContains(t, d.Serving(soon(t)), "engine is asleep")
	fake.take()
	require.NoError(t, d.Sleep(soon(t)), "a second time")
	require.Equal(t, []string{"GET /is_sleeping"}, fake.take())

	require.NoError(t, d.Wake(soon(t)))
	require.Equal(t, []string{"GET /is_sleeping", "POST /wake_up", "GET /is_sleeping", "GET /health"}, fake.take())
	require.NoError(t, d.Serving(soon(t)))
	fake.take()
	require.NoError(t, d.Wake(soon(t)), "a second time")
	require.NotContains(t, fake.take(), "POST /wake_up")
}

func TestVLLMWaitsForAChangeThatLags(t *testing.T) {
	fake := newFakeVLLM()
	fake.slow = 2
	d := engine(t, "vllm", dialect.Config{Model: "meta/llama"}, fake)
	require.NoError(t, d.Sleep(soon(t)))
	asleep, err := d.Sleeping(soon(t))
	require.NoError(t, err)
	require.True(t, asleep)
	require.NoError(t, d.Wake(soon(t)))
	asleep, err = d.Sleeping(soon(t))
	require.NoError(t, err)
	require.False(t, asleep)
}

func TestVLLMNeverSleepsWhileItMayWork(t *testing.T) {
	tests := map[string]struct {
		metrics string
		kind    error
		want    string
	}{
		"running": {
			"vllm:num_requests_running{model_name=\"m\"} 2\nvllm:num_requests_waiting{model_name=\"m\"} 0\n",
			dialect.ErrBusy, "2 running, 0 waiting",
		},
		"waiting":       {"vllm:num_requests_running 0\nvllm:num_requests_waiting 1\n", dialect.ErrBusy, "0 running, 1 waiting"},
		"swapped (V0)":  {"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:num_requests_swapped 3\n", dialect.ErrBusy, "3 waiting"},
		"no gauges":     {"python_info 1\n", dialect.ErrUnknown, "no vllm:num_requests_running"},
		"one gauge":     {"vllm:num_requests_running 0\n", dialect.ErrUnknown, "no vllm:num_requests_waiting"},
		"empty page":    {"", dialect.ErrUnknown, "no vllm:num_requests_running"},
		"not a page":    {"<html>\n", dialect.ErrUnknown, "no vllm:num_requests_running"},
		"cut short":     {"vllm:num_requests_running{engine=", dialect.ErrUnknown, "malformed"},
		"not a number":  {"vllm:num_requests_running NaN\nvllm:num_requests_waiting 0\n", dialect.ErrUnknown, "is NaN"},
		"negative":      {"vllm:num_requests_running -1\nvllm:num_requests_waiting 0\n", dialect.ErrUnknown, "is -1"},
		"infinite":      {"vllm:num_requests_running +Inf\nvllm:num_requests_waiting 0\n", dialect.ErrUnknown, "must be a count"},
		"wrong type":    {"# TYPE vllm:num_requests_running counter\nvllm:num_requests_running 0\nvllm:num_requests_waiting 0\n", dialect.ErrUnknown, "must be a count"},
		"another model": {"vllm:num_requests_running{model_name=\"lora\"} 1\nvllm:num_requests_waiting 0\n", dialect.ErrBusy, "1 running"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			fake := newFakeVLLM()
			fake.metrics = tc.metrics
			d := engine(t, "vllm", dialect.Config{Model: "meta/llama"}, fake)
			err := d.Sleep(soon(t))
			require.ErrorIs(t, err, tc.kind)
			require.ErrorContains(t, err, tc.want)
			require.NotContains(t, fake.take(), "POST /sleep?level=1")
		})
	}
}

func TestVLLMUsageAddsUpRanks(t *testing.T) {
	fake := newFakeVLLM()
	fake.metrics = `# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 5.0
vllm:num_requests_waiting{engine="1",model_name="m"} 0.0
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 5.0
`
	d := engine(t, "vllm", dialect.Config{Model: "m"}, fake)
	u, err := d.Usage(soon(t))
	require.NoError(t, err)
	require.Equal(t, dialect.Usage{Running: 7, Waiting: 5}, u)
	require.Equal(t, 12, u.InFlight())
}

func TestVLLMThatLies(t *testing.T) {
	t.Run("says 200 and stays awake", func(t *testing.T) {
		fake := newFakeVLLM()
		fake.stuck = true
		d := engine(t, "vllm", dialect.Config{Model: "meta/llama"}, fake)
		require.ErrorContains(t, d.Sleep(briefly(t)), "still reports that it is awake")
	})
	t.Run("says 200 and sleeps on", func(t *testing.T) {
		fake := newFakeVLLM()
		fake.stuck, fake.asleep = true, true
		d := engine(t, "vllm", dialect.Config{Model: "meta/llama"}, fake)
		require.ErrorContains(t, d.Wake(briefly(t)), "still reports that it is asleep")
	})
	t.Run("says 200 and dies", func(t *testing.T) {
		fake := newFakeVLLM()
		fake.crash = true
		d := engine(t, "vllm", dialect.Config{Model: "meta/llama"}, fake)
		require.ErrorContains(t, d.Sleep(soon(t)), "not healthy: GET /health responded 503")
	})
}

func TestVLLMWithoutSleepMode(t *testing.T) {
	fake := newFakeVLLM()
	fake.devMode = false
	d := engine(t, "vllm", dialect.Config{Model: "meta/llama"}, fake)
	require.True(t, d.CanSleep(), "not asked yet")
	require.NoError(t, d.Load(soon(t)))
	require.False(t, d.CanSleep())
	require.NoError(t, d.Serving(soon(t)))
	require.NoError(t, d.Wake(soon(t)))
	require.ErrorIs(t, d.Sleep(soon(t)), dialect.ErrNoSleep)
	asleep, err := d.Sleeping(soon(t))
	require.NoError(t, err)
	require.False(t, asleep)
}

func TestVLLMServingSaysWhyNot(t *testing.T) {
	tests := map[string]struct {
		spoil func(*fakeVLLM)
		want  string
	}{
		"dead engine":   {func(f *fakeVLLM) { f.dead = true }, "not healthy: GET /health responded 503 Service Unavailable"},
		"another model": {func(f *fakeVLLM) { f.models = `{"data":[{"id":"other"}]}` }, `does not serve model "meta/llama": it serves ["other"]`},
		"no model":      {func(f *fakeVLLM) { f.models = `{"data":[]}` }, "it serves none"},
		"garbage":       {func(f *fakeVLLM) { f.models = "<html>\n nope" }, "unexpected response of GET /v1/models"},
		"asleep":        {func(f *fakeVLLM) { f.asleep = true }, "engine is asleep"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			fake := newFakeVLLM()
			tc.spoil(fake)
			d := engine(t, "vllm", dialect.Config{Model: "meta/llama"}, fake)
			require.ErrorContains(t, d.Serving(soon(t)), tc.want)
		})
	}
}

func TestVLLMErrorAnswers(t *testing.T) {
	for body, want := range map[string]string{
		`{"error":{"message":"boom","type":"x"}}`: "500 Internal Server Error: boom",
		`{"error":"bang"}`:                        "500 Internal Server Error: bang",
		`{"detail":"crash"}`:                      "500 Internal Server Error: crash",
		"plain\ntext":                             "500 Internal Server Error: plain text",
		`{"other":1}`:                             `500 Internal Server Error: {"other":1}`,
		"":                                        "500 Internal Server Error",
	} {
		t.Run(want, func(t *testing.T) {
			d := engine(t, "vllm", dialect.Config{Model: "m"}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusInternalServerError)
				_, _ = io.WriteString(w, body)
			}))
			_, err := d.Sleeping(soon(t))
			require.ErrorContains(t, err, "check whether the engine is asleep: GET /is_sleeping responded "+want)
			require.True(t, d.CanSleep(), "an engine in trouble may still have the route")
		})
	}
	t.Run("no is_sleeping in the answer", func(t *testing.T) {
		d := engine(t, "vllm", dialect.Config{Model: "m"}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{}`)
		}))
		_, err := d.Sleeping(soon(t))
		require.ErrorContains(t, err, `has no "is_sleeping"`)
	})
	t.Run("endless page", func(t *testing.T) {
		d := engine(t, "vllm", dialect.Config{Model: "m"}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			line := make([]byte, 1<<20)
			for range 32 {
				if _, err := w.Write(line); err != nil {
					return
				}
			}
		}))
		_, err := d.Usage(t.Context()) // a slow machine needs long for so much
		require.ErrorContains(t, err, "larger than 16777216 bytes")
	})
}

func TestVLLMSlots(t *testing.T) {
	config := func(parallel string) string {
		return fmt.Sprintf(`{"vllm_config":{"scheduler_config":{"max_num_seqs":256},"parallel_config":{%s}},"vllm_env":{}}`, parallel)
	}
	for name, tc := range map[string]struct {
		info string
		want int
	}{
		"route missing": {"", 0},
		"as text":       {`{"vllm_config":"model='meta/llama', dtype=torch.bfloat16"}`, 0},
		"one rank":      {config(`"data_parallel_size":1`), 256},
		"four ranks":    {config(`"data_parallel_size":4,"data_parallel_size_local":2`), 1024},
		"one of four":   {config(`"data_parallel_size":4,"data_parallel_external_lb":true`), 256},
		"two of four":   {config(`"data_parallel_size":4,"data_parallel_size_local":2,"data_parallel_hybrid_lb":true`), 512},
		"no scheduler":  {`{"vllm_config":{}}`, 0},
		"no config":     {`{}`, 0},
	} {
		t.Run(name, func(t *testing.T) {
			fake := newFakeVLLM()
			fake.serverInfo = tc.info
			d := engine(t, "vllm", dialect.Config{Model: "meta/llama"}, fake)
			n, err := d.Slots(soon(t))
			require.NoError(t, err)
			require.Equal(t, tc.want, n)
		})
	}
}

// page is a transport that answers every request with itself.
type page []byte

func (p page) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(bytes.NewReader(p))}, nil
}

// A metrics page of any kind gives counts, or is said to tell nothing; never
// anything that could be taken for an idle engine by mistake.
func FuzzVLLMUsage(f *testing.F) {
	f.Add([]byte(idleMetrics))
	f.Add([]byte("vllm:num_requests_running 1e9\nvllm:num_requests_waiting 0.5\n"))
	f.Add([]byte("# TYPE vllm:num_requests_running histogram\nvllm:num_requests_running_bucket{le=\"1\"} 3\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := dialect.New("vllm", dialect.Config{URL: "http://e", Model: "m", Client: &http.Client{Transport: page(b)}})
		if err != nil {
			t.Fatal(err)
		}
		u, err := d.Usage(t.Context())
		switch {
		case err == nil && (u.Running < 0 || u.Waiting < 0):
			t.Fatalf("negative usage %+v", u)
		case err == nil && !bytes.Contains(b, []byte("vllm:num_requests_running")):
			t.Fatalf("usage %+v from a page without the gauge", u)
		case err != nil && !errors.Is(err, dialect.ErrUnknown) && len(b) <= 16<<20:
			t.Fatalf("error of another kind: %v", err)
		}
	})
}

// TestVLLMGenerated: only the counter of tokens that were made counts, of each rank.
func TestVLLMGenerated(t *testing.T) {
	fake := newFakeVLLM()
	d := engine(t, "vllm", dialect.Config{Model: "m"}, fake)
	page := func(generated ...int) string {
		fake.metrics = "vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n" +
			fmt.Sprintf("vllm:prompt_tokens_total %d\nvllm:kv_cache_usage_perc 0.%d\n", rand.IntN(1000), rand.IntN(1000))
		for rank, n := range generated {
			fake.metrics += fmt.Sprintf("vllm:generation_tokens_total{engine=\"%d\"} %d\n", rank, n)
		}
		u, err := d.Usage(soon(t))
		require.NoError(t, err)
		return u.Generated
	}
	require.Empty(t, page(), "it does not report them")
	before := page(0, 0)
	require.NotEmpty(t, before)
	require.Equal(t, before, page(0, 0))
	require.NotEqual(t, before, page(0, 1))
}

// TestVLLMProgress: the figures change with a token, and with each chunk of a prefill, whose
// tokens vLLM counts only once it is complete. Nothing else on the page changes them.
func TestVLLMProgress(t *testing.T) {
	fake := newFakeVLLM()
	d := engine(t, "vllm", dialect.Config{Model: "m"}, fake)
	page := func(prompt, generated int, cache float64, latencies int) string {
		fake.metrics = fmt.Sprintf("# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 1\nvllm:num_requests_waiting 0\n"+
			"vllm:prompt_tokens_total{engine=\"0\"} %d\nvllm:generation_tokens_total{engine=\"0\"} %d\nvllm:kv_cache_usage_perc{engine=\"0\"} %g\n"+
			"http_requests_total %d\n", prompt, generated, cache, latencies)
		u, err := d.Usage(soon(t))
		require.NoError(t, err)
		return u.Progress
	}
	before := page(10, 20, 0.25, 1)
	require.NotEmpty(t, before)
	require.Equal(t, before, page(10, 20, 0.25, 2), "requests for its health are no work")
	for name, now := range map[string]string{
		"a prefill is complete": page(11, 20, 0.25, 1), "a token": page(10, 21, 0.25, 1), "a chunk of a prefill": page(10, 20, 0.26, 1),
	} {
		require.NotEqual(t, before, now, name)
	}
	fake.metrics = idleMetrics[:0]
	_, err := d.Usage(soon(t))
	require.ErrorIs(t, err, dialect.ErrUnknown)
	missing := engine(t, "vllm", dialect.Config{Model: "m"}, http.NotFoundHandler())
	_, err = missing.Usage(soon(t))
	require.ErrorIs(t, err, dialect.ErrUnknown, "an engine that shows no metrics is not one that hangs")
}
