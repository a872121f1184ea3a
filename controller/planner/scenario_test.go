package planner_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/placement"
	"remuda/controller/planner"
	"remuda/controller/state"
)

// whole is a variant that takes all of each of its GPUs.
func whole(v *state.Variant) { v.Memory = 80 }

// stages counts the replicas of a model by their stages.
func (w *world) stages(model string) map[string]int {
	out := map[string]int{}
	for _, r := range w.view().ReplicasOf(nil, model) {
		out[string(r.Status)]++
	}
	return out
}

// oneOf returns the one replica of a model with a status.
func (w *world) oneOf(model string, status state.Status) *state.Replica {
	var found *state.Replica
	for _, r := range w.view().ReplicasOf(nil, model) {
		if r.Status == status {
			w.holds(found == nil, "there are two of %s that are %s", model, status)
			found = r
		}
	}
	w.holds(found != nil, "there is none of %s that is %s", model, status)
	return found
}

// quiet runs the world until there is nothing to do for a while.
func (w *world) quiet() {
	for turn, still := 0, 0; still < 8; turn++ {
		w.holds(turn < 300, "it does not come to rest")
		still++
		if w.round() > 0 {
			still = 0
		}
		w.step()
	}
}

// later lets time pass in which nothing happens.
func (w *world) later(d time.Duration) {
	w.now = w.now.Add(d)
	w.quiet()
}

// once commits one plan.
func (w *world) once() {
	p, o := w.lastPlan(), w.observe(false)
	w.holds(p != nil, "there is nothing to do")
	before := w.view()
	w.must(p)
	w.check(before, w.view(), o, p)
}

func (w *world) scaleOf(model string, n int) {
	w.must(&state.ScaleRequest{Model: model, Replicas: &n, Origin: state.OriginOperator})
}

func (w *world) replicas(model string) int { return w.view().Model(nil, model).Active().Total() }

// idle is a world in which the model a has one replica that takes one GPU, and has had
// no request for an hour.
func idle(t *testing.T, edit func(*state.Model), nodes ...state.Node) *world {
	w := fresh(t)
	w.addNodes(nodes...)
	a := model("a", 1, variant("v", "a1", whole))
	if edit != nil {
		edit(&a)
	}
	w.model(a)
	w.quiet()
	w.later(time.Hour)
	require.Equal(t, 1, w.stages("a")["serving"])
	return w
}

func TestSingleGPUBestFit(t *testing.T) {
	t.Parallel()
	w := fresh(t, "n0", "n1")
	w.model(model("filler", 1, variant("v", "f1", func(v *state.Variant) { v.Memory = 45 })))
	w.quiet()
	gpu := w.oneOf("filler", state.StatusServing).Placement.Seats[0][:7]
	w.model(model("m", 1, variant("v", "h1", func(v *state.Variant) { v.Memory = 35 })))
	w.quiet()
	require.Contains(t, w.oneOf("m", state.StatusServing).Placement.Memory, gpu, "it leaves the whole GPUs whole")
}

// A new replica leaves a WARM one the room to wake where there is another place.
func TestRoomToWakeIsLeft(t *testing.T) {
	t.Parallel()
	large := func(v *state.Variant) { v.Memory = 70 }
	w := idle(t, func(m *state.Model) { large(&m.Variants[0]) }, node("n0", 2))
	w.keeps["a"] = 1
	w.must(&state.EvictRequest{Model: "a", To: state.GoalWarm, Time: w.now})
	w.quiet()
	slept := w.oneOf("a", state.StatusWarm)
	w.model(model("b", 1, variant("v", "b1", large)))
	w.quiet()
	require.NotEqual(t, gpuOf(slept), gpuOf(w.oneOf("b", state.StatusServing)))
	w.demand["a"] = w.now.Add(time.Millisecond)
	w.quiet()
	require.Equal(t, slept.Name, w.oneOf("a", state.StatusServing).Name, "it wakes, and nothing has to go for it")
	require.Empty(t, w.decisions("b", planner.KindEvict))
}

// gpuOf returns the GPU of a replica that has one.
func gpuOf(r *state.Replica) string {
	gpu, _, _ := strings.Cut(r.Placement.Seats[0], "#")
	return gpu
}

