package plugin_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad-autoscaler/sdk"
	"github.com/stretchr/testify/require"

	"remuda/autoscaler-plugin/enginemetrics"
	"remuda/autoscaler-plugin/observe"
	"remuda/autoscaler-plugin/plugin"
	"remuda/internal/testkit/loopback"
)

// world is what a plugin sees.
type world struct {
	mu       sync.Mutex
	snapshot observe.Snapshot
	err      error
	asked    []observe.Target
	opened   []plugin.Sources
	closed   int
	now      time.Time
	log      bytes.Buffer // of its plugins
	// stateDir is that of its plugins, empty: none.
	stateDir string
}

func (w *world) Observe(_ context.Context, t observe.Target) (observe.Snapshot, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked = append(w.asked, t)
	return w.snapshot, w.err
}

func newWorld(s observe.Snapshot) *world {
	return &world{snapshot: s, now: noon}
}

// plugin starts an autoscaler of a world.
func (w *world) plugin(t *testing.T, name string, config map[string]string) *plugin.Strategy {
	t.Helper()
	p, err := plugin.NewStrategy(plugin.StrategyConfig{Name: "remuda-autoscaler", Strategy: name, Now: func() time.Time { return w.now },
		Open: func(c plugin.Sources, _ hclog.Logger) (plugin.View, error) {
			w.opened = append(w.opened, c)
			return plugin.View{Observer: w, Close: func() { w.closed++ }}, nil
		}, Logger: hclog.New(&hclog.LoggerOptions{Output: &w.log})})
	require.NoError(t, err)
	t.Cleanup(p.Close)
	if w.stateDir != "" {
		config = maps.Clone(config)
		if config == nil {
			config = map[string]string{}
		}
		config["state_dir"] = w.stateDir
	}
	require.NoError(t, p.SetConfig(config))
	return p
}

// states are those in the world's state directory.
func (w *world) states(t *testing.T) *plugin.StateDir {
	t.Helper()
	d, err := plugin.OpenStateDir(w.stateDir)
	require.NoError(t, err)
	return d
}

// saved is the state of a key in the world's state directory.
func (w *world) saved(t *testing.T, key string) string {
	t.Helper()
	raw, err := w.states(t).Load(key)
	require.NoError(t, err)
	return string(raw)
}

func run(t *testing.T, p *plugin.Strategy, count int64, config map[string]string) *sdk.ScalingAction {
	t.Helper()
	return runCheck(t, p, "", count, config)
}

// runCheck is run of a check with a name.
func runCheck(t *testing.T, p *plugin.Strategy, name string, count int64, config map[string]string) *sdk.ScalingAction {
	t.Helper()
	got, err := p.Run(&sdk.ScalingCheckEvaluation{Check: &sdk.ScalingPolicyCheck{Name: name, Strategy: &sdk.ScalingPolicyStrategy{Config: config}}}, count)
	require.NoError(t, err)
	require.NotNil(t, got.Action)
	return got.Action
}

var check = map[string]string{"model": "m"}

const up, down, none = sdk.ScaleDirection(sdk.ScaleDirectionUp), sdk.ScaleDirection(sdk.ScaleDirectionDown), sdk.ScaleDirection(sdk.ScaleDirectionNone)

func TestRun(t *testing.T) {
	w := newWorld(model(1, 1, 0.75))
	a := run(t, w.plugin(t, plugin.Capacity, nil), 2, check)
	require.Equal(t, up, a.Direction)
	require.Equal(t, int64(3), a.Count)
	require.Equal(t, map[string]any{plugin.ActionModel: "m", plugin.ActionTargets: `{"h100":1,"l4":2}`, plugin.ActionIndex: "7"}, a.Meta)
	require.NotEmpty(t, a.Reason)
}

// The controller refuses numbers of variants that its model's file does not have.
func TestAVariantThatIsRemovedIsNotNamed(t *testing.T) {
	s := model(1, 1, 0.75)
	s.Variants = append(s.Variants, observe.Variant{Variant: "old", Current: 1, Hot: 1, Removed: true, Unplaceable: true, Why: "it is no longer in the model's file"})
	w := newWorld(s)
	a := run(t, w.plugin(t, plugin.Capacity, nil), 3, check)
	require.Equal(t, up, a.Direction, a.Reason)
	require.Equal(t, int64(4), a.Count, "it counts until it is replaced")
	require.JSONEq(t, `{"h100":1,"l4":2}`, a.Meta[plugin.ActionTargets].(string))
}

