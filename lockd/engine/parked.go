package engine

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// errParked: another shim of the group has parked the engine while this one's was
// loading its model.
var errParked = errors.New("the engine is parked")

// parkLook is how often the marker is looked for while that matters: an engine that
// loads although its group is parked takes a GPU's memory.
const parkLook = 50 * time.Millisecond

// parked tells whether the marker is there. One that cannot be read counts: an engine
// that sleeps for too long costs less than one that takes memory that is another's.
func (s *Shim) parked() bool {
	m, err := s.parking.read()
	if err != nil {
		s.logger.Error("cannot read the park marker: the engine counts as parked", "error", err)
	}
	return m != nil || err != nil
}

// refreshParked looks for the marker and tells the probes.
func (s *Shim) refreshParked() *marker {
	m, err := s.parking.read()
	if err != nil {
		m = &marker{}
	}
	s.mu.Lock()
	s.machine.SetParked(m != nil)
	s.mu.Unlock()
	s.metrics.isParked(m != nil)
	return m
}

// park writes the marker, unless it is there.
func (s *Shim) park() error {
	if s.parking.path == "" {
		return nil
	}
	if m, err := s.parking.read(); m != nil || err != nil {
		return err
	}
	m := marker{Since: time.Now().UTC(), Role: s.cfg.Role}
	if err := s.parking.write(m); err != nil {
		return err
	}
	s.logger.Info("engine parked: it sleeps until a wake request, across restarts", "marker", s.parking.path)
	return nil
}

// unpark takes the marker away; the engine serves.
func (s *Shim) unpark() error {
	m, err := s.parking.read()
	if m == nil && err == nil {
		return nil
	}
	if err := s.parking.remove(); err != nil {
		return err
	}
	s.logger.Info("engine unparked")
	return nil
}

// waitsForLock: another engine may have the lock, and only its grant wakes this one.
func (s *Shim) waitsForLock() bool { return s.locker != nil && !s.holdsLock() }

// untilParked is ctx until the marker appears, where another shim may write it.
func (s *Shim) untilParked(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	done := func() { cancel(nil) }
	if s.parking.path == "" || s.locker == nil {
		return ctx, done
	}
	go func() {
		for !s.parked() {
			if pause(ctx, parkLook) != nil {
				return
			}
		}
		cancel(errParked)
	}()
	return ctx, done
}

// tend looks after an engine that stands by: a parked one holds no memory of a GPU,
// whatever crashed meanwhile, and the next in the queue has an engine once the group
// is no longer parked.
func (s *Shim) tend(ctx context.Context) {
	failure := ""
	for pause(ctx, s.cfg.HealthInterval) == nil {
		if s.State() != Standby {
			continue
		}
		var err error
		switch parked := s.parked(); {
		case parked && !s.waitsForLock():
			err = s.tendParked(ctx)
		case !parked && s.waitsForLock() && s.cfg.Standby != StandbyCold && s.isCold():
			if err := s.saddle(ctx); err != nil && ctx.Err() == nil {
				s.fail(fmt.Errorf("initialise: %w", err))
			}
		}
		if ctx.Err() != nil {
			return
		}
		switch {
		case err == nil:
			failure = ""
		case failure != err.Error():
			failure = err.Error()
			s.logger.Warn("the parked engine may use GPU memory: retrying", "error", err)
		}
	}
}

// saddle starts the engine of a shim that came up while the group was parked.
func (s *Shim) saddle(ctx context.Context) error {
	s.op.Lock()
	defer s.op.Unlock()
	if s.State() != Standby || !s.isCold() || !s.waitsForLock() || s.parked() {
		return nil
	}
	gpus, err := s.wantedGPUs()
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.gpus = gpus // a peer may have moved the group since this shim began
	s.mu.Unlock()
	s.logger.Info("the group is no longer parked: starting the standby engine")
	s.loading.Store(true)
	defer s.loading.Store(false)
	if err := s.launch(); err != nil {
		return err
	}
	return s.initialise(ctx)
}
