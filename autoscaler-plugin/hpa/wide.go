package hpa

import (
	"cmp"
	"math"
	"math/bits"
)

// wide is an unsigned number of 128 bits. The callers' limits (MaxCount, MaxMilli and
// maxTolerance) keep every product below its end.
type wide struct{ hi, lo uint64 }

func wideOf(n uint64) wide { return wide{lo: n} }

func (w wide) plus(o wide) wide {
	lo, carry := bits.Add64(w.lo, o.lo, 0)
	return wide{w.hi + o.hi + carry, lo}
}

func (w wide) mul(n uint64) wide {
	hi, lo := bits.Mul64(w.lo, n)
	return wide{hi + w.hi*n, lo}
}

// diff is the distance between two numbers.
func (w wide) diff(o wide) wide {
	if w.cmp(o) < 0 {
		w, o = o, w
	}
	lo, borrow := bits.Sub64(w.lo, o.lo, 0)
	hi, _ := bits.Sub64(w.hi, o.hi, borrow)
	return wide{hi, lo}
}

func (w wide) cmp(o wide) int {
	return cmp.Or(cmp.Compare(w.hi, o.hi), cmp.Compare(w.lo, o.lo))
}

// quotients divides by d, which is above 0, rounding down and up. What does not fit is
// the largest number.
func (w wide) quotients(d uint64) (floor, ceil uint64) {
	if w.hi >= d {
		return math.MaxUint64, math.MaxUint64
	}
	q, rest := bits.Div64(w.hi, w.lo, d)
	if rest == 0 || q == math.MaxUint64 {
		return q, q
	}
	return q, q + 1
}

// countOf is a replica count, MaxCount at most.
func countOf(n uint64) int { return int(min(n, MaxCount)) }

// String writes a number of thousandths.
func (w wide) String() string {
	if w.hi > 0 || w.lo > uint64(math.MaxInt64) {
		return "more than " + Milli(math.MaxInt64).String()
	}
	return Milli(w.lo).String()
}
