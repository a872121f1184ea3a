package plugin_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"remuda/autoscaler-plugin/enginemetrics"
	"remuda/autoscaler-plugin/observe"
	"remuda/autoscaler-plugin/plugin"
)

// A model whose management is upscaling grows and never shrinks, whatever the strategy.
func TestManagementThatOnlyLetsAModelGrow(t *testing.T) {
	for name, call := range map[string]plugin.Call{
		plugin.Capacity:    capacityCall(model(2, 4, 0.01)),
		plugin.HPA:         hpaCall(model(2, 4, 0.01)),
		plugin.Utilization: utilizationCall(model(2, 4, 0.01)),
	} {
		t.Run(name, func(t *testing.T) {
			call.Options.ScaleToZero = true
			call.Snapshot = idle(call.Snapshot)
			call.State.IdleFor = time.Hour
			shrinks, _ := call.Decide()
			require.Equal(t, plugin.Down, shrinks.Direction, "without it: %s", shrinks.Reason)
			call.Snapshot.Management = "upscaling"
			stays, _ := call.Decide()
			require.Equal(t, plugin.None, stays.Direction, stays.Reason)
			require.Contains(t, stays.Reason, "the model's management is upscaling")
			again, _ := call.Decide()
			require.Equal(t, stays, again)
		})
	}
}

// What a switch or a right forbids is not asked for, by any strategy, up or down.
func TestWhatIsForbiddenIsNotAskedFor(t *testing.T) {
	calls := map[string]func(observe.Snapshot) plugin.Call{
		plugin.Capacity: capacityCall, plugin.HPA: hpaCall, plugin.Utilization: utilizationCall, plugin.Predictive: predictiveCall,
	}
	for name, c := range map[string]struct {
		forbid   func(*observe.Snapshot)
		down, up int // what may be asked for in the end
	}{
		"nothing":                         {func(*observe.Snapshot) {}, 0, 10},
		"disable-scaling":                 {func(s *observe.Snapshot) { s.ScalingDisabled = true }, 2, 2},
		"cap-max-replicas":                {func(s *observe.Snapshot) { s.Max = 2 }, 0, 2},
		"scale-to-zero-delay":             {func(s *observe.Snapshot) { s.ScaleToZeroDelay = 3 * time.Hour }, 1, 10},
		"scale-to-zero-delay never":       {func(s *observe.Snapshot) { s.Min = 1 }, 1, 10},
		"the dedicated set":               {func(s *observe.Snapshot) { s.Min = 2 }, 2, 10},
		"management manual":               {func(s *observe.Snapshot) { s.Management = "manual" }, 2, 2},
		"management disabled":             {func(s *observe.Snapshot) { s.Management = "disabled" }, 2, 2},
		"management upscaling":            {func(s *observe.Snapshot) { s.Management = "upscaling" }, 2, 10},
		"stopped":                         {func(s *observe.Snapshot) { s.Stopped = true }, 2, 2},
		"one variant in an external pool": {func(s *observe.Snapshot) { s.Min, s.Variants[0].Min = 1, 1 }, 1, 10},
		"a variant that cannot be placed": {func(s *observe.Snapshot) { s.Variants[1].Unplaceable = true }, 0, 10},
		"no variant that can be placed":   {func(s *observe.Snapshot) { s.Variants[0].Unplaceable, s.Variants[1].Unplaceable = true, true }, 0, 2},
	} {
		for strategy, of := range calls {
			t.Run(name+"/"+strategy, func(t *testing.T) {
				settle := func(edit func(*plugin.Call)) plugin.Answer {
					call := of(model(1, 1, 0.01))
					call.Options.ScaleToZero = true
					edit(&call)
					var a plugin.Answer
					for range 400 { // two hours
						snap := model(call.Snapshot.Variants[0].Current, call.Snapshot.Variants[1].Current, 0.01)
						call.Snapshot.Variants, call.Snapshot.Engines = snap.Variants, snap.Engines
						edit(&call)
						c.forbid(&call.Snapshot)
						a, call.State = call.Decide()
						for _, v := range call.Snapshot.Variants {
							require.GreaterOrEqual(t, a.Targets[v.Variant], v.Min, a.Reason)
						}
						call.Snapshot.Variants[0].Current, call.Snapshot.Variants[1].Current = a.Targets["h100"], a.Targets["l4"]
						call.Now += int64(18 * time.Second)
						call.Snapshot.At = time.Unix(0, call.Now)
					}
					return a
				}
				a := settle(func(call *plugin.Call) {
					call.Snapshot = idle(call.Snapshot)
					call.Usage = enginemetrics.Of(0)
				})
				require.Equal(t, c.down, a.Count, "idle: %s", a.Reason)
				a = settle(func(call *plugin.Call) {
					for i := range call.Snapshot.Engines {
						e := &call.Snapshot.Engines[i]
						e.KV, e.Running, e.RunningNow = enginemetrics.Of(0.99), enginemetrics.Of(4), enginemetrics.Of(4)
					}
					call.Snapshot.Queue = observe.Queue{Known: true, Source: observe.FromGateways, Waiting: 400, InFlight: 8}
					call.Usage = enginemetrics.Of(60 * 400)
				})
				require.Equal(t, c.up, a.Count, "busy: %s", a.Reason)
			})
		}
	}
}

