package scalesim_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/tools/policystudy/scalesim"
)

// script wants what it is told, one number a decision, the last one for ever.
type script struct {
	want []int
	n    int
	see  func(*scalesim.Observation)
}

func (*script) Name() string { return "script" }

func (s *script) Decide(o *scalesim.Observation) int {
	if s.see != nil {
		s.see(o)
	}
	s.n++
	return s.want[min(s.n, len(s.want))-1]
}

func genTrace(t *rapid.T) *scalesim.Trace {
	second := func(name string, most int) time.Duration {
		return time.Duration(rapid.IntRange(0, most*4).Draw(t, name)) * 250 * time.Millisecond
	}
	trace := &scalesim.Trace{Name: "random", Span: 200 * time.Second}
	for range rapid.IntRange(0, 60).Draw(t, "arrivals") {
		trace.Arrivals = append(trace.Arrivals, scalesim.Arrival{At: second("at", 199), Service: second("service", 60) + time.Second,
			Context: int32(rapid.IntRange(0, 50).Draw(t, "context")), Generated: int32(rapid.IntRange(0, 50).Draw(t, "generated"))})
	}
	slices.SortStableFunc(trace.Arrivals, func(a, b scalesim.Arrival) int { return int(a.At - b.At) })
	return trace
}

// TestAgainstReference runs random traces and decisions through both simulations, and
// compares all that a policy sees and all that is scored. Requests that end at the same
// instant may be told apart only by chance, so that service times are made to differ, also
// where one waited for others: by up to a second at random (of any pattern, sums would meet).
func TestAgainstReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		trace := genTrace(t)
		for i := range trace.Arrivals {
			trace.Arrivals[i].Service += time.Duration(rand.New(rand.NewPCG(1, uint64(i))).Int64N(int64(time.Second)))
		}
		cfg := scalesim.Config{Slots: rapid.IntRange(1, 3).Draw(t, "slots"),
			ColdStart:  time.Duration(rapid.IntRange(0, 40).Draw(t, "cold")) * time.Second,
			Interval:   time.Duration(rapid.IntRange(1, 30).Draw(t, "interval")) * time.Second,
			TargetWait: time.Duration(rapid.IntRange(0, 20).Draw(t, "target")) * time.Second,
			Min:        rapid.IntRange(0, 1).Draw(t, "min"), Max: rapid.IntRange(2, 6).Draw(t, "max"),
			Initial: rapid.IntRange(0, 2).Draw(t, "initial"), KVTokens: int64(rapid.IntRange(0, 1).Draw(t, "kv")) * 200,
			Undrain: rapid.Bool().Draw(t, "undrain")}
		if rapid.Bool().Draw(t, "packed") {
			cfg.Dispatch = scalesim.Packed
		}
		want := rapid.SliceOfN(rapid.IntRange(-1, 7), 1, 30).Draw(t, "want")

		var seen []scalesim.Observation
		policy := &script{want: want, see: func(o *scalesim.Observation) {
			c := *o
			c.PerReplica = slices.Clone(o.PerReplica)
			seen = append(seen, c)
		}}
		got, err := scalesim.Run(cfg, trace, policy)
		require.NoError(t, err)

		ref := &reference{cfg: cfg, trace: trace}
		n := 0
		back := int((time.Minute + cfg.Interval - 1) / cfg.Interval)
		var peakRunning, peakWaiting []int64
		ref.run(func(time.Duration) int {
			n++
			return want[min(n, len(want))-1]
		}, func(now time.Duration) {
			o := seen[n]
			require.Equal(t, now, o.Now)
			require.Equal(t, []int{ref.count(isReady), ref.count(isStarting), ref.count(isDraining), ref.running(), len(ref.queue), ref.desired},
				[]int{o.Ready, o.Starting, o.Draining, o.Running, o.Waiting, o.Desired}, "at %v", now)
			peakRunning = append(peakRunning, int64(max(ref.peakRunning, ref.running())))
			peakWaiting = append(peakWaiting, int64(max(ref.peakWaiting, len(ref.queue))))
			ref.peakRunning, ref.peakWaiting = ref.running(), len(ref.queue)
			require.EqualValues(t, window(peakRunning, back), o.PeakRunning, "at %v", now)
			require.EqualValues(t, window(peakWaiting, back), o.PeakWaiting, "at %v", now)
			require.EqualValues(t, len(ref.began), o.Begun)
			require.EqualValues(t, len(ref.ended), o.Finished)
			waiting, peaks, k := 0, 0, 0
			for _, rep := range ref.reps {
				if !isReady(rep) {
					continue
				}
				v := o.PerReplica[k]
				full := float64(cfg.Slots)
				if cfg.KVTokens > 0 {
					full = float64(cfg.KVTokens)
				}
				require.Equal(t, rep.id, v.ID)
				require.Len(t, rep.requests, v.Running)
				require.InDelta(t, min(1, float64(ref.tokens(rep))/full), v.KV, 1e-12)
				if !cfg.Undrain { // what is seen of a drain is not specified
					rep.peaks = append(rep.peaks, max(rep.peak, ref.tokens(rep)))
					rep.peak = ref.tokens(rep)
					require.InDelta(t, min(1, float64(window(rep.peaks, back))/full), v.PeakKV, 1e-12)
				}
				waiting += v.Waiting
				peaks += v.PeakWaiting
				k++
			}
			require.Len(t, o.PerReplica, k)
			if k > 0 {
				require.Equal(t, o.Waiting, waiting)
				require.Equal(t, o.PeakWaiting, peaks)
			}
		})
		require.Len(t, seen, n)
		late, open, waits := ref.score()
		require.InDelta(t, ref.charged.Hours(), got.GPUHours, 1e-9)
		require.Equal(t, []int{ref.started, ref.cancelled, ref.stopped, ref.acts, ref.decided},
			[]int{got.Started, got.Cancelled, got.Stopped, got.Actions, got.Decisions})
		require.Equal(t, []int64{int64(len(trace.Arrivals)), int64(len(ref.began)), int64(len(ref.ended)), late, open},
			[]int64{got.Requests, got.Begun, got.Finished, got.Late, got.Open})
		for q, p := range map[float64]time.Duration{0.5: got.WaitP50, 0.99: got.WaitP99, 0.999: got.WaitP999, 1: got.WaitMax} {
			exact := quantileOf(waits, q)
			require.GreaterOrEqual(t, p, exact)
			require.LessOrEqual(t, float64(p), 1.01*float64(exact), "quantile %v", q)
		}
	})
}

