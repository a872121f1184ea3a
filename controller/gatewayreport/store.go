package gatewayreport

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"remuda/controller/api"
)

// Load is what all live gateways have on one replica together.
type Load struct {
	api.Load
	// Recent are the outcomes of RecentTime. Row are the failures since the last answer,
	// however long ago the first of them was.
	Recent, Row Outcomes
}

// Store has the last report of each gateway. Its methods may be called from several
// goroutines at once.
type Store struct {
	ttl time.Duration
	now func() time.Time

	mu    sync.Mutex // guards what follows, for some arithmetic only
	term  uint64     // the term of leadership that all of it is of
	since time.Time  // when it began to listen
	// gateways has the last reports, which do not change.
	gateways map[string]*entry
	// demand has the models that were asked for in vain.
	demand map[string]wish
	// kills are the orders to kill requests, by their ID; drains those to gateways, with
	// when their time is over.
	kills  map[string]*order
	drains map[string]time.Time
	// counted has how many requests each model had while the store listened, see Count.
	counted map[string]api.Counters
	// records has what became of the requests of each replica lately.
	records map[string]*record
	// lost is when the last gateway was given up, zero while none was.
	lost    time.Time
	changed chan struct{} // closed and made anew at each change
}

// wish is when a model was last asked for in vain, and when that was last reported.
type wish struct{ asked, heard time.Time }

type entry struct {
	report   api.GatewayReport
	bytes    int
	queues   map[string]*api.QueueLoad  // by model, where there is anything
	counters map[string]tally[counters] // by model, what it counts
	ended    map[string]tally[ended]    // by replica
	total    int
	waiting  int
	// began is when the gateway began, or when it was first heard where it does not say.
	began time.Time
	at    time.Time
}

// New returns a store in which a report counts for ttl. A gateway has to report
// several times in that, so that a lost report costs nothing. now is the clock.
func New(ttl time.Duration, now func() time.Time) *Store {
	return &Store{
		ttl: ttl, now: now, since: now(), gateways: map[string]*entry{}, demand: map[string]wish{},
		kills: map[string]*order{}, drains: map[string]time.Time{}, counted: map[string]api.Counters{}, records: map[string]*record{}, changed: make(chan struct{}),
	}
}

// Begin gives the store to a term of leadership, before anything of that term is put into it
// or read from it. It begins empty: reports of an earlier term are old, and not every
// gateway has found the new leader yet. It does nothing for the present term and for
// earlier ones.
func (s *Store) Begin(term uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if term <= s.term {
		return
	}
	s.term, s.since, s.lost = term, s.now(), time.Time{}
	clear(s.gateways)
	clear(s.demand)
	clear(s.kills)
	clear(s.drains)
	clear(s.counted)
	clear(s.records)
	s.tell()
}

// Put takes a report in the place of the gateway's last one. It keeps r's slices, which
// must not be changed any more. Of more than api.MaxReportRequests requests the first are kept. It
// fails with ErrTooManyGateways or ErrTooManyBytes; the gateway's last report stays then.
func (s *Store) Put(r api.GatewayReport) error {
	e := &entry{report: r, bytes: bytesOf(r), queues: map[string]*api.QueueLoad{}}
	for i := range r.Queues {
		q := &r.Queues[i]
		if len(q.Requests) > api.MaxReportRequests {
			q.Requests = q.Requests[:api.MaxReportRequests:api.MaxReportRequests]
		}
		e.queues[q.Model] = q
		e.waiting += max(q.Waiting, 0)
	}
	// A model may have no queue in a report that has no room for all.
	unqueued := map[string]*api.QueueLoad{}
	for i := range r.Replicas {
		one := &r.Replicas[i]
		if len(one.Requests) > api.MaxReportRequests {
			one.Requests = one.Requests[:api.MaxReportRequests:api.MaxReportRequests]
		}
		if one.InFlight > 0 {
			e.total += one.InFlight
			model := modelOf(one.Name)
			if e.queues[model] == nil && unqueued[model] == nil {
				unqueued[model] = &api.QueueLoad{Model: model, State: api.QueueBusy}
			}
			if q := unqueued[model]; q != nil {
				q.InFlight += one.InFlight
			}
		}
	}
	maps.Copy(e.queues, unqueued)
	// Comparing reports of thousands of replicas takes longer than the lock may be held.
	s.mu.Lock()
	last := s.gateways[r.Gateway]
	s.mu.Unlock()
	same := last != nil && last.says(e)

	s.mu.Lock()
	defer s.mu.Unlock()
	e.at = s.now()
	s.prune(e.at)
	old := s.gateways[r.Gateway]
	if old == nil && len(s.gateways) >= MaxGateways {
		return ErrTooManyGateways
	}
	bytes := e.bytes
	for name, other := range s.gateways {
		if name != r.Gateway {
			bytes += other.bytes
		}
	}
	if bytes > MaxBytes {
		return ErrTooManyBytes
	}
	s.gateways[r.Gateway] = e
	s.count(old, e)
	s.recordOutcomes(old, e)
	switch {
	case !r.Since.IsZero():
		e.began = r.Since
	case old != nil:
		e.began = old.began
	default:
		e.began = e.at
	}
	news := !same || old != last
	for model, asked := range r.Demand {
		was, known := s.demand[model]
		if asked.IsZero() || asked.After(e.at) {
			asked = e.at
		}
		if asked.Before(was.asked) {
			asked = was.asked
		}
		s.demand[model] = wish{asked, e.at}
		news = news || !known
	}
	if news {
		s.tell()
	}
	return nil
}