// An exchange of one variant for another would be above the max: what is there stays.
func TestAnExchangeThatMayOnlyAdd(t *testing.T) {
	call := capacityCall(model(0, 3, 0.05))
	call.Snapshot.Variants[0].Desired = 3 // and the load fits without one l4
	call.Snapshot.Management = "upscaling"
	for max, want := range map[int]int{3: 3, 9: 6} {
		call.Snapshot.Max = max
		a, _ := call.Decide()
		require.Equal(t, want, a.Count, a.Reason)
	}
}

// After a change of its tier a model is left alone for a while, and the wait outlives the
// plugin with the state.
func TestAChangedTierIsLeftAlone(t *testing.T) {
	call := utilizationCall(model(0, 1, 0.5))
	call.Options.Utilization.Tier = "gold"
	call.Options.Utilization.Config.TierGraceByTier = map[string]int{"silver": 60}
	busy := func() plugin.Answer {
		var a plugin.Answer
		raw, err := json.Marshal(call)
		require.NoError(t, err)
		call = plugin.Call{}
		require.NoError(t, json.Unmarshal(raw, &call))
		a, call.State = call.Decide()
		return a
	}
	require.NotContains(t, busy().Reason, "tier", "the first tier is no change")
	call.Options.Utilization.Tier = "silver"
	require.Contains(t, busy().Reason, `the tier changed to "silver": the model is not scaled for another 1m0s`)
	call.Now += int64(59 * time.Second)
	call.Snapshot.At = call.Snapshot.At.Add(59 * time.Second)
	require.Contains(t, busy().Reason, "the model is not scaled for another 1s")
	call.Now += int64(time.Second)
	call.Snapshot.At = call.Snapshot.At.Add(time.Second)
	require.NotContains(t, busy().Reason, "tier")
	call.Options.Utilization.Config.Tiers = []string{"gold"}
	require.Contains(t, busy().Reason, `tier "silver" is not one of this scaler's tiers`)
}

// A policy that is inert says so at once, every ten minutes, and when it is over.
func TestTheAlarm(t *testing.T) {
	w := newWorld(model(1, 1, 0.5))
	var log bytes.Buffer
	p, err := plugin.NewStrategy(plugin.StrategyConfig{Name: "x", Strategy: plugin.Capacity, Now: func() time.Time { return w.now },
		Logger: hclog.New(&hclog.LoggerOptions{Output: &log, Level: hclog.Info}),
		Open: func(plugin.Sources, hclog.Logger) (plugin.View, error) {
			return plugin.View{Observer: w}, nil
		}})
	require.NoError(t, err)
	t.Cleanup(p.Close)
	require.NoError(t, p.SetConfig(nil))
	require.Contains(t, log.String(), "decisions are not recorded and cannot be replayed: set decisions to a file")
	alarms := func() int { return strings.Count(log.String(), "ALARM: the policy is inert") }
	run(t, p, 2, check)
	require.Zero(t, alarms())
	w.err = errors.New("no route to host")
	run(t, p, 2, check)
	require.Equal(t, 1, alarms())
	require.Contains(t, log.String(), "no route to host")
	w.now = w.now.Add(9 * time.Minute)
	run(t, p, 2, check)
	require.Equal(t, 1, alarms(), "it was told")
	w.now = w.now.Add(time.Minute)
	run(t, p, 2, check)
	require.Equal(t, 2, alarms(), "it is still so")
	w.err = nil
	run(t, p, 2, check)
	require.Contains(t, log.String(), "the policy can make decisions again")
	w.snapshot.Census.Inert, w.snapshot.Census.Why = true, "no matching series"
	w.snapshot.Away = []string{"prometheus"}
	run(t, p, 2, check)
	require.Contains(t, log.String(), "no matching series: prometheus did not answer")
}

