package engine_test

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/internal/sim/batch"
	"remuda/internal/sim/engine"
	"remuda/internal/sim/fault"
	"remuda/internal/sim/text"
	"remuda/internal/testkit/answers"
)

// record is an observer that keeps what it hears.
type record struct {
	mu                                 sync.Mutex
	prompt, generated, preempted, step int
	queried, cached                    int
	first, inter                       []time.Duration
	finished                           []engine.Finished
	atFinish                           func() // where it is set, called under the engine's lock
}

func (r *record) Step(p, g int)              { r.lock(func() { r.prompt += p; r.generated += g; r.step++ }) }
func (r *record) Admitted(p, cached int)     { r.lock(func() { r.queried += p; r.cached += cached }) }
func (r *record) Preempted(n int)            { r.lock(func() { r.preempted += n }) }
func (r *record) FirstToken(d time.Duration) { r.lock(func() { r.first = append(r.first, d) }) }
func (r *record) InterToken(d time.Duration) { r.lock(func() { r.inter = append(r.inter, d) }) }
func (r *record) Finished(f engine.Finished) {
	if r.atFinish != nil {
		r.atFinish()
	}
	r.lock(func() { r.finished = append(r.finished, f) })
}
func (r *record) lock(f func()) { r.mu.Lock(); defer r.mu.Unlock(); f() }

type fixture struct {
	*engine.Engine
	seen   *record
	faults *fault.Box
	crash  chan string
	stop   func()
}

// start runs an engine until the test's end or until stop is called.
func start(t interface {
	require.TestingT
	Cleanup(func())
}, cfg engine.Config) fixture {
	f := fixture{seen: &record{}, faults: fault.NewBox(fault.Set{}), crash: make(chan string, 1)}
	cfg.Faults, cfg.Observer = f.faults, f.seen
	cfg.Crash = func(reason string) { f.crash <- reason }
	e, err := engine.New(cfg)
	require.NoError(t, err)
	f.Engine = e
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); e.Run(ctx) }()
	f.stop = func() { cancel(); <-done }
	t.Cleanup(f.stop)
	for { // Run accepts requests once it has begun
		if s, err := e.Submit(engine.Request{}); err == nil {
			s.Close()
			return f
		}
		time.Sleep(time.Microsecond)
	}
}

func (f fixture) set(t require.TestingT, s fault.Set) {
	_, err := f.faults.Update(func(fault.Set) (fault.Set, error) { return s, nil })
	require.NoError(t, err)
}

var sizes = batch.Config{MaxSeqs: 4, MaxBatchedTokens: 64, BlockSize: 4, Blocks: 64}

func answer(prompt string, tokens int) engine.Sequence {
	return engine.Sequence{
		PromptTokens: text.Count(prompt), MaxTokens: tokens,
		Generator: text.NewGenerator(text.NewState("m").Append(prompt), text.Params{MaxTokens: tokens, IgnoreEOS: true}),
	}
}

func whole(prompt string, tokens int) string {
	return answers.Generate("m", prompt, text.Params{MaxTokens: tokens, IgnoreEOS: true}).Text
}

// read collects a stream: each sequence's text and finish reason.
func read(t require.TestingT, s *engine.Stream) (texts map[int]string, reasons map[int]string) {
	texts, reasons = map[int]string{}, map[int]string{}
	for {
		events, err := s.Next(context.Background(), nil)
		require.NoError(t, err)
		if len(events) == 0 {
			return texts, reasons
		}
		for _, e := range events {
			require.Empty(t, reasons[e.Index], "an event after the last")
			texts[e.Index] += e.Text
			reasons[e.Index] = e.Finish
		}
	}
}

