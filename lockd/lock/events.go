package lock

import (
	"maps"
	"slices"
	"time"
)

// Acquire is a client that wants a group's lock, or wants it back: token is what
// it was granted before, 0 for nothing. A connection asks once.
func (m *Machine) Acquire(now time.Time, conn ConnID, name, holder string, token uint64, peer Peer) []Effect {
	if m.closed[conn] {
		return m.done()
	}
	if name == "" || holder == "" { // a record without holder is a free lock
		m.drop(now, conn)
		m.refuse(conn, CodeBadRequest, "group and holder must be set")
		return m.done()
	}
	if _, asked := m.conns[conn]; asked {
		m.drop(now, conn)
		m.refuse(conn, CodeBadRequest, "this connection has already requested a lock: use one connection for each lock")
		return m.done()
	}
	g := m.groups[name]
	if g == nil {
		g = &group{name: name, state: Free}
		m.groups[name] = g
	}
	mine := g.state != Free && g.holder == holder && g.peer.same(peer)
	switch {
	case token != 0 && g.state == Free:
		m.refuse(conn, CodeStale, "token %d of group %q is not valid: the group has no holder: the lock is lost", token, name)
		m.forget(g)
	case token != 0 && token != g.token:
		m.refuse(conn, CodeStale, "token %d of group %q is not valid (newest: %d): the lock is lost", token, name, g.token)
	case token != 0 && !mine:
		m.refuse(conn, CodeNotHolder, "token %d of group %q belongs to another process of holder %q", token, name, g.holder)
	// A local process that holds the lock is known by the kernel, also if it
	// never heard of its grant.
	case mine && (token != 0 || peer.Process != nil):
		if g.state == Fencing {
			m.refuse(conn, CodeLost, "the lock of group %q is lost: its holder %q is being killed", name, holder)
			break
		}
		m.resume(now, g, conn, peer.TTL)
	default:
		m.wait(now, g, waiter{conn: conn, holder: holder, peer: peer, until: m.session(now, peer)})
	}
	return m.done()
}

// wait queues a waiter. A local process that waits already under the same name
// uses its newest connection, which takes the place of the one before: that one
// may be open only because a child has inherited it, and a grant sent there
// would be read by nobody.
func (m *Machine) wait(now time.Time, g *group, w waiter) {
	m.conns[w.conn] = g.name
	at := slices.IndexFunc(g.waiters, func(old waiter) bool {
		return w.peer.Process != nil && old.holder == w.holder && old.peer.same(w.peer)
	})
	if at < 0 {
		g.waiters = append(g.waiters, w)
	} else {
		m.close(g.waiters[at].conn)
		g.waiters[at] = w
	}
	m.next(now, g)
}

// session is when a peer that is silent from now on is given up; zero for a
// local one that gives no signs of life.
func (m *Machine) session(now time.Time, peer Peer) time.Time {
	switch {
	case peer.Process == nil:
		return now.Add(m.times.SessionTTL)
	case peer.TTL > 0:
		return now.Add(peer.TTL)
	default:
		return time.Time{}
	}
}

// resume gives the lock back to its holder on a new connection.
func (m *Machine) resume(now time.Time, g *group, conn ConnID, ttl time.Duration) {
	g.peer.TTL = ttl
	if g.conn != 0 {
		m.close(g.conn)
	}
	g.conn, g.state, g.until = conn, Held, m.session(now, g.peer)
	m.conns[conn] = g.name
	if g.pending == 0 {
		m.emit(Send{conn, Message{Event: "granted", Token: g.token, Regranted: true}})
	}
}

// next grants a free lock to the first waiter and tells the others where they
// are.
func (m *Machine) next(now time.Time, g *group) {
	if g.state == Free && len(g.waiters) > 0 {
		w := g.waiters[0]
		g.waiters = g.waiters[1:]
		m.token++
		g.token = m.token
		g.holder, g.peer, g.conn = w.holder, w.peer, w.conn
		g.since, g.state, g.until = now, Held, m.session(now, w.peer)
		if w.peer.Process != nil {
			m.emit(Watch{g.name, g.token, g.peer})
		}
		g.pending = m.persist()
	}
	for i := range g.waiters {
		if w := &g.waiters[i]; w.told != i+1 {
			w.told = i + 1
			m.emit(Send{w.conn, Message{Event: "waiting", Position: w.told}})
		}
	}
	m.forget(g)
}

// forget drops a group that has neither a holder nor a waiter.
func (m *Machine) forget(g *group) {
	if g.state == Free && len(g.waiters) == 0 {
		delete(m.groups, g.name)
	}
}

// Ping keeps a session alive and answers.
func (m *Machine) Ping(now time.Time, conn ConnID) []Effect {
	if m.closed[conn] {
		return m.done()
	}
	if name, ok := m.conns[conn]; ok {
		g := m.groups[name]
		if g.conn == conn {
			g.until = m.session(now, g.peer)
		}
		for i := range g.waiters {
			if w := &g.waiters[i]; w.conn == conn {
				w.until = m.session(now, w.peer)
			}
		}
	}
	m.emit(Send{conn, Message{Event: "pong"}})
	return m.done()
}

// Closed tells that a connection has ended, by whichever side. It is the last
// event of every connection.
func (m *Machine) Closed(now time.Time, conn ConnID) []Effect {
	m.drop(now, conn)
	delete(m.closed, conn)
	return m.done()
}

