package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"remuda/internal/replica"
	"remuda/lockd/engine/dialect"
)

// facts are what the shim decides from what it does next, with an engine that does not serve.
type facts struct {
	state  State
	wanted Tier // of the record
	// standby is Config.Standby.
	standby string
	// leads: no other engine of the replica may hold GPU memory, because this one has the
	// pair's lock or is the only one.
	leads bool
	// onDemand: only POST /v1/wake wakes the engine.
	onDemand bool
	process  processPhase
	weights  weightsPlace
	// drainOver: nothing has followed a drain, and nothing is to be waited for any more.
	drainOver bool
	// loads: wanted is Warm, and the engine loads its model before it is put to sleep.
	loads bool
}

// step is what the shim does next.
type step string

const (
	rest           step = "rest"
	standBy        step = "stand by without an engine"
	startEngine    step = "start the engine"
	endEngine      step = "end the engine"
	offloadWeights step = "offload the weights"
	wakeEngine     step = "wake the engine"
	endDrain       step = "end the drain"
)

// next returns the next step towards what is wanted.
func (f facts) next() step {
	switch {
	case f.state == Init && (f.wanted == Warm && !f.loads || f.standby == StandbyCold):
		return standBy
	case f.state == Init:
		return startEngine
	case f.state == Draining && f.drainOver:
		return endDrain
	case f.state != Standby, f.wanted == Warm && f.loads:
		return rest
	case f.wanted == Warm && f.leads && (f.weights == weightsOnGPU || f.weights == weightsPartial):
		return offloadWeights
	case f.wanted == Warm && f.leads && f.weights == weightsLost && f.process != processAbsent:
		return endEngine // it could not wake; another one loads the weights from their file
	case f.wanted == Warm:
		return rest
	case f.leads && !f.onDemand:
		return wakeEngine
	case !f.leads && f.standby == StandbyWarm && f.process == processAbsent:
		return startEngine
	}
	return rest
}

// waitsForLock: another engine may have the lock, and only its grant wakes this one.
func (s *Shim) waitsForLock() bool { return s.locker != nil && !s.holdsLock() }

// facts is called while op is held.
func (s *Shim) facts(ctx context.Context) (facts, error) {
	rec := s.record()
	f := facts{
		state: s.State(), wanted: rec.Wanted, loads: rec.Loads, standby: s.cfg.Standby, leads: !s.waitsForLock(),
		onDemand: s.locker == nil && s.cfg.Role == replica.RoleShadow, process: s.engineProcess().phase(),
		drainOver: time.Now().After(s.drainedUntil),
	}
	var err error
	if f.state == Standby && f.wanted == Warm && f.leads { // else the weights are of no interest
		f.weights, err = s.locateWeights(ctx, time.Second)
	}
	if err == nil {
		s.noteLost(f.lost())
	}
	return f, err
}

// lost reports whether no copy of the weights is left of an engine that sleeps and is the one to wake.
func (f facts) lost() bool {
	return f.state == Standby && f.wanted == Warm && !f.loads && f.leads &&
		(f.weights == weightsLost || f.weights == weightsOwn && f.process == processAbsent)
}

func (s *Shim) noteLost(lost bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.weightsLost = lost
}