// TestOutputDoesNotDependOnTheBatch runs random loads through random, mostly
// far too small, caches.
func TestOutputDoesNotDependOnTheBatch(t *testing.T) {
	t.Parallel()
	preempted := 0
	rapid.Check(t, func(t *rapid.T) {
		seqs := rapid.IntRange(1, 6).Draw(t, "max seqs")
		cfg := engine.Config{Batch: batch.Config{
			MaxSeqs: seqs, MaxBatchedTokens: rapid.IntRange(seqs, 32).Draw(t, "budget"),
			BlockSize: rapid.IntRange(1, 8).Draw(t, "block size"), Blocks: rapid.IntRange(40, 60).Draw(t, "blocks"),
		}}
		f := start(t, cfg)
		defer f.stop()
		var streams []*engine.Stream
		var prompts []string
		var tokens []int
		for range rapid.IntRange(1, 12).Draw(t, "requests") {
			prompt := rapid.SampledFrom([]string{"Hello", "Why?", "Tell me a long story about a quiet horse"}).Draw(t, "prompt")
			n := rapid.IntRange(1, 25).Draw(t, "tokens")
			s, err := f.Submit(engine.Request{
				Sequences: []engine.Sequence{answer(prompt, n), answer(prompt+" ", n)},
				Quiet:     rapid.Bool().Draw(t, "quiet"),
			})
			require.NoError(t, err)
			streams, prompts, tokens = append(streams, s), append(prompts, prompt), append(tokens, n)
		}
		total := 0
		for i, s := range streams {
			texts, reasons := read(t, s)
			assert.Equal(t, map[int]string{0: whole(prompts[i], tokens[i]), 1: whole(prompts[i]+" ", tokens[i])}, texts)
			assert.Equal(t, map[int]string{0: text.FinishLength, 1: text.FinishLength}, reasons)
			total += 2 * tokens[i]
		}
		f.stop()
		assert.Equal(t, total, f.seen.generated)
		assert.Zero(t, f.Stats().UsedBlocks)
		preempted += f.seen.preempted
	})
	assert.Positive(t, preempted, "no cache was small enough for the test to mean anything")
}

func TestPromptTokensCountOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := start(t, engine.Config{Batch: batch.Config{MaxSeqs: 2, MaxBatchedTokens: 8, BlockSize: 2, Blocks: 20}, Rates: engine.Rates{Decode: 1000}})
		var streams []*engine.Stream
		for range 2 {
			s, err := f.Submit(engine.Request{Sequences: []engine.Sequence{answer("a quiet horse rests by the long river", 25)}})
			require.NoError(t, err)
			streams = append(streams, s)
		}
		for _, s := range streams {
			texts, _ := read(t, s)
			assert.Equal(t, whole("a quiet horse rests by the long river", 25), texts[0])
		}
		f.stop()
		assert.Positive(t, f.seen.preempted)
		assert.Equal(t, 2*text.Count("a quiet horse rests by the long river"), f.seen.prompt)
		assert.Equal(t, 50, f.seen.generated)
	})
}

func TestPace(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name      string
		rates     engine.Rates
		faults    fault.Set
		sequences int
		first     time.Duration // to the first token
		total     time.Duration // to the last of 11
	}{
		{"alone", engine.Rates{Prefill: 100, Decode: 50}, fault.Set{}, 1, 10 * time.Millisecond, 210 * time.Millisecond},
		{"full batch, no slowdown", engine.Rates{Decode: 50}, fault.Set{}, 4, 0, 200 * time.Millisecond},
		{"full batch, slowdown", engine.Rates{Decode: 50, Slowdown: 0.5}, fault.Set{}, 4, 0, 300 * time.Millisecond},
		{"half a batch, slowdown", engine.Rates{Decode: 50, Slowdown: 0.6}, fault.Set{}, 2, 0, 240 * time.Millisecond},
		{"slow by factor", engine.Rates{Prefill: 100, Decode: 50}, fault.Set{SlowFactor: 3}, 1, 30 * time.Millisecond, 630 * time.Millisecond},
		{"slow by latency", engine.Rates{}, fault.Set{SlowLatency: fault.Duration(time.Second)}, 1, time.Second, 11 * time.Second},
		{"as fast as possible", engine.Rates{}, fault.Set{}, 4, 0, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := start(t, engine.Config{Batch: sizes, Rates: tt.rates})
				f.set(t, tt.faults)
				begin := time.Now()
				var req engine.Request
				for range tt.sequences {
					req.Sequences = append(req.Sequences, answer("x", 11))
				}
				s, err := f.Submit(req)
				require.NoError(t, err)
				_, err = s.Next(context.Background(), nil)
				require.NoError(t, err)
				assert.Equal(t, tt.first, time.Since(begin).Round(time.Microsecond))
				read(t, s)
				assert.InDelta(t, tt.total, time.Since(begin), float64(20*time.Microsecond))
			})
		})
	}
}