// TestConservation holds for every run: nothing is lost, the hours add up, and a score that
// begins later is part of the whole.
func TestConservation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		trace := genTrace(t)
		cfg := scalesim.DefaultConfig()
		cfg.Slots, cfg.ColdStart, cfg.ColdStartSpread = 2, 20*time.Second, 0.5
		cfg.Seed = rapid.Uint64().Draw(t, "seed")
		want := rapid.SliceOfN(rapid.IntRange(0, 7), 1, 20).Draw(t, "want")
		var last scalesim.Observation
		whole, err := scalesim.Run(cfg, trace, &script{want: want, see: func(o *scalesim.Observation) { last = *o }})
		require.NoError(t, err)
		require.EqualValues(t, len(trace.Arrivals), whole.Requests)
		require.LessOrEqual(t, whole.Finished, whole.Begun)
		require.LessOrEqual(t, whole.Begun, whole.Requests)
		require.LessOrEqual(t, whole.Late+whole.Open, whole.Requests)
		require.LessOrEqual(t, whole.BusyHours, whole.GPUHours*float64(cfg.Slots)+1e-9)
		require.LessOrEqual(t, last.BusySeconds, whole.BusyHours*3600+1e-6)
		requests, late, hours := int64(0), int64(0), 0.0
		for _, h := range whole.Hours {
			requests, late, hours = requests+h.Requests, late+h.Late, hours+h.GPUHours
		}
		require.Equal(t, whole.Requests, requests)
		require.Equal(t, whole.Late, late)
		require.InDelta(t, whole.GPUHours, hours, 1e-9)

		cfg.ScoreFrom = time.Duration(rapid.IntRange(0, 199).Draw(t, "from")) * time.Second
		part, err := scalesim.Run(cfg, trace, &script{want: want})
		require.NoError(t, err)
		require.EqualValues(t, len(trace.Slice(cfg.ScoreFrom, trace.Span).Arrivals), part.Requests)
		require.LessOrEqual(t, part.GPUHours, whole.GPUHours+1e-9)
		require.LessOrEqual(t, part.Late, whole.Late)
		require.LessOrEqual(t, part.Finished, part.Begun)
		require.GreaterOrEqual(t, whole.GPUHours-part.GPUHours, 0.0)

		again, err := scalesim.Run(cfg, trace, &script{want: want})
		require.NoError(t, err)
		require.Equal(t, part, again)
	})
}
