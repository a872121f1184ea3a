package state_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/state"
)

type counts = map[string]int

func dedicate(models counts) *state.SetDedicated {
	return &state.SetDedicated{Models: models, Time: epoch}
}

// TestDedicatedSet has the models a, b and c, of 1 to 8 replicas, of which there should
// be 2. It expects their targets.
func TestDedicatedSet(t *testing.T) {
	scaled := func(model string, n int) *state.ScaleRequest {
		return &state.ScaleRequest{Model: model, Replicas: ptr(n), Origin: state.OriginOperator}
	}
	for _, tt := range []struct {
		name    string
		edit    func(*state.Model)
		first   []any
		set     *state.SetDedicated
		want    counts // that are not 2
		refused error
		text    string
	}{
		{name: "raises", set: dedicate(counts{"a": 4, "b": 1}), want: counts{"a": 4}},
		{name: "swap", first: []any{dedicate(counts{"a": 4, "b": 3})}, set: dedicate(counts{"b": 3, "c": 5}), want: counts{"b": 3, "c": 5}},
		{name: "none", first: []any{dedicate(counts{"a": 4})}, set: dedicate(nil)},
		{name: "more", first: []any{dedicate(counts{"a": 4})}, set: dedicate(counts{"a": 6}), want: counts{"a": 6}},
		{name: "less", first: []any{dedicate(counts{"a": 6})}, set: dedicate(counts{"a": 3}), want: counts{"a": 3}},
		{name: "less, but people wanted more", first: []any{dedicate(counts{"a": 5}), scaled("a", 7)}, set: dedicate(counts{"a": 3}), want: counts{"a": 7}},
		{name: "fallen below", first: []any{dedicate(counts{"a": 5}), scaled("a", 3)}, set: dedicate(counts{"a": 4}), want: counts{"a": 4}},
		{name: "in a pool", first: []any{dedicate(counts{"a": 5}), &state.ScaleRequest{Model: "a", Pool: "east", Replicas: ptr(3), Origin: state.OriginOperator}}, set: dedicate(nil), want: counts{"a": 3}},
		{name: "disabled", edit: func(m *state.Model) { m.Management = state.ManagementDisabled }, first: []any{dedicate(counts{"a": 5})}, set: dedicate(counts{"b": 5})},
		{name: "manual", edit: func(m *state.Model) { m.Management = state.ManagementManual }, set: dedicate(counts{"b": 5}), want: counts{"b": 5}},
		{name: "unknown", set: dedicate(counts{"a": 4, "x": 1}), refused: state.ErrNotFound, text: `model "x" does not exist`},
		{name: "bounds", set: dedicate(counts{"a": 9, "b": 0, "c": -1}), refused: state.ErrBadRequest, text: "model \"a\": dedicated replicas is 9: must be 1 to 8, the model's max\nmodel \"b\": dedicated replicas is 0: must be 1 to 8, the model's max\nmodel \"c\": dedicated replicas is -1"},
		{name: "stopped", first: []any{&state.ScaleRequest{Model: "b", Stopped: ptr(true), Origin: state.OriginOperator}}, set: dedicate(counts{"a": 4, "b": 1}), refused: state.ErrConflict, text: `model "b" is stopped`},
		{name: "window", set: &state.SetDedicated{Window: "a\x00b"}, refused: state.ErrBadRequest, text: "window"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLog(t)
			for _, name := range []string{"a", "b", "c"} {
				m := model(name, func(m *state.Model) { m.Min, m.Max, m.Desired = 1, 8, state.Any(2) })
				if tt.edit != nil {
					tt.edit(&m)
				}
				l.must(&state.UpsertModel{Model: m})
			}
			l.must(tt.first...)
			before := rowsOf(t, l.store.View())
			old := l.store.View().Dedicated(nil)
			res := l.apply(tt.set)
			v := l.store.View()
			if tt.refused != nil {
				require.ErrorIs(t, res.Err, tt.refused)
				require.ErrorContains(t, res.Err, tt.text)
				require.Equal(t, before, rowsOf(t, v))
				require.False(t, res.Changed)
				return
			}
			require.Nil(t, res.Err)
			require.True(t, res.Changed)
			for _, m := range v.Models(nil) {
				want, ok := tt.want[m.Name]
				if !ok {
					want = 2
				}
				require.Equal(t, want, v.Target(nil, m).Replicas, m.Name)
				released := old != nil && old.Models[m.Name] > 0 && tt.set.Models[m.Name] == 0
				require.Equal(t, released, slices.Contains(v.Dedicated(nil).Released, m.Name), m.Name)
				require.Equal(t, tt.set.Models[m.Name] > 0, v.IsDedicated(nil, m), m.Name)
			}
			require.Equal(t, before, rowsOf(t, v), "models are as they were")
			require.Len(t, v.Dedicated(nil).Models, len(tt.set.Models))
			require.False(t, l.apply(tt.set).Changed, "it is so already")
		})
	}
}

