package balance

import (
	"slices"
	"time"
)

// Request is what Pick finds an engine for.
type Request struct {
	// ID is the request's own, and Key the name of its API key, for Flights.
	ID, Key string
	// Model is what the client named.
	Model string
	// Tried are service IDs of engines that already failed this request. They are
	// avoided while another engine may serve whose breaker is not open, be it busy.
	Tried []string
	// Cost is how much work the request is likely to be, in tokens. Less than 1
	// counts as 1.
	Cost int64
	// Prefix is a hash of what the prompt begins with, so that an engine's prefix
	// cache is of use. 0 means none.
	Prefix uint64
	// Replica is the one that has what the request goes on from, empty where there is none. Others
	// are avoided while it serves and its breaker is not open, be it busy.
	Replica string
}

// maxCost keeps sums of costs in range, whatever clients claim.
const maxCost = 1 << 40

// Pick is the right to send one request to an engine. It ends with Release.
type Pick struct {
	*Endpoint
	e *engine
	f *flight
}

// Pick chooses an engine for the request. The error is ErrNoList, ErrUnknownModel,
// ErrNoEngine or ErrBusy.
//
// Engines of Request.Replica come before others, then those that the request has not
// tried before those that it has, and then engines that Consul can see before those on nodes that it cannot. An engine of a
// lower class is used only where each of the higher one has an open breaker: where
// they are merely busy, the request has to wait.
func (t *Table) Pick(now time.Time, r Request) (Pick, error) {
	if !t.ready {
		return Pick{}, ErrNoList
	}
	m := t.models[r.Model]
	if m == nil || !t.known(m, now) {
		return Pick{}, ErrUnknownModel
	}
	e, some := t.choose(now, m, &r, group{})
	if !some && t.orders.Away {
		e, some = t.choose(now, m, &r, group{draining: true})
	}
	switch {
	case !some:
		return Pick{}, ErrNoEngine
	case e == nil:
		return Pick{}, ErrBusy
	}
	t.picks++
	e.lastPick = t.picks
	e.inFlight++
	e.top.inFlight++
	m.inFlight++
	f := &flight{Flight: Flight{ID: r.ID, Key: r.Key, Started: now}, cost: min(max(r.Cost, 1), maxCost), opening: e.breaker.openings}
	if !e.breaker.closed() {
		e.breaker.probe = f
	}
	e.weigh(f.cost)
	m.work += f.cost
	e.top.flights.add(f)
	e.top.lastPick = now
	return Pick{Endpoint: e.Endpoint, e: e, f: f}, nil
}

// Release ends a pick, exactly once. Config.Remember counts from here, so that
// what is counted of the request afterwards is forgotten with the rest.
func (t *Table) Release(now time.Time, p Pick) {
	p.e.inFlight--
	p.e.top.inFlight--
	p.e.top.flights.remove(p.f)
	p.e.model.inFlight--
	p.e.model.work -= p.f.cost
	p.e.weigh(-p.f.cost)
	p.e.breaker.ended(p.f)
	p.e.top.outcomes.ended(p.f)
	p.e.top.last, p.e.model.last = now, now
	if p.e.parted && p.e.inFlight == 0 {
		t.forget(p.e)
	}
}

// group says which engines of a model serve: those that do not drain or, where there
// are none and the controller is away, those that do.
type group struct{ draining bool }

// serving returns the group of the model that serves now.
func (t *Table) serving(m *model, now time.Time) group {
	if !t.orders.Away {
		return group{}
	}
	return group{draining: !slices.ContainsFunc(m.engines, func(e *engine) bool { return t.serves(e, now, group{}) })}
}

// serves tells whether the engine is usable and of the group.
func (t *Table) serves(e *engine, now time.Time, g group) bool {
	return e.top.draining == g.draining && t.usable(e, now)
}

