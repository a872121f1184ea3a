package gatewayreport

import "time"

// RecentTime is how far back Load.Recent looks. A replica that has one request a second has
// had enough of them to be compared with others, and what was before a change is soon
// forgotten.
const RecentTime = 30 * time.Second

const (
	// slotTime is how finely the recent time is divided: Recent covers up to so much less.
	slotTime = RecentTime / 6
	// rowTime is for how long a row of failures is remembered without a further one. A gateway
	// asks an engine that fails again after 30 s at the latest (balance.BreakerConfig), so
	// a row that goes on, however slowly, is not forgotten.
	rowTime = 2 * time.Minute
)

// Outcomes are how requests at a replica have ended, at all gateways together. A request
// that was sent to several replicas counts at each.
type Outcomes struct {
	Answered, Failed int64
	// Over is the time from the first of the failures to the last, as they were reported.
	Over time.Duration
}

// ended counts the requests of one replica at one gateway.
type ended struct{ answered, failed int64 }

func (e ended) below(was ended) bool { return e.answered < was.answered || e.failed < was.failed }

func (e ended) since(was ended) ended {
	return ended{answered: e.answered - was.answered, failed: e.failed - was.failed}
}

// record is what became of the requests of one replica lately.
type record struct {
	slots []slot // the oldest first
	// row are the failures since the last answer.
	row failures
}

// slot is what was reported within slotTime.
type slot struct {
	at time.Time
	ended
	failures
}

// failures are how many there were, and when the first and the last were reported.
type failures struct {
	n           int64
	first, last time.Time
}

func (f *failures) add(n int64, now time.Time) {
	if n == 0 {
		return
	}
	if f.n == 0 {
		f.first = now
	}
	f.n, f.last = f.n+n, now
}

// add takes what ended since the gateway's report before. inARow is how many requests have
// failed there since the last answer.
func (r *record) add(now time.Time, e ended, inARow int64) {
	if n := len(r.slots); n == 0 || !now.Before(r.slots[n-1].at.Add(slotTime)) {
		r.slots = append(r.forget(now), slot{at: now})
	}
	s := &r.slots[len(r.slots)-1]
	s.answered += e.answered
	s.add(e.failed, now)
	failed := e.failed
	if e.answered > 0 {
		failed = min(e.failed, inARow)
	}
	if e.answered > 0 || !now.Before(r.row.last.Add(rowTime)) {
		r.row = failures{}
	}
	r.row.add(failed, now)
}

// forget returns the slots that are not over.
func (r *record) forget(now time.Time) []slot {
	from := 0
	for from < len(r.slots) && !now.Before(r.slots[from].at.Add(RecentTime)) {
		from++
	}
	return r.slots[from:]
}

// outcomes returns the recent outcomes, and the failures in a row.
func (r *record) outcomes(now time.Time) (recent, row Outcomes) {
	var all failures
	for _, s := range r.forget(now) {
		recent.Answered += s.answered
		if s.n > 0 && all.n == 0 {
			all.first = s.first
		}
		if s.n > 0 {
			all.n, all.last = all.n+s.n, s.last
		}
	}
	recent.Failed, recent.Over = all.n, all.last.Sub(all.first)
	if now.Before(r.row.last.Add(rowTime)) {
		row = Outcomes{Failed: r.row.n, Over: r.row.last.Sub(r.row.first)}
	}
	return recent, row
}

// recordOutcomes adds what a gateway's new report counts of its replicas beyond its old one, nil
// where there is none. It needs the lock.
func (s *Store) recordOutcomes(old, e *entry) {
	e.ended = make(map[string]tally[ended], len(e.report.Replicas))
	var was map[string]tally[ended]
	if old != nil {
		was = old.ended
	}
	full := max(len(was), len(e.report.Replicas)) >= MaxReplicas
	for _, one := range e.report.Replicas {
		c := ended{answered: one.Answered, failed: one.Failed}
		now, grown := tallied(was, one.Name, c, full).next(c)
		e.ended[one.Name] = now
		if grown == (ended{}) {
			continue
		}
		r := s.records[one.Name]
		if r == nil {
			r = &record{}
			s.records[one.Name] = r
		}
		r.add(e.at, grown, one.FailedInARow)
	}
}

// addOutcomes adds the outcomes to the loads, and forgets what is over. It needs the lock.
func (s *Store) addOutcomes(now time.Time, loads map[string]Load) {
	for name, r := range s.records {
		recent, row := r.outcomes(now)
		if recent == (Outcomes{}) && row == (Outcomes{}) {
			delete(s.records, name)
			continue
		}
		l := loads[name]
		l.Recent, l.Row = recent, row
		l.Answered, l.Failed, l.FailedInARow = recent.Answered, recent.Failed, row.Failed
		loads[name] = l
	}
}

// Failing reports whether a replica has failed so many requests lately, or in a row.
func (s *Store) Failing(least int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	for _, r := range s.records {
		if recent, row := r.outcomes(now); max(recent.Failed, row.Failed) >= least {
			return true
		}
	}
	return false
}
