package state_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/state"
)

// TestPlanDoesEverything at once: a victim is drained, its model has one less, the GPU
// is cordoned, the planner remembers, another set is dedicated.
func TestPlanDoesEverything(t *testing.T) {
	l := walk(t, state.StatusServing)
	l.must(&state.UpsertModel{Model: model("b")}, &state.Plan{ID: "p", Marks: []state.Mark{{Key: "old", Time: epoch}}})
	move := l.move(name("m", "1"), state.EventDrain, state.GoalWarm)
	move.For = ptr("b")
	plan := func() *state.Plan {
		return &state.Plan{
			ID: "p", Index: l.index, Time: later,
			Move:         []state.Move{*move},
			Place:        []state.Place{place("b", "1", "n", 1, 0, 10)},
			Replacements: []state.SetReplacements{{Model: "m", Replacements: state.Replacements{InARow: 2, Last: later}}},
			Rescales:     []state.Rescale{{Model: "m", ModifyIndex: l.model("m").ModifyIndex, Replicas: 0}},
			Cordons:      []state.Cordon{{Node: "n", GPU: "n-GPU1", On: true, Reason: "memory held"}},
			Marks:        []state.Mark{{Key: "evicted\x1fm\x1fb", Time: later}, {Key: "old"}, {Key: "never was"}},
			Dedicated:    &state.SetDedicated{Models: counts{"b": 2}, Source: "schedule:late"},
			Decisions:    []state.Decision{{Kind: "evict", Time: later}},
		}
	}
	before := snapshotOf(t, l.store)
	for name, spoil := range map[string]func(*state.Plan){
		"no such model": func(p *state.Plan) { p.Replacements[0].Model = "none" },
		"negative row":  func(p *state.Plan) { p.Replacements[0].InARow = -1 },
		"rescale":       func(p *state.Plan) { p.Rescales[0].ModifyIndex = 77 },
		"cordon":        func(p *state.Plan) { p.Cordons[0].GPU = "none" },
		"mark":          func(p *state.Plan) { p.Marks[1].Key = "" },
		"dedicated":     func(p *state.Plan) { p.Dedicated.Models["x"] = 1 },
		"decision":      func(p *state.Plan) { p.Decisions[0].Kind = "" },
	} {
		t.Run(name, func(t *testing.T) {
			fork := &log{t: t, store: l.store.Fork(), index: l.index}
			require.Equal(t, before, snapshotOf(t, fork.store))
			p := plan()
			spoil(p)
			res := fork.apply(p)
			require.NotNil(t, res.Err)
			require.False(t, res.Changed)
			require.Equal(t, rowsOf(t, l.store.View()), rowsOf(t, fork.store.View()))
			require.Nil(t, fork.store.View().Dedicated(nil))
			require.Equal(t, []*state.Mark{{Key: "old", Time: epoch}}, fork.store.View().Marks(nil))
		})
	}
	l.must(plan())
	v := l.store.View()
	require.Equal(t, "b", v.Replica(nil, "m:v:1").For)
	require.NotNil(t, v.Replica(nil, "b:v:1"), "placed before the GPU was cordoned")
	require.Equal(t, 0, v.Model(nil, "m").Replicas)
	require.Equal(t, state.Replacements{InARow: 2, Last: later}, v.Model(nil, "m").Replacements)
	require.Equal(t, "memory held", v.Node(nil, "n").GPU("n-GPU1").CordonReason)
	require.Equal(t, []*state.Mark{{Key: "evicted\x1fm\x1fb", Time: later}}, v.Marks(nil))
	require.Equal(t, later, v.Mark(nil, "evicted\x1fm\x1fb").Time)
	require.Nil(t, v.Mark(nil, "old"))
	require.Equal(t, &state.Dedicated{Models: counts{"b": 2}, Source: "schedule:late", Since: later, ModifyIndex: l.index}, v.Dedicated(nil))
	require.Equal(t, 2, v.Model(nil, "b").Replicas)
}

