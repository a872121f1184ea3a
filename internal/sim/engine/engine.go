package engine

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"remuda/internal/sim/batch"
	"remuda/internal/sim/fault"
	"remuda/internal/sim/text"
)

// Errors of Submit.
var (
	// ErrAsleep means that the engine has no weights to compute with.
	ErrAsleep = errors.New("engine is asleep")
	// ErrStopped means that Run has ended or not begun.
	ErrStopped = errors.New("engine is stopped")
)

// crashGrace is how long a process that is to crash after N tokens lives on,
// so that the N tokens reach the wire.
const crashGrace = 50 * time.Millisecond

// Request is one request: one or more sequences that are submitted together.
type Request struct {
	Sequences []Sequence
	// Quiet asks for no wake-up before everything has finished.
	Quiet bool
}

// Sequence is one answer to compute.
type Sequence struct {
	// PromptTokens is the length of the prompt, at least 1.
	PromptTokens int
	// MaxTokens is how many tokens are generated at most, at least 1.
	MaxTokens int
	// Prefix is the keys of the prompt's blocks for the prefix cache (batch.Config.Prefix).
	Prefix []uint64
	// Generator makes the text. Nil asks for the prompt to be computed only,
	// as for an embedding: one event without text ends such a sequence.
	Generator *text.Generator
}

// Engine is one simulated engine.
type Engine struct {
	cfg  Config
	wake chan struct{} // holds one token when there may be work

	mu      sync.Mutex
	sched   *batch.Scheduler
	seqs    map[batch.ID]*sequence
	nextID  batch.ID
	running bool
	asleep  bool
	meet    func(context.Context) error
	// crashAt is the count of generated tokens at which to crash, 0 for never.
	generated, crashAt int
	crashSet           int
}

// New checks the configuration.
func New(cfg Config) (*Engine, error) {
	sched, err := batch.New(cfg.Batch)
	if err = errors.Join(err, cfg.Rates.validate()); err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	if cfg.Faults == nil || cfg.Observer == nil || cfg.Crash == nil {
		return nil, errors.New("engine: Faults, Observer and Crash must be set")
	}
	return &Engine{cfg: cfg, sched: sched, seqs: map[batch.ID]*sequence{}, wake: make(chan struct{}, 1)}, nil
}

// Submit queues a request. An error that wraps batch.ErrTooLarge means that the
// request can never run here.
func (e *Engine) Submit(r Request) (*Stream, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case !e.running:
		return nil, ErrStopped
	case e.asleep:
		return nil, ErrAsleep
	}
	for _, q := range r.Sequences {
		if err := e.sched.Fits(q.PromptTokens, q.MaxTokens); err != nil {
			return nil, err
		}
	}
	s := &Stream{engine: e, quiet: r.Quiet, notify: make(chan struct{}, 1), open: len(r.Sequences)}
	now := time.Now()
	for i, q := range r.Sequences {
		e.nextID++
		seq := &sequence{
			id: e.nextID, index: i, stream: s, generator: q.Generator,
			prompt: q.PromptTokens, maxTokens: q.MaxTokens, arrived: now,
		}
		if err := e.sched.Add(seq.id, q.PromptTokens, q.MaxTokens, q.Prefix); err != nil {
			for _, added := range s.seqs {
				e.sched.Remove(added.id)
				delete(e.seqs, added.id)
			}
			return nil, err
		}
		e.seqs[seq.id] = seq
		s.seqs = append(s.seqs, seq)
	}
	select {
	case e.wake <- struct{}{}:
	default:
	}
	return s, nil
}

// Stats is a snapshot of the batch.
func (e *Engine) Stats() batch.Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.sched.Stats()
}

// Meet sets a function that every step waits for, as ranks wait for each other in a collective
// operation. If it returns an error, Run ends.
func (e *Engine) Meet(meet func(context.Context) error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.meet = meet
}

// Sleep refuses requests from now on and returns how many sequences are in
// flight: an engine that sleeps with any must not go on.
func (e *Engine) Sleep() (inFlight int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asleep = true
	e.sched.Forget() // the memory of the blocks is given back
	return len(e.seqs)
}

// Wake accepts requests again.
func (e *Engine) Wake() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asleep = false
}

// AbortAll ends every sequence with FinishAbort.
func (e *Engine) AbortAll() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, seq := range e.seqs {
		e.finish(seq, text.Piece{Finish: FinishAbort}, time.Now())
	}
}

func (e *Engine) abort(seqs []*sequence) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, seq := range seqs {
		if _, ok := e.seqs[seq.id]; ok {
			e.finish(seq, text.Piece{Finish: FinishAbort}, time.Now())
		}
	}
}

