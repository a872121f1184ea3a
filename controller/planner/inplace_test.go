package planner_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/planner"
	"remuda/controller/state"
)

// inPlace makes a rollout of a model take a replica out before its successor comes.
func inPlace(m *state.Model) { m.Update = &state.Update{} }

func percent(n int) *state.Amount { return &state.Amount{Number: n, Percent: true} }

// full is a world without a free seat, in which m has all.
func full(t *testing.T, replicas int, edit func(*state.Model), nodes ...string) *world {
	w := fresh(t, nodes...)
	m := model("m", replicas, variant("a", "h1"))
	edit(&m)
	w.model(m)
	w.turns(10)
	require.Equal(t, map[string]int{"serving h1": replicas}, w.counts("m"))
	return w
}

// next applies another definition of variant a.
func (w *world) next(hash string, edit ...func(*state.Variant)) {
	m := *w.view().Model(nil, "m")
	m.Variants = []state.Variant{variant("a", hash, edit...)}
	m.Hash = "m " + hash
	w.model(m)
}

// lowest turns the world until something is so, and returns the lowest number of replicas of m
// that served meanwhile, and the highest that were staying.
func (w *world) lowest(so func() bool) (serving, staying int) {
	serving = 1000
	w.until(func() bool {
		serving = min(serving, capacity(w.view())["m"])
		n := 0
		for _, r := range w.view().ReplicasOf(nil, "m") {
			n += btoi(r.Counts())
		}
		staying = max(staying, n)
		return so()
	})
	return serving, staying
}

