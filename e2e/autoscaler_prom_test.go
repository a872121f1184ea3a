//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"github.com/hashicorp/nomad-autoscaler/plugins"
	"github.com/hashicorp/nomad-autoscaler/plugins/apm"
	"github.com/hashicorp/nomad-autoscaler/plugins/base"
	"github.com/hashicorp/nomad-autoscaler/sdk"
	"github.com/stretchr/testify/require"

	remuda "remuda/autoscaler-plugin/plugin"
	"remuda/controller/api"
	"remuda/internal/replica"
	"remuda/internal/testkit/loopback"
)

// promServer is a Prometheus that scrapes the cluster's engines.
type promServer struct {
	*plainProcess
	url string
}

// startProm starts one. Debian builds Prometheus without its Consul discovery, so that it
// asks the test, which lists what consul_sd_configs would find. Each engine's series get the
// label replica, which is how the plugin knows whose they are.
func startProm(d *dev, dir string) *promServer {
	d.t.Helper()
	targets := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		engines, err := promTargets(d)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(engines)
	}))
	d.t.Cleanup(targets.Close)
	address := loopback.Free(d.t)
	config := filepath.Join(dir, "prometheus.yml")
	require.NoError(d.t, os.WriteFile(config, fmt.Appendf(nil, `global:
  scrape_interval: 1s
  scrape_timeout: 1s
scrape_configs:
  - job_name: engines
    http_sd_configs:
      - url: %q
        refresh_interval: 1s
`, targets.URL), 0o600))
	p := &promServer{url: "http://" + address, plainProcess: plainStart(d.t, toolPath(d.t, "prometheus"), "--config.file="+config,
		"--storage.tsdb.path="+filepath.Join(dir, "prometheus"), "--web.listen-address="+address)}
	p.ready()
	return p
}

// ready waits until Prometheus answers.
func (p *promServer) ready() {
	p.t.Helper()
	eventually(p.t, time.Minute, "Prometheus to be ready", func() error {
		if err := p.running(); err != nil {
			return err
		}
		_, err := p.query("vector(1)")
		return err
	})
}

// promGroup is one target group of Prometheus' discovery.
type promGroup struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

// promTargets lists the engines whose check passes.
func promTargets(d *dev) ([]promGroup, error) {
	entries, _, err := d.consul.Health().Service(replica.ServiceName, "", true, nil)
	groups := []promGroup{}
	for _, e := range entries {
		meta := e.Service.Meta
		groups = append(groups, promGroup{
			Targets: []string{net.JoinHostPort(e.Service.Address, strconv.Itoa(e.Service.Port))},
			Labels:  map[string]string{"replica": replica.Name{Model: meta["model"], Variant: meta["variant"], ID: meta["replica"]}.String()},
		})
	}
	return groups, err
}

// query asks for an instant vector and returns its largest value.
func (p *promServer) query(text string) (most float64, err error) {
	body, err := fetch(p.url + "/api/v1/query?" + url.Values{"query": {text}}.Encode())
	if err != nil {
		return 0, err
	}
	var answer struct {
		Data struct {
			Result []struct{ Value [2]json.RawMessage }
		}
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		return 0, fmt.Errorf("%w: %s", err, body)
	}
	if len(answer.Data.Result) == 0 {
		return 0, fmt.Errorf("there is no series: %s", body)
	}
	for _, r := range answer.Data.Result {
		var number string
		if err := json.Unmarshal(r.Value[1], &number); err != nil {
			return 0, err
		}
		v, err := strconv.ParseFloat(number, 64)
		if err != nil {
			return 0, err
		}
		most = max(most, v)
	}
	return most, nil
}

// promAPM starts the plugin binary as an APM, as nomad-autoscaler's plugin manager does.
func promAPM(t testing.TB, config map[string]string) apm.APM {
	t.Helper()
	c := plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig:  plugins.Handshake,
		Plugins:          map[string]plugin.Plugin{sdk.PluginTypeBase: &base.PluginBase{}, sdk.PluginTypeAPM: &apm.PluginAPM{}},
		Cmd:              exec.Command(binary(t, "remuda-autoscaler"), "apm"),
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		Logger:           hclog.NewNullLogger(),
	})
	t.Cleanup(c.Kill)
	rpc, err := c.Client()
	require.NoError(t, err)
	raw, err := rpc.Dispense(sdk.PluginTypeAPM)
	require.NoError(t, err)
	a := raw.(apm.APM)
	require.NoError(t, a.SetConfig(config))
	return a
}

