// Package synthetic makes traces for tests: Poisson arrivals, with lengths of requests from
// lognormal distributions or exponential service times.
package synthetic

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"remuda/tools/policystudy/scalesim"
)

// maxArrivals and maxSpan keep a mistake of a test from filling the memory.
const (
	maxArrivals = 10_000_000
	maxSpan     = 10 * 365 * 24 * time.Hour
)

// Streams keep what is drawn for one purpose apart from the others, under one seed.
const (
	streamArrivals = 2
	streamLengths  = 3
)

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

// Draw implements scalesim.Lengths.
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

// Poisson makes a trace whose arrivals are a Poisson process with the rate (1/s) that the
// function gives for each time, and is at most peak: it is cut there. Lengths and speed
// give the service times.
func Poisson(seed uint64, span time.Duration, rate func(time.Duration) float64, peak float64, lengths scalesim.Lengths, speed scalesim.Speed) (*scalesim.Trace, error) {
	if span <= 0 || span > maxSpan || !(peak > 0) || math.IsInf(peak, 1) || span.Seconds()*peak > maxArrivals {
		return nil, fmt.Errorf("a poisson trace of %v with at most %v arrivals/s: both must be above 0 and at most %d arrivals come of them", span, peak, maxArrivals)
	}
	arrive := rand.New(rand.NewPCG(seed, streamArrivals))
	draw := rand.New(rand.NewPCG(seed, streamLengths))
	t := &scalesim.Trace{Name: "poisson", Span: span}
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
		t.Arrivals = append(t.Arrivals, scalesim.Arrival{At: now, Service: speed.Service(c, g), Context: c, Generated: g})
	}
}

// PoissonExponential makes a trace of an M/M/c queue: Poisson arrivals at a rate (1/s), and
// exponential service times with a mean.
func PoissonExponential(seed uint64, span time.Duration, rate float64, mean time.Duration) (*scalesim.Trace, error) {
	if mean <= 0 || mean > maxSpan/100 {
		return nil, fmt.Errorf("a mean service time of %v: it must be above 0 and at most %v", mean, maxSpan/100)
	}
	t, err := Poisson(seed, span, func(time.Duration) float64 { return rate }, rate, LogNormal{}, scalesim.Speed{})
	if err != nil {
		return nil, err
	}
	draw := rand.New(rand.NewPCG(seed, streamLengths))
	for i := range t.Arrivals {
		s := time.Duration(draw.ExpFloat64() * float64(mean))
		t.Arrivals[i] = scalesim.Arrival{At: t.Arrivals[i].At, Service: max(s, 1)}
	}
	return t, nil
}
