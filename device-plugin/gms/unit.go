package gms

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"remuda/device-plugin/gms/backend"
	"remuda/device-plugin/gms/layout"
)

const (
	// WeightsTag and kvCacheTag are the tags that have a socket of their own on each GPU, as
	// Dynamo's clients know it.
	WeightsTag = "weights"
	kvCacheTag = "kv_cache"
	// maxUnits bounds the units of a node: clients choose their tags.
	maxUnits = 512
	// maxTag is the longest tag in bytes.
	maxTag = 256
	// settling is for how long after a start it is unknown whether a unit is in use: those who
	// use it come back within that time.
	settling = 5 * time.Second
)

// unitKey names a unit.
type unitKey struct{ gpu, tag string }

// unit is the lock and the layout of one GPU and tag. It is made for its first
// connection. It goes when nothing is committed and no connection is left, unless it has
// a socket of its own.
type unit struct {
	server    *Server
	gpu       GPU
	tag       string
	permanent bool
	logger    hclog.Logger
	releaser  *releaser
	// kept: the keeper has the committed layout. The writer changes it.
	kept atomic.Bool
	// restored is when the layout was taken back from the keeper.
	restored time.Time
	// users are its connections, by group, and unusedSince is since when there are none. The
	// server's mu guards both.
	users       map[string]int
	unusedSince time.Time

	// mu guards everything below. Nothing is waited for under it.
	mu      sync.Mutex
	machine *layout.Machine
	// memory is by allocation ID: that of the machine's allocations.
	memory map[string]backend.Memory
	// sessions are those that wait, were offered the lock or have it.
	sessions map[layout.SessionID]*session
}

func (u *unit) key() unitKey { return unitKey{u.gpu.UUID, u.tag} }

func (s *Server) newUnit(g GPU, r *releaser, tag string) *unit {
	return &unit{server: s, gpu: g, tag: tag, releaser: r, logger: s.cfg.Logger.With("gpu", g.UUID, "tag", tag),
		machine: layout.New(s.newID), memory: map[string]backend.Memory{}, sessions: map[layout.SessionID]*session{}, users: map[string]int{}}
}

// find returns the unit of a GPU and a tag, which it makes if need be. mu is held.
func (s *Server) find(gpu, tag string) (*unit, error) {
	if u := s.units[unitKey{gpu, tag}]; u != nil {
		return u, nil
	}
	if err := checkTag(tag); err != nil {
		return nil, err
	}
	for i, g := range s.cfg.GPUs {
		if g.UUID != gpu {
			continue
		}
		if len(s.units) >= maxUnits {
			return nil, fmt.Errorf("tag %q of GPU %s: the limit of %d layouts is reached: clear those that no engine needs with 'remuda gms clear'", tag, gpu, maxUnits)
		}
		u := s.newUnit(g, s.releasers[i], tag)
		s.units[u.key()] = u
		return u, nil
	}
	return nil, fmt.Errorf("GPU %q is not served here: start 'remuda gms' with it", gpu)
}

func checkTag(tag string) error {
	if tag == "" || len(tag) > maxTag || !utf8.ValidString(tag) {
		return fmt.Errorf("tag %q: must have 1 to %d bytes of UTF-8", tag, maxTag)
	}
	for _, r := range tag {
		if r <= ' ' || r == 0x7f {
			return fmt.Errorf("tag %q: must not have spaces and control characters", tag)
		}
	}
	return nil
}

// enter counts a connection of a unit.
func (s *Server) enter(gpu, tag, group string) (*unit, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u, err := s.find(gpu, tag)
	if err == nil {
		u.users[group]++
	}
	return u, err
}

// exit ends what enter has begun. The connection's session must have ended. used: it was more
// than a question.
func (s *Server) exit(u *unit, group string, used bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if u.users[group]--; u.users[group] == 0 {
		delete(u.users, group)
	}
	if len(u.users) == 0 && used {
		u.unusedSince = time.Now()
	}
	s.dropEmpty(u)
}

// forgetUnused forgets a unit that nobody uses and that has no layout.
func (s *Server) forgetUnused(u *unit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropEmpty(u)
}

// dropEmpty is forgetUnused while mu is held.
func (s *Server) dropEmpty(u *unit) {
	if len(u.users) > 0 || u.permanent || u.status().State != layout.Empty || s.units[u.key()] != u {
		return
	}
	delete(s.units, u.key())
	labels := prometheus.Labels{"gpu": u.gpu.UUID, "tag": u.tag}
	for _, m := range []*prometheus.CounterVec{s.metrics.requests, s.metrics.handshakes, s.metrics.clears, s.metrics.oom} {
		m.DeletePartialMatch(labels)
	}
}

var errInUse = errors.New("others use the layout")

// unused is nil if only a connection's own group uses a unit.
func (u *unit) unused(group string) error {
	u.server.mu.Lock()
	defer u.server.mu.Unlock()
	others := -1 // but for the connection itself
	for name, n := range u.users {
		if name == "" || name != group {
			others += n
		}
	}
	if group != "" {
		others++
	}
	if others > 0 {
		return fmt.Errorf("%w: %d connections", errInUse, others)
	}
	return nil
}

// list returns the units.
func (s *Server) list() (out []*unit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range s.units {
		out = append(out, u)
	}
	return out
}

// carry does what the machine asks for. mu is held.
func (u *unit) carry(e layout.Effects) {
	if len(e.Freed) > 0 {
		freed := make([]backend.Memory, 0, len(e.Freed))
		for _, a := range e.Freed {
			freed = append(freed, u.memory[a.ID])
			delete(u.memory, a.ID)
		}
		u.releaser.add(freed...)
	}
	for _, o := range e.Offers {
		u.sessions[o.Session].offer <- o.Mode // it has room for the one offer of a session
	}
}

// leave ends a session, whatever it has. It may be called twice.
func (u *unit) leave(id layout.SessionID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	x := u.sessions[id]
	if x == nil {
		return
	}
	delete(u.sessions, id)
	aborts := !x.releases && u.machine.Check(id, true, "abort") == nil
	e := u.machine.Leave(id)
	if aborts {
		u.server.metrics.clears.WithLabelValues(u.gpu.UUID, u.tag, "abort").Inc()
		u.logger.Warn("a writer disconnected without a commit: its layout is cleared", "session", id, "allocations", len(e.Freed))
	}
	u.carry(e)
}

func (u *unit) status() layout.Status {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.machine.Status()
}