// plainGroup is a job group of which one replica is seen.
func plainGroup(count int) observe.Snapshot {
	s := model(0, 1, 0)
	s.Controlled, s.ModifyIndex, s.Management, s.Min, s.Max = false, 0, "", 0, 0
	s.Variants = s.Variants[1:]
	s.Variants[0].Current, s.Variants[0].Starting = count, count-1
	e := &s.Engines[0]
	e.Running, e.RunningNow, e.Rates.Finished = enginemetrics.Of(0), enginemetrics.Of(0), enginemetrics.Of(0)
	s.Queue = observe.Queue{Known: true, Source: observe.FromEngines, Served: enginemetrics.Of(0)}
	return s
}

// Where Prometheus or Consul has lost the nodes of all replicas but an idle one, the others
// may be full.
func TestNothingIsRemovedWhileReplicasAreNotSeen(t *testing.T) {
	for _, c := range []struct {
		strategy string
		config   map[string]string
	}{
		{plugin.Capacity, nil}, {plugin.HPA, nil}, {plugin.HPA, map[string]string{"metric": "kv"}}, {plugin.HPA, map[string]string{"metric": "running", "form": "replicate"}},
		{plugin.Utilization, nil}, {plugin.Predictive, nil},
	} {
		t.Run(c.strategy+fmt.Sprint(c.config), func(t *testing.T) {
			config := map[string]string{"model": "m", "variant": "l4", "scale_to_zero": "true", "idle_after": "2m"}
			maps.Copy(config, c.config)
			w := newWorld(plainGroup(3))
			p := w.plugin(t, c.strategy, map[string]string{"controller": "none"})
			later := func(d time.Duration) *sdk.ScalingAction {
				w.now = w.now.Add(d)
				w.snapshot.At = w.now
				return run(t, p, int64(w.snapshot.Current()), config)
			}
			for range 40 {
				a := later(30 * time.Second)
				require.Equal(t, none, a.Direction, a.Reason)
			}
			w.snapshot.Variants[0].Hot, w.snapshot.Variants[0].Starting, w.snapshot.Variants[0].Current = 1, 0, 1
			require.Equal(t, none, later(30*time.Second).Direction, "it has been idle since now")
			for range 3 {
				later(30 * time.Second)
			}
			a := later(30 * time.Second)
			require.Equal(t, down, a.Direction, a.Reason)
			require.Zero(t, a.Count)
		})
	}
}

// A policy with a check for each metric: the windows and budgets of one are not the other's.
func TestEachCheckHasAStateOfItsOwn(t *testing.T) {
	const slow = `{"scale_up":{"policies":[{"type":"Pods","value":1,"period_seconds":60}]}}`
	for name, other := range map[string]map[string]string{
		"of another metric": {"model": "m", "metric": "kv", "behavior": slow},
		"of another target": {"model": "m", "target": "1000", "behavior": slow},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(model(0, 2, 0.5))
			p := w.plugin(t, plugin.HPA, nil)
			count := 2
			for range 12 { // two minutes
				w.snapshot = model(0, count, 0.5)
				w.snapshot.Queue.Waiting = 30
				before := int64(count)
				if a := runCheck(t, p, "queue", before, map[string]string{"model": "m", "behavior": slow}); a.Direction == up {
					count = int(a.Count)
				}
				require.NotEqual(t, up, runCheck(t, p, "other", before, other).Direction)
				w.now = w.now.Add(10 * time.Second)
			}
			require.Equal(t, 4, count, "one more each minute")
		})
	}
}

