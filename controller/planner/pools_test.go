package planner_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/planner"
	"remuda/controller/state"
)

// away is a node of an external pool.
func away(id, pool string, gpus int) state.Node {
	n := node(id, gpus)
	n.CapacityPool = pool
	return n
}

// pool is an external pool in a mode.
func pool(name string, mode state.Management, edit ...func(*planner.Pool)) planner.Pool {
	p := planner.DefaultPool(name)
	p.Management = mode
	for _, e := range edit {
		e(&p)
	}
	return p
}

// inPool counts the replicas of a model that count in each pool.
func (w *world) inPool(model string) map[string]int {
	out := map[string]int{}
	for _, r := range w.view().ReplicasOf(nil, model) {
		if r.Counts() {
			out[w.view().Node(nil, r.Placement.Node).CapacityPool]++
		}
	}
	return out
}

// abroad is a world with one GPU at home and four in the pool "cloud".
func abroad(t *testing.T, mode state.Management) *world {
	w := fresh(t)
	w.conf.Pools = []planner.Pool{pool("cloud", mode)}
	w.addNodes(node("n0", 1), away("c0", "cloud", 4))
	return w
}

var modes = []state.Management{state.ManagementDisabled, state.ManagementManual, state.ManagementUpscaling, state.ManagementFull}

func TestPoolModesSpill(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			w := abroad(t, mode)
			w.model(model("m", 3, variant("v", "h1", whole)))
			w.quiet()
			want := map[string]int{"": 1}
			if mode == state.ManagementUpscaling || mode == state.ManagementFull {
				want["cloud"] = 2
				require.Len(t, w.decisions("m", planner.KindSpill), 2)
			} else {
				require.NotEmpty(t, w.decisions("m", planner.KindCannotPlace))
			}
			require.Equal(t, want, w.inPool("m"))

			w.scale(1)
			w.quiet()
			w.later(time.Hour)
			w.later(time.Hour)
			switch mode {
			case state.ManagementUpscaling: // what is at home goes, and the pool is not left
				require.Equal(t, map[string]int{"cloud": 2}, w.inPool("m"))
			default:
				require.Equal(t, map[string]int{"": 1}, w.inPool("m"))
			}
			w.must(&state.ScaleRequest{Model: "m", Stopped: new(true), Origin: state.OriginOperator})
			w.quiet()
			require.Empty(t, w.inPool("m"), "a stopped model leaves every pool at once")
		})
	}
}

func TestPoolModesExpected(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			w := abroad(t, mode)
			w.model(model("m", 1, variant("v", "h1", whole)))
			w.quiet()
			require.Equal(t, map[string]int{"": 1}, w.inPool("m"))
			w.must(&state.ScaleRequest{Model: "m", Pool: "cloud", Replicas: new(1), Origin: state.OriginOperator})
			w.quiet()
			if mode == state.ManagementDisabled {
				require.Equal(t, map[string]int{"": 1}, w.inPool("m"))
				require.Contains(t, w.decisions("m", planner.KindCannotPlace)[0].Reason, "the pool's management is disabled")
				return
			}
			require.Equal(t, map[string]int{"cloud": 1}, w.inPool("m"), "it is a part of the total")
			w.must(&state.ScaleRequest{Model: "m", Pool: "cloud", Replicas: new(3), Origin: state.OriginOperator})
			w.quiet()
			require.Equal(t, map[string]int{"cloud": 3}, w.inPool("m"))
			w.must(&state.ScaleRequest{Model: "m", Pool: "cloud", Replicas: new(1), Origin: state.OriginOperator})
			w.scale(1)
			w.quiet()
			require.Equal(t, map[string]int{"cloud": 2}, w.inPool("m"), "one at a time")
			w.later(w.conf.Pools[0].Interval)
			require.Equal(t, map[string]int{"cloud": 1}, w.inPool("m"))
			w.must(&state.ScaleRequest{Model: "m", Pool: "cloud", Replicas: new(0), Origin: state.OriginOperator})
			w.later(w.conf.Pools[0].Interval)
			w.later(w.conf.Pools[0].Interval)
			require.Equal(t, map[string]int{"": 1}, w.inPool("m"), "it comes home, and serves all the time")
			require.NotEmpty(t, w.decisions("m", planner.KindLeavePool))
		})
	}
}

