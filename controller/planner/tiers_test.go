package planner_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/planner"
	"remuda/controller/state"
)

// falling is a world whose replica of the model a, on node n0 with one GPU, is evicted to
// WARM for the model b.
func falling(t *testing.T, nodes ...state.Node) *world {
	if len(nodes) == 0 {
		nodes = []state.Node{node("n0", 1)}
	}
	w := idle(t, nil, nodes...)
	w.model(model("b", 1, variant("v", "b1", whole)))
	return w
}

func TestEvictionForAnotherModel(t *testing.T) {
	t.Parallel()
	w := falling(t)
	w.once()
	r := w.oneOf("a", state.StatusDraining)
	require.Equal(t, state.GoalWarm, r.Goal)
	require.Equal(t, "b", r.MakesRoomFor)
	require.Zero(t, w.replicas("a"), "it is to have one less")
	require.Empty(t, w.stages("b"))
	require.NotEmpty(t, w.decisions("b", planner.KindWaitsForRoom))
	d := w.decisions("a", planner.KindEvict)[0]
	require.Equal(t, "b", d.Details["for"])
	w.quiet()
	require.Equal(t, map[string]int{"warm": 1}, w.stages("a"))
	require.Equal(t, map[string]int{"serving": 1}, w.stages("b"))
	require.Len(t, w.decisions("a", planner.KindEvict), 1)
}

// TestNoEvictionForAStrangersSeats: a job that is not ours names the seats of a replica. They
// are not free once the replica has gone.
func TestNoEvictionForAStrangersSeats(t *testing.T) {
	t.Parallel()
	w := idle(t, nil, node("n0", 1))
	r := w.oneOf("a", state.StatusServing)
	w.strange("h1", "n0-GPU0#0", "n0-GPU0#1").Placement.Memory = nil
	w.model(model("b", 1, variant("v", "b1", func(v *state.Variant) { v.Memory = 80 })))
	w.quiet()
	require.Empty(t, w.decisions("a", planner.KindEvict))
	require.Equal(t, r.Name, w.oneOf("a", state.StatusServing).Name)
	require.NotEmpty(t, w.decisions("b", planner.KindCannotPlace))
}

// TestAStrangerMayHaveBeenWokenElsewhere: the meta of a job names the GPU on which its replica was placed. Its engine
// may have been woken on another one on which it has a seat.
func TestAStrangerMayHaveBeenWokenElsewhere(t *testing.T) {
	t.Parallel()
	w := fresh(t)
	w.addNodes(node("n0", 3))
	delete(w.strange("h1", "n0-GPU0#0", "n0-GPU1#0").Placement.Memory, "n0-GPU1")
	w.model(model("b", 2, variant("v", "b1", whole)))
	w.quiet()
	require.Equal(t, "n0-GPU2", on(w.oneOf("b", state.StatusServing)))
	require.NotEmpty(t, w.decisions("b", planner.KindCannotPlace))
}

func TestNoRoomInRAMMeansCold(t *testing.T) {
	t.Parallel()
	small := node("n0", 1)
	small.HostMemory = 11 // of which nine tenths are less than the ten that a takes
	w := falling(t, small)
	w.quiet()
	require.Equal(t, map[string]int{"cold": 1}, w.stages("a"))
	b := w.oneOf("b", state.StatusServing)
	u := w.view().Usage(nil, "n0")
	require.Equal(t, map[string]int64{"n0-GPU0": 80}, u.Memory)
	require.Zero(t, u.HostMemory)
	require.Equal(t, map[string]string{b.Placement.Seats[0]: b.Name.String()}, u.Seats)
}

