package lock_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/lockd/lock"
)

const boot = "boot-1"

var (
	start   = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	times   = lock.Times{Reconnect: 10 * time.Second, SessionTTL: 8 * time.Second, LockDelay: 15 * time.Second}
	errDisk = errors.New("no space left on device")
)

// Local processes and remote peers.
var (
	p1 = local(1)
	p2 = local(2)
	p3 = local(3)
	r1 = lock.Peer{Identity: "node-1"}
	r2 = lock.Peer{Identity: "node-2"}
)

func local(pid int) lock.Peer {
	return lock.Peer{Process: &lock.Process{PID: pid, Start: uint64(100 * pid), Boot: boot, Cohort: fmt.Sprint("cohort-", pid)}}
}

// script drives a machine and looks at what it asks for. Wakes are kept apart:
// they end every answer while there is a deadline.
type script struct {
	t    *testing.T
	m    *lock.Machine
	now  time.Time
	got  []lock.Effect
	wake time.Time
}

func newScript(t *testing.T, records lock.Records) *script {
	s := &script{t: t, now: start}
	m, effects := lock.New(s.now, times, boot, records)
	s.m = m
	s.took(effects)
	return s
}

func (s *script) took(effects []lock.Effect) {
	s.got, s.wake = nil, time.Time{}
	for i, e := range effects {
		if w, ok := e.(lock.Wake); ok {
			require.Equal(s.t, len(effects)-1, i, "a wake is the last effect")
			s.wake = w.At
			continue
		}
		s.got = append(s.got, e)
	}
}

// acquire asks for the group "g", as holder "h<conn>" unless it is named.
func (s *script) acquire(conn lock.ConnID, holder string, token uint64, peer lock.Peer) *script {
	s.took(s.m.Acquire(s.now, conn, "g", holder, token, peer))
	return s
}

func (s *script) closed(conn lock.ConnID) *script { s.took(s.m.Closed(s.now, conn)); return s }
func (s *script) ping(conn lock.ConnID) *script   { s.took(s.m.Ping(s.now, conn)); return s }
func (s *script) died(token uint64) *script       { s.took(s.m.Died(s.now, "g", token)); return s }
func (s *script) gone(token uint64) *script       { s.took(s.m.Gone(s.now, "g", token)); return s }
func (s *script) tick() *script                   { s.took(s.m.Tick(s.now)); return s }

func (s *script) persisted(version uint64, err error) *script {
	s.took(s.m.Persisted(s.now, version, err))
	return s
}

// pass lets time go by without a tick.
func (s *script) pass(d time.Duration) *script { s.now = s.now.Add(d); return s }

// want checks the effects of the last event, all of them in order.
func (s *script) want(effects ...lock.Effect) *script {
	s.t.Helper()
	require.Equal(s.t, effects, s.got)
	return s
}

// wakes checks when the next tick is asked for, in seconds from now; below 0 for
// never.
func (s *script) wakes(after float64) *script {
	s.t.Helper()
	if after < 0 {
		require.True(s.t, s.wake.IsZero(), "no deadline, and a wake at %s", s.wake)
		return s
	}
	require.Equal(s.t, s.now.Add(time.Duration(after*float64(time.Second))), s.wake)
	return s
}

func (s *script) state(want lock.State) *script {
	s.t.Helper()
	state := lock.Free // a group that is free is forgotten
	for _, st := range s.m.Status() {
		state = st.State
	}
	require.Equal(s.t, want, state)
	return s
}

// holds makes the peer the holder on connection 1 with token 1.
func (s *script) holds(holder string, peer lock.Peer) *script {
	s.t.Helper()
	s.acquire(1, holder, 0, peer).persisted(1, nil)
	return s.want(granted(1, 1))
}

func granted(conn lock.ConnID, token uint64) lock.Effect {
	return lock.Send{Conn: conn, Message: lock.Message{Event: "granted", Token: token}}
}

func regranted(conn lock.ConnID, token uint64) lock.Effect {
	return lock.Send{Conn: conn, Message: lock.Message{Event: "granted", Token: token, Regranted: true}}
}

func waiting(conn lock.ConnID, position int) lock.Effect {
	return lock.Send{Conn: conn, Message: lock.Message{Event: "waiting", Position: position}}
}

