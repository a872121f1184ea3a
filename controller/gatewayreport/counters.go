package gatewayreport

import (
	"fmt"
	"math"

	"remuda/controller/api"
)

// maxCount is the maximum of a counter, so that the sum over a thousand gateways does not overflow.
const maxCount = math.MaxInt64 >> 10

// maxSeconds is more than a gateway can count: a million concurrent requests for 300 years.
const maxSeconds = 1e16

// counterErrors returns all errors of the counters of a model.
func counterErrors(c api.ModelCounters) []error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("counters of model %q: "+format, append([]any{c.Model}, args...)...))
	}
	if err := checkName(c.Model); err != nil {
		bad("%w", err)
	}
	if c.Arrived < 0 || c.Finished < 0 || c.Arrived > maxCount || c.Finished > maxCount {
		bad("arrived is %d and finished is %d: must be 0 to %d", c.Arrived, c.Finished, maxCount)
	}
	if c.Refused < 0 || c.Refused > maxCount {
		bad("refused is %d: must be 0 to %d", c.Refused, maxCount)
	}
	if c.Errors < 0 || c.Errors > maxCount || c.Answers < 0 || c.Answers > maxCount {
		bad("errors is %d and answers is %d: must be 0 to %d", c.Errors, c.Answers, maxCount)
	}
	if !(c.FirstByteSeconds >= 0 && c.FirstByteSeconds <= maxSeconds) {
		bad("first byte seconds is %g: must be 0 to %g", c.FirstByteSeconds, float64(maxSeconds))
	}
	if c.FirstTokens < 0 || c.FirstTokens > maxCount {
		bad("first tokens is %d: must be 0 to %d", c.FirstTokens, maxCount)
	}
	if !(c.FirstTokenSeconds >= 0 && c.FirstTokenSeconds <= maxSeconds) {
		bad("first token seconds is %g: must be 0 to %g", c.FirstTokenSeconds, float64(maxSeconds))
	}
	if c.Late < 0 || c.Late > maxCount {
		bad("late is %d: must be 0 to %d", c.Late, maxCount)
	}
	if !(c.ServedSeconds >= 0 && c.ServedSeconds <= maxSeconds) {
		bad("served seconds is %g: must be 0 to %g", c.ServedSeconds, float64(maxSeconds))
	}
	return errs
}

// counters are those of one model.
type counters api.Counters

func (c counters) below(was counters) bool {
	return c.Arrived < was.Arrived || c.Finished < was.Finished || c.ServedSeconds < was.ServedSeconds || c.Refused < was.Refused ||
		c.Errors < was.Errors || c.Answers < was.Answers || c.FirstByteSeconds < was.FirstByteSeconds ||
		c.FirstTokens < was.FirstTokens || c.FirstTokenSeconds < was.FirstTokenSeconds || c.Late < was.Late
}

func (c counters) since(was counters) counters {
	c.Arrived -= was.Arrived
	c.Finished -= was.Finished
	c.ServedSeconds -= was.ServedSeconds
	c.Refused -= was.Refused
	c.Errors -= was.Errors
	c.Answers -= was.Answers
	c.FirstByteSeconds -= was.FirstByteSeconds
	c.FirstTokens -= was.FirstTokens
	c.FirstTokenSeconds -= was.FirstTokenSeconds
	c.Late -= was.Late
	return c
}

// counter is a set of counters that only grow, until they are reset.
type counter[C any] interface {
	// below reports whether one of the counters is lower than was.
	below(was C) bool
	// since returns the difference to was, which is not above.
	since(was C) C
}

// counterCursor is the position up to which a gateway's counters of a model or a replica are
// counted.
type counterCursor[C counter[C]] struct {
	last C
	// low are the counters of the last report if they were below last, nil otherwise. Either the
	// report came late, for example from a suspended host, or the gateway has reset its counters:
	// the next report shows which.
	low *C
}

// next returns the cursor after a further report, and the growth since the last one. A report
// below the last one adds nothing: otherwise all that a gateway ever counted would look like new
// requests.
func (t counterCursor[C]) next(c C) (now counterCursor[C], grown C) {
	switch {
	case !c.below(t.last):
		return counterCursor[C]{last: c}, c.since(t.last)
	case t.low != nil && !c.below(*t.low):
		return counterCursor[C]{last: c}, c.since(*t.low)
	}
	t.low = &c
	return t, grown
}

// Count returns how many requests a model had in this term of leadership, and false if that is
// not known: no live gateway counts them, a gateway has requests of the model but does not count
// them, or not every gateway can have reported yet.
//
// The result is not the sum of the gateways' counters, which would drop when a gateway goes and
// jump when it comes back. It adds up the growth from one report of a gateway to the next. The
// first report of a gateway that is new, has come back, or has reset its counters only sets the
// start. So no request counts twice, and when a gateway goes, only the requests since its last
// report are lost.
func (s *Store) Count(model string) (api.Counters, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	s.prune(now)
	sum, ok := s.counted[model]
	if !ok || !s.allReported(now) {
		return api.Counters{}, false
	}
	for _, e := range s.gateways {
		if _, counts := e.counters[model]; e.queues[model] != nil && !counts {
			return api.Counters{}, false
		}
	}
	return sum, true
}

// count adds what a gateway's new report counts beyond its old one, which may be nil. The caller
// holds the lock.
func (s *Store) count(old, e *entry) {
	e.counters = make(map[string]counterCursor[counters], len(e.report.Counters))
	var was map[string]counterCursor[counters]
	if old != nil {
		was = old.counters
	}
	full := max(len(was), len(e.report.Counters)) >= api.MaxReportQueues
	for _, c := range e.report.Counters {
		now, grown := cursorFor(was, c.Model, counters(c.Counters), full).next(counters(c.Counters))
		e.counters[c.Model] = now
		sum := s.counted[c.Model]
		sum.Arrived += grown.Arrived
		sum.Finished += grown.Finished
		sum.ServedSeconds += grown.ServedSeconds
		sum.Refused += grown.Refused
		sum.Errors += grown.Errors
		sum.Answers += grown.Answers
		sum.FirstByteSeconds += grown.FirstByteSeconds
		sum.FirstTokens += grown.FirstTokens
		sum.FirstTokenSeconds += grown.FirstTokenSeconds
		sum.Late += grown.Late
		s.counted[c.Model] = sum
	}
	s.uncount(old)
}

// cursorFor returns the cursor from which the counters c of name continue in a new report. It
// starts at c itself if there is no previous report (was is nil), or if a report was full and may
// have omitted the name.
func cursorFor[C counter[C]](was map[string]counterCursor[C], name string, c C, full bool) counterCursor[C] {
	t, known := was[name]
	if was == nil || !known && full {
		return counterCursor[C]{last: c}
	}
	return t
}

// uncount drops the counters of the models in a dropped report that no gateway counts any more.
// The caller holds the lock.
func (s *Store) uncount(gone *entry) {
	if gone == nil {
		return
	}
	for model := range gone.counters {
		if !s.counts(model) {
			delete(s.counted, model)
		}
	}
}

// counts reports whether a gateway counts a model's requests. The caller holds the lock.
func (s *Store) counts(model string) bool {
	for _, e := range s.gateways {
		if _, ok := e.counters[model]; ok {
			return true
		}
	}
	return false
}
