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

// TestStrangersKeepTheirSeatsInAnOutage: what a job of nobody's holds is not given away
// only because Nomad cannot be asked for a while.
func TestStrangersKeepTheirSeatsInAnOutage(t *testing.T) {
	t.Parallel()
	w := fresh(t, "n0")
	w.model(model("m", 0, variant("a", "h1")))
	w.strange("h9", "n0-GPU0#0", "n0-GPU0#1", "n0-GPU1#0")
	w.turns(2)
	require.Len(t, w.decisions("m", planner.KindOrphan), 1)
	w.nomadOut = true
	w.scale(2)
	w.plan(false)
	require.Empty(t, w.counts("m"), "nothing is placed where nobody can look")
	w.nomadOut = false
	w.plan(false)
	r := w.only(withStatus(state.StatusPlaced))
	require.Equal(t, []string{"n0-GPU1#1"}, r.Placement.Seats)
	require.Len(t, w.decisions("m", planner.KindCannotPlace), 1)
	require.Len(t, w.decisions("m", planner.KindOrphan), 1, "nothing is said of jobs that cannot be seen now")
}

// TestNothingIsAdoptedInAnOutage: an old list says nothing of what runs now.
func TestNothingIsAdoptedInAnOutage(t *testing.T) {
	t.Parallel()
	w := fresh(t, "n0")
	w.model(model("m", 1, variant("a", "h1")))
	w.strange("h1", "n0-GPU0#0")
	w.nomadOut = true
	w.plan(false)
	require.Empty(t, w.decisions("m", planner.KindAdopt))
	require.Empty(t, w.counts("m"))
}

// TestRestartsBeforeAdoptionDoNotCount: a pair that has absorbed failovers for a month
// serves. That nobody can tell whether it does is no reason to stop it.
func TestRestartsBeforeAdoptionDoNotCount(t *testing.T) {
	t.Parallel()
	adopted := func(t *testing.T) (*world, *job) {
		w := fresh(t, "n0")
		w.model(model("m", 1, variant("a", "h1")))
		j := w.strange("h1", "n0-GPU0#0")
		for range 6 {
			w.step()
		}
		j.alloc.Restarts = w.conf.Restarts + 2
		return w, j
	}
	t.Run("while Consul is out of reach", func(t *testing.T) {
		t.Parallel()
		w, j := adopted(t)
		w.consulOut = true
		w.turns(10)
		require.Equal(t, map[string]int{"starting h1": 1}, w.counts("m"))
		require.Empty(t, w.decisions("m", planner.KindLoadFailed))
		require.False(t, j.Stopped)
		w.consulOut = false
		w.turns(1)
		require.Equal(t, map[string]int{"serving h1": 1}, w.counts("m"))
	})
	t.Run("while no engine serves for a moment", func(t *testing.T) {
		t.Parallel()
		w, j := adopted(t)
		j.serves = w.now.Add(10 * tick) // the shadow takes over
		w.turns(9)
		require.Equal(t, map[string]int{"starting h1": 1}, w.counts("m"))
		require.Empty(t, w.decisions("m", planner.KindLoadFailed))
		require.False(t, j.Stopped)
		w.turns(3)
		require.Equal(t, map[string]int{"serving h1": 1}, w.counts("m"))
	})
	t.Run("those after it do", func(t *testing.T) {
		t.Parallel()
		w, j := adopted(t)
		j.serves = w.now.Add(time.Hour)
		w.turns(5)
		j.alloc.Restarts += w.conf.Restarts
		w.turns(1)
		require.Len(t, w.decisions("m", planner.KindLoadFailed), 1)
	})
}

