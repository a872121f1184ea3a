package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"github.com/hashicorp/nomad-autoscaler/plugins"
	"github.com/hashicorp/nomad-autoscaler/plugins/apm"
	"github.com/hashicorp/nomad-autoscaler/plugins/base"
	"github.com/hashicorp/nomad-autoscaler/plugins/strategy"
	"github.com/hashicorp/nomad-autoscaler/plugins/target"
	"github.com/hashicorp/nomad-autoscaler/sdk"
	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/internal/testkit/built"
)

// launch starts the binary as nomad-autoscaler's plugin manager does.
func launch(t *testing.T, bin, kind string, face plugin.Plugin, args ...string) any {
	t.Helper()
	sockets, err := os.MkdirTemp("", "ra")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(sockets)) })
	client := plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig:  plugins.Handshake,
		Plugins:          map[string]plugin.Plugin{sdk.PluginTypeBase: &base.PluginBase{}, kind: face},
		Cmd:              exec.Command(bin, args...),
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		Logger:           hclog.NewNullLogger(),
		UnixSocketConfig: &plugin.UnixSocketConfig{TempDir: sockets},
	})
	t.Cleanup(client.Kill)
	rpc, err := client.Client()
	require.NoError(t, err)
	raw, err := rpc.Dispense(kind)
	require.NoError(t, err)
	info, err := raw.(base.Base).PluginInfo()
	require.NoError(t, err)
	require.Equal(t, &base.PluginInfo{Name: "remuda-autoscaler", PluginType: kind}, info, "the manager compares both with the block")
	return raw
}

// controller is one with a sleeping model that three requests wait for.
type controller struct {
	mu     sync.Mutex
	status api.ModelStatus
	scaled []api.ScaleRequest
}

func (c *controller) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	answer := func(v any) { json.NewEncoder(w).Encode(v) }
	refuse := func(status int, code string) {
		w.WriteHeader(status)
		answer(api.Error{Code: code, Message: code})
	}
	switch r.URL.Path {
	case "/v1/model/m/scale":
		var rq api.ScaleRequest
		if json.NewDecoder(r.Body).Decode(&rq) != nil || rq.CAS == nil || *rq.CAS != c.status.Model.ModifyIndex {
			refuse(http.StatusConflict, api.CodeConflict)
			return
		}
		c.scaled = append(c.scaled, rq)
		c.status.Model.Target = 1
		c.status.Model.ModifyIndex++
		answer(api.ScaleResponse{Model: "m", Target: 1, Changed: true, ModifyIndex: c.status.Model.ModifyIndex})
	case "/v1/model/m":
		answer(c.status)
	default:
		refuse(http.StatusNotFound, api.CodeNotFound)
	}
}

func newController(t *testing.T) (*controller, string) {
	t.Helper()
	c := &controller{status: api.ModelStatus{
		Model: api.Model{Name: "m", Variants: []api.Variant{{Name: "h100", Cost: 8, Slots: 4}, {Name: "l4", Cost: 1, Slots: 4}},
			Max: 9, Management: "full", ModifyIndex: 42},
		VariantCounts: map[string]api.Counts{"h100": {}, "l4": {}},
		Queue:         &api.Queue{Model: "m", State: "QUEUED", Waiting: 3, Gateways: 1},
	}}
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	return c, server.URL
}

