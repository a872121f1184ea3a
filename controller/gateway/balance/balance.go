// Package balance decides which engine serves a request.
//
// A Table is plain state over plain data: it does no I/O, starts no
// goroutines, logs nothing and reads no clock. It is not safe for concurrent
// use; its owner guards it.
//
// What it promises:
//   - Only engines that Consul reports as passing are picked, from the update
//     that reports them until the update that no longer does.
//   - Of the engines of one replica only those with the highest fencing token
//     are picked (DESIGN section 5), whether or not they pass: while the newest
//     holder cannot serve, an older one must not.
//   - Among the rest the one with the fewest requests per slot is picked; of
//     equals the one that was picked longest ago.
//   - An engine that refused a connection or failed a request is avoided for a
//     while: one that fails fast is always the least busy, and would draw all
//     traffic to itself.
//   - An engine whose node Consul cannot see is used only when no other is left.
//   - A replica that the controller drains gets no request while another engine of the
//     model is passing and not suspect; see Direct.
//   - An outage of Consul does not empty the table: see Update and Lost.
package balance

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"remuda/internal/replica"
)

// Errors of Pick.
var (
	// ErrNoList means that there was no update yet.
	ErrNoList = errors.New("no engine list from Consul yet")
	// ErrUnknownModel means that no engine serves the model or did lately.
	ErrUnknownModel = errors.New("unknown model")
	// ErrNoEngine means that the model is known but no engine of it may get a
	// request now.
	ErrNoEngine = errors.New("no active engine")
)

// Config holds the table's time spans. None of them may be negative.
type Config struct {
	// Grace is how long after an outage of Consul an engine that was active
	// before it is still used although Consul no longer vouches for it.
	Grace time.Duration
	// Suspect is how long an engine is avoided after it failed.
	Suspect time.Duration
	// Remember is how long a model without engines stays known, and how long
	// the highest token of a replica without engines stays binding.
	Remember time.Duration
}

// Endpoint is an engine with the names that are needed for each request. It
// never changes.
type Endpoint struct {
	replica.Engine
	// ServiceID is the engine's Consul service ID.
	ServiceID string
	// Addr is "host:port".
	Addr string
	// Replica is the replica's name as a string.
	Replica string
}

// Pick is the right to send one request to an engine. It ends with Release.
type Pick struct {
	*Endpoint
	e *engine
	f *flight
}

// Table holds the engines of all models.
type Table struct {
	cfg        Config
	engines    map[string]*engine // by service ID
	models     map[string]*model
	tops       map[string]*top // by replica
	orders     Orders
	ready      bool
	graceUntil time.Time
	picks      uint64
}

// top is the highest token that a replica ever had. It outlives the replica's
// engines: a holder that was frozen, and comes back when its successor is gone,
// is not served.
type top struct {
	token uint64
	// engines are how many there are now.
	engines int
	// last is when the replica last had an engine or a request.
	last     time.Time
	inFlight int
	flights  flights
	lastPick time.Time
	draining bool
}

type model struct {
	engines  []*engine // sorted by service ID
	first    time.Time // when the model became known
	last     time.Time // when it last had an engine or a request
	inFlight int
	// exists and stopped are what the controller says.
	exists, stopped bool
}

type engine struct {
	*Endpoint
	model    *model
	top      *top
	passing  bool // in the latest update, or since the last outage (see keptUntil)
	listed   bool // in the latest update
	inFlight int
	lastPick uint64
	// keptUntil is not zero while the engine is used only because Consul was
	// away; it is forever while Consul still is.
	keptUntil time.Time
	// dropped tells that an engine on a node that is down refused a connection:
	// the node is not merely out of Consul's sight.
	dropped      bool
	suspectUntil time.Time
}

// forever is later than any time that a table is asked about.
var forever = time.Unix(1<<40, 0)

// New returns an empty table.
func New(cfg Config) (*Table, error) {
	var bad []string
	for _, f := range []struct {
		name string
		d    time.Duration
	}{{"Grace", cfg.Grace}, {"Suspect", cfg.Suspect}, {"Remember", cfg.Remember}} {
		if f.d < 0 {
			bad = append(bad, fmt.Sprintf("%s is %s, want 0 or more", f.name, f.d))
		}
	}
	if bad != nil {
		return nil, fmt.Errorf("bad balance config: %s", strings.Join(bad, "; "))
	}
	return &Table{
		cfg:     cfg,
		engines: map[string]*engine{},
		models:  map[string]*model{},
		tops:    map[string]*top{},
	}, nil
}

// Changes names what an update took out of the table, so that its owner can
// forget it too.
type Changes struct {
	// Replicas have had no engine and no request for Config.Remember.
	Replicas []string
	// Models are no longer known.
	Models []string
	// Kept are engines that are used on although Consul no longer vouches for
	// them.
	Kept []string
}