// TestWarmBudget: the host memory has room for one WARM replica, and two would be there.
func TestWarmBudget(t *testing.T) {
	t.Parallel()
	resting := func(t *testing.T, used time.Duration) *world {
		n := node("n0", 2)
		n.HostMemory = 20
		w := idle(t, nil, n)
		w.model(model("c", 1, variant("v", "c1", whole)))
		w.quiet()
		w.must(&state.EvictRequest{Model: "a", To: state.GoalWarm, Time: w.now})
		w.quiet()
		require.Equal(t, map[string]int{"warm": 1}, w.stages("a"))
		w.now = w.now.Add(time.Hour)
		w.last[w.oneOf("c", state.StatusServing).Name.String()] = w.now.Add(-used)
		w.must(&state.EvictRequest{Model: "c", To: state.GoalWarm, Time: w.now})
		w.quiet()
		return w
	}
	t.Run("what was used long ago makes room for what was used just now", func(t *testing.T) {
		t.Parallel()
		w := resting(t, 0)
		require.Equal(t, map[string]int{"cold": 1}, w.stages("a"))
		require.Equal(t, map[string]int{"warm": 1}, w.stages("c"))
		require.Len(t, w.decisions("a", planner.KindEvictWarm), 1)
	})
	t.Run("and not for what is worth less", func(t *testing.T) {
		t.Parallel()
		w := resting(t, 10*time.Hour)
		require.Equal(t, map[string]int{"warm": 1}, w.stages("a"))
		require.Equal(t, map[string]int{"cold": 1}, w.stages("c"))
		require.NotEmpty(t, w.decisions("c", planner.KindCannotSleep))
	})
}

func TestWakeOnAnotherGPU(t *testing.T) {
	t.Parallel()
	w := fresh(t)
	n := node("n0", 2)
	for g := range n.GPUs {
		n.GPUs[g].Seats = append(n.GPUs[g].Seats, n.GPUs[g].UUID+"#2")
	}
	w.addNodes(n)
	w.model(model("a", 1, variant("v", "a1", whole, func(v *state.Variant) { v.Reach = 2 })))
	w.quiet()
	w.later(time.Hour)
	slept := w.oneOf("a", state.StatusServing)
	require.Len(t, slept.Placement.Seats, 2)
	w.must(&state.EvictRequest{Model: "a", To: state.GoalWarm, Time: w.now})
	w.quiet()
	gpu := ""
	for u := range slept.Placement.Memory {
		gpu = u
	}
	b := model("b", 1, variant("v", "b1", whole))
	b.Priority = 90
	w.setNode("n0", func(n *state.Node) { // so that b goes where a has slept
		n.GPUs = append([]state.GPU{}, n.GPUs...)
		for i := range n.GPUs {
			n.GPUs[i].Healthy = n.GPUs[i].UUID == gpu
		}
	})
	w.model(b)
	w.quiet()
	require.Contains(t, w.oneOf("b", state.StatusServing).Placement.Memory, gpu)
	w.setNode("n0", func(n *state.Node) {
		n.GPUs = append([]state.GPU{}, n.GPUs...)
		for i := range n.GPUs {
			n.GPUs[i].Healthy = true
		}
	})
	w.scaleOf("a", 1)
	w.plan(false)
	require.Equal(t, []string{gpu}, w.oneOf("a", state.StatusWaking).SleepingGPUs)
	w.quiet()
	awake := w.oneOf("a", state.StatusServing)
	require.Empty(t, awake.SleepingGPUs)
	require.Equal(t, slept.Name, awake.Name)
	require.NotContains(t, awake.Placement.Memory, gpu)
	require.Equal(t, slept.Placement.Seats, awake.Placement.Seats)
}

