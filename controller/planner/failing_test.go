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

// promised is how soon a replica that answers nothing but errors is replaced, at five requests
// a second.
const promised = 30 * time.Second

// busy is a world in which replicas of m have served five requests a second and each for long.
func busy(t *testing.T, replicas int, nodes ...string) *world {
	w := deployed(t, replicas, nodes...)
	w.clients.each = 10
	w.turns(30)
	require.Zero(t, w.clients.failed)
	return w
}

// named fails a share of the requests at one replica.
func named(r *state.Replica, share float64) func(*state.Replica) float64 {
	return func(o *state.Replica) float64 {
		if o.Name == r.Name {
			return share
		}
		return 0
	}
}

func always(share float64) func(*state.Replica) float64 {
	return func(*state.Replica) float64 { return share }
}

func TestReplicaThatFailsIsReplaced(t *testing.T) {
	t.Parallel()
	const others = "serving h1"
	for _, tc := range []struct {
		name     string
		replicas int
		nodes    []string
		share    float64
		// reason is how the decision begins.
		reason string
		same   bool // there is no other node
	}{
		{name: "its siblings serve", replicas: 3, nodes: []string{"n0", "n1"}, share: 1, reason: "the last "},
		{name: "it has none", replicas: 1, nodes: []string{"n0", "n1"}, share: 1, reason: "the last "},
		{name: "there is no place for both", replicas: 8, nodes: []string{"n0", "n1"}, share: 1, reason: "the last ", same: true},
		{name: "it has no sibling and no place for both", replicas: 1, nodes: []string{"full"}, share: 1, reason: "the last ", same: true},
		{name: "it answers some", replicas: 3, nodes: []string{"n0", "n1"}, share: 0.7},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var w *world
			if tc.nodes[0] == "full" {
				w = fresh(t)
				w.addNodes(node("n0", 1))
				w.model(model("m", 1, variant("a", "h1", whole)))
				w.turns(8)
				w.clients.each = 10
				w.turns(30)
			} else {
				w = busy(t, tc.replicas, tc.nodes...)
			}
			bad := w.view().ReplicasOf(nil, "m")[0]
			w.clients.fails = named(bad, tc.share)
			began := w.now
			for gone := false; !gone; {
				w.turns(1)
				r := w.view().Replica(nil, bad.Name.String())
				gone = r == nil || r.Status != state.StatusServing
				w.holds(w.now.Sub(began) <= promised+tick, "%s still serves", bad.Name)
			}
			ds := w.decisions("m", planner.KindReplaced)
			require.Len(t, ds, 1)
			require.Equal(t, bad.Name.String(), ds[0].Replica)
			require.Contains(t, ds[0].Reason, tc.reason)
			if tc.replicas == 1 {
				require.Contains(t, ds[0].Reason, "(no requests at siblings)")
			} else {
				require.Contains(t, ds[0].Reason, "(siblings: 0 of ")
			}
			require.Equal(t, tc.replicas-1, w.counts("m")[others], "its siblings stay")
			require.Equal(t, state.Replacements{InARow: 1, Last: ds[0].Time}, w.view().Model(nil, "m").Replacements)
			w.clients.failed = 0
			w.until(func() bool { return w.counts("m")[others] == tc.replicas && len(w.counts("m")) == 1 })
			w.turns(30)
			require.Zero(t, w.clients.failed, "no request fails any more")
			require.Len(t, w.decisions("m", planner.KindReplaced), 1)
			for _, r := range w.view().ReplicasOf(nil, "m") {
				if !r.CreatedAt.Before(began) && !tc.same {
					require.NotEqual(t, bad.Placement.Node, r.Placement.Node, "the successor is elsewhere")
				}
			}
		})
	}
}

