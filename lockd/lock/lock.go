// Package lock is lockd's failover lock as a state machine: it
// takes events with the time at which they happened, changes plain data, and
// returns the effects that the owner must carry out. It does no I/O, starts no
// goroutine, reads no clock and logs nothing. A Machine is not safe for
// concurrent use.
//
// What it promises, whatever events come in whatever order:
//   - A group has at most one holder. A grant is sent only after its record is
//     known to be on disk (Persisted), and a successor's record is written only
//     after the holder before it is proven gone: by the kernel (Gone), or,
//     where no kernel can tell, by a time that the holder itself must not
//     outlive (Times.SessionTTL).
//   - Tokens grow: a grant's token is larger than that of every grant before
//     it, of any group, also of those whose record was perhaps not written. So a
//     group that is free and has no waiter is forgotten, and costs nothing.
//   - Waiters are served first come, first served, and every waiter learns its
//     position whenever that changes.
//   - A connection gets nothing after Close.
package lock

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// ConnID names a client's connection. The owner never uses one twice.
type ConnID uint64

// Process is what the kernel says of a local holder. It identifies the process
// for as long as the machine is up.
type Process struct {
	PID int `json:"pid"`
	// Start is the start time in clock ticks since boot.
	Start uint64 `json:"start"`
	// Boot is the kernel's boot ID.
	Boot string `json:"boot"`
	// Cohort is the marker in the environments of the holder's descendants,
	// empty where the holder has none.
	Cohort string `json:"cohort,omitempty"`
}

// Peer is who is at the other end of a connection.
type Peer struct {
	// Process is nil where the kernel cannot tell whether the peer lives, which
	// is over TCP. Such a peer has a session, which it must keep alive.
	Process *Process `json:"process,omitempty"`
	// Identity is what a remote peer has proven, as its certificate's name. A
	// holder can be taken over only by the same identity.
	Identity string `json:"identity,omitempty"`
	// TTL is how long a local peer may be silent before it is taken for hung,
	// which ends its connection; 0 if it gives no signs of life. It belongs to
	// the connection.
	TTL time.Duration `json:"-"`
}

// same tells whether q is p again: the same process, or a remote peer that has
// proven the same identity.
func (p Peer) same(q Peer) bool {
	if (p.Process == nil) != (q.Process == nil) {
		return false
	}
	if p.Process != nil {
		return p.Process.PID == q.Process.PID && p.Process.Start == q.Process.Start && p.Process.Boot == q.Process.Boot
	}
	return p.Identity == q.Identity
}

// State is where a group stands.
type State string

// The states of a group.
const (
	Free         State = "free"         // no holder
	Held         State = "held"         // the holder is connected
	Reconnecting State = "reconnecting" // the holder's connection broke; it may come back with its token
	Fencing      State = "fencing"      // the holder is being ended with its processes
)

// Refusal codes.
const (
	// CodeBadRequest: the request makes no sense.
	CodeBadRequest = "bad_request"
	// CodeStale: the token is not the present grant's. The lock is lost.
	CodeStale = "stale_token"
	// CodeNotHolder: the token is the present grant's, the process is another.
	CodeNotHolder = "not_holder"
	// CodeLost: the holder is being fenced.
	CodeLost = "lost"
	// CodeState: the state file could not be written; nothing is granted.
	CodeState = "state_file"
)

// Record is what is persisted of one group that has a holder.
type Record struct {
	Token  uint64    `json:"token"`
	Holder string    `json:"holder"`
	Since  time.Time `json:"since"`
	Peer   Peer      `json:"peer,omitzero"`
}

// Records are what is persisted.
type Records struct {
	// Token is the largest that was ever granted.
	Token uint64 `json:"token"`
	// Groups are those that have a holder, by name.
	Groups map[string]Record `json:"groups"`
}

// Times are the waits that decide about holders.
type Times struct {
	// Reconnect is how long a local holder that lost its connection, but lives,
	// has to come back before it is fenced.
	Reconnect time.Duration
	// SessionTTL is how long a remote holder may be silent. A holder must stop
	// itself this long after it sent its last ping that was answered (or else
	// its acquire) at the latest. A grant is no pong: it may come late.
	SessionTTL time.Duration
	// LockDelay is how long a lock stays shut after a remote holder's session
	// ended, as in Consul.
	LockDelay time.Duration
}

// DefaultTimes has the reasons beside the numbers.
func DefaultTimes() Times {
	return Times{
		Reconnect:  10 * time.Second, // time for a holder to notice a restarted lockd and to connect again
		SessionTTL: 10 * time.Second, // Consul's shortest
		LockDelay:  15 * time.Second, // Consul's default
	}
}

// effects

// Effect is what the owner must do. The owner carries effects out in order.
type Effect interface{ effect() }