func TestRequestMidEvict(t *testing.T) {
	t.Parallel()
	t.Run("of what is drained for another model: it has its turn once that is over", func(t *testing.T) {
		t.Parallel()
		w := falling(t)
		w.once()
		w.demand["a"] = w.now.Add(time.Millisecond)
		w.quiet()
		require.Equal(t, map[string]int{"serving": 1}, w.stages("b"))
		require.Equal(t, map[string]int{"warm": 1}, w.stages("a"))
		require.Equal(t, 1, w.replicas("a"), "it was asked for")
		w.demand = map[string]time.Time{}
		w.later(w.conf.ThrashWindow + w.conf.MinAge)
		require.Equal(t, map[string]int{"serving": 1}, w.stages("a"), "no deadlock")
	})
	t.Run("of what is drained for nobody: the drain is called off", func(t *testing.T) {
		t.Parallel()
		w := idle(t, nil, node("n0", 1))
		name := w.oneOf("a", state.StatusServing).Name
		w.requests[name.String()] = []time.Time{w.now.Add(10 * tick)}
		w.must(&state.EvictRequest{Model: "a", To: state.GoalWarm, Time: w.now})
		w.round()
		w.demand["a"] = w.now.Add(time.Millisecond)
		w.plan(false)
		require.Equal(t, name, w.oneOf("a", state.StatusServing).Name)
		require.Len(t, w.decisions("a", planner.KindCalledOff), 1)
		require.Len(t, w.decisions("a", planner.KindDemand), 1)
		w.quiet()
		require.Equal(t, map[string]int{"serving": 1}, w.stages("a"))
	})
	t.Run("of what goes to sleep for nobody: it is woken", func(t *testing.T) {
		t.Parallel()
		w := idle(t, nil, node("n0", 1))
		name := w.oneOf("a", state.StatusServing).Name
		w.must(&state.EvictRequest{Model: "a", To: state.GoalWarm, Time: w.now})
		w.plan(false)
		w.oneOf("a", state.StatusSleeping)
		w.demand["a"] = w.now.Add(time.Millisecond)
		w.plan(false)
		w.oneOf("a", state.StatusSleeping)
		require.Len(t, w.view().ReplicasOf(nil, "a"), 1, "no other one comes up")
		w.quiet()
		require.Equal(t, name, w.oneOf("a", state.StatusServing).Name)
	})
	t.Run("that takes longer than a drain may: it stays HOT, and has its place again", func(t *testing.T) {
		t.Parallel()
		w := falling(t)
		w.once()
		r := w.oneOf("a", state.StatusDraining)
		w.requests[r.Name.String()] = []time.Time{w.now.Add(100 * time.Hour)}
		w.now = w.now.Add(w.conf.DrainTimeout)
		w.plan(false)
		w.oneOf("a", state.StatusServing)
		require.Equal(t, 1, w.replicas("a"))
		require.Len(t, w.decisions("a", planner.KindCalledOff), 1)
		w.quiet()
		require.Equal(t, map[string]int{"serving": 1}, w.stages("a"), "it is not evicted at once again")
		require.Empty(t, w.stages("b"))
	})
}