func pong(conn lock.ConnID) lock.Effect {
	return lock.Send{Conn: conn, Message: lock.Message{Event: "pong"}}
}

func closes(conn lock.ConnID) lock.Effect { return lock.Close{Conn: conn} }

func watch(token uint64, p lock.Peer) lock.Effect {
	return lock.Watch{Group: "g", Token: token, Peer: p}
}

func fence(token uint64, p lock.Peer) lock.Effect {
	return lock.Fence{Group: "g", Token: token, Peer: p}
}

// persist is a write of the one group "g", held since now.
func (s *script) persist(version, token uint64, holder string, p lock.Peer) lock.Effect {
	return lock.Persist{Version: version, Records: held(token, holder, s.now, p)}
}

// persistGone forgets a holder that is gone. That can wait; a living one that was refused
// (persistRefused) would be killed by a lockd that finds it on disk.
func persistGone(version, token uint64) lock.Effect {
	return lock.Persist{Version: version, Records: free(token), Later: true}
}

func persistRefused(version, token uint64) lock.Effect {
	return lock.Persist{Version: version, Records: free(token)}
}

func free(token uint64) lock.Records {
	return lock.Records{Token: token, Groups: map[string]lock.Record{}}
}

func held(token uint64, holder string, since time.Time, p lock.Peer) lock.Records {
	return lock.Records{Token: token, Groups: map[string]lock.Record{"g": {Token: token, Holder: holder, Since: since, Peer: p}}}
}

// wantRefused checks that the last event refused one connection, and nothing
// else but what follows.
func (s *script) wantRefused(conn lock.ConnID, code string, then ...lock.Effect) *script {
	s.t.Helper()
	require.GreaterOrEqual(s.t, len(s.got), 2, "%v", s.got)
	send, ok := s.got[0].(lock.Send)
	require.True(s.t, ok, "%v", s.got)
	require.Equal(s.t, conn, send.Conn)
	require.Equal(s.t, "refused", send.Message.Event)
	require.Equal(s.t, code, send.Message.Code)
	require.NotEmpty(s.t, send.Message.Error)
	require.Equal(s.t, append([]lock.Effect{closes(conn)}, then...), s.got[1:])
	return s
}

