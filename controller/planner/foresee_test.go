package planner_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/controller/planner"
	"remuda/controller/state"
)

var allRules = planner.Rules{Plan: planner.Plan, Actions: planner.Actions, After: planner.After}

// foresee foresees on a copy of the world.
func (w *world) foresee(b planner.Bounds, asked ...any) planner.Foresight {
	fork := w.store.Fork()
	for _, c := range asked {
		if r, ok := c.(state.Proposal); ok {
			resolved, err := r.Resolve(fork.View())
			require.Nil(w.t, err)
			c = resolved
		}
		data, err := state.Encode(c.(state.Command))
		require.NoError(w.t, err)
		require.Nil(w.t, fork.Apply(fork.View().Index()+1, data).Err)
	}
	f, err := planner.Foresee(fork, w.observe(false), w.conf, allRules, b)
	require.NoError(w.t, err)
	return f
}

// lines are the steps in short: the time, the model, and what becomes of its replica.
func lines(f planner.Foresight) []string {
	status := func(r *state.Replica) string {
		if r == nil {
			return ""
		}
		return string(r.Status)
	}
	var out []string
	for _, s := range f.Steps {
		model, _, _ := strings.Cut(s.Replica, ":")
		out = append(out, fmt.Sprintf("%s %s: %s -> %s", s.After.Round(100*time.Millisecond), model, status(s.From), status(s.To)))
	}
	return out
}

func TestForesee(t *testing.T) {
	t.Parallel()
	scale := func(name string, n int) any {
		return &state.ScaleRequest{Model: name, Replicas: &n, Origin: state.OriginOperator}
	}
	upsert := func(m state.Model) any { return &state.UpsertModel{Model: m, Time: epoch} }
	for _, test := range []struct {
		name  string
		world func() *world
		asked []any
		want  []string
	}{
		{"nothing is left to do", func() *world { return deployed(t, 1, "n0") }, nil, nil},
		{"a cold start", func() *world { return fresh(t, "n0") }, []any{upsert(model("m", 1, variant("v", "h1")))}, []string{
			"0s m:  -> starting", "40s m: starting -> serving",
		}},
		{"a model is scaled down", func() *world { return deployed(t, 1, "n0") }, []any{scale("m", 0)}, []string{
			"0s m: serving -> draining", "1s m: draining -> stopping", "2s m: stopping -> ",
		}},
		{"another model makes room", func() *world { return idle(t, nil, node("n0", 1)) }, []any{upsert(model("b", 1, variant("v", "b1", whole)))}, []string{
			"0s a: serving -> sleeping", "300ms a: sleeping -> warm", "300ms b:  -> starting", "40.3s b: starting -> serving",
		}},
		{"a WARM one is woken", func() *world {
			w := idle(t, nil, node("n0", 1))
			w.must(&state.EvictRequest{Model: "a", To: state.GoalWarm, Force: true, Time: w.now})
			w.quiet()
			return w
		}, []any{scale("a", 1)}, []string{
			"0s a: warm -> waking", "300ms a: waking -> serving",
		}},
		{"two models need the place of the same idle replica, and one of them still waits", func() *world {
			return idle(t, nil, node("n0", 1))
		}, []any{upsert(model("b", 1, variant("v", "b1", whole))), upsert(model("c", 1, variant("v", "c1", whole)))}, []string{
			"0s a: serving -> sleeping", "300ms a: sleeping -> warm", "300ms b:  -> starting", "40.3s b: starting -> serving",
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := test.world()
			before := w.view().Index()
			f := w.foresee(planner.DefaultBounds(), test.asked...)
			require.Equal(t, test.want, lines(f))
			require.Empty(t, f.Unfinished)
			require.Equal(t, before, w.view().Index(), "the state is as it was")
			for _, s := range f.Steps {
				require.True(t, s.From == nil || s.To == nil || s.From.Name == s.To.Name)
			}
		})
	}
}

// TestForeseeAssumes: the assumptions name what the times are made of, each once.
func TestForeseeAssumes(t *testing.T) {
	t.Parallel()
	w := idle(t, nil, node("n0", 1))
	f := w.foresee(planner.DefaultBounds(), &state.UpsertModel{Model: model("b", 1, variant("v", "b1", whole)), Time: epoch})
	cold, warm := 40*time.Second, 300*time.Millisecond
	for i, a := range f.Assumptions {
		f.Assumptions[i].Takes = a.Takes.Round(time.Millisecond)
	}
	require.Equal(t, []planner.Assumption{
		{Kind: planner.AssumeTraffic}, {Kind: planner.AssumeSuccess},
		{Kind: planner.AssumeSleep, Model: "a", Variant: "v", Takes: warm},
		{Kind: planner.AssumeColdStart, Model: "b", Variant: "v", Takes: cold},
	}, f.Assumptions)
	require.NotEmpty(t, f.Decisions)
}

