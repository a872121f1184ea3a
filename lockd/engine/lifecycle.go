package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/hashicorp/go-hclog"

	"remuda/controller/consul"
	"remuda/internal/replica"
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
	// consulRetry is how soon an unregistered engine tries again.
	consulRetry = 500 * time.Millisecond
)

// lifecycle walks the engine from Init to Active (a primary) or Standby (a
// shadow) and then looks after it until ctx ends.
func (s *Shim) lifecycle(ctx context.Context) {
	initialise := s.initialise
	if s.isCold() { // by its flags, or parked
		initialise = func(context.Context) error { return s.move(Standby) }
	}
	if err := initialise(ctx); err != nil {
		if ctx.Err() == nil {
			s.fail(fmt.Errorf("initialise: %w", err))
		}
		return
	}
	// A loop of its own, because a push may not wait.
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { s.beats(ctx) })
	if s.parking.path != "" {
		wg.Go(func() { s.tend(ctx) })
	}
	if s.locker != nil {
		if err := s.acquire(ctx); err != nil {
			if ctx.Err() == nil {
				s.fail(err)
			}
			return
		}
		s.mu.Lock()
		grant := s.grant
		s.mu.Unlock()
		wg.Go(func() { s.endWith(ctx, grant) })
	}
	if s.locker != nil || s.cfg.Role == replica.RolePrimary {
		if err := s.wake(ctx, time.Time{}, nil, true); err != nil && ctx.Err() == nil {
			s.fail(err)
		}
	}
}

// initialise waits until the engine has loaded its model and puts it to sleep,
// unless it is to serve at once. Should its group be parked meanwhile, the engine goes
// and the shim stands by without it.
func (s *Shim) initialise(ctx context.Context) error {
	whole := ctx
	ctx, cancel := s.untilParked(ctx)
	defer cancel()
	err := s.prepare(ctx)
	if err == nil || whole.Err() != nil || !errors.Is(context.Cause(ctx), errParked) {
		return err
	}
	s.logger.Info("the group was parked while the engine was loading: standing by without an engine")
	if err := s.dropEngine(whole); err != nil {
		return err
	}
	return s.move(Standby)
}

func (s *Shim) prepare(ctx context.Context) error {
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, s.cfg.InitTimeout)
	defer cancel()
	if err := s.load(ctx); err != nil {
		return err
	}
	switch {
	case s.cfg.Role == replica.RolePrimary && s.locker == nil:
	case s.dialect.CanSleep():
		if err := s.firstSleep(ctx); err != nil {
			return fmt.Errorf("put the engine to sleep: %w", err)
		}
	case s.locker != nil:
		return fmt.Errorf("%w and would keep the GPU's memory while another engine has the lock: enable its sleep mode (vLLM: --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1), or set -standby cold to start it after it gets the lock", ErrCannotSleep)
	}
	s.noteLeftover(ctx)
	took := time.Since(start)
	s.metrics.initSeconds.Set(took.Seconds())
	s.logger.Info("engine is initialised", "took", took.Round(time.Millisecond).String(), "slots", s.Engine().Slots, "can_sleep", s.dialect.CanSleep())
	return s.move(Standby)
}

// firstSleep waits for requests to end that somebody has sent to the engine's own
// address: nobody routes to it yet.
func (s *Shim) firstSleep(ctx context.Context) error {
	for warned := false; ; warned = true {
		err := s.dialect.Sleep(ctx)
		if !errors.Is(err, dialect.ErrBusy) {
			return err
		}
		if !warned {
			s.logger.Warn("the engine has requests in flight before its first sleep: waiting for them to finish", "error", err)
		}
		if pause(ctx, 50*time.Millisecond) != nil {
			return err
		}
	}
}

// load waits until the started engine has its model, and asks for its slots.
func (s *Shim) load(ctx context.Context) error {
	start := time.Now()
	if err := poll(ctx, s.dialect.Healthy); err != nil {
		return fmt.Errorf("engine is not healthy after %s: %w", time.Since(start).Round(time.Millisecond), err)
	}
	if err := s.dialect.Load(ctx); err != nil {
		return fmt.Errorf("load model %q: %w", s.cfg.Name.Model, err)
	}
	slots := s.cfg.Slots
	if slots == 0 {
		asked, err := s.dialect.Slots(ctx)
		if err != nil && !errors.Is(err, dialect.ErrUnknown) {
			return fmt.Errorf("read the engine's slots: %w", err)
		}
		slots = max(asked, 1)
	}
	s.mu.Lock()
	s.engine.Slots = slots
	s.mu.Unlock()
	return nil
}

// isCold tells whether the engine's process is yet to be started.
func (s *Shim) isCold() bool { return s.engineProcess().pid() == 0 }

// poll calls probe until it succeeds, quickly at first.
func poll(ctx context.Context, probe func(context.Context) error) error {
	pause := pollFast
	var last error
	for {
		probeCtx, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := probe(probeCtx)
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w (last error: %w)", ctx.Err(), last)
		case <-time.After(pause):
		}
		pause = min(pause*3/2, pollSlow)
	}
}

