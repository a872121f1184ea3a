package gms

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"remuda/device-plugin/gms/layout"
	"remuda/device-plugin/gms/wire"
)

// handshake opens a session, or answers why there is none: nil then.
func (c *connection) handshake(ctx context.Context, m *wire.HandshakeRequest) (*session, layout.Mode) {
	u := c.unit
	if m.LockType == wire.RWOrRO {
		m.LockType = wire.Auto
	}
	if err := checkHandshake(m); err != nil {
		c.deny(m, wire.CodeBadRequest, err)
		return nil, ""
	}
	if m.ExpectedNonce != "" && m.ExpectedNonce != u.server.nonce {
		c.deny(m, wire.CodeRestarted, errors.New("the service has restarted: the layout is lost, or has the hash in this response"))
		return nil, ""
	}
	s := &session{id: layout.SessionID(u.server.lastSession.Add(1)), unit: u, conn: c.wire,
		offer: make(chan layout.Mode, 1)}
	s.logger = c.logger.With("session", s.id)
	limit := newWaitLimit(m.TimeoutMS)
	defer limit.stop()
	if m.IfUnused {
		if err := c.unused(ctx); err != nil {
			c.deny(m, wire.CodeInUse, err)
			return nil, ""
		}
		limit.none = true
	}
	mode, err := c.acquire(s, m, limit)
	if err == nil {
		err = c.grant(ctx, s, m, mode)
	}
	var denied *denial
	if errors.As(err, &denied) {
		s.end()
		c.deny(m, denied.code, denied)
		return nil, ""
	}
	if err != nil {
		s.end()
		return nil, ""
	}
	return s, mode
}

// unused is nil if only the connection's own group uses the unit. After a crash of the service the
// answer waits for those that use it to come back.
func (c *connection) unused(ctx context.Context) error {
	err := c.unit.unused(c.group)
	wait := settling - time.Since(c.unit.restored)
	if err != nil || wait <= 0 {
		return err
	}
	gone, stop := c.wire.WatchGone()
	defer stop()
	select {
	case <-time.After(wait):
		return c.unit.unused(c.group)
	case <-gone:
		return errGone
	case <-ctx.Done():
		return ctx.Err()
	}
}

func checkHandshake(m *wire.HandshakeRequest) error {
	switch m.LockType {
	case wire.RW:
		return nil
	case wire.RO, wire.Auto:
		if m.IfUnused {
			return fmt.Errorf("if_unused is for lock_type rw, and lock_type is %q", m.LockType)
		}
		return nil
	default:
		return fmt.Errorf("lock_type is %q: must be rw, ro, auto or rw_or_ro", m.LockType)
	}
}

// deny answers a handshake without success.
func (c *connection) deny(m *wire.HandshakeRequest, code string, err error) {
	status := c.unit.status()
	c.unit.server.metrics.handshakes.WithLabelValues(c.unit.gpu.UUID, c.unit.tag, lockLabel(m.LockType), code).Inc()
	c.logger.Info("lock not granted", "lock_type", m.LockType, "code", code, "reason", err)
	c.send(m.MessageType(), "refused", &wire.HandshakeResponse{Committed: status.Committed, Nonce: c.unit.server.nonce,
		MemoryLayoutHash: status.Hash, Error: err.Error(), Code: code}, -1)
}

// denial is a lock that is not granted, for a reason that the client is told.
type denial struct {
	code, text string
}

func (d *denial) Error() string { return d.text }

var (
	errTimeout = &denial{wire.CodeTimeout, "the lock was not free in time"}
	// errGone: nobody is left to be answered.
	errGone = errors.New("the client disconnected")
)

// acquire waits until the lock is offered.
func (c *connection) acquire(s *session, m *wire.HandshakeRequest, limit waitLimit) (layout.Mode, error) {
	u := c.unit
	u.mu.Lock()
	u.sessions[s.id] = s
	u.carry(u.machine.Connect(s.id, layout.Mode(m.LockType)))
	u.mu.Unlock()
	select {
	case mode := <-s.offer:
		return mode, nil
	default:
	}
	if limit.none {
		return u.giveUp(s)
	}
	gone, stop := c.wire.WatchGone()
	defer stop()
	select {
	case mode := <-s.offer:
		return mode, nil
	case <-limit.expired:
		return u.giveUp(s)
	case <-gone: // also when the server ends, which closes all connections
		return "", errGone
	}
}

// waitLimit is a handshake's timeout.
type waitLimit struct {
	// none: one try, no wait.
	none bool
	// expired is closed when the time is up; nil for never.
	expired <-chan struct{}
	stop    func()
}

// newWaitLimit starts the clock. A timeout that no clock can hold is for ever.
func newWaitLimit(ms *int64) waitLimit {
	switch {
	case ms == nil || *ms > math.MaxInt64/int64(time.Millisecond):
		return waitLimit{stop: func() {}}
	case *ms <= 0:
		return waitLimit{none: true, stop: func() {}}
	}
	expired := make(chan struct{})
	timer := time.AfterFunc(time.Duration(*ms)*time.Millisecond, func() { close(expired) })
	return waitLimit{expired: expired, stop: func() { timer.Stop() }}
}

// giveUp ends a wait, unless the lock was offered at the last moment.
func (u *unit) giveUp(s *session) (layout.Mode, error) {
	u.mu.Lock()
	gaveUp, e := u.machine.GiveUp(s.id)
	u.carry(e)
	u.mu.Unlock()
	if gaveUp {
		return "", errTimeout
	}
	return <-s.offer, nil // only an offer ends a wait otherwise
}

// grant takes what is offered and tells the client. A client that is gone by now
// has changed nothing, and gives the lock back. So does one that is offered the
// lock only because the server ends: its end must clear nothing.
func (c *connection) grant(ctx context.Context, s *session, m *wire.HandshakeRequest, mode layout.Mode) error {
	u := c.unit
	if ctx.Err() != nil || c.wire.Gone() {
		return errGone
	}
	if mode == layout.Writer {
		// A layout that a writer is told to have cleared must not come back.
		if err := u.drop(ctx); err != nil {
			return &denial{wire.CodeFailed, err.Error()}
		}
		if ctx.Err() != nil || c.wire.Gone() { // it may have taken a while
			if err := u.keepAgain(context.WithoutCancel(ctx)); err != nil {
				c.logger.Error("the next crash loses a layout", "error", err)
			}
			return errGone
		}
	}
	u.mu.Lock()
	got, e, err := u.machine.Accept(s.id)
	if err == nil {
		if got.Cleared {
			u.server.metrics.clears.WithLabelValues(u.gpu.UUID, u.tag, "writer").Inc()
		}
		u.carry(e)
	}
	u.mu.Unlock()
	if err != nil {
		return err
	}
	u.server.metrics.handshakes.WithLabelValues(u.gpu.UUID, u.tag, lockLabel(m.LockType), "granted_"+string(mode)).Inc()
	s.logger.Info("granted", "lock_type", m.LockType, "granted", mode, "cleared", len(e.Freed))
	if !c.send(m.MessageType(), "ok", &wire.HandshakeResponse{Success: true, Committed: got.Committed, GrantedLockType: wire.LockType(mode),
		Nonce: u.server.nonce, MemoryLayoutHash: got.Hash}, -1) {
		return errGone
	}
	return nil
}

// lockLabel is a lock type as a label: a client may ask for anything.
func lockLabel(t wire.LockType) string {
	switch t {
	case wire.RW, wire.RO, wire.Auto:
		return string(t)
	default:
		return "other"
	}
}