func TestRolloutInPlace(t *testing.T) {
	t.Parallel()
	done := func(w *world) func() bool { return func() bool { return w.status() == "" } }
	for _, tc := range []struct {
		name     string
		replicas int
		update   state.Update
		least    int
	}{
		{"all but one serve", 4, state.Update{}, 3},
		{"one replica has a gap", 1, state.Update{}, 0},
		{"a number", 4, state.Update{MinAvailable: &state.Amount{Number: 2}}, 2},
		{"a percentage, rounded up", 3, state.Update{MinAvailable: percent(50)}, 2},
		{"a surge without room for it", 4, state.Update{Surge: 1, MinAvailable: percent(75)}, 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			w := fresh(t)
			w.addNodes(node("n0", (tc.replicas+1)/2))
			m := model("m", tc.replicas, variant("a", "h1"))
			m.Update = &tc.update
			w.model(m)
			if tc.replicas%2 == 1 {
				w.model(model("other", 1, variant("a", "h9"))) // takes the last seat
			}
			w.turns(10)
			require.Equal(t, map[string]int{"serving h1": tc.replicas}, w.counts("m"))
			w.next("h2")
			serving, staying := w.lowest(done(w))
			require.Equal(t, tc.least, serving)
			require.Equal(t, tc.replicas, staying, "none beyond the target")
			w.turns(8)
			require.Equal(t, map[string]int{"serving h2": tc.replicas}, w.counts("m"))
			require.Len(t, w.decisions("m", planner.KindRolloutDone), 1)
			require.Len(t, w.decisions("m", planner.KindPlace), 2*tc.replicas, "nothing is placed in vain")
			require.Empty(t, w.decisions("other", planner.KindEvict))
		})
	}
	t.Run("the first one is the canary, and the others wait for it", func(t *testing.T) {
		t.Parallel()
		w := full(t, 4, inPlace, "n0")
		w.conf.CanaryTime = time.Hour
		w.next("h2")
		w.turns(20)
		require.Equal(t, state.RolloutCanary, w.status())
		require.Equal(t, map[string]int{"serving h1": 3, "serving h2": 1}, w.counts("m"))
		require.True(t, w.only(func(r *state.Replica) bool { return w.hash(r) == "h2" }).Canary)
	})
	t.Run("a canary that fails gives its place back", func(t *testing.T) {
		t.Parallel()
		w := full(t, 4, inPlace, "n0")
		w.broken["h2"] = true
		w.next("h2")
		serving, _ := w.lowest(func() bool { return w.status() == state.RolloutRolledBack })
		require.Equal(t, 3, serving)
		serving, staying := w.lowest(func() bool { return w.counts("m")["serving h1"] == 4 })
		require.Equal(t, 3, serving)
		require.Equal(t, 4, staying)
		w.turns(8)
		require.Equal(t, map[string]int{"serving h1": 4}, w.counts("m"))
	})
	t.Run("one that fails later is rolled back in place, too", func(t *testing.T) {
		t.Parallel()
		w := full(t, 4, inPlace, "n0")
		w.next("h2")
		w.until(func() bool { return w.status() == state.RolloutRolling && w.counts("m")["serving h2"] == 2 })
		w.broken["h2"] = true
		w.until(func() bool { return w.status() == state.RolloutRolledBack })
		serving, staying := w.lowest(func() bool { return w.counts("m")["serving h1"] == 4 })
		require.GreaterOrEqual(t, serving, 2, "the replica that failed, and the one that makes way")
		require.Equal(t, 4, staying)
	})
	t.Run("pairs", func(t *testing.T) {
		t.Parallel()
		w := full(t, 2, func(m *state.Model) { inPlace(m); m.Failover = true }, "n0")
		w.next("h2")
		serving, _ := w.lowest(done(w))
		require.Equal(t, 1, serving)
		w.turns(8)
		require.Equal(t, map[string]int{"serving h2": 2}, w.counts("m"))
	})
	t.Run("its place is kept against a model of a higher priority", func(t *testing.T) {
		t.Parallel()
		w := full(t, 4, inPlace, "n0")
		w.conf.MinAge = 24 * time.Hour // so that it evicts nothing
		high := model("a", 1, variant("a", "h9"))
		high.Priority = 90
		w.model(high)
		w.turns(4)
		require.Empty(t, w.counts("a"))
		w.next("h2")
		serving, _ := w.lowest(done(w))
		require.Equal(t, 3, serving)
		require.Empty(t, w.counts("a"))
		require.Equal(t, map[string]int{"serving h2": 4}, w.counts("m"))
	})
	t.Run("a definition that fits in no place of an old one", func(t *testing.T) {
		t.Parallel()
		w := full(t, 4, inPlace, "n0")
		w.next("h2", func(v *state.Variant) { v.Memory = 60 }) // two replicas of 30 are on each GPU
		w.turns(20)
		require.Equal(t, map[string]int{"serving h1": 4}, w.counts("m"), "nothing is lost")
		require.Contains(t, w.decisions("m", planner.KindRolloutWaits)[0].Reason, "also not in the place of an old replica")
	})
	t.Run("one that cannot make way keeps no other one from it", func(t *testing.T) {
		t.Parallel()
		for _, surge := range []int{0, 1} {
			stuckRollout(t, surge)
		}
	})
	t.Run("an old replica that uses a GPU out of use makes way, too", func(t *testing.T) {
		t.Parallel()
		for _, surge := range []int{0, 1} {
			w := fresh(t, "n0", "n1")
			m := model("m", 2, variant("a", "h1", whole, func(v *state.Variant) { v.GPUs = 2 }))
			m.Update = &state.Update{Surge: surge, MinAvailable: percent(50)}
			w.model(m)
			w.turns(10)
			w.cordon("n0-GPU1", true)
			w.cordon("n1-GPU1", true)
			w.next("h2", whole)
			serving, _ := w.lowest(done(w))
			require.Equal(t, 1, serving, "surge %d", surge)
			w.turns(8)
			require.Equal(t, map[string]int{"serving h2": 2}, w.counts("m"), "surge %d", surge)
		}
	})
	t.Run("min_available that allows no step", func(t *testing.T) {
		t.Parallel()
		w := full(t, 2, func(m *state.Model) { m.Update = &state.Update{MinAvailable: &state.Amount{Number: 2}} }, "n0")
		w.next("h2")
		w.turns(20)
		require.Equal(t, map[string]int{"serving h1": 2}, w.counts("m"))
		require.Contains(t, w.decisions("m", planner.KindRolloutWaits)[0].Reason, "2 replicas serve, and min_available is 2")
		w.scale(3)
		w.until(done(w))
		w.turns(4)
		require.Equal(t, map[string]int{"serving h2": 3}, w.counts("m"))
	})
	t.Run("a replica of the old definition that is lost meanwhile comes back elsewhere", func(t *testing.T) {
		t.Parallel()
		w := full(t, 4, inPlace, "n0", "n1")
		w.conf.CanaryTime = time.Hour
		w.next("h2")
		w.until(func() bool { return w.counts("m")["serving h2"] == 1 })
		var lost string
		for _, r := range w.view().ReplicasOf(nil, "m") {
			if w.hash(r) == "h1" {
				lost = r.Placement.Seats[0]
			}
		}
		require.NotEmpty(t, lost)
		gpu := lost[:len(lost)-2]
		w.sicken(gpu, false)
		w.kill(gpu)
		w.until(func() bool {
			c := w.counts("m")
			return c["serving h1"]+c["serving h2"] == 4
		})
	})
}