// register makes the engine discoverable. A Consul that is out of reach does
// not stop a failover: the heartbeat registers the engine as soon as it can.
func (s *Shim) register(ctx context.Context) error {
	if s.registrar == nil {
		return nil
	}
	s.reg.Lock()
	defer s.reg.Unlock()
	if state := s.State(); state == Dead {
		return fmt.Errorf("%w: engine is %s", ErrWrongState, state)
	}
	err := s.registrar.Register(ctx, s.Engine())
	if err == nil {
		return nil
	}
	s.metrics.consulFailed.Inc()
	if errors.Is(err, consul.ErrRefused) {
		return err
	}
	s.logger.Warn("Consul is unreachable: the engine is registered once it responds", "error", err)
	return nil
}

// deregister makes one attempt. The caller has left Active, so that no
// heartbeat registers the engine anew.
func (s *Shim) deregister(ctx context.Context) error {
	if s.registrar == nil {
		return nil
	}
	s.reg.Lock()
	defer s.reg.Unlock()
	err := s.registrar.Deregister(ctx, s.Engine())
	if err != nil {
		s.metrics.consulFailed.Inc()
	}
	return err
}

// insist repeats try, for at most limit, until it succeeds or Consul refuses.
// Only the first failure is logged.
func insist(ctx context.Context, logger hclog.Logger, limit time.Duration, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for logged := false; ; logged = true {
		err := try(ctx)
		if err == nil || errors.Is(err, consul.ErrRefused) {
			return err
		}
		if !logged {
			logger.Warn("cannot deregister the engine: retrying", "for", limit.String(), "error", err)
		}
		if pause(ctx, deregisterRetry) != nil {
			return err
		}
	}
}

// Engine is the engine as it is, or would be, registered.
func (s *Shim) Engine() replica.Engine {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.engine
}

// push asks the heartbeat to push at once.
func (s *Shim) push() {
	select {
	case s.pushNow <- struct{}{}:
	default:
	}
}

// beats pushes the check while the engine is Active.
func (s *Shim) beats(ctx context.Context) {
	beat := time.NewTimer(s.cfg.TTL / 3)
	defer beat.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.pushNow:
		case <-beat.C:
		}
		beat.Reset(s.beat(ctx))
	}
}

// healthLoop checks the engine: that it can serve while it is Active, that it lives while it
// stands by or drains, and that it works on the requests that it has. It ends an engine of which
// none of that was seen for HangTimeout.
func (s *Shim) healthLoop(ctx context.Context) {
	tick := time.NewTicker(s.cfg.HealthInterval)
	defer tick.Stop()
	var failures int
	var work progress
	healthyAt := time.Now() // when the last check that succeeded began
	before := s.State()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		state, began := s.State(), time.Now()
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
				s.logger.Info("engine can serve again", "after", time.Since(healthyAt).Round(time.Millisecond).String())
				s.push()
			}
			failures, healthyAt = 0, began
			if err := s.checkProgress(ctx, state, &work); err != nil {
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
		if time.Since(healthyAt) > s.cfg.HangTimeout {
			s.fail(fmt.Errorf("engine is %s and has failed its health checks for %s: %w", state, time.Since(healthyAt).Round(time.Second), err))
			return
		}
	}
}

// checkProgress returns an error if an engine that serves, or drains, has had requests for
// HangTimeout and done no work on them: a server that answers for its health is no proof.
func (s *Shim) checkProgress(ctx context.Context, state State, work *progress) error {
	if state != Active && state != Draining {
		return nil
	}
	askCtx, cancel := context.WithTimeout(ctx, s.cfg.HealthTimeout)
	defer cancel()
	usage, err := s.dialect.Usage(askCtx)
	stalled := work.observe(time.Now(), usage, err)
	if stalled <= s.cfg.HangTimeout || ctx.Err() != nil || s.State() != state {
		return nil
	}
	if err != nil {
		return fmt.Errorf("engine is %s and has not reported its work for %s: %w", state, stalled.Round(time.Second), err)
	}
	return fmt.Errorf("engine is %s and hangs: it has %d requests and has made no token for %s", state, usage.InFlight(), stalled.Round(time.Second))
}

// checkHealth makes one check. An Active engine that lost its model (its runner
// was killed, say) is told to load it again.
func (s *Shim) checkHealth(ctx context.Context, state State) error {
	checkCtx, cancel := context.WithTimeout(ctx, s.cfg.HealthTimeout)
	defer cancel()
	switch state {
	case Standby, Draining:
		if s.isCold() || s.loading.Load() {
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
	loadCtx, cancelLoad := context.WithTimeout(ctx, s.cfg.WakeTimeout)
	defer cancelLoad()
	return s.dialect.Load(loadCtx)
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

// beat pushes the check if the engine is Active and returns when to do so
// again.
func (s *Shim) beat(ctx context.Context) time.Duration {
	if s.registrar == nil {
		return s.cfg.TTL / 3
	}
	s.reg.Lock()
	defer s.reg.Unlock()
	s.mu.Lock()
	state, unhealthy, e := s.machine.State(), s.machine.unhealthy, s.engine
	s.mu.Unlock()
	if state != Active {
		return s.cfg.TTL / 3
	}
	status, output := api.HealthPassing, "engine is active"
	if unhealthy != "" {
		status, output = api.HealthCritical, unhealthy
	}
	if err := s.registrar.Push(ctx, e, status, output); err != nil {
		if ctx.Err() != nil {
			return s.cfg.TTL / 3
		}
		s.metrics.consulFailed.Inc()
		s.logger.Warn("cannot update the check in Consul", "error", err)
		return consulRetry
	}
	return s.cfg.TTL / 3
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
