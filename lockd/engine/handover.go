package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"remuda/lockd/client"
)

var (
	// ErrHandedOver is wrapped by Run's error after HandOver.
	ErrHandedOver = errors.New("handed over to the standby")
	// ErrDrill is Run's error after a drill.
	ErrDrill = errors.New("ended by a drill, as a crash would have")
	// ErrNoStandby means that no other engine of the pair waits for its lock.
	ErrNoStandby = errors.New("no standby")
)

// statusTimeout bounds the question to lockd whether an engine waits.
const statusTimeout = 5 * time.Second

// HandOver drains the engine, for at most timeout, and ends it, so that lockd grants the pair's
// lock to the engine that waits for it. A drill ends the engine at once, as a crash would. Both
// need a standby: the error wraps ErrNoStandby without one. The error wraps ErrNotDrained if
// requests still ran after timeout. After such an error, or if ctx ends before the drain does, the
// engine serves on. Since is as of WakeOn.
func (s *Shim) HandOver(ctx context.Context, since time.Time, timeout time.Duration, drill bool) error {
	if err := s.mayHandOver(); err != nil { // also while what is under way takes long
		return err
	}
	s.op.Lock()
	defer s.op.Unlock()
	if err := s.unchanged(since); err != nil {
		return err
	}
	if err := s.mayHandOver(); err != nil {
		return err
	}
	if err := s.findStandby(ctx); err != nil {
		return err
	}
	reason := ErrDrill
	if !drill {
		began := time.Now()
		err := s.drain(ctx, timeout)
		if err == nil { // the standby may have died meanwhile
			err = s.findStandby(ctx)
		}
		if err != nil {
			if ended := s.serveOn(); ended != nil {
				return fmt.Errorf("the engine ends: %w (it was not handed over: %v)", ended, err) //nolint:errorlint // the end is what counts
			}
			return fmt.Errorf("the engine serves on: %w", err)
		}
		reason = fmt.Errorf("%w, drained in %s", ErrHandedOver, time.Since(began).Round(time.Millisecond))
	}
	// Nothing registers or wakes the engine from now on.
	if err := s.move(Dead); err != nil {
		return err
	}
	s.fail(reason)
	return nil
}

// mayHandOver returns an error that wraps ErrWrongState unless the engine serves for a pair.
func (s *Shim) mayHandOver() error {
	switch state := s.State(); {
	case s.locker == nil:
		return fmt.Errorf("%w: the engine is the only one of its replica: a failover needs a pair (failover = true in the model file)", ErrWrongState)
	case state == Draining:
		return fmt.Errorf("%w: engine is %s: a failover, a sleep or a stop is under way", ErrWrongState, state)
	case state != Active:
		return fmt.Errorf("%w: engine is %s: only the engine of a pair that serves can hand over", ErrWrongState, state)
	}
	return nil
}

// findStandby returns an error that wraps ErrNoStandby unless an engine waits for the pair's lock.
func (s *Shim) findStandby(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	name := s.cfg.Name.String()
	groups, err := client.Status(ctx, s.lockConfig(name))
	if err != nil {
		return fmt.Errorf("%w: lockd at %s does not say whether an engine waits: %w", ErrNoStandby, s.cfg.Lock, err)
	}
	for _, g := range groups {
		if g.Group == name && g.Waiting > 0 {
			return nil
		}
	}
	return fmt.Errorf("%w: no engine waits for the lock of %s: wait until the pair's other engine has started", ErrNoStandby, name)
}

// serveOn cancels the drain. The error is why the engine ends. op is held.
func (s *Shim) serveOn() error {
	s.mu.Lock()
	run := s.run
	s.mu.Unlock()
	switch state := s.State(); {
	case run.Err() != nil:
		return errors.New("the shim was told to stop")
	case state != Draining:
		return fmt.Errorf("engine is %s", state)
	}
	return s.resume(run)
}