// TestWhatTheControllerWouldNotDo: during a rollout, and while no pair has a standby, every strategy
// grows and removes nothing; an idle model sleeps without a standby, and not during a rollout.
func TestWhatTheControllerWouldNotDo(t *testing.T) {
	for name, call := range map[string]plugin.Call{"capacity": capacityCall(model(2, 2, 0.1)), "hpa": hpaCall(idle(model(2, 2, 0.1))), "utilization": utilizationCall(idle(model(2, 2, 0.1)))} {
		call.State.WatchedFor, call.State.WatchedAt = time.Hour, call.Now
		call.Usage = enginemetrics.Of(0)
		if h := call.Options.HPA; h != nil {
			h.Behavior.ScaleDown.StabilizationWindowSeconds = 0
		}
		for _, set := range []func(*observe.Snapshot){
			func(s *observe.Snapshot) { s.Rollout = "version 7 of variant h100 (canary)" },
			func(s *observe.Snapshot) { s.Degraded = "all 4 replicas that serve are pairs without a standby" },
		} {
			held := call
			set(&held.Snapshot)
			a, _ := held.Decide()
			require.Equal(t, map[string]int{"h100": 2, "l4": 2}, a.Targets, "%s: %s", name, a.Reason)
			require.Equal(t, plugin.None, a.Direction, name)
			a, _ = call.Decide()
			require.Equal(t, plugin.Down, a.Direction, "%s without it: %s", name, a.Reason)
		}
	}
	short := capacityCall(model(1, 1, 0.79))
	short.Snapshot.Rollout, short.Snapshot.Degraded = "version 7 of variant h100 (canary)", "all 2 replicas that serve are pairs without a standby"
	a, _ := short.Decide()
	require.Equal(t, plugin.Up, a.Direction, a.Reason)

	quiet := capacityCall(idle(model(0, 1, 0)))
	quiet.Options.ScaleToZero, quiet.State.IdleFor = true, time.Hour
	quiet.Snapshot.Degraded = "all 1 replicas that serve are pairs without a standby"
	a, _ = quiet.Decide()
	require.Equal(t, 0, a.Count, a.Reason)
	quiet.Snapshot.Rollout = "version 7 of variant l4 (rolling)"
	a, _ = quiet.Decide()
	require.Equal(t, 1, a.Count, a.Reason)
	require.Contains(t, a.Reason, "no scale-down until the rollout of version 7")
}

// The log has what the upstream analyzer logs: the averages and what a removal would leave, for each
// analysis, and each variant's numbers.
func TestTheAnalysisIsLogged(t *testing.T) {
	w := newWorld(model(1, 1, 0.79))
	w.snapshot.Variants[1].Accelerator = "L4"
	var log bytes.Buffer
	p, err := plugin.NewStrategy(plugin.StrategyConfig{Name: "x", Strategy: plugin.Capacity, Now: func() time.Time { return w.now },
		Logger: hclog.New(&hclog.LoggerOptions{Output: &log, Level: hclog.Debug, JSONFormat: true}),
		Open: func(plugin.Sources, hclog.Logger) (plugin.View, error) {
			return plugin.View{Observer: w}, nil
		}})
	require.NoError(t, err)
	t.Cleanup(p.Close)
	require.NoError(t, p.SetConfig(nil))
	run(t, p, 2, check)
	logged := map[string]map[string]any{}
	for line := range strings.Lines(log.String()) {
		var entry map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &entry), line)
		logged[fmt.Sprint(entry["@message"], entry["variant"])] = entry
	}
	for message, fields := range map[string]map[string]any{
		"capacity analysis completed<nil>": {"total_replicas": 2.0, "non_saturated": 2.0, "scale_up": true, "scale_down_safe": false},
		"capacity targetl4":                {"action": "scale-up", "current": 1.0, "ready": 1.0, "target": 2.0, "accelerator": "L4"},
		"capacity targeth100":              {"action": "no-change", "current": 1.0, "ready": 1.0, "target": 1.0},
	} {
		require.Contains(t, logged, message, log.String())
		for field, want := range fields {
			require.Equal(t, want, logged[message][field], "%s: %s: %v", message, field, logged[message])
		}
	}
	analysis := logged["capacity analysis completed<nil>"]
	for _, field := range []string{"avg_spare_kv", "avg_spare_queue", "remaining_spare_kv", "remaining_spare_queue", "scale_up_reason", "scale_down_hold"} {
		require.NotEmpty(t, analysis[field], "%s: %v", field, analysis)
	}
	require.NotEmpty(t, logged["capacity targetl4"]["cost"])
}