// promCluster is a cluster with one model, a Prometheus and a nomad-autoscaler that sees
// the model's engines through it alone.
type promCluster struct {
	*dev
	prom       *promServer
	autoscaler *plainProcess
	decisions  string
	metrics    string
}

const (
	promModel = "watched"
	promMax   = 6
)

func startPromCluster(t *testing.T, d *dev) *promCluster {
	dir := dataDir(t)
	c := &promCluster{dev: d, prom: startProm(d, dir), decisions: filepath.Join(dir, "decisions.json"), metrics: loopback.Free(t)}
	where := map[string]string{"controller": d.info.Controller, "prometheus": c.prom.url}
	with := maps.Clone(where)
	with["decisions"], with["metrics_listen"] = c.decisions, c.metrics
	c.autoscaler = plainAutoscaler(d, dir, map[string]string{promModel: plainPolicy(promModel, 1, promMax, `
    check "capacity" {
      source = "remuda"
      query  = "replicas/watched" # what the controller knows: an APM that has no answer would keep the strategy from being asked
      strategy "remuda-capacity" {
        model = "watched"
      }
    }
`)},
		plainBlock{kind: "apm", name: "remuda", args: []string{"apm"}, config: where},
		plainBlock{kind: "target", name: "remuda", args: []string{"target"}, config: map[string]string{"controller": d.info.Controller}},
		plainStrategy("remuda-capacity", with))
	return c
}

// scaled returns how often somebody scaled the model, and to how many replicas.
func (c *promCluster) scaled() (times, target int) {
	c.t.Helper()
	st, err := plainStatus(c.dev, promModel)
	require.NoError(c.t, err)
	list, _, err := c.controller.Decisions(c.t.Context(), api.DecisionFilter{Model: promModel, Limit: 1000}, api.QueryOptions{})
	require.NoError(c.t, err)
	for _, d := range list {
		if d.Kind == "scale" {
			times++
		}
	}
	return times, st.Model.Target
}

// last returns the newest decision.
func (c *promCluster) last() (remuda.Record, error) {
	all := plainDecisions(c.t, c.decisions)
	if len(all) == 0 {
		return remuda.Record{}, errors.New("there is no decision")
	}
	return all[len(all)-1], nil
}

// throughPrometheus has a real Prometheus between the engines and the strategy: load at the
// gateway is seen through it, and while it is away nothing is scaled, and an alarm says why.
func throughPrometheus(t *testing.T, d *dev) {
	c := startPromCluster(t, d)
	eventually(t, time.Minute, "a decision by what Prometheus says", func() error {
		r, err := c.last()
		if err == nil && (r.Call.Snapshot.Census.OK != 1 || r.Answer.Inert != "") {
			err = fmt.Errorf("%q, inert: %q, findings %q", r.Answer.Reason, r.Answer.Inert, r.Call.Snapshot.Findings)
		}
		return err
	})
	// Three of four slots: less than a replica can do, and too little room.
	load := d.load(promModel, 3, 60)
	begin := time.Now()
	plainGrown(c.dev, c.autoscaler, promModel, 2)
	t.Logf("2 replicas after %s", time.Since(begin).Round(time.Second))
	eventually(t, 2*time.Minute, "Prometheus to show enough replicas", func() error {
		r, err := c.last()
		if err == nil && (r.Call.Snapshot.Census.OK < 2 || r.Call.Snapshot.Census.OK != r.Answer.Current || r.Answer.Direction != remuda.None) {
			err = fmt.Errorf("%d of %d are seen: %q", r.Call.Snapshot.Census.OK, r.Answer.Current, r.Answer.Reason)
		}
		return err
	})

	c.prom.end()
	eventually(t, time.Minute, "an alarm about Prometheus", func() error {
		r, err := c.last()
		if err == nil && !strings.Contains(r.Answer.Inert, "prometheus did not answer") {
			err = fmt.Errorf("%q, inert: %q, findings %q", r.Answer.Reason, r.Answer.Inert, r.Call.Snapshot.Findings)
		}
		return err
	})
	times, target := c.scaled()
	require.Less(t, target, promMax, "there is room to grow: %d", target)
	more := d.load(promModel, 20, 60)
	c.inert(t, len(plainDecisions(t, c.decisions))+3)
	still, same := c.scaled()
	require.Equal(t, [2]int{times, target}, [2]int{still, same}, "nothing is scaled while nobody knows")

	c.prom.start()
	c.prom.ready()
	begin = time.Now()
	plainGrown(c.dev, c.autoscaler, promModel, target+1)
	t.Logf("%d replicas %s after Prometheus came back", target+1, time.Since(begin).Round(time.Second))
	eventually(t, time.Minute, "the alarm to end", func() error { return c.alarm("0") })
	c.answers(t)
	load.none()
	more.none()
	monitored(t, c) // it creates a key, and requests without one are refused from then on
	c.autoscaler.end()
	plainReplay(t, c.decisions)
}

