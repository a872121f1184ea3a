package scalesim_test

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/tools/policystudy/frontier"
	"remuda/tools/policystudy/internal/synthetic"
	"remuda/tools/policystudy/scalesim"
)

const s = time.Second

// TestByHand has cases that were worked out on paper.
func TestByHand(t *testing.T) {
	one := scalesim.Config{Slots: 1, ColdStart: 10 * s, Interval: 15 * s, TargetWait: 5 * s, Max: 9, Initial: 1}
	with := func(f func(*scalesim.Config)) scalesim.Config {
		c := one
		f(&c)
		return c
	}
	type score struct {
		seconds                  float64 // charged
		begun, finished          int64
		late, open               int64
		started, cancelled, gone int
		actions                  int
		waitMax                  time.Duration
	}
	for _, c := range []struct {
		name     string
		cfg      scalesim.Config
		arrivals []scalesim.Arrival
		want     []int
		score    score
	}{
		{"nothing arrives", one, nil, []int{1}, score{seconds: 60}},
		{"the second waits for the first", one,
			[]scalesim.Arrival{{At: 0, Service: 10 * s}, {At: 1 * s, Service: 5 * s}}, []int{1},
			score{seconds: 60, begun: 2, finished: 2, late: 1, waitMax: 9 * s}},
		{"a wait of the target is in time", one,
			[]scalesim.Arrival{{At: 0, Service: 10 * s}, {At: 5 * s, Service: 5 * s}}, []int{1},
			score{seconds: 60, begun: 2, finished: 2, waitMax: 5 * s}},
		{"a wait of the target and 1 ns is late", one,
			[]scalesim.Arrival{{At: 0, Service: 10 * s}, {At: 5*s - 1, Service: 5 * s}}, []int{1},
			score{seconds: 60, begun: 2, finished: 2, late: 1, waitMax: 5*s + 1}},
		{"an arrival as the slot gets free does not wait", one,
			[]scalesim.Arrival{{At: 0, Service: 10 * s}, {At: 10 * s, Service: 5 * s}}, []int{1},
			score{seconds: 60, begun: 2, finished: 2}},
		{"a cold start from zero", with(func(c *scalesim.Config) { c.Initial = 0 }),
			[]scalesim.Arrival{{At: 2 * s, Service: s}}, []int{1},
			score{seconds: 60, begun: 1, finished: 1, late: 1, started: 1, actions: 1, waitMax: 8 * s}},
		{"an arrival as the replica gets ready does not wait", with(func(c *scalesim.Config) { c.Initial = 0 }),
			[]scalesim.Arrival{{At: 10 * s, Service: s}}, []int{1},
			score{seconds: 60, begun: 1, finished: 1, started: 1, actions: 1}},
		{"no cold start", with(func(c *scalesim.Config) { c.Initial, c.ColdStart = 0, 0 }),
			[]scalesim.Arrival{{At: 0, Service: s}}, []int{1},
			score{seconds: 60, begun: 1, finished: 1, started: 1, actions: 1}},
		// Both drain from 15 on: the empty one is gone at once, the other at 30.
		{"a drain is charged until its end", with(func(c *scalesim.Config) { c.Initial = 2 }),
			[]scalesim.Arrival{{At: 0, Service: 30 * s}, {At: 1 * s, Service: 10 * s}}, []int{2, 0},
			score{seconds: 30 + 15, begun: 2, finished: 2, gone: 2, actions: 1}},
		{"a draining replica takes nothing new", one,
			[]scalesim.Arrival{{At: 0, Service: 20 * s}, {At: 19 * s, Service: s}, {At: 58 * s, Service: s}}, []int{1, 0},
			score{seconds: 20, begun: 1, finished: 1, late: 1, open: 1, gone: 1, actions: 1}},
		// Two more from 0, called off at 5: 60 s for the first, 5 s each for them.
		{"starts that are called off are charged", with(func(c *scalesim.Config) { c.Interval = 5 * s }),
			nil, []int{3, 1}, score{seconds: 70, started: 2, cancelled: 2, actions: 2}},
		// One drains at 15 with a request until 40; at 30 one is wanted again. 25 s to 40 s: both.
		{"a new one starts beside a drain", one,
			[]scalesim.Arrival{{At: 0, Service: 40 * s}}, []int{1, 0, 1},
			score{seconds: 40 + 30, begun: 1, finished: 1, started: 1, gone: 1, actions: 2}},
		{"a drain is taken back", with(func(c *scalesim.Config) { c.Undrain = true }),
			[]scalesim.Arrival{{At: 0, Service: 40 * s}}, []int{1, 0, 1},
			score{seconds: 60, begun: 1, finished: 1, actions: 2}},
		{"what arrived last and waits is open", one,
			[]scalesim.Arrival{{At: 0, Service: 100 * s}, {At: 55*s - 1, Service: s}, {At: 55 * s, Service: s}}, []int{1},
			score{seconds: 60, begun: 1, late: 1, open: 1}},
		{"a wish is bounded", with(func(c *scalesim.Config) { c.Min, c.Max, c.Initial = 2, 3, 2 }),
			nil, []int{0, 100, -5, math.MaxInt},
			score{seconds: 2*60 + 15 + 15, started: 2, cancelled: 0, gone: 1, actions: 3}},
		// The first hour of the score begins at 20: the request at 1 is not scored.
		{"the score begins later", with(func(c *scalesim.Config) { c.ScoreFrom = 20 * s }),
			[]scalesim.Arrival{{At: 1 * s, Service: 30 * s}, {At: 20 * s, Service: s}}, []int{1},
			score{seconds: 40, begun: 1, finished: 1, late: 1, waitMax: 11 * s}},
	} {
		t.Run(c.name, func(t *testing.T) {
			trace := &scalesim.Trace{Name: "hand", Span: 60 * s, Arrivals: c.arrivals}
			r, err := scalesim.Run(c.cfg, trace, &script{want: c.want})
			require.NoError(t, err)
			require.Equal(t, c.score, score{math.Round(r.GPUHours*3600*1e6) / 1e6, r.Begun, r.Finished, r.Late, r.Open,
				r.Started, r.Cancelled, r.Stopped, r.Actions, r.WaitMax})
			if n := r.Requests - r.Open; n > 0 {
				require.InDelta(t, 1-float64(r.Late)/float64(n), r.InTime, 1e-12)
			}
		})
	}
}

