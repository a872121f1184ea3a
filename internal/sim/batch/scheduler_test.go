package batch_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/internal/sim/batch"
)

// driver plays the engine: it gives every sequence the tokens it asked for.
type driver struct {
	t      require.TestingT
	s      *batch.Scheduler
	cfg    batch.Config
	prompt map[batch.ID]int
	want   map[batch.ID]int // tokens to generate
	got    map[batch.ID]int // tokens generated
	next   batch.ID
}

func newDriver(t require.TestingT, cfg batch.Config) *driver {
	s, err := batch.New(cfg)
	require.NoError(t, err)
	return &driver{t: t, s: s, cfg: cfg, prompt: map[batch.ID]int{}, want: map[batch.ID]int{}, got: map[batch.ID]int{}}
}

func (d *driver) add(prompt, tokens int) batch.ID {
	d.next++
	require.NoError(d.t, d.s.Add(d.next, prompt, tokens, nil))
	d.prompt[d.next], d.want[d.next] = prompt, tokens
	return d.next
}

func (d *driver) remove(id batch.ID) {
	assert.True(d.t, d.s.Remove(id))
	delete(d.want, id)
}

// step runs one step and checks what must hold for each.
func (d *driver) step() batch.Step {
	before := d.s.Stats()
	step := d.s.Plan()
	total, prefill, decodes := 0, 0, 0
	seen := map[batch.ID]bool{}
	for _, w := range step.Work {
		assert.False(d.t, seen[w.ID], "sequence %d twice in one step", w.ID)
		seen[w.ID] = true
		assert.Positive(d.t, w.Tokens)
		total += w.Tokens
		if w.Prefill {
			prefill += w.Tokens
		} else {
			decodes++
			assert.Equal(d.t, 1, w.Tokens)
			assert.True(d.t, w.Emits)
		}
	}
	assert.LessOrEqual(d.t, total, d.cfg.MaxBatchedTokens)
	assert.Equal(d.t, prefill, step.PrefillTokens)
	assert.Equal(d.t, decodes, step.Decodes)
	if before.Running+before.Waiting > 0 {
		assert.NotEmpty(d.t, step.Work, "a step with nothing to do although sequences are there")
	}
	for _, id := range step.Preempted {
		assert.False(d.t, seen[id], "sequence %d was preempted and computed in one step", id)
		assert.Empty(d.t, d.s.Blocks(id))
	}
	for _, w := range step.Work {
		if !w.Emits {
			continue
		}
		d.got[w.ID]++
		if d.got[w.ID] == d.want[w.ID] {
			d.remove(w.ID)
		} else {
			d.s.Extend(w.ID)
		}
	}
	d.check()
	return step
}

// check compares the scheduler's books with its sequences.
func (d *driver) check() {
	running, waiting := d.s.Order()
	stats := d.s.Stats()
	assert.Equal(d.t, len(running), stats.Running)
	assert.Equal(d.t, len(waiting), stats.Waiting)
	assert.LessOrEqual(d.t, stats.Running, d.cfg.MaxSeqs)
	all := append(slices.Clone(running), waiting...)
	assert.Len(d.t, all, len(d.want), "no sequence is lost")
	// Ids grow with the arrival: one sorted list means first come, first
	// served among the waiting, and that no running one is younger.
	assert.True(d.t, slices.IsSorted(all), "order of service is %v", all)

	owner := map[int32]batch.ID{}
	for _, id := range all {
		blocks := d.s.Blocks(id)
		if slices.Contains(waiting, id) {
			assert.Empty(d.t, blocks, "waiting sequence %d holds blocks", id)
		}
		assert.LessOrEqual(d.t, len(blocks)*d.cfg.BlockSize, d.prompt[id]+d.got[id]+d.cfg.BlockSize)
		for _, b := range blocks {
			assert.True(d.t, b >= 0 && int(b) < d.cfg.Blocks)
			assert.Zero(d.t, owner[b], "block %d has two owners", b)
			owner[b] = id
		}
	}
	assert.Equal(d.t, len(owner), stats.UsedBlocks, "blocks leak")
	assert.Equal(d.t, d.cfg.Blocks, stats.TotalBlocks)
}

