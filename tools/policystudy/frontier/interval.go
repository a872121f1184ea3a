package frontier

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"
)

// Interval is a mean with its interval of confidence.
type Interval struct {
	Mean float64 `json:"mean"`
	Low  float64 `json:"low"`
	High float64 `json:"high"`
	// N is the number of values.
	N int `json:"n"`
}

// ErrFew says that there are too few values.
var ErrFew = errors.New("too few values")

func check(values []float64, confidence float64, least int) error {
	if len(values) < least {
		return fmt.Errorf("an interval of %d values: %w, it needs %d", len(values), ErrFew, least)
	}
	if !(confidence > 0 && confidence < 1) {
		return fmt.Errorf("confidence is %v: it must be between 0 and 1, as 0.95", confidence)
	}
	for i, v := range values {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Errorf("value %d is %v: it must be finite", i, v)
		}
	}
	return nil
}

// sorted gives the values in order, so that no sum depends on the order they came in.
func sorted(values []float64) []float64 {
	s := slices.Clone(values)
	slices.Sort(s)
	return s
}

// Mean gives the mean and its interval by Student's t distribution: right for values that
// are about normal, as the GPU-hours of one policy under different seeds. It needs two.
func Mean(values []float64, confidence float64) (Interval, error) {
	if err := check(values, confidence, 2); err != nil {
		return Interval{}, err
	}
	n := float64(len(values))
	m, deviation := stat.MeanStdDev(sorted(values), nil)
	t := distuv.StudentsT{Sigma: 1, Nu: n - 1}.Quantile(1 - (1-confidence)/2)
	half := t * stat.StdErr(deviation, n)
	return Interval{Mean: m, Low: m - half, High: m + half, N: len(values)}, nil
}
