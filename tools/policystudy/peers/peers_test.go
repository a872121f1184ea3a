package peers_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/tools/policystudy/internal/synthetic"
	"remuda/tools/policystudy/peers"
	"remuda/tools/policystudy/scalesim"
)

const s = time.Second

func TestStatic(t *testing.T) {
	require.Equal(t, "static-7", peers.Static(7).Name())
	require.Equal(t, 7, peers.Static(7).Decide(&scalesim.Observation{}))
}

// TestKnative has decisions by hand: targets of 7 for a replica of 10 slots.
func TestKnative(t *testing.T) {
	k, err := peers.NewKnative(peers.DefaultKnativeConfig())
	require.NoError(t, err)
	require.Equal(t, 2*s, k.Interval())
	o := scalesim.Observation{Slots: 10, Ready: 4}
	tick := func(concurrency int) int {
		o.Running = concurrency
		got := k.Decide(&o)
		o.Now += 2 * s
		o.BusySeconds += 2 * float64(concurrency)
		return got
	}
	for range 40 {
		require.Equal(t, 4, tick(28)) // exactly 4 targets
	}
	// 54 for 2 s: the panic window has (28+28+54)/3 = 36.7, so 6; the stable one 28.9.
	require.Equal(t, 4, tick(54))
	require.Equal(t, 5, tick(54)) // (29*28 + 54)/30 = 28.87, so 5; 6 is below 2*4: no panic
	require.Equal(t, 5, tick(54)) // 45.3 and 29.7: 7 is not twice 4
	require.Equal(t, 8, tick(54)) // 54: 8 is, panic
	for range 31 {
		require.Equal(t, 8, tick(0)) // never down in a panic, the last moment of which is 2 s later
	}
	require.Zero(t, tick(0)-2) // then the rate: half of 4
	o.Ready = 1
	require.Zero(t, tick(0))
	o.Waiting, o.Ready = 1, 0
	require.Equal(t, 1, tick(0)) // the activator holds a request

	cfg := peers.DefaultKnativeConfig()
	cfg.ScaleDownDelay = 10 * s
	k, err = peers.NewKnative(cfg)
	require.NoError(t, err)
	o = scalesim.Observation{Slots: 10, Ready: 100}
	var got []int
	for i := range 40 {
		got = append(got, tick(700*(1-min(i, 1))))
	}
	require.Equal(t, 100, got[0])
	require.Equal(t, 100, got[5])
	require.Equal(t, 50, got[39])

	bad := peers.KnativeConfig{TargetUtilization: math.NaN(), PanicWindow: -1, StableWindow: -2, ScaleDownDelay: -1}
	_, err = peers.NewKnative(bad)
	for _, field := range []string{"tick_ns", "panic_window_ns", "stable_window_ns", "target_utilization is NaN", "panic_threshold", "max_scale_up_rate", "max_scale_down_rate", "scale_down_delay_ns"} {
		require.ErrorContains(t, err, field)
	}
}

func config() scalesim.Config {
	return scalesim.Config{Slots: 2, ColdStart: 10 * s, Interval: 5 * s, TargetWait: 0, Max: 50}
}

// TestBoundByHand has one to three replicas' worth of load, with the best plan known.
func TestBoundByHand(t *testing.T) {
	at := func(from, to int) scalesim.Arrival {
		return scalesim.Arrival{At: time.Duration(from) * s, Service: time.Duration(to-from) * s}
	}
	many := func(n int, a scalesim.Arrival) []scalesim.Arrival { return slices.Repeat([]scalesim.Arrival{a}, n) }
	for _, c := range []struct {
		name     string
		arrivals []scalesim.Arrival
		share    float64
		target   time.Duration
		want     float64 // GPU-seconds
	}{
		{"nothing", nil, 1, 0, 0},
		{"one request", []scalesim.Arrival{at(100, 200)}, 1, 0, 10 + 100},
		{"two in one replica", many(2, at(100, 200)), 1, 0, 10 + 100},
		{"three need two", many(3, at(100, 200)), 1, 0, 20 + 200},
		{"a short gap is kept", []scalesim.Arrival{at(100, 200), at(205, 300)}, 1, 0, 10 + 200},
		{"a long gap is not", []scalesim.Arrival{at(100, 200), at(250, 300)}, 1, 0, 20 + 150},
		{"what may wait is not needed at first", []scalesim.Arrival{at(100, 200)}, 1, 5 * s, 10 + 95},
		{"a request shorter than the wait needs a start and its share", []scalesim.Arrival{at(100, 104)}, 1, 5 * s, 10 + 4/2},
		{"an early start was charged only in part, a bin less at most", []scalesim.Arrival{at(4, 100)}, 1, 0, 3 + 96},
		{"one of two may be late", []scalesim.Arrival{at(100, 200), at(300, 310)}, 0.5, 0, 10 + 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := config()
			cfg.TargetWait = c.target
			b, err := peers.LowerBound(cfg, &scalesim.Trace{Span: 400 * s, Arrivals: c.arrivals}, c.share)
			require.NoError(t, err)
			if c.share == 1 {
				require.InDelta(t, c.want, b.GPUHours*3600, 1e-6)
				return
			}
			require.LessOrEqual(t, b.GPUHours*3600, c.want+1e-6)
			require.Greater(t, b.GPUHours*3600, c.want/3)
		})
	}
}

