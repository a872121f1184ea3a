package gms

import (
	"context"
	"time"

	"remuda/device-plugin/gms/layout"
	"remuda/device-plugin/gms/wire"
)

// releaseUnused frees, until ctx ends, the layouts that nobody has used for
// Config.ReleaseAfter: those of engines that were stopped or moved away. The shims of a
// failover pair have a connection for as long as they run and the pair is not asleep, so a
// layout whose engines crash stays for their next life. The layouts of the well-known sockets
// are kept: clients that know no tags leave no connection while they sleep.
func (s *Server) releaseUnused(ctx context.Context) {
	tick := time.NewTicker(max(s.cfg.ReleaseAfter/10, 10*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, u := range s.list() {
			if s.unusedFor(u) >= s.cfg.ReleaseAfter {
				s.release(ctx, u)
			}
		}
	}
}

// unusedFor is for how long a unit has had no connection.
func (s *Server) unusedFor(u *unit) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if u.permanent || len(u.users) > 0 || u.unusedSince.IsZero() {
		return 0
	}
	return time.Since(u.unusedSince)
}

// release clears a unit as a writer does that connects and leaves, and forgets it.
func (s *Server) release(ctx context.Context, u *unit) {
	x := &session{id: layout.SessionID(s.lastSession.Add(1)), unit: u, offer: make(chan layout.Mode, 1), releases: true}
	u.mu.Lock()
	u.sessions[x.id] = x
	u.carry(u.machine.Connect(x.id, layout.Mode(wire.RW)))
	u.mu.Unlock()
	defer u.leave(x.id)
	select {
	case <-x.offer:
	default:
		return // a client was faster
	}
	if err := u.drop(ctx); err != nil {
		u.logger.Error("cannot release a layout that no engine uses", "error", err)
		return
	}
	u.mu.Lock()
	got, e, err := u.machine.Accept(x.id)
	if err == nil {
		u.carry(e)
	}
	u.mu.Unlock()
	if err == nil && got.Cleared {
		s.metrics.clears.WithLabelValues(u.gpu.UUID, u.tag, "unused").Inc()
		u.logger.Info("released a layout that no engine uses", "allocations", len(e.Freed), "unused", s.cfg.ReleaseAfter.String())
	}
	u.leave(x.id)
	s.forgetUnused(u)
}