// Run computes until ctx is done, then aborts what is left. It must be called
// once.
func (e *Engine) Run(ctx context.Context) {
	e.mu.Lock()
	e.running = true
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		e.running = false
		e.mu.Unlock()
		e.AbortAll()
	}()

	timer := time.NewTimer(time.Hour)
	timer.Stop()
	defer timer.Stop()
	deadline := time.Now()
	for ctx.Err() == nil {
		step, duration, faults, changed := e.plan()
		if faults.Hang != "" {
			select {
			case <-changed:
			case <-ctx.Done():
			}
			continue
		}
		if len(step.Work) == 0 {
			select {
			case <-e.wake:
			case <-ctx.Done():
			}
			deadline = time.Now()
			continue
		}
		// Steps are paced against their deadlines, so that a late timer does
		// not slow the engine down; one that is far behind starts afresh.
		if now := time.Now(); now.Sub(deadline) > duration {
			deadline = now
		}
		deadline = deadline.Add(duration)
		if duration == 0 {
			runtime.Gosched() // let requests in between steps that take no time
		} else if wait := time.Until(deadline); wait > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-changed: // what is slow may be fast now: let the step end
				timer.Stop()
				deadline = time.Now()
			case <-ctx.Done():
				return
			}
		}
		e.mu.Lock()
		meet := e.meet
		e.mu.Unlock()
		if meet != nil && meet(ctx) != nil {
			return
		}
		if crash := e.emit(step, faults); crash {
			timer.Reset(crashGrace)
			select {
			case <-timer.C:
				e.cfg.Crash(fmt.Sprintf("fault crash_after_tokens=%d", faults.CrashAfterTokens))
			case <-ctx.Done():
			}
			<-ctx.Done() // only where Crash is a test's: nothing more is computed
		}
	}
}

// plan takes the next step, none where the engine hangs, and says how long it lasts. It
// comes with the faults under which it was taken: a sequence that is submitted after a
// fault was set meets it.
func (e *Engine) plan() (batch.Step, time.Duration, fault.Set, <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	faults, changed := e.cfg.Faults.Watch()
	if faults.Hang != "" {
		return batch.Step{}, 0, faults, changed
	}
	step := e.sched.Plan()
	if n := len(step.Preempted); n > 0 {
		e.cfg.Observer.Preempted(n)
	}
	now := time.Now()
	for _, w := range step.Work {
		seq := e.seqs[w.ID]
		if !w.Admitted {
			continue
		}
		seq.position = w.Cached
		if seq.admitted.IsZero() {
			seq.admitted, seq.cached = now, w.Cached
			e.cfg.Observer.Admitted(seq.prompt, w.Cached)
		}
	}
	d := e.cfg.Rates.stepTime(step, e.cfg.Batch.MaxSeqs)
	if faults.SlowFactor > 1 {
		d = time.Duration(min(float64(d)*faults.SlowFactor, float64(1<<61)))
	}
	return step, d + time.Duration(faults.SlowLatency), faults, changed
}

// emit hands out the tokens of a finished step. It reports true when the fault
// crash_after_tokens is due; no token beyond it is handed out.
func (e *Engine) emit(step batch.Step, faults fault.Set) (crash bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if faults.CrashAfterTokens != e.crashSet {
		e.crashSet = faults.CrashAfterTokens
		e.crashAt = e.generated + faults.CrashAfterTokens
	}
	now := time.Now()
	var promptTokens, generated int
	for _, w := range step.Work {
		seq, ok := e.seqs[w.ID]
		if !ok {
			continue // aborted during the step
		}
		if w.Prefill {
			// What a preempted sequence computes again counts once.
			seq.position += w.Tokens
			fresh := max(min(seq.position, seq.prompt)-seq.prefilled, 0)
			seq.prefilled += fresh
			promptTokens += fresh
		}
		if !w.Emits {
			continue
		}
		if seq.first.IsZero() {
			seq.first = now
			e.cfg.Observer.FirstToken(now.Sub(seq.arrived))
		} else {
			e.cfg.Observer.InterToken(now.Sub(seq.last))
		}
		seq.last = now
		piece := text.Piece{Finish: text.FinishStop}
		if seq.generator != nil {
			piece = seq.generator.Next()
			seq.generated++
			generated++
			e.generated++
		}
		if piece.Finish != "" {
			e.finish(seq, piece, now)
		} else {
			e.sched.Extend(seq.id)
			seq.stream.push(Event{Index: seq.index, Cached: seq.cached, Piece: piece})
		}
		if e.crashSet > 0 && e.generated >= e.crashAt {
			crash = true
			break
		}
	}
	e.cfg.Observer.Step(promptTokens, generated)
	return crash
}

// finish removes a sequence, tells the observer and pushes its last event. The
// caller holds the lock.
func (e *Engine) finish(seq *sequence, piece text.Piece, now time.Time) {
	e.sched.Remove(seq.id)
	delete(e.seqs, seq.id)
	f := Finished{
		Reason: piece.Finish, PromptTokens: seq.prompt, GeneratedTokens: seq.generated, MaxTokens: seq.maxTokens,
		Total: now.Sub(seq.arrived), Queue: now.Sub(seq.arrived),
	}
	if !seq.admitted.IsZero() {
		f.Queue = seq.admitted.Sub(seq.arrived)
	}
	if !seq.first.IsZero() {
		f.Prefill = seq.first.Sub(seq.admitted)
		f.Decode = seq.last.Sub(seq.first)
		f.Inference = seq.last.Sub(seq.admitted)
	}
	if seq.generator == nil {
		f.MaxTokens = 0 // nothing was asked for
	}
	e.cfg.Observer.Finished(f)
	seq.stream.push(Event{Index: seq.index, Cached: seq.cached, Piece: piece})
}
