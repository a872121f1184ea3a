package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"remuda/lockd/engine/dialect"
)

// healthLoop checks the engine: that it can serve while it is Active, that it lives while it
// stands by or drains, and that it works on the requests that it has. It ends an engine of which
// none of that was seen for HangTimeout.
func (s *Shim) healthLoop(ctx context.Context) {
	tick := time.NewTicker(s.cfg.HealthInterval)
	defer tick.Stop()
	var failures int
	var work progress
	clock := clock{most: min(s.cfg.HealthInterval+s.cfg.HealthTimeout, s.cfg.HangTimeout/2)}
	healthyAt := clock.now(time.Now()) // when the last check that succeeded began
	before := s.State()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		state, began := s.State(), clock.now(time.Now())
		if state != before {
			failures, before, healthyAt, work = 0, state, began, progress{}
		}
		err := s.checkHealth(ctx, state)
		if ctx.Err() != nil {
			return
		}
		if s.State() != state {
			continue // the answer may be of either state
		}
		if err == nil {
			if s.setUnhealthy("") {
				s.logger.Info("engine can serve again", "after", began.Sub(healthyAt).Round(time.Millisecond).String())
				s.push()
			}
			failures, healthyAt = 0, began
			if err := s.checkProgress(ctx, state, &work, began); err != nil {
				s.fail(err)
				return
			}
			continue
		}
		failures++
		s.metrics.healthFailed.Inc()
		s.logger.Warn("health check failed", "state", state, "failures", failures, "error", err)
		if state == Active && failures >= s.cfg.UnhealthyAfter && s.setUnhealthy(err.Error()) {
			s.push()
		}
		if sick := clock.now(time.Now()).Sub(healthyAt); sick > s.cfg.HangTimeout || errors.Is(err, errNotLoadedInTime) {
			s.fail(fmt.Errorf("%w: it is %s and has failed its health checks for %s: %w", errHangs, state, sick.Round(time.Second), err))
			return
		}
	}
}

// errNotLoadedInTime: an engine that lost its model has tried to load it for longer than HangTimeout.
var errNotLoadedInTime = errors.New("the engine has not loaded its model in time")

// clock tells the time that was observed: between two looks at it no more than most goes by. So
// a pause of this process, or of the whole machine, is not taken for a hang of the engine, which
// may have stood still with it.
type clock struct {
	most          time.Duration
	last, counted time.Time
}

func (c *clock) now(now time.Time) time.Time {
	if c.last.IsZero() {
		c.counted = now
	} else {
		c.counted = c.counted.Add(min(now.Sub(c.last), c.most))
	}
	c.last = now
	return c.counted
}

// checkProgress returns an error if an engine that serves, or drains, has had requests for
// HangTimeout and done no work on them: a server that answers for its health is no proof.
func (s *Shim) checkProgress(ctx context.Context, state State, work *progress, now time.Time) error {
	if state != Active && state != Draining {
		return nil
	}
	askCtx, cancel := context.WithTimeout(ctx, s.cfg.HealthTimeout)
	defer cancel()
	usage, err := s.dialect.Usage(askCtx)
	stalled := work.observe(now, usage, err)
	if stalled <= s.cfg.HangTimeout || ctx.Err() != nil || s.State() != state {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: it is %s and has not reported its work for %s: %w", errHangs, state, stalled.Round(time.Second), err)
	}
	return fmt.Errorf("%w: it is %s, has %d requests and has made no token for %s", errHangs, state, usage.InFlight(), stalled.Round(time.Second))
}

// checkHealth makes one check. An Active engine that lost its model (its runner
// was killed, say) is told to load it again.
func (s *Shim) checkHealth(ctx context.Context, state State) error {
	checkCtx, cancel := context.WithTimeout(ctx, s.cfg.HealthTimeout)
	defer cancel()
	switch state {
	case Standby, Draining:
		if s.engineProcess().phase() != processReady {
			return nil
		}
		return s.dialect.Healthy(checkCtx)
	case Active:
	default:
		return nil
	}
	err := s.dialect.Serving(checkCtx)
	if !errors.Is(err, dialect.ErrNotLoaded) {
		return err
	}
	// A sleep that is under way, or has come in between, unloads on purpose.
	if !s.op.TryLock() {
		return nil
	}
	defer s.op.Unlock()
	if s.State() != Active {
		return nil
	}
	s.logger.Warn("the engine has unloaded its model: loading it again", "error", err)
	s.setUnhealthy("the engine has unloaded its model: loading it again")
	s.push()
	began := time.Now()
	loadCtx, cancelLoad := context.WithTimeout(ctx, s.cfg.WakeTimeout)
	defer cancelLoad()
	err = s.dialect.Load(loadCtx)
	if took := time.Since(began); err != nil && ctx.Err() == nil && took > s.cfg.HangTimeout {
		return fmt.Errorf("%w: it has failed after %s: %w", errNotLoadedInTime, took.Round(time.Second), err)
	}
	return err
}

// setUnhealthy notes why an Active engine cannot serve, "" if it can, and tells
// whether that turned.
func (s *Shim) setUnhealthy(why string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	turned := (s.machine.unhealthy == "") != (why == "")
	s.machine.SetUnhealthy(why)
	return turned
}

// progress finds an engine that has requests and does no work on them. The zero value has seen
// nothing yet.
type progress struct {
	// mark is the Progress of the last usage; workedAt is when it changed last, or when the
	// engine had nothing to do.
	mark     string
	workedAt time.Time
}

// observe takes what Usage returned and returns for how long the engine has had requests and
// done no work. An engine that does not report its requests or its progress is taken to work.
// One that does not answer is not.
func (p *progress) observe(now time.Time, u dialect.Usage, err error) time.Duration {
	switch {
	case p.workedAt.IsZero(), errors.Is(err, dialect.ErrUnknown):
	case err != nil:
		return now.Sub(p.workedAt)
	case u.InFlight() == 0, u.Progress == "", u.Progress != p.mark:
	default:
		return now.Sub(p.workedAt)
	}
	p.mark, p.workedAt = u.Progress, now
	return 0
}