// TestWhatDoesNotServeIsNoReplacement: a new replica whose engine hangs, so that Consul
// says it serves no more and Nomad that it runs, is neither a canary that was good nor
// a reason to let an old one go.
func TestWhatDoesNotServeIsNoReplacement(t *testing.T) {
	t.Parallel()
	hang := func(w *world, hash string) []*job {
		var hung []*job
		for _, r := range w.view().ReplicasOf(nil, "m") {
			if j := w.nomad[r.Name.String()]; j != nil && j.Hash == hash && r.Status == state.StatusServing {
				j.serves = w.now.Add(1000 * time.Hour)
				hung = append(hung, j)
			}
		}
		return hung
	}
	t.Run("canary", func(t *testing.T) {
		t.Parallel()
		w := deployed(t, 2, "n0", "n1")
		w.model(model("m", 0, variant("a", "h2")))
		w.turns(6)
		require.Equal(t, map[string]int{"serving h1": 2, "serving h2": 1}, w.counts("m"))
		hung := hang(w, "h2")
		require.Len(t, hung, 1)
		w.turns(60)
		require.Equal(t, state.RolloutCanary, w.status())
		require.Equal(t, map[string]int{"serving h1": 2, "serving h2": 1}, w.counts("m"))
		hung[0].serves = w.now
		w.until(func() bool { return w.status() == "" })
		w.turns(4)
		require.Equal(t, map[string]int{"serving h2": 2}, w.counts("m"))
	})
	t.Run("rolling", func(t *testing.T) {
		t.Parallel()
		w := deployed(t, 2, "n0", "n1")
		w.model(model("m", 0, variant("a", "h2")))
		w.until(func() bool { return w.status() == state.RolloutRolling })
		hang(w, "h2")
		w.turns(30)
		old := w.counts("m")["serving h1"]
		require.NotZero(t, old)
		hung := hang(w, "h2")
		w.turns(30)
		require.Equal(t, old, w.counts("m")["serving h1"], "the old ones stay while the new ones do not serve")
		for _, j := range hung {
			j.serves = w.now
		}
		w.until(func() bool { return w.status() == "" })
		w.turns(4)
		require.Equal(t, map[string]int{"serving h2": 2}, w.counts("m"))
	})
	t.Run("moving away", func(t *testing.T) {
		t.Parallel()
		w := deployed(t, 1, "n0", "n1")
		on := w.only(withStatus(state.StatusServing)).Placement.Node
		w.drains[on] = w.now
		w.setNode(on, func(n *state.Node) { n.Draining = true })
		load := w.load
		w.load = func() time.Duration { return time.Hour }
		w.turns(3)
		fresh := w.only(withStatus(state.StatusStarting))
		w.must(&state.Move{Replica: fresh.Name.String(), ModifyIndex: fresh.ModifyIndex, Event: state.EventServing, Time: w.now})
		w.turns(3)
		require.Equal(t, map[string]int{"serving h1": 2}, w.counts("m"), "the one in its place does not serve")
		w.load = load
		w.nomad[fresh.Name.String()].serves = w.now
		w.turns(8)
		require.Equal(t, fresh.Name, w.only(withStatus(state.StatusServing)).Name)
	})
}

// TestPlansStaySmall: a plan is one entry of the Raft log, whatever there is to plan.
func TestPlansStaySmall(t *testing.T) {
	t.Parallel()
	t.Run("many orphans", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, nil)
		const gpus = 900
		w.addNodes(node("n0", gpus))
		w.model(model("m", gpus, variant("a", "h1")))
		for i := range gpus {
			j := w.strange("h1", fmt.Sprintf("n0-GPU%d#0", i))
			delete(w.nomad, j.Name.String())
			j.Name.ID = fmt.Sprint("stranger-", i)
			w.nomad[j.Name.String()] = j
		}
		w.plan(false)
		require.Equal(t, map[string]int{"starting h1": gpus}, w.counts("m"))
		require.Zero(t, w.round(), "it is at rest")
	})
	t.Run("many models that fit nowhere", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, nil)
		for i := range 60 {
			w.addNodes(node(fmt.Sprintf("node-%02d-%s", i, strings.Repeat("x", 50)), 1))
		}
		var vs []state.Variant
		for i := range 8 {
			vs = append(vs, variant(fmt.Sprint("v", i), fmt.Sprint("h", i), func(v *state.Variant) { v.GPUModel = fmt.Sprintf("model-%d-%s", i, strings.Repeat("y", 100)) }))
		}
		const models = 200
		for i := range models {
			w.model(model(fmt.Sprint("m", i), 1, vs...))
		}
		w.plan(false)
		for i := range models {
			require.Len(t, w.decisions(fmt.Sprint("m", i), planner.KindCannotPlace), 1)
		}
	})
}

