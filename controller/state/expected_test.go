package state_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/state"
)

func expect(pool string, n int) *state.SetExpected {
	return &state.SetExpected{Model: "m", Pool: pool, Replicas: n}
}

// TestSetExpected has a model of 1 to 6 replicas, of which there should be 3.
func TestSetExpected(t *testing.T) {
	for _, tt := range []struct {
		name    string
		edit    func(*state.Model)
		first   []state.Command
		set     *state.SetExpected
		want    counts
		total   int
		refused error
		text    string
	}{
		{name: "a part of the total", set: expect("east", 2), want: counts{"east": 2}, total: 3},
		{name: "raises the total", first: []state.Command{expect("west", 2)}, set: expect("east", 3), want: counts{"east": 3, "west": 2}, total: 5},
		{name: "lowers nothing but itself", first: []state.Command{expect("east", 5)}, set: expect("east", 1), want: counts{"east": 1}, total: 5},
		{name: "taken away", first: []state.Command{expect("east", 5)}, set: expect("east", 0), total: 5},
		{name: "with numbers of variants", first: []state.Command{scale("v", 3)}, set: expect("east", 5), want: counts{"east": 5}, total: 5},
		{name: "above the maximum", first: []state.Command{expect("west", 4)}, set: expect("east", 3), refused: state.ErrBadRequest, text: `3 replicas in pool "east" would make 7 in all pools: must be at most 6, the model's max`},
		{name: "far above", set: expect("east", 7), refused: state.ErrBadRequest, text: "must be 0 to 6, the model's max"},
		{name: "below none", set: expect("east", -1), refused: state.ErrBadRequest, text: "-1 replicas"},
		{name: "no pool", set: expect("", 1), refused: state.ErrBadRequest, text: "pool is empty"},
		{name: "disabled", edit: func(m *state.Model) { m.Management = state.ManagementDisabled }, set: expect("east", 1), refused: state.ErrForbidden, text: "disabled"},
		{name: "stale", set: &state.SetExpected{Model: "m", Pool: "east", Replicas: 1, ModifyIndex: 77}, refused: state.ErrConflict, text: "not 77"},
		{name: "unknown", set: &state.SetExpected{Model: "x", Pool: "east", Replicas: 1}, refused: state.ErrNotFound, text: `"x"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLog(t)
			m := model("m", func(m *state.Model) { m.Min, m.Max, m.Replicas = 1, 6, 3 })
			if tt.edit != nil {
				tt.edit(&m)
			}
			l.must(&state.UpsertModel{Model: m})
			l.must(tt.first...)
			before := l.model("m")
			res := l.apply(tt.set)
			if tt.refused != nil {
				require.ErrorIs(t, res.Err, tt.refused)
				require.ErrorContains(t, res.Err, tt.text)
				require.Equal(t, before, l.model("m"))
				return
			}
			require.Nil(t, res.Err)
			require.Equal(t, tt.want, l.model("m").Expected)
			require.Equal(t, tt.total, l.model("m").Replicas)
			require.Equal(t, l.index, l.model("m").ModifyIndex)
			checkModel(t, l.model("m"))
			require.False(t, l.apply(tt.set).Changed, "it is so already")
		})
	}
}

// TestExpectedIsAPartOfTheTotal whatever lowers it; the autoscaler does not.
func TestExpectedIsAPartOfTheTotal(t *testing.T) {
	start := func() *log {
		l := newLog(t)
		l.must(&state.UpsertModel{Model: model("m", func(m *state.Model) { m.Replicas = 6 })}, expect("a", 2), expect("b", 3))
		return l
	}
	l := start()
	l.must(&state.SetScale{Model: "m", Replicas: ptr(5), Origin: state.OriginAutoscaler})
	res := l.apply(&state.SetScale{Model: "m", Replicas: ptr(4), Origin: state.OriginAutoscaler})
	require.ErrorIs(t, res.Err, state.ErrForbidden)
	require.ErrorContains(t, res.Err, "5 of its replicas are expected in external pools")
	l.must(&state.SetScale{Model: "m", Replicas: ptr(3), Origin: state.OriginOperator})
	require.Equal(t, counts{"a": 2, "b": 1}, l.model("m").Expected, "the last pools lose first")
	l.must(&state.SetScale{Model: "m", Replicas: ptr(0), Origin: state.OriginOperator})
	require.Nil(t, l.model("m").Expected)

	l = start()
	l.must(&state.UpsertModel{Model: model("m", func(m *state.Model) { m.Hash, m.Max = "h2", 4 }), ModifyIndex: l.index})
	require.Equal(t, counts{"a": 2, "b": 2}, l.model("m").Expected, "a file that is changed does not forget them")
}

// TestEvictFromAPool makes one less expected there, where no other one is there for it.
func TestEvictFromAPool(t *testing.T) {
	l := newLog(t)
	own, east := node("own", 2, 2, 10), node("east", 2, 2, 10)
	east.CapacityPool = "east"
	l.must(&state.UpsertModel{Model: model("m", func(m *state.Model) { m.Replicas = 4 })}, &state.UpsertNodes{Nodes: []state.Node{own, east}}, expect("east", 1))
	l.must(l.plan(place("m", "0", "own", 0, 0, 1), place("m", "1", "own", 1, 0, 1), place("m", "2", "east", 0, 0, 1), place("m", "3", "east", 1, 0, 1)))
	l.must(evict("m:v:0", ""))
	require.Equal(t, counts{"east": 1}, l.model("m").Expected, "it was none of them")
	l.must(evict("m:v:2", ""))
	require.Equal(t, counts{"east": 1}, l.model("m").Expected, "there is another one")
	l.must(evict("m:v:3", ""))
	require.Empty(t, l.model("m").Expected)
	require.Equal(t, 1, l.model("m").Replicas)
}
