package state_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/controller/state"
)

// variants is SetVariants of the model m, by an operator.
func variants(numbers map[string]int) *state.SetVariants {
	return &state.SetVariants{Model: "m", Variants: numbers, Origin: state.OriginOperator}
}

func TestScaleOfVariantsTogether(t *testing.T) {
	type spread = map[string]int
	for _, tt := range []struct {
		name    string
		counts  spread // replicas that stay
		first   []*state.SetScale
		scale   *state.SetVariants
		total   int
		spread  spread
		refused error
		text    string
	}{
		{name: "all", counts: spread{"a": 3, "b": 2}, scale: variants(spread{"a": 1, "b": 0, "c": 3}), total: 4, spread: spread{"a": 1, "b": 0, "c": 3}},
		{name: "all, as many as may be", scale: variants(spread{"a": 0, "b": 10, "c": 0}), total: 10, spread: spread{"a": 0, "b": 10, "c": 0}},
		{name: "all, nothing runs yet", scale: variants(spread{"a": 1, "b": 1, "c": 1}), total: 3, spread: spread{"a": 1, "b": 1, "c": 1}},
		{name: "a shift that would not do one by one", counts: spread{"a": 3, "b": 2}, first: []*state.SetScale{scale("a", 6), scale("b", 4)}, scale: variants(spread{"b": 9, "a": 1}), total: 10, spread: spread{"a": 1, "b": 9}},
		{name: "one of three", counts: spread{"a": 3, "b": 2}, scale: variants(spread{"a": 5}), total: 7, spread: spread{"a": 5}},
		{name: "two of three", counts: spread{"a": 3, "b": 2}, scale: variants(spread{"a": 4, "b": 0}), total: 4, spread: spread{"a": 4, "b": 0}},
		{name: "beside another's", counts: spread{"a": 3, "b": 2}, first: []*state.SetScale{scale("c", 2)}, scale: variants(spread{"a": 0, "b": 1}), total: 3, spread: spread{"a": 0, "b": 1, "c": 2}},
		{name: "more run than there should be", counts: spread{"a": 7, "b": 2}, scale: variants(spread{"a": 1, "b": 1, "c": 0}), total: 2, spread: spread{"a": 1, "b": 1, "c": 0}},
		{name: "above max", scale: variants(spread{"a": 9, "b": 1, "c": 1}), refused: state.ErrBadRequest, text: "a=9, b=1, c=1 would make 11 replicas in all: must be 1 to 10, the model's min and max"},
		{name: "below min", scale: variants(spread{"a": 0, "b": 0, "c": 0}), refused: state.ErrBadRequest, text: "a=0, b=0, c=0 would make 0 replicas in all"},
		{name: "bad numbers", scale: variants(spread{"a": -1, "b": 1 << 62, "c": 1}), refused: state.ErrBadRequest, text: `-1 replicas of variant "a": must be 0 to 10; 4611686018427387904 replicas of variant "b": must be 0 to 10`},
		{name: "unknown ones", scale: variants(spread{"y": 1, "x": 1, "a": 1}), refused: state.ErrNotFound, text: `model "m" has no variant "x", "y": its variants are "a", "b", "c"`},
		{name: "none", scale: variants(nil), refused: state.ErrBadRequest, text: "no variants are set"},
		{name: "stale", scale: &state.SetVariants{Model: "m", Variants: spread{"a": 1}, Origin: state.OriginOperator, ModifyIndex: 99}, refused: state.ErrConflict, text: "has changed"},
		{name: "of nobody", scale: &state.SetVariants{Model: "m", Variants: spread{"a": 1}}, refused: state.ErrBadRequest, text: "origin"},
		{name: "of no model", scale: &state.SetVariants{Model: "x", Variants: spread{"a": 1}, Origin: state.OriginOperator}, refused: state.ErrNotFound, text: `model "x"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			scaled(t, tt.counts, tt.first, tt.scale, tt.total, tt.spread, tt.refused, tt.text)
		})
	}
}

func TestWhoMayScaleVariantsTogether(t *testing.T) {
	type spread = map[string]int
	for _, tt := range []struct {
		name       string
		management state.Management
		origin     state.Origin
		first      state.Command
		scale      spread
		text       string // of the refusal, empty: there is none
	}{
		{"full", state.ManagementFull, state.OriginAutoscaler, nil, spread{"a": 1, "b": 1, "c": 0}, ""},
		{"disabled", state.ManagementDisabled, state.OriginOperator, nil, spread{"a": 4, "b": 2, "c": 0}, "scaling is disabled"},
		{"manual", state.ManagementManual, state.OriginAutoscaler, nil, spread{"a": 4, "b": 2, "c": 0}, `the autoscaler cannot scale it (management = "manual" in the model file)`},
		{"manual, by people", state.ManagementManual, state.OriginOperator, nil, spread{"a": 4, "b": 2, "c": 0}, ""},
		{"upscaling up", state.ManagementUpscaling, state.OriginAutoscaler, nil, spread{"a": 3, "b": 2, "c": 2}, ""},
		{"upscaling down", state.ManagementUpscaling, state.OriginAutoscaler, nil, spread{"a": 3, "b": 0, "c": 0}, `to 0 of variant "b", which has 2`},
		{"upscaling, from one variant to another", state.ManagementUpscaling, state.OriginAutoscaler, nil, spread{"a": 2, "b": 2, "c": 3}, `to 2 of variant "a", which has 3`},
		{"upscaling, by people", state.ManagementUpscaling, state.OriginOperator, nil, spread{"a": 2, "b": 2, "c": 3}, ""},
		{"the switch", state.ManagementFull, state.OriginAutoscaler, &state.SetSwitch{Name: "disable-scaling", Value: "true"}, spread{"a": 4, "b": 2, "c": 0}, "switch disable-scaling is set"},
		{"expected in a pool", state.ManagementFull, state.OriginAutoscaler, &state.SetExpected{Model: "m", Pool: "east", Replicas: 4}, spread{"a": 1, "b": 1, "c": 1}, "expected in external pools"},
		{"dedicated", state.ManagementFull, state.OriginAutoscaler, &state.SetDedicated{Source: "operator", Models: spread{"m": 4}, Time: epoch}, spread{"a": 1, "b": 1, "c": 1}, "dedicated with 4"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLog(t)
			l.must(&state.UpsertModel{Model: three(func(m *state.Model) { m.Management = tt.management })})
			l.populate(spread{"a": 3, "b": 2})
			if tt.first != nil {
				l.must(tt.first)
			}
			before := l.model("m")
			res := l.apply(&state.SetVariants{Model: "m", Variants: tt.scale, Origin: tt.origin})
			if tt.text == "" {
				require.Nil(t, res.Err)
				require.Equal(t, tt.scale, l.model("m").Spread)
				return
			}
			require.ErrorIs(t, res.Err, state.ErrForbidden)
			require.ErrorContains(t, res.Err, tt.text)
			require.Equal(t, before, l.model("m"))
		})
	}
}

// TestOneVariantIsAsScale: SetVariants with one name is SetScale with that variant.
func TestOneVariantIsAsScale(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newLog(t)
		l.must(&state.UpsertModel{Model: three(func(m *state.Model) { m.Min = 0 })})
		counts := map[string]int{}
		for _, name := range []string{"a", "b", "c"} {
			counts[name] = between(0, 4).Draw(t, name)
		}
		l.populate(counts)
		for range between(0, 3).Draw(t, "steps before") {
			l.apply(scale(pick([]string{"a", "b", "c"}).Draw(t, "variant"), between(0, 6).Draw(t, "replicas")))
		}
		name, n := pick([]string{"a", "b", "c"}).Draw(t, "variant"), between(-1, 11).Draw(t, "replicas")
		fork := &log{t: t, store: l.store.Fork(), index: l.index}
		want, got := fork.apply(scale(name, n)), l.apply(variants(map[string]int{name: n}))
		require.Equal(t, want.Changed, got.Changed)
		require.Equal(t, want.Err == nil, got.Err == nil)
		require.Equal(t, fork.model("m"), l.model("m"))
	})
}

// drawVariants draws numbers of some variants of a model, mostly possible ones.
func drawVariants(t *rapid.T, v *state.View) *state.SetVariants {
	c := &state.SetVariants{
		Model: pick([]string{"m0", "m0", "m1"}).Draw(t, "model"), Variants: map[string]int{},
		Origin: pick([]state.Origin{state.OriginOperator, state.OriginAutoscaler}).Draw(t, "origin"),
	}
	names := []string{"v", "w"}
	if m := v.Model(nil, c.Model); m != nil {
		c.ModifyIndex = m.ModifyIndex * uint64(between(0, 1).Draw(t, "compare"))
		names = nil
		for _, one := range m.Variants {
			names = append(names, one.Name)
		}
	}
	for _, name := range names {
		if between(0, 3).Draw(t, "named") > 0 {
			c.Variants[name] = between(-1, 5).Draw(t, "replicas of "+name)
		}
	}
	return c
}

// checkVariants looks at what an accepted change was to do.
func checkVariants(t require.TestingT, c *state.SetVariants, old, m *state.Model) {
	for variant, n := range c.Variants {
		require.Equal(t, n, m.Spread[variant])
		if had, set := old.Spread[variant]; set && c.Origin == state.OriginAutoscaler && old.Management == state.ManagementUpscaling {
			require.GreaterOrEqual(t, n, had)
		}
	}
	for variant, n := range old.Spread {
		if _, named := c.Variants[variant]; !named {
			require.Equal(t, n, m.Spread[variant], "the others keep theirs")
		}
	}
	if len(c.Variants) == len(m.Variants) {
		require.Zero(t, m.Shared())
	}
}