// TestScenarios are stories of one group; the property test has the rest.
func TestScenarios(t *testing.T) {
	for _, tc := range []struct {
		name  string
		story func(s *script)
	}{
		{"a grant is persisted before it is sent", func(s *script) {
			s.acquire(1, "a", 0, p1).want(watch(1, p1), s.persist(1, 1, "a", p1)).wakes(-1)
			s.persisted(1, nil).want(granted(1, 1)).state(lock.Held)
			s.persisted(1, nil).want() // answered twice, sent once
		}},
		{"a newer version answers for an older one", func(s *script) {
			s.acquire(1, "a", 0, p1)
			s.took(s.m.Acquire(s.now, 2, "other", "b", 0, p2))
			s.persisted(2, nil).want(granted(1, 1), granted(2, 2))
			s.persisted(1, nil).want()
		}},
		{"waiters learn their position whenever it changes", func(s *script) {
			s.holds("a", p1)
			s.acquire(2, "b", 0, p2).want(waiting(2, 1))
			s.acquire(3, "c", 0, p3).want(waiting(3, 2))
			s.acquire(4, "d", 0, local(4)).want(waiting(4, 3))
			s.closed(3).want(waiting(4, 2))
			s.closed(4).want()
		}},
		{"a dead holder is fenced, proven gone and followed", func(s *script) {
			s.holds("a", p1).acquire(2, "b", 0, p2).acquire(3, "c", 0, p3)
			s.died(1).want(closes(1), fence(1, p1)).state(lock.Fencing).wakes(-1)
			s.died(1).want() // said twice
			s.closed(1).want()
			s.gone(1).want(watch(2, p2), s.persist(2, 2, "b", p2), waiting(3, 1))
			s.gone(1).want()
			s.persisted(2, nil).want(granted(2, 2)).state(lock.Held)
		}},
		{"a lock without waiters is persisted as free", func(s *script) {
			s.holds("a", p1).died(1)
			s.gone(1).want(persistGone(2, 1)).state(lock.Free)
			s.persisted(2, nil).want()
			s.acquire(2, "b", 0, p2).want(watch(2, p2), s.persist(3, 2, "b", p2))
		}},
		{"a closed connection alone frees nothing", func(s *script) {
			s.holds("a", p1).acquire(2, "b", 0, p2)
			s.closed(1).want().state(lock.Reconnecting).wakes(10)
			s.pass(9999 * time.Millisecond).tick().want().state(lock.Reconnecting)
			s.gone(1).want().state(lock.Reconnecting) // nobody asked for that proof
		}},
		{"a holder that comes back with its token keeps the lock", func(s *script) {
			s.holds("a", p1).acquire(2, "b", 0, p2).closed(1)
			s.pass(9*time.Second).acquire(3, "a", 1, p1).want(regranted(3, 1)).state(lock.Held).wakes(-1)
			s.pass(time.Hour).tick().want().state(lock.Held)
		}},
		{"a holder that comes back before its old connection ends", func(s *script) {
			s.holds("a", p1).acquire(2, "a", 1, p1).want(closes(1), regranted(2, 1))
			s.closed(1).want().state(lock.Held)
		}},
		{"a holder that stays away is fenced and told that it lost", func(s *script) {
			s.holds("a", p1).acquire(2, "b", 0, p2).closed(1)
			s.pass(10 * time.Second).tick().want(fence(1, p1)).state(lock.Fencing).wakes(-1)
			s.acquire(3, "a", 1, p1).wantRefused(3, lock.CodeLost).state(lock.Fencing)
			s.acquire(4, "a", 0, p1).wantRefused(4, lock.CodeLost)
			s.died(1).want()
			s.gone(1).want(watch(2, p2), s.persist(2, 2, "b", p2))
		}},
		{"a holder that dies while it is reconnecting", func(s *script) {
			s.holds("a", p1).closed(1)
			s.died(1).want(fence(1, p1)).wakes(-1)
		}},
		{"a process without token that holds the lock gets it again", func(s *script) {
			s.holds("a", p1).closed(1) // it never read its grant
			s.acquire(2, "a", 0, p1).want(regranted(2, 1)).state(lock.Held)
		}},
		{"a process that comes back before its record is on disk is told then", func(s *script) {
			s.acquire(1, "a", 0, p1).closed(1)
			s.acquire(2, "a", 0, p1).want()
			s.persisted(1, nil).want(granted(2, 1))
		}},
		{"the right token of another process", func(s *script) {
			s.holds("a", p1)
			s.acquire(2, "a", 1, p2).wantRefused(2, lock.CodeNotHolder)
			reused := lock.Process{PID: 1, Start: 101, Boot: boot, Cohort: "cohort-1"}
			s.acquire(3, "a", 1, lock.Peer{Process: &reused}).wantRefused(3, lock.CodeNotHolder)
			s.acquire(4, "a", 1, r1).wantRefused(4, lock.CodeNotHolder)
			s.acquire(5, "b", 1, p1).wantRefused(5, lock.CodeNotHolder)
			s.ping(1).want(pong(1)).state(lock.Held)
		}},
		{"the right token of another process, while the holder is away", func(s *script) {
			s.holds("a", p1).closed(1)
			s.acquire(2, "a", 1, p2).wantRefused(2, lock.CodeNotHolder).state(lock.Reconnecting).wakes(10)
		}},
		{"a stale token", func(s *script) {
			s.holds("a", p1).acquire(2, "b", 0, p2).died(1)
			s.gone(1).persisted(2, nil).want(granted(2, 2))
			s.acquire(3, "a", 1, p1).wantRefused(3, lock.CodeStale)
			s.acquire(4, "b", 1, p2).wantRefused(4, lock.CodeStale)
			s.acquire(5, "b", 3, p2).wantRefused(5, lock.CodeStale) // of the future
		}},
		{"a token of a group that is free", func(s *script) {
			s.acquire(1, "a", 7, p1).wantRefused(1, lock.CodeStale).state(lock.Free)
			s.acquire(2, "a", 0, p1).persisted(1, nil).died(1)
			s.gone(1)
			s.acquire(3, "a", 1, p1).wantRefused(3, lock.CodeStale)
		}},
		{"a waiter that dies at the instant of its grant", func(s *script) {
			s.holds("a", p1).acquire(2, "b", 0, p2).acquire(3, "c", 0, p3).died(1)
			s.gone(1).want(watch(2, p2), s.persist(2, 2, "b", p2), waiting(3, 1))
			s.closed(2).want().state(lock.Reconnecting)
			s.died(2).want(fence(2, p2))
			s.persisted(2, nil).want()
			s.gone(2).want(watch(3, p3), s.persist(3, 3, "c", p3))
			s.persisted(3, nil).want(granted(3, 3))
		}},
		{"proof of the end of an older grant", func(s *script) {
			s.holds("a", p1).acquire(2, "b", 0, p2).acquire(3, "c", 0, p3).died(1)
			s.gone(1).persisted(2, nil).died(2).want(closes(2), fence(2, p2))
			s.gone(1).want().state(lock.Fencing)
		}},
		{"a waiter that is gone before its record is answered", func(s *script) {
			s.acquire(1, "a", 0, p1).acquire(2, "b", 0, p2)
			s.died(1).want(closes(1), fence(1, p1))
			s.gone(1).want(watch(2, p2), s.persist(2, 2, "b", p2))
			s.persisted(1, errDisk).want() // of the one before: nobody is refused
			s.persisted(2, nil).want(granted(2, 2))
		}},
		{"a record that cannot be written refuses and tries the next", func(s *script) {
			s.acquire(1, "a", 0, p1).acquire(2, "b", 0, p2).acquire(3, "c", 0, p3)
			s.persisted(1, errDisk).wantRefused(1, lock.CodeState,
				watch(2, p2), s.persist(2, 2, "b", p2), waiting(3, 1))
			require.Contains(s.t, s.got[0].(lock.Send).Message.Error, errDisk.Error())
			s.persisted(2, errDisk).wantRefused(2, lock.CodeState, watch(3, p3), s.persist(3, 3, "c", p3))
			s.persisted(3, nil).want(granted(3, 3))
			s.died(1).want() // of one that was refused
			s.died(2).want().state(lock.Held)
		}},
		{"a record that cannot be written, and nobody waits", func(s *script) {
			s.acquire(1, "a", 0, p1)
			// The record may be on disk: it must not stay there.
			s.persisted(1, errDisk).wantRefused(1, lock.CodeState, persistRefused(2, 1)).state(lock.Free)
			s.persisted(2, errDisk).want()
			s.acquire(2, "a", 0, p1).want(watch(2, p1), s.persist(3, 2, "a", p1))
		}},
		{"a record that cannot be written of a waiter that left", func(s *script) {
			s.acquire(1, "a", 0, p1).acquire(2, "b", 0, p2).closed(1)
			s.persisted(1, errDisk).want(watch(2, p2), s.persist(2, 2, "b", p2)).wakes(-1)
		}},
		{"a record that cannot be written of a holder that is being ended", func(s *script) {
			s.acquire(1, "a", 0, p1).acquire(2, "b", 0, p2).died(1)
			s.persisted(1, errDisk).want().state(lock.Fencing)
			s.gone(1).want(watch(2, p2), s.persist(2, 2, "b", p2))
		}},
		{"an old error does not refuse a newer record", func(s *script) {
			s.acquire(1, "a", 0, p1).persisted(1, errDisk)
			s.acquire(2, "b", 0, p2).want(watch(2, p2), s.persist(3, 2, "b", p2))
			s.persisted(2, errDisk).want()
			s.persisted(3, nil).want(granted(2, 2))
		}},
		{"one connection asks twice", func(s *script) {
			s.holds("a", p1).acquire(2, "b", 0, p2).acquire(3, "c", 0, p3)
			s.acquire(2, "b", 0, p2)
			require.Equal(s.t, waiting(3, 1), s.got[0])
			s.got = s.got[1:]
			s.wantRefused(2, lock.CodeBadRequest)
			s.acquire(1, "a", 1, p1).wantRefused(1, lock.CodeBadRequest).state(lock.Reconnecting).wakes(10)
		}},
		{"what a closed connection has said counts no more", func(s *script) {
			s.acquire(1, "a", 1, p1).wantRefused(1, lock.CodeStale)
			s.acquire(1, "a", 0, p1).want().state(lock.Free)
			s.ping(1).want()
			s.closed(1).want()
			require.Zero(s.t, s.m.Conns())
		}},
		{"names must not be empty", func(s *script) {
			s.took(s.m.Acquire(s.now, 1, "", "a", 0, p1))
			s.wantRefused(1, lock.CodeBadRequest)
			s.took(s.m.Acquire(s.now, 2, "g", "", 0, p1))
			s.wantRefused(2, lock.CodeBadRequest)
			require.Empty(s.t, s.m.Status())
		}},
		{"a dead process waits for nothing on its other connections", func(s *script) {
			s.holds("a", p1).acquire(2, "a2", 0, p1).acquire(3, "b", 0, p2).died(1)
			s.gone(1).want(closes(2), watch(2, p2), s.persist(2, 2, "b", p2))
			s.closed(2).want()
		}},
		{"a process that waits again keeps its place, on its newest connection", func(s *script) {
			s.holds("a", p1).acquire(2, "b", 0, p2).acquire(3, "c", 0, p3)
			// A child has the descriptor of connection 2, so that no end of it
			// was seen.
			s.acquire(4, "b", 0, p2).want(closes(2), waiting(4, 1))
			s.died(1)
			s.gone(1).want(watch(2, p2), s.persist(2, 2, "b", p2), waiting(3, 1))
			s.persisted(2, nil).want(granted(4, 2))
		}},
		{"remote waiters of one identity each have a place", func(s *script) {
			s.holds("a", p1)
			s.acquire(2, "b", 0, r1).want(waiting(2, 1))
			s.acquire(3, "b", 0, r1).want(waiting(3, 2))
		}},

		// Remote peers, whom the kernel does not know.
		{"a ping keeps a session, silence ends it", func(s *script) {
			s.acquire(1, "a", 0, r1).want(s.persist(1, 1, "a", r1)).wakes(8)
			s.persisted(1, nil).want(granted(1, 1))
			s.acquire(2, "b", 0, p2).want(waiting(2, 1))
			s.pass(7 * time.Second).ping(1).want(pong(1)).wakes(8)
			s.pass(7 * time.Second).ping(1).want(pong(1)).wakes(8)
			s.pass(8 * time.Second).tick().want(closes(1)).state(lock.Reconnecting).wakes(15)
			s.ping(1).want() // too late: the connection is closed
			s.closed(1).want().wakes(15)
			s.pass(14 * time.Second).tick().want().state(lock.Reconnecting)
			s.pass(time.Second).tick().want(watch(2, p2), s.persist(2, 2, "b", p2)).wakes(-1)
			s.persisted(2, nil).want(granted(2, 2))
		}},
		{"a tick that comes late counts from the end of the session", func(s *script) {
			s.holds("a", r1).acquire(2, "b", 0, p2)
			s.pass(time.Hour).tick().want(closes(1))
			s.tick().want(watch(2, p2), s.persist(2, 2, "b", p2))
		}},
		{"a remote holder whose connection ends has its session and the delay", func(s *script) {
			s.holds("a", r1).acquire(2, "b", 0, r2).pass(3 * time.Second)
			s.closed(1).want().wakes(5) // the waiter's session
			s.ping(2).want(pong(2)).wakes(8)
			for range 3 {
				s.pass(7 * time.Second).ping(2)
			}
			s.wakes(2)
			s.pass(2 * time.Second).tick().want(s.persist(2, 2, "b", r2)).state(lock.Held)
		}},
		{"a remote holder resumes with its token inside the delay", func(s *script) {
			s.holds("a", r1).pass(8 * time.Second).tick().want(closes(1))
			s.pass(14*time.Second).acquire(2, "a", 1, r1).want(regranted(2, 1)).state(lock.Held).wakes(8)
		}},
		{"a remote holder resumes before its old connection ends", func(s *script) {
			s.holds("a", r1)
			s.acquire(2, "a", 1, r1).want(closes(1), regranted(2, 1)).wakes(8)
		}},
		{"another identity does not resume", func(s *script) {
			s.holds("a", r1).closed(1)
			s.acquire(2, "a", 1, r2).wantRefused(2, lock.CodeNotHolder).wakes(23)
		}},
		{"a remote holder without token waits", func(s *script) {
			s.holds("a", r1).closed(1)
			s.acquire(2, "a", 0, r1).want(waiting(2, 1)).state(lock.Reconnecting)
			for range 3 {
				s.pass(7 * time.Second).ping(2)
			}
			s.pass(2 * time.Second).tick().want(s.persist(2, 2, "a", r1))
			s.persisted(2, nil).want(granted(2, 2))
		}},
		{"a remote holder after its delay is stale", func(s *script) {
			s.holds("a", r1).closed(1).pass(23 * time.Second).tick().want(persistGone(2, 1)).wakes(-1)
			s.acquire(2, "a", 1, r1).wantRefused(2, lock.CodeStale)
		}},
		{"silent remote waiters are dropped", func(s *script) {
			s.holds("a", p1).acquire(2, "b", 0, r1).acquire(3, "c", 0, r2).acquire(4, "d", 0, p2).wakes(8)
			s.pass(4 * time.Second).ping(3).want(pong(3)).wakes(4)
			s.pass(4*time.Second).tick().want(waiting(3, 1), waiting(4, 2), closes(2)).wakes(4)
			s.pass(4*time.Second).tick().want(waiting(4, 1), closes(3)).wakes(-1)
		}},
		{"a remote grant that is silent before it is on disk", func(s *script) {
			s.acquire(1, "a", 0, r1).pass(8 * time.Second).tick().want(closes(1))
			s.persisted(1, nil).want().state(lock.Reconnecting)
		}},
		{"a ping of a connection that asked for nothing", func(s *script) {
			s.ping(9).want(pong(9)).wakes(-1)
			s.closed(9).want()
			require.Zero(s.t, s.m.Conns())
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			tc.story(newScript(t, lock.Records{}))
		})
	}
}

