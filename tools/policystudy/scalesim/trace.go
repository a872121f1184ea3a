package scalesim

import (
	"errors"
	"fmt"
	"math"
	"sort"
	"time"
)

// Arrival is one request.
type Arrival struct {
	// At is the time since the start of the trace.
	At time.Duration `json:"at_ns"`
	// Service is how long the request holds a slot.
	Service time.Duration `json:"service_ns"`
	// Context and Generated are its tokens, 0 if not known.
	Context   int32 `json:"context,omitempty"`
	Generated int32 `json:"generated,omitempty"`
}

// Trace is a sequence of requests, in the order of their arrival. Its methods leave it as
// it is and give a new one.
type Trace struct {
	Name string `json:"name"`
	// Span is how long the trace lasts. All arrivals are before its end.
	Span     time.Duration `json:"span_ns"`
	Arrivals []Arrival     `json:"arrivals"`
}

// Validate says whether Run can take the trace: the span is above 0, the arrivals are in
// order and within it, and each has a service time above 0. The first that is wrong is
// named.
func (t *Trace) Validate() error {
	var errs []error
	if t.Span <= 0 || t.Span > maxDuration {
		errs = append(errs, fmt.Errorf("span_ns is %v: it must be above 0 and at most %v", t.Span, maxDuration))
	}
	last := time.Duration(0)
	for i := range t.Arrivals {
		a := &t.Arrivals[i]
		switch {
		case a.At < last:
			errs = append(errs, fmt.Errorf("arrivals[%d].at_ns is %v, after one at %v: sort them", i, a.At, last))
		case a.At >= t.Span:
			errs = append(errs, fmt.Errorf("arrivals[%d].at_ns is %v: it must be before the end of the trace at %v", i, a.At, t.Span))
		case a.Service <= 0 || a.Service > maxDuration:
			errs = append(errs, fmt.Errorf("arrivals[%d].service_ns is %v: it must be above 0; set it with Timed", i, a.Service))
		case a.Context < 0 || a.Generated < 0:
			errs = append(errs, fmt.Errorf("arrivals[%d] has %d and %d tokens: they must not be negative", i, a.Context, a.Generated))
		default:
			last = a.At
			continue
		}
		break
	}
	return errors.Join(errs...)
}

// Rate is the mean number of arrivals per second.
func (t *Trace) Rate() float64 {
	if t.Span <= 0 {
		return 0
	}
	return float64(len(t.Arrivals)) / t.Span.Seconds()
}

// MeanService is the mean service time; 0 without arrivals.
func (t *Trace) MeanService() time.Duration {
	if len(t.Arrivals) == 0 {
		return 0
	}
	sum := 0.0
	for i := range t.Arrivals {
		sum += float64(t.Arrivals[i].Service)
	}
	return time.Duration(sum / float64(len(t.Arrivals)))
}

// Offered is the mean number of slots that the trace keeps busy (erlangs).
func (t *Trace) Offered() float64 { return t.Rate() * t.MeanService().Seconds() }

// Streams keep what is drawn for one purpose apart from the others, under one seed.
const (
	streamLengths   = 3
	streamColdStart = 4
	streamClients   = 1 << 32
)

// Slice gives the arrivals from from (included) to to (excluded) as a trace that starts at
// 0. Both are cut to the trace.
func (t *Trace) Slice(from, to time.Duration) *Trace {
	from = min(max(from, 0), t.Span)
	to = min(max(to, from), t.Span)
	lo := sort.Search(len(t.Arrivals), func(i int) bool { return t.Arrivals[i].At >= from })
	hi := sort.Search(len(t.Arrivals), func(i int) bool { return t.Arrivals[i].At >= to })
	out := &Trace{Name: t.Name, Span: to - from, Arrivals: make([]Arrival, hi-lo)}
	for i, a := range t.Arrivals[lo:hi] {
		a.At -= from
		out.Arrivals[i] = a
	}
	return out
}

// Halves splits the trace in the middle of its span: to tune on the first half and score
// on the second. Config.ScoreFrom scores the second half too, and lets the policy learn
// from the first.
func (t *Trace) Halves() (first, second *Trace) {
	return t.Slice(0, t.Span/2), t.Slice(t.Span/2, t.Span)
}

// Speed turns tokens into a service time: fixed + context*per_context +
// generated*per_generated.
type Speed struct {
	Fixed        time.Duration `json:"fixed_ns"`
	PerContext   time.Duration `json:"per_context_ns"`
	PerGenerated time.Duration `json:"per_generated_ns"`
}

// DefaultSpeed is a 70B model on a card with a full batch: 5,000 tokens/s of prefill, and
// 25 tokens/s of decoding for each request.
func DefaultSpeed() Speed {
	return Speed{Fixed: 50 * time.Millisecond, PerContext: 200 * time.Microsecond, PerGenerated: 40 * time.Millisecond}
}

// Service is the time for one request, at least 1 ns.
func (s Speed) Service(context, generated int32) time.Duration {
	d := float64(s.Fixed) + float64(s.PerContext)*float64(context) + float64(s.PerGenerated)*float64(generated)
	return time.Duration(math.Min(math.Max(d, 1), float64(maxDuration)))
}
