package balance

import (
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"

	"remuda/internal/replica"
)

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
		in.Slots = min(max(in.Slots, 1), maxSlots)
		id := in.ID()
		// An ID can be listed twice when a replica moved and its old node has
		// not been cleaned up: the higher token is the truth, then health.
		if have := next[id]; have != nil && !newer(in, have.Engine) {
			continue
		}
		old := t.engines[id]
		p := &Endpoint{Engine: in, ServiceID: id, Addr: in.HostPort(), Replica: in.Name.String()}
		e := old
		switch {
		case old != nil && old.is(p):
			// The same engine: what is known of it stays.
			e.dropped = e.dropped && in.NodeDown
		default:
			if e = t.parting(p); e == nil {
				e = &engine{hash: xxhash.Sum64String(p.Replica)}
			}
		}
		e.Endpoint = p
		e.weigh(0) // it may have more or fewer slots now
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
	for id, e := range t.engines {
		if next[id] != e {
			t.part(e)
		}
	}
	for _, e := range next {
		if e.parted {
			t.rejoin(e)
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
			t.part(e)
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

// is tells whether the endpoint is the same process as the engine's.
func (e *engine) is(p *Endpoint) bool { return e.Addr == p.Addr && e.Token == p.Token }

// part remembers an engine that left the table with requests at it. Should it be listed
// again before they end, they still take its slots.
func (t *Table) part(e *engine) {
	if e.inFlight > 0 {
		e.parted = true
		t.parted[e.ServiceID] = append(t.parted[e.ServiceID], e)
	}
}

// parting finds the endpoint among the engines that left.
func (t *Table) parting(p *Endpoint) *engine {
	for _, e := range t.parted[p.ServiceID] {
		if e.is(p) {
			return e
		}
	}
	return nil
}

// rejoin takes an engine back, with its requests and nothing else that was known of it.
func (t *Table) rejoin(e *engine) {
	t.forget(e)
	e.dropped = false
	e.breaker = breaker{openings: e.breaker.openings + 1}
}

// forget ends part.
func (t *Table) forget(e *engine) {
	e.parted = false
	left := slices.DeleteFunc(t.parted[e.ServiceID], func(o *engine) bool { return o == e })
	if len(left) == 0 {
		delete(t.parted, e.ServiceID)
	} else {
		t.parted[e.ServiceID] = left
	}
}

// newer tells whether a describes the engine better than b.
func newer(a, b replica.Engine) bool {
	if c := a.Token.Compare(b.Token); c != 0 {
		return c > 0
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
			e.top = &top{draining: t.orders.Draining[e.Replica], share: t.limitOf(e.Replica)}
			t.tops[e.Replica] = e.top
		}
		e.top.engines++
		e.top.last = now
		if e.Token.Compare(e.top.token) > 0 {
			e.top.token = e.Token
		}
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
	return t.used(e, now) && e.Token.Compare(e.top.token) >= 0
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
