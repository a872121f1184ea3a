package planner_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/planner"
	"remuda/controller/state"
)

// seats4 is a node whose GPUs have four seats each.
func seats4(id string, gpus int) state.Node {
	n := node(id, gpus)
	for i := range n.GPUs {
		n.GPUs[i].Seats = nil
		for seat := range 4 {
			n.GPUs[i].Seats = append(n.GPUs[i].Seats, fmt.Sprintf("%s#%d", n.GPUs[i].UUID, seat))
		}
	}
	return n
}

// paired is a variant of a pair that takes most of its GPU while it serves, and little while it loads.
func paired(v *state.Variant) { v.Memory, v.SharedMemory, v.SleepMemory, v.HostMemory = 60, 10, 2, 10 }

// pairsOn is a world in which m has pairs, one on each GPU with four seats.
func pairsOn(t *testing.T, pairs int, edit ...func(*state.Model)) *world {
	w := fresh(t)
	w.addNodes(seats4("n0", pairs))
	m := model("m", pairs, variant("a", "h1", paired))
	m.Failover = true
	inPlace(&m)
	for _, e := range edit {
		e(&m)
	}
	w.model(m)
	w.turns(10)
	require.Equal(t, map[string]int{"serving h1": pairs}, w.counts("m"))
	w.load = func() time.Duration { return 30 * tick }
	return w
}

// absence turns the world until something is so, and returns for how many ticks fewer than so many
// replicas of m served.
func (w *world) absence(least int, so func() bool) (ticks int) {
	w.until(func() bool {
		ticks += btoi(capacity(w.view())["m"] < least)
		return so()
	})
	return ticks
}

// bridged is how many replicas served after they had become WARM beside another one.
func (w *world) bridged() int {
	loaded, n := map[string]bool{}, 0
	for _, d := range w.view().Decisions(nil, "", 0) {
		if d.Details["beside"] != "" {
			loaded[d.Replica] = true
		}
	}
	for _, d := range w.view().Decisions(nil, "", 0) {
		n += btoi(d.Kind == planner.KindAwake && loaded[d.Replica])
	}
	return n
}

