// Package allocate shares a number of replicas out over the variants of a model.
//
// It guarantees that the answer depends on nothing but its input and not on the order of
// the variants; that a variant keeps its least number; that one that cannot be placed does
// not grow; and that where the number cannot be reached the answer is as near as it can be.
package allocate

import (
	"cmp"
	"math"
	"slices"
)

// Unbounded as the upper bound of a number of replicas is none.
const Unbounded = math.MaxInt32

// Variant is one way to run the model.
type Variant struct {
	Name string
	// Cost of a replica-hour, and Slots, the requests that a replica runs at once; 0: not known.
	// See Prices.
	Cost  float64
	Slots int
	// Current is how many there are.
	Current int
	// Min is how many of them stay.
	Min int
	// Unplaceable: there is no place for another one now.
	Unplaceable bool
}

// Prices returns what a slot of each variant costs. Where the slots of one of them are not known
// it is what a replica costs. The cheapest variant grows first, the most expensive shrinks first.
func Prices(variants []Variant) []float64 {
	prices, sized := make([]float64, len(variants)), true
	for _, v := range variants {
		sized = sized && v.Slots > 0
	}
	for i, v := range variants {
		if prices[i] = v.Cost; sized {
			prices[i] /= float64(v.Slots)
		}
	}
	return prices
}

// Spread changes want, or the current counts where it is nil, so that they add up to total.
// What was to be added is left away before anything is removed that is there.
func Spread(total int, variants []Variant, want map[string]int) map[string]int {
	order := slices.Clone(variants)
	for i, price := range Prices(variants) {
		order[i].Cost = price
	}
	slices.SortFunc(order, func(a, b Variant) int { return cmp.Or(cmp.Compare(a.Cost, b.Cost), cmp.Compare(a.Name, b.Name)) })
	counts := make(map[string]int, len(order))
	sum := 0
	for _, v := range order {
		n := v.Current
		if w, ok := want[v.Name]; ok {
			n = w
		}
		counts[v.Name] = max(n, 0)
		sum += counts[v.Name]
	}
	for _, v := range order {
		if sum >= total {
			break
		}
		most := Unbounded
		if v.Unplaceable {
			most = v.Current
		}
		add := min(total-sum, max(most-counts[v.Name], 0))
		counts[v.Name] += add
		sum += add
	}
	slices.Reverse(order)
	shrink := func(least func(Variant) int) {
		for _, v := range order {
			if sum <= total {
				return
			}
			take := min(sum-total, max(counts[v.Name]-max(least(v), v.Min, 0), 0))
			counts[v.Name] -= take
			sum -= take
		}
	}
	shrink(func(v Variant) int { return v.Current })
	shrink(func(Variant) int { return 0 })
	return counts
}

// Sum adds counts up.
func Sum(counts map[string]int) int {
	sum := 0
	for _, n := range counts {
		sum += n
	}
	return sum
}