func TestTensorParallelRounding(t *testing.T) {
	t.Parallel()
	gpus, each := placement.Sizing(90<<30, 40<<30)
	require.Equal(t, 4, gpus, "three cards would do, and no engine runs on three")
	for _, test := range []struct {
		gpus   int
		placed bool
	}{{3, false}, {gpus, true}} {
		w := fresh(t)
		n := node("n0", 4)
		n.HostMemory = 1 << 40
		for i := range n.GPUs {
			n.GPUs[i].Memory = 40 << 30
		}
		w.addNodes(n)
		w.model(model("m", 1, variant("v", "h1", func(v *state.Variant) { v.GPUs, v.Memory = test.gpus, each })))
		w.quiet()
		if !test.placed {
			require.Empty(t, w.stages("m"))
			require.Contains(t, w.decisions("m", planner.KindCannotPlace)[0].Reason, "tensor-parallel")
			continue
		}
		require.Len(t, w.oneOf("m", state.StatusServing).Placement.Memory, 4)
	}
}

func TestLargerThanAnyNode(t *testing.T) {
	t.Parallel()
	w := idle(t, nil, node("n0", 2), node("n1", 2))
	w.model(model("m", 1, variant("v", "h1", whole, func(v *state.Variant) { v.GPUs = 4 })))
	w.quiet()
	require.Empty(t, w.stages("m"))
	no := w.decisions("m", planner.KindCannotPlace)
	require.Len(t, no, 1)
	require.Contains(t, no[0].Details, "node n0")
	require.Contains(t, no[0].Details, "node n1")
	require.Empty(t, w.decisions("a", planner.KindEvict))
}

func TestImpossibleEvenAfterEvictingAll(t *testing.T) {
	t.Parallel()
	w := idle(t, nil, node("n0", 1))
	w.model(model("m", 1, variant("v", "h1", func(v *state.Variant) { v.Memory = 81 })))
	w.quiet()
	require.Empty(t, w.stages("m"))
	require.Equal(t, map[string]int{"serving": 1}, w.stages("a"), "nothing is evicted for nothing")
	require.Empty(t, w.decisions("a", planner.KindEvict))
}

func TestWarmBeatsFree(t *testing.T) {
	t.Parallel()
	w := idle(t, nil, node("n0", 1), node("n1", 1))
	r := w.oneOf("a", state.StatusServing)
	w.must(&state.EvictRequest{Replica: r.Name.String(), To: state.GoalWarm, Time: w.now})
	w.quiet()
	require.Equal(t, map[string]int{"warm": 1}, w.stages("a"))
	require.Zero(t, w.replicas("a"))
	w.scaleOf("a", 1)
	w.quiet()
	require.Equal(t, r.Name, w.oneOf("a", state.StatusServing).Name, "the same replica, the same process")
	require.Len(t, w.view().ReplicasOf(nil, "a"), 1)
	require.Len(t, w.decisions("a", planner.KindAwake), 1)
}

func TestWarmAndFullAgainstColdAndFree(t *testing.T) {
	t.Parallel()
	warm := func(t *testing.T) *world {
		w := idle(t, nil, node("n0", 1))
		w.must(&state.EvictRequest{Model: "a", To: state.GoalWarm, Time: w.now})
		w.quiet()
		w.model(model("b", 1, variant("v", "b1", whole)))
		w.quiet()
		require.Equal(t, map[string]int{"serving": 1}, w.stages("b"), "in the GPU that a has left")
		w.addNodes(node("n1", 1))
		w.later(time.Hour)
		return w
	}
	t.Run("what is in the way is idle: it goes, and the WARM one wakes", func(t *testing.T) {
		t.Parallel()
		w := warm(t)
		w.scaleOf("a", 1)
		w.quiet()
		require.Equal(t, map[string]int{"serving": 1}, w.stages("a"))
		require.Equal(t, "n0", w.oneOf("a", state.StatusServing).Placement.Node)
		require.Equal(t, map[string]int{"warm": 1, "serving": 1}, w.stages("b"), "and comes back where there is room")
		require.Equal(t, "n1", w.oneOf("b", state.StatusServing).Placement.Node)
		require.Contains(t, w.decisions("b", planner.KindEvict)[0].Details["for"], "a")
	})
	t.Run("what is in the way is in use: another one starts where there is room", func(t *testing.T) {
		t.Parallel()
		w := warm(t)
		w.last[w.oneOf("b", state.StatusServing).Name.String()] = w.now
		w.scaleOf("a", 1)
		w.quiet()
		require.Equal(t, "n1", w.oneOf("a", state.StatusServing).Placement.Node)
		require.Equal(t, map[string]int{"serving": 1}, w.stages("b"))
	})
}