// TestForeseeAssumesWhatWasMeasured: a start takes as long as those before it did.
func TestForeseeAssumesWhatWasMeasured(t *testing.T) {
	t.Parallel()
	w := fresh(t)
	w.addNodes(node("n0", 2))
	w.model(model("a", 1, variant("v", "a1", whole)))
	w.once()
	w.now = w.now.Add(30 * time.Second) // Nomad takes its time
	w.quiet()
	took := w.view().Model(nil, "a").Starts["a1"]
	require.Greater(t, took.Cold, time.Second)
	two := 2
	f := w.foresee(planner.DefaultBounds(), &state.ScaleRequest{Model: "a", Replicas: &two, Origin: state.OriginOperator})
	require.Contains(t, f.Assumptions, planner.Assumption{Kind: planner.AssumeColdStart, Model: "a", Variant: "v", Measured: true, Takes: took.Cold})
	require.Equal(t, took.Cold, f.Steps[len(f.Steps)-1].After)
}

// TestForeseeStandbys: each standby is priced, as it would be in the end.
func TestForeseeStandbys(t *testing.T) {
	t.Parallel()
	v := variant("v", "h1", whole)
	v.SleepMemory, v.HostMemory = 20, 16
	pair := model("m", 1, v)
	pair.Failover, pair.KeepWarm = true, 1
	w := fresh(t, "n0", "n1")
	f := w.foresee(planner.DefaultBounds(), &state.UpsertModel{Model: pair, Time: epoch})
	require.Empty(t, f.Unfinished)
	byKind := map[planner.StandbyKind]planner.Standby{}
	for _, s := range f.Standbys {
		require.Equal(t, "m", s.Replica.Name.Model)
		require.InDelta(t, 40, s.Cold.Seconds(), 0.01)
		require.Equal(t, 1, s.GPUs)
		require.False(t, s.Measured)
		byKind[s.Kind] = s
	}
	require.Len(t, f.Standbys, 2)
	second, warm := byKind[planner.StandbyPair], byKind[planner.StandbyWarm]
	require.Equal(t, []any{1, int64(10), int64(0), 300 * time.Millisecond}, []any{second.Seats, second.GPUMemory, second.HostMemory, second.Takes})
	require.Equal(t, []any{2, int64(20), int64(16)}, []any{warm.Seats, warm.GPUMemory, warm.HostMemory})
	require.InDelta(t, 0.3, warm.Takes.Seconds(), 0.01)
	require.NotEqual(t, second.Replica.Placement.Node, warm.Replica.Placement.Node)

	t.Log("the engine turns out to have no sleep mode")
	f = w.foresee(planner.DefaultBounds(), &state.UpsertModel{Model: pair, Time: epoch}, &state.Plan{ID: "p", Sleeps: []state.SetSleep{{Model: "m", Hash: "h1", Sleep: state.Sleep{None: true}}}})
	require.Len(t, f.Standbys, 1)
	require.Equal(t, []any{planner.StandbyPair, int64(0), f.Standbys[0].Cold}, []any{f.Standbys[0].Kind, f.Standbys[0].GPUMemory, f.Standbys[0].Takes})

	t.Log("a single engine has none")
	single := model("s", 1, variant("v", "h2", whole))
	require.Empty(t, w.foresee(planner.DefaultBounds(), &state.UpsertModel{Model: single, Time: epoch}).Standbys)
}

// TestForeseeHasAnEnd: each bound ends it, and is named where more would follow.
func TestForeseeHasAnEnd(t *testing.T) {
	t.Parallel()
	w := idle(t, nil, node("n0", 1))
	ask := &state.UpsertModel{Model: model("b", 1, variant("v", "b1", whole)), Time: epoch}
	b := planner.DefaultBounds()
	b.Plans = 1
	f := w.foresee(b, ask)
	require.Equal(t, "1 plans were made, and more would follow", f.Unfinished)
	require.Len(t, f.Steps, 1)
	b = planner.DefaultBounds()
	b.Span = 10 * time.Second
	f = w.foresee(b, ask)
	require.Equal(t, "more would follow after 10s", f.Unfinished)
	require.Len(t, f.Steps, 3, "it is starting")
	b = planner.DefaultBounds()
	b.Stop = func() bool { return true }
	require.Equal(t, "there was no time for more steps", w.foresee(b, ask).Unfinished)
}