// TestRestart begins with what a lockd before has persisted.
func TestRestart(t *testing.T) {
	otherBoot := local(1)
	otherBoot.Process.Boot = "boot-0"
	for _, tc := range []struct {
		name   string
		record lock.Record
		story  func(s *script)
	}{
		{"a live local holder comes back", lock.Record{Token: 41, Holder: "a", Since: start, Peer: p1}, func(s *script) {
			s.want(watch(41, p1)).state(lock.Reconnecting).wakes(10)
			s.acquire(2, "b", 0, p2).want(waiting(2, 1))
			s.acquire(3, "a", 41, p1).want(regranted(3, 41)).wakes(-1)
		}},
		{"a live local holder that never heard of its grant", lock.Record{Token: 41, Holder: "a", Since: start, Peer: p1}, func(s *script) {
			s.acquire(3, "a", 0, p1).want(regranted(3, 41))
		}},
		{"a live local holder that stays away", lock.Record{Token: 41, Holder: "a", Since: start, Peer: p1}, func(s *script) {
			s.acquire(2, "b", 0, p2)
			s.pass(10 * time.Second).tick().want(fence(41, p1))
			s.gone(41).want(watch(42, p2), s.persist(1, 42, "b", p2))
		}},
		{"a dead local holder", lock.Record{Token: 41, Holder: "a", Since: start, Peer: p1}, func(s *script) {
			s.died(41).want(fence(41, p1)) // its cohort may live
			s.gone(41).want(persistGone(1, 41)).wakes(-1)
			s.acquire(2, "b", 0, p2).want(watch(42, p2), s.persist(2, 42, "b", p2))
		}},
		{"a local holder before a reboot", lock.Record{Token: 41, Holder: "a", Since: start, Peer: otherBoot}, func(s *script) {
			s.want().state(lock.Free).wakes(-1)
			s.acquire(2, "a", 41, p1).wantRefused(2, lock.CodeStale)
			s.acquire(3, "b", 0, p2).want(watch(42, p2), s.persist(1, 42, "b", p2))
		}},
		{"a remote holder has a session and the delay", lock.Record{Token: 41, Holder: "a", Since: start, Peer: r1}, func(s *script) {
			s.want().state(lock.Reconnecting).wakes(23)
			s.acquire(2, "b", 0, p2).want(waiting(2, 1))
			s.pass(22 * time.Second).tick().want()
			s.pass(time.Second).tick().want(watch(42, p2), s.persist(1, 42, "b", p2))
		}},
		{"a remote holder comes back", lock.Record{Token: 41, Holder: "a", Since: start, Peer: r1}, func(s *script) {
			s.acquire(2, "a", 41, r2).wantRefused(2, lock.CodeNotHolder)
			s.acquire(3, "a", 41, r1).want(regranted(3, 41)).wakes(8)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			// As the owner does it: through JSON.
			want := lock.Records{Token: 41, Groups: map[string]lock.Record{"g": tc.record}}
			doc, err := json.Marshal(want)
			require.NoError(t, err)
			var records lock.Records
			require.NoError(t, json.Unmarshal(doc, &records))
			require.Equal(t, want, records)
			tc.story(newScript(t, records))
		})
	}
}

