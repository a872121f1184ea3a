// Package kept keeps answers at hand that are expensive to ask for.
//
// A Cache guarantees that an answer is never older than MaxAge, by the wall clock as well
// as by the monotonic one, so that neither a suspended host nor a clock that was set makes
// an old answer look new. Keys that somebody asked for lately are asked for again in the
// background, so that who asks regularly does not wait. Of several who ask for the same
// key at once one does it for all. A failure is remembered for a moment, so that a source
// that is away is not asked by everybody in turn.
package kept

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"
)

// Config of a Cache of answers V to questions Q. All of it is required but Now.
type Config[Q, V any] struct {
	// Fetch asks. It may be called from several goroutines at once.
	Fetch func(context.Context, Q) (V, error)
	// Every is how often keys are asked for again in the background, MaxAge how old an
	// answer may be, IdleAfter how long a key is kept that nobody asks for.
	Every, MaxAge, IdleAfter time.Duration
	// Timeout bounds one Fetch. Pause is for how long a failure is remembered.
	Timeout, Pause time.Duration
	// Concurrency is how many keys are asked for at once in the background, MaxKeys how
	// many are kept. A key beyond that is answered and not kept.
	Concurrency, MaxKeys int
	// Now is the clock; nil: time.Now.
	Now func() time.Time
}

func (c *Config[Q, V]) validate() error {
	var errs []error
	positive := func(field string, ok bool, value any) {
		if !ok {
			errs = append(errs, fmt.Errorf("%s is %v: must be more than 0", field, value))
		}
	}
	if c.Fetch == nil {
		errs = append(errs, errors.New("fetch is not set"))
	}
	positive("every", c.Every > 0, c.Every)
	positive("max age", c.MaxAge > 0, c.MaxAge)
	positive("idle after", c.IdleAfter > 0, c.IdleAfter)
	positive("timeout", c.Timeout > 0, c.Timeout)
	positive("pause", c.Pause > 0, c.Pause)
	positive("concurrency", c.Concurrency > 0, c.Concurrency)
	positive("max keys", c.MaxKeys > 0, c.MaxKeys)
	return errors.Join(errs...)
}

// Cache is safe for concurrent use.
type Cache[Q, V any] struct {
	cfg Config[Q, V]

	mu      sync.Mutex // guards entries and all in them, held for arithmetic only
	entries map[string]*entry[Q, V]
}

type entry[Q, V any] struct {
	question Q
	asked    time.Time
	value    V
	at       time.Time // when value came; zero before
	err      error     // the last failure, since when value may be out of date
	failed   time.Time
	flight   chan struct{} // closed when the Fetch that runs is over; nil while none does
}

// New checks cfg. Nothing is asked before Get or Run.
func New[Q, V any](cfg Config[Q, V]) (*Cache[Q, V], error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("cache: %w", err)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Cache[Q, V]{cfg: cfg, entries: map[string]*entry[Q, V]{}}, nil
}

// Since is how long ago then was, by the clock that says more: the monotonic clock stands
// still while a host is suspended, and the wall clock can be set back. A time that lies
// ahead of both is as old as can be.
func Since(now, then time.Time) time.Duration {
	d := max(now.Sub(then), now.Round(0).Sub(then.Round(0)))
	if d < 0 {
		return math.MaxInt64
	}
	return d
}

// Get answers the question q, whose name is key: the same key is the same question.
func (c *Cache[Q, V]) Get(ctx context.Context, key string, q Q) (V, error) {
	for {
		c.mu.Lock()
		now := c.cfg.Now()
		e := c.entries[key]
		if e == nil {
			e = &entry[Q, V]{}
			if len(c.entries) >= c.cfg.MaxKeys {
				c.sweep(now)
			}
			if len(c.entries) < c.cfg.MaxKeys {
				c.entries[key] = e
			}
		}
		e.question, e.asked = q, now
		switch {
		case !e.at.IsZero() && Since(now, e.at) <= c.cfg.MaxAge:
			value := e.value
			c.mu.Unlock()
			return value, nil
		case e.err != nil && Since(now, e.failed) < c.cfg.Pause:
			err := e.err
			c.mu.Unlock()
			var none V
			return none, err
		}
		flight := e.flight
		if flight == nil {
			e.flight = make(chan struct{})
			c.mu.Unlock()
			value, err := c.fetch(ctx, e, q)
			return value, err
		}
		c.mu.Unlock()
		select {
		case <-flight:
		case <-ctx.Done():
			var none V
			return none, fmt.Errorf("wait for a response: %w", ctx.Err())
		}
	}
}

// fetch asks, with e's flight begun, and ends the flight. That the caller gives up is no
// failure of the source.
func (c *Cache[Q, V]) fetch(ctx context.Context, e *entry[Q, V], q Q) (V, error) {
	limited, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	begun := c.cfg.Now() // an answer is as old as its question
	value, err := c.cfg.Fetch(limited, q)
	c.mu.Lock()
	defer c.mu.Unlock()
	close(e.flight)
	e.flight = nil
	switch {
	case err == nil:
		e.value, e.at, e.err = value, begun, nil
	case ctx.Err() == nil:
		e.err, e.failed = err, c.cfg.Now()
	}
	return value, err
}

// Run asks again for what is wanted, until ctx ends, and returns its error. Get works
// without it, and waits more often.
func (c *Cache[Q, V]) Run(ctx context.Context) error {
	tick := time.NewTicker(c.cfg.Every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			c.round(ctx)
		}
	}
}

// round asks for every key once, those asked for longest ago first.
func (c *Cache[Q, V]) round(ctx context.Context) {
	c.mu.Lock()
	c.sweep(c.cfg.Now())
	due := make([]*entry[Q, V], 0, len(c.entries))
	for _, e := range c.entries {
		due = append(due, e)
	}
	slices.SortFunc(due, func(a, b *entry[Q, V]) int { return a.at.Compare(b.at) })
	c.mu.Unlock()
	var workers sync.WaitGroup
	next := make(chan *entry[Q, V])
	for range min(c.cfg.Concurrency, len(due)) {
		workers.Go(func() {
			for e := range next {
				c.mu.Lock()
				if e.flight != nil {
					c.mu.Unlock()
					continue
				}
				e.flight = make(chan struct{})
				q := e.question
				c.mu.Unlock()
				_, _ = c.fetch(ctx, e, q) // who asks next is told
			}
		})
	}
	for _, e := range due {
		if ctx.Err() != nil {
			break
		}
		next <- e
	}
	close(next)
	workers.Wait()
}

// sweep forgets keys that nobody asks for. mu is held.
func (c *Cache[Q, V]) sweep(now time.Time) {
	for key, e := range c.entries {
		if e.flight == nil && Since(now, e.asked) > c.cfg.IdleAfter {
			delete(c.entries, key)
		}
	}
}

// Len is how many keys are kept.
func (c *Cache[Q, V]) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.entries)
}
