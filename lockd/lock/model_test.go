package lock_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"remuda/lockd/lock"
)

// TestModel runs the machine in a small world of processes, connections and a
// disk, each of which may fail or be late at any time, and checks after every
// event what the package promises.
func TestModel(t *testing.T) {
	for _, tc := range []struct {
		name   string
		groups []string
		kinds  []string
	}{
		{"local", []string{"g"}, []string{"local"}},
		{"remote", []string{"g"}, []string{"remote"}},
		{"mixed", []string{"g", "h"}, []string{"local", "remote"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) {
				w := newWorld(t, tc.groups, tc.kinds)
				actions := w.actions()
				for range 6 { // rapid's own runs are short
					t.Repeat(actions)
				}
				w.settle()
			})
		})
	}
}

// process is a client, which may have several connections.
type process struct {
	name  string
	peer  lock.Peer
	alive bool
	// kids are survivors of its cohort: they hold GPU memory and the process's
	// descriptors.
	kids bool
	// slack is how late a remote process learns that its session is over.
	slack time.Duration
	// tokens are what it was told, by group.
	tokens map[string]uint64
	// holds are the groups that it was granted and may still act on.
	holds map[string]bool
	// heard is when a remote process last knew that its session in a group was
	// good.
	heard map[string]time.Time
}

func (p *process) local() bool { return p.peer.Process != nil }

// connection is one as the owner sees it.
type connection struct {
	id            lock.ConnID
	p             *process
	group, holder string
	// asked is the token that it asked with.
	asked uint64
	// heard is when the machine last heard of it.
	heard time.Time
	// left: the client has closed it and the machine does not know.
	left bool
	// shut: the machine has closed it; ended: Closed was its last event.
	shut, ended bool
	refused     bool
	granted     uint64
	position    int
}

type grantKey struct {
	group string
	token uint64
}

// watched is a Watch and what came of it.
type watched struct {
	key    grantKey
	p      *process
	died   bool // said
	fenced bool
	killed bool
	gone   bool // said
}

type answer struct {
	version uint64
	err     error
}

type view struct {
	status map[string]lock.Status
	queue  map[string][]lock.ConnID
}

type world struct {
	t      *rapid.T
	groups []string
	kinds  []string
	now    time.Time
	bootID string
	procs  []*process

	// Of the present lockd.
	m       *lock.Machine
	conns   []*connection // not ended
	byID    map[lock.ConnID]*connection
	unsaved []lock.Persist
	answers []answer
	watches []*watched
	wake    time.Time
	before  view
	lastID  lock.ConnID
	// away is since when a group is reconnecting, granted when it got its
	// present token.
	away, granted map[string]time.Time

	// Of all lockds.
	disk lock.Records
	// failed: the last write was not a success.
	failed bool
	// sent is the largest token of a sent grant, and who got it.
	sent map[string]uint64
	got  map[string]*process
}

func newWorld(t *rapid.T, groups, kinds []string) *world {
	w := &world{t: t, groups: groups, kinds: kinds, now: start, bootID: boot, sent: map[string]uint64{}, got: map[string]*process{}}
	w.boot()
	return w
}

// boot starts a lockd from what is on disk.
func (w *world) boot() {
	w.conns, w.byID, w.unsaved, w.answers = nil, map[lock.ConnID]*connection{}, nil, nil
	w.watches, w.away, w.granted = nil, map[string]time.Time{}, map[string]time.Time{}
	w.before = view{}
	m, effects := lock.New(w.now, times, w.bootID, w.disk)
	w.m = m
	w.carryOut(effects, nil)
}

func (w *world) actions() map[string]func(*rapid.T) {
	on := func(f func()) func(*rapid.T) {
		return func(t *rapid.T) { w.t = t; f() }
	}
	return map[string]func(*rapid.T){
		"connect": on(w.connect), "connect 2": on(w.connect), "acquire again": on(w.acquireAgain), "ping": on(w.ping),
		"leave": on(w.leave), "closed": on(w.closed), "closed 2": on(w.closed),
		"die": on(w.die), "kids exit": on(w.kidsExit), "died": on(w.died), "kill": on(w.kill), "gone": on(w.gone),
		"write": on(w.write), "write 2": on(w.write), "persisted": on(w.persisted), "persisted 2": on(w.persisted),
		"time": on(w.pass), "tick": on(w.tick), "wake": on(w.wakeUp), "restart": on(w.restart), "reboot": on(w.reboot),
	}
}

// pick draws one of a list, or skips the action.
func pick[T any](t *rapid.T, label string, from []T) T {
	if len(from) == 0 {
		t.Skip("no", label)
	}
	return from[rapid.IntRange(0, len(from)-1).Draw(t, label)]
}

