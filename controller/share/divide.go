package share

import (
	"cmp"
	"math"
	"slices"

	"remuda/controller/api"
)

// Need is what one gateway needs of a resource.
type Need struct {
	Units int
	// Weight is the size of the gateway's part where the needs are above the whole, more than 0.
	Weight float64
	// Credit is how many units the gateway has had too few of in earlier turns, below 0 for too many.
	Credit float64
	// Leaving: the gateway takes no new requests, and has no use for more than it needs.
	Leaving bool
	// Part is what the gateway would get if units could be divided. Divide sets it.
	Part float64
}

// leastPart is the least part of a gateway that needs a unit: it has one for a turn of 16.
const leastPart = 1.0 / 16

// Divide appends to shares the part of each need in whole, by weighted max-min fairness: no gateway
// gets more than it needs while another one gets less than it needs and, divided by the weights, less
// than the first, but for leastPart and what is rounded to whole units. The units that remain then go to the
// largest fractions, with the credits added. What is
// left when all needs are met is divided evenly among those that are not leaving, so that a
// gateway at rest has room for a burst. Single units that remain go to the first ones, after those that would have none.
func Divide(shares []int, whole int, needs []Need) []int {
	rest, open := whole, 0
	for _, n := range needs {
		rest -= n.Units
		if !n.Leaving {
			open++
		}
	}
	if rest < 0 {
		return divideScarce(shares, whole, needs)
	}
	each, extra, none := 0, 0, 0
	if open > 0 {
		each, extra = rest/open, rest%open
	}
	// none are the units for gateways that would have none.
	if each == 0 {
		for _, n := range needs {
			if n.Units == 0 && !n.Leaving && none < extra {
				none++
			}
		}
		extra -= none
	}
	for i := range needs {
		n := &needs[i]
		got := n.Units
		if !n.Leaving {
			got += each
			switch {
			case got == 0 && none > 0:
				got, none = 1, none-1
			case got > 0 && extra > 0:
				got, extra = got+1, extra-1
			}
		}
		n.Part = float64(got)
		shares = append(shares, got)
	}
	return shares
}

// divideScarce is Divide for needs above whole.
func divideScarce(shares []int, whole int, needs []Need) []int {
	needing := 0
	for _, n := range needs {
		needing += min(n.Units, 1)
	}
	least := min(leastPart, float64(whole)/float64(2*needing))
	part := func(i int, level float64) float64 {
		return min(float64(needs[i].Units), max(least, level*needs[i].Weight))
	}
	level := waterLevel(float64(whole), len(needs), part)
	first, rest := len(shares), whole
	order := make([]int, len(needs))
	for i := range needs {
		needs[i].Part = part(i, level)
		got := int(needs[i].Part + tiny)
		shares = append(shares, got)
		rest, order[i] = rest-got, i
	}
	missing := func(i int) float64 { return needs[i].Part - float64(shares[first+i]) }
	due := func(i int) float64 { return missing(i) + needs[i].Credit }
	slices.SortStableFunc(order, func(a, b int) int {
		if d := due(b) - due(a); math.Abs(d) > tiny {
			return cmp.Compare(d, 0)
		}
		return 0
	})
	for _, i := range order {
		if rest > 0 && missing(i) > tiny {
			shares[first+i]++
			rest--
		}
	}
	return shares
}

// tiny is less than two parts differ that are not equal.
const tiny = 1e-6

// waterLevel returns the level at which n parts, which grow with it, are whole together. Without such a
// level, because they are less, it returns a high one.
func waterLevel(whole float64, n int, part func(i int, level float64) float64) float64 {
	low, high := 0.0, float64(api.MaxShareUnits)*maxLevel
	for range 100 { // until the two are neighbours
		level, sum := (low+high)/2, 0.0
		for i := range n {
			sum += part(i, level)
		}
		if sum < whole {
			low = level
		} else {
			high = level
		}
	}
	return high
}

// maxLevel is more than 1 divided by the least weight.
const maxLevel = 1e6