// TestReplicaOnAGPUOutOfUseFails: it fits nowhere else, and leaves only if it answers nothing.
func TestReplicaOnAGPUOutOfUseFails(t *testing.T) {
	t.Parallel()
	for share, stays := range map[float64]int{1: 7, 0.7: 8} {
		t.Run(fmt.Sprint("share=", share), func(t *testing.T) {
			t.Parallel()
			w := busy(t, 8, "n0", "n1")
			bad := w.view().ReplicasOf(nil, "m")[0]
			w.cordon(on(bad), true)
			w.turns(2)
			require.NotEmpty(t, w.decisions("m", planner.KindGPUOutOfUse))
			w.clients.fails = named(bad, share)
			w.turns(40)
			require.Equal(t, map[string]int{"serving h1": stays}, w.counts("m"))
			require.Equal(t, stays == 8, w.view().Replica(nil, bad.Name.String()) != nil)
			w.clients.failed = 0
			w.turns(10)
			require.Equal(t, stays == 7, w.clients.failed == 0)
		})
	}
}

// TestMostReplicasFail: one that does well shows that the requests are not to blame.
func TestMostReplicasFail(t *testing.T) {
	t.Parallel()
	w := busy(t, 3, "n0", "n1")
	began, well := w.now, w.view().ReplicasOf(nil, "m")[0]
	w.clients.fails = func(r *state.Replica) float64 {
		if r.Name == well.Name || !r.CreatedAt.Before(began) {
			return 0
		}
		return 0.7
	}
	w.until(func() bool { return len(w.decisions("m", planner.KindReplaced)) == 2 })
	w.turns(60)
	require.Len(t, w.decisions("m", planner.KindReplaced), 2)
	require.Equal(t, state.StatusServing, w.view().Replica(nil, well.Name.String()).Status)
	require.Equal(t, map[string]int{"serving h1": 3}, w.counts("m"))
}

