package state_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/state"
)

// three is a model with the variants a, b and c, in this order, and five replicas.
func three(edit ...func(*state.Model)) state.Model {
	return model("m", append([]func(*state.Model){func(m *state.Model) {
		v := m.Variants[0]
		m.Variants = nil
		for _, name := range []string{"a", "b", "c"} {
			v.Name = name
			m.Variants = append(m.Variants, v)
		}
		m.Min, m.Max, m.Replicas = 1, 10, 5
	}}, edit...)...)
}

// scale is SetScale for a variant, or for all.
func scale(variant string, n int) *state.SetScale {
	return &state.SetScale{Model: "m", Variant: variant, Replicas: ptr(n), Origin: state.OriginOperator}
}

// populate puts that many replicas of each variant on a node of their own.
func (l *log) populate(counts map[string]int) {
	l.must(&state.UpsertNodes{Nodes: []state.Node{node("big", 1, 64, 1000)}})
	seat := 0
	for _, variant := range []string{"a", "b", "c"} {
		for i := range counts[variant] {
			p := place("m", fmt.Sprint(i), "big", 0, seat, 1)
			p.Name.Variant = variant
			l.must(l.plan(p))
			seat++
		}
	}
}

// scaled gives the model three so many replicas, scales it with first and then with scale,
// and requires that this comes to total and spread, or is refused and changes nothing; and
// that the same again changes nothing.
func scaled(t *testing.T, counts map[string]int, first []*state.SetScale, scale state.Command, total int, spread map[string]int, refused error, text string) {
	t.Helper()
	l := newLog(t)
	l.must(&state.UpsertModel{Model: three()})
	l.populate(counts)
	for _, c := range first {
		l.must(c)
	}
	before := l.model("m")
	res := l.apply(scale)
	m := l.model("m")
	if refused != nil {
		require.ErrorIs(t, res.Err, refused)
		require.ErrorContains(t, res.Err, text)
		require.Equal(t, before, m)
		return
	}
	require.Nil(t, res.Err)
	require.True(t, res.Changed)
	require.Equal(t, total, m.Replicas)
	require.Equal(t, spread, m.Spread)
	require.Equal(t, l.index, m.ModifyIndex)
	again := l.apply(scale)
	require.Nil(t, again.Err)
	require.False(t, again.Changed, "the same again changes nothing")
}

func TestScaleOfAVariant(t *testing.T) {
	type spread = map[string]int
	for _, tt := range []struct {
		name    string
		counts  map[string]int // replicas that stay
		first   []*state.SetScale
		scale   *state.SetScale
		total   int
		spread  spread
		refused error
		text    string
	}{
		{name: "from what it has", counts: spread{"a": 3, "b": 2}, scale: scale("a", 5), total: 7, spread: spread{"a": 5}},
		{name: "down", counts: spread{"a": 3, "b": 2}, scale: scale("a", 1), total: 3, spread: spread{"a": 1}},
		{name: "to none", counts: spread{"a": 3, "b": 2}, scale: scale("a", 0), total: 2, spread: spread{"a": 0}},
		{name: "as many as it has", counts: spread{"a": 3, "b": 2}, scale: scale("a", 3), total: 5, spread: spread{"a": 3}},
		{name: "nothing runs yet", scale: scale("a", 2), total: 7, spread: spread{"a": 2}},
		{name: "more run than there should be", counts: spread{"a": 7, "b": 2}, scale: scale("a", 6), total: 6, spread: spread{"a": 6}},
		{name: "its own number again", counts: spread{"a": 3, "b": 2}, first: []*state.SetScale{scale("a", 5)}, scale: scale("a", 4), total: 6, spread: spread{"a": 4}},
		{name: "beside another's", counts: spread{"a": 3, "b": 2}, first: []*state.SetScale{scale("a", 5)}, scale: scale("b", 3), total: 8, spread: spread{"a": 5, "b": 3}},
		{name: "the last one shares with nobody", first: []*state.SetScale{scale("a", 1), scale("b", 1)}, scale: scale("c", 0), total: 2, spread: spread{"a": 1, "b": 1, "c": 0}},
		{name: "all together", first: []*state.SetScale{scale("a", 2)}, scale: scale("", 3), total: 3},
		{name: "all together, the same", first: []*state.SetScale{scale("a", 2)}, scale: scale("", 7), total: 7},
		{name: "above max", counts: spread{"a": 3, "b": 2}, scale: scale("a", 9), refused: state.ErrBadRequest, text: `9 replicas of variant "a" would make 11 in all`},
		{name: "below none", scale: scale("b", -1), refused: state.ErrBadRequest, text: "must be 0 to 10"},
		{name: "far above max", scale: scale("a", 1<<62), refused: state.ErrBadRequest, text: "must be 0 to 10"},
		{name: "unknown", scale: scale("x", 1), refused: state.ErrNotFound, text: `model "m" has no variant "x": must be one of "a", "b", "c"`},
		{name: "no number", scale: &state.SetScale{Model: "m", Variant: "a", Stopped: ptr(true), Origin: state.OriginOperator}, refused: state.ErrBadRequest, text: `variant "a" is set without a number of replicas`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			scaled(t, tt.counts, tt.first, tt.scale, tt.total, tt.spread, tt.refused, tt.text)
		})
	}
}

