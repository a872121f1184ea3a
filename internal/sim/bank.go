package sim

import (
	"context"

	"remuda/internal/sim/memory"
	"remuda/internal/sim/shared"
)

// weightStore is where the weights are: a memory.Bank of the engine's own, or
// shared.Weights. It is safe for concurrent use.
type weightStore interface {
	// Sleep takes the weights off the device, to one of package memory's levels,
	// and keeps leak bytes by mistake.
	Sleep(level int, leak int64) error
	// Wake brings them back and checks them. With corrupt it fails.
	Wake(ctx context.Context, corrupt bool) error
	// Move makes the next wake be on other GPUs; an error leaves all as it is.
	Move(gpus []string) error
	Size() int64
	Tensors() int
	// Usage is in bytes.
	Usage() (device, host int64)
	Close() error
}

var (
	_ weightStore = (*memory.Bank)(nil)
	_ weightStore = (*shared.Weights)(nil)
)

// bank is a weightStore that atomic.Pointer can hold.
type bank struct{ weightStore }

// openBank loads the weights.
func (s *Server) openBank(ctx context.Context) (*bank, error) {
	if s.cfg.Shared == nil {
		b, err := memory.Open(s.cfg.Weights, s.cfg.GPUs)
		return &bank{b}, err
	}
	cfg := *s.cfg.Shared
	cfg.Path, cfg.GPUs, cfg.Lost, cfg.Logger = s.cfg.Weights, s.cfg.GPUs, s.die, s.log
	w, err := shared.Open(ctx, cfg)
	return &bank{w}, err
}