func TestSpillByPrice(t *testing.T) {
	t.Parallel()
	w := fresh(t)
	w.conf.Pools = []planner.Pool{
		pool("dear", state.ManagementFull, func(p *planner.Pool) { p.Price = 3 }),
		pool("cheap", state.ManagementFull, func(p *planner.Pool) { p.Price = 2 }),
	}
	h100 := func(n state.Node, gpu string) state.Node {
		for i := range n.GPUs {
			n.GPUs[i].Model = gpu
		}
		return n
	}
	w.addNodes(h100(node("n0", 1), "H100"), h100(away("c0", "cheap", 1), "H100"), h100(away("d0", "dear", 1), "H100"), h100(away("d1", "dear", 1), "A100"))
	w.model(model("m", 1,
		variant("h100", "h1", whole, func(v *state.Variant) { v.GPUModel, v.Cost = "H100", 4 }),
		variant("a100", "h2", whole, func(v *state.Variant) { v.GPUModel, v.Cost = "A100", 2 })))
	pools := []map[string]int{{"": 1}, {"": 1, "dear": 1}, {"": 1, "dear": 1, "cheap": 1}, {"": 1, "dear": 2, "cheap": 1}}
	for i, want := range pools { // at home; 2*3 an hour; 4*2; 4*3
		w.scale(i + 1)
		w.quiet()
		require.Equal(t, want, w.inPool("m"), "%d replicas", i+1)
	}
	for i := len(pools) - 2; i >= 0; i-- {
		w.scale(i + 1)
		w.quiet()
		w.later(w.conf.Pools[0].Interval)
	}
	require.Equal(t, map[string]int{"": 1}, w.inPool("m"))
}

func TestLeavingAPoolIsGradual(t *testing.T) {
	t.Parallel()
	w := abroad(t, state.ManagementFull)
	w.conf.Pools[0].Batch = 2
	w.model(model("m", 5, variant("v", "h1", whole)))
	w.quiet()
	require.Equal(t, map[string]int{"": 1, "cloud": 4}, w.inPool("m"))
	w.scale(1)
	w.quiet()
	require.Equal(t, map[string]int{"": 1, "cloud": 2}, w.inPool("m"), "what waits is not taken from home")
	_, next := w.plan(false)
	require.False(t, next.IsZero(), "it is looked at again")
	w.later(w.conf.Pools[0].Interval)
	require.Equal(t, map[string]int{"": 1}, w.inPool("m"))
	w.later(time.Hour)
}

// TestUnreachablePool: nothing is concluded of it, and nothing changes elsewhere.
func TestUnreachablePool(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			w := abroad(t, mode)
			w.model(model("m", 2, variant("v", "h1", whole)))
			if mode == state.ManagementManual {
				w.must(&state.ScaleRequest{Model: "m", Pool: "cloud", Replicas: new(1), Origin: state.OriginOperator})
			}
			w.quiet()
			there := w.inPool("m")
			w.poolOut["cloud"] = true
			for name, j := range w.nomad { // even if its jobs vanish
				if w.nodes[j.Placement.Node].CapacityPool == "cloud" {
					delete(w.nomad, name)
				}
			}
			require.Nil(t, w.lastPlan())
			require.Empty(t, planner.Actions(w.view(), w.observe(false), w.conf))
			require.Equal(t, there, w.inPool("m"))
			w.model(model("other", 1, variant("v", "o1")))
			w.quiet()
			require.Equal(t, there, w.inPool("m"))
			require.Empty(t, w.inPool("other")["cloud"], "nothing is placed where nobody can look")
		})
	}
	t.Run("the own one is no reason to leave it", func(t *testing.T) {
		t.Parallel()
		w := abroad(t, state.ManagementFull)
		w.nomadOut = true
		w.model(model("m", 1, variant("v", "h1", whole)))
		w.quiet()
		require.Empty(t, w.inPool("m"))
		w.nomadOut = false
		w.quiet()
		require.Equal(t, map[string]int{"": 1}, w.inPool("m"))
	})
}

func TestIdleIsEvictedBeforeSpillAndTrafficIsNot(t *testing.T) {
	t.Parallel()
	for _, busy := range []bool{false, true} {
		t.Run(fmt.Sprintf("busy=%v", busy), func(t *testing.T) {
			t.Parallel()
			w := abroad(t, state.ManagementFull)
			w.model(model("a", 1, variant("v", "a1", whole)))
			w.quiet()
			w.later(time.Hour)
			if busy {
				w.last[w.oneOf("a", state.StatusServing).Name.String()] = w.now
			}
			b := model("b", 1, variant("v", "b1", whole))
			b.Priority = 90 // it may evict what has traffic, too
			w.model(b)
			w.quiet()
			want := map[string]int{"": 1}
			if busy {
				want = map[string]int{"cloud": 1}
			}
			require.Equal(t, want, w.inPool("b"))
		})
	}
}
