package planner_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/planner"
	"remuda/controller/state"
)

// status of the rollout of variant a, empty where there is none.
func (w *world) status() state.RolloutStatus { return w.view().Model(nil, "m").Rollouts["a"].Status }

// until turns the world until something is so.
func (w *world) until(so func() bool) {
	for range 200 {
		if so() {
			return
		}
		w.turns(1)
	}
	w.holds(false, "it does not happen")
}

func TestRollout(t *testing.T) {
	t.Parallel()
	next := func(w *world, hash string, edit ...func(*state.Variant)) {
		w.model(model("m", 0, variant("a", hash, edit...)))
	}
	t.Run("canary, then one after the other, and nothing is lost", func(t *testing.T) {
		t.Parallel()
		w := deployed(t, 3, "n0", "n1")
		next(w, "h2")
		w.turns(6)
		c := w.only(func(r *state.Replica) bool { return w.hash(r) == "h2" })
		require.True(t, c.Canary)
		require.Equal(t, map[string]int{"serving h1": 3, "serving h2": 1}, w.counts("m"))
		require.Equal(t, state.RolloutCanary, w.status())
		_, at := planner.Plan(w.view(), w.observe(false), w.conf)
		require.Equal(t, c.Since.Add(w.conf.CanaryTime), at)
		most := 0
		w.until(func() bool {
			n := w.view().ReplicasOf(nil, "m")
			staying := 0
			for _, r := range n {
				if !r.Leaving() {
					staying++
				}
			}
			most = max(most, staying)
			return w.status() == ""
		})
		require.Equal(t, 4, most, "one beyond the target")
		w.turns(8)
		require.Equal(t, map[string]int{"serving h2": 3}, w.counts("m"))
		require.Len(t, w.decisions("m", planner.KindRolloutDone), 1)
		require.Len(t, w.decisions("m", planner.KindPlace), 6, "nothing is placed in vain")
	})
	t.Run("a canary that loads for long is waited for", func(t *testing.T) {
		t.Parallel()
		w := deployed(t, 2, "n0", "n1")
		w.load = func() time.Duration { return time.Hour }
		next(w, "h2")
		w.turns(4)
		w.now = w.now.Add(50 * time.Minute)
		w.turns(2)
		require.Equal(t, state.RolloutCanary, w.status())
		require.Equal(t, map[string]int{"serving h1": 2, "starting h2": 1}, w.counts("m"))
	})
	t.Run("it is over when the last one serves", func(t *testing.T) {
		t.Parallel()
		w := deployed(t, 2, "n0", "n1")
		next(w, "h2")
		w.until(func() bool { return w.status() == state.RolloutRolling && w.counts("m")["starting h2"] == 1 })
		old := w.only(func(r *state.Replica) bool { return w.hash(r) == "h1" && r.Status == state.StatusServing })
		w.load = func() time.Duration { return time.Hour }
		w.nomad[old.Name.String()].alloc.Client = "failed"
		for _, j := range w.nomad {
			if j.alloc != nil && !j.serving(w.now) {
				j.serves = w.now.Add(time.Hour)
			}
		}
		w.until(func() bool { return w.counts("m")["serving h1"]+w.counts("m")["starting h1"] == 0 })
		w.turns(3)
		require.Equal(t, state.RolloutRolling, w.status(), "one may still fail")
		w.now = w.now.Add(time.Hour)
		w.turns(3)
		require.Empty(t, w.status())
	})
	t.Run("a canary that fails is enough", func(t *testing.T) {
		t.Parallel()
		w := deployed(t, 3, "n0", "n1")
		w.broken["h2"] = true
		next(w, "h2")
		w.until(func() bool { return w.status() == state.RolloutRolledBack })
		require.Contains(t, w.view().Model(nil, "m").Rollouts["a"].Reason, "Exit Code: 1")
		w.turns(8)
		require.Equal(t, map[string]int{"serving h1": 3}, w.counts("m"))
		w.scale(4)
		w.turns(8)
		require.Equal(t, map[string]int{"serving h1": 4}, w.counts("m"), "what is placed anew is of the old definition")
		require.Len(t, w.decisions("m", planner.KindRolledBack), 1)
	})
	t.Run("a canary that ceases to serve is enough", func(t *testing.T) {
		t.Parallel()
		w := deployed(t, 2, "n0", "n1")
		next(w, "h2")
		w.turns(6)
		c := w.only(func(r *state.Replica) bool { return w.hash(r) == "h2" })
		j := w.nomad[c.Name.String()]
		j.alloc.Client, j.alloc.Event = "failed", "Exit Code: 139"
		w.plan(false)
		require.Equal(t, state.RolloutRolledBack, w.status())
		require.Contains(t, w.decisions("m", planner.KindRolledBack)[0].Reason, "Exit Code: 139")
		w.turns(8)
		require.Equal(t, map[string]int{"serving h1": 2}, w.counts("m"))
	})
	t.Run("one that fails later rolls back too, and those that serve until the old ones do", func(t *testing.T) {
		t.Parallel()
		w := deployed(t, 3, "n0", "n1")
		next(w, "h2")
		w.until(func() bool { return w.status() == state.RolloutRolling })
		w.broken["h2"] = true
		w.until(func() bool { return w.status() == state.RolloutRolledBack })
		w.until(func() bool { return w.counts("m")["serving h1"] == 3 })
		w.turns(8)
		require.Equal(t, map[string]int{"serving h1": 3}, w.counts("m"))
	})
	for _, status := range []state.RolloutStatus{state.RolloutCanary, state.RolloutRolling} {
		t.Run("what somebody else has found to fail, while "+string(status), func(t *testing.T) {
			t.Parallel()
			w := deployed(t, 3, "n0", "n1")
			next(w, "h2")
			w.until(func() bool { return w.status() == status && w.counts("m")["starting h2"] == 1 })
			r := w.only(func(r *state.Replica) bool { return r.Status == state.StatusStarting })
			why, retry := "Nomad refuses its job", w.now.Add(time.Minute)
			w.must(&state.Move{Replica: r.Name.String(), ModifyIndex: r.ModifyIndex, Event: state.EventFailed, Time: w.now, LastError: &why, RetryAt: &retry})
			w.plan(false)
			require.Equal(t, state.RolloutRolledBack, w.status())
			require.Contains(t, w.view().Model(nil, "m").Rollouts["a"].Reason, why)
			w.until(func() bool { return w.counts("m")["serving h1"] == 3 && len(w.counts("m")) == 1 })
		})
	}
	t.Run("no room beside the old ones", func(t *testing.T) {
		t.Parallel()
		w := deployed(t, 4, "n0")
		next(w, "h2")
		w.turns(20)
		require.Equal(t, map[string]int{"serving h1": 4}, w.counts("m"), "nothing is lost")
		said := w.decisions("m", planner.KindRolloutWaits)
		require.Len(t, said, 1)
		require.Contains(t, said[0].Reason, "update { surge = 0 }", "the way out")
		w.addNodes(node("n1", 1))
		w.until(func() bool { return w.status() == "" })
		w.turns(8)
		require.Equal(t, map[string]int{"serving h2": 4}, w.counts("m"))
	})
	t.Run("one that has failed makes room for the repaired definition", func(t *testing.T) {
		t.Parallel()
		w := fresh(t, "n0")
		w.broken["h1"] = true
		w.model(model("m", 4, variant("a", "h1")))
		w.until(func() bool { return w.counts("m")["failed h1"] == 4 })
		next(w, "h2")
		w.until(func() bool { return w.counts("m")["serving h2"] == 4 })
		require.Empty(t, w.status())
	})
	t.Run("one that served and failed makes room for the canary, and no other model does", func(t *testing.T) {
		t.Parallel()
		w := idle(t, nil, node("n0", 2))
		w.model(model("m", 1, variant("a", "h1", whole)))
		w.quiet()
		w.later(time.Hour)
		w.broken["h1"] = true
		for _, j := range w.nomad {
			if j.Hash == "h1" {
				j.alloc.Client, j.alloc.Failed, j.serves = "failed", true, time.Time{}
			}
		}
		w.until(func() bool { return w.counts("m")["failed h1"] == 1 })
		next(w, "h2", whole)
		w.until(func() bool { return w.counts("m")["serving h2"] == 1 && w.status() == "" })
		require.Empty(t, w.decisions("a", planner.KindEvict))
		require.Equal(t, map[string]int{"serving": 1}, w.stages("a"))
	})
	t.Run("back to the old definition while the canary is on trial", func(t *testing.T) {
		t.Parallel()
		w := deployed(t, 2, "n0", "n1")
		next(w, "h2")
		w.turns(6)
		next(w, "h1")
		w.turns(8)
		require.Empty(t, w.status())
		require.Equal(t, map[string]int{"serving h1": 2}, w.counts("m"))
	})
	t.Run("another definition while the canary is on trial", func(t *testing.T) {
		t.Parallel()
		w := deployed(t, 2, "n0", "n1")
		next(w, "h2")
		w.turns(6)
		next(w, "h3")
		w.until(func() bool { return w.status() == "" })
		w.turns(8)
		require.Equal(t, map[string]int{"serving h3": 2}, w.counts("m"))
	})
	t.Run("a pair instead of a single engine", func(t *testing.T) {
		t.Parallel()
		w := deployed(t, 2, "n0", "n1")
		m := model("m", 0, variant("a", "h2"))
		m.Failover = true
		w.model(m)
		w.until(func() bool { return w.status() == "" })
		w.turns(8)
		for _, r := range w.view().ReplicasOf(nil, "m") {
			require.Len(t, r.Placement.Seats, 2)
		}
		require.Equal(t, map[string]int{"serving h2": 2}, w.counts("m"))
	})
	t.Run("a pair that fails, and single engines again", func(t *testing.T) {
		t.Parallel()
		w := deployed(t, 2, "n0", "n1")
		w.broken["h2"] = true
		m := model("m", 0, variant("a", "h2"))
		m.Failover = true
		w.model(m)
		w.until(func() bool { return w.status() == state.RolloutRolledBack })
		w.scale(3)
		w.turns(8)
		require.Equal(t, map[string]int{"serving h1": 3}, w.counts("m"))
		for _, r := range w.view().ReplicasOf(nil, "m") {
			require.Len(t, r.Placement.Seats, 1)
		}
	})
	t.Run("what dies meanwhile comes back as it was", func(t *testing.T) {
		t.Parallel()
		w := deployed(t, 2, "n0", "n1", "n2")
		next(w, "h2")
		w.turns(6)
		old := w.view().ReplicasOf(nil, "m")
		gone := ""
		for _, r := range old {
			if w.hash(r) == "h1" {
				gone = r.Placement.Node
			}
		}
		w.down[gone] = true
		w.setNode(gone, func(n *state.Node) { n.WrittenOff, n.Ready = true, false })
		w.plan(false)
		for _, r := range w.view().ReplicasOf(nil, "m") {
			if r.Status == state.StatusPlaced && !r.Canary {
				require.Equal(t, "h1", w.hash(r))
			}
		}
		w.until(func() bool { return w.counts("m")["serving h2"] == 2 && len(w.counts("m")) == 1 })
	})
	t.Run("a variant that is gone is replaced by another, without loss", func(t *testing.T) {
		t.Parallel()
		w := deployed(t, 3, "n0", "n1")
		w.model(model("m", 0, variant("b", "h2")))
		w.until(func() bool { return w.counts("m")["serving h2"] == 3 && len(w.counts("m")) == 1 })
	})
	t.Run("the same, where the others have numbers of their own", func(t *testing.T) {
		t.Parallel()
		w := fresh(t, "n0", "n1")
		w.model(model("m", 2, variant("a", "h1"), variant("b", "h2")))
		one := 1
		for _, v := range []string{"a", "b"} {
			w.must(&state.ScaleRequest{Model: "m", Variants: map[string]int{v: one}, Origin: state.OriginOperator})
		}
		w.turns(10)
		want := w.view().Model(nil, "m").Desired.Total()
		require.Equal(t, want, w.counts("m")["serving h1"]+w.counts("m")["serving h2"])
		require.Positive(t, w.counts("m")["serving h2"])
		w.model(model("m", 0, variant("a", "h1")))
		require.Equal(t, state.Shares{{Variant: "a", Replicas: want}}, w.view().Model(nil, "m").Desired)
		w.until(func() bool {
			serve := 0
			for _, r := range w.view().ReplicasOf(nil, "m") {
				if r.Status == state.StatusServing {
					serve++
				}
			}
			require.GreaterOrEqual(t, serve, want)
			return len(w.counts("m")) == 1 && w.counts("m")["serving h1"] == want
		})
	})
	t.Run("nothing to protect", func(t *testing.T) {
		t.Parallel()
		w := deployed(t, 2, "n0")
		next(w, "h2")
		w.scale(0)
		w.turns(8)
		require.Empty(t, w.status())
		w.scale(2)
		w.turns(8)
		require.Equal(t, map[string]int{"serving h2": 2}, w.counts("m"))
	})
}