// answers requires that the APM answers the two queries of the capacity analyzer's
// description as Prometheus does: the peaks of a minute.
func (c *promCluster) answers(t *testing.T) {
	t.Helper()
	// Gateways keep in their own queue what an engine has no slot for.
	past := startLoad(t, promModel, 24, 60, c.pickPlain(promModel))
	a := promAPM(t, map[string]string{"controller": c.info.Controller, "prometheus": c.prom.url})
	for query, seed := range map[string]string{
		"kv_cache_usage_max/" + promModel: fmt.Sprintf(`max_over_time(vllm:kv_cache_usage_perc{model_name=%q}[1m])`, promModel),
		"queue/" + promModel + "//sim":    fmt.Sprintf(`sum(max_over_time(vllm:num_requests_waiting{model_name=%q}[1m]))`, promModel),
	} {
		eventually(t, time.Minute, query, func() error {
			want, err := c.prom.query(seed)
			if err != nil {
				return err
			}
			now := time.Now()
			got, err := a.Query(query, sdk.TimeRange{From: now.Add(-time.Minute), To: now})
			if err == nil && (len(got) != 1 || got[0].Value != want || want == 0) {
				err = fmt.Errorf("got %v, Prometheus says %v", got, want)
			}
			return err
		})
	}
	past.end()
	_, err := a.Query("queue/nobody", sdk.TimeRange{To: time.Now()})
	require.ErrorContains(t, err, "model nobody has no observed engine and is unknown to the controller")
}

// inert waits for so many decisions, all of them inert because of Prometheus from now on.
func (c *promCluster) inert(t *testing.T, decisions int) {
	t.Helper()
	from := len(plainDecisions(t, c.decisions))
	eventually(t, 2*time.Minute, "decisions without Prometheus", func() error {
		if n := len(plainDecisions(t, c.decisions)); n < decisions {
			return fmt.Errorf("%d of %d", n, decisions)
		}
		return c.alarm("1")
	})
	for _, r := range plainDecisions(t, c.decisions)[from:] {
		require.Equal(t, remuda.None, r.Answer.Direction, r.Answer.Reason)
		require.Contains(t, strings.Join(r.Call.Snapshot.Findings, "\n"), "prometheus did not answer")
		require.NotEmpty(t, r.Answer.Inert)
	}
}

// alarm requires a value of the plugin's metric that tells whether the policy is inert.
func (c *promCluster) alarm(want string) error {
	body, err := fetch("http://" + c.metrics + "/metrics")
	if err != nil {
		return err
	}
	series := fmt.Sprintf("remuda_autoscaler_inert{model=%q,strategy=\"remuda-capacity\"}", promModel)
	if got := linesWith(body, "remuda_autoscaler_inert")[series]; got != want {
		return fmt.Errorf("%s is %q and not %s", series, got, want)
	}
	return nil
}