func TestTimesAreObserved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := start(t, engine.Config{Batch: batch.Config{MaxSeqs: 1, MaxBatchedTokens: 64, BlockSize: 4, Blocks: 64}, Rates: engine.Rates{Prefill: 10, Decode: 10}})
		req := engine.Request{Sequences: []engine.Sequence{answer("x", 3)}}
		one, err := f.Submit(req)
		require.NoError(t, err)
		req.Sequences[0] = answer("y", 2)
		two, err := f.Submit(req)
		require.NoError(t, err)
		read(t, one)
		read(t, two)
		f.stop()
		const ms = time.Millisecond
		assert.Equal(t, []time.Duration{100 * ms, 400 * ms}, f.seen.first)
		assert.Equal(t, []time.Duration{100 * ms, 100 * ms, 100 * ms}, f.seen.inter)
		assert.Equal(t, []engine.Finished{
			{Reason: "length", PromptTokens: 1, GeneratedTokens: 3, MaxTokens: 3, Total: 300 * ms, Prefill: 100 * ms, Inference: 300 * ms, Decode: 200 * ms},
			{Reason: "length", PromptTokens: 1, GeneratedTokens: 2, MaxTokens: 2, Total: 500 * ms, Queue: 300 * ms, Prefill: 100 * ms, Inference: 200 * ms, Decode: 100 * ms},
		}, f.seen.finished)
	})
}

func TestCloseFreesEverythingAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := start(t, engine.Config{Batch: sizes, Rates: engine.Rates{Decode: 1}})
		var req engine.Request
		for range 6 { // four run, two wait
			req.Sequences = append(req.Sequences, answer("x", 20))
		}
		s, err := f.Submit(req)
		require.NoError(t, err)
		synctest.Wait()
		stats := f.Stats()
		assert.Equal(t, []int{4, 2, 4}, []int{stats.Running, stats.Waiting, stats.UsedBlocks})
		s.Close()
		s.Close()
		assert.Equal(t, batch.Stats{TotalBlocks: 64}, f.Stats())
		_, reasons := read(t, s)
		assert.Equal(t, map[int]string{0: "abort", 1: "abort", 2: "abort", 3: "abort", 4: "abort", 5: "abort"}, reasons)
	})
}

func TestNextEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := start(t, engine.Config{Batch: sizes, Rates: engine.Rates{Decode: 1, Prefill: 1}})
		s, err := f.Submit(engine.Request{Sequences: []engine.Sequence{answer("x", 20)}, Quiet: true})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_, err = s.Next(ctx, nil)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		s.Close()
	})
}

func TestHang(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := start(t, engine.Config{Batch: sizes})
		f.set(t, fault.Set{Hang: fault.HangGeneration})
		s, err := f.Submit(engine.Request{Sequences: []engine.Sequence{answer("x", 3)}})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		_, err = s.Next(ctx, nil)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		f.set(t, fault.Set{})
		texts, _ := read(t, s)
		assert.Equal(t, whole("x", 3), texts[0])
	})
}

// TestAStepIsTakenUnderTheFaultsOfItsMoment: the loop, let go for a moment, comes to a lock
// that another holds, and the engine is to hang again before it gets it.
func TestAStepIsTakenUnderTheFaultsOfItsMoment(t *testing.T) {
	t.Parallel()
	f := start(t, engine.Config{Batch: sizes})
	f.set(t, fault.Set{Hang: fault.HangGeneration})
	var streams [2]*engine.Stream
	for i := range streams {
		var err error
		streams[i], err = f.Submit(engine.Request{Sequences: []engine.Sequence{answer("x", 3)}})
		require.NoError(t, err)
	}
	others := func() { // come as far as they can
		for range 10_000 {
			runtime.Gosched()
		}
	}
	locked, release, closed := make(chan struct{}), make(chan struct{}), make(chan struct{})
	f.seen.atFinish = sync.OnceFunc(func() { close(locked); <-release })
	go func() { defer close(closed); streams[1].Close() }()
	<-locked
	f.set(t, fault.Set{})
	others()
	f.set(t, fault.Set{Hang: fault.HangGeneration})
	close(release)
	<-closed
	others()
	assert.Equal(t, 1, f.Stats().Waiting)
	f.set(t, fault.Set{})
	texts, _ := read(t, streams[0])
	assert.Equal(t, whole("x", 3), texts[0])
}