func TestSuccessors(t *testing.T) {
	t.Parallel()
	done := func(w *world) func() bool { return func() bool { return w.status() == "" } }
	isNew := func(w *world) func(*state.Replica) bool {
		return func(r *state.Replica) bool { return w.hash(r) == "h2" }
	}
	t.Run("one pair serves until its successor is WARM on the same GPU", func(t *testing.T) {
		t.Parallel()
		w := pairsOn(t, 1)
		old := w.oneOf("m", state.StatusServing)
		w.next("h2", paired)
		w.turns(20)
		require.Equal(t, map[string]int{"serving h1": 1, "starting h2": 1}, w.counts("m"))
		s := w.only(isNew(w))
		require.Equal(t, state.GoalWarm, s.Goal)
		require.Equal(t, gpuOf(old), gpuOf(s))
		require.Equal(t, map[string]int64{gpuOf(s): 12}, s.Holds().Memory, "its weights, and what it keeps while it sleeps")
		require.Equal(t, int64(10), s.Holds().HostMemory)
		require.Contains(t, w.decisions("m", planner.KindCanary)[0].Reason, "which serves until this one is WARM")
		gap := w.absence(1, done(w))
		require.Equal(t, 1, w.bridged())
		require.LessOrEqual(t, gap, 6, "a drain, a stop and a wake, and no load")
		w.turns(4)
		require.Equal(t, map[string]int{"serving h2": 1}, w.counts("m"))
		require.Equal(t, s.Name, w.only(isNew(w)).Name)
		require.Zero(t, w.only(isNew(w)).Placement.LoadMemory)
		require.Equal(t, 2, w.registered, "nothing is started in vain")
		require.Len(t, w.decisions("m", planner.KindRolloutDone), 1)
	})
	t.Run("several pairs, one after the other", func(t *testing.T) {
		t.Parallel()
		w := pairsOn(t, 3)
		w.next("h2", paired)
		most, gap := 0, 0
		w.until(func() bool {
			most = max(most, w.stages("m")["starting"]+w.stages("m")["placed"])
			gap += btoi(capacity(w.view())["m"] < 3)
			require.GreaterOrEqual(t, capacity(w.view())["m"], 2)
			return w.status() == "" || w.now.After(epoch.Add(time.Hour))
		})
		require.Equal(t, 1, most, "no more at a time than may be missing")
		require.LessOrEqual(t, gap, 3*6)
		w.turns(4)
		require.Equal(t, map[string]int{"serving h2": 3}, w.counts("m"))
		require.Equal(t, 6, w.registered)
	})
	t.Run("one that does not load is rolled back, and the old one serves all the time", func(t *testing.T) {
		t.Parallel()
		w := pairsOn(t, 1)
		old := w.oneOf("m", state.StatusServing)
		w.broken["h2"] = true
		w.next("h2", paired)
		require.Zero(t, w.absence(1, func() bool { return w.status() == state.RolloutRolledBack }))
		require.Contains(t, w.view().Model(nil, "m").Rollouts["a"].Reason, "Exit Code: 1")
		w.turns(8)
		require.Equal(t, map[string]int{"serving h1": 1}, w.counts("m"))
		require.Equal(t, old.Name, w.oneOf("m", state.StatusServing).Name)
	})
	t.Run("one that Nomad refuses is rolled back", func(t *testing.T) {
		t.Parallel()
		w := pairsOn(t, 1)
		w.next("h2", paired)
		w.turns(4)
		r, why, retry := w.only(isNew(w)), "Nomad refuses its job", w.now.Add(time.Minute)
		w.must(&state.Move{Replica: r.Name.String(), ModifyIndex: r.ModifyIndex, Event: state.EventFailed, Time: w.now, LastError: &why, RetryAt: &retry})
		require.Equal(t, map[string]int64{gpuOf(r): 12}, w.only(isNew(w)).Holds().Memory)
		w.plan(false)
		require.Equal(t, state.RolloutRolledBack, w.status())
		require.Zero(t, w.absence(1, func() bool { return len(w.counts("m")) == 1 }))
	})
	t.Run("one that cannot be put to sleep is rolled back", func(t *testing.T) {
		t.Parallel()
		w := pairsOn(t, 1)
		w.outcome = func(planner.Kind, *state.Replica) planner.OutcomeClass { return planner.Failed }
		w.next("h2", paired)
		require.Zero(t, w.absence(1, func() bool { return w.status() == state.RolloutRolledBack }))
		w.turns(8)
		require.Equal(t, map[string]int{"serving h1": 1}, w.counts("m"))
	})
	t.Run("one that cannot sleep makes the old one make way", func(t *testing.T) {
		t.Parallel()
		w := pairsOn(t, 1)
		w.outcome = func(planner.Kind, *state.Replica) planner.OutcomeClass { return planner.CannotSleep }
		w.next("h2", paired)
		w.until(done(w))
		w.turns(4)
		require.Equal(t, map[string]int{"serving h2": 1}, w.counts("m"))
		w.next("h3", paired)
		w.turns(4)
		require.Equal(t, 0, w.counts("m")["serving h2"], "nothing is tried that is known to fail")
	})
	t.Run("one that keeps more than there is room for", func(t *testing.T) {
		t.Parallel()
		w := pairsOn(t, 1)
		w.outcome = func(planner.Kind, *state.Replica) planner.OutcomeClass { return planner.Unreachable }
		w.next("h2", paired)
		w.turns(6)
		s := w.only(isNew(w))
		w.after(planner.Outcome{Kind: planner.Sleep, Replica: s.Name.String(), Class: planner.Done, Kept: map[string]int64{gpuOf(s): 21}})
		w.outcome = nil
		w.until(func() bool { return len(w.decisions("m", planner.KindCannotSleep)) > 0 })
		require.Equal(t, 1, w.counts("m")["serving h1"])
		w.until(done(w))
		w.turns(4)
		require.Equal(t, map[string]int{"serving h2": 1}, w.counts("m"))
	})
	t.Run("one whose wake fails gives the place back", func(t *testing.T) {
		t.Parallel()
		w := pairsOn(t, 1)
		w.outcome = func(kind planner.Kind, r *state.Replica) planner.OutcomeClass {
			if kind == planner.Wake && w.hash(r) == "h2" {
				return planner.Failed
			}
			return planner.Done
		}
		w.next("h2", paired)
		w.until(func() bool { return w.status() == state.RolloutRolledBack })
		require.Contains(t, w.view().Model(nil, "m").Rollouts["a"].Reason, "wake failed")
		require.Equal(t, 1, w.counts("m")["warm h1"])
		w.until(func() bool { return w.counts("m")["serving h1"] == 1 })
		w.turns(8)
		require.Equal(t, map[string]int{"serving h1": 1}, w.counts("m"))
		require.Equal(t, 2, w.registered, "the old one is woken")
	})
	t.Run("without the host memory for both the old one ends", func(t *testing.T) {
		t.Parallel()
		w := pairsOn(t, 1)
		w.setNode("n0", func(n *state.Node) { n.HostMemory = 15 })
		w.next("h2", paired)
		require.LessOrEqual(t, w.absence(1, done(w)), 6)
		require.Empty(t, w.decisions("m", planner.KindCannotSleep))
	})
	t.Run("a wake without an answer is a failure, too", func(t *testing.T) {
		t.Parallel()
		w := pairsOn(t, 1)
		w.conf.WakeTimeout = 10 * tick
		w.outcome = func(kind planner.Kind, r *state.Replica) planner.OutcomeClass {
			if kind == planner.Wake && w.hash(r) == "h2" {
				return planner.Unreachable
			}
			return planner.Done
		}
		w.next("h2", paired)
		w.until(func() bool { return w.status() == state.RolloutRolledBack })
		w.until(func() bool { return w.counts("m")["serving h1"] == 1 })
	})
	for name, edit := range map[string]func(*world){
		"without the memory for a load": func(w *world) { w.setNode("n0", func(n *state.Node) { n.GPUs[0].Memory = 71 }) },
		"without the seats": func(w *world) {
			w.setNode("n0", func(n *state.Node) { n.GPUs[0].Seats = n.GPUs[0].Seats[:2] })
		},
		"without the host memory": func(w *world) { w.setNode("n0", func(n *state.Node) { n.HostMemory = 10 }) },
	} {
		t.Run(name+" the old one makes way first", func(t *testing.T) {
			t.Parallel()
			w := pairsOn(t, 1)
			edit(w)
			w.next("h2", paired)
			w.until(func() bool { return w.stages("m")["draining"]+w.stages("m")["stopping"] > 0 })
			require.Zero(t, w.counts("m")["starting h2"])
			w.until(done(w))
			w.turns(4)
			require.Equal(t, map[string]int{"serving h2": 1}, w.counts("m"))
		})
	}
	t.Run("where Nomad has room for only one of them, the old one makes way", func(t *testing.T) {
		t.Parallel()
		w := pairsOn(t, 1)
		w.next("h2", paired)
		w.until(func() bool { return w.stages("m")["starting"] == 1 })
		s := w.only(isNew(w))
		j := w.nomad[s.Name.String()]
		j.Unplaceable, j.alloc, j.refused = "not enough memory", nil, true
		w.until(func() bool { return capacity(w.view())["m"] == 0 })
		w.until(func() bool { return len(w.view().ReplicasOf(nil, "m")) == 1 })
		j.Unplaceable, j.refused = "", false
		w.until(done(w))
		w.turns(4)
		require.Equal(t, map[string]int{"serving h2": 1}, w.counts("m"))
		require.Equal(t, s.Name, w.only(isNew(w)).Name)
		require.Equal(t, 2, w.registered)
	})
	t.Run("Nomad has time for it once the old one has made way", func(t *testing.T) {
		t.Parallel()
		w := pairsOn(t, 1)
		old := w.oneOf("m", state.StatusServing).Name.String()
		w.next("h2", paired)
		w.until(func() bool { return w.stages("m")["starting"] == 1 })
		s := w.only(isNew(w))
		j := w.nomad[s.Name.String()]
		j.Unplaceable, j.alloc, j.refused = "not enough memory", nil, true
		w.requests[old] = []time.Time{w.now.Add(7 * time.Minute)}
		w.until(func() bool { return w.stages("m")["draining"] == 1 })
		for len(w.counts("m")) == 2 {
			w.turns(1)
			require.Equal(t, state.RolloutCanary, w.status())
		}
		require.Greater(t, w.now.Sub(s.Since), 7*time.Minute, "longer than Nomad may take")
		gone := w.now
		w.until(func() bool { return w.status() == state.RolloutRolledBack })
		require.Contains(t, w.view().Model(nil, "m").Rollouts["a"].Reason, "Nomad did not place the job within 5m0s")
		require.InDelta(t, w.conf.PlaceTimeout, w.now.Sub(gone), float64(3*tick))
	})
	for name, leave := range map[string]func(w *world, gpu string){
		"a GPU that fell ill": func(w *world, gpu string) { w.sicken(gpu, false) },
		"a node that drains": func(w *world, _ string) {
			w.setNode("n0", func(n *state.Node) { n.Draining = true })
			w.drains["n0"] = w.now
		},
		"a node that was lost": func(w *world, _ string) { w.setNode("n0", func(n *state.Node) { n.WrittenOff = true }) },
	} {
		for _, kind := range []planner.Kind{planner.Sleep, planner.Wake} {
			t.Run(fmt.Sprintf("a %s that fails on %s is not the version's fault", kind, name), func(t *testing.T) {
				t.Parallel()
				w := pairsOn(t, 1)
				w.outcome = func(k planner.Kind, _ *state.Replica) planner.OutcomeClass {
					if k == kind {
						return planner.Unreachable
					}
					return planner.Done
				}
				w.next("h2", paired)
				at := map[planner.Kind]state.Status{planner.Sleep: state.StatusStarting, planner.Wake: state.StatusWaking}[kind]
				w.until(func() bool { return w.stages("m")[string(at)] == 1 })
				s := w.only(isNew(w))
				leave(w, gpuOf(s))
				w.after(planner.Outcome{Kind: kind, Replica: s.Name.String(), Class: planner.Failed, Error: "it crashed"})
				require.Equal(t, state.RolloutCanary, w.status())
				require.Contains(t, w.only(isNew(w)).LastError, "it crashed")
				require.True(t, w.only(isNew(w)).Ending())
			})
		}
	}
	t.Run("a load without an answer is a failure, too", func(t *testing.T) {
		t.Parallel()
		w := pairsOn(t, 1)
		w.outcome = func(planner.Kind, *state.Replica) planner.OutcomeClass { return planner.Unreachable }
		w.next("h2", paired)
		w.turns(20)
		s := w.only(isNew(w))
		w.now = w.now.Add(4 * time.Hour)
		w.turns(4)
		require.Equal(t, map[string]int{"serving h1": 1, "starting h2": 1}, w.counts("m"), "it may still load")
		j := w.nomad[s.Name.String()]
		j.restart(w.now) // its shim has ended the load, and loads again
		j.alloc.Restarts++
		w.now = w.now.Add(w.conf.LoadTimeout)
		w.turns(4)
		require.Equal(t, map[string]int{"serving h1": 1, "starting h2": 1}, w.counts("m"))
		w.now = w.now.Add(w.conf.SleepTimeout)
		require.Zero(t, w.absence(1, func() bool { return len(w.counts("m")) == 1 }))
		require.Equal(t, state.RolloutRolledBack, w.status())
		require.Contains(t, w.view().Model(nil, "m").Rollouts["a"].Reason, "did not become WARM within 4h12m0s")
	})
	t.Run("a model of a higher priority does not get the memory with which it wakes", func(t *testing.T) {
		t.Parallel()
		w := pairsOn(t, 1)
		w.conf.MinAge = 24 * time.Hour // so that it evicts nothing
		high := model("a", 1, variant("v", "h9", func(v *state.Variant) { v.Memory = 30 }))
		high.Priority = 90
		w.next("h2", paired)
		w.turns(4)
		w.model(high)
		require.LessOrEqual(t, w.absence(1, done(w)), 6)
		require.Empty(t, w.counts("a"))
		require.Equal(t, 1, w.counts("m")["serving h2"])
	})
	t.Run("the old one dies and comes back while its successor loads", func(t *testing.T) {
		t.Parallel()
		w := pairsOn(t, 1)
		old := w.oneOf("m", state.StatusServing)
		w.next("h2", paired)
		w.turns(6)
		j := w.nomad[old.Name.String()]
		j.restart(w.now)
		j.serves = w.now.Add(4 * tick)
		w.turns(8)
		require.Equal(t, map[string]int{"serving h1": 1, "starting h2": 1}, w.counts("m"))
		w.until(done(w))
		w.turns(4)
		require.Equal(t, map[string]int{"serving h2": 1}, w.counts("m"))
	})
	t.Run("another version while it loads", func(t *testing.T) {
		t.Parallel()
		w := pairsOn(t, 1)
		w.next("h2", paired)
		w.turns(6)
		w.next("h3", paired)
		require.LessOrEqual(t, w.absence(1, done(w)), 6)
		w.turns(4)
		require.Equal(t, map[string]int{"serving h3": 1}, w.counts("m"))
	})
	t.Run("a model that is scaled down needs no successor", func(t *testing.T) {
		t.Parallel()
		w := pairsOn(t, 1)
		w.next("h2", paired)
		w.turns(6)
		w.scale(0)
		w.turns(12)
		require.Empty(t, w.counts("m"))
	})
	t.Run("nothing loads beside a pair that must not be missing", func(t *testing.T) {
		t.Parallel()
		w := pairsOn(t, 1, func(m *state.Model) { m.Update = nil })
		w.next("h2", paired)
		w.turns(8)
		require.Equal(t, map[string]int{"serving h1": 1}, w.counts("m"))
		require.NotEmpty(t, w.decisions("m", planner.KindRolloutWaits))
	})
	t.Run("a surge that has no room does the same", func(t *testing.T) {
		t.Parallel()
		w := pairsOn(t, 1, func(m *state.Model) { m.Update = &state.Update{Surge: 1, MinAvailable: &state.Amount{}} })
		w.next("h2", paired)
		require.LessOrEqual(t, w.absence(1, done(w)), 6)
	})
	t.Run("a single engine whose whole memory is free beside it", func(t *testing.T) {
		t.Parallel()
		w := fresh(t)
		w.addNodes(seats4("n0", 1))
		m := model("m", 1, variant("a", "h1"))
		inPlace(&m)
		w.model(m)
		w.turns(10)
		w.load = func() time.Duration { return 30 * tick }
		w.next("h2")
		require.LessOrEqual(t, w.absence(1, done(w)), 6)
	})
	t.Run("it is foreseen", func(t *testing.T) {
		t.Parallel()
		w := pairsOn(t, 1)
		w.next("h2", paired)
		f := w.foresee(planner.DefaultBounds())
		require.Empty(t, f.Unfinished)
		require.Equal(t, []string{
			"0s m:  -> starting", "40s m: starting -> warm", "40s m: serving -> sleeping", "40.3s m: sleeping -> warm",
			"40.3s m: warm -> waking", "40.6s m: waking -> serving", "1m40.6s m: warm -> discarding", "1m41.6s m: discarding -> ",
		}, lines(f))
	})
	t.Run("a new allocation of its job waits for a wake", func(t *testing.T) {
		t.Parallel()
		w := pairsOn(t, 1)
		w.next("h2", paired)
		w.until(done(w))
		w.turns(8)
		r := w.oneOf("m", state.StatusServing)
		require.True(t, w.nomad[r.Name.String()].StartsWarm)
		w.must(&state.Move{Replica: r.Name.String(), ModifyIndex: r.ModifyIndex, Event: state.EventStarted, Time: w.now})
		o := w.observe(false)
		o.Engines = nil
		as := planner.Actions(w.view(), o, w.conf)
		require.Len(t, as, 1)
		require.Equal(t, planner.Wake, as[0].Kind)
		require.True(t, strings.Contains(as[0].Reason, "may be asleep"))
	})
}

