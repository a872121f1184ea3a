package engine

import (
	"context"
	"errors"
	"sync"
	"time"

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

// holdWeights keeps the layouts in use for as long as the pair is not parked. The other shim of the
// pair may have parked it, or woken it. op is held.
func (s *Shim) holdWeights() {
	if s.offload == nil {
		return
	}
	if rec, err := s.records.read(); err == nil && !s.parked(rec) {
		s.hold.take(s.offload)
	} else {
		s.hold.drop()
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

// offloadWeights takes the weights off the GPUs, into this process's memory. A layout that is
// not whole is of no use and goes as well. What other pairs use stays. op is held.
func (s *Shim) offloadWeights(ctx context.Context) error {
	if s.offload == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.WakeTimeout)
	defer cancel()
	held, err := s.look(ctx, serviceRestart)
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
	s.mu.Lock()
	s.vacatedAt = time.Now().UTC()
	s.mu.Unlock()
	return err
}

// restoreWeights brings the saved weights back. Without a copy nothing is to be done. op is
// held.
func (s *Shim) restoreWeights(ctx context.Context) error {
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

// weightsPlace is where the weights are that a pair shares.
type weightsPlace string

const (
	// weightsOwn: the engine shares none, or nobody has asked.
	weightsOwn weightsPlace = ""
	// weightsOnGPU: the memory service has them, or weightsPartial a part that is of no use.
	weightsOnGPU   weightsPlace = "on the GPU"
	weightsPartial weightsPlace = "partly on the GPU"
	// weightsSaved: this process has the only copy.
	weightsSaved weightsPlace = "saved"
	// weightsLost: only their file has them.
	weightsLost weightsPlace = "lost"
)

// serviceRestart is how long a memory service that restarts is waited for, when the engine sleeps or
// wakes: Nomad starts one whose keeper died as well anew within seconds.
const serviceRestart = 10 * time.Second

// look asks the memory service what it has, for so long at most.
func (s *Shim) look(ctx context.Context, wait time.Duration) (offload.Held, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return s.offload.Look(ctx)
}

// locateWeights asks the memory service, for so long at most. op is held.
func (s *Shim) locateWeights(ctx context.Context, wait time.Duration) (weightsPlace, error) {
	if s.offload == nil {
		return weightsOwn, nil
	}
	held, err := s.look(ctx, wait)
	switch {
	case err != nil:
		return weightsOwn, err
	case held == offload.Whole:
		return weightsOnGPU, nil
	case held != offload.Nothing:
		return weightsPartial, nil
	case s.saved != nil:
		return weightsSaved, nil
	}
	return weightsLost, nil
}

// noteLayouts records what the replica has with the service. Without the note memory is left
// behind, but nothing fails.
func (s *Shim) noteLayouts(ctx context.Context) {
	if s.offload == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.HealthTimeout)
	defer cancel()
	layouts, err := s.offload.Layouts(ctx)
	if err == nil {
		err = s.records.update(func(rec *Record) { rec.Layouts = layouts })
	}
	if err != nil {
		s.logger.Warn("cannot record the replica's layouts in the GPU memory service: they may stay there after the replica is stopped", "error", err)
	}
}