// TestScaleOfAVariantBelowMin has no other replicas.
func TestScaleOfAVariantBelowMin(t *testing.T) {
	l := newLog(t)
	l.must(&state.UpsertModel{Model: model("m", func(m *state.Model) { m.Min, m.Replicas = 2, 3 })})
	require.ErrorContains(t, l.apply(scale("v", 1)).Err, "must be 2 to 100, the model's min and max")
	// One variant alone is the same as the model, also where it does not run yet.
	l.must(scale("v", 4))
	require.Equal(t, 4, l.model("m").Replicas)
	require.Equal(t, 0, l.model("m").Shared())
}

// TestScaleDoesNotCountWhatARolloutAdds has four replicas of three, of which one is on
// trial beside the others.
func TestScaleDoesNotCountWhatARolloutAdds(t *testing.T) {
	l := newLog(t)
	l.must(&state.UpsertModel{Model: three(func(m *state.Model) { m.Replicas = 3 })})
	l.populate(map[string]int{"a": 2, "b": 1})
	for _, r := range l.store.View().Replicas(nil) {
		l.serve(r.Name)
	}
	changed := three(func(m *state.Model) { m.Hash, m.Variants[0].Hash = "h2", "vh2" })
	require.Nil(t, l.upsert(changed, epoch).Err)
	p := place("m", "canary", "big", 0, 60, 1)
	p.Name.Variant, p.Version, p.Canary = "a", 2, true
	l.must(l.plan(p))
	l.must(scale("a", 3))
	require.Equal(t, 4, l.model("m").Replicas, "b keeps its replica")
}

func TestNumbersOfVariantsAreBounded(t *testing.T) {
	for _, tt := range []struct {
		name     string
		edit     func(*state.Model)
		replicas int
		spread   map[string]int
	}{
		{"as it was", func(*state.Model) {}, 9, map[string]int{"a": 3, "b": 2, "c": 4}},
		{"fewer: the last give", func(m *state.Model) { m.Max = 4 }, 4, map[string]int{"a": 3, "b": 1, "c": 0}},
		{"more: the first takes", func(m *state.Model) { m.Min = 10 }, 10, map[string]int{"a": 4, "b": 2, "c": 4}},
		{"one goes", func(m *state.Model) { m.Variants = m.Variants[1:] }, 9, map[string]int{"b": 5, "c": 4}},
		{"one comes", func(m *state.Model) {
			v := m.Variants[0]
			v.Name = "d"
			m.Variants, m.Min = append([]state.Variant{v}, m.Variants...), 10
		}, 10, map[string]int{"a": 3, "b": 2, "c": 4}},
		{"all others", func(m *state.Model) { m.Variants = m.Variants[:1]; m.Variants[0].Name = "d" }, 9, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLog(t)
			l.must(&state.UpsertModel{Model: three()}, scale("a", 3), scale("b", 2), scale("c", 4))
			require.Equal(t, map[string]int{"a": 3, "b": 2, "c": 4}, l.model("m").Spread)
			require.Equal(t, 9, l.model("m").Replicas, "a and b have added to the five, c has taken what was shared")
			require.Nil(t, l.upsert(three(tt.edit, func(m *state.Model) { m.Hash = "h2" }), epoch).Err)
			m := l.model("m")
			require.Equal(t, tt.replicas, m.Replicas)
			require.Equal(t, tt.spread, m.Spread)
		})
	}
}