func TestOutcomesOfASleep(t *testing.T) {
	t.Parallel()
	for class, want := range map[planner.OutcomeClass]struct {
		kind   string
		stages map[string]int
		b      bool // it comes up
	}{
		planner.Done:        {planner.KindAsleep, map[string]int{"warm": 1}, true},
		planner.CannotSleep: {planner.KindCannotSleep, map[string]int{"cold": 1}, true},
		planner.NotDrained:  {planner.KindCalledOff, map[string]int{"serving": 1}, false},
		planner.Failed:      {planner.KindSleepFailed, map[string]int{"cold": 1}, true},
		planner.MemoryHeld:  {planner.KindMemoryHeld, map[string]int{"cold": 1}, false},
		planner.Unreachable: {planner.KindSleepFailed, map[string]int{"cold": 1}, true},
	} {
		t.Run(string(class), func(t *testing.T) {
			t.Parallel()
			w := falling(t)
			w.outcome = func(kind planner.Kind, _ *state.Replica) planner.OutcomeClass {
				if kind == planner.Sleep {
					return class
				}
				return planner.Done
			}
			if class == planner.Unreachable {
				w.turns(6)
				require.Equal(t, map[string]int{"sleeping": 1}, w.stages("a"))
				require.Greater(t, w.sleeps, 2, "it is tried again")
				w.now = w.now.Add(w.conf.SleepTimeout)
			}
			w.quiet()
			require.Equal(t, want.stages, w.stages("a"))
			require.NotEmpty(t, w.decisions("a", want.kind))
			require.Equal(t, want.b, len(w.stages("b")) > 0)
			gpu := w.view().Node(nil, "n0").GPUs[0]
			require.Equal(t, class == planner.MemoryHeld, gpu.Cordoned)
			if gpu.Cordoned {
				require.True(t, gpu.MemoryHeld())
				require.Contains(t, gpu.CordonReason, "80 bytes were not freed after a:v:")
			}
			if class == planner.NotDrained {
				require.Equal(t, 1, w.replicas("a"), "it counts again")
			}
			if class == planner.CannotSleep {
				// It is remembered: the next one goes COLD without being asked.
				w.later(time.Hour)
				w.sleeps = 0
				w.scaleOf("a", 1)
				w.quiet()
				require.Equal(t, map[string]int{"serving": 1}, w.stages("a"))
				w.later(time.Hour)
				w.scaleOf("b", 1)
				w.quiet()
				require.Equal(t, 1, w.stages("a")["cold"])
				require.Zero(t, len(w.decisions("a", planner.KindAsleep)))
			}
		})
	}
}

func TestOutcomesOfAWake(t *testing.T) {
	t.Parallel()
	for class, kind := range map[planner.OutcomeClass]string{
		planner.Done: planner.KindAwake, planner.Failed: planner.KindWakeFailed, planner.Unreachable: planner.KindWakeFailed,
	} {
		t.Run(string(class), func(t *testing.T) {
			t.Parallel()
			w := idle(t, nil, node("n0", 1), node("n1", 1))
			first := w.oneOf("a", state.StatusServing)
			w.must(&state.EvictRequest{Model: "a", To: state.GoalWarm, Time: w.now})
			w.quiet()
			w.outcome = func(planner.Kind, *state.Replica) planner.OutcomeClass { return class }
			w.scaleOf("a", 1)
			if class == planner.Unreachable {
				w.turns(6)
				require.Equal(t, map[string]int{"waking": 1}, w.stages("a"))
				w.now = w.now.Add(w.conf.WakeTimeout)
			}
			w.quiet()
			require.NotEmpty(t, w.decisions("a", kind))
			r := w.oneOf("a", state.StatusServing)
			if class == planner.Done {
				require.Equal(t, first.Name, r.Name)
				return
			}
			require.NotEqual(t, first.Placement.Node, r.Placement.Node, "it goes elsewhere")
			require.Equal(t, 1, w.stages("a")["cold"])
		})
	}
}

// TestLateOutcomes: what is heard of a replica that is in another phase by now is nothing.
func TestLateOutcomes(t *testing.T) {
	t.Parallel()
	w := idle(t, nil, node("n0", 1))
	r := w.oneOf("a", state.StatusServing)
	for _, kind := range []planner.Kind{planner.Sleep, planner.Wake} {
		for _, class := range []planner.OutcomeClass{planner.Done, planner.Failed, planner.MemoryHeld} {
			require.Nil(t, planner.After(w.view(), planner.Outcome{Kind: kind, Replica: r.Name.String(), Class: class}, w.now, w.conf))
		}
	}
	require.Nil(t, planner.After(w.view(), planner.Outcome{Kind: planner.Wake, Replica: "a:v:none", Class: planner.Done}, w.now, w.conf))
}

