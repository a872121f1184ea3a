package scalesim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// Streams keep what is drawn for one purpose apart from the others, under one seed.
const (
	streamSample = iota + 1
	streamArrivals
	streamLengths
	streamColdStart
	streamClients = 1 << 32
)

// Lengths draws the tokens of a request.
type Lengths interface {
	Draw(*rand.Rand) (context, generated int32)
}

// LogNormal draws both lengths from lognormal distributions, cut to 1..Limit (0: 131,072).
type LogNormal struct {
	ContextMedian   float64 `json:"context_median"`
	ContextSigma    float64 `json:"context_sigma"`
	GeneratedMedian float64 `json:"generated_median"`
	GeneratedSigma  float64 `json:"generated_sigma"`
	Limit           int32   `json:"limit,omitempty"`
}

// DefaultLengths are conversations: about the medians of azure-llm-2023-conv.csv.
func DefaultLengths() LogNormal {
	return LogNormal{ContextMedian: 1000, ContextSigma: 1, GeneratedMedian: 150, GeneratedSigma: 0.8}
}

// Draw implements Lengths.
func (l LogNormal) Draw(rng *rand.Rand) (context, generated int32) {
	limit := float64(l.Limit)
	if l.Limit <= 0 {
		limit = 131072
	}
	draw := func(median, sigma float64) int32 {
		x := median * math.Exp(sigma*rng.NormFloat64())
		if !(x > 1) {
			return 1
		}
		return int32(math.Min(x, limit))
	}
	context = draw(l.ContextMedian, l.ContextSigma)
	return context, draw(l.GeneratedMedian, l.GeneratedSigma)
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

// Poisson makes a trace whose arrivals are a Poisson process with the rate (1/s) that the
// function gives for each time, and is at most peak: it is cut there. Lengths and speed
// give the service times.
func Poisson(seed uint64, span time.Duration, rate func(time.Duration) float64, peak float64, lengths Lengths, speed Speed) (*Trace, error) {
	if span <= 0 || span > maxDuration || !(peak > 0) || math.IsInf(peak, 1) || span.Seconds()*peak > maxArrivals {
		return nil, fmt.Errorf("a poisson trace of %v with at most %v arrivals/s: both must be above 0 and at most %d arrivals come of them", span, peak, maxArrivals)
	}
	arrive := rand.New(rand.NewPCG(seed, streamArrivals))
	draw := rand.New(rand.NewPCG(seed, streamLengths))
	t := &Trace{Name: "poisson", Span: span}
	for at := 0.0; ; {
		at += arrive.ExpFloat64() / peak * float64(time.Second)
		if at >= float64(span) {
			return t, nil
		}
		now := time.Duration(at)
		if arrive.Float64()*peak >= rate(now) {
			continue
		}
		c, g := lengths.Draw(draw)
		t.Arrivals = append(t.Arrivals, Arrival{At: now, Service: speed.Service(c, g), Context: c, Generated: g})
	}
}

// PoissonExponential makes a trace of an M/M/c queue: Poisson arrivals at a rate (1/s), and
// exponential service times with a mean.
func PoissonExponential(seed uint64, span time.Duration, rate float64, mean time.Duration) (*Trace, error) {
	if mean <= 0 || mean > maxDuration/100 {
		return nil, fmt.Errorf("a mean service time of %v: it must be above 0 and at most %v", mean, maxDuration/100)
	}
	t, err := Poisson(seed, span, func(time.Duration) float64 { return rate }, rate, LogNormal{}, Speed{})
	if err != nil {
		return nil, err
	}
	draw := rand.New(rand.NewPCG(seed, streamLengths))
	for i := range t.Arrivals {
		s := time.Duration(draw.ExpFloat64() * float64(mean))
		t.Arrivals[i] = Arrival{At: t.Arrivals[i].At, Service: max(s, 1)}
	}
	return t, nil
}