// margin scales to the load with a margin, and lets it fall after a delay.
type margin struct {
	factor float64
	hold   int
	last   []int
}

func (*margin) Name() string { return "margin" }

func (m *margin) Decide(o *scalesim.Observation) int {
	m.last = append(m.last, int(math.Ceil(float64(o.Running+o.Waiting)*m.factor/float64(o.Slots))))
	return slices.Max(m.last[max(0, len(m.last)-1-m.hold):])
}

// TestNobodyBeatsTheBound: on random traces, whoever starts a share in time is charged at
// least the bound for it, and the clairvoyant gives at least its own share.
func TestNobodyBeatsTheBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		trace := &scalesim.Trace{Span: 200 * s}
		for range rapid.IntRange(1, 80).Draw(t, "arrivals") {
			trace.Arrivals = append(trace.Arrivals, scalesim.Arrival{At: time.Duration(rapid.IntRange(0, 199_999).Draw(t, "at")) * time.Millisecond,
				Service: time.Duration(rapid.IntRange(1, 60_000).Draw(t, "service")) * time.Millisecond})
		}
		slices.SortStableFunc(trace.Arrivals, func(a, b scalesim.Arrival) int { return int(a.At - b.At) })
		cfg := config()
		cfg.Slots = rapid.IntRange(1, 4).Draw(t, "slots")
		cfg.ColdStart = time.Duration(rapid.IntRange(0, 40).Draw(t, "cold")) * s
		cfg.TargetWait = time.Duration(rapid.IntRange(0, 20).Draw(t, "target")) * s
		cfg.Initial = rapid.IntRange(0, 10).Draw(t, "initial")
		cfg.Undrain = rapid.Bool().Draw(t, "undrain")
		cfg.ScoreFrom = time.Duration(rapid.IntRange(0, 100).Draw(t, "from")) * s
		k, err := peers.NewKnative(peers.DefaultKnativeConfig())
		require.NoError(t, err)
		for _, p := range []scalesim.Policy{peers.Static(rapid.IntRange(0, 20).Draw(t, "static")), k,
			&margin{factor: rapid.Float64Range(0.5, 3).Draw(t, "factor"), hold: rapid.IntRange(0, 20).Draw(t, "hold")}} {
			r, err := scalesim.Run(cfg, trace, p)
			require.NoError(t, err)
			if r.InTime == 0 {
				continue
			}
			b, err := peers.LowerBound(cfg, trace, r.InTime)
			require.NoError(t, err)
			require.LessOrEqual(t, b.GPUHours, r.GPUHours+1e-9, "%s at %v", p.Name(), r.InTime)
		}
		c, err := peers.NewClairvoyant(cfg, trace, 0.9)
		require.NoError(t, err)
		r := c.Result()
		if r.InTime > 0 {
			b, err := peers.LowerBound(cfg, trace, r.InTime)
			require.NoError(t, err)
			require.LessOrEqual(t, b.GPUHours, r.GPUHours+1e-9)
		}
		again, err := scalesim.Run(cfg, trace, c)
		require.NoError(t, err)
		require.Equal(t, r, again)
	})
}