// Update takes the complete list of engines. Engines that are not in it, or
// not passing, get no new request from now on.
//
// afterOutage tells that this is the first list after a time without Consul. A
// Consul that has just restarted may have forgotten engines, or may hold their
// TTL checks for critical until each is pushed again. So for Config.Grace from
// such an update on:
//   - an engine that was active and is missing from this first list is used on
//     until it is listed again, the time is over or a connection to it fails;
//   - an engine that was active and is listed as not passing, in this update
//     or a later one, is used on under the same conditions.
//
// An engine that was listed after the outage and then disappears was taken
// out on purpose, and is dropped at once. Should Consul go away again while
// engines are kept (see Lost), Grace starts anew when it is back.
func (t *Table) Update(now time.Time, list []replica.Engine, afterOutage bool) Changes {
	t.ready = true
	if afterOutage {
		t.graceUntil = now.Add(t.cfg.Grace)
	}
	inGrace := now.Before(t.graceUntil)
	var ch Changes
	t.expire(now)
	next := make(map[string]*engine, len(list))
	for _, in := range list {
		in.Slots = max(in.Slots, 1)
		id := in.ID()
		// An ID can be listed twice when a replica moved and its old node has
		// not been cleaned up: the higher token is the truth, then health.
		if have := next[id]; have != nil && !newer(in, have.Engine) {
			continue
		}
		old := t.engines[id]
		e := &engine{Endpoint: &Endpoint{Engine: in, ServiceID: id, Addr: in.HostPort(), Replica: in.Name.String()}}
		if old != nil && old.Addr == e.Addr && old.Token == e.Token {
			// The same engine: what is known of it stays.
			old.dropped = old.dropped && in.NodeDown
			old.Endpoint, e = e.Endpoint, old
		}
		next[id] = e
	}
	for id, e := range next {
		was := t.engines[id] == e && t.used(e, now)
		wasPassing := t.engines[id] == e && e.passing
		e.listed, e.passing = true, e.Passing
		switch {
		case e.Passing:
			e.keptUntil = time.Time{}
		case was && inGrace:
			if wasPassing || afterOutage {
				e.keptUntil = t.graceUntil
			}
			ch.Kept = append(ch.Kept, id)
		default:
			e.keptUntil = time.Time{}
		}
	}
	for id, e := range t.engines {
		if next[id] != nil || !t.used(e, now) {
			continue
		}
		if afterOutage {
			e.keptUntil = t.graceUntil
		} else if e.passing || (e.listed && !afterOutage) {
			continue
		}
		e.passing, e.listed = false, false
		if now.Before(e.keptUntil) {
			next[id] = e
			ch.Kept = append(ch.Kept, id)
		}
	}
	t.engines = next
	sort.Strings(ch.Kept)
	t.index(now, &ch)
	return ch
}

// Lost tells that Consul stopped answering. What it said last stays true until
// the next update: engines that are kept are kept on.
func (t *Table) Lost(now time.Time) {
	for _, e := range t.engines {
		if now.Before(e.keptUntil) {
			e.keptUntil = forever
		}
	}
}

// Expire forgets what is over by now. Without updates nothing else does.
func (t *Table) Expire(now time.Time) Changes {
	var ch Changes
	t.expire(now)
	t.index(now, &ch)
	return ch
}

// expire drops engines that were kept for long enough.
func (t *Table) expire(now time.Time) {
	for id, e := range t.engines {
		if !e.listed && !t.used(e, now) {
			e.leave()
			delete(t.engines, id)
		}
	}
}

// leave notes how long the engine counted for its model and replica.
func (e *engine) leave() {
	if e.keptUntil.After(e.model.last) {
		e.model.last = e.keptUntil
	}
	if e.keptUntil.After(e.top.last) {
		e.top.last = e.keptUntil
	}
}

// newer tells whether a describes the engine better than b.
func newer(a, b replica.Engine) bool {
	if a.Token != b.Token {
		return a.Token > b.Token
	}
	return a.Passing && !b.Passing
}

// index rebuilds what is derived from the engines.
func (t *Table) index(now time.Time, ch *Changes) {
	for _, m := range t.models {
		for _, e := range m.engines { // as they were before
			if t.there(e, now) {
				m.last, e.top.last = now, now
			}
		}
		m.engines = nil
	}
	for _, r := range t.tops {
		r.engines = 0
	}
	for _, e := range t.engines {
		if e.top = t.tops[e.Replica]; e.top == nil {
			e.top = &top{draining: t.orders.Draining[e.Replica]}
			t.tops[e.Replica] = e.top
		}
		e.top.engines++
		e.top.token, e.top.last = max(e.top.token, e.Token), now
		m := t.models[e.Name.Model]
		if m == nil {
			m = &model{first: now}
			t.models[e.Name.Model] = m
		}
		m.last = now
		m.engines = append(m.engines, e)
		e.model = m
	}
	for name, r := range t.tops {
		if r.engines == 0 && r.inFlight == 0 && !now.Before(r.last.Add(t.cfg.Remember)) {
			delete(t.tops, name)
			ch.Replicas = append(ch.Replicas, name)
		}
	}
	for name, m := range t.models {
		if !t.known(m, now) {
			delete(t.models, name)
			ch.Models = append(ch.Models, name)
			continue
		}
		slices.SortFunc(m.engines, func(a, b *engine) int { return strings.Compare(a.ServiceID, b.ServiceID) })
	}
	sort.Strings(ch.Replicas)
	sort.Strings(ch.Models)
}