// drain runs until nothing is left, within a bound that any sane schedule meets.
func (d *driver) drain(maxSteps int) {
	for range maxSteps {
		if s := d.s.Stats(); s.Running+s.Waiting == 0 {
			assert.Zero(d.t, s.UsedBlocks)
			return
		}
		d.step()
	}
	assert.Fail(d.t, "no progress", "%+v after %d steps", d.s.Stats(), maxSteps)
}

func TestAnyHistoryKeepsTheBooks(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		seqs := rapid.IntRange(1, 6).Draw(t, "max seqs")
		d := newDriver(t, batch.Config{
			MaxSeqs: seqs, MaxBatchedTokens: rapid.IntRange(seqs, 40).Draw(t, "budget"),
			BlockSize: rapid.IntRange(1, 8).Draw(t, "block size"), Blocks: rapid.IntRange(1, 24).Draw(t, "blocks"),
		})
		room := d.cfg.Blocks * d.cfg.BlockSize
		want := map[batch.ID]int{}
		work := 0
		for range rapid.IntRange(1, 60).Draw(t, "actions") {
			switch rapid.IntRange(0, 3).Draw(t, "action") {
			case 0, 1:
				prompt := rapid.IntRange(1, room).Draw(t, "prompt")
				tokens := rapid.IntRange(1, room-prompt+1).Draw(t, "tokens")
				want[d.add(prompt, tokens)] = tokens
				work += prompt + tokens
			case 2:
				d.step()
			case 3:
				if running, waiting := d.s.Order(); len(running)+len(waiting) > 0 {
					id := rapid.SampledFrom(append(running, waiting...)).Draw(t, "abort")
					d.remove(id)
					delete(want, id)
					assert.Empty(t, d.s.Blocks(id))
					d.check()
				}
			}
		}
		// Each preemption costs at most one sequence's work again, and each
		// one lets an older sequence go on.
		d.drain(work*work + 100)
		for id, tokens := range want {
			assert.Equal(t, tokens, d.got[id], "tokens of sequence %d", id)
		}
	})
}

func TestChunkedPrefill(t *testing.T) {
	t.Parallel()
	d := newDriver(t, batch.Config{MaxSeqs: 4, MaxBatchedTokens: 10, BlockSize: 4, Blocks: 100})
	long, short := d.add(25, 3), d.add(2, 3)
	assert.Equal(t, []batch.Work{{ID: long, Tokens: 10, Prefill: true, Admitted: true}}, d.step().Work)
	assert.Equal(t, []batch.Work{{ID: long, Tokens: 10, Prefill: true}}, d.step().Work)
	assert.Equal(t, []batch.Work{
		{ID: long, Tokens: 5, Prefill: true, Emits: true},
		{ID: short, Tokens: 2, Prefill: true, Emits: true, Admitted: true},
	}, d.step().Work)
	assert.Equal(t, []batch.Work{{ID: long, Tokens: 1, Emits: true}, {ID: short, Tokens: 1, Emits: true}}, d.step().Work)
}

func TestSlotsAreFilledInOrder(t *testing.T) {
	t.Parallel()
	d := newDriver(t, batch.Config{MaxSeqs: 2, MaxBatchedTokens: 100, BlockSize: 4, Blocks: 100})
	a, b, c := d.add(3, 2), d.add(3, 5), d.add(3, 5)
	d.step()
	running, waiting := d.s.Order()
	assert.Equal(t, []batch.ID{a, b}, running)
	assert.Equal(t, []batch.ID{c}, waiting)
	d.step() // a is done
	d.step()
	running, _ = d.s.Order()
	assert.Equal(t, []batch.ID{b, c}, running)
}

