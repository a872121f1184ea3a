package batch

import (
	"errors"
	"fmt"
	"slices"
)

// ErrTooLarge is wrapped by Add for a sequence that would not fit into the
// empty cache.
var ErrTooLarge = errors.New("sequence is larger than the KV cache")

// ID names a sequence. The caller gives it; it must never be used twice.
type ID uint64

// Config is the size of the engine.
type Config struct {
	// MaxSeqs is how many sequences run at once (vLLM's max_num_seqs).
	MaxSeqs int
	// MaxBatchedTokens is how many tokens one step computes at most, over all
	// sequences (vLLM's max_num_batched_tokens). A longer prompt is prefilled
	// in chunks.
	MaxBatchedTokens int
	// BlockSize is how many tokens one KV block holds.
	BlockSize int
	// Blocks is how many KV blocks there are.
	Blocks int
}

func (c Config) validate() error {
	var errs []error
	for _, f := range []struct {
		name  string
		value int
	}{
		{"max sequences", c.MaxSeqs},
		{"max batched tokens", c.MaxBatchedTokens},
		{"block size", c.BlockSize},
		{"blocks", c.Blocks},
	} {
		if f.value < 1 {
			errs = append(errs, fmt.Errorf("%s is %d: must be at least 1", f.name, f.value))
		}
	}
	if c.MaxBatchedTokens >= 1 && c.MaxBatchedTokens < c.MaxSeqs {
		errs = append(errs, fmt.Errorf("max batched tokens is %d: must be at least max sequences (%d), or a full batch cannot decode in one step",
			c.MaxBatchedTokens, c.MaxSeqs))
	}
	return errors.Join(errs...)
}

// Work is one sequence's share of a step.
type Work struct {
	ID ID
	// Tokens is how many tokens of the sequence the step computes.
	Tokens int
	// Prefill tells that the tokens are (part of) a prompt, or of what a
	// preempted sequence must compute again; otherwise this is a decode of
	// one token.
	Prefill bool
	// Emits tells that the sequence has one new token when the step is done.
	// The caller must then call Extend or Remove before the next Plan.
	Emits bool
	// Admitted tells that the sequence left the waiting queue in this step.
	Admitted bool
	// Cached is how many tokens of an admitted sequence were in the cache already.
	Cached int
}

// Step is what the engine computes next.
type Step struct {
	Work []Work
	// PrefillTokens and Decodes sum up Work.
	PrefillTokens int
	Decodes       int
	// Preempted lists the sequences that lost their blocks in this step.
	Preempted []ID
}

// Stats is a snapshot of the scheduler.
type Stats struct {
	Running, Waiting        int
	UsedBlocks, TotalBlocks int
	// Preemptions counts since the start.
	Preemptions int
}

// Scheduler is the state of the batch.
type Scheduler struct {
	cfg     Config
	pool    *pool
	seqs    map[ID]*sequence
	waiting []*sequence // oldest first
	running []*sequence // oldest first
	preempt int
	work    []Work // reused by Plan
}

type sequence struct {
	id       ID
	total    int // prompt plus generated tokens
	computed int // tokens whose KV is in the blocks
	prefill  int // tokens that were there at admission and have to be prefilled
	prefix   []uint64
	kept     int // blocks whose key the pool knows
	table    []int32
	running  bool
}

// New makes an empty scheduler.
func New(cfg Config) (*Scheduler, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("batch: %w", err)
	}
	return &Scheduler{cfg: cfg, pool: newPool(cfg.Blocks), seqs: map[ID]*sequence{}}, nil
}

// Fits tells whether a sequence of prompt tokens that generates at most maxNew
// more can run at all. The last token generated needs no place in the cache.
func (s *Scheduler) Fits(prompt, maxNew int) error {
	if room := s.cfg.Blocks * s.cfg.BlockSize; prompt > room || maxNew-1 > room-prompt {
		return fmt.Errorf("%w: %d prompt tokens and up to %d generated tokens, the cache has %d blocks of %d",
			ErrTooLarge, prompt, maxNew, s.cfg.Blocks, s.cfg.BlockSize)
	}
	return nil
}

// Add puts a sequence at the end of the waiting queue. Prompt and maxNew are at
// least 1. Prefix is the keys of the prompt's blocks (see Config.Prefix), none for a
// prompt that shares no block.
func (s *Scheduler) Add(id ID, prompt, maxNew int, prefix []uint64) error {
	if prompt < 1 || maxNew < 1 {
		return fmt.Errorf("sequence %d has %d prompt tokens and may generate %d: must be at least 1 of each", id, prompt, maxNew)
	}
	if _, ok := s.seqs[id]; ok {
		return fmt.Errorf("duplicate sequence %d", id)
	}
	if err := s.Fits(prompt, maxNew); err != nil {
		return err
	}
	seq := &sequence{id: id, total: prompt, prefix: prefix}
	s.seqs[id] = seq
	s.waiting = append(s.waiting, seq)
	return nil
}