// bytesOf estimates the memory that a report takes.
func bytesOf(r api.GatewayReport) int {
	const request, queue, replica, counters, wanted = 128, 256, 192, 256, 96
	n := len(r.Replicas)*replica + len(r.Queues)*queue + len(r.Counters)*counters + len(r.Demand)*wanted
	requests := func(all []api.Request) {
		for _, one := range all {
			n += request + len(one.ID)
		}
	}
	for _, one := range r.Replicas {
		n += len(one.Name)
		requests(one.Requests)
	}
	for _, q := range r.Queues {
		n += len(q.Model)
		requests(q.Requests)
	}
	for _, c := range r.Counters {
		n += len(c.Model)
	}
	for model := range r.Demand {
		n += len(model)
	}
	return n
}

// says tells whether two reports of a gateway say the same, as far as anything is decided
// by it: how long requests of a queue wait, how many and how fast they are served is not.
func (e *entry) says(o *entry) bool {
	a, b := e.report, o.report
	a.Queues, b.Queues = nil, nil
	a.Counters, b.Counters = nil, nil
	return reflect.DeepEqual(a, b) && maps.EqualFunc(e.queues, o.queues, func(a, b *api.QueueLoad) bool {
		return a.State == b.State && (a.Waiting > 0) == (b.Waiting > 0)
	})
}

// Demand returns the models that clients asked for and that had no replica to serve them, or
// none that was free, with when the newest such request was heard of. A model's demand lasts
// for one time to live: gateways report anew what is asked for again. A request that still
// waits at a gateway where nothing serves its model, or all that serves it is busy, is asked
// for with each report, so that neither a new leader nor the end of the last replica leaves it
// alone.
//
// Of a model for which after returns a time, only what was asked for later counts: a request
// that is reported as wanted by when it came, those that wait by when the newest that is
// named came.
func (s *Store) Demand(after func(model string) time.Time) map[string]time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prune(s.now())
	out := map[string]time.Time{}
	add := func(model string, asked, heard time.Time) {
		if from := after(model); heard.After(out[model]) && (from.IsZero() || asked.After(from)) {
			out[model] = heard
		}
	}
	for model, w := range s.demand {
		add(model, w.asked, w.heard)
	}
	for _, e := range s.gateways {
		for model, q := range e.queues {
			if q.Waiting > 0 && wanting(q.State) {
				add(model, newest(q), e.at)
			}
		}
	}
	return out
}

// wanting reports whether requests that wait in that state wait for another replica.
func wanting(s api.QueueState) bool {
	return s == api.QueueProvisioning || s == api.QueueCantPlace || s == api.QueueLoadFailed || s == api.QueueBusy
}

