package state_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
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
		m.Min, m.Max, m.Desired = 1, 10, state.Any(5)
	}}, edit...)...)
}

// replicas, variants and pool are requests for another scale of the model m, by an operator.
func replicas(n int) *state.ScaleRequest {
	return &state.ScaleRequest{Model: "m", Replicas: &n, Origin: state.OriginOperator}
}

func variants(numbers map[string]int) *state.ScaleRequest {
	return &state.ScaleRequest{Model: "m", Variants: numbers, Origin: state.OriginOperator}
}

func pool(name string, n int) *state.ScaleRequest {
	return &state.ScaleRequest{Model: "m", Pool: name, Replicas: &n, Origin: state.OriginOperator}
}

func by(origin state.Origin, r *state.ScaleRequest) *state.ScaleRequest {
	r.Origin = origin
	return r
}

func from(index uint64, r *state.ScaleRequest) *state.ScaleRequest {
	r.ModifyIndex = &index
	return r
}

func of(model string, r *state.ScaleRequest) *state.ScaleRequest {
	r.Model = model
	return r
}

// text writes shares as "VARIANT@POOL=REPLICAS ...", without what is empty.
func text(s state.Shares) string {
	var words []string
	for _, one := range s {
		word := one.Variant
		if one.Pool != "" {
			word += "@" + one.Pool
		}
		if word != "" {
			word += "="
		}
		words = append(words, word+strconv.Itoa(one.Replicas))
	}
	return strings.Join(words, " ")
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

// TestScale has a model of 1 to 10 replicas with the variants a, b and c, of which there should
// be 5 of any, unless before says otherwise.
func TestScale(t *testing.T) {
	for _, tt := range []struct {
		name    string
		edit    func(*state.Model)
		running counts // by variant
		before  []any
		request *state.ScaleRequest
		after   string
		refused error
		text    string
	}{
		{name: "all", request: replicas(7), after: "7"},
		{name: "all, and numbers of variants are forgotten", before: []any{variants(counts{"a": 2})}, request: replicas(3), after: "3"},
		{name: "all, the same number", before: []any{variants(counts{"a": 2})}, request: replicas(7), after: "7"},
		{name: "all, pools keep theirs", before: []any{pool("east", 2)}, request: replicas(8), after: "6 @east=2"},
		{name: "all, the last pools lose first", before: []any{pool("a", 2), pool("b", 3)}, request: replicas(3), after: "@a=2 @b=1"},
		{name: "all, pools forget variants", before: []any{variants(counts{"a": 5, "b": 0, "c": 0}), pool("east", 2)}, request: replicas(5), after: "3 @east=2"},
		{name: "all, none", edit: func(m *state.Model) { m.Min = 0 }, before: []any{pool("a", 2)}, request: replicas(0), after: ""},
		{name: "all, below min", request: replicas(0), refused: state.ErrBadRequest, text: "replicas is 0 (0): must be 1 to 10, the model's min and max"},
		{name: "all, above max", request: replicas(11), refused: state.ErrBadRequest, text: "11 replicas: must be 0 to 10, the model's max"},

		{name: "a variant, from what it has", running: counts{"a": 3, "b": 2}, request: variants(counts{"a": 5}), after: "2 a=5"},
		{name: "a variant, down", running: counts{"a": 3, "b": 2}, request: variants(counts{"a": 1}), after: "2 a=1"},
		{name: "a variant, to none", running: counts{"a": 3, "b": 2}, request: variants(counts{"a": 0}), after: "2 a=0"},
		{name: "a variant, as many as it has", running: counts{"a": 3, "b": 2}, request: variants(counts{"a": 3}), after: "2 a=3"},
		{name: "a variant, nothing runs yet", request: variants(counts{"a": 2}), after: "5 a=2"},
		{name: "a variant, more run than there should be", running: counts{"a": 7, "b": 2}, request: variants(counts{"a": 6}), after: "a=6"},
		{name: "a variant, its own number again", running: counts{"a": 3, "b": 2}, before: []any{variants(counts{"a": 5})}, request: variants(counts{"a": 4}), after: "2 a=4"},
		{name: "a variant, beside another's", running: counts{"a": 3, "b": 2}, before: []any{variants(counts{"a": 5})}, request: variants(counts{"b": 3}), after: "a=5 b=3"},
		{name: "a variant, the last one shares with none", before: []any{variants(counts{"a": 1}), variants(counts{"b": 1})}, request: variants(counts{"c": 0}), after: "a=1 b=1 c=0"},
		{name: "a variant, above max", running: counts{"a": 3, "b": 2}, request: variants(counts{"a": 9}), refused: state.ErrBadRequest, text: "replicas is 11 (2, 9 of a): must be 1 to 10"},
		{name: "a variant, below none", request: variants(counts{"b": -1}), refused: state.ErrBadRequest, text: `-1 replicas of variant "b": must be 0 to 10`},
		{name: "a variant, far above max", request: variants(counts{"a": 1 << 62}), refused: state.ErrBadRequest, text: "must be 0 to 10"},
		{name: "a variant, unknown", request: variants(counts{"x": 1}), refused: state.ErrNotFound, text: `model "m" has no variant "x": its variants are "a", "b", "c"`},
		{name: "a variant, below min", edit: func(m *state.Model) { m.Variants, m.Min = m.Variants[:1], 2 }, request: variants(counts{"a": 1}), refused: state.ErrBadRequest, text: "must be 2 to 10"},
		{name: "the only variant is the model", edit: func(m *state.Model) { m.Variants = m.Variants[:1] }, request: variants(counts{"a": 4}), after: "a=4"},

		{name: "variants, all", running: counts{"a": 3, "b": 2}, request: variants(counts{"a": 1, "b": 0, "c": 3}), after: "a=1 b=0 c=3"},
		{name: "variants, all, as many as may be", request: variants(counts{"a": 0, "b": 10, "c": 0}), after: "a=0 b=10 c=0"},
		{name: "variants, all, nothing runs yet", request: variants(counts{"a": 1, "b": 1, "c": 1}), after: "a=1 b=1 c=1"},
		{name: "variants, a shift that would not do one by one", running: counts{"a": 3, "b": 2}, before: []any{variants(counts{"a": 6}), variants(counts{"b": 4})}, request: variants(counts{"b": 9, "a": 1}), after: "a=1 b=9"},
		{name: "variants, two of three", running: counts{"a": 3, "b": 2}, request: variants(counts{"a": 4, "b": 0}), after: "a=4 b=0"},
		{name: "variants, beside another's", running: counts{"a": 3, "b": 2}, before: []any{variants(counts{"c": 2})}, request: variants(counts{"a": 0, "b": 1}), after: "a=0 b=1 c=2"},
		{name: "variants, more run than there should be", running: counts{"a": 7, "b": 2}, request: variants(counts{"a": 1, "b": 1, "c": 0}), after: "a=1 b=1 c=0"},
		{name: "variants, where they are in a pool", running: counts{"a": 3, "b": 2}, before: []any{pool("east", 4)}, request: variants(counts{"a": 2}), after: "@east=2 a=0 a@east=2"},
		{name: "variants, in a pool last", before: []any{variants(counts{"a": 5, "b": 0, "c": 0}), pool("east", 4)}, request: variants(counts{"a": 2}), after: "a=0 b=0 c=0 a@east=2"},
		{name: "variants, above max", request: variants(counts{"a": 9, "b": 1, "c": 1}), refused: state.ErrBadRequest, text: "replicas is 11 (9 of a, 1 of b, 1 of c): must be 1 to 10, the model's min and max"},
		{name: "variants, below min", request: variants(counts{"a": 0, "b": 0, "c": 0}), refused: state.ErrBadRequest, text: "replicas is 0 (0 of a, 0 of b, 0 of c): must be 1 to 10"},
		{name: "variants, bad numbers", request: variants(counts{"a": -1, "b": 1 << 62, "c": 1}), refused: state.ErrBadRequest, text: `-1 replicas of variant "a": must be 0 to 10, the model's max; 4611686018427387904 replicas of variant "b": must be 0 to 10`},
		{name: "variants, unknown", request: variants(counts{"y": 1, "x": 1, "a": 1}), refused: state.ErrNotFound, text: `model "m" has no variant "x", "y": its variants are "a", "b", "c"`},
		{name: "variants, none", request: variants(counts{}), refused: state.ErrBadRequest, text: "no variants are set"},
		{name: "variants and a total", request: &state.ScaleRequest{Model: "m", Variants: counts{"a": 1}, Replicas: ptr(1), Origin: state.OriginOperator}, refused: state.ErrBadRequest, text: "set one of them"},

		{name: "a pool, from the own one", request: pool("east", 2), after: "3 @east=2"},
		{name: "a pool, more than there are", before: []any{pool("west", 4)}, request: pool("east", 3), after: "@east=3 @west=4"},
		{name: "a pool, fewer go back", before: []any{pool("east", 5)}, request: pool("east", 1), after: "4 @east=1"},
		{name: "a pool, none", before: []any{pool("east", 7)}, request: pool("east", 0), after: "7"},
		{name: "a pool, of variants", before: []any{variants(counts{"a": 3})}, request: pool("east", 7), after: "a=1 @east=5 a@east=2"},
		{name: "a pool, of variants with shares of their own", before: []any{variants(counts{"a": 1, "b": 2, "c": 0})}, request: pool("east", 4), after: "a=0 b=0 c=0 a@east=2 b@east=2"},
		{name: "a pool, above max", before: []any{pool("west", 6)}, request: pool("east", 5), refused: state.ErrBadRequest, text: "replicas is 11 (5 in pool east, 6 in pool west): must be 1 to 10"},
		{name: "a pool, far above max", request: pool("east", 11), refused: state.ErrBadRequest, text: `11 replicas in pool "east": must be 0 to 10, the model's max`},
		{name: "a pool, below none", request: pool("east", -1), refused: state.ErrBadRequest, text: `-1 replicas in pool "east"`},
		{name: "a pool, a bad name", request: pool("e st", 1), refused: state.ErrBadRequest, text: `pool "e st": spaces and control characters are not allowed`},
		{name: "a pool, no number", request: &state.ScaleRequest{Model: "m", Pool: "east", Origin: state.OriginOperator}, refused: state.ErrBadRequest, text: "without a number"},

		{name: "stale", request: from(99, replicas(6)), refused: state.ErrConflict, text: "not 99"},
		{name: "of no origin", request: by("", replicas(6)), refused: state.ErrBadRequest, text: "origin"},
		{name: "of no model", request: of("x", replicas(6)), refused: state.ErrNotFound, text: `model "x"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLog(t)
			m := three()
			if tt.edit != nil {
				tt.edit(&m)
			}
			l.must(&state.UpsertModel{Model: m})
			l.populate(tt.running)
			l.must(tt.before...)
			before := l.model("m")
			res := l.apply(tt.request)
			after := l.model("m")
			if tt.refused != nil {
				require.ErrorIs(t, res.Err, tt.refused)
				require.ErrorContains(t, res.Err, tt.text)
				require.Equal(t, before, after)
				return
			}
			require.Nil(t, res.Err)
			require.True(t, res.Changed)
			require.Equal(t, sorted(tt.after), sorted(text(after.Desired)))
			require.Equal(t, l.index, after.ModifyIndex)
			checkModel(t, after)
			again := l.apply(tt.request)
			require.Nil(t, again.Err)
			require.False(t, again.Changed, "the same again changes nothing")
		})
	}
}

// sorted makes words that are in any order alike.
func sorted(words string) []string {
	out := strings.Fields(words)
	slices.Sort(out)
	return out
}

// TestScaleDoesNotCountWhatARolloutAdds has four replicas of three, of which one is on
// trial beside the others.
func TestScaleDoesNotCountWhatARolloutAdds(t *testing.T) {
	l := newLog(t)
	l.must(&state.UpsertModel{Model: three(func(m *state.Model) { m.Desired = state.Any(3) })})
	l.populate(map[string]int{"a": 2, "b": 1})
	for _, r := range l.store.View().Replicas(nil) {
		l.serve(r.Name)
	}
	changed := three(func(m *state.Model) { m.Hash, m.Variants[0].Hash = "h2", "vh2" })
	require.Nil(t, l.upsert(changed, epoch).Err)
	p := place("m", "canary", "big", 0, 60, 1)
	p.Name.Variant, p.Version, p.Canary = "a", 2, true
	l.must(l.plan(p))
	l.must(variants(counts{"a": 3}))
	require.Equal(t, 4, l.model("m").Desired.Total(), "b keeps its replica")
}

// TestDesiredSurvivesANewFile has 9 replicas of three variants. Bounds of a file change what
// runs, and not what was asked for.
func TestDesiredSurvivesANewFile(t *testing.T) {
	for _, tt := range []struct {
		name   string
		edit   func(*state.Model)
		after  string
		target state.Target
	}{
		{"as it was", func(*state.Model) {}, "a=3 b=2 c=4", state.Target{Replicas: 9}},
		{"a lower max", func(m *state.Model) { m.Max = 4 }, "a=3 b=2 c=4", state.Target{Replicas: 4, Bound: state.BoundMax}},
		{"a higher min", func(m *state.Model) { m.Min = 10 }, "a=3 b=2 c=4", state.Target{Replicas: 10, Bound: state.BoundMin}},
		{"a variant goes: the first takes", func(m *state.Model) { m.Variants = m.Variants[1:] }, "b=5 c=4", state.Target{Replicas: 9}},
		{"a variant comes", func(m *state.Model) {
			v := m.Variants[0]
			v.Name = "d"
			m.Variants, m.Min = append([]state.Variant{v}, m.Variants...), 10
		}, "a=3 b=2 c=4", state.Target{Replicas: 10, Bound: state.BoundMin}},
		{"all others", func(m *state.Model) { m.Variants = m.Variants[:1]; m.Variants[0].Name = "d" }, "9", state.Target{Replicas: 9}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLog(t)
			l.must(&state.UpsertModel{Model: three()}, variants(counts{"a": 3}), variants(counts{"b": 2}), variants(counts{"c": 4}))
			require.Equal(t, "a=3 b=2 c=4", text(l.model("m").Desired), "a and b have added to the five, c has taken what was shared")
			require.Nil(t, l.upsert(three(tt.edit, func(m *state.Model) { m.Hash = "h2" }), epoch).Err)
			m := l.model("m")
			require.Equal(t, tt.after, text(m.Desired))
			require.Equal(t, tt.target, l.store.View().Target(nil, m))
			checkModel(t, m)
		})
	}
}

// TestWhoMayScale has a=3 and b=2 running, of 5 of any.
func TestWhoMayScale(t *testing.T) {
	type list = []any
	autoscaler := func(r *state.ScaleRequest) *state.ScaleRequest { return by(state.OriginAutoscaler, r) }
	full, manual, upscaling, disabled := state.ManagementFull, state.ManagementManual, state.ManagementUpscaling, state.ManagementDisabled
	set := func(name, value string) *state.SetSwitch { return &state.SetSwitch{Name: name, Value: value} }
	const kill, most, delay = state.SwitchDisableScaling, state.SwitchCapMaxReplicas, state.SwitchScaleToZeroDelay
	for _, tt := range []struct {
		name       string
		management state.Management
		before     list
		request    *state.ScaleRequest
		text       string // of the refusal, empty: there is none
	}{
		{"full", full, nil, autoscaler(variants(counts{"a": 1, "b": 1, "c": 0})), ""},
		{"full, down", full, nil, autoscaler(replicas(1)), ""},
		{"full, to none", full, nil, autoscaler(replicas(0)), ""},
		{"disabled", disabled, nil, variants(counts{"a": 4, "b": 2, "c": 0}), "scaling is disabled"},
		{"disabled, a variant", disabled, nil, variants(counts{"a": 2}), "scaling is disabled"},
		{"disabled, a pool", disabled, nil, pool("east", 1), "scaling is disabled"},
		{"disabled, as it is", disabled, nil, replicas(5), ""},
		{"manual", manual, nil, autoscaler(variants(counts{"a": 4, "b": 2, "c": 0})), `the autoscaler cannot scale it (management = "manual" in the model file)`},
		{"manual, as many as it has", manual, nil, autoscaler(variants(counts{"a": 3})), `management = "manual"`},
		{"manual, by people", manual, nil, variants(counts{"a": 4, "b": 2, "c": 0}), ""},
		{"upscaling up", upscaling, nil, autoscaler(variants(counts{"a": 3, "b": 2, "c": 2})), ""},
		{"upscaling, as many as it has", upscaling, nil, autoscaler(variants(counts{"a": 3})), ""},
		{"upscaling down", upscaling, nil, autoscaler(replicas(4)), "cannot scale it down from 5 to 4"},
		{"upscaling down a variant", upscaling, nil, autoscaler(variants(counts{"a": 6, "b": 0, "c": 0})), `to 0 of variant "b", which has 2`},
		{"upscaling, from one variant to another", upscaling, nil, autoscaler(variants(counts{"a": 2, "b": 2, "c": 3})), `to 2 of variant "a", which has 3`},
		{"upscaling, by people", upscaling, nil, variants(counts{"a": 2, "b": 2, "c": 3}), ""},
		{"the kill switch", full, list{set(kill, "true")}, autoscaler(variants(counts{"a": 4, "b": 2, "c": 0})), "switch disable-scaling is set"},
		{"the kill switch, by people", full, list{set(kill, "true")}, replicas(2), ""},
		{"the cap", full, list{set(most, "6")}, autoscaler(replicas(7)), "switch cap-max-replicas is 6: the autoscaler cannot scale it to 7"},
		{"the cap of the model", full, list{set(state.SwitchFor(most, "m"), "6")}, autoscaler(replicas(7)), "switch cap-max-replicas is 6"},
		{"up to the cap", full, list{set(most, "6")}, autoscaler(replicas(6)), ""},
		{"down above the cap", full, list{set(most, "2")}, autoscaler(replicas(4)), ""},
		{"the cap, by people", full, list{set(most, "6")}, replicas(7), ""},
		{"the last replica", full, list{set(delay, "never")}, autoscaler(replicas(0)), "switch scale-to-zero-delay is never"},
		{"the last replica, by people", full, list{set(delay, "never")}, replicas(0), ""},
		{"not the last replica", full, list{set(delay, "never")}, autoscaler(replicas(1)), ""},
		{"in a pool", full, list{pool("east", 4)}, autoscaler(variants(counts{"a": 1, "b": 1, "c": 1})), `in pool "east": only an operator can scale below that`},
		{"in a pool, of all", full, list{pool("east", 4)}, autoscaler(replicas(3)), `4 replicas are in pool "east"`},
		{"not in a pool", full, list{pool("east", 4)}, autoscaler(replicas(4)), ""},
		{"dedicated: the floor holds", full, list{&state.SetDedicated{Models: counts{"m": 4}, Time: epoch}}, autoscaler(replicas(3)), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLog(t)
			l.must(&state.UpsertModel{Model: three(func(m *state.Model) { m.Management, m.Min = tt.management, 0 })})
			l.populate(counts{"a": 3, "b": 2})
			l.must(tt.before...)
			before := l.model("m")
			res := l.apply(tt.request)
			if tt.text == "" {
				require.Nil(t, res.Err)
				if tt.request.Replicas != nil {
					require.Equal(t, *tt.request.Replicas, l.model("m").Desired.Total())
				}
				for variant, n := range tt.request.Variants {
					got, own := l.model("m").Desired.Of(variant)
					require.True(t, own)
					require.Equal(t, n, got)
				}
				return
			}
			require.ErrorIs(t, res.Err, state.ErrForbidden)
			require.ErrorContains(t, res.Err, tt.text)
			require.Equal(t, before, l.model("m"))
		})
	}
}

// TestTarget has a model of 1 to 10 replicas. Floors and ceilings never change what was asked
// for.
func TestTarget(t *testing.T) {
	set := func(value string) *state.SetSwitch {
		return &state.SetSwitch{Name: state.SwitchFor(state.SwitchCapMaxReplicas, "m"), Value: value}
	}
	for _, tt := range []struct {
		name    string
		edit    func(*state.Model)
		desired int
		before  []any
		want    state.Target
	}{
		{name: "as asked for", desired: 5, want: state.Target{Replicas: 5}},
		{name: "min", edit: func(m *state.Model) { m.Min = 3 }, want: state.Target{Replicas: 3, Bound: state.BoundMin}},
		{name: "max", desired: 11, want: state.Target{Replicas: 10, Bound: state.BoundMax}},
		{name: "dedicated", desired: 2, before: []any{dedicate(counts{"m": 4})}, want: state.Target{Replicas: 4, Bound: state.BoundDedicated}},
		{name: "dedicated with fewer", desired: 5, before: []any{dedicate(counts{"m": 4})}, want: state.Target{Replicas: 5}},
		{name: "dedicated, and scaling is disabled", edit: func(m *state.Model) { m.Management = state.ManagementDisabled }, desired: 2, before: []any{dedicate(counts{"m": 4})}, want: state.Target{Replicas: 2}},
		{name: "dedicated, and not any more", desired: 2, before: []any{dedicate(counts{"m": 4}), dedicate(nil)}, want: state.Target{Replicas: 2}},
		{name: "the cap", desired: 5, before: []any{set("2")}, want: state.Target{Replicas: 2, Bound: state.BoundCap}},
		{name: "the cap is above", desired: 5, before: []any{set("7")}, want: state.Target{Replicas: 5}},
		{name: "the cap wins", edit: func(m *state.Model) { m.Min = 3 }, desired: 5, before: []any{dedicate(counts{"m": 4}), set("1")}, want: state.Target{Replicas: 1, Bound: state.BoundCap}},
		{name: "stopped", desired: 5, before: []any{&state.ScaleRequest{Model: "m", Stopped: ptr(true), Origin: state.OriginOperator}}, want: state.Target{Bound: state.BoundStopped}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLog(t)
			m := three(func(m *state.Model) { m.Desired = state.Any(tt.desired) })
			if tt.edit != nil {
				tt.edit(&m)
			}
			l.must(&state.UpsertModel{Model: m})
			l.must(tt.before...)
			require.Equal(t, tt.want, l.store.View().Target(nil, l.model("m")))
			require.Equal(t, tt.desired, l.model("m").Desired.Total())
		})
	}
}

// TestResized takes from the variant of the replica that goes, and from external pools last.
func TestResized(t *testing.T) {
	for _, tt := range []struct {
		before  []any
		total   int
		variant string
		after   string
	}{
		{nil, 6, "a", "6"},
		{nil, 4, "", "4"},
		{nil, -1, "", ""},
		{[]any{variants(counts{"a": 2})}, 8, "a", "5 a=3"},
		{[]any{variants(counts{"a": 2})}, 8, "b", "6 a=2"},
		{[]any{variants(counts{"a": 2})}, 8, "gone", "6 a=2"},
		{[]any{variants(counts{"a": 2})}, 6, "a", "5 a=1"},
		{[]any{variants(counts{"a": 2})}, 1, "b", "a=1"},
		{[]any{variants(counts{"a": 2, "b": 2, "c": 2})}, 8, "", "a=4 b=2 c=2"},
		{[]any{variants(counts{"a": 2, "b": 2, "c": 2})}, 3, "", "a=2 b=1 c=0"},
		{[]any{pool("east", 2), pool("west", 2)}, 2, "a", "@east=2"},
		{[]any{variants(counts{"a": 2}), pool("east", 6)}, 6, "a", "@east=5 a=0 a@east=1"},
	} {
		l := newLog(t)
		l.must(&state.UpsertModel{Model: three()})
		l.must(tt.before...)
		m := l.model("m")
		var after state.Shares
		more := tt.total - m.Desired.Total()
		if more > 0 {
			after = m.With(m.Desired, more, tt.variant)
		} else {
			m.Displaced = m.Displace(-more, tt.variant, state.UntilRoom)
			after = m.Active()
			require.Equal(t, -more, m.Displaced.Total()+max(0, -tt.total))
			m.Displaced = m.Recall(-more, tt.variant, state.UntilAsked, state.UntilRoom)
			require.Equal(t, m.Desired, m.Active())
			require.True(t, m.Displaced.IsZero())
		}
		require.Equal(t, sorted(tt.after), sorted(text(after)), "%s to %d of %s", text(m.Desired), tt.total, tt.variant)
	}
}

// TestScaleIsOfTheModelAsItWasRead: what was resolved on another state is refused, and so are
// shares that cannot be.
func TestScaleIsOfTheModelAsItWasRead(t *testing.T) {
	l := newLog(t)
	l.must(&state.UpsertModel{Model: three()})
	older, err := replicas(6).Resolve(l.store.View())
	require.Nil(t, err)
	l.must(replicas(7))
	require.ErrorIs(t, l.apply(older).Err, state.ErrConflict)

	c := &state.Scale{Model: "m", ModifyIndex: l.model("m").ModifyIndex, Desired: state.Shares{
		{Variant: "x", Replicas: 1}, {Variant: "a", Replicas: -1}, {Variant: "b", Replicas: 1 << 21}, {Pool: " ", Replicas: 1}, {Pool: " ", Replicas: 1}}}
	require.ErrorContains(t, l.apply(c).Err, "desired[0]: unknown variant \"x\": must be one of \"a\", \"b\", \"c\"\ndesired[1]: replicas is -1: must be 0 to 1048576\ndesired[2]: replicas is 2097152")
	require.ErrorContains(t, l.apply(c).Err, `desired[4]: duplicate share of variant "" in pool " "`)

	// Shares are brought into their one form.
	c.Desired = state.Shares{{Pool: "east", Variant: "a", Replicas: 1}, {Replicas: 2}, {Pool: "west"}}
	l.must(c)
	require.Equal(t, state.Shares{{Replicas: 2}, {Variant: "a"}, {Pool: "east", Variant: "a", Replicas: 1}}, l.model("m").Desired)
}

// TestScaledAtIsTheLastScaleDownByAnOperator: it survives a new model file.
func TestScaledAtIsTheLastScaleDownByAnOperator(t *testing.T) {
	at := func(minute int) time.Time { return epoch.Add(time.Duration(minute) * time.Minute) }
	l := newLog(t)
	l.must(&state.UpsertModel{Model: three()})
	l.populate(map[string]int{"a": 1})
	steps := []struct {
		name string
		cmd  any
		want time.Time
	}{
		{"up", &state.ScaleRequest{Model: "m", Replicas: ptr(6), Origin: state.OriginOperator, Time: at(1)}, time.Time{}},
		{"down", &state.ScaleRequest{Model: "m", Replicas: ptr(5), Origin: state.OriginOperator, Time: at(2)}, at(2)},
		{"the autoscaler", &state.ScaleRequest{Model: "m", Replicas: ptr(4), Origin: state.OriginAutoscaler, Time: at(3)}, at(2)},
		{"unchanged", &state.ScaleRequest{Model: "m", Replicas: ptr(4), Origin: state.OriginOperator, Time: at(4)}, at(2)},
		{"variants", &state.ScaleRequest{Model: "m", Variants: map[string]int{"a": 1, "b": 1, "c": 1}, Origin: state.OriginOperator, Time: at(5)}, at(5)},
		{"stop", &state.ScaleRequest{Model: "m", Stopped: ptr(true), Origin: state.OriginOperator, Time: at(6)}, at(6)},
		{"start", &state.ScaleRequest{Model: "m", Stopped: ptr(false), Origin: state.OriginOperator, Time: at(7)}, at(6)},
		{"evict", &state.EvictRequest{Model: "m", To: state.GoalGone, Time: at(8)}, at(8)},
	}
	for _, step := range steps {
		require.Nil(t, l.apply(step.cmd).Err, step.name)
		require.Equal(t, step.want, l.model("m").ScaledAt, step.name)
	}
	require.Error(t, l.apply(&state.ScaleRequest{Model: "m", Replicas: ptr(0), Origin: state.OriginOperator, Time: at(9)}).Err)
	changed := three(func(m *state.Model) { m.Hash, m.ScaledAt = "other", at(10) })
	l.must(&state.UpsertModel{Model: changed, ModifyIndex: l.model("m").ModifyIndex})
	require.Equal(t, at(8), l.model("m").ScaledAt)
}
