package lock_test

import (
	"slices"
	"time"

	"remuda/lockd/lock"
)

// What the machine does.

// event lets the machine work and checks all that came of it. c is the
// connection that it came from, nil for none.
func (w *world) event(c *connection, f func() []lock.Effect) {
	w.before = w.look()
	w.carryOut(f(), c)
}

func (w *world) look() view {
	v := view{map[string]lock.Status{}, map[string][]lock.ConnID{}}
	for _, s := range w.m.Status() {
		v.status[s.Group], v.queue[s.Group] = s, w.m.Queue(s.Group)
	}
	return v
}

func (w *world) carryOut(effects []lock.Effect, from *connection) {
	var wake time.Time
	for i, e := range effects {
		switch e := e.(type) {
		case lock.Send:
			c := w.byID[e.Conn]
			w.require(c != nil && !c.shut && !c.ended, "%+v is for a closed connection", e)
			w.sendTo(c, e.Message)
		case lock.Close:
			c := w.byID[e.Conn]
			w.require(c != nil && !c.shut && !c.ended, "%+v is for a closed connection", e)
			c.shut = true
			w.checkClose(c, from)
		case lock.Persist:
			w.persist(e)
		case lock.Watch:
			key := grantKey{e.Group, e.Token}
			w.require(e.Peer.Process != nil && w.watch(key) == nil, "%+v comes twice", e)
			w.require(e.Peer.Process.Boot == w.bootID, "%+v is of another boot", e)
			w.watches = append(w.watches, &watched{key: key, p: w.procs[e.Peer.Process.PID-1]})
		case lock.Fence:
			w.fence(e)
		case lock.Wake:
			w.require(i == len(effects)-1, "a wake is not the last effect")
			wake = e.At
		}
	}
	w.wake = wake
	w.check(from)
}

func (w *world) require(ok bool, format string, args ...any) {
	w.t.Helper()
	if !ok {
		w.t.Fatalf(format, args...)
	}
}

func (w *world) watch(key grantKey) *watched {
	for _, x := range w.watches {
		if x.key == key {
			return x
		}
	}
	return nil
}

func (w *world) sendTo(c *connection, m lock.Message) {
	switch m.Event {
	case "waiting":
		w.require(m.Position != c.position, "position %d is no news for %d", m.Position, c.id)
		c.position = m.Position
	case "pong":
		if p := c.p; !c.left && (p.holds[c.group] || p.tokens[c.group] == 0) {
			p.heard[c.group] = w.now
		}
	case "granted":
		w.grant(c, m)
	case "refused":
		w.require(m.Code != "" && m.Error != "", "no reason: %+v", m)
		c.refused = true
	default:
		w.t.Fatalf("unknown message %+v", m)
	}
}

func (w *world) grant(c *connection, m lock.Message) {
	g, p := c.group, c.p
	r := w.disk.Groups[g]
	w.require(r.Token == m.Token && r.Holder == c.holder && same(r.Peer, p.peer), "%+v is sent to %s, on disk is %+v", m, p.name, r)
	w.require(c.asked == 0 || c.asked == m.Token, "%+v is sent to who asked with token %d", m, c.asked)
	w.require(p.local() || !m.Regranted || c.asked != 0, "%+v is sent to who showed no token", m)
	w.require(m.Token >= w.sent[g], "token %d of %s is sent after %d", m.Token, g, w.sent[g])
	if m.Token == w.sent[g] {
		w.require(m.Regranted && w.got[g] == p, "token %d was sent to %s, and now to %s: %+v", m.Token, w.got[g].name, p.name, m)
	}
	w.onlyHolder(g, p)
	w.sent[g], w.got[g], c.granted = m.Token, p, m.Token
	if p.alive || p.kids {
		p.holds[g] = true
	}
	if c.heard.After(p.heard[g]) {
		p.heard[g] = c.heard
	}
	if !c.left {
		p.tokens[g] = m.Token
	}
	w.sweep()
}

// onlyHolder checks that nobody but p, nil for nobody, may act on a grant of g.
func (w *world) onlyHolder(g string, p *process) {
	for _, other := range w.procs {
		w.require(other == p || !other.holds[g], "%s holds %s, which is given to another", other.name, g)
	}
}

func same(a, b lock.Peer) bool {
	if a.Process == nil || b.Process == nil {
		return a == b
	}
	return *a.Process == *b.Process
}

