// Package rank is what an engine has on its GPUs: the weights, the KV cache and the context. One
// Rank has the memory of all of an engine's GPUs, or each GPU has a Rank in a process of its own
// (see Start), as real engines have: one that shards its weights has a worker for each GPU.
package rank

import (
	"context"
	"errors"
	"sync"

	"github.com/hashicorp/go-hclog"

	"remuda/internal/sim/memory"
	"remuda/internal/sim/shared"
)

// Config says what a rank holds and where.
type Config struct {
	// Weights is the path of a safetensors file; empty for none.
	Weights string
	// Shared holds the weights in the GPU memory service; nil for memory of its own. Path, At, Rank,
	// Lost, Connected and Logger are set by Open.
	Shared *shared.Config
	// At are its GPUs.
	At memory.Place
	// Rank is its part of the weights.
	Rank memory.Rank
	// Cache and Context are the bytes of the KV cache and of the context on each GPU. A rank that
	// sleeps keeps its context.
	Cache, Context int64
	// Asleep: the rank begins without a KV cache and goes to sleep once its weights are there.
	Asleep bool
	// Lost is called when the weights are lost; the engine ends itself then.
	Lost   func(error)
	Logger hclog.Logger
}

// store is where the weights are. It is safe for concurrent use.
type store interface {
	Sleep(level int, leak int64) error
	Wake(ctx context.Context, corrupt bool) error
	Move(gpus []string) error
	Size() int64
	Tensors() int
	Usage() (device, host int64)
	Close() error
}

var (
	_ store = (*memory.Bank)(nil)
	_ store = (*shared.Weights)(nil)
)

// Rank is one rank. Its methods are safe for concurrent use.
type Rank struct {
	store
	cfg Config

	mu sync.Mutex // guards what is below
	at memory.Place
	// context and cache are taken; cached is whether the cache is there.
	context, cache memory.Held
	cached         bool
}

// Open takes the context, loads the weights, and makes the KV cache. Between connecting to a GPU memory
// service and loading it calls connected, if that is not nil.
func Open(ctx context.Context, cfg Config, connected func(context.Context) error) (_ *Rank, err error) {
	r := &Rank{cfg: cfg, at: cfg.At}
	if r.context, err = r.at.Take(cfg.Context); err != nil {
		return nil, err
	}
	if r.store, err = open(ctx, cfg, connected); err != nil {
		return nil, errors.Join(err, r.context.Free())
	}
	if cfg.Asleep {
		err = r.store.Sleep(memory.LevelOffload, 0)
	} else {
		err = r.WakeCache()
	}
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func open(ctx context.Context, cfg Config, connected func(context.Context) error) (store, error) {
	if cfg.Shared == nil {
		if connected != nil {
			if err := connected(ctx); err != nil {
				return nil, err
			}
		}
		return memory.Open(cfg.Weights, cfg.Rank, cfg.At)
	}
	c := *cfg.Shared
	c.Path, c.At, c.Rank, c.Lost, c.Connected, c.Logger = cfg.Weights, cfg.At, cfg.Rank, cfg.Lost, connected, cfg.Logger
	return shared.Open(ctx, c)
}

// Sleep takes the KV cache and the weights off the GPUs, the weights to one of package memory's levels,
// and keeps leak bytes by mistake.
func (r *Rank) Sleep(level int, leak int64) error {
	r.mu.Lock()
	err := r.cache.Free()
	r.cache, r.cached = nil, false
	r.mu.Unlock()
	return errors.Join(err, r.store.Sleep(level, leak))
}

// WakeCache makes the KV cache. The error wraps vram.ErrOutOfMemory where it does not fit.
func (r *Rank) WakeCache() (err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cached {
		return nil
	}
	r.cache, err = r.at.Take(r.cfg.Cache)
	r.cached = err == nil
	return err
}

// Move makes the next wake be on other GPUs. The context moves at once.
func (r *Rank) Move(gpus []string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := r.at
	next.GPUs = gpus
	moved, err := next.Take(r.cfg.Context)
	if err != nil {
		return err
	}
	if err := r.store.Move(gpus); err != nil {
		return errors.Join(err, moved.Free())
	}
	err = r.context.Free()
	r.at, r.context = next, moved
	return err
}

// Usage is how many bytes are on the GPUs and in host memory.
func (r *Rank) Usage() (device, host int64) {
	device, host = r.store.Usage()
	r.mu.Lock()
	defer r.mu.Unlock()
	gpus := int64(max(len(r.at.GPUs), 1))
	device += r.cfg.Context * gpus
	if r.cached {
		device += r.cfg.Cache * gpus
	}
	return device, host
}

// Close frees everything. The rank must not be used afterwards.
func (r *Rank) Close() error {
	err := r.store.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	return errors.Join(err, r.cache.Free(), r.context.Free())
}