func filter[T any](from []T, keep func(T) bool) []T {
	var out []T
	for _, x := range from {
		if keep(x) {
			out = append(out, x)
		}
	}
	return out
}

// What clients do.

func (w *world) connect() {
	var p *process
	if i := rapid.IntRange(0, len(w.procs)).Draw(w.t, "process"); i < len(w.procs) && len(w.procs) > 2 {
		p = w.procs[i]
		if p.local() && p.peer.Process.Boot != w.bootID {
			w.t.Skip("gone since the reboot")
		}
	} else if len(w.procs) < 12 {
		p = w.newProcess()
	} else {
		w.t.Skip("enough processes")
	}
	group := rapid.SampledFrom(w.groups).Draw(w.t, "group")
	c := &connection{p: p, group: group, holder: p.name, heard: w.now}
	token := uint64(0)
	switch rapid.IntRange(0, 9).Draw(w.t, "token") {
	case 0, 1, 2, 3, 4:
		token = p.tokens[group]
	case 5: // an impostor, or a mistake
		token = rapid.Uint64Range(1, 6).Draw(w.t, "wrong token")
		// Who has the name and the identity of a remote holder is that holder.
		if other := w.procs[rapid.IntRange(0, len(w.procs)-1).Draw(w.t, "named after")]; p.local() || other.peer != p.peer {
			c.holder = other.name
		}
	case 6:
		c.holder += "'"
	}
	c.asked = token
	w.lastID++
	c.id = w.lastID
	// What a process has said before it died may come later.
	c.left = !p.alive
	w.conns = append(w.conns, c)
	w.byID[c.id] = c
	w.event(c, func() []lock.Effect { return w.m.Acquire(w.now, c.id, c.group, c.holder, token, p.peer) })
}

func (w *world) newProcess() *process {
	n := len(w.procs) + 1
	p := &process{name: fmt.Sprint("p", n), alive: true, tokens: map[string]uint64{}, holds: map[string]bool{}, heard: map[string]time.Time{}}
	if rapid.SampledFrom(w.kinds).Draw(w.t, "kind") == "local" {
		p.peer = local(n)
		p.peer.Process.Boot = w.bootID
	} else {
		p.peer = lock.Peer{Identity: fmt.Sprint("node-", n%2)}
		p.slack = time.Duration(rapid.Int64Range(0, int64(times.LockDelay)-1).Draw(w.t, "slack"))
	}
	w.procs = append(w.procs, p)
	return p
}

func (w *world) acquireAgain() {
	c := pick(w.t, "connection", w.conns)
	w.event(c, func() []lock.Effect { return w.m.Acquire(w.now, c.id, c.group, c.holder, c.granted, c.p.peer) })
}

func (w *world) ping() {
	c := pick(w.t, "connection", w.conns)
	w.pingOn(c)
}

func (w *world) pingOn(c *connection) {
	if !c.shut {
		c.heard = w.now
	}
	w.event(c, func() []lock.Effect { return w.m.Ping(w.now, c.id) })
}

// leave closes a connection at the client; who has inherited it keeps it open.
func (w *world) leave() {
	pick(w.t, "connection", filter(w.conns, func(c *connection) bool { return !c.left })).left = true
}

// closed is the end of a connection, at last.
func (w *world) closed() {
	w.close(pick(w.t, "connection", filter(w.conns, func(c *connection) bool {
		return c.shut || c.left && !c.p.kids
	})))
}

func (w *world) close(c *connection) {
	c.ended = true
	w.conns = filter(w.conns, func(o *connection) bool { return o != c })
	w.event(c, func() []lock.Effect { return w.m.Closed(w.now, c.id) })
}

func (w *world) die() {
	p := pick(w.t, "process", filter(w.procs, func(p *process) bool { return p.alive }))
	w.end(p, p.local() && rapid.Bool().Draw(w.t, "survivors"))
}

func (w *world) end(p *process, kids bool) {
	p.alive, p.kids = false, kids
	for _, c := range w.conns {
		if c.p == p {
			c.left = true
		}
	}
	w.sweep()
}

func (w *world) kidsExit() {
	pick(w.t, "process", filter(w.procs, func(p *process) bool { return p.kids && !p.alive })).kids = false
	w.sweep()
}

// sweep notes who cannot act on a grant any more.
func (w *world) sweep() {
	for _, p := range w.procs {
		for g := range p.holds {
			gone := !p.alive && !p.kids
			if !p.local() {
				gone = !p.alive || !w.now.Before(p.heard[g].Add(times.SessionTTL+p.slack))
			}
			if gone {
				delete(p.holds, g)
			}
		}
	}
}