// TestForeseeHolds: from any state, no step over-commits a node, the observation and the state
// are as they were, and it ends.
func TestForeseeHolds(t *testing.T) {
	t.Parallel()
	steps := 0
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "seed")
		w := newWorld(rt, rand.New(rand.NewPCG(seed, 3)))
		w.updates = rand.New(rand.NewPCG(seed, 4))
		w.load = func() time.Duration { return 2 * tick }
		w.conf.MinAge, w.conf.ThrashWindow, w.conf.TrafficWindow = 5*tick, 20*tick, 6*tick
		w.conf.Pools = []planner.Pool{pool("cloud", state.ManagementUpscaling)}
		w.addNodes(node("n0", 2), node("n1", 2), away("c0", "cloud", 1))
		hashes := 0
		for range rapid.IntRange(1, 15).Draw(rt, "turns") {
			w.disturbTiers(&hashes)
			w.plan(false)
			for _, a := range planner.Actions(w.view(), w.observe(false), w.conf) {
				if w.rand.IntN(4) > 0 {
					w.act(a, false)
				}
			}
			if w.rand.IntN(3) == 0 {
				w.traffic()
			}
			w.step()
		}
		w.disturbTiers(&hashes)

		fork, o := w.store.Fork(), w.observe(false)
		seen, index := clone(o), w.view().Index()
		rules := allRules
		rules.Plan = func(v *state.View, o planner.Observation, c planner.Config) (*state.Plan, time.Time) {
			w.booked(v)
			return planner.Plan(v, o, c)
		}
		f, err := planner.Foresee(fork, o, w.conf, rules, planner.DefaultBounds())
		require.NoError(rt, err)
		w.booked(fork.View())
		require.Equal(rt, index, w.view().Index())
		require.True(rt, reflect.DeepEqual(seen, o), "the observation is changed")
		for i, s := range f.Steps {
			require.True(rt, i == 0 || s.After >= f.Steps[i-1].After, "the steps are in order")
			require.LessOrEqual(rt, s.After, planner.DefaultBounds().Span)
		}
		steps += len(f.Steps)
	})
	require.NotZero(t, steps)
}

// clone copies what Foresee could change of an observation.
func clone(o planner.Observation) planner.Observation {
	o.Jobs, o.Engines, o.Loads, o.Demand = maps.Clone(o.Jobs), maps.Clone(o.Engines), maps.Clone(o.Loads), maps.Clone(o.Demand)
	for name, j := range o.Jobs {
		if j.Alloc != nil {
			a := *j.Alloc
			j.Alloc = &a
			o.Jobs[name] = j
		}
	}
	return o
}

// TestTogetherIsNeverWorse: Plan brings no model fewer replicas than one by one, and as many
// cost no more evictions.
func TestTogetherIsNeverWorse(t *testing.T) {
	t.Parallel()
	chosen := 0
	rapid.Check(t, func(rt *rapid.T) {
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 4))
		q := newQuiz(random.Uint64(), 0.3+0.65*random.Float64(), 6)
		w, o := q.world(rt)
		for i := range q.batch {
			m := *w.view().Model(nil, q.batch[i].name)
			m.Priority = 50 + 25*random.IntN(3)
			m.Desired = state.Any(1 + random.IntN(2))
			w.model(m)
		}
		alone, got := planner.FindBoth(w.view(), o, w.conf)
		sum := 0
		for name, n := range alone.Replicas {
			require.GreaterOrEqual(rt, got.Replicas[name], n, name)
			sum -= n
		}
		for _, n := range got.Replicas {
			sum += n
		}
		if sum == 0 && got.Busy == alone.Busy {
			require.LessOrEqual(rt, got.Cost, alone.Cost)
		}
		if got.Joint {
			chosen++
		}
		p, _ := planner.Plan(w.view(), o, w.conf)
		if p != nil {
			before := w.view()
			w.must(p) // the state accepts it
			w.booked(w.view())
			w.enabled(before, w.view(), o, p)
		}
	})
	require.NotZero(t, chosen, "the joint search is used")
}