func TestRunOnAPlainJobGroup(t *testing.T) {
	s := model(0, 2, 0.75)
	s.Controlled, s.ModifyIndex, s.Management, s.Min, s.Max = false, 0, "", 0, 0
	s.Variants = s.Variants[1:]
	w := newWorld(s)
	p := w.plugin(t, plugin.Capacity, map[string]string{"controller": "none"})
	a := run(t, p, 2, map[string]string{"model": "m", "variant": "l4", "cost": "3", "match": "job=llama,group=l4", "served_as": "org/m"})
	require.Equal(t, up, a.Direction, a.Reason)
	require.Equal(t, int64(3), a.Count)
	require.NotContains(t, a.Meta, plugin.ActionTargets, "Nomad's own target goes by the count")
	require.Equal(t, observe.Target{Model: "m", ServedAs: "org/m", Group: &observe.JobGroup{Variant: "l4", Cost: 3, Count: 2,
		Match: []enginemetrics.Matcher{{Name: "job", Value: "llama"}, {Name: "group", Value: "l4"}}}}, w.asked[0])
}

func TestWhatIsNotKnownChangesNothing(t *testing.T) {
	for _, name := range plugin.StrategyNames() {
		t.Run(name, func(t *testing.T) {
			w := newWorld(model(1, 3, 0.75))
			w.err = errors.New("nothing is known of it")
			a := run(t, w.plugin(t, name, nil), 4, check)
			require.Equal(t, none, a.Direction)
			require.Equal(t, int64(4), a.Count)
			require.Contains(t, a.Reason, "nothing is known of it")
			require.Contains(t, a.Meta["remuda.inert"], "nothing is known of it")
		})
	}
}

func TestRunNeverReturnsNil(t *testing.T) {
	w := newWorld(model(1, 1, 0.5))
	p := w.plugin(t, plugin.Capacity, check)
	got, err := p.Run(nil, -5)
	require.NoError(t, err)
	require.NotNil(t, got.Action, "the model is the plugin block's")
	got, err = p.Run(&sdk.ScalingCheckEvaluation{Check: &sdk.ScalingPolicyCheck{Strategy: &sdk.ScalingPolicyStrategy{Config: map[string]string{"model_name": "m"}}}}, 1)
	require.ErrorContains(t, err, "model_name is an unknown key: must be one of")
	require.NotNil(t, got.Action)
}

func TestConfig(t *testing.T) {
	for _, c := range []struct {
		strategy string
		config   map[string]string
		want     []string
	}{
		{plugin.Capacity, map[string]string{"rules": "bold", "kv_spare_trigger": "2"}, []string{`rules is "bold"`, "kv_spare_trigger is"}},
		{plugin.Capacity, map[string]string{"kv_cache_threshold": "0.05"}, []string{"thresholds are invalid"}},
		{plugin.Capacity, map[string]string{"match": "job"}, []string{"match is invalid"}},
		{plugin.Capacity, map[string]string{"dialect": "cobol"}, []string{"model is invalid"}},
		{plugin.HPA, map[string]string{"metric": "cpu", "behavior": `{"scale_up":{"select_policy":"Most"}}`, "tolerance_up": "-1"}, []string{"metric is invalid", "select_policy", "tolerance_up"}},
		{plugin.HPA, map[string]string{"form": "replicate", "metric": "kv"}, []string{"scales by a backlog"}},
		{plugin.HPA, map[string]string{"rules": "wva"}, []string{"rules is an unknown key"}},
		{plugin.Utilization, map[string]string{"config": `{"downscale_batch":0}`, "usage_window": "1s"}, []string{"config is invalid", "usage_window is"}},
		{plugin.Predictive, map[string]string{"goal": "2", "cold_start": "2h", "payback": "x", "config": `{"slack":2}`}, []string{"goal is", "cold_start is", "payback is", "config is invalid"}},
		{plugin.Predictive, map[string]string{"unplaceable_hold": "2h", "config": `{"caution":0}`}, []string{"unplaceable_hold is", "config is invalid"}},
		{plugin.Utilization, map[string]string{"prometheus": "http://p", "consul": "c:8500"}, []string{"set only one"}},
		{plugin.Utilization, map[string]string{"state_dir": "/dev/null/x"}, []string{"state_dir"}},
		{plugin.Utilization, map[string]string{"decisions": "/nowhere/x"}, []string{"decisions"}},
	} {
		t.Run(c.strategy+fmt.Sprint(c.config), func(t *testing.T) {
			w := newWorld(model(1, 1, 0.5))
			p := w.plugin(t, c.strategy, nil)
			err := p.SetConfig(c.config)
			for _, want := range c.want {
				require.ErrorContains(t, err, want)
			}
			require.NotEmpty(t, run(t, p, 2, check).Reason, "the old configuration goes on")
		})
	}
	_, err := plugin.NewStrategy(plugin.StrategyConfig{Strategy: "x"})
	require.ErrorContains(t, err, `unknown strategy "x"`)
}