// A policy's whole way, with nomad-autoscaler's own client code: status, query, strategy,
// scale.
func TestThePluginBinaryScalesAModel(t *testing.T) {
	bin := built.Copy(t, "remuda-autoscaler")
	ctl, url := newController(t)
	config := map[string]string{"controller": url, "consul": "none", "nomad_address": "http://127.0.0.1:4646"}
	scaler := launch(t, bin, sdk.PluginTypeTarget, &target.PluginTarget{}, "target").(target.Target)
	require.NoError(t, scaler.SetConfig(map[string]string{"controller": url}))
	looker := launch(t, bin, sdk.PluginTypeAPM, &apm.PluginAPM{}, "apm").(apm.APM)
	require.NoError(t, looker.SetConfig(config))
	policy := map[string]string{"model": "m"}

	status, err := scaler.Status(policy)
	require.NoError(t, err)
	require.True(t, status.Ready)
	require.Zero(t, status.Count)
	now := time.Now().UTC().Truncate(time.Microsecond)
	points, err := looker.Query("queue/m", sdk.TimeRange{From: now.Add(-time.Minute), To: now})
	require.NoError(t, err)
	require.Equal(t, sdk.TimestampedMetrics{{Timestamp: now, Value: 3}}, points)
	_, err = looker.Query("queue/other", sdk.TimeRange{To: now})
	require.ErrorContains(t, err, "unknown to the controller")

	states := t.TempDir()
	for i, name := range []string{"remuda-capacity", "remuda-hpa", "remuda-utilization"} {
		t.Run(name, func(t *testing.T) {
			ctl.mu.Lock()
			ctl.status.Model.Target, ctl.scaled = 0, nil
			index := ctl.status.Model.ModifyIndex
			ctl.mu.Unlock()
			decisions := filepath.Join(t.TempDir(), "decisions.json")
			s := launch(t, bin, sdk.PluginTypeStrategy, &strategy.PluginStrategy{}, "strategy", name).(strategy.Strategy)
			require.ErrorContains(t, s.SetConfig(map[string]string{"controller": url, "kv_treshold": "1"}), "kv_treshold is an unknown key")
			_, err := s.Run(&sdk.ScalingCheckEvaluation{Check: &sdk.ScalingPolicyCheck{Strategy: &sdk.ScalingPolicyStrategy{Name: name}}, Action: &sdk.ScalingAction{}}, 0)
			require.ErrorContains(t, err, "not configured")
			with := map[string]string{"decisions": decisions, "state_dir": states}
			for k, v := range config {
				with[k] = v
			}
			require.NoError(t, s.SetConfig(with))
			check := &sdk.ScalingPolicyCheck{Name: "c", Source: "remuda", Query: "queue/m", Strategy: &sdk.ScalingPolicyStrategy{Name: name, Config: policy}}
			got, err := s.Run(&sdk.ScalingCheckEvaluation{Check: check, Metrics: points, Action: &sdk.ScalingAction{}}, status.Count)
			require.NoError(t, err)
			require.Equal(t, sdk.ScaleDirection(sdk.ScaleDirectionUp), got.Action.Direction, got.Action.Reason)
			require.Equal(t, int64(1), got.Action.Count)
			got.Action.CapCount(0, 8)
			require.NoError(t, scaler.Scale(*got.Action, policy))
			require.Equal(t, []api.ScaleRequest{{Variants: map[string]int{"h100": 0, "l4": 1}, Reason: got.Action.Reason, Origin: "autoscaler", CAS: &index}}, ctl.scaled)
			var none *sdk.TargetScalingNoOpError
			require.ErrorAs(t, scaler.Scale(*got.Action, policy), &none, "the same decision twice")
			saved, err := filepath.Glob(filepath.Join(states, "*.json"))
			require.NoError(t, err)
			require.Len(t, saved, i+1, "strategies may share a state_dir: each has a file of its own")

			out, err := exec.Command(bin, "replay", decisions).CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.Equal(t, "1 decisions are the same, 0 differ\n", string(out))
		})
	}
}

// A nomad-autoscaler that is killed does not take its plugins along.
func TestThePluginEndsWithItsParent(t *testing.T) {
	bin := built.Copy(t, "remuda-autoscaler")
	// A shell stands for nomad-autoscaler: it starts the plugin, tells its pid and waits.
	parent := exec.Command("sh", "-c", `"$0" target & echo $! >&2; wait`, bin)
	parent.Env = append(os.Environ(), plugins.Handshake.MagicCookieKey+"="+plugins.Handshake.MagicCookieValue, "PLUGIN_PROTOCOL_VERSIONS=1")
	out, err := parent.StdoutPipe() // the plugin's handshake line comes here
	require.NoError(t, err)
	errs, err := parent.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, parent.Start())
	line := make([]byte, 64)
	n, err := errs.Read(line)
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(strings.SplitN(string(line[:n]), "\n", 2)[0]))
	require.NoError(t, err)
	_, err = out.Read(make([]byte, 256))
	require.NoError(t, err, "the plugin serves")
	require.NoError(t, parent.Process.Kill())
	parent.Wait()
	require.Eventually(t, func() bool {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil {
			return true
		}
		_, state, _ := strings.Cut(string(stat), ") ")
		return strings.HasPrefix(state, "Z")
	}, 10*time.Second, 50*time.Millisecond)
}
