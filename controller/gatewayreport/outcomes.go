package gatewayreport

import "time"

// RecentTime is the period of Load.Recent. It is long enough to compare replicas with one request
// a second, and short enough to forget soon what was before a change.
const RecentTime = 30 * time.Second

const (
	// slotTime is the resolution of RecentTime: Recent may cover up to that much less.
	slotTime = RecentTime / 6
	// rowTime is how long a row of failures is kept without a further one. A gateway tries a
	// failing engine again after at most 30 s (balance.BreakerConfig), so a row that continues
	// is not dropped.
	rowTime = 2 * time.Minute
)

// Outcomes counts the requests that ended at a replica, over all gateways. A request that was sent
// to several replicas counts at each.
type Outcomes struct {
	Answered, Failed int64
	// Over is the time from the report of the first failure to that of the last.
	Over time.Duration
}

// ended counts the requests that ended at one replica, for one gateway.
type ended struct{ answered, failed int64 }

func (e ended) below(was ended) bool { return e.answered < was.answered || e.failed < was.failed }

func (e ended) since(was ended) ended {
	return ended{answered: e.answered - was.answered, failed: e.failed - was.failed}
}

// record has the recent outcomes of one replica.
type record struct {
	slots []slot // the oldest first
	// row are the failures since the last answer.
	row failures
}

// slot counts the outcomes that were reported within slotTime.
type slot struct {
	at time.Time
	ended
	failures
}

// failures is a number of failures, and when the first and the last were reported.
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

// add adds the requests that ended since the gateway's previous report. inARow is the number of
// failures there since the last answer.
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

// forget returns the slots within RecentTime.
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

// recordOutcomes adds the outcomes that a gateway's new report counts beyond its old one, which
// may be nil. The caller holds the lock.
func (s *Store) recordOutcomes(old, e *entry) {
	e.ended = make(map[string]counterCursor[ended], len(e.report.Replicas))
	var was map[string]counterCursor[ended]
	if old != nil {
		was = old.ended
	}
	full := max(len(was), len(e.report.Replicas)) >= MaxReplicas
	for _, one := range e.report.Replicas {
		c := ended{answered: one.Answered, failed: one.Failed}
		now, grown := cursorFor(was, one.Name, c, full).next(c)
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

// addOutcomes adds the outcomes to the loads, and drops records that are over. The caller holds
// the lock.
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

// Failing reports whether a replica has failed at least this many requests recently or in a row.
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
