package scalesim_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/tools/policystudy/internal/synthetic"
	"remuda/tools/policystudy/scalesim"
)

// TestDataAge: a decision is carried out so long after the metrics that it goes by were sampled, and
// only the numbers of replicas are of now. Decisions may overlap.
func TestDataAge(t *testing.T) {
	trace := &scalesim.Trace{Span: 60 * s, Arrivals: []scalesim.Arrival{{At: 11 * s, Service: 40 * s}, {At: 12 * s, Service: 40 * s}}}
	cfg := scalesim.Config{Slots: 1, ColdStart: s, Interval: 10 * s, Max: 9, Initial: 1}
	type seen struct {
		at             time.Duration
		running, ready int
	}
	run := func(age time.Duration) (scalesim.Result, []seen) {
		var all []seen
		c := cfg
		c.DataAge = age
		r, err := scalesim.Run(c, trace, &script{want: []int{1, 2}, see: func(o *scalesim.Observation) {
			all = append(all, seen{o.Now, o.Running, o.Ready})
		}})
		require.NoError(t, err)
		return r, all
	}
	// The second decision is of the metrics at 10 s: its replica serves a second after it.
	for age, want := range map[time.Duration]time.Duration{0: 0, 4 * s: 3 * s, 9 * s: 8 * s} {
		r, all := run(age)
		require.Equal(t, want, r.WaitMax, age)
		require.Equal(t, []seen{{0, 0, 1}, {10 * s, 0, 1}}, all[:2], "what was sampled, %s ago", age)
	}
	_, all := run(25 * s)
	require.Equal(t, []seen{{0, 0, 1}, {10 * s, 0, 1}, {20 * s, 1, 2}}, all[:3], "at 45 s the replica that was ordered at 35 s is ready; one request ran at 20 s")
}

// TestBatchSlope: a request takes its whole time in a full batch, the least alone, and in between
// linearly, by the batch at its begin.
func TestBatchSlope(t *testing.T) {
	together := &scalesim.Trace{Span: 100 * s, Arrivals: []scalesim.Arrival{{At: 0, Service: 30 * s}, {At: s, Service: 30 * s}, {At: 2 * s, Service: 30 * s}}}
	apart := &scalesim.Trace{Span: 100 * s, Arrivals: []scalesim.Arrival{{At: 0, Service: 30 * s}, {At: 31 * s, Service: 30 * s}, {At: 62 * s, Service: 30 * s}}}
	for _, tc := range []struct {
		name    string
		slope   float64
		slots   int
		trace   *scalesim.Trace
		seconds float64
	}{
		{"no slope", 0, 3, together, 90},
		{"together", 0.5, 3, together, 20 + 25 + 30},
		{"apart", 0.5, 3, apart, 20 + 20 + 20},
		{"a slope of 2, apart", 2, 3, apart, 10 + 10 + 10},
		{"one slot is always full", 0.5, 1, apart, 90},
	} {
		cfg := scalesim.Config{Slots: tc.slots, Interval: 10 * s, Max: 1, Initial: 1, BatchSlope: tc.slope}
		r, err := scalesim.Run(cfg, tc.trace, &script{want: []int{1}})
		require.NoError(t, err)
		require.InDelta(t, tc.seconds, r.BusyHours*3600, 1e-6, tc.name)
		require.Equal(t, int64(3), r.Finished, tc.name)
	}
}

// TestWaits: each of the further target waits is scored as a run with that target would be, hour by hour.
func TestWaits(t *testing.T) {
	rate := func(at time.Duration) float64 { return 1.2 + math.Sin(2*math.Pi*at.Hours()) }
	trace, err := synthetic.Poisson(11, 3*time.Hour, rate, 6, synthetic.DefaultLengths(), scalesim.DefaultSpeed())
	require.NoError(t, err)
	cfg := scalesim.DefaultConfig()
	cfg.Slots, cfg.Initial, cfg.Max, cfg.Waits, cfg.ScoreFrom = 4, 2, 2, []time.Duration{time.Second, 5 * time.Second, time.Minute}, 20*time.Minute
	run := func(c scalesim.Config) scalesim.Result {
		r, err := scalesim.Run(c, trace, &script{want: []int{2}})
		require.NoError(t, err)
		return r
	}
	all := run(cfg)
	require.Len(t, all.Hours, 3)
	last := int64(math.MaxInt64)
	for i, wait := range cfg.Waits {
		one := cfg
		one.TargetWait, one.Waits = wait, nil
		r, sum := run(one), int64(0)
		for h := range r.Hours {
			require.Equal(t, r.Hours[h].Late, all.Hours[h].LateAfter[i], "hour %d, %s", h, wait)
			sum += all.Hours[h].LateAfter[i]
		}
		require.Equal(t, r.Late, sum, wait)
		require.Less(t, sum, last, "fewer wait for longer")
		require.Positive(t, sum, wait)
		last = sum
	}
}

// TestWorstEpisode: two rows of late requests, with five minutes between them, are two episodes.
func TestWorstEpisode(t *testing.T) {
	for name, c := range map[string]struct {
		gap  time.Duration
		want []int64 // after 1 s and after 12 s
	}{
		"one episode":  {5*time.Minute - time.Second, []int64{6, 2}},
		"two episodes": {6 * time.Minute, []int64{4, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			trace := &scalesim.Trace{Name: "rows", Span: time.Hour}
			add := func(from time.Duration, n int) {
				for i := range n { // one after the other, each for 5 s on the only slot
					trace.Arrivals = append(trace.Arrivals, scalesim.Arrival{At: from + time.Duration(i)*100*time.Millisecond, Service: 5 * time.Second})
				}
			}
			add(time.Minute, 5)
			add(time.Minute+c.gap, 3)
			cfg := scalesim.DefaultConfig()
			cfg.Slots, cfg.Initial, cfg.Max, cfg.Waits = 1, 1, 1, []time.Duration{time.Second, 12 * time.Second}
			r, err := scalesim.Run(cfg, trace, &script{want: []int{1}})
			require.NoError(t, err)
			require.Equal(t, c.want, r.WorstEpisode)
		})
	}
}