// The weights of a pair outlive one of its engines: while it goes to sleep, and while it sleeps. They
// are lost with both, and where the other one's shim says so.
func TestPairThatLosesAnEngineStaysWarm(t *testing.T) {
	t.Parallel()
	one := func(w *world, j *job) {
		j.alloc.Started, j.alloc.Restarts = w.now.Add(time.Millisecond), j.alloc.Restarts+1
	}
	for name, tc := range map[string]struct {
		during, after func(w *world, j *job)
		want          state.Status
	}{
		"one dies while it drains or sleeps":  {one, nil, state.StatusWarm},
		"both die while it drains or sleeps":  {func(w *world, j *job) { j.restart(w.now.Add(time.Millisecond)) }, nil, state.StatusCold},
		"one dies when it sleeps":             {nil, one, state.StatusWarm},
		"both die when it sleeps":             {nil, func(w *world, j *job) { j.restart(w.now) }, state.StatusCold},
		"the one that keeps the weights dies": {nil, func(w *world, j *job) { one(w, j); w.weightsLost[j.Name.String()] = true }, state.StatusCold},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := idle(t, func(m *state.Model) { m.Failover = true }, node("n0", 1))
			r := w.oneOf("a", state.StatusServing)
			j := w.nomad[r.Name.String()]
			if tc.during != nil {
				w.outcome = func(planner.Kind, *state.Replica) planner.OutcomeClass { return planner.Unreachable }
			}
			w.must(&state.EvictRequest{Model: "a", To: state.GoalWarm, Time: w.now})
			if tc.during != nil {
				w.until(func() bool { return w.view().Replica(nil, r.Name.String()).Status == state.StatusSleeping })
				tc.during(w, j)
				w.outcome = nil
			}
			w.quiet()
			if tc.after != nil {
				w.oneOf("a", state.StatusWarm)
				tc.after(w, j)
				w.quiet()
			}
			w.oneOf("a", tc.want)
		})
	}
}

func TestLostWarmProcess(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(w *world, j *job){
		"its process began anew": func(w *world, j *job) { j.restart(w.now); j.alloc.Restarts = 1 },
		"its allocation failed":  func(_ *world, j *job) { j.alloc.Client, j.alloc.Failed = "failed", true },
		"the job was stopped outside remuda": func(w *world, j *job) {
			w.index2++
			j.Stopped, j.Index = true, w.index2
		},
		"the job is missing in Nomad": func(w *world, j *job) { delete(w.nomad, j.Name.String()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := idle(t, nil, node("n0", 1))
			w.must(&state.EvictRequest{Model: "a", To: state.GoalWarm, Time: w.now})
			w.quiet()
			r := w.oneOf("a", state.StatusWarm)
			registered := w.registered
			lose(w, w.nomad[r.Name.String()])
			w.plan(false)
			require.Len(t, w.decisions("a", planner.KindLostWarm), 1)
			w.quiet()
			require.Equal(t, map[string]int{"cold": 1}, w.stages("a"))
			require.Equal(t, registered, w.registered, "its job is not written anew")
			w.demand["a"] = w.now.Add(time.Millisecond)
			w.quiet()
			require.Equal(t, 1, w.stages("a")["serving"])
		})
	}
	t.Run("that Nomad cannot be asked loses nothing", func(t *testing.T) {
		t.Parallel()
		w := idle(t, nil, node("n0", 1))
		w.must(&state.EvictRequest{Model: "a", To: state.GoalWarm, Time: w.now})
		w.quiet()
		w.nomadOut = true
		w.nomad = map[string]*job{}
		require.Nil(t, w.lastPlan())
	})
}

// TestParked: the state says that it serves, and its engine sleeps.
func TestParked(t *testing.T) {
	t.Parallel()
	w := idle(t, nil, node("n0", 1))
	r := w.oneOf("a", state.StatusServing)
	w.nomad[r.Name.String()].asleep = true
	w.quiet()
	require.False(t, w.nomad[r.Name.String()].asleep, "it was woken")
	require.Equal(t, map[string]int{"serving": 1}, w.stages("a"))
	w.consulOut = true
	require.Empty(t, planner.Actions(w.view(), w.observe(false), w.conf))
}