func TestDedicatedIsNeverEvicted(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(*state.Model){
		"by its file": func(m *state.Model) { m.Dedicated = true },
		"by the set":  nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := idle(t, edit, node("n0", 1))
			if edit == nil {
				w.must(&state.SetDedicated{Models: map[string]int{"a": 1}, Time: w.now})
			}
			important := model("m", 1, variant("v", "h1", whole))
			important.Priority = 100
			w.model(important)
			w.later(time.Hour)
			require.Equal(t, map[string]int{"serving": 1}, w.stages("a"))
			require.Empty(t, w.stages("m"))
			require.NotEmpty(t, w.decisions("m", planner.KindCannotPlace))
		})
	}
}

func TestDedicatedSetSwap(t *testing.T) {
	t.Parallel()
	w := idle(t, nil, node("n0", 1))
	w.model(model("b", 0, variant("v", "b1", whole)))
	w.must(&state.SetDedicated{Models: map[string]int{"a": 1}, Time: w.now})
	w.quiet()
	w.must(&state.SetDedicated{Models: map[string]int{"b": 1}, Time: w.now})
	w.quiet()
	require.Equal(t, map[string]int{"warm": 1}, w.stages("a"), "the old set goes WARM where it can")
	require.Equal(t, map[string]int{"serving": 1}, w.stages("b"))
	w.must(&state.SetDedicated{Models: map[string]int{"a": 1}, Time: w.now})
	w.quiet()
	require.Equal(t, map[string]int{"serving": 1}, w.stages("a"))
	require.Equal(t, map[string]int{"warm": 1}, w.stages("b"))
}

func TestScheduleChangesTheSetByTimeOfDay(t *testing.T) {
	t.Parallel()
	w := fresh(t, "n0")
	w.model(model("a", 0, variant("v", "a1", whole)))
	w.model(model("b", 0, variant("v", "b1", whole)))
	w.must(&state.SetSchedule{File: `
timezone = "UTC"
window "day" {
  from      = "04:00"
  to        = "20:00"
  dedicated = { a = 1, unknown = 3 }
}
default {
  dedicated = { b = 1 }
}
`})
	window := func() string {
		w.holds(w.view().Dedicated(nil) != nil, "nothing was set")
		return w.view().Dedicated(nil).Window
	}
	w.plan(false)
	require.Equal(t, "default", window())
	_, next := w.plan(false)
	w.quiet()
	require.Equal(t, map[string]int{"serving": 1}, w.stages("b"))
	require.False(t, next.IsZero())
	four := time.Date(2026, 1, 2, 4, 0, 0, 0, time.UTC)
	w.now = four
	w.plan(false)
	require.Equal(t, "day", window())
	require.Equal(t, map[string]int{"a": 1}, w.view().Dedicated(nil).Models)
	require.Contains(t, w.decisions("", planner.KindDedicated)[0].Reason, "unknown")
	w.quiet()
	require.Equal(t, 1, w.stages("a")["serving"])
	require.Zero(t, w.stages("b")["serving"])

	w.must(&state.SetDedicated{Models: map[string]int{"b": 2}, Time: w.now})
	w.later(time.Hour)
	require.Empty(t, window(), "it holds until the schedule's next change")
	w.now = time.Date(2026, 1, 2, 20, 0, 0, 0, time.UTC)
	w.plan(false)
	require.Equal(t, "default", window())
	w.must(&state.SetSchedule{File: "timezone = \"UTC\"\ndefault {\n dedicated = { a = 1 }\n}\n"})
	w.plan(false)
	require.Equal(t, map[string]int{"a": 1}, w.view().Dedicated(nil).Models, "a new schedule holds at once")
	w.must(&state.SetSchedule{File: "nonsense {"})
	w.quiet()
	require.Equal(t, map[string]int{"a": 1}, w.view().Dedicated(nil).Models)
	require.Contains(t, w.decisions("", planner.KindDedicated)[0].Reason, "cannot parse the schedule")
}

func TestMinimumAge(t *testing.T) {
	t.Parallel()
	young := func(t *testing.T) *world {
		w := fresh(t)
		w.addNodes(node("n0", 1))
		w.model(model("a", 1, variant("v", "a1", whole)))
		w.quiet()
		return w
	}
	t.Run("a young replica stays until it is old enough", func(t *testing.T) {
		t.Parallel()
		w := young(t)
		w.model(model("m", 1, variant("v", "h1", whole)))
		w.quiet()
		require.Equal(t, map[string]int{"serving": 1}, w.stages("a"))
		require.Empty(t, w.stages("m"))
		_, next := w.plan(false)
		require.False(t, next.IsZero(), "it is looked at again")
		require.False(t, next.After(w.oneOf("a", state.StatusServing).Since.Add(w.conf.MinAge)))
		w.later(w.conf.MinAge)
		require.Equal(t, map[string]int{"serving": 1}, w.stages("m"))
	})
	t.Run("a dedicated model does not wait", func(t *testing.T) {
		t.Parallel()
		w := young(t)
		m := model("m", 1, variant("v", "h1", whole))
		m.Dedicated = true
		w.model(m)
		w.quiet()
		require.Equal(t, map[string]int{"serving": 1}, w.stages("m"))
	})
}