// What the kernel does.

func (w *world) died() {
	x := pick(w.t, "death", filter(w.watches, func(x *watched) bool { return !x.p.alive && !x.gone }))
	w.sayDied(x) // perhaps again
}

func (w *world) sayDied(x *watched) {
	x.died = true
	w.event(nil, func() []lock.Effect { return w.m.Died(w.now, x.key.group, x.key.token) })
}

func (w *world) kill() {
	w.killCohort(pick(w.t, "fence", filter(w.watches, func(x *watched) bool { return x.fenced && !x.killed })))
}

func (w *world) killCohort(x *watched) {
	x.killed = true
	w.end(x.p, false)
}

func (w *world) gone() {
	w.sayGone(pick(w.t, "proof", filter(w.watches, func(x *watched) bool { return x.killed })))
}

func (w *world) sayGone(x *watched) {
	x.gone = true
	last := w.look().status[x.key.group].Token == x.key.token
	w.event(nil, func() []lock.Effect { return w.m.Gone(w.now, x.key.group, x.key.token) })
	for _, id := range w.m.Queue(x.key.group) {
		w.require(!last || w.byID[id].p != x.p, "%s is gone and waits", x.p.name)
	}
}

// What the disk does.

func (w *world) write() {
	if len(w.unsaved) == 0 {
		w.t.Skip("nothing to write")
	}
	i := rapid.IntRange(0, len(w.unsaved)-1).Draw(w.t, "version")
	w.save(i, rapid.SampledFrom([]string{"ok", "ok", "failed", "failed late"}).Draw(w.t, "outcome"))
}

func (w *world) save(i int, outcome string) {
	p := w.unsaved[i]
	a := answer{version: p.Version}
	w.failed = outcome != "ok"
	if outcome != "ok" {
		a.err = errDisk
	}
	if outcome != "failed" {
		w.disk = p.Records
	}
	w.unsaved, w.answers = w.unsaved[i+1:], append(w.answers, a)
}

func (w *world) persisted() {
	w.answer(pick(w.t, "answer", w.answers))
}

func (w *world) answer(a answer) {
	w.answers = filter(w.answers, func(o answer) bool { return o != a })
	w.event(nil, func() []lock.Effect { return w.m.Persisted(w.now, a.version, a.err) })
}

// What time does.

func (w *world) pass() {
	w.now = w.now.Add(time.Duration(rapid.IntRange(1, 120).Draw(w.t, "tenths")) * 100 * time.Millisecond)
	w.sweep()
}

func (w *world) tick() {
	w.event(nil, func() []lock.Effect { return w.m.Tick(w.now) })
	for _, c := range w.conns {
		w.require(c.shut || c.p.local() || w.now.Before(w.granted[c.group].Add(times.SessionTTL)) ||
			w.now.Before(c.heard.Add(times.SessionTTL)), "connection %d of %s is silent and open", c.id, c.p.name)
	}
	for g, since := range w.away {
		s := w.look().status[g]
		w.require(s.PID == 0 || w.now.Before(since.Add(times.Reconnect)), "%s is given more time", s.Holder)
	}
}

// wakeUp ticks when the machine has asked for it, but never back in time.
func (w *world) wakeUp() {
	if w.wake.IsZero() {
		w.t.Skip("no deadline")
	}
	if w.wake.After(w.now) {
		w.now = w.wake
	}
	w.sweep()
	w.tick()
}

// restart ends lockd, with any of the outstanding versions on disk or none, and
// starts it again.
func (w *world) restart() {
	if i := rapid.IntRange(-1, len(w.unsaved)-1).Draw(w.t, "on disk"); i >= 0 {
		w.disk = w.unsaved[i].Records
	}
	w.boot()
}

// reboot ends every local process, too.
func (w *world) reboot() {
	if rapid.IntRange(0, 3).Draw(w.t, "rare") != 0 {
		w.t.Skip("not now")
	}
	w.bootID += "+"
	for _, p := range w.procs {
		if p.local() {
			w.end(p, false)
		}
	}
	w.restart()
}

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
	r := w.disk[g]
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
	for g, r := range e.Records {
		w.require(r.Token >= w.disk[g].Token, "the token of %s goes from %d to %d", g, w.disk[g].Token, r.Token)
		if r.Holder == "" {
			w.onlyHolder(g, nil)
			continue
		}
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
			for g, s := range w.look().status {
				w.require(s.State == lock.Free, "%s is stuck: %+v", g, s)
				r := w.disk[g]
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
