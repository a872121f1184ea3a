package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"remuda/lockd/engine/dialect"
)

// Errors of the operations that the shim's HTTP offers.
var (
	// ErrWrongState: the engine's state does not allow the operation.
	ErrWrongState = errors.New("wrong state")
	// ErrChanged: the engine is not in the state any more that the operation was for.
	ErrChanged = errors.New("the engine's state has changed")
	// ErrNotDrained: requests were still running when the drain's time was up.
	ErrNotDrained = errors.New("not drained")
	// ErrCannotSleep: the engine has no sleep mode.
	ErrCannotSleep = errors.New("engine cannot sleep")
)

const (
	pollFast = 10 * time.Millisecond
	pollSlow = 500 * time.Millisecond
)

// WakeOn brings a standing-by engine back and registers it. A failure is fatal
// to the process: an engine that failed its wake may have leaked GPU memory.
// Only the end of the shim may end ctx. A draining engine is registered again. An
// engine that serves is no longer parked.
//
// It wakes on these GPUs, nil for those on which the engine slept. The error
// wraps dialect.ErrCannotMove where they are others and the engine cannot move, and
// ErrBadGPUs where it has no seats there; the engine sleeps on then.
//
// Since, unless zero, is the Status.Since that the order was made for. If the engine has
// changed its state meanwhile, nothing is done and the error wraps ErrChanged.
func (s *Shim) WakeOn(ctx context.Context, since time.Time, gpus []string) error {
	if err := s.checkGPUs(gpus); err != nil {
		return err
	}
	if err := s.mayWake(); err != nil { // also while what is under way takes long
		return err
	}
	s.op.Lock()
	defer s.op.Unlock()
	if err := s.unchanged(since); err != nil {
		return err
	}
	if err := s.mayWake(); err != nil {
		return err
	}
	return s.wake(ctx, gpus)
}

// unchanged returns an error that wraps ErrChanged if the engine has changed its state
// since that time. A zero time stands for any state.
func (s *Shim) unchanged(since time.Time) error {
	s.mu.Lock()
	state, at := s.machine.State(), s.machine.Since()
	s.mu.Unlock()
	if since.IsZero() || at.Equal(since) {
		return nil
	}
	return fmt.Errorf("%w: it is %s since %s, and the order was made for its state since %s", ErrChanged, state, at.Format(time.RFC3339Nano), since.Format(time.RFC3339Nano))
}

func (s *Shim) mayWake() error {
	switch state := s.State(); {
	case state == Standby && s.waitsForLock():
		return fmt.Errorf("%w: engine is %s and waits for its lock, whose grant wakes it", ErrWrongState, state)
	case state == Init, state == Dead:
		return fmt.Errorf("%w: engine is %s: only a standby or draining engine can be woken", ErrWrongState, state)
	}
	return nil
}

// wake is WakeOn while op is held.
func (s *Shim) wake(ctx context.Context, gpus []string) error {
	switch state := s.State(); state {
	case Active, Draining:
		s.mu.Lock()
		now := s.gpus
		s.mu.Unlock()
		if gpus != nil && !sameGPUs(gpus, now) {
			return fmt.Errorf("%w: engine is %s on %s: must sleep before it wakes on other GPUs", ErrWrongState, state, strings.Join(now, ", "))
		}
		if state == Active {
			return s.want(Hot)
		}
		return s.resume(ctx)
	case Standby:
	default:
		return fmt.Errorf("%w: engine is %s: only a standby or draining engine can be woken", ErrWrongState, state)
	}
	if s.record().Wanted == Warm && s.engineProcess().phase() != processAbsent {
		place, err := s.locateWeights(ctx, serviceRestart)
		if err != nil {
			return err
		}
		if s.saved == nil && (place == weightsLost || place == weightsPartial) {
			s.logger.Warn("the saved weights are lost with the engine that saved them: stopping the sleeping engine, a new one loads the weights from their file")
			if err := s.endEngine(ctx); err != nil {
				return err
			}
		}
	}
	if err := s.moveTo(ctx, gpus); err != nil {
		return err
	}
	start, within := time.Now(), s.cfg.WakeTimeout
	if s.engineProcess().phase() == processAbsent { // it has to load its model first
		within += s.cfg.InitTimeout
	}
	s.mu.Lock()
	err := s.machine.Wake(start, within)
	s.weightsLost = false
	s.mu.Unlock()
	if err != nil {
		return err
	}
	s.metrics.entered(Waking)
	s.logger.Info("state", "from", Standby, "to", Waking)
	wakeCtx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if err := s.wakeEngine(wakeCtx); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		err = fmt.Errorf("wake failed after %s: %w", time.Since(start).Round(time.Millisecond), err)
		s.fail(err)
		return err
	}
	if err := s.move(Active); err != nil {
		return err
	}
	s.metrics.woke(time.Since(start))
	s.logger.Info("engine is active", "wake", time.Since(start).Round(time.Millisecond).String())
	served := time.Now()
	s.push()
	s.recordLeader(served)
	s.noteLayouts(ctx)
	return s.want(Hot)
}