func TestReplicaThatFailsAndStays(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name     string
		replicas int
		fails    func(w *world) func(*state.Replica) float64
		reason   string
	}{
		{"it answers most", 3, func(w *world) func(*state.Replica) float64 {
			return named(w.view().ReplicasOf(nil, "m")[0], 0.2)
		}, ""},
		{"all of them answer some", 3, func(*world) func(*state.Replica) float64 { return always(0.55) }, "no sibling does better"},
		{"it answers some and has no siblings", 1, func(*world) func(*state.Replica) float64 { return always(0.55) }, "no sibling does better"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			w := busy(t, tc.replicas, "n0", "n1")
			w.clients.fails = tc.fails(w)
			before := w.view().ReplicasOf(nil, "m")
			w.turns(60)
			require.Equal(t, before, w.view().ReplicasOf(nil, "m"))
			require.Empty(t, w.decisions("m", planner.KindReplaced))
			decisions := w.decisions("m", planner.KindFailing)
			require.Equal(t, tc.reason != "", len(decisions) > 0)
			for _, d := range decisions {
				require.Contains(t, d.Reason, tc.reason)
			}
		})
	}
	// All requests that are in flight when a process dies fail together; then it, or its shadow,
	// serves again.
	t.Run("it lost its requests at one moment", func(t *testing.T) {
		t.Parallel()
		w := busy(t, 2, "n0", "n1")
		r := w.view().ReplicasOf(nil, "m")[0]
		w.clients.each = 0
		w.turns(20)
		q := w.clients.of[r.Name.String()]
		for range 50 {
			q.end(w.now, true)
		}
		w.turns(4)
		w.clients.each = 10
		w.turns(60)
		require.Empty(t, w.decisions("m", planner.KindReplaced))
	})
	t.Run("it failed long ago, and once now", func(t *testing.T) {
		t.Parallel()
		w := busy(t, 2, "n0", "n1")
		r := w.view().ReplicasOf(nil, "m")[0]
		w.clients.each = 0
		for range 20 {
			w.clients.of[r.Name.String()].end(w.now, true)
		}
		w.turns(60)
		w.clients.of[r.Name.String()].end(w.now, true)
		w.turns(5)
		require.Empty(t, w.decisions("m", planner.KindReplaced))
	})
	// What is known of the world may be a reason to leave it alone.
	for name, edit := range map[string]func(*world, *state.Replica){
		"it has failed too few requests": nil,
		"Consul is out of reach":         func(w *world, _ *state.Replica) { w.consulOut = true },
		"Nomad is out of reach":          func(w *world, _ *state.Replica) { w.nomadOut = true },
		"its node is lost": func(w *world, r *state.Replica) {
			w.setNode(r.Placement.Node, func(n *state.Node) { n.DownSince, n.Ready = w.now, false })
		},
		"its node drains": func(w *world, r *state.Replica) {
			w.drains[r.Placement.Node] = w.now
			w.setNode(r.Placement.Node, func(n *state.Node) { n.Draining = true })
		},
		"its model is stopped": func(w *world, _ *state.Replica) {
			w.must(&state.ScaleRequest{Model: "m", Stopped: new(true), Origin: state.OriginOperator})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := busy(t, 2, "n0", "n1")
			w.clients.each = 0
			r := w.view().ReplicasOf(nil, "m")[0]
			n := 20
			if edit == nil {
				n = planner.FailuresLeast - 1
			} else {
				edit(w, r)
			}
			for range n {
				w.step()
				w.clients.of[r.Name.String()].end(w.now, true)
			}
			w.plan(false)
			require.Empty(t, w.decisions("m", planner.KindReplaced))
		})
	}
	t.Run("it is in a pool that is not to be touched", func(t *testing.T) {
		t.Parallel()
		w := fresh(t)
		w.conf.Pools = []planner.Pool{pool("cloud", state.ManagementManual)}
		w.addNodes(node("n0", 1), away("c0", "cloud", 2))
		w.model(model("m", 1, variant("a", "h1")))
		w.must(&state.ScaleRequest{Model: "m", Pool: "cloud", Replicas: new(1), Origin: state.OriginOperator})
		w.turns(8)
		require.Equal(t, map[string]int{"cloud": 1}, w.inPool("m"))
		w.conf.Pools[0].Management = state.ManagementDisabled
		w.clients.each, w.clients.fails = 10, always(1)
		w.turns(60)
		require.Empty(t, w.decisions("m", planner.KindReplaced))
		w.conf.Pools[0].Management, w.nomadOut = state.ManagementManual, true
		w.turns(60)
		require.Empty(t, w.decisions("m", planner.KindReplaced), "it is not known whether there is room at home")
		w.nomadOut = false
		w.until(func() bool { return len(w.decisions("m", planner.KindReplaced)) > 0 })
		w.clients.fails = nil
		for range 20 {
			w.turns(1)
			require.Equal(t, map[string]int{"cloud": 1}, w.inPool("m"), "it is replaced where it is expected")
		}
	})
}

