package scalesim

import (
	"fmt"
	"math/rand/v2"
)

// Lengths draws the tokens of a request.
type Lengths interface {
	Draw(*rand.Rand) (context, generated int32)
}

// Empirical draws pairs of lengths that occurred together in a trace.
type Empirical struct{ pairs [][2]int32 }

// NewEmpirical takes the lengths of a trace, which must have arrivals.
func NewEmpirical(t *Trace) (*Empirical, error) {
	if len(t.Arrivals) == 0 {
		return nil, fmt.Errorf("lengths from trace %q: it has no arrivals", t.Name)
	}
	e := &Empirical{pairs: make([][2]int32, len(t.Arrivals))}
	for i := range t.Arrivals {
		e.pairs[i] = [2]int32{t.Arrivals[i].Context, t.Arrivals[i].Generated}
	}
	return e, nil
}

// Draw implements Lengths.
func (e *Empirical) Draw(rng *rand.Rand) (context, generated int32) {
	p := e.pairs[rng.IntN(len(e.pairs))]
	return p[0], p[1]
}