func (s *Shim) wakeEngine(ctx context.Context) error {
	if err := s.restoreWeights(ctx); err != nil {
		return err
	}
	switch {
	case s.engineProcess().phase() == processAbsent:
		if err := s.launch(); err != nil {
			return err
		}
		if err := s.load(ctx); err != nil {
			return err
		}
		s.noteGenerated(ctx)
	case s.dialect.CanSleep():
		asleep, err := s.dialect.Sleeping(ctx)
		if err != nil {
			return fmt.Errorf("check whether the engine is asleep: %w", err)
		}
		if asleep {
			if err := s.dialect.Wake(ctx); err != nil {
				return err
			}
		}
	}
	if err := s.dialect.Serving(ctx); err != nil {
		return fmt.Errorf("the woken engine cannot serve: %w", err)
	}
	return s.register(ctx)
}

// resume calls a drain off. It fails as a wake does.
func (s *Shim) resume(ctx context.Context) error {
	wakeCtx, cancel := context.WithTimeout(ctx, s.cfg.WakeTimeout)
	defer cancel()
	if err := s.wakeEngine(wakeCtx); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		err = fmt.Errorf("cancel the drain: %w", err)
		s.fail(err)
		return err
	}
	if err := s.move(Active); err != nil {
		return err
	}
	s.push()
	return s.want(Hot)
}

// Drain takes the engine out of routing and waits until it is idle, for at
// most timeout. It wraps ErrNotDrained when requests were still running then.
// The engine stays Draining for DrainHold, to be drained again, put to sleep, woken, or
// stopped; not at all if ctx was cancelled. Then it serves again.
func (s *Shim) Drain(ctx context.Context, timeout time.Duration) error {
	s.op.Lock()
	defer s.op.Unlock()
	return s.drain(ctx, timeout)
}

func (s *Shim) drain(ctx context.Context, timeout time.Duration) error {
	switch state := s.State(); state {
	case Active:
		if err := s.move(Draining); err != nil {
			return err
		}
	case Draining:
	default:
		return fmt.Errorf("%w: engine is %s: only an active engine can be drained", ErrWrongState, state)
	}
	start, whole := time.Now(), ctx
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	defer func() {
		s.drainedUntil = time.Now()
		if whole.Err() == nil {
			s.drainedUntil = s.drainedUntil.Add(s.cfg.DrainHold)
		}
	}()
	// Until Consul hears of it, routers may send more. After one TTL without a
	// push the check is critical by itself.
	if err := retryFor(ctx, s.logger, s.cfg.TTL, s.deregister); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("%w within %s: %w", ErrNotDrained, timeout, err)
		}
		s.logger.Warn("draining an engine that is still registered in Consul", "error", err)
		if wait := s.cfg.TTL - time.Since(start); pause(ctx, wait) != nil {
			return fmt.Errorf("%w within %s: %w", ErrNotDrained, timeout, err)
		}
	}
	if err := s.awaitIdle(ctx); err != nil {
		return fmt.Errorf("%w within %s: %w", ErrNotDrained, timeout, err)
	}
	s.metrics.drained(time.Since(start))
	s.logger.Info("engine is drained", "took", time.Since(start).Round(time.Millisecond).String())
	return nil
}

