package plugin

import (
	"encoding/json"
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
	// loaded: memory is what the state directory has, or newer.
	loaded bool
	saved  time.Time
	chain  chain
	// alarmed is when it was last told that the policy is inert, zero while it is not.
	alarmed time.Time

	// used is when it was last asked for, guarded by the plugin's mu.
	used time.Time
}

// keepEvery is how often a state is saved where nothing was changed: after a crash a window
// lacks what was observed since.
const keepEvery = 30 * time.Second

// load reads what was saved, once. Where that fails the strategy starts without a state, which
// removes nothing before one full window (decision.watchedForTheWindow).
func (s *slot) load(from *StateDir) error {
	if s.loaded || from == nil {
		return nil
	}
	s.loaded = true
	raw, err := from.Load(s.key)
	if raw == nil || err != nil {
		return err
	}
	m, err := readMemory(raw)
	if err != nil {
		return fmt.Errorf("state file %s is damaged: %w", from.path(s.key), err)
	}
	s.memory = m
	return nil
}

// keep saves the memory where the decision acts, or where it is time.
func (s *slot) keep(to *StateDir, now time.Time, acts bool) error {
	since := now.Sub(s.saved)
	if to == nil || !acts && since >= 0 && since < keepEvery {
		return nil
	}
	s.saved = now // also where it fails: a full disk is not tried at every decision
	raw, err := json.Marshal(&s.memory)
	if err != nil {
		return fmt.Errorf("save the state: %w", err)
	}
	if err := to.Save(s.key, raw); err != nil {
		return fmt.Errorf("save the state: %w", err)
	}
	return nil
}
