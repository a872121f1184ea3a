package gatewayreport

import (
	"fmt"
	"math"

	"remuda/controller/api"
)

// mostCounted is how many requests a counter may have: a thousand gateways add up.
const mostCounted = math.MaxInt64 >> 10

// mostSeconds is beyond what a gateway can count: a million requests at once for 300 years.
const mostSeconds = 1e16

// counterErrors names everything that is wrong with counters.
func counterErrors(c api.ModelCounters) []error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("counters of model %q: "+format, append([]any{c.Model}, args...)...))
	}
	if err := checkName(c.Model); err != nil {
		bad("%w", err)
	}
	if c.Arrived < 0 || c.Finished < 0 || c.Arrived > mostCounted || c.Finished > mostCounted {
		bad("arrived is %d and finished is %d: must be 0 to %d", c.Arrived, c.Finished, mostCounted)
	}
	if c.Refused < 0 || c.Refused > mostCounted {
		bad("refused is %d: must be 0 to %d", c.Refused, mostCounted)
	}
	if !(c.ServedSeconds >= 0 && c.ServedSeconds <= mostSeconds) {
		bad("served seconds is %g: must be 0 to %g", c.ServedSeconds, float64(mostSeconds))
	}
	return errs
}

// counters are those of one model.
type counters api.Counters

func (c counters) below(was counters) bool {
	return c.Arrived < was.Arrived || c.Finished < was.Finished || c.ServedSeconds < was.ServedSeconds || c.Refused < was.Refused
}

func (c counters) since(was counters) counters {
	c.Arrived -= was.Arrived
	c.Finished -= was.Finished
	c.ServedSeconds -= was.ServedSeconds
	c.Refused -= was.Refused
	return c
}

// counter is a set of counters that only grow until they begin anew.
type counter[C any] interface {
	// below reports whether one of the counters is lower than was.
	below(was C) bool
	// since is what was counted after was, which is not above.
	since(was C) C
}

// tally is what the last report of a gateway counted of a model or a replica.
type tally[C counter[C]] struct {
	last C
	// low are the counters of the last report where they were below those, which are the ones
	// of the report before. Either that report came late, as from a host that was suspended, and
	// says nothing; or the gateway began to count anew. The next report tells.
	low *C
}

// next is the tally after a further report, and what that counts beyond. Of a report that is
// below the last one nothing counts: all that a gateway ever counted would look like new
// requests.
func (t tally[C]) next(c C) (now tally[C], grown C) {
	switch {
	case !c.below(t.last):
		return tally[C]{last: c}, c.since(t.last)
	case t.low != nil && !c.below(*t.low):
		return tally[C]{last: c}, c.since(*t.low)
	}
	t.low = &c
	return t, grown
}

// Count returns how many requests a model had while the store listened, and false where
// that is not known: no live gateway counts them, one that has requests of the model does
// not, or the store has not listened for one time to live.
//
// It is not the sum of what gateways have counted: that would fall by everything that one
// had when it goes, and jump by it when it is heard again. It grows by what each of them
// counts from one report to the next, and of one that is heard for the first time, or again
// after it was given up, or whose counters fell, the first report only says from where. So
// nothing counts twice, and what is lost with a gateway is what came since its last report.
func (s *Store) Count(model string) (api.Counters, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	s.prune(now)
	sum, ok := s.counted[model]
	if !ok || !s.heard(now) {
		return api.Counters{}, false
	}
	for _, e := range s.gateways {
		if _, counts := e.counters[model]; e.queues[model] != nil && !counts {
			return api.Counters{}, false
		}
	}
	return sum, true
}

// count adds what a gateway's new report counts beyond its old one, nil where there is none.
// It needs the lock.
func (s *Store) count(old, e *entry) {
	e.counters = make(map[string]tally[counters], len(e.report.Counters))
	var was map[string]tally[counters]
	if old != nil {
		was = old.counters
	}
	full := max(len(was), len(e.report.Counters)) >= api.MaxReportQueues
	for _, c := range e.report.Counters {
		now, grown := tallied(was, c.Model, counters(c.Counters), full).next(counters(c.Counters))
		e.counters[c.Model] = now
		sum := s.counted[c.Model]
		sum.Arrived += grown.Arrived
		sum.Finished += grown.Finished
		sum.ServedSeconds += grown.ServedSeconds
		sum.Refused += grown.Refused
		s.counted[c.Model] = sum
	}
	s.uncount(old)
}

// tallied is from where the counters c of name go on in a new report: from c itself where that
// is not known, because there was no report before (nil), or because one was full and may
// have left the name out.
func tallied[C counter[C]](was map[string]tally[C], name string, c C, full bool) tally[C] {
	t, known := was[name]
	if was == nil || !known && full {
		return tally[C]{last: c}
	}
	return t
}

// uncount forgets the models of a report that is no more which no gateway counts any more.
// It needs the lock.
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

// counts tells whether a gateway counts a model's requests. It needs the lock.
func (s *Store) counts(model string) bool {
	for _, e := range s.gateways {
		if _, ok := e.counters[model]; ok {
			return true
		}
	}
	return false
}
