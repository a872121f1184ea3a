package dispatch

import (
	"time"

	"remuda/controller/gateway/balance"
)

// Grant is the right to send one request to one engine.
type Grant struct {
	d    *Dispatcher
	m    *model
	key  string
	pick balance.Pick
	// first: the request had no engine before. began is when it got this one.
	first bool
	began time.Time
}

// grant gives an engine to a request. mu is held.
func (d *Dispatcher) grant(now time.Time, m *model, r *Request, pick balance.Pick) *Grant {
	first := !r.served
	r.asked, r.served = true, true
	if goal := d.goals[m.name]; first && goal > 0 && !r.Arrived.IsZero() && now.Sub(r.Arrived) > goal {
		m.counts.Late++
	}
	return &Grant{d: d, m: m, key: r.Key, pick: pick, first: first, began: now}
}

// Engine is the engine.
func (g *Grant) Engine() *balance.Endpoint { return g.pick.Endpoint }

// Failed notes a fault of the engine, and tells whether it gets no requests from now on
// and did until now.
func (g *Grant) Failed(f balance.Fault) (news bool) {
	g.d.mu.Lock()
	defer g.d.mu.Unlock()
	return g.d.table.Failed(time.Now(), g.pick, f)
}

// GivenUp notes that the client waits no more for the engine's first byte, and tells what
// Failed does.
func (g *Grant) GivenUp(patience time.Duration) (news bool) {
	g.d.mu.Lock()
	defer g.d.mu.Unlock()
	return g.d.table.GivenUp(time.Now(), g.pick, patience)
}

// Answered notes that the engine gave a proper answer, or began to. One that was broken
// takes those who wait again.
func (g *Grant) Answered() {
	g.d.mu.Lock()
	defer g.d.mu.Unlock()
	now := time.Now()
	g.d.table.Answered(now, g.pick)
	g.d.pump(now, g.m)
}

// Release ends the grant, exactly once and after everything else. The slot goes to the one who
// waits for it.
func (g *Grant) Release() {
	g.d.mu.Lock()
	defer g.d.mu.Unlock()
	now := time.Now()
	g.d.table.Release(now, g.pick)
	g.m.drain.Done(now)
	g.m.counts.left(now, g)
	g.m.leave(g.key)
	g.d.pump(now, g.m)
	g.d.wants.tell()
}
