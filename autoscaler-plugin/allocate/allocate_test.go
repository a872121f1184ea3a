package allocate_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/autoscaler-plugin/allocate"
)

func v(name string, cost float64, current int) allocate.Variant {
	return allocate.Variant{Name: name, Cost: cost, Current: current}
}

func TestSpread(t *testing.T) {
	unplaceable := v("cheap", 1, 1)
	unplaceable.Unplaceable = true
	least := v("dear", 9, 3)
	least.Min = 2
	for _, c := range []struct {
		name     string
		total    int
		variants []allocate.Variant
		want     map[string]int
		is       map[string]int
	}{
		{name: "the cheapest grows", total: 5, variants: []allocate.Variant{v("dear", 9, 1), v("cheap", 1, 1)}, is: map[string]int{"dear": 1, "cheap": 4}},
		{name: "ties by name", total: 3, variants: []allocate.Variant{v("b", 1, 1), v("a", 1, 1)}, is: map[string]int{"a": 2, "b": 1}},
		{name: "the most expensive shrinks", total: 3, variants: []allocate.Variant{v("dear", 9, 2), v("cheap", 1, 3)}, is: map[string]int{"dear": 0, "cheap": 3}},
		{name: "one without a place does not grow", total: 4, variants: []allocate.Variant{v("dear", 9, 1), unplaceable}, is: map[string]int{"dear": 3, "cheap": 1}},
		{name: "one with a least number keeps it", total: 0, variants: []allocate.Variant{least, v("cheap", 1, 1)}, is: map[string]int{"dear": 2, "cheap": 0}},
		{name: "what was to be added goes first", total: 4, variants: []allocate.Variant{v("dear", 9, 2), v("cheap", 1, 1)}, want: map[string]int{"dear": 2, "cheap": 5},
			is: map[string]int{"dear": 2, "cheap": 2}},
		{name: "by the cost of a slot", total: 3, variants: []allocate.Variant{
			{Name: "large", Cost: 2, Slots: 16, Current: 1}, {Name: "small", Cost: 1, Slots: 4, Current: 1}}, is: map[string]int{"large": 2, "small": 1}},
		{name: "by that of a replica where slots are not known", total: 3, variants: []allocate.Variant{
			{Name: "large", Cost: 2, Slots: 16, Current: 1}, {Name: "small", Cost: 1, Current: 1}}, is: map[string]int{"large": 1, "small": 2}},
		{name: "nothing can grow", total: 4, variants: []allocate.Variant{unplaceable}, is: map[string]int{"cheap": 1}},
		{name: "no variants", total: 4, is: map[string]int{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.is, allocate.Spread(c.total, c.variants, c.want))
		})
	}
}

func TestSpreadReachesWhatCanBeReached(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var variants []allocate.Variant
		low, high := 0, 0
		for i := range rapid.IntRange(1, 5).Draw(t, "n") {
			v := allocate.Variant{Name: fmt.Sprint("v", i), Cost: float64(rapid.IntRange(1, 3).Draw(t, "cost")), Min: rapid.IntRange(0, 2).Draw(t, "min")}
			v.Current = v.Min + rapid.IntRange(0, 4).Draw(t, "more")
			v.Unplaceable = rapid.Bool().Draw(t, "unplaceable")
			variants = append(variants, v)
			low += v.Min
			if v.Unplaceable {
				high += v.Current
			} else {
				high += allocate.Unbounded
			}
		}
		total := rapid.IntRange(0, 30).Draw(t, "total")
		got := allocate.Spread(total, variants, nil)
		require.Equal(t, min(max(total, low), high), allocate.Sum(got))
		rand.Shuffle(len(variants), func(i, j int) { variants[i], variants[j] = variants[j], variants[i] })
		require.Equal(t, got, allocate.Spread(total, variants, nil))
	})
}