// Extend adds the token that an emitting step gave to the sequence. Unknown
// (removed) sequences are ignored.
func (s *Scheduler) Extend(id ID) {
	if seq, ok := s.seqs[id]; ok {
		seq.total++
	}
}

// Remove drops a sequence that is finished or aborted and frees its blocks at
// once. It reports whether the sequence was there.
func (s *Scheduler) Remove(id ID) bool {
	seq, ok := s.seqs[id]
	if !ok {
		return false
	}
	delete(s.seqs, id)
	seq.table = s.pool.release(seq.table)
	queue := &s.waiting
	if seq.running {
		queue = &s.running
	}
	if i := slices.Index(*queue, seq); i >= 0 {
		*queue = slices.Delete(*queue, i, i+1)
	}
	return true
}

// Plan decides on the next step and takes the blocks it needs. The step's Work
// is valid until the next Plan.
func (s *Scheduler) Plan() Step {
	step := Step{Work: s.work[:0]}
	budget := s.cfg.MaxBatchedTokens

	// Running sequences first, oldest first.
	for i := 0; i < len(s.running) && budget > 0; i++ {
		seq := s.running[i]
		tokens := min(seq.total-seq.computed, budget)
		if tokens <= 0 || !s.allocate(seq, i, tokens, &step) {
			continue
		}
		budget -= s.compute(seq, tokens, false, &step)
	}

	// After a preemption nothing is admitted: the blocks just freed are meant
	// for the older sequences.
	for len(step.Preempted) == 0 && budget > 0 && len(s.waiting) > 0 && len(s.running) < s.cfg.MaxSeqs {
		seq := s.waiting[0]
		// The last token is computed in any case: it gives the next one.
		found, free := s.pool.cached(seq.prefix[:min(len(seq.prefix), (seq.total-1)/s.cfg.BlockSize)])
		// Admitting a sequence whose prompt cannot be finished would only get
		// it preempted (vLLM's scheduler_reserve_full_isl).
		if s.blocksFor(seq.total)-len(found) > s.pool.free-free {
			break
		}
		seq.table = s.pool.share(seq.table, found)
		seq.computed, seq.kept = len(found)*s.cfg.BlockSize, len(found)
		cached := seq.computed
		tokens := min(seq.total-cached, budget)
		seq.table, _ = s.pool.grow(seq.table, s.blocksFor(cached+tokens))
		s.waiting = slices.Delete(s.waiting, 0, 1)
		s.running = append(s.running, seq)
		seq.running, seq.prefill = true, seq.total
		budget -= s.compute(seq, tokens, true, &step)
		step.Work[len(step.Work)-1].Cached = cached
	}
	s.work = step.Work
	return step
}

// allocate gives the i-th running sequence the blocks for its next tokens,
// preempting from the youngest on. It reports false when the sequence itself
// had to go.
func (s *Scheduler) allocate(seq *sequence, i, tokens int, step *Step) bool {
	for {
		var ok bool
		if seq.table, ok = s.pool.grow(seq.table, s.blocksFor(seq.computed+tokens)); ok {
			return true
		}
		victim := s.running[len(s.running)-1]
		s.running = s.running[:len(s.running)-1]
		victim.table = s.pool.release(victim.table)
		victim.computed, victim.running = 0, false
		s.waiting = slices.Insert(s.waiting, 0, victim)
		s.preempt++
		step.Preempted = append(step.Preempted, victim.id)
		if len(s.running) <= i {
			return false
		}
	}
}

func (s *Scheduler) compute(seq *sequence, tokens int, admitted bool, step *Step) int {
	prefill := seq.computed < seq.prefill
	seq.computed += tokens
	for ; seq.kept < len(seq.prefix) && (seq.kept+1)*s.cfg.BlockSize <= seq.computed; seq.kept++ {
		s.pool.keep(seq.table[seq.kept], seq.prefix[seq.kept])
	}
	if prefill {
		step.PrefillTokens += tokens
	} else {
		step.Decodes++
	}
	step.Work = append(step.Work, Work{
		ID: seq.id, Tokens: tokens, Prefill: prefill, Emits: seq.computed == seq.total, Admitted: admitted,
	})
	return tokens
}

// Forget empties the prefix cache.
func (s *Scheduler) Forget() { s.pool.forgetAll() }

// Stats is what the engine's gauges show.
func (s *Scheduler) Stats() Stats {
	return Stats{
		Running: len(s.running), Waiting: len(s.waiting),
		UsedBlocks: s.pool.total() - s.pool.free, TotalBlocks: s.pool.total(),
		Preemptions: s.preempt,
	}
}

func (s *Scheduler) blocksFor(tokens int) int {
	return (tokens + s.cfg.BlockSize - 1) / s.cfg.BlockSize
}