func TestRescale(t *testing.T) {
	for _, tt := range []struct {
		name    string
		edit    func(*state.Model)
		first   []state.Command
		rescale state.Rescale
		want    int
		spread  counts
		refused error
		text    string
	}{
		{name: "down", rescale: state.Rescale{Replicas: 2}, want: 2},
		{name: "up", rescale: state.Rescale{Replicas: 9}, want: 9},
		{name: "numbers", rescale: state.Rescale{Replicas: 4, Spread: counts{"a": 3, "b": 2, "gone": 1}}, want: 4, spread: counts{"a": 3, "b": 1}},
		{name: "forgets numbers", first: []state.Command{scale("a", 2)}, rescale: state.Rescale{Replicas: 4}, want: 4},
		{name: "as it is", rescale: state.Rescale{Replicas: 5}, want: 5},
		{name: "below its minimum", rescale: state.Rescale{Replicas: 0}, refused: state.ErrBadRequest, text: "replicas is 0: must be 1 to 10, the model's min and max"},
		{name: "above its maximum", rescale: state.Rescale{Replicas: 11}, refused: state.ErrBadRequest, text: "1 to 10"},
		{name: "stale", rescale: state.Rescale{Replicas: 4, ModifyIndex: 99}, refused: state.ErrConflict, text: "not 99"},
		{name: "unknown", rescale: state.Rescale{Model: "x", Replicas: 4}, refused: state.ErrNotFound, text: `"x"`},
		{name: "disabled", edit: func(m *state.Model) { m.Management = state.ManagementDisabled }, rescale: state.Rescale{Replicas: 4}, refused: state.ErrForbidden, text: "disabled"},
		{name: "manual", edit: func(m *state.Model) { m.Management = state.ManagementManual }, rescale: state.Rescale{Replicas: 4}, want: 4},
		{name: "dedicated", first: []state.Command{dedicate(counts{"m": 4})}, rescale: state.Rescale{Replicas: 4}, want: 4},
		{name: "less than dedicated", first: []state.Command{dedicate(counts{"m": 4})}, rescale: state.Rescale{Replicas: 3}, refused: state.ErrConflict, text: `model "m" is dedicated with 4 replicas: cannot scale to 3`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLog(t)
			m := three(func(m *state.Model) { m.Min, m.Max, m.Replicas, m.Hash = 1, 10, 5, "h" })
			if tt.edit != nil {
				tt.edit(&m)
			}
			l.must(&state.UpsertModel{Model: m})
			l.must(tt.first...)
			before := *l.model("m")
			if tt.rescale.Model == "" {
				tt.rescale.Model = "m"
			}
			if tt.rescale.ModifyIndex == 0 {
				tt.rescale.ModifyIndex = before.ModifyIndex
			}
			res := l.apply(&state.Plan{ID: "p", Rescales: []state.Rescale{tt.rescale}})
			if tt.refused != nil {
				require.ErrorIs(t, res.Err, tt.refused)
				require.ErrorContains(t, res.Err, tt.text)
				require.Equal(t, before, *l.model("m"))
				return
			}
			require.Nil(t, res.Err)
			require.Equal(t, tt.want, l.model("m").Replicas)
			require.Equal(t, tt.spread, l.model("m").Spread)
			require.Equal(t, before.Replicas != tt.want || len(before.Spread) != len(tt.spread), res.Changed)
			checkModel(t, l.model("m"))
		})
	}
}

// TestRescaleAfterARollout of the same model and plan.
func TestRescaleAfterARollout(t *testing.T) {
	l := full(t)
	known := l.model("m").ModifyIndex
	plan := &state.Plan{
		ID: "p", Index: l.index, Time: later,
		Rollouts: []state.SetRollout{{Model: "m", Variant: "v", Version: 2, Status: state.RolloutRolling}},
		Rescales: []state.Rescale{{Model: "m", ModifyIndex: known, Replicas: 4}},
	}
	l.must(plan)
	require.Equal(t, 4, l.model("m").Replicas)
	require.Equal(t, state.RolloutRolling, l.model("m").Rollouts["v"].Status)
}

func TestBadMarks(t *testing.T) {
	l := newLog(t)
	for _, tt := range []struct {
		mark state.Mark
		text string
	}{
		{state.Mark{Time: epoch}, "mark: key is empty"},
		{state.Mark{Key: "a\x00b", Time: epoch}, "key contains a NUL byte"},
		{state.Mark{Key: strings.Repeat("x", 2000), Time: epoch}, "key is 2000 bytes: must be at most 1536 bytes"},
		{state.Mark{Key: "k", Time: time.Date(9999, 12, 31, 23, 59, 0, 0, time.FixedZone("", -3600))}, "year 10000"},
	} {
		res := l.apply(&state.Plan{ID: "p", Marks: []state.Mark{tt.mark}})
		require.ErrorIs(t, res.Err, state.ErrBadRequest)
		require.ErrorContains(t, res.Err, tt.text)
	}
	require.Empty(t, l.store.View().Marks(nil))
	mark := &state.Plan{ID: "p", Marks: []state.Mark{{Key: "k", Time: epoch}}}
	l.must(mark)
	require.False(t, l.apply(mark).Changed)
}