func TestAnotherConfigurationReplacesTheFirst(t *testing.T) {
	w := newWorld(model(1, 1, 0.5))
	p := w.plugin(t, plugin.Capacity, map[string]string{"consul": "a:1"})
	_, err := p.Run(&sdk.ScalingCheckEvaluation{Check: &sdk.ScalingPolicyCheck{Strategy: &sdk.ScalingPolicyStrategy{
		Config: map[string]string{"model": "m", "consul": "b:1"}}}}, 2)
	require.ErrorContains(t, err, "consul is an unknown key", "where to look is the plugin block's")
	require.NoError(t, p.SetConfig(map[string]string{"consul": "c:1"}))
	require.Equal(t, 1, w.closed)
	run(t, p, 2, check)
	require.Equal(t, "c:1", w.opened[len(w.opened)-1].Consul)
}

// Two agents that both decide have states of their own. What they order is the same thing, of
// which the controller takes one: absolute numbers, and the model's index.
func TestTwoAutoscalersOrderTheSame(t *testing.T) {
	for _, name := range plugin.StrategyNames() {
		t.Run(name, func(t *testing.T) {
			w := newWorld(busy(2))
			a, b := run(t, w.plugin(t, name, nil), 2, check), run(t, w.plugin(t, name, nil), 2, check)
			require.Equal(t, up, a.Direction, a.Reason)
			require.Equal(t, a, b)
			require.Equal(t, "7", a.Meta[plugin.ActionIndex])
			require.NotEmpty(t, a.Meta[plugin.ActionTargets])
		})
	}
}

func TestWindowsSurviveARestart(t *testing.T) {
	for name, want := range map[string]sdk.ScaleDirection{"with state_dir": down, "in memory": none} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(model(0, 4, 0.5))
			if want == down {
				w.stateDir = t.TempDir()
			}
			w.snapshot.Queue.Waiting = 8 // 4 are right
			p := w.plugin(t, plugin.HPA, nil)
			require.Equal(t, none, run(t, p, 4, check).Direction)
			w.snapshot.Queue.Waiting = 2
			for range 9 { // 4.5 min of the window's 5
				w.now = w.now.Add(30 * time.Second)
				require.Equal(t, none, run(t, p, 4, check).Direction)
			}
			p = w.plugin(t, plugin.HPA, nil)
			w.now = w.now.Add(40 * time.Second)
			a := run(t, p, 4, check)
			require.Equal(t, want, a.Direction, "the window has passed, most of it in another process: %s", a.Reason)
		})
	}
}

// A full disk costs what a restart would know, and no decision.
func TestAStateThatCannotBeSaved(t *testing.T) {
	w := newWorld(busy(2))
	w.stateDir = t.TempDir()
	p := w.plugin(t, plugin.HPA, nil)
	require.NoError(t, os.RemoveAll(w.stateDir))
	require.Equal(t, up, run(t, p, 2, check).Direction)
	require.Contains(t, w.log.String(), "cannot save the strategy's state")
	require.Empty(t, w.saved(t, "remuda-hpa/m")) // this makes the directory again
	w.now = w.now.Add(30 * time.Second)
	run(t, p, 2, check)
	require.NotEmpty(t, w.saved(t, "remuda-hpa/m"), "it is saved when that is possible again")
}

func TestTheStateIsNotSavedAtEveryDecision(t *testing.T) {
	w := newWorld(model(1, 1, 0.5))
	w.stateDir = t.TempDir()
	p := w.plugin(t, plugin.Capacity, nil)
	saves, last := 0, ""
	for range 31 {
		a := run(t, p, 2, check)
		require.Equal(t, none, a.Direction, a.Reason)
		if now := w.saved(t, "remuda-capacity/m"); now != last {
			saves, last = saves+1, now
		}
		w.now = w.now.Add(2 * time.Second)
	}
	require.Equal(t, 3, saves)
}