// TestNothingGoesWarmInAnOutage of Nomad: nobody could tell the shim, and nothing could be
// brought back.
func TestNothingGoesWarmInAnOutage(t *testing.T) {
	t.Parallel()
	t.Run("pruning", func(t *testing.T) {
		t.Parallel()
		w := idle(t, func(m *state.Model) { m.IdleWarm = 2 * time.Hour }, node("n0", 1))
		w.nomadOut = true
		w.later(3 * time.Hour)
		require.Equal(t, map[string]int{"serving": 1}, w.stages("a"))
		w.nomadOut = false
		w.quiet()
		require.Equal(t, map[string]int{"warm": 1}, w.stages("a"))
	})
	t.Run("a drain", func(t *testing.T) {
		t.Parallel()
		w := idle(t, nil, node("n0", 1))
		w.nomadOut = true
		w.must(&state.EvictRequest{Model: "a", To: state.GoalWarm, Time: w.now})
		w.quiet()
		require.Equal(t, map[string]int{"draining": 1}, w.stages("a"), "it may still be called off")
		w.nomadOut = false
		w.quiet()
		require.Equal(t, map[string]int{"warm": 1}, w.stages("a"))
	})
	t.Run("a sleep and a wake", func(t *testing.T) {
		t.Parallel()
		w := idle(t, nil, node("n0", 1))
		w.must(&state.EvictRequest{Model: "a", To: state.GoalWarm, Time: w.now})
		w.plan(false)
		w.oneOf("a", state.StatusSleeping)
		w.nomadOut = true
		w.later(time.Hour)
		w.oneOf("a", state.StatusSleeping)
		w.nomadOut, w.nomadSince = false, w.now
		w.quiet()
		require.Equal(t, map[string]int{"warm": 1}, w.stages("a"))
		w.scaleOf("a", 1)
		w.plan(false)
		w.oneOf("a", state.StatusWaking)
		w.nomadOut = true
		w.later(time.Hour)
		w.nomadOut, w.nomadSince = false, w.now
		w.quiet()
		require.Equal(t, map[string]int{"serving": 1}, w.stages("a"))
	})
}

// TestParkedAfterARestart: the process began anew, and its shim remembers that its engine
// was put to sleep. By then the state says that the replica starts.
func TestParkedAfterARestart(t *testing.T) {
	t.Parallel()
	w := idle(t, nil, node("n0", 1))
	r := w.oneOf("a", state.StatusServing)
	j := w.nomad[r.Name.String()]
	j.asleep, j.using, j.serves = true, nil, time.Time{}
	j.restart(w.now)
	j.alloc.Restarts = 1
	w.now = w.now.Add(w.conf.ServingGrace)
	w.plan(false)
	w.oneOf("a", state.StatusStarting)
	// Nothing but the time that Plan has said makes the controller look again.
	began := w.now
	for len(planner.Actions(w.view(), w.observe(false), w.conf)) == 0 {
		_, w.now = w.plan(false)
		require.False(t, w.now.IsZero(), "nobody looks again")
	}
	require.Equal(t, w.conf.WakeTimeout, w.now.Sub(began), "it may be loading until then")
	w.quiet()
	require.False(t, j.asleep, "it was woken")
	require.Equal(t, map[string]int{"serving": 1}, w.stages("a"))
}

func TestRestingReplicasThatNobodyWants(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(w *world)
		left   map[string]int
	}{
		"the model is stopped": {func(w *world) {
			w.must(&state.ScaleRequest{Model: "a", Stopped: new(true), Origin: state.OriginOperator})
		}, map[string]int{}},
		"its definition has changed": {func(w *world) { w.model(model("a", 0, variant("v", "a2", whole))) }, map[string]int{}},
		"the variant was removed":    {func(w *world) { w.model(model("a", 0, variant("other", "a3", whole))) }, map[string]int{}},
		"its node is drained": {func(w *world) {
			w.drains["n0"] = w.now
			w.setNode("n0", func(n *state.Node) { n.Draining = true })
		}, map[string]int{"cold": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := idle(t, nil, node("n0", 1))
			w.must(&state.EvictRequest{Model: "a", To: state.GoalWarm, Time: w.now})
			w.quiet()
			require.Equal(t, map[string]int{"warm": 1}, w.stages("a"))
			test.change(w)
			w.quiet()
			require.Equal(t, test.left, w.stages("a"))
		})
	}
}

