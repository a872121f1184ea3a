package sim

import (
	"context"

	"remuda/internal/sim/memory"
	"remuda/internal/sim/rank"
)

// ranks are what the engine has on its GPUs, in this process or in workers. They are safe for concurrent use.
type ranks interface {
	// Sleep takes the KV cache and the weights off the device, the weights to one of package memory's
	// levels, and keeps leak bytes by mistake.
	Sleep(level int, leak int64) error
	// Wake brings the weights back and checks them. With corrupt it fails.
	Wake(ctx context.Context, corrupt bool) error
	// WakeCache makes the KV cache again.
	WakeCache() error
	// Move makes the next wake be on other GPUs; an error leaves all as it is.
	Move(gpus []string) error
	Size() int64
	Tensors() int
	// Usage is in bytes.
	Usage() (device, host int64)
	Close() error
}

var (
	_ ranks = (*rank.Rank)(nil)
	_ ranks = (*rank.Crew)(nil)
)

// bank is ranks that atomic.Pointer can hold.
type bank struct{ ranks }

// openBank loads the weights.
func (s *Server) openBank(ctx context.Context) (*bank, error) {
	if s.cfg.Workers != nil {
		c, err := rank.Start(ctx, s.cfg.Workers, s.log, s.die)
		if err != nil {
			return nil, err
		}
		s.engine.Meet(c.Step)
		return &bank{c}, nil
	}
	r, err := rank.Open(ctx, rank.Config{
		Weights: s.cfg.Weights, Shared: s.cfg.Shared, At: memory.Place{GPUs: s.cfg.GPUs, Dir: s.cfg.MemoryDir},
		Cache: s.cfg.Cache, Context: s.cfg.Context, Asleep: s.cfg.Asleep, Lost: s.die, Logger: s.log,
	}, nil)
	return &bank{r}, err
}