func (w *world) persist(e lock.Persist) {
	w.require(e.Records.Token >= w.disk.Token, "the token goes from %d to %d", w.disk.Token, e.Records.Token)
	for _, g := range w.groups {
		r, held := e.Records.Groups[g]
		if !held {
			w.onlyHolder(g, nil)
			continue
		}
		w.require(r.Token <= e.Records.Token, "the token of %s is %d, the largest %d", g, r.Token, e.Records.Token)
		for _, p := range w.procs {
			w.require(!p.holds[g] || same(p.peer, r.Peer), "%s holds %s, %+v is written", p.name, g, r)
		}
	}
	w.unsaved = append(w.unsaved, e)
}

func (w *world) fence(e lock.Fence) {
	x := w.watch(grantKey{e.Group, e.Token})
	w.require(x != nil && same(x.p.peer, e.Peer), "%+v is not watched", e)
	w.require(!x.fenced, "%+v comes twice", e)
	since, away := w.away[e.Group]
	w.require(x.died || away && !w.now.Before(since.Add(times.Reconnect)), "%s lives and has time: %+v", x.p.name, e)
	x.fenced = true
}

// check compares the machine with the world, after every event.
func (w *world) check(from *connection) {
	after := w.look()
	remembered := 0
	var due []time.Time
	known := map[lock.ConnID]bool{}
	for g, s := range after.status {
		holder, pending, queue := w.m.HolderConn(g), w.m.Pending(g), after.queue[g]
		before := w.before.status[g]
		w.require(s.Token >= before.Token, "the token of %s goes back", g)
		if s.Token != before.Token {
			w.granted[g] = w.now
		}
		if s.State != lock.Reconnecting {
			delete(w.away, g)
		} else if before.State != s.State || before.Token != s.Token {
			w.away[g] = w.now
		}
		x := w.watch(grantKey{g, s.Token})
		remote := s.PID == 0
		if pending != 0 {
			w.require(w.awaited(pending), "nobody answers version %d, for which %s waits", pending, g)
		}
		switch s.State {
		case lock.Free:
			w.require(len(queue) == 0 && holder == 0 && pending == 0, "%s is free: %+v, holder %d, pending %d", g, s, holder, pending)
		case lock.Held:
			c := w.byID[holder]
			w.require(c != nil && !c.shut && !c.ended, "%s is held on connection %d", g, holder)
			w.require(pending != 0 || c.granted == s.Token, "%s was not told of its token %d", s.Holder, s.Token)
			w.require(pending == 0 || c.granted == 0, "%s was told before its record was written", s.Holder)
			if remote {
				due = append(due, later(c.heard, w.granted[g]).Add(times.SessionTTL))
			}
		case lock.Reconnecting:
			w.require(holder == 0, "%s has connection %d and is reconnecting", g, holder)
			if remote {
				due = append(due, w.away[g].Add(times.SessionTTL+times.LockDelay))
			} else {
				due = append(due, w.away[g].Add(times.Reconnect))
			}
		case lock.Fencing:
			w.require(holder == 0 && x != nil && x.fenced && !x.gone, "%s waits for the end of nobody", g)
		}
		if s.State == lock.Held || s.State == lock.Reconnecting {
			w.require(remote || x != nil && !x.died, "%s is held by a process that nobody watches", g)
		}
		if holder != 0 {
			remembered++
			known[holder] = true
		}
		for i, id := range queue {
			c := w.byID[id]
			w.require(c != nil && !c.shut && !c.ended && c.group == g, "connection %d waits for %s", id, g)
			w.require(c.position == i+1, "connection %d is at %d and was told %d", id, i+1, c.position)
			w.require(!known[id], "connection %d is known twice", id)
			known[id] = true
			w.require(!w.holder(s, c), "%s waits behind itself", c.p.name)
			for _, other := range queue[:i] {
				o := w.byID[other]
				w.require(o.p != c.p || o.holder != c.holder || !c.p.local(), "%s waits twice", c.p.name)
			}
			if !c.p.local() {
				due = append(due, c.heard.Add(times.SessionTTL))
			}
		}
		remembered += len(queue)
		w.checkOrder(g, after, from)
	}
	for _, c := range w.conns {
		if c.shut {
			remembered++
		} else {
			w.require(known[c.id], "connection %d is forgotten", c.id)
		}
	}
	w.require(w.m.Conns() == remembered, "the machine remembers %d connections, want %d", w.m.Conns(), remembered)
	for _, at := range due {
		w.require(!w.wake.IsZero() && !w.wake.After(at), "wake at %s, due at %s", w.wake, at)
	}
	w.require(w.wake.IsZero() || len(due) > 0, "wake at %s for nothing", w.wake)
}

