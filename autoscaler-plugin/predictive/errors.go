package predictive

import (
	"math"
	"slices"
)

const (
	// Errors are kept as the logarithm of what came over what was the level, in classes.
	classes    = 64
	classWidth = 0.05
	leastError = -0.8
	// priorCount is what the prior is worth in independent errors, and priorScale the mean
	// growth that it expects (a logarithm). sharedCount is what the errors of all conditions are
	// worth beside those of one.
	priorCount  = 3
	sharedCount = 10
	priorScale  = 0.06
)

// seasonEdges part the conditions: how far what the season says is coming is above the base,
// as a logarithm.
var seasonEdges = [...]float64{-0.1, 0.1, 0.3}

const conditions = len(seasonEdges) + 1

// Errors is how demand turned out, compared with the level at a time before: a histogram of
// logarithms for each condition that held then.
type Errors struct {
	// Count has classes entries for each condition; N is their sums. Both count independent
	// errors.
	Count []float32 `json:"count,omitempty"`
	N     []float32 `json:"n,omitempty"`
}

func (e *Errors) clone() Errors { return Errors{slices.Clone(e.Count), slices.Clone(e.N)} }

func (e *Errors) valid() bool {
	good := func(v float32) bool { return v >= 0 && !math.IsInf(float64(v), 1) }
	bad := func(v float32) bool { return !good(v) }
	return (len(e.Count) == 0 && len(e.N) == 0 || len(e.Count) == classes*conditions && len(e.N) == conditions) &&
		!slices.ContainsFunc(e.Count, bad) && !slices.ContainsFunc(e.N, bad)
}

// condition numbers that of a moment.
func condition(season float64) int {
	n := 0
	for n < len(seasonEdges) && season >= seasonEdges[n] {
		n++
	}
	return n
}

// record adds an error with a weight.
func (e *Errors) record(condition int, err, weight float64) {
	if len(e.Count) == 0 {
		e.Count, e.N = make([]float32, classes*conditions), make([]float32, conditions)
	}
	k := min(max(int((err-leastError)/classWidth), 0), classes-1)
	e.Count[condition*classes+k] += float32(weight)
	e.N[condition] += float32(weight)
}

// forget multiplies all.
func (e *Errors) forget(f float64) {
	for i := range e.Count {
		e.Count[i] *= float32(f)
	}
	for i := range e.N {
		e.N[i] *= float32(f)
	}
}

// exceeded gives the error that is exceeded with no more than a probability. The errors of the
// condition count, together with sharedCount of those of all conditions, and these together
// with priorCount of the prior's.
func (e *Errors) exceeded(condition int, probability float64) float64 {
	var mix [classes]float64
	total, mine := float64(priorCount), 0.0
	for k := range mix {
		y := leastError + float64(k)*classWidth
		if y >= -classWidth/2 {
			mix[k] = priorCount * (math.Exp(-math.Max(y, 0)/priorScale) - math.Exp(-(y+classWidth)/priorScale))
		}
	}
	if len(e.Count) > 0 {
		for c := range conditions {
			total += float64(e.N[c])
			for k, v := range e.Count[c*classes : (c+1)*classes] {
				mix[k] += float64(v)
			}
		}
		mine = float64(e.N[condition])
	}
	tail := 0.0
	for k := classes - 1; k >= 0; k-- {
		mass := mix[k] * sharedCount / total
		if mine > 0 {
			mass += float64(e.Count[condition*classes+k])
		}
		mass /= sharedCount + mine
		if tail+mass > probability {
			return leastError + classWidth*(float64(k+1)-(probability-tail)/mass)
		}
		tail += mass
	}
	return leastError
}