// drop forgets a connection. For a waiter that is all; of a holder it proves
// nothing.
func (m *Machine) drop(now time.Time, conn ConnID) {
	name, ok := m.conns[conn]
	if !ok {
		return
	}
	delete(m.conns, conn)
	g := m.groups[name]
	for i := range g.waiters {
		if g.waiters[i].conn == conn {
			g.waiters = append(g.waiters[:i:i], g.waiters[i+1:]...)
			m.next(now, g)
			return
		}
	}
	if g.conn != conn {
		return
	}
	g.conn = 0
	if g.state == Held {
		g.state = Reconnecting
		if g.peer.Process != nil {
			g.until = now.Add(m.times.Reconnect)
		} else {
			// It may have been heard of just now.
			g.until = now.Add(m.times.SessionTTL + m.times.LockDelay)
		}
	}
}

// Died tells that the process of the holder that was granted token has ended.
// What descends from it may still live.
func (m *Machine) Died(_ time.Time, name string, token uint64) []Effect {
	if g := m.groups[name]; g != nil && g.token == token && (g.state == Held || g.state == Reconnecting) {
		m.fence(g)
	}
	return m.done()
}

// fence ends a local holder.
func (m *Machine) fence(g *group) {
	g.state, g.until = Fencing, time.Time{}
	if g.conn != 0 {
		m.close(g.conn)
		g.conn = 0
	}
	m.emit(Fence{g.name, g.token, g.peer})
}

// Gone tells that the holder that was granted token, and all that could hold GPU
// memory of it, is proven gone.
func (m *Machine) Gone(now time.Time, name string, token uint64) []Effect {
	if g := m.groups[name]; g != nil && g.token == token && g.state == Fencing {
		m.free(now, g)
	}
	return m.done()
}

// free opens the lock after the end of its holder.
func (m *Machine) free(now time.Time, g *group) {
	dead := g.peer
	g.state, g.holder, g.peer, g.pending, g.until, g.since = Free, "", Peer{}, 0, time.Time{}, time.Time{}
	kept := g.waiters[:0:0]
	for _, w := range g.waiters {
		if dead.Process != nil && w.peer.same(dead) {
			// A process that is dead waits for nothing.
			m.close(w.conn)
			continue
		}
		kept = append(kept, w)
	}
	g.waiters = kept
	m.next(now, g)
	if g.state == Free {
		m.version++
		m.emit(Persist{Version: m.version, Records: m.Records(), Later: true})
	}
}

// Persisted tells that the records of a version, and of all before it, are on
// disk, or that they could not be written: then nobody is granted anything.
func (m *Machine) Persisted(now time.Time, version uint64, err error) []Effect {
	for _, name := range m.names() {
		g := m.groups[name]
		if g == nil || g.pending == 0 || g.pending > version {
			continue
		}
		g.pending = 0
		if err == nil {
			if g.conn != 0 && g.state == Held {
				m.emit(Send{g.conn, Message{Event: "granted", Token: g.token}})
			}
			continue
		}
		if g.state == Fencing {
			continue // its end is being proven, whatever is on disk
		}
		// The holder never knew that it was one. Whether its record is on disk
		// is not known, so its token is not used again.
		conn := g.conn
		g.state, g.holder, g.peer, g.conn, g.until = Free, "", Peer{}, 0, time.Time{}
		if conn != 0 {
			m.refuse(conn, CodeState, "cannot grant group %q: cannot write the state file: %v", name, err)
		}
		m.next(now, g)
		if g.state == Free {
			// A restart must not find a holder in a record that was written
			// after all, or with another group's: it would be fenced in the end.
			m.persist()
		}
	}
	return m.done()
}

// Tick does what is due at now.
func (m *Machine) Tick(now time.Time) []Effect {
	for _, name := range m.names() {
		g := m.groups[name]
		m.expireWaiters(now, g) // a group that is free has none
		if g.until.IsZero() || now.Before(g.until) {
			continue
		}
		switch {
		case g.state == Reconnecting && g.peer.Process != nil:
			m.fence(g)
		case g.state == Reconnecting:
			m.free(now, g)
		case g.state == Held: // a holder that is silent
			conn := g.conn
			ended := g.until
			m.drop(now, conn)
			m.close(conn)
			if g.peer.Process == nil {
				g.until = ended.Add(m.times.LockDelay)
			}
		}
	}
	return m.done()
}

// expireWaiters drops waiters that are silent: a lock that is granted to a process
// that hangs would have to be won back first.
func (m *Machine) expireWaiters(now time.Time, g *group) {
	var late []ConnID
	for _, w := range g.waiters {
		if !w.until.IsZero() && !now.Before(w.until) {
			late = append(late, w.conn)
		}
	}
	for _, conn := range late {
		m.drop(now, conn)
		m.close(conn)
	}
}

// done returns the effects, with the time of the next Tick at their end.
func (m *Machine) done() []Effect {
	m.wake()
	return m.take()
}

// wake asks for the next Tick.
func (m *Machine) wake() {
	var at time.Time
	earlier := func(t time.Time) {
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	for _, g := range m.groups {
		earlier(g.until)
		for _, w := range g.waiters {
			earlier(w.until)
		}
	}
	if !at.IsZero() {
		m.emit(Wake{at})
	}
}

func (m *Machine) names() []string {
	return slices.Sorted(maps.Keys(m.groups))
}

// Status returns every group that has a holder or a waiter, sorted by name.
func (m *Machine) Status() []Status {
	out := make([]Status, 0, len(m.groups))
	for _, name := range m.names() {
		g := m.groups[name]
		s := Status{Group: name, State: g.state, Token: g.token}
		if g.state != Free {
			s.Holder, s.Since = g.holder, g.since
			if g.peer.Process != nil {
				s.PID = g.peer.Process.PID
			}
		}
		for _, w := range g.waiters {
			s.Waiters = append(s.Waiters, w.holder)
		}
		out = append(out, s)
	}
	return out
}