// TestModelWhoseReplicasAllFail: replacing them is no cure, so that it is tried one at a time
// and more and more seldom. If it is one, the others follow at once.
func TestModelWhoseReplicasAllFail(t *testing.T) {
	t.Parallel()
	for _, replicas := range []int{1, 4} {
		t.Run(fmt.Sprintf("replicas=%d", replicas), func(t *testing.T) {
			t.Parallel()
			w := busy(t, replicas, "n0", "n1", "n2")
			w.clients.fails = always(1)
			var at []time.Time
			for range int(2 * time.Hour / tick) {
				before := w.view().ReplicasOf(nil, "m")
				w.turns(1)
				serving := w.counts("m")["serving h1"]
				w.holds(serving >= replicas-1, "%d serve", serving)
				for _, r := range before {
					now := w.view().Replica(nil, r.Name.String())
					if r.Status != state.StatusServing || now != nil && now.Status == state.StatusServing {
						continue
					}
					for _, o := range before {
						w.holds(o.Status != state.StatusServing || !o.Since.Before(r.Since), "%s has served longer than %s, which is replaced", o.Name, r.Name)
					}
				}
			}
			for _, d := range slices.Backward(w.decisions("m", planner.KindReplaced)) {
				at = append(at, d.Time)
			}
			// 10 s, doubling up to ten minutes, and then at least as long each.
			require.Less(t, len(at), 20, w.history())
			require.Greater(t, len(at), 8)
			for i := 1; i < len(at); i++ {
				require.GreaterOrEqual(t, at[i].Sub(at[i-1]), min(10*time.Second<<(i-1), 10*time.Minute))
			}
		})
	}
	// One at a time, however long the next one takes to serve.
	for name, edit := range map[string]func(w *world, r *state.Replica){
		"and start slowly": func(w *world, _ *state.Replica) { w.load = func() time.Duration { return 5 * time.Minute } },
		"and leave slowly, without a place for both": func(w *world, r *state.Replica) {
			w.requests[r.Name.String()] = []time.Time{w.now.Add(5 * time.Minute)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := busy(t, 4, "n0")
			for _, r := range w.view().ReplicasOf(nil, "m") {
				edit(w, r)
			}
			w.clients.fails = always(1)
			w.until(func() bool { return len(w.decisions("m", planner.KindReplaced)) == 1 })
			began := w.now
			w.until(func() bool { return len(w.decisions("m", planner.KindReplaced)) == 2 })
			require.GreaterOrEqual(t, w.now.Sub(began), 4*time.Minute)
			require.True(t, slices.ContainsFunc(w.decisions("m", planner.KindFailing), func(d *state.Decision) bool {
				return strings.Contains(d.Reason, "another replica of the model is being replaced")
			}))
		})
	}
	t.Run("and new ones do not start", func(t *testing.T) {
		t.Parallel()
		w := busy(t, 4, "n0", "n1")
		w.clients.fails = always(1)
		w.broken["h1"] = true
		w.until(func() bool { return len(w.decisions("m", planner.KindReplaced)) == 1 })
		w.turns(int(9 * time.Minute / tick))
		require.Len(t, w.decisions("m", planner.KindReplaced), 1, "what serves is not given away for what does not start")
		w.until(func() bool { return len(w.decisions("m", planner.KindReplaced)) == 2 })
	})
	t.Run("and new ones do not", func(t *testing.T) {
		t.Parallel()
		w := busy(t, 4, "n0", "n1", "n2")
		began := w.now
		w.clients.fails = func(r *state.Replica) float64 {
			if r.CreatedAt.Before(began) {
				return 1
			}
			return 0
		}
		w.turns(int(3 * time.Minute / tick))
		require.Len(t, w.decisions("m", planner.KindReplaced), 4)
		require.Equal(t, map[string]int{"serving h1": 4}, w.counts("m"))
		w.turns(int(time.Hour / tick))
		bad := w.view().ReplicasOf(nil, "m")[0]
		w.clients.fails = named(bad, 1)
		began = w.now
		w.until(func() bool { return len(w.decisions("m", planner.KindReplaced)) == 5 })
		require.LessOrEqual(t, w.now.Sub(began), promised+tick, "after a quiet time it is at once again")
		require.Equal(t, 1, w.view().Model(nil, "m").Replacements.InARow)
	})
}

// TestFleetWhoseReplicasAllFail, as behind a network that is down, keeps most of them.
func TestFleetWhoseReplicasAllFail(t *testing.T) {
	t.Parallel()
	w := fresh(t, "n0", "n1", "n2", "n3", "n4", "n5")
	const models = 20
	for i := range models {
		w.model(model(fmt.Sprintf("m%d", i), 1, variant("a", "h1")))
	}
	w.turns(12)
	w.clients.each = 10
	w.turns(30)
	w.clients.fails = always(1)
	for range int(30 * time.Minute / tick) {
		w.turns(1)
		serving := 0
		for _, r := range w.view().Replicas(nil) {
			serving += btoi(r.Status == state.StatusServing)
		}
		w.holds(serving >= models-3, "%d of %d serve", serving, models)
	}
	replaced := map[string]bool{}
	for _, d := range w.decisions("", planner.KindReplaced) {
		replaced[d.Model] = true
	}
	require.Len(t, replaced, models, "each has its turn")
}
