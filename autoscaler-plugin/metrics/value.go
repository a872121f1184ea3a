package metrics

import "math"

// State tells whether there is a number behind a Value.
type State string

// The states of a Value. The zero Value is Absent.
const (
	// Absent: the engine does not show this.
	Absent State = ""
	// Present: Number is what the engine said.
	Present State = "present"
	// Bad: the engine said something that cannot be used; Reason says why.
	Bad State = "bad"
)

// Reason is why a Value is Bad.
type Reason string

// Reasons, in the order in which one of several is kept.
const (
	// NotANumber: the value is NaN, as llama.cpp shows rates before the first request.
	NotANumber Reason = "nan"
	// Infinite: the value is an infinity.
	Infinite Reason = "infinite"
	// Negative: a count, a usage or a sum is below zero.
	Negative Reason = "negative"
	// AboveOne: a usage is above 1. A percentage looks like this; see Dialect.KVPercent.
	AboveOne Reason = "above_one"
	// TooLarge: a gauge above 1e9, or a counter above 2^53, where floats stop counting.
	TooLarge Reason = "too_large"
	// Unreadable: the line is malformed or its value is no number.
	Unreadable Reason = "unreadable"
	// Contradictory: the same series appears twice with different values.
	Contradictory Reason = "contradictory"
	// RankMissing: a data-parallel rank shows another gauge but not this one.
	RankMissing Reason = "rank_missing"
	// Mismatch: there are series of this name, all of other models.
	Mismatch Reason = "label_mismatch"
	// NotShown: an engine of this dialect shows this gauge, and this one does not.
	NotShown Reason = "not_shown"
)

// rank orders the reasons, so that which one is kept does not depend on the
// order of the input.
func (r Reason) rank() int {
	for i, known := range [...]Reason{NotANumber, Infinite, Negative, AboveOne, TooLarge,
		Unreadable, Contradictory, RankMissing, Mismatch, NotShown} {
		if r == known {
			return i
		}
	}
	return math.MaxInt
}

// Value is a number, the absence of one, or the reason why there is none.
// Number is 0 unless State is Present, and then it is finite and not negative.
type Value struct {
	State  State   `json:"state,omitempty"`
	Number float64 `json:"number,omitempty"`
	Reason Reason  `json:"reason,omitempty"`
}

// Of makes a present value. A number that is NaN, infinite or negative makes a
// bad one.
func Of(v float64) Value { return check(v, math.MaxFloat64) }

// BadValue makes a bad value.
func BadValue(r Reason) Value { return Value{State: Bad, Reason: r} }

// Get returns the number and whether there is one.
func (v Value) Get() (float64, bool) { return v.Number, v.State == Present }

// The largest values that are believed.
const (
	maxGauge   = 1e9
	maxCounter = 1 << 53
	// rounding is how far above its limit a usage may be by rounding alone.
	rounding = 1e-9
)

// check classifies a number of the outside that must be in [0, limit].
func check(v, limit float64) Value {
	switch {
	case math.IsNaN(v):
		return BadValue(NotANumber)
	case math.IsInf(v, 0):
		return BadValue(Infinite)
	case v < 0:
		return BadValue(Negative)
	case v > limit:
		return BadValue(TooLarge)
	case v == 0:
		return Value{State: Present} // also for -0
	}
	return Value{State: Present, Number: v}
}

// usage classifies a share of something, scaled so that full is 1 or 100.
// What exceeds 1 by rounding alone is 1.
func usage(v float64, percent bool) Value {
	if percent {
		v /= 100
	}
	c := check(v, math.MaxFloat64)
	switch {
	case c.State != Present || c.Number <= 1:
		return c
	case c.Number <= 1+rounding:
		return Value{State: Present, Number: 1}
	}
	return BadValue(AboveOne)
}

// higher is the larger of two values; a number wins over none, and of two bad
// ones the reason that comes first.
func higher(a, b Value) Value {
	switch {
	case a.State == Present && b.State == Present:
		if b.Number > a.Number {
			return b
		}
		return a
	case a.State == Present:
		return a
	case b.State == Present:
		return b
	}
	return worse(a, b)
}

// worse prefers a bad value to any other and, of two, the reason that comes first.
func worse(a, b Value) Value {
	switch {
	case a.State == Bad && b.State == Bad:
		if b.Reason.rank() < a.Reason.rank() {
			return b
		}
		return a
	case a.State == Bad:
		return a
	case b.State == Bad:
		return b
	case a.State == Absent:
		return b
	}
	return a
}
