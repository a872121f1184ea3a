package planner_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/planner"
	"remuda/controller/state"
)

// sleepy is a world whose model a goes WARM after 10 minutes, and COLD after 20.
func sleepy(t *testing.T, replicas, least int) *world {
	w := fresh(t, "n0", "n1")
	a := model("a", replicas, variant("v", "a1", whole))
	a.IdleWarm, a.IdleCold, a.Min = 10*time.Minute, 20*time.Minute, least
	w.model(a)
	w.quiet()
	require.Equal(t, replicas, w.stages("a")["serving"])
	return w
}

func TestIdleReplicasGoWarmThenCold(t *testing.T) {
	t.Parallel()
	w := sleepy(t, 2, 0)
	name := w.view().ReplicasOf(nil, "a")[0].Name.String()
	w.now = w.now.Add(9 * time.Minute)
	w.last[name] = w.now
	_, next := w.plan(false)
	require.False(t, next.IsZero())
	w.later(2 * time.Minute)
	require.Equal(t, map[string]int{"serving": 1, "warm": 1}, w.stages("a"), "the one with a request stays")
	require.Equal(t, 1, w.replicas("a"))
	require.Equal(t, state.Hot, w.view().Replica(nil, name).Tier())
	w.later(10 * time.Minute)
	require.Equal(t, map[string]int{"warm": 2}, w.stages("a"))
	require.Zero(t, w.replicas("a"))
	w.later(10 * time.Minute)
	w.later(20 * time.Minute)
	require.Zero(t, w.stages("a")["warm"])
	require.NotEmpty(t, w.decisions("a", planner.KindPruned))
	require.Len(t, w.decisions("a", planner.KindIdle), 2)
}

func TestPruningKeepsTheMinimum(t *testing.T) {
	t.Parallel()
	w := sleepy(t, 3, 2)
	w.later(time.Hour)
	require.Equal(t, 2, w.stages("a")["serving"])
	require.Equal(t, 2, w.replicas("a"))
}

// TestPruningFailsSafe: who cannot tell when the last request was keeps everything.
func TestPruningFailsSafe(t *testing.T) {
	t.Parallel()
	for name, blind := range map[string]func(w *world){
		"no gateway reports":       func(w *world) { w.gateways = false },
		"a gateway began just now": func(w *world) { w.gatewaysSince = w.now.Add(time.Hour - time.Minute) },
		"a request is in flight": func(w *world) {
			w.requests[w.view().ReplicasOf(nil, "a")[0].Name.String()] = []time.Time{w.now.Add(100 * time.Hour)}
		},
		"it is dedicated": func(w *world) {
			w.must(&state.SetDedicated{Models: map[string]int{"a": 1}, Time: w.now})
		},
		"scaling is disabled": func(w *world) { w.must(&state.SetSwitch{Name: state.SwitchDisableScaling, Value: "true"}) },
		"scaling is disabled for it": func(w *world) {
			w.must(&state.SetSwitch{Name: state.SwitchFor(state.SwitchDisableScaling, "a"), Value: "true"})
		},
		"scale to zero is never": func(w *world) {
			w.must(&state.SetSwitch{Name: state.SwitchScaleToZeroDelay, Value: "never"})
		},
		"scale to zero takes longer": func(w *world) {
			w.must(&state.SetSwitch{Name: state.SwitchScaleToZeroDelay, Value: "2h"})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := sleepy(t, 1, 0)
			blind(w)
			w.later(time.Hour)
			require.Equal(t, map[string]int{"serving": 1}, w.stages("a"))
			require.Empty(t, w.decisions("a", planner.KindIdle))
			if name == "scale to zero takes longer" {
				w.later(time.Hour)
				require.Equal(t, 0, w.stages("a")["serving"])
			}
		})
	}
	t.Run("scale to zero is never, and there are two", func(t *testing.T) {
		t.Parallel()
		w := sleepy(t, 2, 0)
		w.must(&state.SetSwitch{Name: state.SwitchScaleToZeroDelay, Value: "never"})
		w.later(time.Hour)
		w.later(time.Hour)
		require.Equal(t, 1, w.stages("a")["serving"], "only the last one stays")
	})
}

func TestPruningIsLimited(t *testing.T) {
	t.Parallel()
	w := sleepy(t, 4, 0)
	w.conf.PruneMax = 2
	for i, r := range w.view().ReplicasOf(nil, "a") {
		w.last[r.Name.String()] = w.now.Add(-time.Duration(i) * time.Second)
	}
	rs := w.view().ReplicasOf(nil, "a")
	w.now = w.now.Add(time.Hour)
	w.once()
	require.Len(t, w.decisions("a", planner.KindIdle), 2)
	require.Equal(t, state.StatusServing, w.view().Replica(nil, rs[0].Name.String()).Status)
	w.plan(false)
	require.Len(t, w.decisions("a", planner.KindIdle), 2, "not before the interval is over")
	w.now = w.now.Add(w.conf.PruneInterval)
	w.plan(false)
	require.Len(t, w.decisions("a", planner.KindIdle), 4)
}

