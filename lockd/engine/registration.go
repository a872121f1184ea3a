package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/hashicorp/go-hclog"

	"remuda/controller/consul"
	"remuda/internal/replica"
)

const (
	// consulRetry is how soon an unregistered engine tries again.
	consulRetry = 500 * time.Millisecond
	// deregisterRetry is the pause between two attempts at the end of a life.
	deregisterRetry = 100 * time.Millisecond
)

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

// retryFor repeats try, for at most limit, until it succeeds or Consul refuses.
// Only the first failure is logged.
func retryFor(ctx context.Context, logger hclog.Logger, limit time.Duration, try func(context.Context) error) error {
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

// heartbeatLoop pushes the check while the engine is Active.
func (s *Shim) heartbeatLoop(ctx context.Context) {
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
