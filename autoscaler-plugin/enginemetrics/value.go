package enginemetrics

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// Flaw says why a measured number cannot be used. The empty Flaw means that it can.
type Flaw string

// What can be wrong with a measured number.
const (
	None       Flaw = ""
	Absent     Flaw = "absent"
	NotANumber Flaw = "not_a_number"
	Infinite   Flaw = "infinite"
	Negative   Flaw = "negative"
	// AboveOne is a share above 1, most often a percentage that was not divided by 100.
	AboveOne Flaw = "above_one"
	// TooLarge is a gauge above 1e9, or a counter above 2^53, where floats stop counting.
	TooLarge Flaw = "too_large"
	// Unreadable: the line is malformed or its value is not a number.
	Unreadable Flaw = "unreadable"
	// Contradictory: the same series appears twice with different values.
	Contradictory Flaw = "contradictory"
	// RankMissing: a data-parallel rank shows another gauge but not this one.
	RankMissing Flaw = "rank_missing"
	// Mismatch: there are series of this name, all of other models.
	Mismatch Flaw = "label_mismatch"
	// NotShown: engines of this dialect show this gauge, and this engine does not.
	NotShown Flaw = "not_shown"
)

// flaws are those that a Value can carry without a number, in the order in which one of several
// is kept.
var flaws = [...]Flaw{NotANumber, Infinite, Negative, AboveOne, TooLarge, Unreadable, Contradictory, RankMissing, Mismatch, NotShown}

// rank is a flaw's place in that order.
func (f Flaw) rank() int { return slices.Index(flaws[:], f) }

// Value is a measured number. Its zero value is absent. It takes no more room than a float64: it
// holds the bits of one, plus one, so that no number is zero but the NaN whose bits are all set.
// A flaw without a number is a NaN with the flaw's rank in it; every other NaN is the same one.
type Value struct{ bits uint64 }

// nan is the NaN of math.NaN, and flawShift where a flaw's rank is in one.
const (
	nan       = 0x7FF8000000000001
	flawShift = 32
)

// Of returns a present value, whatever f is.
func Of(f float64) Value {
	if math.IsNaN(f) {
		return Value{nan + 1}
	}
	return Value{math.Float64bits(f) + 1}
}

// Flawed returns a value that has no number, and why.
func Flawed(f Flaw) Value { return Value{nan + 1 + uint64(max(f.rank(), 0))<<flawShift} }

// IsZero tells that the value is absent; it makes the JSON tag omitzero drop it.
func (v Value) IsZero() bool { return v.bits == 0 }

// Raw returns the number as it was measured, 0 where it is absent.
func (v Value) Raw() float64 {
	if v.bits == 0 {
		return 0
	}
	return math.Float64frombits(v.bits - 1)
}

// Or is Raw, and f where the number is absent.
func (v Value) Or(f float64) float64 {
	if v.bits == 0 {
		return f
	}
	return v.Raw()
}

// Get returns the number and None, or 0 and the flaw that forbids its use.
// Amounts, rates and durations are never negative, so a negative one is a flaw.
func (v Value) Get() (float64, Flaw) {
	f := v.Raw()
	switch {
	case v.IsZero():
		return 0, Absent
	case math.IsNaN(f):
		return 0, flaws[(v.bits-1-nan)>>flawShift]
	case math.IsInf(f, 0):
		return 0, Infinite
	case f < 0:
		return 0, Negative
	}
	return f + 0, None // + 0 turns the negative zero into the plain one
}

// Share is Get for a number that must lie within [0, 1].
func (v Value) Share() (float64, Flaw) {
	f, flaw := v.Get()
	if flaw == None && f > 1 {
		return 0, AboveOne
	}
	return f, flaw
}

// String writes the number, or the flaw of one without a number.
func (v Value) String() string {
	if _, flaw := v.Get(); v.IsZero() || math.IsNaN(v.Raw()) && flaw != NotANumber {
		return string(flaw)
	}
	return Text(v.Raw())
}