func TestTierGrace(t *testing.T) {
	t.Parallel()
	w := fresh(t, "n0")
	w.conf.TierGrace = 30 * time.Minute
	a := model("a", 1, variant("v", "a1"))
	a.IdleWarm = time.Minute
	w.model(a)
	w.quiet()
	w.later(20 * time.Minute)
	require.Equal(t, map[string]int{"serving": 1}, w.stages("a"))
	w.later(15 * time.Minute)
	require.Equal(t, map[string]int{"warm": 1}, w.stages("a"))
}

func TestCapMaxReplicas(t *testing.T) {
	t.Parallel()
	w := deployed(t, 3, "n0")
	w.must(&state.SetSwitch{Name: state.SwitchCapMaxReplicas, Value: "2"})
	w.quiet()
	require.Equal(t, 2, w.stages("m")["serving"])
	w.must(&state.SetSwitch{Name: state.SwitchFor(state.SwitchCapMaxReplicas, "m"), Value: "1"})
	w.quiet()
	require.Equal(t, 1, w.stages("m")["serving"])
	require.Equal(t, 3, w.replicas("m"), "what people want is not forgotten")
	w.must(&state.SetSwitch{Name: state.SwitchFor(state.SwitchCapMaxReplicas, "m"), Delete: true}, &state.SetSwitch{Name: state.SwitchCapMaxReplicas, Delete: true})
	w.quiet()
	require.Equal(t, 3, w.stages("m")["serving"])
}

func TestDisabledScalingProtectsFromEviction(t *testing.T) {
	t.Parallel()
	for _, name := range []string{state.SwitchDisableScaling, state.SwitchFor(state.SwitchDisableScaling, "a")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := falling(t)
			w.must(&state.SetSwitch{Name: name, Value: "true"})
			w.later(time.Hour)
			require.Equal(t, map[string]int{"serving": 1}, w.stages("a"))
			w.must(&state.SetSwitch{Name: name, Delete: true})
			w.quiet()
			require.Equal(t, map[string]int{"warm": 1}, w.stages("a"))
		})
	}
}

func TestPauseStopsEverything(t *testing.T) {
	t.Parallel()
	w := sleepy(t, 1, 0)
	w.must(&state.SetSwitch{Name: state.SwitchPauseReconcile, Value: "true"})
	w.demand["a"] = w.now.Add(time.Millisecond)
	w.later(time.Hour)
	require.Equal(t, map[string]int{"serving": 1}, w.stages("a"))
}

func TestDemand(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		edit func(*state.Model)
		set  func(w *world)
		want int
	}{
		"no replicas":            {nil, nil, 1},
		"its minimum is more":    {func(m *state.Model) { m.Min = 2; m.Desired = state.Any(2) }, nil, 2},
		"it may have none":       {func(m *state.Model) { m.Max = 0 }, nil, 0},
		"management is disabled": {func(m *state.Model) { m.Management = state.ManagementDisabled }, nil, 0},
		"it is stopped":          {func(m *state.Model) { m.Stopped = true }, nil, 0},
		"scaling is disabled": {nil, func(w *world) {
			w.must(&state.SetSwitch{Name: state.SwitchDisableScaling, Value: "true"})
		}, 0},
		"it is capped to none": {nil, func(w *world) {
			w.must(&state.SetSwitch{Name: state.SwitchCapMaxReplicas, Value: "0"})
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := fresh(t, "n0")
			m := model("m", 0, variant("a", "h1"))
			if test.edit != nil {
				test.edit(&m)
			}
			w.model(m)
			if test.set != nil {
				test.set(w)
			}
			w.demand["m"] = w.now.Add(time.Millisecond)
			w.demand["unknown"] = w.now
			w.quiet()
			require.Equal(t, test.want, w.stages("m")["serving"], fmt.Sprint(w.stages("m")))
		})
	}
	t.Run("every variant has a number of its own", func(t *testing.T) {
		t.Parallel()
		w := fresh(t, "n0")
		w.model(model("m", 0, variant("a", "h1", func(v *state.Variant) { v.Cost = 2 }), variant("b", "h2")))
		for _, v := range []string{"a", "b"} {
			w.must(&state.ScaleRequest{Model: "m", Variants: map[string]int{v: 0}, Origin: state.OriginOperator})
		}
		w.demand["m"] = w.now.Add(time.Millisecond)
		w.quiet()
		require.Equal(t, "b", w.oneOf("m", state.StatusServing).Name.Variant, "the cheapest")
	})
}