// TestAbsenceWhileSomethingIsDone: a job that is being registered is not there yet, and
// that its replica holds nothing cannot be concluded.
func TestAbsenceWhileSomethingIsDone(t *testing.T) {
	t.Parallel()
	w := fresh(t, "n0")
	w.model(model("m", 1, variant("a", "h1")))
	w.plan(false)
	r := w.only(withStatus(state.StatusPlaced))
	w.scale(0)
	w.plan(false)
	r = w.view().Replica(nil, r.Name.String())
	require.Equal(t, state.StatusStopping, r.Status)
	w.now = w.now.Add(w.conf.SettleTime + time.Second)
	o := w.observe(false)
	o.InFlight = map[string]bool{r.Name.String(): true}
	p, _ := planner.Plan(w.view(), o, w.conf)
	require.Nil(t, p)
	o.Jobs[r.Name.String()] = planner.Job{Name: r.Name, Hash: "h1", Placement: r.Placement, Index: 7}
	require.Empty(t, planner.Actions(w.view(), o, w.conf))
	o.InFlight = nil
	require.Len(t, planner.Actions(w.view(), o, w.conf), 1)
}

// TestRestartsAreCountedWithoutDecisions: how often an engine had come back before this
// start is known after the decision log has turned over. Restarts of before do not count
// against a long load, and a crash loop is noticed.
func TestRestartsAreCountedWithoutDecisions(t *testing.T) {
	t.Parallel()
	w := deployed(t, 1, "n0")
	j := w.nomad[w.only(withStatus(state.StatusServing)).Name.String()]
	w.now = w.now.Add(time.Hour)
	j.alloc.Restarts, j.alloc.Client, j.serves = w.conf.Restarts+2, "pending", time.Time{}
	w.load = func() time.Duration { return time.Hour }
	w.turns(5)
	require.Len(t, w.decisions("m", planner.KindNotServing), 1)
	for range state.DecisionLimit {
		w.must(&state.Plan{ID: "p", Decisions: []state.Decision{{Time: w.now, Model: "other", Kind: "scale"}}})
	}
	require.Empty(t, w.decisions("m", planner.KindNotServing))
	w.turns(5)
	require.Equal(t, map[string]int{"starting h1": 1}, w.counts("m"))
	require.False(t, j.Stopped, "it is in the middle of its load")

	j.alloc.Restarts += w.conf.Restarts
	w.plan(false)
	require.Equal(t, map[string]int{"failed h1": 1}, w.counts("m"), "a crash loop")
	require.Contains(t, w.only(withStatus(state.StatusFailed)).LastError, fmt.Sprintf("restarted %d times without serving", w.conf.Restarts))
}

// TestMoreStrangersThanDecisionsAreKept: what is said once must not be said again and
// again because it made itself be forgotten.
func TestMoreStrangersThanDecisionsAreKept(t *testing.T) {
	t.Parallel()
	w := fresh(t, "n0")
	for i := range state.DecisionLimit + 100 {
		j := w.strange("h9", "n0-GPU0#0")
		delete(w.nomad, j.Name.String())
		j.Name.ID = fmt.Sprint("stranger-", i)
		w.nomad[j.Name.String()] = j
	}
	w.plan(false)
	require.NotEmpty(t, w.decisions("m", planner.KindOrphan))
	require.Zero(t, w.round(), "it is at rest")
}

