package engine

import (
	"context"
	"sync"
	"time"

	"remuda/internal/sim/batch"
	"remuda/internal/sim/text"
)

// FinishAbort is the finish reason of a sequence that the engine gave up.
const FinishAbort = "abort"

// Event is one token of one sequence.
type Event struct {
	// Index is the sequence's place in its request.
	Index int
	// Cached is how many tokens of the prompt were in the prefix cache.
	Cached int
	text.Piece
}

// Stream is the engine's side of one request. One goroutine may read it.
type Stream struct {
	engine *Engine
	seqs   []*sequence
	quiet  bool

	mu     sync.Mutex
	events []Event
	open   int // sequences that have not finished
	notify chan struct{}
}

// sequence is one answer in the making. The engine's lock guards it.
type sequence struct {
	id        batch.ID
	index     int
	stream    *Stream
	generator *text.Generator // nil where only the prompt is computed
	prompt    int
	maxTokens int

	cached    int // prompt tokens that the cache held at the first admission
	position  int // tokens whose KV is there
	prefilled int // prompt tokens counted so far
	generated int
	arrived   time.Time
	admitted  time.Time
	first     time.Time
	last      time.Time
}

// Next waits for events and returns them all, in order; buf is reused for
// them. A quiet stream waits until every sequence has finished. After the last
// event Next returns none.
func (s *Stream) Next(ctx context.Context, buf []Event) ([]Event, error) {
	for {
		s.mu.Lock()
		ready := len(s.events) > 0 && (!s.quiet || s.open == 0)
		if ready || s.open == 0 {
			events := s.events
			s.events = buf[:0]
			s.mu.Unlock()
			return events, nil
		}
		s.mu.Unlock()
		select {
		case <-s.notify:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Close aborts whatever has not finished. It may be called more than once.
func (s *Stream) Close() {
	s.mu.Lock()
	open := s.open
	s.mu.Unlock()
	if open > 0 {
		s.engine.abort(s.seqs)
	}
}

// push adds one event; the engine calls it.
func (s *Stream) push(e Event) {
	s.mu.Lock()
	s.events = append(s.events, e)
	if e.Finish != "" {
		s.open--
	}
	wake := !s.quiet || s.open == 0
	s.mu.Unlock()
	if wake {
		select {
		case s.notify <- struct{}{}:
		default: // a wake-up is pending already
		}
	}
}