type (
	// Send sends a message to a connection.
	Send struct {
		Conn    ConnID
		Message Message
	}
	// Close closes a connection. What still comes from it is ignored; Closed
	// must be its last event all the same, so that the machine forgets it.
	Close struct{ Conn ConnID }
	// Persist writes all records durably and answers with Persisted(Version).
	// Of several outstanding versions only the newest need be written.
	Persist struct {
		Version uint64
		Records Records
		// Later: it only forgets a holder that is proven gone, so it may be written
		// with the next version. The next lockd would prove that again.
		Later bool
	}
	// Watch watches a local holder and its cohort from now on, and answers with
	// Died when the holder's process has ended. It is over with the holder's
	// Gone, or with the next Watch of the group: a holder whose record could not
	// be written is not fenced.
	Watch struct {
		Group string
		Token uint64
		Peer  Peer
	}
	// Fence kills the holder, if it lives, with its cohort, and answers with
	// Gone once all of it is proven gone, however long that takes.
	Fence struct {
		Group string
		Token uint64
		Peer  Peer
	}
	// Wake asks for a Tick at the given time, at the latest.
	Wake struct{ At time.Time }
)

func (Send) effect()    {}
func (Close) effect()   {}
func (Persist) effect() {}
func (Watch) effect()   {}
func (Fence) effect()   {}
func (Wake) effect()    {}

// Message is what a client is told.
type Message struct {
	// Event is "waiting", "granted", "refused" or "pong".
	Event     string
	Position  int
	Token     uint64
	Regranted bool
	Code      string
	Error     string
}

// Status is one group for people.
type Status struct {
	Group   string
	State   State
	Holder  string
	Token   uint64
	Since   time.Time
	PID     int
	Waiters []string
}

// group is one lock.
type group struct {
	name  string
	state State
	// token is that of the newest grant.
	token  uint64
	holder string
	since  time.Time
	peer   Peer
	// conn is the holder's connection, 0 while it has none.
	conn ConnID
	// pending is the version of the record that must be on disk before the
	// holder is told of its grant; 0 once it was.
	pending uint64
	// until is when a reconnecting holder is given up, or a remote holder's
	// session ends.
	until   time.Time
	waiters []waiter
}

type waiter struct {
	conn   ConnID
	holder string
	peer   Peer
	// told is the position that the waiter knows.
	told int
	// until is when a remote waiter's session ends.
	until time.Time
}

// Machine is all groups of one lockd.
type Machine struct {
	times Times
	// token is the largest that was ever put into a record.
	token  uint64
	groups map[string]*group
	// conns says to which group a connection belongs.
	conns map[ConnID]string
	// closed are the connections that were told to close and have not ended.
	closed  map[ConnID]bool
	version uint64
	effects []Effect
}

// New starts from what was persisted. Holders that were recorded have lost
// their connection with the lockd before. The effects are to be carried out
// first: they watch the holders that may live.
func New(now time.Time, times Times, boot string, records Records) (*Machine, []Effect) {
	m := &Machine{times: times, token: records.Token, groups: map[string]*group{}, conns: map[ConnID]string{}, closed: map[ConnID]bool{}}
	for _, name := range slices.Sorted(maps.Keys(records.Groups)) {
		r := records.Groups[name]
		p := r.Peer.Process
		if p != nil && p.Boot != boot {
			continue // nothing survives a reboot
		}
		g := &group{name: name, state: Reconnecting, token: r.Token, holder: r.Holder, since: r.Since, peer: r.Peer}
		m.groups[name] = g
		if p != nil {
			g.until = now.Add(times.Reconnect)
			m.emit(Watch{name, g.token, g.peer})
		} else {
			// Nobody knows how much of its session a remote holder had left.
			g.until = now.Add(times.SessionTTL + times.LockDelay)
		}
	}
	m.wake()
	return m, m.take()
}

func (m *Machine) emit(e Effect) { m.effects = append(m.effects, e) }

func (m *Machine) take() []Effect {
	out := m.effects
	m.effects = nil
	return out
}

// Records returns what must be persisted.
func (m *Machine) Records() Records {
	out := Records{Token: m.token, Groups: make(map[string]Record, len(m.groups))}
	for name, g := range m.groups {
		if g.state != Free {
			out.Groups[name] = Record{Token: g.token, Holder: g.holder, Since: g.since, Peer: g.peer}
		}
	}
	return out
}

// persist asks for the present records to be written.
func (m *Machine) persist() uint64 {
	m.version++
	m.emit(Persist{Version: m.version, Records: m.Records()})
	return m.version
}

// refuse answers a connection and drops it.
func (m *Machine) refuse(conn ConnID, code, format string, args ...any) {
	m.emit(Send{conn, Message{Event: "refused", Code: code, Error: fmt.Sprintf(format, args...)}})
	m.close(conn)
}

// close ends a connection. What its client has said already may still come in
// and counts no more, until Closed says that this was all.
func (m *Machine) close(conn ConnID) {
	m.emit(Close{conn})
	delete(m.conns, conn)
	m.closed[conn] = true
}