// TestClairvoyant on a day with a swing and bursts: it reaches the share, no tuned peer
// that does is cheaper, and the bound is near.
func TestClairvoyant(t *testing.T) {
	rate := func(at time.Duration) float64 {
		r := 1 + 0.8*math.Sin(2*math.Pi*at.Hours()/4)
		if at%(40*time.Minute) < 3*time.Minute {
			r *= 3
		}
		return r
	}
	trace, err := synthetic.Poisson(5, 4*time.Hour, rate, 6, synthetic.DefaultLengths(), scalesim.DefaultSpeed())
	require.NoError(t, err)
	cfg := scalesim.DefaultConfig()
	cfg.Slots, cfg.ScoreFrom = 8, 30*time.Minute
	const share = 0.999
	c, err := peers.NewClairvoyant(cfg, trace, share)
	require.NoError(t, err)
	best := c.Result()
	require.GreaterOrEqual(t, best.InTime, share)
	bound, err := peers.LowerBound(cfg, trace, share)
	require.NoError(t, err)
	require.Less(t, bound.GPUHours, best.GPUHours)
	require.Greater(t, bound.GPUHours, 0.7*best.GPUHours)
	reached := 0
	check := func(p scalesim.Policy) {
		r, err := scalesim.Run(cfg, trace, p)
		require.NoError(t, err)
		if r.InTime >= share {
			reached++
		}
	}
	for n := 1; n <= 20; n++ {
		check(peers.Static(n))
	}
	for _, target := range []float64{0.2, 0.3, 0.4, 0.5, 0.6, 0.7} {
		kc := peers.DefaultKnativeConfig()
		kc.TargetUtilization = target
		k, err := peers.NewKnative(kc)
		require.NoError(t, err)
		check(k)
	}
	for _, f := range []float64{1, 1.5, 2, 3} {
		for _, hold := range []int{0, 20, 100, 1000} {
			check(&margin{factor: f, hold: hold})
		}
	}
	require.Greater(t, reached, 5)
	t.Logf("clairvoyant %.2f GPU-h at %.4f, bound %.2f; %d peers reach the share", best.GPUHours, best.InTime, bound.GPUHours, reached)
}

// TestBoundIsMonotone: a higher share, a shorter wait or a longer start cost no less.
func TestBoundIsMonotone(t *testing.T) {
	trace, err := synthetic.PoissonExponential(2, time.Hour, 0.5, 20*s)
	require.NoError(t, err)
	bound := func(share float64, wait, cold time.Duration) float64 {
		cfg := config()
		cfg.TargetWait, cfg.ColdStart = wait, cold
		b, err := peers.LowerBound(cfg, trace, share)
		require.NoError(t, err)
		return b.GPUHours
	}
	base := bound(0.99, 2*s, 30*s)
	require.Greater(t, base, 0.0)
	require.Greater(t, bound(1, 2*s, 30*s), base)
	require.Less(t, bound(0.9, 2*s, 30*s), base)
	require.Less(t, bound(0.99, 10*s, 30*s), base)
	require.Greater(t, bound(0.99, 2*s, 100*s), base)
}

func TestInvalid(t *testing.T) {
	trace := &scalesim.Trace{Span: 60 * s}
	for _, share := range []float64{0, -1, 1.5, math.NaN()} {
		_, err := peers.LowerBound(config(), trace, share)
		require.ErrorContains(t, err, "the share is")
		_, err = peers.NewClairvoyant(config(), trace, share)
		require.ErrorContains(t, err, "the share is")
	}
	cfg := config()
	cfg.ScoreFrom, cfg.Slots = time.Hour, 0
	_, err := peers.LowerBound(cfg, trace, 1)
	require.ErrorContains(t, err, "slots is 0")
	require.ErrorContains(t, err, "score_from_ns is 1h0m0s")
}

// BenchmarkLowerBound and BenchmarkClairvoyant: a day of ten requests a second, 8 slots.
func BenchmarkLowerBound(b *testing.B) {
	trace, err := synthetic.PoissonExponential(2, 24*time.Hour, 10, 10*s)
	require.NoError(b, err)
	cfg := scalesim.DefaultConfig()
	cfg.Slots = 8
	for b.Loop() {
		_, err := peers.LowerBound(cfg, trace, 0.999)
		require.NoError(b, err)
	}
}

func BenchmarkClairvoyant(b *testing.B) {
	trace, err := synthetic.PoissonExponential(2, 24*time.Hour, 10, 10*s)
	require.NoError(b, err)
	cfg := scalesim.DefaultConfig()
	cfg.Slots = 8
	for b.Loop() {
		_, err := peers.NewClairvoyant(cfg, trace, 0.999)
		require.NoError(b, err)
	}
}