// TestYoungestIsPreempted fills the cache: 8 blocks of 2 tokens, three
// sequences that want 7 tokens each.
func TestYoungestIsPreempted(t *testing.T) {
	t.Parallel()
	d := newDriver(t, batch.Config{MaxSeqs: 4, MaxBatchedTokens: 100, BlockSize: 2, Blocks: 8})
	a, b, c := d.add(3, 5), d.add(3, 5), d.add(3, 5)
	late := d.add(3, 1)
	step := d.step()
	assert.Len(t, step.Work, 4, "all four fit at first")
	var preempted []batch.ID
	for len(preempted) == 0 {
		preempted = d.step().Preempted
	}
	assert.Equal(t, []batch.ID{c}, preempted)
	running, waiting := d.s.Order()
	assert.Equal(t, []batch.ID{a, b}, running)
	assert.Equal(t, []batch.ID{c}, waiting, "back at the front")
	assert.Equal(t, 1, d.got[late])
	generated := d.got[c]
	assert.Positive(t, generated)
	d.drain(50)
	assert.Equal(t, 5, d.got[c], "a preempted sequence keeps what it generated")
	assert.Equal(t, 5, d.got[a])
	assert.Equal(t, 1, d.s.Stats().Preemptions)
}

func TestPreemptedGoesBeforeWhoWaits(t *testing.T) {
	t.Parallel()
	d := newDriver(t, batch.Config{MaxSeqs: 2, MaxBatchedTokens: 100, BlockSize: 2, Blocks: 5})
	a, b := d.add(3, 6), d.add(3, 6)
	c := d.add(1, 1)
	for len(d.step().Preempted) == 0 {
	}
	_, waiting := d.s.Order()
	assert.Equal(t, []batch.ID{b, c}, waiting)
	d.drain(50)
	assert.Equal(t, 6, d.got[a])
	assert.Equal(t, 6, d.got[b])
}

func TestRecomputationCountsAsPrefill(t *testing.T) {
	t.Parallel()
	d := newDriver(t, batch.Config{MaxSeqs: 2, MaxBatchedTokens: 100, BlockSize: 2, Blocks: 5})
	d.add(3, 6)
	b := d.add(3, 6)
	for len(d.step().Preempted) == 0 {
	}
	had := d.got[b]
	for range 50 {
		for _, w := range d.step().Work {
			if w.ID == b {
				assert.Equal(t, batch.Work{ID: b, Tokens: 3 + had, Prefill: true, Emits: true, Admitted: true}, w)
				return
			}
		}
	}
	t.Fatal("the preempted sequence never ran again")
}

func TestAdd(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name           string
		prompt, tokens int
		want           string
	}{
		{"fills the cache", 7, 2, ""},
		{"one token too many", 7, 3, "larger than the KV cache"},
		{"prompt too long", 9, 1, "larger than the KV cache"},
		{"no prompt", 0, 1, "must be at least 1 of each"},
		{"no tokens", 1, 0, "must be at least 1 of each"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s, err := batch.New(batch.Config{MaxSeqs: 1, MaxBatchedTokens: 8, BlockSize: 4, Blocks: 2})
			require.NoError(t, err)
			err = s.Add(1, tt.prompt, tt.tokens, nil)
			if tt.want == "" {
				require.NoError(t, err)
				require.ErrorContains(t, s.Add(1, 1, 1, nil), "duplicate sequence")
				return
			}
			require.ErrorContains(t, err, tt.want)
			assert.Zero(t, s.Stats().Waiting)
		})
	}
}

func TestNewNamesEveryBadField(t *testing.T) {
	t.Parallel()
	_, err := batch.New(batch.Config{})
	for _, field := range []string{"max sequences", "max batched tokens", "block size", "blocks"} {
		require.ErrorContains(t, err, field)
	}
	_, err = batch.New(batch.Config{MaxSeqs: 8, MaxBatchedTokens: 7, BlockSize: 1, Blocks: 1})
	require.ErrorContains(t, err, "must be at least max sequences (8)")
}

func TestUnknownSequences(t *testing.T) {
	t.Parallel()
	s, err := batch.New(batch.Config{MaxSeqs: 1, MaxBatchedTokens: 8, BlockSize: 4, Blocks: 2})
	require.NoError(t, err)
	assert.False(t, s.Remove(7))
	s.Extend(7)
	assert.Nil(t, s.Blocks(7))
	assert.Empty(t, s.Plan().Work)
}