// TestAFreeGroupIsForgotten: what is kept of it is that no token comes again.
func TestAFreeGroupIsForgotten(t *testing.T) {
	s := newScript(t, lock.Records{Token: 41})
	require.Empty(t, s.m.Status())
	s.acquire(1, "a", 0, p1).persisted(1, nil).want(granted(1, 42))
	s.took(s.m.Acquire(s.now, 2, "h", "b", 0, p2))
	s.persisted(2, nil).want(granted(2, 43))
	s.died(42)
	s.gone(42)
	require.Len(t, s.m.Status(), 1)
	require.Len(t, s.m.Records().Groups, 1)
	s.acquire(3, "a", 42, p1).wantRefused(3, lock.CodeStale)
	require.Len(t, s.m.Status(), 1)
	s.acquire(4, "a", 0, p3).persisted(4, nil).want(granted(4, 44))
}

// A failed write of two groups at once: the version that the first one asks for
// still has the second one's holder, who was refused.
func TestNoRefusedHolderStaysOnDisk(t *testing.T) {
	s := newScript(t, lock.Records{})
	s.took(s.m.Acquire(s.now, 1, "a", "x", 0, p1))
	s.took(s.m.Acquire(s.now, 2, "b", "y", 0, p2))
	s.took(s.m.Acquire(s.now, 3, "a", "z", 0, p3))
	s.persisted(2, errDisk)
	var last lock.Persist
	for _, e := range s.got {
		if p, ok := e.(lock.Persist); ok {
			last = p
		}
	}
	require.Equal(t, "z", last.Records.Groups["a"].Holder)
	require.NotContains(t, last.Records.Groups, "b")
	s.persisted(last.Version, nil).want(granted(3, 3))
}