func TestDedicatedSetIsKeptInStep(t *testing.T) {
	l := newLog(t)
	require.Nil(t, l.store.View().Dedicated(nil), "none was ever set")
	require.False(t, l.store.View().IsDedicated(nil, nil))
	l.must(&state.UpsertModel{Model: model("a")}, &state.UpsertModel{Model: model("b", func(m *state.Model) { m.Dedicated = true })})
	require.True(t, l.store.View().IsDedicated(nil, l.model("b")), "its file says so")

	// The same models of another source are another set, of another time.
	l.must(dedicate(counts{"a": 1}))
	l.must(&state.SetDedicated{Models: counts{"a": 1}, Window: "late shift", Time: later})
	require.Equal(t, &state.Dedicated{Models: counts{"a": 1}, Window: "late shift", Since: later, ModifyIndex: l.index}, l.store.View().Dedicated(nil))

	// A model that is gone is in no set, and is not when it comes again.
	l.must(&state.DeleteModel{Model: "a"})
	require.Empty(t, l.store.View().Dedicated(nil).Models)
	require.Empty(t, l.store.View().Dedicated(nil).Released)
	require.Equal(t, l.index, l.store.View().Dedicated(nil).ModifyIndex)
	l.must(&state.UpsertModel{Model: model("a")})
	require.False(t, l.store.View().IsDedicated(nil, l.model("a")))
	l.must(dedicate(nil))
	require.Empty(t, l.store.View().Dedicated(nil).Window)
}

func TestDedicatedByTheSetIsNotEvicted(t *testing.T) {
	l := walk(t, state.StatusServing)
	l.must(dedicate(counts{"m": 1}))
	for _, to := range []state.Goal{state.GoalGone, state.GoalCold, state.GoalWarm} {
		require.ErrorContains(t, l.apply(evict("m:v:1", "", func(c *state.EvictRequest) { c.To = to })).Err, "is dedicated")
	}
	under := l.move(name("m", "1"), state.EventDrain, state.GoalWarm)
	under.MakesRoomFor = ptr("other")
	require.ErrorContains(t, l.apply(under).Err, `its own model is dedicated`)
	under.MakesRoomFor = nil
	l.must(under)
	require.Empty(t, l.replica(name("m", "1")).MakesRoomFor)

	// Whatever lowers its scale, the set holds.
	l.must(&state.Plan{ID: "p", Scales: []state.Scale{{Model: "m", ModifyIndex: l.model("m").ModifyIndex}}})
	require.Equal(t, state.Target{Replicas: 1, Bound: state.BoundDedicated}, l.store.View().Target(nil, l.model("m")))
	l.must(replicas(1), by(state.OriginAutoscaler, replicas(0)))
	require.Equal(t, state.Target{Replicas: 1, Bound: state.BoundDedicated}, l.store.View().Target(nil, l.model("m")))
	require.True(t, l.store.View().IsDedicated(nil, l.model("m")))
}

func TestSchedule(t *testing.T) {
	l := newLog(t)
	require.Nil(t, l.store.View().Schedule(nil))
	require.False(t, l.apply(&state.SetSchedule{}).Changed)
	l.must(&state.SetSchedule{File: "a"}, &state.SetSchedule{File: "b"})
	require.False(t, l.apply(&state.SetSchedule{File: "b"}).Changed)
	require.Equal(t, &state.Schedule{File: "b", ModifyIndex: 3}, l.store.View().Schedule(nil))
	require.ErrorContains(t, l.apply(&state.SetSchedule{File: string(make([]byte, 1<<20+1))}).Err, "schedule is 1048577 bytes")
	l.must(&state.SetSchedule{})
	require.Nil(t, l.store.View().Schedule(nil))
}