// TestErlangC compares with the formula for M/M/c: the chance to wait, and the mean wait.
func TestErlangC(t *testing.T) {
	const servers, load, mean = 20, 17.0, 10.0 // erlangs, seconds
	// Erlang B by its recursion, then C.
	b := 1.0
	for k := 1.0; k <= servers; k++ {
		b = load * b / (k + load*b)
	}
	wait := b / (1 - load/servers*(1-b))
	cfg := scalesim.Config{Slots: 4, ColdStart: s, Interval: time.Minute, Min: servers / 4, Max: servers / 4, Initial: servers / 4, ScoreFrom: 10 * time.Minute}
	var chances, waits []float64
	for seed := range uint64(20) {
		trace, err := synthetic.PoissonExponential(seed, 8*time.Hour, load/mean, time.Duration(mean*float64(s)))
		require.NoError(t, err)
		r, err := scalesim.Run(cfg, trace, &script{want: []int{servers / 4}})
		require.NoError(t, err)
		chances = append(chances, 1-r.InTime) // the target is 0
		waits = append(waits, r.WaitMean.Seconds())
	}
	for _, c := range []struct {
		name   string
		values []float64
		want   float64
	}{{"chance", chances, wait}, {"mean wait", waits, wait * mean / (servers - load)}} {
		got, err := frontier.Mean(c.values, 0.999)
		require.NoError(t, err)
		require.Less(t, got.Low, c.want, c.name)
		require.Greater(t, got.High, c.want, c.name)
		require.Less(t, got.High-got.Low, c.want, c.name) // and says something
	}
}

// TestInputIsKept shows that Run and the methods of a trace leave it as it is.
func TestInputIsKept(t *testing.T) {
	trace, err := synthetic.PoissonExponential(3, time.Hour, 2, 20*s)
	require.NoError(t, err)
	before, err := json.Marshal(trace)
	require.NoError(t, err)
	cfg := scalesim.DefaultConfig()
	cfg.Slots = 8
	first, err := scalesim.Run(cfg, trace, follow{margin: 1.2})
	require.NoError(t, err)
	trace.Halves()
	after, err := json.Marshal(trace)
	require.NoError(t, err)
	require.Equal(t, before, after)

	var decoded scalesim.Trace
	require.NoError(t, json.Unmarshal(before, &decoded))
	var sameCfg scalesim.Config
	text, err := json.Marshal(cfg)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &sameCfg))
	second, err := scalesim.Run(sameCfg, &decoded, follow{margin: 1.2})
	require.NoError(t, err)
	require.Equal(t, first, second)
	text, err = json.Marshal(first)
	require.NoError(t, err)
	var same scalesim.Result
	require.NoError(t, json.Unmarshal(text, &same))
	require.Equal(t, first, same)
}