// Text writes a number as short as it can be, and as Prometheus would.
func Text(f float64) string {
	if math.IsInf(f, 1) {
		return "+Inf"
	}
	return strconv.FormatFloat(f, 'g', -1, 64)
}

// MarshalJSON writes null for an absent value, a number for a finite one and the strings "NaN",
// "+Inf" and "-Inf", which JSON has no numbers for, or the flaw of one without a number.
func (v Value) MarshalJSON() ([]byte, error) {
	switch {
	case v.IsZero():
		return []byte("null"), nil
	case math.IsNaN(v.Raw()) || math.IsInf(v.Raw(), 0):
		return strconv.AppendQuote(nil, v.String()), nil
	}
	return json.Marshal(v.Raw())
}

// UnmarshalJSON reads what MarshalJSON writes, and "Inf", and rejects everything else.
func (v *Value) UnmarshalJSON(b []byte) error {
	b = bytes.TrimSpace(b)
	switch string(b) {
	case "null":
		*v = Value{}
		return nil
	case `"NaN"`:
		*v = Of(math.NaN())
		return nil
	case `"+Inf"`, `"Inf"`:
		*v = Of(math.Inf(1))
		return nil
	case `"-Inf"`:
		*v = Of(math.Inf(-1))
		return nil
	}
	for _, f := range flaws[1:] {
		if string(b) == strconv.Quote(string(f)) {
			*v = Flawed(f)
			return nil
		}
	}
	var f float64
	if err := json.Unmarshal(b, &f); err != nil {
		const most = 60
		text := string(b)
		if len(text) > most {
			text = text[:most] + "..."
		}
		return fmt.Errorf(`is %s: must be a number, null, "NaN", "+Inf" or "-Inf"`, text)
	}
	*v = Of(f)
	return nil
}

// present tells whether there is a number that can be used.
func (v Value) present() bool {
	_, flaw := v.Get()
	return flaw == None
}

// flawed tells whether there is something that cannot be used.
func (v Value) flawed() bool { return !v.IsZero() && !v.present() }

// number is 0 where there is none that can be used.
func (v Value) number() float64 {
	f, _ := v.Get()
	return f
}

// The largest values that are believed.
const (
	maxGauge   = 1e9
	maxCounter = 1 << 53
	// rounding is how far above its limit a usage may be by rounding alone.
	rounding = 1e-9
)

// check classifies a number of the outside that must be in [0, limit].
func check(f, limit float64) Value {
	switch n, flaw := Of(f).Get(); {
	case flaw != None:
		return Flawed(flaw)
	case n > limit:
		return Flawed(TooLarge)
	default:
		return Of(n)
	}
}

// usage classifies a share of something, scaled so that full is 1 or 100.
// What exceeds 1 by rounding alone is 1.
func usage(f float64, percent bool) Value {
	if percent {
		f /= 100
	}
	v := check(f, math.MaxFloat64)
	switch n, flaw := v.Get(); {
	case flaw != None || n <= 1:
		return v
	case n <= 1+rounding:
		return Of(1)
	}
	return Flawed(AboveOne)
}

// higher is the larger of two values; a number wins over none, and of two flaws the one that
// comes first.
func higher(a, b Value) Value {
	x, flawA := a.Get()
	y, flawB := b.Get()
	switch {
	case flawA != None && flawB != None:
		return worse(a, b)
	case flawA != None || flawB == None && y > x:
		return b
	}
	return a
}

// worse prefers a flaw to a number and to none and, of two flaws, the one that comes first.
func worse(a, b Value) Value {
	_, flawA := a.Get()
	_, flawB := b.Get()
	switch {
	case a.flawed() && b.flawed() && flawB.rank() < flawA.rank(), b.flawed() && !a.flawed(), a.IsZero() && !b.IsZero():
		return b
	}
	return a
}
