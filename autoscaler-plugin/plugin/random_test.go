package plugin_test

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/autoscaler-plugin/capacity"
	"remuda/autoscaler-plugin/enginemetrics"
	"remuda/autoscaler-plugin/hpa"
	"remuda/autoscaler-plugin/observe"
	"remuda/autoscaler-plugin/plugin"
	"remuda/internal/testkit/long"
)

// random makes snapshots of what can be observed, and of what cannot be.
type random struct{ *rand.Rand }

func (r random) one(n int) bool { return r.IntN(n) == 0 }

// value is a number as it should be, in eighths so that sums do not depend on their order, or one
// that cannot be.
func (r random) value(most float64) enginemetrics.Value {
	switch r.IntN(24) {
	case 0:
		return enginemetrics.Value{}
	case 1:
		odd := []enginemetrics.Value{enginemetrics.Of(math.NaN()), enginemetrics.Of(math.Inf(1)), enginemetrics.Of(math.Inf(-1)), enginemetrics.Of(-1), enginemetrics.Of(1e300),
			enginemetrics.Flawed(enginemetrics.RankMissing), enginemetrics.Flawed(enginemetrics.Mismatch), enginemetrics.Flawed(enginemetrics.TooLarge)}
		return odd[r.IntN(len(odd))]
	}
	return enginemetrics.Of(float64(r.IntN(9)) / 8 * most)
}

func (r random) snapshot(at time.Time) observe.Snapshot {
	s := observe.Snapshot{Model: "m", At: at, Controlled: !r.one(8), Min: r.IntN(4), Max: r.IntN(12), Management: "full"}
	if r.one(8) {
		s.Management = []string{"disabled", "manual", "upscaling"}[r.IntN(3)]
	}
	s.Stopped, s.ScalingDisabled = r.one(40), r.one(40)
	if r.one(8) {
		s.ScaleToZeroDelay = time.Duration(r.IntN(3600)) * time.Second
	}
	if r.one(30) {
		s.Away = []string{observe.AwayController}
	}
	for i := range 1 + r.IntN(3) {
		v := observe.Variant{Variant: fmt.Sprint("v", i), Cost: r.value(9), Slots: []int{0, 4, 16}[r.IntN(3)], Hot: r.IntN(4), Starting: max(r.IntN(6)-3, 0), Failed: max(r.IntN(8)-6, 0),
			Draining: max(r.IntN(6)-4, 0), Unplaceable: r.one(6), Why: "no place"}
		if f, flaw := v.Cost.Get(); flaw != enginemetrics.None || f > 1e12 {
			v.Cost = enginemetrics.Value{} // the controller's, and not measured
		}
		v.Current = v.Hot + v.Starting + v.Failed
		v.Desired = []int{0, v.Current, r.IntN(5)}[r.IntN(3)]
		v.Min = min(max(r.IntN(5)-3, 0), v.Current)
		s.Variants = append(s.Variants, v)
		for j := range v.Hot + v.Draining {
			e := observe.Engine{Replica: fmt.Sprintf("m:v%d:%d", i, j), Variant: v.Variant, Slots: v.Slots, Draining: j >= v.Hot,
				Class: []enginemetrics.Class{enginemetrics.ClassOK, enginemetrics.ClassOK, enginemetrics.ClassOK, enginemetrics.ClassDuplicate, enginemetrics.ClassStale, enginemetrics.ClassUnknown, enginemetrics.ClassAsleep}[r.IntN(7)],
				KV:    r.value(1), Waiting: r.value(8), Running: r.value(16), KVNow: r.value(1), WaitingNow: r.value(8), RunningNow: r.value(16), InFlight: r.value(16), KVTokens: r.value(65536),
				AgeSeconds: []float64{0, 5, 100}[r.IntN(3)], Rates: observe.Rates{Finished: r.value(4), EndToEnd: r.value(8), Queue: r.value(1)}}
			s.Engines = append(s.Engines, e)
		}
	}
	if r.one(8) {
		s.Rollout = "version 2 of variant v0 (canary)"
	}
	if r.one(8) {
		s.Degraded = "all replicas that serve are pairs without a standby"
	}
	if r.one(2) {
		goal := func(within time.Duration) observe.Goal {
			g := observe.Goal{Within: within, P95: r.value(4 * within.Seconds())}
			if r.one(8) {
				g.Unknown = "replica m:v0:0 is stale"
			}
			return g
		}
		s.Goals = observe.Goals{FirstToken: goal(2 * time.Second), InterToken: goal(50 * time.Millisecond), Settled: r.IntN(6), PromptTokens: r.value(4096), Started: r.value(8)}
	}
	switch r.IntN(6) {
	case 0: // not known
	case 1:
		s.Queue = observe.Queue{Partial: true, Source: observe.FromGateways, Waiting: r.IntN(9), InFlight: r.IntN(9)}
	default:
		s.Queue = observe.Queue{Known: true, Source: observe.FromGateways, At: at, Waiting: max(r.IntN(60)-30, 0), InFlight: max(r.IntN(40)-10, 0), Served: r.value(8),
			Arrived: r.value(1e6), Finished: r.value(1e6), ServedSeconds: r.value(1e6), Refused: r.value(1e3)}
	}
	return s
}

