package strategy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"
)

// slot is what a plugin has of one policy's model. mu is held for a whole decision: there is
// one at a time.
type slot struct {
	mu     sync.Mutex
	key    string
	model  string
	memory memory
	// index is the store's; loaded: memory is what the store has, or newer.
	index  uint64
	loaded bool
	saved  time.Time
	chain  chain
	// alarmed is when it was last told that the policy is inert, zero while it is not.
	alarmed time.Time

	// used is when it was last asked for, guarded by the plugin's mu.
	used time.Time
}

// How long the store may take, and how often what changes nothing is kept: a state that is
// older by that much makes a window end that much earlier, after a restart.
const (
	storeTimeout = 5 * time.Second
	keepEvery    = 30 * time.Second
	// keepLargeEvery is that of a week's usage and of remuda-predictive's state, of some 20 KB:
	// the controller writes each to disk.
	keepLargeEvery = 5 * time.Minute
)

// load fetches what was kept. Where that fails, the strategy starts with nothing, which
// scales nothing down before its windows have passed, and tries again the next time.
func (s *slot) load(ctx context.Context, from Store) error {
	if s.loaded {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	raw, index, err := from.Load(ctx, s.key)
	if err != nil {
		return err
	}
	s.loaded, s.index = true, index
	if raw == nil {
		return nil
	}
	m, err := readMemory(raw)
	if err != nil {
		return err // what cannot be read is written anew, under its index
	}
	m.samples, m.sampled = s.memory.samples, s.memory.sampled
	s.memory, s.chain = m, chain{}
	return nil
}

// keep saves the memory, where it must be or where it is time.
func (s *slot) keep(ctx context.Context, to Store, now time.Time, must bool) error {
	every := keepEvery
	if s.memory.Week != nil || s.memory.State.large() {
		every = keepLargeEvery
	}
	since := now.Sub(s.saved)
	if !must && since >= 0 && since < every {
		return nil
	}
	raw, err := json.Marshal(&s.memory)
	if err != nil {
		return fmt.Errorf("save the state: %w", err)
	}
	if raw, err = pack(raw); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	index, err := to.Save(ctx, s.key, raw, s.index)
	switch {
	case errors.Is(err, ErrRaced):
		// The other one's state is the one that holds.
		s.loaded = false
		return err
	case err != nil:
		if !must {
			s.saved = now // not at every decision, while it is away
		}
		return err
	}
	s.index, s.saved = index, now
	return nil
}