// paced has an interval of its own.
type paced struct {
	script
	every time.Duration
}

func (p *paced) Interval() time.Duration { return p.every }

func TestPaced(t *testing.T) {
	trace := &scalesim.Trace{Span: 60 * s}
	cfg := scalesim.DefaultConfig()
	p := &paced{script: script{want: []int{1}}, every: 7 * s}
	r, err := scalesim.Run(cfg, trace, p)
	require.NoError(t, err)
	require.Equal(t, 9, r.Decisions) // at 0, 7, ..., 56
	p.every = 0
	_, err = scalesim.Run(cfg, trace, p)
	require.ErrorContains(t, err, "its interval is 0s")
}

// TestSameInstant shows that a slot is free before the request that comes as it gets free:
// that one is never seen to wait.
func TestSameInstant(t *testing.T) {
	cfg := scalesim.Config{Slots: 1, Interval: 15 * s, Max: 1, Initial: 1}
	trace := &scalesim.Trace{Span: 60 * s, Arrivals: []scalesim.Arrival{{At: 0, Service: 10 * s}, {At: 10 * s, Service: 5 * s}}}
	peak, running := 0, []int{}
	_, err := scalesim.Run(cfg, trace, &script{want: []int{1}, see: func(o *scalesim.Observation) {
		peak, running = max(peak, o.PeakWaiting), append(running, o.Running)
	}})
	require.NoError(t, err)
	require.Zero(t, peak)
	require.Equal(t, []int{0, 0, 0, 0}, running) // it ends at 15, before the decision
}

// TestColdStartSpread shows that replicas get ready in the order of their draws.
func TestColdStartSpread(t *testing.T) {
	trace := &scalesim.Trace{Span: 300 * s}
	cfg := scalesim.Config{Slots: 1, ColdStart: 100 * s, ColdStartSpread: 0.5, Interval: s, Max: 50, Seed: 4}
	var ready []int
	_, err := scalesim.Run(cfg, trace, &script{want: []int{50}, see: func(o *scalesim.Observation) { ready = append(ready, o.Ready) }})
	require.NoError(t, err)
	require.Zero(t, ready[50])
	require.Greater(t, ready[100], 10)
	require.Less(t, ready[100], 40)
	require.Equal(t, 50, ready[151])
}

func TestInvalid(t *testing.T) {
	good := scalesim.DefaultConfig()
	trace := &scalesim.Trace{Span: 60 * s, Arrivals: []scalesim.Arrival{{At: s, Service: s}}}
	bad := scalesim.Config{ColdStart: -1, ColdStartSpread: math.NaN(), TargetWait: -1, PeakWindow: -1, ScoreFrom: -1, Min: -1, Initial: 5, KVTokens: -1, Dispatch: "random"}
	_, err := scalesim.Run(bad, &scalesim.Trace{}, &script{want: []int{1}})
	for _, field := range []string{"slots is 0", "cold_start_ns is -1ns", "cold_start_spread is NaN", "interval_ns is 0s", "target_wait_ns is -1ns",
		"peak_window_ns is -1ns", "score_from_ns is -1ns", "max is 0", "min is -1", "initial is 5", "kv_tokens is -1", `dispatch is "random"`, "span_ns is 0s"} {
		require.ErrorContains(t, err, field)
	}
	late := good
	late.ScoreFrom = 60 * s
	_, err = scalesim.Run(late, trace, &script{want: []int{1}})
	require.ErrorContains(t, err, "score_from_ns is 1m0s: it must be before the end of the trace at 1m0s")
	for _, c := range []struct {
		name string
		a    []scalesim.Arrival
		want string
	}{
		{"not in order", []scalesim.Arrival{{At: 2 * s, Service: s}, {At: s, Service: s}}, "arrivals[1].at_ns is 1s, after one at 2s"},
		{"negative", []scalesim.Arrival{{At: -1, Service: s}}, "arrivals[0].at_ns is -1ns"},
		{"at the end", []scalesim.Arrival{{At: 60 * s, Service: s}}, "it must be before the end"},
		{"no service time", []scalesim.Arrival{{At: s}}, "arrivals[0].service_ns is 0s"},
		{"negative tokens", []scalesim.Arrival{{At: s, Service: s, Context: -1}}, "arrivals[0] has -1 and 0 tokens"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := scalesim.Run(good, &scalesim.Trace{Span: 60 * s, Arrivals: c.a}, &script{want: []int{1}})
			require.ErrorContains(t, err, c.want)
		})
	}
	require.NoError(t, good.Validate())
	require.NoError(t, trace.Validate())
}
