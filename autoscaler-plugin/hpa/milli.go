package hpa

import (
	"fmt"
	"math"
)

// Milli is a metric's value in thousandths, as Kubernetes' quantities are: 0.7 is 700.
// A number is exact once it is a Milli.
type Milli int64

// MaxMilli is the largest value a metric may have. Sums of as many as there can be
// replicas stay exact.
const MaxMilli Milli = 1 << 53

// Fault says why a number is no value.
type Fault string

// What can be wrong with a number.
const (
	FaultNaN      Fault = "not a number"
	FaultInfinite Fault = "infinite"
	FaultNegative Fault = "negative"
	FaultTooLarge Fault = "too large"
)

// Error makes a Fault an error.
func (f Fault) Error() string { return "the value is " + string(f) }

// FromFloat takes a number as engines report it, to the nearest thousandth, halves away
// from zero. The error is a Fault; the value is then 0 and must not be used: the replica's
// metric is missing.
func FromFloat(v float64) (Milli, error) {
	switch {
	case math.IsNaN(v):
		return 0, FaultNaN
	case math.IsInf(v, 0):
		return 0, FaultInfinite
	case v < 0:
		return 0, FaultNegative
	case v > float64(MaxMilli)/1000:
		return 0, FaultTooLarge
	}
	return Milli(math.Round(v * 1000)), nil
}

// usable tells whether the value can be.
func (m Milli) usable() bool { return m >= 0 && m <= MaxMilli }

// String writes the value as a decimal number.
func (m Milli) String() string {
	if m%1000 == 0 {
		return fmt.Sprint(int64(m / 1000))
	}
	sign, u := "", uint64(m)
	if m < 0 {
		sign, u = "-", -u
	}
	return fmt.Sprintf("%s%d.%03d", sign, u/1000, u%1000)
}