// stuckRollout is a world in which the rollout of m waits: the last old replica cannot make way,
// since the new definition does not fit in its place on n2.
func stuckRollout(t *testing.T, surge int) *world {
	w := fresh(t)
	of := func(id string, memory int64) state.Node {
		n := node(id, 1)
		n.GPUs[0].Memory = memory
		return n
	}
	w.addNodes(of("n0", 70), of("n1", 70))
	m := model("m", 2, variant("a", "h1", func(v *state.Variant) { v.Memory = 50 }))
	m.Update = &state.Update{Surge: surge, MinAvailable: percent(50)}
	w.model(m)
	w.turns(10)
	w.addNodes(of("n2", 80))
	w.scale(3) // the youngest would make way first
	w.turns(10)
	w.model(model("other", 1, variant("a", "h9"))) // 30 B, which are free on n2 only
	w.turns(10)
	w.next("h2", func(v *state.Variant) { v.Memory = 60 })
	w.turns(100)
	require.Equal(t, map[string]int{"serving h1": 1, "serving h2": 2}, w.counts("m"), "surge %d", surge)
	require.Equal(t, "n2", w.only(func(r *state.Replica) bool { return w.hash(r) == "h1" }).Placement.Node)
	require.Contains(t, w.decisions("m", planner.KindRolloutWaits)[0].Reason, "also not in the place of an old one")
	return w
}

// TestRolloutEvictsNothing: a rollout takes no place of other models' replicas, whatever they do.
func TestRolloutEvictsNothing(t *testing.T) {
	t.Parallel()
	for _, surge := range []int{0, 1} {
		for _, broken := range []bool{false, true} {
			t.Run(fmt.Sprintf("surge %d, broken %v", surge, broken), func(t *testing.T) {
				t.Parallel()
				w := fresh(t, "n0")
				w.conf.MinAge, w.conf.TrafficWindow = 0, tick
				m := model("m", 2, variant("a", "h1", func(v *state.Variant) { v.Memory = 40 }))
				m.Update = &state.Update{Surge: surge}
				w.model(m)
				idle := model("idle", 2, variant("a", "h9", func(v *state.Variant) { v.Memory = 40 }))
				idle.Priority = 10 // anything may evict it
				w.model(idle)
				w.turns(20)
				require.Equal(t, map[string]int{"serving h9": 2}, w.counts("idle"))
				w.broken["h2"] = broken
				w.next("h2", func(v *state.Variant) { v.Memory = 40 })
				w.turns(100)
				require.Empty(t, w.decisions("idle", planner.KindEvict))
				require.Equal(t, map[string]int{"serving h9": 2}, w.counts("idle"))
				want := map[string]int{"serving h2": 2}
				if surge > 0 || broken {
					want = map[string]int{"serving h1": 2}
				}
				require.Equal(t, want, w.counts("m"))
			})
		}
	}
	// The old replica has failed, so that its place is the canary's: nothing else is evicted for
	// another old one beside the canary.
	t.Run("a canary in the place of a failed replica", func(t *testing.T) {
		t.Parallel()
		w := fresh(t, "n0")
		w.conf.MinAge, w.conf.TrafficWindow = 0, tick
		whole := func(v *state.Variant) { v.Memory = 80 }
		w.model(model("m", 1, variant("a", "h1", whole)))
		idle := model("idle", 1, variant("a", "h9", whole))
		idle.Priority = 10
		w.model(idle)
		w.turns(20)
		require.Equal(t, map[string]int{"serving h9": 1}, w.counts("idle"))
		w.broken["h1"] = true
		for _, j := range w.nomad {
			if j.Hash == "h1" {
				j.alloc.Client, j.alloc.Failed, j.serves = "failed", true, time.Time{}
			}
		}
		w.until(func() bool { return w.counts("m")["failed h1"] == 1 })
		w.next("h2", whole)
		w.until(func() bool { return w.status() == "" })
		require.Empty(t, w.decisions("idle", planner.KindEvict))
		require.Equal(t, map[string]int{"serving h2": 1}, w.counts("m"))
		require.Equal(t, map[string]int{"serving h9": 1}, w.counts("idle"))
	})
}