func TestUsageIsAveragedAndRemembered(t *testing.T) {
	w := newWorld(model(0, 2, 0.5))
	w.snapshot.Queue.InFlight = 6 // of 8 slots
	w.stateDir = t.TempDir()
	p := w.plugin(t, plugin.Utilization, map[string]string{"usage_window": "3m"})
	last := func(load int, minutes int) *sdk.ScalingAction {
		var a *sdk.ScalingAction
		for range minutes {
			w.now = w.now.Add(time.Minute)
			w.snapshot.At, w.snapshot.Queue.InFlight = w.now, load
			a = run(t, p, 2, check)
		}
		return a
	}
	require.Equal(t, none, last(4, 3).Direction)
	require.Equal(t, none, last(8, 1).Direction, "one minute of three")
	require.Equal(t, up, last(8, 2).Direction)
	last(8, 24) // until half past
	w.now = w.now.Add(7*24*time.Hour - 10*time.Minute)
	require.Equal(t, up, last(1, 1).Direction, "as it was last week")
}

func TestEveryDecisionIsKeptAndTheSameAgain(t *testing.T) {
	for _, name := range plugin.StrategyNames() {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "decisions.json")
			w := newWorld(model(1, 2, 0.75))
			p := w.plugin(t, name, map[string]string{"decisions": path})
			for i := range 5 {
				w.snapshot.Queue.Waiting = 10 * i
				run(t, p, 3, check)
				w.now = w.now.Add(10 * time.Second)
			}
			f, err := os.Open(path)
			require.NoError(t, err)
			defer f.Close()
			n := 0
			var again plugin.Replayer
			for r, err := range plugin.Records(f) {
				require.NoError(t, err)
				require.NoError(t, again.Replay(&r))
				r.Answer.Count++
				require.ErrorContains(t, again.Replay(&r), "the answer differs")
				n++
			}
			require.Equal(t, 5, n)
		})
	}
}

func TestDecisionsAreRotated(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d")
	one, err := plugin.OpenDecisions(path, 2000)
	require.NoError(t, err)
	two, err := plugin.OpenDecisions(path, 2000)
	require.NoError(t, err)
	for i := range 40 {
		r := plugin.Record{Answer: plugin.Answer{Reason: fmt.Sprint("number ", i)}}
		require.NoError(t, one.Write(&r))
		require.NoError(t, two.Write(&r))
	}
	names, err := filepath.Glob(path + "*")
	require.NoError(t, err)
	require.Equal(t, []string{path, path + ".1", path + ".2", path + ".lock"}, names)
	last := ""
	for _, name := range []string{path + ".2", path + ".1", path} {
		info, err := os.Stat(name)
		require.NoError(t, err)
		require.LessOrEqual(t, info.Size(), int64(2000))
		f, err := os.Open(name)
		require.NoError(t, err)
		for r, err := range plugin.Records(f) {
			require.NoError(t, err, "no line is broken")
			last = r.Answer.Reason
		}
		f.Close()
	}
	require.Equal(t, "number 39", last)
	require.NoError(t, one.Close())
	require.NoError(t, two.Close())
}

// A full disk or a lost host leaves a part of a line behind: it costs that decision alone.
func TestALineThatWasCutCostsOneDecision(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d")
	write := func(reason string) {
		d, err := plugin.OpenDecisions(path, 1<<20)
		require.NoError(t, err)
		require.NoError(t, d.Write(&plugin.Record{Answer: plugin.Answer{Reason: reason}}))
		require.NoError(t, d.Close())
	}
	write("one")
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteString(`{"time":"2026-05-`)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	write("two")
	write("three")
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	var read, broken []string
	for r, err := range plugin.Records(bytes.NewReader(raw)) {
		if err != nil {
			require.ErrorIs(t, err, plugin.ErrBrokenLine)
			broken = append(broken, err.Error())
			continue
		}
		read = append(read, r.Answer.Reason)
	}
	require.Equal(t, []string{"one", "two", "three"}, read)
	require.Len(t, broken, 1)
	require.Contains(t, broken[0], "line 2")
}

