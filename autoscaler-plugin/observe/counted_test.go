package observe_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/autoscaler-plugin/observe"
	"remuda/controller/api"
)

// shares has numbers of variants, and the rest of a total for any variant.
func sharesOf(own map[string]int, total int) []api.Share {
	var out []api.Share
	for variant, n := range own {
		out, total = append(out, api.Share{Variant: variant, Replicas: n}), total-n
	}
	return append(out, api.Share{Replicas: total})
}

func statusOf(target int, spread map[string]int, unplaceable ...string) *api.ModelStatus {
	st := &api.ModelStatus{Model: api.Model{Variants: []api.Variant{{Name: "h100", Cost: 8}, {Name: "l4", Cost: 1}}, Target: target, Replicas: target, Desired: sharesOf(spread, target)}}
	for _, v := range unplaceable {
		if st.Unplaceable == nil {
			st.Unplaceable = map[string]string{}
		}
		st.Unplaceable[v] = "no place"
	}
	return st
}

// counted counts a model with so many replicas of each variant.
func counted(st *api.ModelStatus, there map[string]int) map[string]int {
	st.VariantCounts = map[string]api.Counts{}
	for v, n := range there {
		st.VariantCounts[v] = api.Counts{Hot: n}
	}
	return observe.Counted(st)
}

func TestCounted(t *testing.T) {
	for _, c := range []struct {
		name   string
		status *api.ModelStatus
		there  map[string]int
		want   map[string]int
	}{
		{"as ordered", statusOf(3, nil), map[string]int{"h100": 1, "l4": 2}, map[string]int{"h100": 1, "l4": 2}},
		{"nothing is there", statusOf(0, nil), nil, map[string]int{"h100": 0, "l4": 0}},
		{"ordered and not placed yet: the cheapest", statusOf(5, nil), map[string]int{"h100": 1, "l4": 1}, map[string]int{"h100": 1, "l4": 4}},
		{"ordered of one variant", statusOf(5, map[string]int{"h100": 3}), map[string]int{"h100": 1, "l4": 2}, map[string]int{"h100": 3, "l4": 2}},
		{"ordered of all variants", statusOf(5, map[string]int{"h100": 3, "l4": 2}), map[string]int{"h100": 1, "l4": 4}, map[string]int{"h100": 3, "l4": 2}},
		{"ordered to go, and not drained yet", statusOf(1, map[string]int{"h100": 0, "l4": 1}), map[string]int{"h100": 1, "l4": 3}, map[string]int{"h100": 0, "l4": 1}},
		{"less of all: the dearest goes", statusOf(2, nil), map[string]int{"h100": 2, "l4": 1}, map[string]int{"h100": 1, "l4": 1}},
		{"the cheapest has no place", statusOf(5, nil, "l4"), map[string]int{"h100": 1, "l4": 1}, map[string]int{"h100": 4, "l4": 1}},
		{"none has a place", statusOf(5, nil, "l4", "h100"), map[string]int{"h100": 1, "l4": 1}, map[string]int{"h100": 1, "l4": 1}},
		{"what was ordered has no place", statusOf(5, map[string]int{"h100": 1, "l4": 4}, "l4"), map[string]int{"h100": 0, "l4": 2}, map[string]int{"h100": 1, "l4": 2}},
		{"a variant that is no more counts until it is replaced", statusOf(3, nil), map[string]int{"old": 1, "l4": 2}, map[string]int{"h100": 0, "l4": 2, "old": 1}},
		{"and goes first", statusOf(2, nil), map[string]int{"old": 1, "h100": 1, "l4": 1}, map[string]int{"h100": 1, "l4": 1, "old": 0}},
		{"more in a rollout than ordered", statusOf(2, map[string]int{"h100": 0, "l4": 2}), map[string]int{"l4": 3}, map[string]int{"h100": 0, "l4": 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.want, counted(c.status, c.there))
		})
	}
	stopped := statusOf(0, map[string]int{"h100": 3})
	stopped.Model.Stopped = true
	require.Equal(t, map[string]int{"h100": 0, "l4": 0}, counted(stopped, map[string]int{"h100": 3, "l4": 1}))
}

// The sum is what was ordered, and less only for want of a place.
func TestCountedAddsUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		spread := map[string]int{}
		target := 0
		for _, v := range []string{"h100", "l4"} {
			if rapid.Bool().Draw(t, "alone") {
				spread[v] = rapid.IntRange(0, 5).Draw(t, "ordered")
				target += spread[v]
			}
		}
		if len(spread) < 2 {
			target += rapid.IntRange(0, 5).Draw(t, "rest")
		}
		there := map[string]int{}
		for _, v := range []string{"h100", "l4", "old"} {
			there[v] = rapid.IntRange(0, 5).Draw(t, "there")
		}
		st := statusOf(target, spread)
		sum := func() int {
			n := 0
			for v, one := range counted(st, there) {
				require.GreaterOrEqual(t, one, 0, v)
				n += one
			}
			return n
		}
		require.Equal(t, target, sum())
		st.Unplaceable = map[string]string{"h100": "no place"}
		require.LessOrEqual(t, sum(), target)
	})
}