func TestBatchImmunity(t *testing.T) {
	t.Parallel()
	w := idle(t, nil, node("n0", 1))
	for _, name := range []string{"x", "y"} {
		m := model(name, 1, variant("v", name+"1", whole))
		m.Dedicated = name == "y" // it would not even wait for the other's age
		w.model(m)
	}
	w.later(time.Second)
	evicted := map[string]int{}
	for _, d := range w.view().Decisions(nil, "", 0) {
		if d.Kind == planner.KindEvict {
			evicted[d.Model]++
		}
	}
	require.Equal(t, map[string]int{"a": 1}, evicted, "members of a batch are never each other's victims")
	require.Equal(t, map[string]int{"serving": 1}, w.stages("y"), "the dedicated one comes first")
	require.Empty(t, w.stages("x"))
}

func TestSiblingSurvivesATargetedEvict(t *testing.T) {
	t.Parallel()
	for _, to := range []state.Goal{state.GoalWarm, state.GoalCold, state.GoalGone} {
		t.Run(fmt.Sprintf("to %q", to), func(t *testing.T) {
			t.Parallel()
			w := deployed(t, 2, "n0")
			rs := w.view().ReplicasOf(nil, "m")
			w.must(&state.EvictRequest{Replica: rs[0].Name.String(), To: to, Time: w.now})
			for range 10 {
				w.round()
				w.step()
				require.Equal(t, state.StatusServing, w.view().Replica(nil, rs[1].Name.String()).Status)
			}
			require.Equal(t, 1, w.replicas("m"))
			require.Equal(t, 1, w.stages("m")["serving"])
			if to == state.GoalWarm {
				require.Equal(t, 1, w.stages("m")["warm"])
			}
		})
	}
}

func TestTwoModelThrashIsBounded(t *testing.T) {
	t.Parallel()
	w := idle(t, nil, node("n0", 1))
	w.model(model("b", 0, variant("v", "b1", whole)))
	// Clients want both all the time, a little request each.
	hours := 3
	for w.now.Before(epoch.Add(time.Hour + time.Duration(hours)*time.Hour)) {
		w.demand = map[string]time.Time{}
		for _, name := range []string{"a", "b"} {
			if w.stages(name)["serving"] == 0 {
				w.demand[name] = w.now.Add(time.Millisecond)
			}
		}
		w.round()
		w.step()
		w.now = w.now.Add(10 * time.Second)
	}
	evictions := len(w.decisions("a", planner.KindEvict)) + len(w.decisions("b", planner.KindEvict))
	require.Greater(t, evictions, 2, "each has its turn")
	require.LessOrEqual(t, evictions, int(time.Duration(hours)*time.Hour/w.conf.ThrashWindow*2)+2)
	for _, m := range w.view().Models(nil) {
		require.LessOrEqual(t, len(m.EvictedFor), 1, "old evictions are forgotten")
	}
}

func TestExplicitEvictOfAPinnedReplicaNeedsForce(t *testing.T) {
	t.Parallel()
	w := idle(t, func(m *state.Model) { m.Dedicated = true }, node("n0", 1))
	r := w.oneOf("a", state.StatusServing)
	e := &state.EvictRequest{Replica: r.Name.String(), To: state.GoalWarm, Time: w.now}
	require.ErrorContains(t, w.apply(e).Err, "force")
	e.Force = true
	w.must(e)
	w.quiet()
	require.Equal(t, map[string]int{"warm": 1}, w.stages("a"))
}

func TestLoadedModelsAreUntouchedWhileAnotherLoads(t *testing.T) {
	t.Parallel()
	w := deployed(t, 2, "n0", "n1")
	before := w.view().ReplicasOf(nil, "m")
	w.load = func() time.Duration { return 100 * tick }
	w.model(model("slow", 1, variant("v", "s1")))
	for range 80 {
		for _, r := range before {
			w.requests[r.Name.String()] = []time.Time{w.now.Add(tick)}
		}
		w.round()
		w.step()
		for _, r := range before {
			require.Equal(t, r, w.view().Replica(nil, r.Name.String()))
		}
	}
	require.Equal(t, map[string]int{"starting": 1}, w.stages("slow"))
}