func TestManagementIsOfVariantsToo(t *testing.T) {
	for _, tt := range []struct {
		management state.Management
		origin     state.Origin
		scale      int
		want       error
	}{
		{state.ManagementDisabled, state.OriginOperator, 2, state.ErrForbidden},
		{state.ManagementManual, state.OriginAutoscaler, 4, state.ErrForbidden},
		{state.ManagementManual, state.OriginOperator, 4, nil},
		{state.ManagementUpscaling, state.OriginAutoscaler, 1, state.ErrForbidden},
		{state.ManagementUpscaling, state.OriginAutoscaler, 4, nil},
		// As many as it has: the total stays, and the number is fixed from now on.
		{state.ManagementManual, state.OriginAutoscaler, 3, state.ErrForbidden},
		{state.ManagementUpscaling, state.OriginAutoscaler, 3, nil},
	} {
		t.Run(fmt.Sprint(tt.management, tt.origin, tt.scale), func(t *testing.T) {
			l := newLog(t)
			l.must(&state.UpsertModel{Model: three(func(m *state.Model) { m.Management = tt.management })})
			l.populate(map[string]int{"a": 3, "b": 2})
			c := scale("a", tt.scale)
			c.Origin = tt.origin
			res := l.apply(c)
			if tt.want == nil {
				require.Nil(t, res.Err)
				require.Equal(t, 2+tt.scale, l.model("m").Replicas)
			} else {
				require.ErrorIs(t, res.Err, tt.want)
			}
		})
	}
}

func TestTarget(t *testing.T) {
	l := newLog(t)
	l.must(&state.UpsertModel{Model: three()}, scale("a", 3))
	require.Equal(t, 8, l.model("m").Target())
	require.Equal(t, 5, l.model("m").Shared())
	l.must(&state.SetScale{Model: "m", Stopped: ptr(true), Origin: state.OriginOperator})
	m := l.model("m")
	require.Equal(t, 0, m.Target())
	require.Equal(t, 8, m.Replicas, "what it has again when it is started")
	require.Equal(t, map[string]int{"a": 3}, m.Spread)
}

// TestScaledAtIsTheLastScaleDownByAnOperator: it survives a new model file.
func TestScaledAtIsTheLastScaleDownByAnOperator(t *testing.T) {
	at := func(minute int) time.Time { return epoch.Add(time.Duration(minute) * time.Minute) }
	l := newLog(t)
	l.must(&state.UpsertModel{Model: three()})
	l.populate(map[string]int{"a": 1})
	steps := []struct {
		name string
		cmd  state.Command
		want time.Time
	}{
		{"up", &state.SetScale{Model: "m", Replicas: ptr(6), Origin: state.OriginOperator, Time: at(1)}, time.Time{}},
		{"down", &state.SetScale{Model: "m", Replicas: ptr(5), Origin: state.OriginOperator, Time: at(2)}, at(2)},
		{"the autoscaler", &state.SetScale{Model: "m", Replicas: ptr(4), Origin: state.OriginAutoscaler, Time: at(3)}, at(2)},
		{"unchanged", &state.SetScale{Model: "m", Replicas: ptr(4), Origin: state.OriginOperator, Time: at(4)}, at(2)},
		{"variants", &state.SetVariants{Model: "m", Variants: map[string]int{"a": 1, "b": 1, "c": 1}, Origin: state.OriginOperator, Time: at(5)}, at(5)},
		{"stop", &state.SetScale{Model: "m", Stopped: ptr(true), Origin: state.OriginOperator, Time: at(6)}, at(6)},
		{"start", &state.SetScale{Model: "m", Stopped: ptr(false), Origin: state.OriginOperator, Time: at(7)}, at(6)},
		{"evict", &state.Evict{Model: "m", To: state.GoalGone, Time: at(8)}, at(8)},
	}
	for _, step := range steps {
		require.Nil(t, l.apply(step.cmd).Err, step.name)
		require.Equal(t, step.want, l.model("m").ScaledAt, step.name)
	}
	require.Error(t, l.apply(&state.SetScale{Model: "m", Replicas: ptr(0), Origin: state.OriginOperator, Time: at(9)}).Err)
	changed := three(func(m *state.Model) { m.Hash, m.ScaledAt = "other", at(10) })
	l.must(&state.UpsertModel{Model: changed, ModifyIndex: l.model("m").ModifyIndex})
	require.Equal(t, at(8), l.model("m").ScaledAt)
}
