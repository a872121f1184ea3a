package load

import (
	"fmt"
	"math"

	"remuda/controller/api"
)

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
	const most = math.MaxInt64 >> 10 // so that a thousand gateways add up
	if c.Arrived < 0 || c.Finished < 0 || c.Arrived > most || c.Finished > most {
		bad("arrived is %d and finished is %d: must be 0 to %d", c.Arrived, c.Finished, most)
	}
	if c.Refused < 0 || c.Refused > most {
		bad("refused is %d: must be 0 to %d", c.Refused, most)
	}
	if !(c.ServedSeconds >= 0 && c.ServedSeconds <= mostSeconds) {
		bad("served seconds is %g: must be 0 to %g", c.ServedSeconds, float64(mostSeconds))
	}
	return errs
}

// below tells whether one of the counters is lower than it was.
func below(c, was api.Counters) bool {
	return c.Arrived < was.Arrived || c.Finished < was.Finished || c.ServedSeconds < was.ServedSeconds || c.Refused < was.Refused
}

// since is what was counted after was, which is not above c.
func since(c, was api.Counters) api.Counters {
	c.Arrived -= was.Arrived
	c.Finished -= was.Finished
	c.ServedSeconds -= was.ServedSeconds
	c.Refused -= was.Refused
	return c
}

// tally is what the last report of a gateway counted of a model.
type tally struct {
	api.Counters
	// low are the counters of the last report where they were below those, which are the ones
	// of the report before. Either that report came late, as from a host that was suspended, and
	// says nothing; or the gateway began to count anew. The next report tells.
	low *api.Counters
}

// next is the tally after a further report, and what that counts beyond. Of a report that is
// below the last one nothing counts: all that a gateway ever counted would look like new
// requests.
func (t tally) next(c api.Counters) (now tally, grown api.Counters) {
	switch {
	case !below(c, t.Counters):
		return tally{Counters: c}, since(c, t.Counters)
	case t.low != nil && !below(c, *t.low):
		return tally{Counters: c}, since(c, *t.low)
	}
	t.low = &c
	return t, api.Counters{}
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
	e.counters = make(map[string]tally, len(e.report.Counters))
	for _, c := range e.report.Counters {
		now, grown := old.tally(c, len(e.report.Counters)).next(c.Counters)
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

// tally is from where the counters c of a new report go on: from c itself where that is not
// known. n is how many models the new report has counters of: one that had no room for all
// may have left this one out before.
func (e *entry) tally(c api.ModelCounters, n int) tally {
	if e == nil {
		return tally{Counters: c.Counters}
	}
	was, known := e.counters[c.Model]
	if !known && max(n, len(e.counters)) >= api.MaxReportQueues {
		return tally{Counters: c.Counters}
	}
	return was
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