// lifecycle brings the engine to what is wanted of it, and asks for the pair's lock once the
// engine stands by, until ctx ends.
func (s *Shim) lifecycle(ctx context.Context) {
	defer s.hold.drop()
	var wg sync.WaitGroup
	defer wg.Wait()
	// A loop of its own, because a push may not wait.
	wg.Go(func() { s.heartbeatLoop(ctx) })
	wg.Go(func() { s.observeFirstToken(ctx) })
	granted := make(chan struct{}, 1)
	failure := ""
	for asked := false; ; {
		err := s.reconcile(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil && failure != err.Error() {
			s.logger.Warn("cannot bring the engine to what is wanted of it: retrying", "error", err)
		}
		if failure = ""; err != nil {
			failure = err.Error()
		}
		if s.locker != nil && !asked && s.State() == Standby {
			asked = true
			wg.Go(func() {
				if err := s.acquire(ctx); err != nil {
					if ctx.Err() == nil {
						s.fail(err)
					}
					return
				}
				granted <- struct{}{}
				s.mu.Lock()
				grant := s.grant
				s.mu.Unlock()
				s.endWith(ctx, grant)
			})
		}
		select {
		case <-ctx.Done():
			return
		case <-granted:
		case <-time.After(s.cfg.HealthInterval):
		}
	}
}

// reconcile takes steps until nothing is left to do. It returns an error that another try may
// not meet; what cannot be mended ends the shim.
func (s *Shim) reconcile(ctx context.Context) error {
	s.op.Lock()
	defer s.op.Unlock()
	for last := rest; ; {
		s.holdWeights()
		f, err := s.facts(ctx)
		if err != nil {
			return err
		}
		next := f.next()
		if next == rest || next == last {
			return nil // the next round tries again what was of no use
		}
		last = next
		switch next {
		case standBy:
			if rec := s.record(); s.parked(rec) {
				s.logger.Info("the engine is parked: standing by without an engine until a wake request", "since", rec.Since)
			}
			err = s.move(Standby)
		case startEngine:
			if err := s.startEngine(ctx); err != nil && ctx.Err() == nil {
				s.fail(fmt.Errorf("initialise: %w", err))
				return nil
			}
		case endEngine:
			s.logger.Warn("the saved weights are lost with the engine that saved them: stopping the sleeping engine, the next wake loads the weights from their file")
			err = s.endEngine(ctx)
		case offloadWeights:
			err = s.offloadWeights(ctx)
		case endDrain:
			s.logger.Warn("nothing has followed the drain: the engine serves again")
			err = s.resume(ctx)
		case wakeEngine:
			if err := s.wake(ctx, nil); err != nil && ctx.Err() == nil {
				s.fail(err)
				return nil
			}
		}
		if err != nil || ctx.Err() != nil {
			return err
		}
	}
}

// errWarm: another shim of the pair has put the replica to sleep while this one's engine was
// loading its model.
var errWarm = errors.New("the replica was put to sleep")

// recordPoll is how often the record is read while an engine loads: one that loads although its
// replica is to hold no GPU memory takes some.
const recordPoll = 50 * time.Millisecond

// startEngine starts the engine and waits until it has loaded its model, and sleeps unless it is
// to serve at once. Should the pair be put to sleep meanwhile, the engine is ended. op is held.
func (s *Shim) startEngine(ctx context.Context) error {
	gpus, err := s.wantedGPUs()
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.gpus = gpus // a peer may have moved the replica since this shim began
	s.mu.Unlock()
	if err := s.launch(); err != nil {
		return err
	}
	loading, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if s.locker != nil {
		go func() {
			for rec := s.record(); rec.Wanted == Hot || rec.Loads; rec = s.record() {
				if pause(loading, recordPoll) != nil {
					return
				}
			}
			cancel(errWarm)
		}()
	}
	err = s.prepare(loading)
	if err != nil && ctx.Err() == nil && errors.Is(context.Cause(loading), errWarm) {
		s.logger.Info("the replica was put to sleep while the engine was loading: standing by without an engine")
		err = s.endEngine(ctx)
	}
	if err != nil {
		return err
	}
	return s.move(Standby)
}

// prepare waits until the started engine has loaded its model and puts it to sleep, unless it is
// to serve at once.
func (s *Shim) prepare(ctx context.Context) error {
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, s.cfg.InitTimeout)
	defer cancel()
	if err := s.load(ctx); err != nil {
		return err
	}
	switch {
	case s.cfg.Role == replica.RolePrimary && s.locker == nil && !s.record().Loads:
	case s.dialect.CanSleep():
		if err := s.firstSleep(ctx); err != nil {
			return fmt.Errorf("put the engine to sleep: %w", err)
		}
	case s.locker != nil:
		return fmt.Errorf("%w and would keep the GPU's memory while another engine has the lock: enable its sleep mode (vLLM: --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1), or set -standby cold to start it after it gets the lock", ErrCannotSleep)
	}
	s.noteLayouts(ctx)
	took := time.Since(start)
	s.metrics.initSeconds.Set(took.Seconds())
	s.noteGenerated(ctx)
	s.logger.Info("engine is initialised", "took", took.Round(time.Millisecond).String(), "slots", s.Engine().Slots, "can_sleep", s.dialect.CanSleep())
	return nil
}

// firstSleep waits for requests to end that were sent to the engine's own address: no gateway
// routes to it yet.
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
	s.child.loaded.Store(true)
	s.mu.Unlock()
	return nil
}

// endEngine ends the engine's process and leaves the shim. op is held.
func (s *Shim) endEngine(ctx context.Context) error {
	done := make(chan error, 1)
	select {
	case s.drop <- done:
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := <-done; err != nil {
		return fmt.Errorf("stop the engine: %w", err)
	}
	return nil
}

// poll calls probe until it succeeds, quickly at first.
func poll(ctx context.Context, probe func(context.Context) error) error {
	wait := pollFast
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
		if pause(ctx, wait) != nil {
			return fmt.Errorf("%w (last error: %w)", ctx.Err(), last)
		}
		wait = min(wait*3/2, pollSlow)
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