func TestKeepWarm(t *testing.T) {
	t.Parallel()
	w := fresh(t, "n0", "n1")
	m := model("m", 4, variant("a", "h1"))
	m.KeepWarm = 2
	w.model(m)
	w.quiet()
	w.scale(1)
	w.quiet()
	require.Equal(t, map[string]int{"serving": 1, "warm": 2}, w.stages("m"))
	before := w.view().ReplicasOf(nil, "m")
	w.scale(3)
	w.quiet()
	require.Equal(t, map[string]int{"serving": 3}, w.stages("m"))
	for _, r := range before {
		require.NotNil(t, w.view().Replica(nil, r.Name.String()), "they were woken, not made anew")
	}
	w.scale(0)
	w.quiet()
	require.Equal(t, map[string]int{"warm": 2}, w.stages("m"))
}

// What a sleeping replica was seen to keep is charged to it, and is what the next ones are expected
// to keep, unless the estimate of the model file is larger.
func TestSleepMemoryIsMeasured(t *testing.T) {
	t.Parallel()
	for estimate, charged := range map[int64]int64{0: 7, 30: 30} {
		w := fresh(t, "n0", "n1")
		v := variant("a", "h1")
		v.SleepMemory = estimate
		m := model("m", 4, v)
		m.KeepWarm = 2
		w.model(m)
		w.keeps = map[string]int64{"m": 7}
		w.quiet()
		w.scaleOf("m", 1)
		w.quiet()
		for _, r := range w.view().ReplicasOf(nil, "m") {
			require.Equal(t, charged, r.Placement.SleepMemory, "also the one that has not slept")
		}
		w.scaleOf("m", 0)
		w.quiet()
		warm := w.view().ReplicasOf(nil, "m")
		require.Equal(t, map[string]int{"warm": 2}, w.stages("m"))
		for _, r := range warm {
			require.Equal(t, charged, r.Placement.SleepMemory)
			for _, bytes := range r.Holds().Memory {
				require.Equal(t, charged, bytes)
			}
		}
		require.Equal(t, map[string]state.Sleep{"h1": {Memory: charged}}, w.view().Model(nil, "m").Sleeps)
		require.Contains(t, w.decisions("m", planner.KindAsleep)[0].Reason, fmt.Sprintf("keeps %d B of each GPU", charged))
		w.scaleOf("m", 3)
		w.quiet()
		for _, r := range w.view().ReplicasOf(nil, "m") {
			require.Equal(t, charged, r.Placement.SleepMemory, "also the one that is new")
		}
	}
}

// While another replica has not taken its memory yet, too little is measured. What is charged does not
// fall below what a replica of the definition has kept before.
func TestSleepMemoryThatIsMeasuredTooSmall(t *testing.T) {
	t.Parallel()
	w := fresh(t, "n0")
	m := model("m", 1, variant("a", "h1"))
	m.KeepWarm = 1
	w.model(m)
	for _, measured := range []int64{7, 0, 3} {
		w.keeps = map[string]int64{"m": measured}
		w.scaleOf("m", 1)
		w.quiet()
		w.scaleOf("m", 0)
		w.quiet()
		require.Equal(t, map[string]int{"warm": 1}, w.stages("m"))
		for _, r := range w.view().ReplicasOf(nil, "m") {
			require.EqualValues(t, 7, r.Placement.SleepMemory, "%d measured", measured)
		}
	}
}