// holder tells whether a connection is of the local process that holds the lock
// under the same name.
func (w *world) holder(s lock.Status, c *connection) bool {
	return c.p.local() && s.PID == c.p.peer.Process.PID && s.Holder == c.holder
}

// checkClose checks that the machine has a reason to close a connection.
func (w *world) checkClose(c *connection, from *connection) {
	if c.refused || !slices.Contains(w.before.queue[c.group], c.id) && c.p.local() {
		return
	}
	silent := !c.p.local() && !w.now.Before(c.heard.Add(times.SessionTTL))
	replaced := from != nil && from.p.peer == c.p.peer && from.holder == c.holder
	dead := c.p.local() && !c.p.alive
	w.require(silent || replaced || dead, "connection %d of %s is closed for no reason", c.id, c.p.name)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (w *world) awaited(version uint64) bool {
	return slices.ContainsFunc(w.unsaved, func(p lock.Persist) bool { return p.Version >= version }) ||
		slices.ContainsFunc(w.answers, func(a answer) bool { return a.version >= version })
}

// checkOrder checks that waiters are served first come, first served.
func (w *world) checkOrder(g string, after view, from *connection) {
	before, queue := w.before.queue[g], after.queue[g]
	stayed := filter(before, func(id lock.ConnID) bool { return slices.Contains(queue, id) })
	old := filter(queue, func(id lock.ConnID) bool { return slices.Contains(before, id) })
	w.require(slices.Equal(stayed, old), "the queue of %s went from %v to %v", g, before, queue)
	for i, id := range queue {
		if slices.Contains(before, id) {
			continue
		}
		w.require(from != nil && from.id == id, "connection %d waits for %s and did not ask", id, g)
		last := i == len(queue)-1
		again := i < len(before) && w.byID[before[i]].shut && w.byID[before[i]].p == from.p && from.p.local()
		w.require(last || again, "connection %d is at %d of %v", id, i+1, queue)
	}
	if after.status[g].Token == w.before.status[g].Token || after.status[g].State == lock.Free || len(before) == 0 {
		return
	}
	// Somebody was picked: the first who was there.
	first := filter(before, func(id lock.ConnID) bool { return !w.byID[id].shut && !w.byID[id].ended })
	w.require(len(first) > 0 && first[0] == w.m.HolderConn(g), "of %v of %s, %d was picked", before, g, w.m.HolderConn(g))
}

// settle lets everything happen that is under way, and ends every holder: then
// everybody has had its turn and nothing is left.
func (w *world) settle() {
	for range 10_000 {
		if !w.settleOne() {
			w.require(len(w.m.Status()) == 0, "not free and forgotten: %+v", w.m.Status())
			for g, r := range w.disk.Groups {
				rebooted := r.Peer.Process != nil && r.Peer.Process.Boot != w.bootID
				w.require(r.Holder == "" || rebooted || w.failed, "%s is free, on disk is %+v", g, r)
			}
			w.require(w.m.Conns() == 0, "%d connections are left", w.m.Conns())
			return
		}
	}
	w.t.Fatalf("no end: %+v", w.m.Status())
}

func (w *world) settleOne() bool {
	if len(w.unsaved) > 0 {
		w.save(len(w.unsaved)-1, "ok")
		return true
	}
	if len(w.answers) > 0 {
		w.answer(w.answers[0])
		return true
	}
	for _, c := range w.conns {
		if c.shut || c.left && !c.p.kids {
			w.close(c)
			return true
		}
	}
	for _, x := range w.watches {
		switch {
		case x.gone:
		case !x.p.alive && !x.died:
			w.sayDied(x)
			return true
		case x.fenced && !x.killed:
			w.killCohort(x)
			return true
		case x.killed:
			w.sayGone(x)
			return true
		}
	}
	status := w.look().status
	for _, g := range w.groups {
		if s := status[g]; s.State == lock.Held && w.m.Pending(g) == 0 {
			c := w.byID[w.m.HolderConn(g)]
			w.require(c.granted == s.Token, "%s was not told", s.Holder)
			if c.p.local() {
				w.end(c.p, false)
			} else {
				c.left = true
			}
			return true
		}
	}
	// Only time is left. Remote waiters that live say so.
	if w.wake.IsZero() {
		return false
	}
	for _, c := range w.conns {
		if !c.p.local() && !c.left && !c.shut && w.now.After(c.heard) {
			w.pingOn(c)
			return true
		}
	}
	w.wakeUp()
	return true
}