// there tells whether the engine is in Consul or used although it is not.
func (t *Table) there(e *engine, now time.Time) bool { return e.listed || t.used(e, now) }

// used tells whether Consul vouches for the engine, or did before it lost sight
// of it.
func (t *Table) used(e *engine, now time.Time) bool {
	return e.passing || now.Before(e.keptUntil) || e.lost()
}

// lost tells whether the engine's own check passes on a node that Consul cannot
// see: its agent may be dead or the node may be.
func (e *engine) lost() bool { return e.listed && e.NodeDown && !e.dropped }

// usable tells whether the engine may get a request.
func (t *Table) usable(e *engine, now time.Time) bool {
	return t.used(e, now) && e.Token >= e.top.token
}

// known tells whether the model exists for the controller, has engines, has requests,
// or had either lately.
func (t *Table) known(m *model, now time.Time) bool {
	if m.exists {
		return true
	}
	last := m.last
	for _, e := range m.engines {
		if t.there(e, now) {
			return true
		}
		if e.keptUntil.After(last) {
			last = e.keptUntil
		}
	}
	return m.inFlight > 0 || now.Before(last.Add(t.cfg.Remember))
}

// Ready tells whether there was an update.
func (t *Table) Ready() bool { return t.ready }

// Pick chooses an engine of the request's model, none of those that it has tried.
// Those of replicas that drain come after the others, then engines on nodes that Consul
// cannot see, suspect ones last. The error is ErrNoList, ErrUnknownModel or ErrNoEngine.
func (t *Table) Pick(now time.Time, r Request) (Pick, error) {
	if !t.ready {
		return Pick{}, ErrNoList
	}
	m := t.models[r.Model]
	if m == nil || !t.known(m, now) {
		return Pick{}, ErrUnknownModel
	}
	var best *engine
	bestRank := 0
	for _, e := range m.engines {
		if !t.usable(e, now) || slices.Contains(r.Tried, e.ServiceID) {
			continue
		}
		rank := e.rank(now)
		if best == nil || rank < bestRank || (rank == bestRank && e.less(best)) {
			best, bestRank = e, rank
		}
	}
	if best == nil {
		return Pick{}, ErrNoEngine
	}
	t.picks++
	best.lastPick = t.picks
	best.inFlight++
	best.top.inFlight++
	m.inFlight++
	f := &flight{Flight: Flight{ID: r.ID, Started: now}}
	best.top.flights.add(f)
	best.top.lastPick = now
	return Pick{Endpoint: best.Endpoint, e: best, f: f}, nil
}

// rank is lower for engines that are asked first.
func (e *engine) rank(now time.Time) int {
	rank := 0
	switch {
	case now.Before(e.suspectUntil):
		rank = 4
	case e.lost():
		rank = 2
	}
	if e.top.draining {
		rank++
	}
	return rank
}

// less tells whether e is less busy than f, or as busy and idle for longer.
func (e *engine) less(f *engine) bool {
	if a, b := e.inFlight*f.Slots, f.inFlight*e.Slots; a != b {
		return a < b
	}
	return e.lastPick < f.lastPick
}

// Release ends a pick, exactly once. Config.Remember counts from here, so that
// what is counted of the request afterwards is forgotten with the rest.
func (t *Table) Release(now time.Time, p Pick) {
	p.e.inFlight--
	p.e.top.inFlight--
	p.e.top.flights.remove(p.f)
	p.e.model.inFlight--
	p.e.top.last, p.e.model.last = now, now
}

// DialFailed notes that no connection to the picked engine could be made: it
// becomes suspect, and an engine that Consul does not vouch for is dropped. It
// returns whether this is news.
func (t *Table) DialFailed(now time.Time, p Pick) bool {
	e := p.e
	news := !now.Before(e.suspectUntil) || !e.keptUntil.IsZero() || e.lost()
	e.suspectUntil = now.Add(t.cfg.Suspect)
	e.keptUntil = time.Time{}
	e.dropped = e.NodeDown
	return news
}

// Failed notes that the picked engine took the request and failed it.
func (t *Table) Failed(now time.Time, p Pick) { p.e.suspectUntil = now.Add(t.cfg.Suspect) }

// Answered notes that the picked engine gave a proper answer: it is no longer
// suspect.
func (t *Table) Answered(p Pick) { p.e.suspectUntil = time.Time{} }