func TestClearingAFaultEndsASlowStep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := start(t, engine.Config{Batch: sizes})
		f.set(t, fault.Set{SlowLatency: fault.Duration(100 * time.Hour)})
		s, err := f.Submit(engine.Request{Sequences: []engine.Sequence{answer("x", 3)}})
		require.NoError(t, err)
		begin := time.Now()
		time.Sleep(time.Minute)
		f.set(t, fault.Set{})
		read(t, s)
		assert.Equal(t, time.Minute, time.Since(begin).Truncate(time.Second))
	})
}

func TestCrashAfterTokens(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := start(t, engine.Config{Batch: sizes, Rates: engine.Rates{Decode: 10}})
		s, err := f.Submit(engine.Request{Sequences: []engine.Sequence{answer("x", 5)}})
		require.NoError(t, err)
		read(t, s)
		f.set(t, fault.Set{CrashAfterTokens: 7})
		s, err = f.Submit(engine.Request{Sequences: []engine.Sequence{answer("x", 20), answer("y", 20)}})
		require.NoError(t, err)
		reason := <-f.crash
		assert.Contains(t, reason, "crash_after_tokens=7")
		events, err := s.Next(context.Background(), nil)
		require.NoError(t, err)
		assert.Len(t, events, 7, "exactly that many got out")
	})
}

func TestSleep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := start(t, engine.Config{Batch: sizes, Rates: engine.Rates{Decode: 1}})
		req := engine.Request{Sequences: []engine.Sequence{answer("x", 20)}}
		assert.Zero(t, f.Sleep())
		_, err := f.Submit(req)
		require.ErrorIs(t, err, engine.ErrAsleep)
		f.Wake()
		s, err := f.Submit(req)
		require.NoError(t, err)
		assert.Equal(t, 1, f.Sleep(), "in flight")
		f.AbortAll()
		_, reasons := read(t, s)
		assert.Equal(t, "abort", reasons[0])
		assert.Zero(t, f.Stats().UsedBlocks)
	})
}

func TestSubmit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := start(t, engine.Config{Batch: sizes})
		_, err := f.Submit(engine.Request{Sequences: []engine.Sequence{answer("x", 20), {PromptTokens: 257, MaxTokens: 1}}})
		require.ErrorIs(t, err, batch.ErrTooLarge)
		_, err = f.Submit(engine.Request{Sequences: []engine.Sequence{answer("x", 20), {PromptTokens: 0, MaxTokens: 1}}})
		require.ErrorContains(t, err, "must be at least 1")
		assert.Equal(t, batch.Stats{TotalBlocks: 64}, f.Stats(), "all or nothing")

		s, err := f.Submit(engine.Request{Sequences: []engine.Sequence{{PromptTokens: 256, MaxTokens: 1}}, Quiet: true})
		require.NoError(t, err)
		texts, reasons := read(t, s)
		assert.Equal(t, map[int]string{0: ""}, texts)
		assert.Equal(t, map[int]string{0: "stop"}, reasons)

		f.stop()
		_, err = f.Submit(engine.Request{Sequences: []engine.Sequence{answer("x", 20)}})
		require.ErrorIs(t, err, engine.ErrStopped)
		assert.Zero(t, f.seen.generated, "an embedding generates nothing")
	})
}

func TestStopAbortsWhatRuns(t *testing.T) {
	t.Parallel()
	for name, faults := range map[string]fault.Set{"computing": {}, "hanging": {Hang: fault.HangAll}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := start(t, engine.Config{Batch: sizes, Rates: engine.Rates{Decode: 0.001}})
				f.set(t, faults)
				s, err := f.Submit(engine.Request{Sequences: []engine.Sequence{answer("x", 20)}})
				require.NoError(t, err)
				synctest.Wait()
				f.stop()
				_, reasons := read(t, s)
				assert.Equal(t, "abort", reasons[0])
			})
		})
	}
}

func TestNewNamesEveryBadField(t *testing.T) {
	t.Parallel()
	_, err := engine.New(engine.Config{Rates: engine.Rates{Prefill: -1, Decode: -1, Slowdown: -1}})
	for _, field := range strings.Split("max sequences|block size|prefill rate|decode rate|decode slowdown", "|") {
		require.ErrorContains(t, err, field)
	}
	_, err = engine.New(engine.Config{Batch: sizes})
	require.ErrorContains(t, err, "must be set")
}