// dark makes nothing known of the load.
func dark(s *observe.Snapshot) {
	s.Queue = observe.Queue{}
	for i := range s.Engines {
		s.Engines[i].Class = enginemetrics.ClassUnknown
	}
	s.Census = enginemetrics.Census{Inert: len(s.Engines) > 0, Why: "nothing is known"}
}

// Whatever is observed, every strategy and every guard answers: within the bounds, the same for
// variants and engines in another order, with numbers that JSON has, and nothing is removed while
// nothing is known of the load. The long form has 10^6 snapshots.
func TestRandomSnapshots(t *testing.T) {
	strategies := []func(observe.Snapshot) plugin.Call{capacityCall, hpaCall, utilizationCall, predictiveCall,
		func(s observe.Snapshot) plugin.Call { return backlogCall(s, func(*hpa.Backlog) {}) },
		func(s observe.Snapshot) plugin.Call {
			c := hpaCall(s)
			c.Options.HPA.Metric, c.Options.HPA.Now = observe.MetricKV, true
			c.Options.HPA.Target = 700
			return c
		},
		func(s observe.Snapshot) plugin.Call {
			c := capacityCall(s)
			c.Options.Capacity.Config.GrowthPercent, c.Options.Capacity.Hold = 100, time.Minute
			return c
		},
		func(s observe.Snapshot) plugin.Call {
			c := capacityCall(s)
			c.Options.Capacity.Rules = capacity.WVA.String()
			return c
		},
	}
	const chain = 10
	for i := range long.Pick(2_000, 1_000_000/chain) {
		r := random{rand.New(rand.NewPCG(7, uint64(i)))}
		of := strategies[i%len(strategies)]
		wva := i%len(strategies) == 7 // upstream removes what does not report
		now := noon
		var state plugin.State
		for range chain {
			now = now.Add(time.Duration(r.IntN(90)) * time.Second)
			s := r.snapshot(now)
			unknown := r.one(5)
			if unknown {
				dark(&s)
			}
			call := of(s)
			call.Now, call.State = now.UnixNano(), state
			call.Options.ScaleToZero, call.Options.UnplaceableHold = r.one(2), time.Duration(r.IntN(3))*time.Minute
			call.Usage, call.Forecast, call.Refused = r.value(6000), r.value(6000), r.value(60)
			if unknown {
				call.Usage, call.Refused = enginemetrics.Value{}, enginemetrics.Value{}
			}
			other := call
			other.Snapshot.Variants, other.Snapshot.Engines = slices.Clone(s.Variants), slices.Clone(s.Engines)
			r.Shuffle(len(s.Variants), func(a, b int) {
				v := other.Snapshot.Variants
				v[a], v[b] = v[b], v[a]
			})
			r.Shuffle(len(s.Engines), func(a, b int) {
				e := other.Snapshot.Engines
				e[a], e[b] = e[b], e[a]
			})
			a, after := call.Decide()
			b, afterB := other.Decide()
			text := func(v any) string {
				raw, err := json.Marshal(v)
				require.NoError(t, err, "chain %d", i)
				return string(raw)
			}
			where := fmt.Sprintf("chain %d: %s", i, a.Reason)
			require.Equal(t, text(a), text(b), where)
			require.Equal(t, text(after), text(afterB), where)
			require.NoError(t, after.Validate(), where)
			state = after

			require.NotEmpty(t, a.Reason, where)
			sum, current := 0, s.Current()
			for _, v := range s.Variants {
				n, ok := a.Targets[v.Variant]
				require.True(t, ok, where)
				sum += n
				require.GreaterOrEqual(t, n, v.Min, where)
				if v.Unplaceable {
					require.LessOrEqual(t, n, v.Current, where)
				}
			}
			require.Len(t, a.Targets, len(s.Variants), where)
			require.Equal(t, sum, a.Count, where)
			low, high := 0, math.MaxInt32
			if s.Controlled {
				low, high = s.Min, s.Max
			}
			switch {
			case sum > current:
				require.Equal(t, plugin.Up, a.Direction, where)
				require.LessOrEqual(t, sum, high, where)
			case sum < current:
				require.Equal(t, plugin.Down, a.Direction, where)
				require.GreaterOrEqual(t, sum, min(low, high), where)
				require.Empty(t, s.Hold(), where)
				require.NotEqual(t, "upscaling", s.Management, where)
				require.False(t, s.Queue.Partial, where)
				require.Empty(t, s.Rollout, where)
				require.True(t, s.Degraded == "" || sum == 0, where)
				if call.Options.Capacity != nil || call.Options.Predictive != nil {
					p95, flaw := s.Goals.FirstToken.P95.Get()
					missed := p95 > 2 || s.Goals.FirstToken.Unknown != "" || flaw != enginemetrics.None && flaw != enginemetrics.Absent
					require.False(t, missed && sum > 0 && current <= high, where)
				}
				if unknown && !wva {
					require.Greater(t, current, high, where)
				}
			default:
				require.Equal(t, plugin.None, a.Direction, where)
			}
		}
	}
}
