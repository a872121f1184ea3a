package plugin_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/hcl/v2/hclsimple"
	"github.com/hashicorp/nomad-autoscaler/sdk"
	"github.com/stretchr/testify/require"

	"remuda/autoscaler-plugin/plugin"
	"remuda/controller/api"
)

func TestCheckPolicy(t *testing.T) {
	for _, c := range []struct {
		name, strategy string
		settings       map[string]string
		err            string
	}{
		{name: "defaults", strategy: "remuda-capacity"},
		{name: "keys of the strategy", strategy: "remuda-capacity", settings: map[string]string{"hold": "2m", "scale_to_zero": "true"}},
		{name: "an object as JSON", strategy: "remuda-hpa", settings: map[string]string{"behavior": `{"scale_down":{"stabilization_window_seconds":60}}`}},
		{name: "an unknown strategy", strategy: "capacity", err: `strategy is "capacity": must be one of remuda-capacity, remuda-hpa, remuda-utilization, remuda-predictive`},
		{name: "an unknown key", strategy: "remuda-capacity", settings: map[string]string{"holds": "2m"}, err: "holds is an unknown key: must be one of "},
		{name: "a key of another strategy", strategy: "remuda-hpa", settings: map[string]string{"hold": "2m"}, err: "hold is an unknown key"},
		{name: "a bad value", strategy: "remuda-capacity", settings: map[string]string{"hold": "soon"}, err: `hold is "soon": must be a time from 0s to 24h0m0s`},
		{name: "another model", strategy: "remuda-capacity", settings: map[string]string{"model": "x"}, err: "model is set: remove it"},
		{name: "a key of nomad-autoscaler", strategy: "remuda-capacity", settings: map[string]string{"nomad_address": "x"}, err: "nomad_address is set: remove it"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := plugin.CheckPolicy(c.strategy, c.settings)
			if c.err == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.err)
		})
	}
}

// following is a controller whose policies change.
type following struct {
	*controller
	mu       sync.Mutex
	policies []api.Policy
	index    uint64
	down     error
	changed  chan struct{}
}

func (f *following) set(down error, policies ...api.Policy) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.policies, f.down = policies, down
	f.index++
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *following) Policies(ctx context.Context, q api.QueryOptions) ([]api.Policy, api.QueryMeta, error) {
	for {
		f.mu.Lock()
		policies, index, changed, down := f.policies, f.index, f.changed, f.down
		f.mu.Unlock()
		if down != nil || q.Index == 0 || index > q.Index {
			return policies, api.QueryMeta{Index: index}, down
		}
		select {
		case <-ctx.Done():
			return nil, api.QueryMeta{}, ctx.Err()
		case <-changed:
		}
	}
}

func capacityPolicy(model, hold string) api.Policy {
	return api.Policy{Model: model, Min: 1, Max: 9, Scaling: api.Scaling{Strategy: plugin.Capacity, Interval: api.Duration(10 * time.Second), Settings: map[string]string{"hold": hold, "served_as": "a ${b} \"c\""}}}
}

// holds returns what each policy file has as hold, by model.
func holds(t *testing.T, dir string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.hcl"))
	require.NoError(t, err)
	out := map[string]string{}
	for _, path := range files {
		var file sdk.FileDecodeScalingPolicies
		require.NoError(t, hclsimple.DecodeFile(path, nil, &file))
		require.Len(t, file.ScalingPolicies, 1)
		p := file.ScalingPolicies[0]
		require.True(t, p.Enabled)
		require.EqualValues(t, 1, p.Min)
		require.EqualValues(t, 9, p.Max)
		require.Equal(t, "10s", p.Doc.EvaluationIntervalHCL)
		check := p.Doc.Checks[0]
		require.Equal(t, []string{"remuda", "replicas/" + p.Name, plugin.Capacity, p.Name}, []string{check.Source, check.Query, check.Strategy.Name, check.Strategy.Config["model"]})
		require.Equal(t, `a ${b} "c"`, check.Strategy.Config["served_as"])
		require.Equal(t, p.Name, p.Doc.Target.Config["model"])
		out[p.Name] = check.Strategy.Config["hold"]
	}
	return out
}

func TestPoliciesOfModelFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "remuda-of-the-last-start.hcl"), []byte("stale"), 0o600))
		c := &following{controller: &controller{}, changed: make(chan struct{})}
		c.set(nil, capacityPolicy("a", "1m"), capacityPolicy("org/b", "2m"))
		var reloads atomic.Int32
		newTarget := func() *plugin.Target {
			return plugin.NewTarget(plugin.TargetConfig{Connect: func(api.Config) (plugin.Controller, error) { return c, nil }, Reload: func() error { reloads.Add(1); return nil }})
		}
		p := newTarget()
		config := map[string]string{"controller": "http://c:1", "policy_dir": dir}
		require.NoError(t, p.SetConfig(config))
		require.Equal(t, map[string]string{"a": "1m", "org/b": "2m"}, holds(t, dir), "before nomad-autoscaler reads the directory")
		require.NoError(t, p.SetConfig(config), "a reload changes nothing")

		c.set(nil, capacityPolicy("a", "3m"), capacityPolicy("org/b", "2m"))
		time.Sleep(9 * time.Second)
		require.Zero(t, reloads.Load(), "nomad-autoscaler may not handle signals yet")
		time.Sleep(2 * time.Second)
		require.EqualValues(t, 1, reloads.Load())
		require.Equal(t, map[string]string{"a": "3m", "org/b": "2m"}, holds(t, dir))

		c.set(nil, capacityPolicy("a", "3m"), capacityPolicy("org/b", "2m"))
		time.Sleep(time.Minute)
		require.EqualValues(t, 1, reloads.Load(), "the models changed, and their policies did not")

		c.set(errors.New("no leader"))
		time.Sleep(time.Minute)
		require.Len(t, holds(t, dir), 2, "without the controller the policies stay")
		c.set(nil, capacityPolicy("org/b", "2m"))
		time.Sleep(time.Minute)
		require.EqualValues(t, 2, reloads.Load())
		require.Equal(t, map[string]string{"org/b": "2m"}, holds(t, dir))
		p.Close()

		// What changes while nothing runs is there at the next start.
		c.set(nil)
		p = newTarget()
		require.NoError(t, p.SetConfig(config))
		require.Empty(t, holds(t, dir))
		// The first question shows that nomad-autoscaler has started.
		_, err := p.Status(policy)
		require.NoError(t, err)
		c.set(nil, capacityPolicy("a", "1m"))
		time.Sleep(3 * time.Second)
		require.EqualValues(t, 3, reloads.Load())
		p.Close()
	})
}

func TestPolicyDirThatIsMissing(t *testing.T) {
	p := plugin.NewTarget(plugin.TargetConfig{Connect: func(api.Config) (plugin.Controller, error) { return &controller{}, nil }})
	require.ErrorContains(t, p.SetConfig(map[string]string{"controller": "http://c:1", "policy_dir": "/nowhere"}), "policy_dir: open /nowhere: no such file")
}

func TestOnlyThePolicyOfTheModelFileActs(t *testing.T) {
	c, p := targetWorld(t)
	mine := capacityPolicy("m", "1m")
	mine.Min, mine.Max = c.status.Model.Min, c.status.Model.Max
	ready := func(config map[string]string) string {
		t.Helper()
		st, err := p.Status(config)
		require.NoError(t, err)
		require.Equal(t, st.Ready, st.Meta[plugin.MetaWhy] == "")
		return st.Meta[plugin.MetaWhy]
	}
	written := map[string]string{"model": "m", "policy": plugin.PolicyHash(&mine)}
	require.Empty(t, ready(policy))
	require.Contains(t, ready(written), "the model file has no policy any more")
	c.status.Model.Scaling = &mine.Scaling
	require.Empty(t, ready(written))
	require.Contains(t, ready(policy), "the model file has a policy, which is the one that counts")
	changed := mine
	changed.Scaling.Settings = map[string]string{"hold": "5m"}
	c.status.Model.Scaling = &changed.Scaling
	require.Contains(t, ready(written), "the model file has a newer policy")
	c.status.Model.Scaling, c.status.Model.Max = &mine.Scaling, 4
	require.Contains(t, ready(written), "the model file has a newer policy", "with other bounds")
	c.status.Model.Max, c.status.Model.Management = mine.Max, "manual"
	require.Contains(t, ready(written), "management is manual", "rights bind")
}

// The tier of a model is a key of the policy in its file. A changed one is a new policy, and the windows
// of the old one go on: the model is left alone for the grace of a changed tier.
func TestTheTierOfTheModelFile(t *testing.T) {
	c := &following{controller: &controller{}, changed: make(chan struct{})}
	w := newWorld(model(0, 1, 0.5))
	strategy := w.plugin(t, plugin.Utilization, nil)
	decides := func(tier string) string {
		t.Helper()
		dir := t.TempDir()
		c.set(nil, api.Policy{Model: "m", Max: 9, Scaling: api.Scaling{Strategy: plugin.Utilization, Interval: api.Duration(10 * time.Second), Settings: map[string]string{"tier": tier}}})
		target := plugin.NewTarget(plugin.TargetConfig{Connect: func(api.Config) (plugin.Controller, error) { return c, nil }, Reload: func() error { return nil }})
		defer target.Close()
		require.NoError(t, target.SetConfig(map[string]string{"controller": "http://c:1", "policy_dir": dir}))
		files, err := filepath.Glob(filepath.Join(dir, "*.hcl"))
		require.NoError(t, err)
		require.Len(t, files, 1)
		var file sdk.FileDecodeScalingPolicies
		require.NoError(t, hclsimple.DecodeFile(files[0], nil, &file))
		of := file.ScalingPolicies[0].Doc.Checks[0]
		w.now = w.now.Add(10 * time.Second)
		return runCheck(t, strategy, of.Name, 1, of.Strategy.Config).Reason
	}
	require.NotContains(t, decides("gold"), "tier")
	require.NotContains(t, decides("gold"), "tier")
	require.Contains(t, decides("silver"), `the tier changed to "silver": the model is not scaled for another 15m0s`)
}
