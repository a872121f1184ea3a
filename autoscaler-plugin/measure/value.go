// Package measure holds one type: a number that was measured outside and may be
// absent or absurd.
//
// It guarantees that a number is classified before it is used: whoever wants the
// float asks for it with Get and is handed the flaw beside it. A Value survives a
// round trip through JSON whatever it holds, also NaN and the infinities, so that
// a recorded input can be replayed bit for bit.
package measure

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
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
	// AboveOne is a share above 1, most often a percentage that nobody divided by 100.
	AboveOne Flaw = "above_one"
)

// Value is a measured number. Its zero value is absent. It takes no more room than a
// float64: it holds the bits of one, plus one, so that no number is zero but the NaN whose
// bits are all set, which Of replaces by another NaN.
type Value struct{ bits uint64 }

// Of returns a present value, whatever f is.
func Of(f float64) Value {
	if b := math.Float64bits(f) + 1; b != 0 {
		return Value{b}
	}
	return Value{math.Float64bits(math.NaN()) + 1}
}

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
		return 0, NotANumber
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

// String writes the number, or "absent".
func (v Value) String() string {
	if v.IsZero() {
		return "absent"
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

// MarshalJSON writes null for an absent value, a number for a finite one and the
// strings "NaN", "+Inf" and "-Inf", which JSON has no numbers for.
func (v Value) MarshalJSON() ([]byte, error) {
	switch {
	case v.IsZero():
		return []byte("null"), nil
	case math.IsNaN(v.Raw()) || math.IsInf(v.Raw(), 0):
		return strconv.AppendQuote(nil, v.String()), nil
	}
	return json.Marshal(v.Raw())
}

// UnmarshalJSON reads what MarshalJSON writes, and "Inf", and refuses everything else.
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