// Classes of engines for one request, the best first.
const (
	classLost  = 1 // on a node that Consul cannot see
	classTried = 2
	classOther = 4 // not of the replica that the request asks for
	classNone  = 8
)

// choose finds the engine of the group that gets the request, nil where none takes it
// now. It returns whether the group has any engine.
func (t *Table) choose(now time.Time, m *model, r *Request, g group) (chosen *engine, some bool) {
	var (
		class = classNone // of closed breakers, the best that there is
		least *engine     // of that class and free
		// Engines that take a probe, late ones also where others have a closed breaker.
		late, early prober
	)
	for _, e := range m.engines {
		if !t.serves(e, now, g) {
			continue
		}
		some = true
		c := r.class(e)
		if !e.breaker.closed() {
			if e.breaker.probe == nil && !e.full() {
				late.offer(now, e, c, e.breaker.until)
				early.offer(now, e, c, e.breaker.early)
			}
			continue
		}
		if c > class {
			continue
		}
		if c < class {
			class, least = c, nil
		}
		if !e.full() && (least == nil || e.less(least)) {
			least = e
		}
	}
	probe := late
	if class == classNone {
		probe = early
	}
	switch {
	case probe.e != nil && (probe.class < class || probe.class == class && (len(r.Tried) == 0 || least == nil)):
		// Without this an engine would be probed only by chance. A request that has
		// failed before is not risked while another engine is free.
		return probe.e, some
	case least != nil && r.Prefix != 0 && class == 0:
		return t.home(now, m, r, g, least), some
	}
	return least, some
}

// class is that of an engine for the request.
func (r *Request) class(e *engine) int {
	c := 0
	if e.lost() {
		c = classLost
	}
	if len(r.Tried) > 0 && slices.Contains(r.Tried, e.ServiceID) {
		c += classTried
	}
	if r.Replica != "" && e.Replica != r.Replica {
		c += classOther
	}
	return c
}

// home finds the engine for the request's prefix. Each prefix has its own order of engines; the first
// one wins that is free and whose work is within the bound, least being the engine with the least
// work. If the first engine of a prefix is busy, its requests all go to the second one. This is
// consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam, 2017).
func (t *Table) home(now time.Time, m *model, r *Request, g group, least *engine) *engine {
	bound := t.cfg.Imbalance.bound(least.perSlot)
	home, score := least, uint64(0)
	for _, e := range m.engines {
		if e.full() || e.perSlot > bound || !e.breaker.closed() || r.class(e) != 0 || !t.serves(e, now, g) {
			continue
		}
		if s := rendezvous(r.Prefix, e.hash); s > score || s == score && e.less(home) {
			home, score = e, s
		}
	}
	return home
}

// prober is an engine whose breaker lets a probe through: of the best class the one
// that has been due for longest.
type prober struct {
	e     *engine
	class int
	since time.Time
}

func (p *prober) offer(now time.Time, e *engine, class int, due time.Time) {
	if due.After(now) {
		return
	}
	if p.e == nil || class < p.class || class == p.class && due.Before(p.since) {
		p.e, p.class, p.since = e, class, due
	}
}

// less tells whether e has less to do than f, or as much and is nearer, or is idle for longer.
func (e *engine) less(f *engine) bool {
	if e.perSlot != f.perSlot {
		return e.perSlot < f.perSlot
	}
	if a, b := e.inFlight*f.Slots, f.inFlight*e.Slots; a != b {
		return a < b
	}
	if e.Near != f.Near {
		return e.Near
	}
	return e.lastPick < f.lastPick
}

// bound is the most work per slot with which an engine gets the requests of its
// prefixes, where another one has the given least.
func (i *Imbalance) bound(least float64) float64 { return i.Factor*least + float64(i.Slack) }

// rendezvous scores an engine for a prefix: the highest score has it. When an engine
// comes or goes only its own prefixes move. The mixing is the finalizer of MurmurHash3.
func rendezvous(prefix, replica uint64) uint64 {
	x := prefix ^ replica
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
