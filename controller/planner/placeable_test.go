package planner_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/planner"
	"remuda/controller/state"
)

// unplaceable asks of a model as the world is now.
func (w *world) unplaceable(model string) map[string]string {
	return planner.NewProber(w.view(), w.observe(false), w.conf).Unplaceable(model)
}

// two is a model of one GPU or of two, each whole.
func two(name string, replicas int) state.Model {
	return model(name, replicas, variant("one", "h1", whole), variant("two", "h2", whole, func(v *state.Variant) { v.GPUs = 2 }))
}

func TestUnplaceable(t *testing.T) {
	t.Parallel()
	type why = map[string]string // by variant, a part of the reason
	for _, tt := range []struct {
		name  string
		world func(t *testing.T) *world
		want  why
	}{
		{"there is room", func(t *testing.T) *world {
			w := fresh(t, "n0")
			w.model(two("m", 0))
			return w
		}, nil},
		{"there is room for the small one", func(t *testing.T) *world {
			w := fresh(t, "n0")
			w.model(two("m", 1))
			w.quiet()
			return w
		}, why{"two": "a replica of m:two (2 GPUs with"}},
		{"there is no room", func(t *testing.T) *world {
			w := fresh(t, "n0")
			w.model(two("m", 2))
			w.quiet()
			return w
		}, why{"one": "2 GPUs with too little free memory (at most 0 B)", "two": "no room for a replica of"}},
		{"what is wanted has no room either", func(t *testing.T) *world {
			w := fresh(t, "n0")
			w.model(two("m", 4))
			w.quiet()
			require.NotEmpty(t, w.decisions("m", planner.KindCannotPlace))
			return w
		}, why{"one": "no room for a replica of", "two": "no room for a replica of"}},
		{"another model gives it: it is idle", func(t *testing.T) *world {
			w := idle(t, nil, node("n0", 2))
			w.model(two("m", 0))
			return w
		}, nil},
		{"another model gives it not: it is more important", func(t *testing.T) *world {
			w := idle(t, func(m *state.Model) { m.Priority = 90 }, node("n0", 1))
			w.model(two("m", 0))
			return w
		}, why{"one": "no room for a replica of", "two": "no room for a replica of"}},
		{"its own WARM replica wakes", func(t *testing.T) *world {
			w := fresh(t, "n0")
			w.model(two("m", 2))
			w.quiet()
			w.later(time.Hour)
			w.must(&state.EvictRequest{Model: "m", To: state.GoalWarm, Time: w.now})
			w.quiet()
			require.Equal(t, map[string]int{"warm": 2}, w.stages("m"))
			return w
		}, nil},
		{"its own replica is on its way to WARM", func(t *testing.T) *world {
			w := fresh(t, "n0")
			w.model(two("m", 2))
			w.quiet()
			w.later(time.Hour)
			w.must(&state.EvictRequest{Model: "m", To: state.GoalWarm, Time: w.now})
			require.Equal(t, map[string]int{"draining": 2}, w.stages("m"))
			return w
		}, nil},
		{"its place becomes free", func(t *testing.T) *world {
			w := fresh(t, "n0")
			w.model(two("m", 2))
			w.quiet()
			w.scale(0)
			w.once()
			return w
		}, nil},
		{"a job of nobody's has the seats", func(t *testing.T) *world {
			w := fresh(t, "n0")
			w.model(two("m", 0))
			w.strange("h9", "n0-GPU0#0", "n0-GPU0#1", "n0-GPU1#0", "n0-GPU1#1")
			return w
		}, why{"one": "2 GPUs with too few free seats", "two": "too few free seats"}},
		{"Nomad is out of reach", func(t *testing.T) *world {
			w := fresh(t)
			w.model(two("m", 1))
			w.nomadOut = true
			return w
		}, nil},
		{"it is stopped", func(t *testing.T) *world {
			w := fresh(t)
			w.model(two("m", 1))
			w.must(&state.ScaleRequest{Model: "m", Stopped: new(true), Origin: state.OriginOperator})
			return w
		}, nil},
		{"there are no nodes", func(t *testing.T) *world {
			w := fresh(t)
			w.model(two("m", 1))
			return w
		}, why{"one": "there are no nodes with GPUs", "two": "there are no nodes with GPUs"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := tt.world(t)
			before := w.view()
			got := w.unplaceable("m")
			require.Len(t, got, len(tt.want), "%v", got)
			for variant, text := range tt.want {
				require.Contains(t, got[variant], text)
			}
			require.Equal(t, before.Index(), w.view().Index())
		})
	}
	w := fresh(t, "n0")
	w.model(two("m", 0))
	require.Nil(t, w.unplaceable("nobody"))
}

func TestUnplaceableInPools(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		for _, expected := range []int{0, 1} {
			t.Run(fmt.Sprint(mode, expected), func(t *testing.T) {
				t.Parallel()
				w := abroad(t, mode)
				w.model(model("m", 1, variant("v", "h1", whole), variant("x", "h2", func(v *state.Variant) { v.GPUModel = "none" })))
				w.quiet()
				if expected > 0 {
					w.must(&state.ScaleRequest{Model: "m", Pool: "cloud", Replicas: &expected, Origin: state.OriginOperator})
				}
				got := w.unplaceable("m")
				takes := mode == state.ManagementUpscaling || mode == state.ManagementFull || expected > 0 && mode == state.ManagementManual
				require.Equal(t, !takes, got["v"] != "", "%v", got)
				require.Contains(t, got["x"], "no room for a replica of")
				if takes {
					require.Contains(t, got["x"], "pool cloud: no room for a replica of m:x (1 GPU none with 1 seat and 30 B each)")
				}
				w.poolOut["cloud"] = true
				require.NotEmpty(t, w.unplaceable("m")["v"], "nothing is placed in a pool that nobody hears")
			})
		}
	}
}

