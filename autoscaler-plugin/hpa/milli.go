package hpa

import (
	"fmt"
	"math"

	"remuda/autoscaler-plugin/enginemetrics"
)

// Milli is a metric's value in thousandths, as Kubernetes' quantities are: 0.7 is 700.
// A number is exact once it is a Milli.
type Milli int64

// MaxMilli is the largest value a metric may have. Sums of as many as there can be
// replicas stay exact.
const MaxMilli Milli = 1 << 53

// FromFloat takes a number as engines report it, to the nearest thousandth, halves away
// from zero. Where there is a flaw the value is 0 and must not be used: the replica's metric is missing.
func FromFloat(f float64) (Milli, enginemetrics.Flaw) {
	f, flaw := enginemetrics.Of(f).Get()
	switch {
	case flaw != enginemetrics.None:
		return 0, flaw
	case f > float64(MaxMilli)/1000:
		return 0, enginemetrics.TooLarge
	}
	return Milli(math.Round(f * 1000)), enginemetrics.None
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