// awaitIdle returns nil once the engine has had no request for DrainSettle. Its
// error, at ctx's end, says what was last heard.
func (s *Shim) awaitIdle(ctx context.Context) error {
	var idleSince time.Time
	var last error // why the engine is not idle, as it was last heard
	for {
		askCtx, cancel := context.WithTimeout(ctx, s.cfg.HealthTimeout)
		usage, err := s.dialect.Usage(askCtx)
		cancel()
		if err != nil && ctx.Err() != nil && last != nil {
			return last // that our own time is over tells nothing of the engine
		}
		if errors.Is(err, dialect.ErrUnknown) && s.dialect.SleepWaits() {
			// Requests that were routed before the deregistration may still
			// arrive, and would keep the model.
			if err := pause(ctx, s.cfg.DrainSettle); err != nil {
				return err
			}
			return s.dialect.Sleep(ctx)
		}
		// An engine that cannot be asked right now, or never tells, may well
		// have requests.
		last = err
		if err == nil && usage.InFlight() > 0 {
			last = fmt.Errorf("%d requests running, %d waiting", usage.Running, usage.Waiting)
		}
		switch {
		case last != nil:
			idleSince = time.Time{}
		case idleSince.IsZero():
			idleSince = time.Now()
		}
		if last == nil && time.Since(idleSince) >= s.cfg.DrainSettle {
			return nil
		}
		if pause(ctx, 25*time.Millisecond) != nil {
			if last == nil {
				last = errors.New("the engine has only just become idle")
			}
			return last
		}
	}
}

// Sleep drains the engine if it is Active and puts it to sleep: real engines
// crash when they are put to sleep with requests in flight (vllm#28714). A
// failure other than ErrBusy is fatal to the process: the engine may be dead
// behind a server that still answers. Only the end of the shim may end ctx.
//
// The record says Warm from before the engine sleeps on. Weights that it shares
// leave the GPUs; an error of that leaves the engine asleep, and Sleep may be called
// again. Since is as of WakeOn.
func (s *Shim) Sleep(ctx context.Context, since time.Time, drainTimeout time.Duration) error {
	if err := s.maySleep(); err != nil { // also while what is under way takes long
		return err
	}
	s.op.Lock()
	defer s.op.Unlock()
	if err := s.unchanged(since); err != nil {
		return err
	}
	if err := s.maySleep(); err != nil {
		return err
	}
	if s.State() == Standby {
		if s.loadsNothing(s.record()) {
			return fmt.Errorf("%w: no engine is loaded before it is to serve", ErrCannotSleep)
		}
		if err := s.want(Warm); err != nil {
			return err
		}
		return s.offloadWeights(ctx)
	}
	if !s.dialect.CanSleep() {
		return fmt.Errorf("%w: stop it instead", ErrCannotSleep)
	}
	if err := s.drain(ctx, drainTimeout); err != nil {
		return err
	}
	if err := s.want(Warm); err != nil {
		return err
	}
	// An engine that does not count its requests waits for them here.
	sleepCtx, cancel := context.WithTimeout(ctx, drainTimeout+s.cfg.WakeTimeout)
	defer cancel()
	if err := s.dialect.Sleep(sleepCtx); err != nil {
		err = fmt.Errorf("put the engine to sleep: %w", err)
		switch {
		case errors.Is(err, dialect.ErrBusy), errors.Is(err, dialect.ErrNoSleep): // it serves on
			return errors.Join(err, s.want(Hot))
		case ctx.Err() == nil:
			s.fail(err)
		}
		return err
	}
	if err := s.move(Standby); err != nil {
		return err
	}
	return s.offloadWeights(ctx)
}

// loadsNothing reports whether the engine is to load and then sleep, and is not started before it is to serve, as
// a cold standby is not. It would have no weights to wake with.
func (s *Shim) loadsNothing(rec Record) bool {
	return rec.Loads && s.State() == Standby && s.engineProcess().phase() == processAbsent
}

func (s *Shim) maySleep() error {
	switch state := s.State(); {
	case state == Standby && s.waitsForLock():
		return fmt.Errorf("%w: engine is %s and waits for its lock: put the group's engine that holds the lock to sleep instead", ErrWrongState, state)
	case state == Init, state == Dead:
		return fmt.Errorf("%w: engine is %s: only an active or draining engine can be put to sleep", ErrWrongState, state)
	}
	return nil
}