// Since returns the latest time before which a request may be unknown, and whether a
// gateway lives. It is the start of the gateway that began last; of one that does not say,
// when it was first heard. Where a gateway was given up it is no earlier than that: what
// it knew is forgotten, and it may serve on where nobody hears it.
func (s *Store) Since() (latest time.Time, live bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prune(s.now())
	latest = s.lost
	for _, e := range s.gateways {
		if e.began.After(latest) {
			latest = e.began
		}
	}
	return latest, len(s.gateways) > 0
}

// Heard tells whether the store has listened for one time to live, so that every gateway
// that lives has reported.
func (s *Store) Heard() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.heard(s.now())
}

// heard needs the lock.
func (s *Store) heard(now time.Time) bool { return !now.Before(s.since.Add(s.ttl)) }

// Known tells whether what the gateways report is all that there is: one lives, and the
// store has listened for one time to live, in which every other would have reported.
func (s *Store) Known() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	s.prune(now)
	return s.heard(now) && len(s.gateways) > 0
}

// Loads returns the load of every replica that a live gateway has reported, by name.
func (s *Store) Loads() map[string]api.Load {
	out := map[string]api.Load{}
	for name, one := range s.sum(true) {
		l := one.Load
		slices.SortFunc(l.Requests, func(a, b api.Request) int { return cmp.Or(a.Started.Compare(b.Started), strings.Compare(a.ID, b.ID)) })
		if len(l.Requests) > api.MaxReportRequests {
			l.Requests = l.Requests[:api.MaxReportRequests:api.MaxReportRequests]
		}
		out[name] = l
	}
	return out
}

// Totals returns what Loads does without the requests, which cost most, and with the outcomes.
func (s *Store) Totals() map[string]Load {
	return s.sum(false)
}

// sum adds the reports up.
func (s *Store) sum(requests bool) map[string]Load {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prune(s.now())
	out := map[string]Load{}
	for _, e := range s.gateways {
		for _, r := range e.report.Replicas {
			l := out[r.Name]
			l.InFlight += max(r.InFlight, 0)
			l.Busy = l.InFlight > 0
			if !r.OldestAt.IsZero() && (l.OldestAt.IsZero() || r.OldestAt.Before(l.OldestAt)) {
				l.OldestAt = r.OldestAt
			}
			if r.LastRequest.After(l.LastRequest) {
				l.LastRequest = r.LastRequest
			}
			if requests {
				l.Requests = append(l.Requests, r.Requests...)
			}
			out[r.Name] = l
		}
	}
	s.addOutcomes(s.now(), out)
	return out
}

// Gateways returns the gateways that live, by name.
func (s *Store) Gateways() []api.Gateway {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prune(s.now())
	out := []api.Gateway{}
	for name, e := range s.gateways {
		_, ordered := s.drains[name]
		out = append(out, api.Gateway{
			Name: name, Index: e.report.Index, InFlight: e.total, Waiting: e.waiting, Draining: e.report.Draining, DrainOrdered: ordered,
			Since: e.began, LastReportAt: e.at, ExpiresAt: e.at.Add(s.ttl),
		})
	}
	slices.SortFunc(out, func(a, b api.Gateway) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Next is when the answers may be others although nobody reports; zero is never.
func (s *Store) Next() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	s.prune(now)
	next := s.since.Add(s.ttl)
	if !next.After(now) {
		next = time.Time{}
	}
	for _, e := range s.gateways {
		if at := e.at.Add(s.ttl); next.IsZero() || at.Before(next) {
			next = at
		}
	}
	for _, w := range s.demand {
		if at := w.heard.Add(s.ttl); next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return next
}

// Changed returns a channel that is closed when a report says something new. Ask for
// it before the answers that it is about. Reports that expire do not close it; see
// Next.
func (s *Store) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// tell needs the lock.
func (s *Store) tell() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// prune drops what has expired. It needs the lock.
func (s *Store) prune(now time.Time) {
	for name, e := range s.gateways {
		if !now.Before(e.at.Add(s.ttl)) {
			delete(s.gateways, name)
			s.uncount(e)
			if given := e.at.Add(s.ttl); given.After(s.lost) {
				s.lost = given
			}
		}
	}
	for model, w := range s.demand {
		if !now.Before(w.heard.Add(s.ttl)) {
			delete(s.demand, model)
		}
	}
	s.forgetOrders(now)
}
