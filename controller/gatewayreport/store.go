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
	"remuda/controller/share"
)

// Load is the load of one replica, summed over all live gateways.
type Load struct {
	api.Load
	// Recent are the outcomes within RecentTime. Row are the failures since the last answer,
	// however long ago the first of them was.
	Recent, Row Outcomes
}

// Store has the last report of each gateway. Its methods may be called from several
// goroutines at once.
type Store struct {
	ttl time.Duration
	now func() time.Time

	mu    sync.Mutex // guards the fields below; held for short computations only
	term  uint64     // the term of leadership to which the contents belong
	since time.Time  // the start of the term
	// gateways has the last report of each gateway; reports are not modified.
	gateways map[string]*entry
	// demand has the models for which requests found no replica.
	demand map[string]demandEntry
	// kills are the orders to kill requests, by request ID; drains has when the order to drain a
	// gateway expires, by gateway.
	kills  map[string]*order
	drains map[string]time.Time
	// counted has how many requests each model had in this term, see Count.
	counted map[string]api.Counters
	// records has the recent outcomes of each replica.
	records map[string]*record
	// shares has the claims of the gateways in gateways.
	shares *share.Ledger
	// lost is when the last gateway expired, zero if none has.
	lost    time.Time
	changed chan struct{} // closed and replaced at each change
}

// demandEntry is when a model was last requested in vain, and when that was last reported.
type demandEntry struct{ asked, heard time.Time }

type entry struct {
	// report is without its shares, keys and sequence.
	report   api.GatewayReport
	shares   []api.GatewayShare // the gateway's, for the response
	parts    []float64          // of its keys, for the response
	bytes    int
	queues   map[string]*api.QueueLoad          // by model
	counters map[string]counterCursor[counters] // by model, what it counts
	ended    map[string]counterCursor[ended]    // by replica
	total    int
	waiting  int
	// began is when the gateway started, or its first report if it does not report that.
	began time.Time
	at    time.Time
}

// New returns a store in which a report counts for ttl. Gateways should report several times
// within ttl, so that a lost report does no harm. now is the clock.
func New(ttl time.Duration, now func() time.Time) *Store {
	return &Store{
		ttl: ttl, now: now, since: now(), gateways: map[string]*entry{}, demand: map[string]demandEntry{},
		kills: map[string]*order{}, drains: map[string]time.Time{}, counted: map[string]api.Counters{}, records: map[string]*record{},
		shares: share.New(), changed: make(chan struct{}),
	}
}

// Begin starts a term of leadership. It must be called before the store is used in that term. It
// empties the store: the reports of an earlier term are outdated, and not every gateway has found
// the new leader yet. It does nothing for the present term and earlier ones.
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
	s.shares = share.New()
	s.notify()
}

// Put replaces the gateway's last report. It keeps r's slices, which must not be modified
// afterwards. It keeps the first api.MaxReportRequests requests of each queue and replica. If it
// returns ErrTooManyGateways or ErrTooManyBytes, the gateway's last report is kept.
func (s *Store) Put(r api.GatewayReport) error {
	e := &entry{report: r, bytes: bytesOf(r), queues: map[string]*api.QueueLoad{}}
	e.report.Shares, e.report.Keys, e.report.Sequence = nil, nil, 0
	for i := range r.Queues {
		q := &r.Queues[i]
		if len(q.Requests) > api.MaxReportRequests {
			q.Requests = q.Requests[:api.MaxReportRequests:api.MaxReportRequests]
		}
		e.queues[q.Model] = q
		e.waiting += max(q.Waiting, 0)
	}
	// A full report may omit the queue of a model.
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
	same := last != nil && last.sameAs(e)

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
	s.divide(old, e, r)
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
		s.demand[model] = demandEntry{asked, e.at}
		news = news || !known
	}
	if news {
		s.notify()
	}
	return nil
}

// sameAs reports whether two reports of a gateway are equal in what decisions depend on. It
// ignores how long the requests of a queue wait, their number, and how fast they are served.
func (e *entry) sameAs(o *entry) bool {
	a, b := e.report, o.report
	a.Queues, b.Queues = nil, nil
	a.Counters, b.Counters = nil, nil
	return reflect.DeepEqual(a, b) && maps.EqualFunc(e.queues, o.queues, func(a, b *api.QueueLoad) bool {
		return a.State == b.State && (a.Waiting > 0) == (b.Waiting > 0)
	})
}

// Demand returns the models for which a request found no replica, or no free one, with when the
// newest such request was reported. Demand lasts for one time to live. A request that waits for
// a model without a replica, or with only busy ones, renews the demand with each report. So it is
// not lost when the leader changes or the last replica ends.
//
// If after returns a time for a model, only later requests count. For waiting requests, the newest
// that is listed decides.
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
			if q.Waiting > 0 && needsReplica(q.State) {
				add(model, newest(q), e.at)
			}
		}
	}
	return out
}

// needsReplica reports whether requests in a queue of that state wait for another replica.
func needsReplica(s api.QueueState) bool {
	return s == api.QueueProvisioning || s == api.QueueCantPlace || s == api.QueueLoadFailed || s == api.QueueBusy
}

// Since returns the time from which on the reports are complete, and whether there is a live
// gateway. It is the start of the gateway that started last, or its first report if it does not
// report its start. If a gateway has expired, it is not earlier than that: its report is lost, and
// it may still serve without a connection to the controller.
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

// AllReported reports whether one time to live has passed in this term, so that every live
// gateway has reported.
func (s *Store) AllReported() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.allReported(s.now())
}

// allReported is AllReported for a caller that holds the lock.
func (s *Store) allReported(now time.Time) bool { return !now.Before(s.since.Add(s.ttl)) }

// Known reports whether the reports cover all traffic: there is a live gateway, and one time to
// live has passed in this term, in which every other would have reported.
func (s *Store) Known() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	s.prune(now)
	return s.allReported(now) && len(s.gateways) > 0
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

// Totals returns the loads of all replicas with the outcomes, but without the list of requests,
// which is what makes Loads expensive.
func (s *Store) Totals() map[string]Load {
	return s.sum(false)
}

// sum adds up the reports, with the list of requests if requests is set.
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

// Gateways returns the live gateways, sorted by name.
func (s *Store) Gateways() []api.Gateway {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prune(s.now())
	out := []api.Gateway{}
	for name, e := range s.gateways {
		_, ordered := s.drains[name]
		out = append(out, api.Gateway{
			Name: name, Address: e.report.Address, Index: e.report.Index, InFlight: e.total, Waiting: e.waiting, Draining: e.report.Draining, DrainOrdered: ordered,
			Since: e.began, LastReportAt: e.at, ExpiresAt: e.at.Add(s.ttl),
		})
	}
	slices.SortFunc(out, func(a, b api.Gateway) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Next returns when the results may change without a new report, because something expires; zero
// is never.
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

// Changed returns a channel that is closed when a report brings news. Call it before the methods
// whose results it covers. Expiry does not close it; see Next.
func (s *Store) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// notify closes the channel of Changed. The caller holds the lock.
func (s *Store) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// prune drops expired reports, demand and orders. The caller holds the lock.
func (s *Store) prune(now time.Time) {
	for name, e := range s.gateways {
		if !now.Before(e.at.Add(s.shareTTL())) {
			s.shares.Drop(name)
		}
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
