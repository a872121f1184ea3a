package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"remuda/device-plugin/gms/backend/host"
	"remuda/device-plugin/gms/client"
	"remuda/device-plugin/gms/offload"
)

// A failover pair that shares its weights through the GPU memory service leaves them
// there when an engine sleeps, so that the other one can map them. Until it is parked,
// its shims keep the layouts in use, so that no other pair of the same model takes them
// away. A parked pair must hold no GPU memory: whoever of it has the lock keeps a copy in
// this process's memory, lets the service release what no other pair uses, and brings the
// weights back before its engine wakes. Where the copy is lost with its process, the next
// wake starts an engine that loads the weights from their file.

// weightsHold keeps the layouts in use while it is taken.
type weightsHold struct {
	mu      sync.Mutex
	release func()
}

func (h *weightsHold) take(o *offload.Offload) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.release == nil {
		h.release = o.Hold()
	}
}

func (h *weightsHold) drop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.release != nil {
		h.release()
		h.release = nil
	}
}

// holdWeights keeps the layouts in use for as long as the group is not parked.
func (s *Shim) holdWeights(ctx context.Context) {
	if s.offload == nil {
		return
	}
	defer s.hold.drop()
	was := true
	for {
		if parked := s.parked(); !parked {
			s.hold.take(s.offload)
			was = false
		} else if !was {
			s.hold.drop()
			was = true
		}
		if pause(ctx, parkLook) != nil {
			return
		}
	}
}

// newOffload is nil where no weights are shared.
func newOffload(cfg Config) (*offload.Offload, error) {
	if len(cfg.GMSSockets) == 0 {
		return nil, nil
	}
	space := cfg.GMSSpace
	if space == nil {
		space = func(string) (client.Space, func() error, error) {
			return host.NewSpace(), func() error { return nil }, nil
		}
	}
	return offload.New(offload.Config{Sockets: cfg.GMSSockets, Space: space, Logger: cfg.Logger.Named("gms")})
}

// vacate takes the weights off the GPUs, into this process's memory. A layout that is
// not whole is of no use and goes as well. What other pairs use stays. op is held.
func (s *Shim) vacate(ctx context.Context) error {
	if s.offload == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.WakeTimeout)
	defer cancel()
	held, err := s.offload.Look(ctx)
	if err != nil || held == offload.Nothing {
		return err
	}
	if held == offload.Whole && s.saved == nil {
		if s.saved, err = s.offload.Save(ctx); err != nil && !errors.Is(err, offload.ErrNothing) {
			return err
		}
	}
	s.hold.drop()
	_, err = s.offload.Vacate(ctx) // what others use is tried again from time to time
	return err
}

// unvacate brings the saved weights back. Without a copy nothing is to be done. op is
// held.
func (s *Shim) unvacate(ctx context.Context) error {
	if s.offload == nil {
		return nil
	}
	s.hold.take(s.offload)
	if s.saved == nil {
		return nil
	}
	if err := s.offload.Restore(ctx, s.saved); err != nil {
		return err
	}
	err := s.saved.Free()
	s.saved = nil
	return err
}

// tendParked sees to it that a parked group holds no GPU memory, and that the engine
// that would wake next can: one that sleeps and whose weights are nowhere is ended, for
// one that loads them from their file.
func (s *Shim) tendParked(ctx context.Context) error {
	if s.offload == nil || !s.op.TryLock() {
		return nil // what is under way comes to it
	}
	defer s.op.Unlock()
	if s.State() != Standby || s.waitsForLock() || !s.parked() {
		return nil
	}
	if err := s.vacate(ctx); err != nil {
		return err
	}
	if s.saved != nil || s.isCold() {
		return nil
	}
	s.logger.Warn("the saved weights are lost with the engine that saved them: stopping the sleeping engine, the next wake loads the weights from their file")
	return s.dropEngine(ctx)
}

// dropEngine ends the engine and leaves the shim as a standby without a process. op is
// held.
func (s *Shim) dropEngine(ctx context.Context) error {
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

// findWeights ends a parked engine that sleeps and could not wake: its weights are
// neither with this process nor with the service. op is held.
func (s *Shim) findWeights(ctx context.Context) error {
	if s.offload == nil || s.saved != nil || s.isCold() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.WakeTimeout)
	defer cancel()
	held, err := s.offload.Look(ctx)
	if err != nil || held == offload.Whole {
		return err
	}
	s.logger.Warn("the saved weights are lost with the engine that saved them: stopping the sleeping engine, a new one loads the weights from their file")
	return s.dropEngine(ctx)
}

// leftoverPath is where the layouts are noted that the group has with the service, so
// that they can be cleared away once all of it is gone (remuda gms clear): the service
// keeps what is committed for whoever comes next.
func (p parking) leftoverPath() string { return p.path + ".gms" }

// noteLeftover writes the note. Without it memory is left behind, but nothing fails.
func (s *Shim) noteLeftover(ctx context.Context) {
	if s.offload == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.HealthTimeout)
	defer cancel()
	layouts, err := s.offload.Layouts(ctx)
	if err == nil {
		err = writeDurably(s.parking.leftoverPath(), layouts)
	}
	if err != nil {
		s.logger.Warn("cannot record the group's layouts in the GPU memory service: they may stay there after the group is stopped", "error", err)
	}
}
