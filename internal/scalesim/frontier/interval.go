package frontier

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
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

func mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}

// Mean gives the mean and its interval by Student's t distribution: right for values that
// are about normal, as the GPU-hours of one policy under different seeds. It needs two.
func Mean(values []float64, confidence float64) (Interval, error) {
	if err := check(values, confidence, 2); err != nil {
		return Interval{}, err
	}
	values = sorted(values)
	m, n := mean(values), float64(len(values))
	ss := 0.0
	for _, v := range values {
		ss += (v - m) * (v - m)
	}
	half := Student(1-(1-confidence)/2, len(values)-1) * math.Sqrt(ss/(n-1)/n)
	return Interval{Mean: m, Low: m - half, High: m + half, N: len(values)}, nil
}

// Bootstrap gives the mean and its percentile interval from samples drawn again with a
// seed: for values that are not normal, as shares near 1. It needs two values.
func Bootstrap(values []float64, confidence float64, draws int, seed uint64) (Interval, error) {
	if err := check(values, confidence, 2); err != nil {
		return Interval{}, err
	}
	if draws < 100 || draws > 1_000_000 {
		return Interval{}, fmt.Errorf("draws are %d: they must be 100 to 1,000,000", draws)
	}
	values = sorted(values)
	rng := rand.New(rand.NewPCG(seed, 0))
	means := make([]float64, draws)
	for d := range means {
		sum := 0.0
		for range values {
			sum += values[rng.IntN(len(values))]
		}
		means[d] = sum / float64(len(values))
	}
	slices.Sort(means)
	tail := (1 - confidence) / 2
	low := means[int(tail*float64(draws-1))]
	high := means[int(math.Ceil((1-tail)*float64(draws-1)))]
	return Interval{Mean: mean(values), Low: low, High: high, N: len(values)}, nil
}

// Paired gives the interval of the mean of a[i]-b[i], by Student's t: for two policies on
// the same seeds, which is much narrower than two intervals apart.
func Paired(a, b []float64, confidence float64) (Interval, error) {
	if len(a) != len(b) {
		return Interval{}, fmt.Errorf("pairs of %d and %d values: both must have one for each seed", len(a), len(b))
	}
	d := make([]float64, len(a))
	for i := range a {
		d[i] = a[i] - b[i]
	}
	return Mean(d, confidence)
}

// Student is the quantile p of Student's t distribution with df degrees of freedom: the x
// that a share p of it lies below. p is between 0 and 1, df at least 1.
func Student(p float64, df int) float64 {
	switch {
	case p == 0.5:
		return 0
	case p < 0.5:
		return -Student(1-p, df)
	}
	nu := float64(df)
	// P(T > x) = I(nu/(nu+x^2); nu/2, 1/2)/2, which falls with x.
	tail := func(x float64) float64 { return beta(nu/(nu+x*x), nu/2, 0.5) / 2 }
	low, high := 0.0, 1.0
	for tail(high) > 1-p && high < 1e12 {
		high *= 2
	}
	for range 200 {
		mid := (low + high) / 2
		if tail(mid) > 1-p {
			low = mid
			continue
		}
		high = mid
	}
	return (low + high) / 2
}

// beta is the regularised incomplete beta function, by its continued fraction (Lentz).
func beta(x, a, b float64) float64 {
	if x <= 0 {
		return 0
	}
	if x >= 1 {
		return 1
	}
	if x > (a+1)/(a+b+2) {
		return 1 - beta(1-x, b, a)
	}
	lga, _ := math.Lgamma(a)
	lgb, _ := math.Lgamma(b)
	lgab, _ := math.Lgamma(a + b)
	front := math.Exp(lgab - lga - lgb + a*math.Log(x) + b*math.Log1p(-x))
	const tiny = 1e-300
	c, d := 1.0, 1-(a+b)*x/(a+1)
	if math.Abs(d) < tiny {
		d = tiny
	}
	d = 1 / d
	h := d
	for m := 1.0; m < 500; m++ {
		for _, num := range []float64{
			m * (b - m) * x / ((a + 2*m - 1) * (a + 2*m)),
			-(a + m) * (a + b + m) * x / ((a + 2*m) * (a + 2*m + 1)),
		} {
			if d = 1 + num*d; math.Abs(d) < tiny {
				d = tiny
			}
			if c = 1 + num/c; math.Abs(c) < tiny {
				c = tiny
			}
			d = 1 / d
			h *= d * c
		}
		if math.Abs(d*c-1) < 1e-15 {
			break
		}
	}
	return front * h / a
}
