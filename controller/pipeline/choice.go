package pipeline

import (
	"fmt"
	"sync"
)

// choice finds out which candidate's answer is the pipeline's: the first one that was not
// skipped. Until that is known it keeps what candidates emit.
type choice struct {
	// order are the candidates, once each.
	order []int
	emit  func([]byte) error
	// chosen is called once, with the candidate's index, before anything is emitted.
	chosen func(i int)

	mu    sync.Mutex
	state map[int]candidate
	held  map[int][]byte
	// at is the chosen one, -1 while none is.
	at int
}

type candidate int

const (
	candidateWaits candidate = iota
	candidateRuns
	candidateSkipped
)

func newChoice(order []int, emit func([]byte) error, chosen func(int)) *choice {
	c := &choice{emit: emit, chosen: chosen, state: map[int]candidate{}, held: map[int][]byte{}, at: -1}
	for _, i := range order {
		if _, dup := c.state[i]; !dup {
			c.state[i] = candidateWaits
			c.order = append(c.order, i)
		}
	}
	return c
}

// is tells whether a step is a candidate. It needs no lock: the keys never change.
func (c *choice) is(i int) bool {
	for _, o := range c.order {
		if o == i {
			return true
		}
	}
	return false
}

// set notes that a candidate runs, or will not. What was kept of one that is chosen by that
// is emitted; the error is that of emitting.
func (c *choice) set(i int, s candidate) error {
	if !c.is(i) {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state[i] = s
	if c.at >= 0 {
		return nil
	}
	for _, o := range c.order {
		if c.state[o] == candidateSkipped {
			continue
		}
		if c.state[o] == candidateWaits {
			return nil
		}
		c.at = o
		break
	}
	if c.at < 0 {
		return nil // none of them runs
	}
	kept := c.held[c.at]
	c.held = nil
	c.chosen(c.at)
	if len(kept) > 0 {
		return c.emit(kept)
	}
	return nil
}

// pass takes a piece of a candidate's answer.
func (c *choice) pass(i int, p []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.at == i:
		return c.emit(p)
	case c.at < 0:
		if len(c.held[i])+len(p) > MaxHeld {
			return fmt.Errorf("more than %d bytes buffered before the output step is known", MaxHeld)
		}
		c.held[i] = append(c.held[i], p...)
	}
	return nil
}