func TestMetrics(t *testing.T) {
	at := loopback.Free(t) // it is left and taken again
	l, err := net.Listen("tcp", at)
	require.NoError(t, err)
	w := newWorld(model(1, 1, 0.75))
	p := w.plugin(t, plugin.Capacity, map[string]string{"metrics_listen": at})
	require.Equal(t, up, run(t, p, 2, check).Direction, "an address that is taken costs the metrics and nothing else")
	l.Close()
	require.NoError(t, p.SetConfig(map[string]string{"metrics_listen": at}))
	w.snapshot.Census.Inert, w.snapshot.Census.Why = true, "no matching series"
	for i := range w.snapshot.Engines {
		w.snapshot.Engines[i].Class = enginemetrics.ClassUnknown
	}
	run(t, p, 2, check)
	w.err = errors.New("nothing")
	run(t, p, 2, check)
	resp, err := http.Get("http://" + at + "/metrics")
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	for _, want := range []string{
		`remuda_autoscaler_decisions_total{direction="up",model="m",strategy="remuda-capacity"} 1`,
		`remuda_autoscaler_decisions_total{direction="none",model="m",strategy="remuda-capacity"} 2`,
		`remuda_autoscaler_inert{model="m",strategy="remuda-capacity"} 1`,
		`remuda_autoscaler_observe_errors_total{model="m",strategy="remuda-capacity"} 1`,
		`remuda_autoscaler_target_replicas{model="m",strategy="remuda-capacity",variant="l4"} 1`,
		`remuda_autoscaler_duration_seconds_count{part="run",strategy="remuda-capacity"} 3`,
	} {
		require.Contains(t, string(text), want)
	}
}

func TestStateDir(t *testing.T) {
	path := filepath.Join(t.TempDir(), "made", "state")
	d, err := plugin.OpenStateDir(path)
	require.NoError(t, err)
	keys := []string{"remuda-hpa/org/m", "a key that is no name: \x00/../x"}
	for _, key := range keys {
		raw, err := d.Load(key)
		require.NoError(t, err)
		require.Nil(t, raw)
		for _, state := range []string{`{"a":1}`, `{"a":2}`} {
			require.NoError(t, d.Save(key, []byte(state)))
			raw, err = d.Load(key)
			require.NoError(t, err)
			require.JSONEq(t, state, string(raw))
		}
	}
	files, err := os.ReadDir(path)
	require.NoError(t, err)
	require.Len(t, files, len(keys), "a file for each key, and nothing beside them")

	// A file that is replaced is another file: whoever has the old one open reads it whole.
	name := filepath.Join(path, files[0].Name())
	before, err := os.Stat(name)
	require.NoError(t, err)
	for _, key := range keys {
		require.NoError(t, d.Save(key, []byte(`{"a":3}`)))
	}
	after, err := os.Stat(name)
	require.NoError(t, err)
	require.False(t, os.SameFile(before, after))
	require.Equal(t, os.FileMode(0o600), after.Mode().Perm())
}

// A state that cannot be read is reported with its file, counts as none and is replaced.
func TestADamagedStateIsReplaced(t *testing.T) {
	const key = "remuda-hpa/m"
	for name, c := range map[string]struct{ content, want string }{
		"cut":            {`{"key":"remuda-hpa/m","state":{"sta`, "is damaged"},
		"empty":          {"", "is damaged"},
		"of another key": {`{"key":"remuda-hpa/x","state":{"state":{}}}`, `has the state of \"remuda-hpa/x\": expected that of \"remuda-hpa/m\"`},
		"no time":        {`{"key":"remuda-hpa/m","state":{"state":{"watched_ns":-1}}}`, "watched_ns is -1: must be 0 or more"},
		"impossible":     {`{"key":"remuda-hpa/m","state":{"state":{"idle_ns":-5}}}`, "idle_ns is -5: must be 0 or more"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(busy(2))
			w.stateDir = t.TempDir()
			require.NoError(t, w.states(t).Save(key, []byte("{}")))
			files, err := filepath.Glob(filepath.Join(w.stateDir, "*"))
			require.NoError(t, err)
			require.Len(t, files, 1)
			require.NoError(t, os.WriteFile(files[0], []byte(c.content), 0o600))
			require.Equal(t, up, run(t, w.plugin(t, plugin.HPA, nil), 2, check).Direction)
			require.Contains(t, w.log.String(), files[0])
			require.Contains(t, w.log.String(), c.want)
			require.Contains(t, w.saved(t, key), `"events"`, "what it did is in the new state")
		})
	}
}