// TestANameThatTheStateRefusesStopsNobody: one such orphan would have every plan
// refused, with all that is in it.
func TestANameThatTheStateRefusesStopsNobody(t *testing.T) {
	t.Parallel()
	for name, id := range map[string]string{"long": strings.Repeat("x", 600), "control": "strange\tone", "not UTF-8": "strange\xff"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := fresh(t, "n0")
			w.model(model("m", 1, variant("a", "h1")))
			j := w.strange("h1", "n0-GPU0#0")
			delete(w.nomad, j.Name.String())
			j.Name.ID = id
			w.nomad[j.Name.String()] = j
			w.turns(6)
			require.Equal(t, map[string]int{"serving h1": 1}, w.counts("m"))
			require.Zero(t, w.round(), "it is at rest")
		})
	}
}

// TestAnOutageIsNoTimeInWhichNomadDidNotPlace: it could not, and nobody could ask it.
func TestAnOutageIsNoTimeInWhichNomadDidNotPlace(t *testing.T) {
	t.Parallel()
	waiting := func(t *testing.T) *world {
		w := fresh(t, "n0")
		w.model(model("m", 1, variant("a", "h1")))
		return w
	}
	check := func(t *testing.T, w *world) {
		w.now = w.now.Add(w.conf.PlaceTimeout + time.Minute)
		o := w.observe(false)
		o.Pools[""] = planner.PoolView{JobsKnown: true, JobsSince: w.now}
		p, next := planner.Plan(w.view(), o, w.conf)
		require.Nil(t, p)
		require.Equal(t, w.now.Add(w.conf.PlaceTimeout), next)
		o.Now = next
		p, _ = planner.Plan(w.view(), o, w.conf)
		require.NotNil(t, p)
		require.Equal(t, planner.KindLoadFailed, p.Decisions[0].Kind)
	}
	t.Run("starting", func(t *testing.T) {
		t.Parallel()
		w := waiting(t)
		w.round()
		require.Equal(t, state.StatusStarting, w.only(withStatus(state.StatusStarting)).Status)
		check(t, w)
	})
	t.Run("placed", func(t *testing.T) {
		t.Parallel()
		w := waiting(t)
		w.plan(false)
		r, why := w.only(withStatus(state.StatusPlaced)), "Permission denied"
		w.must(&state.Move{Replica: r.Name.String(), ModifyIndex: r.ModifyIndex, Time: w.now, LastError: &why})
		check(t, w)
	})
}

func TestReasonsThatChangeAtEveryLook(t *testing.T) {
	t.Parallel()
	w := fresh(t, "n0", "n1")
	w.setNode("n1", func(n *state.Node) { n.Ready = false })
	w.model(model("m", 5, variant("a", "h1")))
	w.turns(8)
	require.Len(t, w.decisions("m", planner.KindCannotPlace), 1)
	for i := range 45 {
		w.setNode("n1", func(n *state.Node) {
			n.Ready, n.GPUs = true, slices.Clone(n.GPUs)
			for g := range n.GPUs {
				n.GPUs[g].Healthy, n.GPUs[g].Reason = false, fmt.Sprintf("%d degrees", 90+i%2)
			}
		})
		w.round()
		w.step()
	}
	said := w.decisions("m", planner.KindCannotPlace)
	require.LessOrEqual(t, len(said), 3, "once a minute at most")
	require.Greater(t, len(said), 1, "it is not hidden for ever")
}

func TestMoreThatWaitsThanDecisionsAreKept(t *testing.T) {
	t.Parallel()
	w := fresh(t, "n0")
	for i := range state.DecisionLimit + 200 {
		w.model(model(fmt.Sprintf("m%d", i), 1, variant("a", "h1", func(v *state.Variant) { v.GPUs = 8 })))
	}
	for plans := 0; ; plans++ {
		require.Less(t, plans, 8, "plans follow each other without end")
		p, _ := planner.Plan(w.view(), w.observe(false), w.conf)
		if p == nil {
			return
		}
		w.must(p)
	}
}