// What was handed out stays as it was: the owner writes it later.
func TestPersistedRecordsAreACopy(t *testing.T) {
	s := newScript(t, lock.Records{})
	s.acquire(1, "a", 0, p1)
	first := s.got[1].(lock.Persist)
	s.persisted(1, nil).died(1)
	s.gone(1)
	require.Equal(t, held(1, "a", start, p1), first.Records)
}

func TestStatus(t *testing.T) {
	s := newScript(t, lock.Records{})
	require.Empty(t, s.m.Status())
	s.holds("a", p1).acquire(2, "b", 0, r1).acquire(3, "c", 0, p3)
	want := lock.Status{Group: "g", State: lock.Held, Holder: "a", Token: 1, Since: start, PID: 1, Waiters: []string{"b", "c"}}
	require.Equal(t, []lock.Status{want}, s.m.Status())
	s.pass(time.Second).closed(1)
	want.State = lock.Reconnecting
	require.Equal(t, []lock.Status{want}, s.m.Status())
	s.died(1)
	want.State = lock.Fencing
	require.Equal(t, []lock.Status{want}, s.m.Status())
	s.gone(1)
	want = lock.Status{Group: "g", State: lock.Held, Holder: "b", Token: 2, Since: s.now, Waiters: []string{"c"}}
	require.Equal(t, []lock.Status{want}, s.m.Status())
}

// BenchmarkFailover is the end of one holder while 500 wait.
func BenchmarkFailover(b *testing.B) {
	m, _ := lock.New(start, times, boot, lock.Records{})
	peer := func(i int) lock.Peer { return local(i) }
	next := 1
	ask := func() {
		m.Acquire(start, lock.ConnID(next), "g", fmt.Sprint("h", next), 0, peer(next))
		next++
	}
	for range 501 {
		ask()
	}
	m.Persisted(start, 1, nil)
	b.ReportAllocs()
	token := uint64(0)
	for b.Loop() {
		token++
		m.Died(start, "g", token)
		m.Gone(start, "g", token)
		m.Persisted(start, token+1, nil)
		m.Closed(start, lock.ConnID(token))
		ask()
	}
	require.Len(b, m.Status()[0].Waiters, 500)
}