func TestSuccessorsThatCannotWake(t *testing.T) {
	t.Parallel()
	// small is a model that takes what is left of the GPU where a successor of 75 bytes loads.
	small := func(w *world) {
		w.editGPU(gpuOf(w.oneOf("m", state.StatusStarting)), func(g *state.GPU) { g.Seats = append(slices.Clone(g.Seats), g.UUID+"#4") })
		w.model(model("small", 1, variant("v", "h9", func(v *state.Variant) { v.Memory = 7 })))
		w.turns(1)
		require.Len(w.t, w.counts("small"), 1)
	}
	isNew := func(w *world) func(*state.Replica) bool {
		return func(r *state.Replica) bool { return w.hash(r) == "h2" }
	}
	t.Run("the old one stays while its successor has no room to wake", func(t *testing.T) {
		t.Parallel()
		w := pairsOn(t, 1)
		old := w.oneOf("m", state.StatusServing)
		w.next("h2", paired, func(v *state.Variant) { v.Memory = 75 })
		w.turns(6)
		small(w)
		w.until(func() bool { return w.counts("m")["warm h2"] == 1 })
		for range 60 {
			w.turns(1)
			require.Equal(t, map[string]int{"serving h1": 1, "warm h2": 1}, w.counts("m"))
		}
		require.Equal(t, old.Name, w.oneOf("m", state.StatusServing).Name)
		waits := w.decisions("m", planner.KindRolloutWaits)
		require.Len(t, waits, 1)
		require.Contains(t, waits[0].Reason, w.oneOf("m", state.StatusWarm).Name.String()+" has no room to serve in the place of "+old.Name.String())
		w.scaleOf("small", 0)
		w.until(func() bool { return w.status() == "" })
		w.turns(4)
		require.Equal(t, map[string]int{"serving h2": 1}, w.counts("m"))
	})
	t.Run("so do the others once the canary has served", func(t *testing.T) {
		t.Parallel()
		w := pairsOn(t, 2)
		w.next("h2", paired, func(v *state.Variant) { v.Memory = 75 })
		w.until(func() bool { return w.status() == state.RolloutRolling && w.stages("m")["starting"] == 1 })
		small(w)
		w.until(func() bool { return w.counts("m")["warm h2"] == 1 && w.counts("m")["serving h2"] == 1 })
		for range 30 {
			w.turns(1)
			require.Equal(t, map[string]int{"serving h1": 1, "serving h2": 1, "warm h2": 1}, w.counts("m"))
		}
		require.Contains(t, w.decisions("m", planner.KindRolloutWaits)[0].Reason, "has no room to serve")
	})
	t.Run("the old one stays on a GPU on which its successor may not wake", func(t *testing.T) {
		t.Parallel()
		w := pairsOn(t, 1)
		w.outcome = func(planner.Kind, *state.Replica) planner.OutcomeClass { return planner.Unreachable }
		w.next("h2", paired)
		w.turns(6)
		s := w.only(isNew(w))
		gpu := gpuOf(s)
		w.outcome = nil
		w.sicken(gpu, false)
		w.after(planner.Outcome{Kind: planner.Sleep, Replica: s.Name.String(), Class: planner.Done, Kept: map[string]int64{gpu: 2}})
		require.Equal(t, state.StatusWarm, w.only(isNew(w)).Status)
		require.Zero(t, w.absence(1, func() bool { return len(w.counts("m")) == 1 }))
		w.turns(30)
		require.Equal(t, map[string]int{"serving h1": 1}, w.counts("m"))
		require.Equal(t, state.RolloutCanary, w.status(), "a GPU says nothing about the version")
		w.sicken(gpu, true)
		w.until(func() bool { return w.status() == "" })
		w.turns(4)
		require.Equal(t, map[string]int{"serving h2": 1}, w.counts("m"))
	})
}