// TestUnplaceableByNomad: the seats are there, and Nomad says no.
func TestUnplaceableByNomad(t *testing.T) {
	t.Parallel()
	w := fresh(t, "n0", "n1")
	w.model(model("m", 1, variant("a", "h1"), variant("b", "h2")))
	w.round()
	r := w.only(withStatus(state.StatusStarting))
	require.Empty(t, w.unplaceable("m"))
	w.nomad[r.Name.String()].Unplaceable = "1 nodes lack memory"
	require.Equal(t, map[string]string{"a": "replica " + r.Name.ID + ": Nomad cannot place the job: 1 nodes lack memory"}, w.unplaceable("m"))
	w.now = r.Since.Add(w.conf.PlaceTimeout)
	w.plan(false)
	w.only(withStatus(state.StatusFailed))
	w.nomad[r.Name.String()].Unplaceable = "" // the job was stopped, and nobody asks any more
	require.Contains(t, w.unplaceable("m")["a"], "Nomad did not place the job within 5m0s")
	w.quiet()
	require.Equal(t, map[string]int{"serving": 1}, w.stages("m"), "elsewhere it is placed")
	require.Empty(t, w.unplaceable("m"))
}

// TestUnplaceableIsWhatThePlannerDoes: in random worlds at rest, a variant is named if and
// only if the planner, asked for one more of it, says that it cannot.
func TestUnplaceableIsWhatThePlannerDoes(t *testing.T) {
	t.Parallel()
	named, asked := 0, 0
	for seed := range uint64(60) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		w := newWorld(t, rnd)
		w.conf.Pools = []planner.Pool{pool("cloud", modes[rnd.IntN(len(modes))])}
		for i := range 1 + rnd.IntN(3) {
			w.addNodes(node(fmt.Sprint("n", i), 1+rnd.IntN(3)))
		}
		w.addNodes(away("c0", "cloud", rnd.IntN(2)))
		for i := range 1 + rnd.IntN(3) {
			size := func(v *state.Variant) { v.Memory, v.GPUs, v.Cost = 20+20*rnd.Int64N(4), 1+rnd.IntN(2), rnd.Float64() }
			m := model(fmt.Sprint("m", i), rnd.IntN(4), variant("a", "h1", size), variant("b", "h2", size))
			m.Priority, m.Max = 40+10*rnd.IntN(3), 20
			w.model(m)
		}
		w.quiet()
		if rnd.IntN(2) == 0 {
			w.later(time.Hour)
		}
		w.now = w.now.Add(2 * time.Minute) // what was said is said again
		o := w.observe(false)
		prober := planner.NewProber(w.view(), o, w.conf)
		for _, m := range w.view().Models(nil) {
			for _, v := range m.Variants {
				why := prober.Unplaceable(m.Name)[v.Name]
				n := 1
				for _, r := range w.view().ReplicasOf(nil, m.Name) {
					if r.Counts() && r.Name.Variant == v.Name {
						n++
					}
				}
				fork := w.store.Fork()
				scale, refused := (&state.ScaleRequest{Model: m.Name, Variants: map[string]int{v.Name: n}, Origin: state.OriginOperator}).Resolve(fork.View())
				require.Nil(t, refused)
				raw, err := state.Encode(scale)
				require.NoError(t, err)
				require.Nil(t, fork.Apply(fork.View().Index()+1, raw).Err)
				p, _ := planner.Plan(fork.View(), o, w.conf)
				cannot := false
				if p != nil {
					for _, d := range p.Decisions {
						cannot = cannot || d.Kind == planner.KindCannotPlace && d.Model == m.Name && d.Details["variant"] == v.Name
					}
				}
				require.Equal(t, cannot, why != "", "seed %d: one more of %s:%s: %q\n%+v\n%s", seed, m.Name, v.Name, why, p, w.history())
				asked++
				if cannot {
					named++
				}
			}
		}
	}
	t.Logf("%d of %d could not be placed", named, asked)
	require.Greater(t, named, asked/10)
	require.Less(t, named, asked*9/10)
}

// BenchmarkProber is what a look at one model costs on a large fleet.
func BenchmarkProber(b *testing.B) {
	w, o := large(b, 1000)
	v := w.view()
	b.ReportAllocs()
	for b.Loop() {
		if got := planner.NewProber(v, o, w.conf).Unplaceable("m0000"); len(got) > 0 {
			b.Fatal(got)
		}
	}
}

// TestTheModelSaysWhyNoPlaceIsFound as long as a replica is missing, and since when.
func TestTheModelSaysWhyNoPlaceIsFound(t *testing.T) {
	w := fresh(t, "n0", "n1")
	w.setNode("n1", func(n *state.Node) { n.Ready = false })
	w.model(model("m", 6, variant("a", "h1")))
	w.turns(2)
	first := w.view().Model(nil, "m").Unplaceable
	require.NotNil(t, first)
	require.Contains(t, first.Reason, "2 of 6 replicas are missing; ")
	index := w.view().Model(nil, "m").ModifyIndex
	w.turns(8)
	require.Equal(t, first, w.view().Model(nil, "m").Unplaceable)
	require.Equal(t, index, w.view().Model(nil, "m").ModifyIndex, "a change by an operator does not meet a conflict because of it")
	w.setNode("n1", func(n *state.Node) { n.Ready = true })
	w.turns(8)
	require.Nil(t, w.view().Model(nil, "m").Unplaceable)
}
