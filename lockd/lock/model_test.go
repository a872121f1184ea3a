package lock_test

import (
	"fmt"
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
