package observe_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/autoscaler-plugin/capacity"
	"remuda/autoscaler-plugin/enginemetrics"
	"remuda/autoscaler-plugin/hpa"
	"remuda/autoscaler-plugin/observe"
	"remuda/autoscaler-plugin/utilization"
)

func bounds(in capacity.Input) map[string][2]int {
	out := map[string][2]int{}
	for _, v := range in.Variants {
		out[v.Variant] = [2]int{*v.Min, *v.Max}
	}
	return out
}

func TestCapacityOfAControlledModel(t *testing.T) {
	w := two()
	s := w.see(t, observe.Target{Model: "llama"})
	in := s.Capacity(capacity.Safe, capacity.Config{})
	require.NoError(t, in.Validate(capacity.Safe))
	require.Equal(t, capacity.DefaultConfig(), in.Config)
	require.Equal(t, "llama", in.Model)
	require.Equal(t, capacity.Replica{Replica: "llama:a100:1", Variant: "a100", Accelerator: "A100", KVCacheUsage: enginemetrics.Of(0.625),
		QueueLength: enginemetrics.Of(3), AgeSeconds: 2}, in.Replicas[0], "10 of 16 slots; 1 waits in it and 4 in gateways")
	require.Equal(t, 1, *in.Variants[0].Pending)
	// One of three may go and five may come, whichever variant it is.
	require.Equal(t, map[string][2]int{"a100": {1, 8}, "l4": {0, 5}}, bounds(in))

	a, err := capacity.Explain(capacity.Safe, in)
	require.NoError(t, err)
	require.Equal(t, 2, a.NonSaturated)
}

func TestCapacityGrowsTheCheapestThatCanBePlaced(t *testing.T) {
	w := two()
	for i := range w.report.Engines {
		w.report.Engines[i].View = view(w.report.Engines[i].View.Replica, 0.95, 8, 16)
	}
	answer := func() capacity.Answer {
		a, err := capacity.Explain(capacity.Safe, w.see(t, llama).Capacity(capacity.Safe, capacity.Config{}))
		require.NoError(t, err)
		return a
	}
	require.Equal(t, 1, answer().Decisions["l4"].Target)
	w.managed.Variants[1].Unplaceable = true
	require.Equal(t, 0, answer().Decisions["l4"].Target)
	w.managed.Variants[1].Unplaceable, w.managed.Max = false, 3
	require.Equal(t, 0, answer().Decisions["l4"].Target, "the model is at its max")
}

func TestCapacityRemovesNothingWhileAReplicaIsUnknown(t *testing.T) {
	idle := func(w *world) {
		w.managed.Queue.Waiting = 0
		for i := range w.report.Engines {
			w.report.Engines[i].View = view(w.report.Engines[i].View.Replica, 0.01, 0, 0)
		}
	}
	for name, c := range map[string]struct {
		change func(*world)
		want   int
	}{
		"all are known": {func(*world) {}, 2},
		"one is stale":  {func(w *world) { w.report.Engines[0].View.Class = enginemetrics.ClassStale }, 3},
		"one is asleep": {func(w *world) { w.report.Engines[0].View.Class = enginemetrics.ClassAsleep }, 3},
		"one failed":    {func(w *world) { w.managed.Variants[0].Starting, w.managed.Variants[0].Failed = 0, 1 }, 3},
		"consul is away": {func(w *world) {
			w.report, w.reportErr = observe.Report{}, errAway
		}, 3},
		"a drain that nobody sees": {func(w *world) { w.managed.Variants[0].Draining = 1 }, 3},
		"a drain that gateways see": {func(w *world) {
			w.managed.Variants[0].Draining = 1
			w.managed.Copies = append(w.managed.Copies, observe.Copy{Replica: "llama:a100:4", Variant: "a100", Phase: observe.Draining, Slots: 16, InFlight: enginemetrics.Of(1)})
		}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			w := two()
			idle(w)
			c.change(w)
			a, err := capacity.Explain(capacity.Safe, w.see(t, llama).Capacity(capacity.Safe, capacity.Config{}))
			require.NoError(t, err)
			require.Equal(t, c.want, a.Decisions["a100"].Target, a.Decisions["a100"].Reason)
		})
	}
}

func TestCapacityOfEnginesWithoutKVUsage(t *testing.T) {
	w := two()
	v := view("llama:a100:1", 0, 2, 12)
	v.KVUsage, v.Last.KVUsage, v.Last.Dialect = enginemetrics.Value{}, enginemetrics.Value{}, "tgi"
	w.report.Engines[0].View = v
	in := w.see(t, llama).Capacity(capacity.Safe, capacity.Config{})
	require.Equal(t, enginemetrics.Of(0.75), in.Replicas[0].KVCacheUsage, "12 of 16 slots")
	require.Equal(t, enginemetrics.Of(4), in.Replicas[0].QueueLength)
	require.True(t, in.Replicas[0].KVCapacity.IsZero() && in.Replicas[1].KVCapacity.IsZero(), "sizes are not in one unit")
}

// A replica that came up a moment ago is not seen by its metrics yet: what it takes of the
// load is not asked for again. One that is never seen does not hold growth back for ever.
func TestCapacityCountsTheNewAsPending(t *testing.T) {
	for name, c := range map[string]struct {
		since time.Time
		seen  bool
		want  int
	}{
		"new":                           {epoch.Add(-5 * time.Second), false, 1},
		"not new any more":              {epoch.Add(-observe.NewFor), false, 0},
		"new, by a clock that is ahead": {epoch.Add(5 * time.Second), false, 1},
		"a clock that is far ahead":     {epoch.Add(time.Hour), false, 0},
		"nobody knows since when":       {time.Time{}, false, 0},
		"new, and reported":             {epoch.Add(-5 * time.Second), true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := two()
			w.managed.Variants[0].Starting, w.managed.Variants[0].Hot = 0, 3
			w.managed.Copies[2] = observe.Copy{Replica: "llama:a100:3", Variant: "a100", Phase: observe.Hot, Since: c.since}
			if c.seen {
				w.report.Engines = append(w.report.Engines, reported("a100", view("llama:a100:3", 0.9, 9, 16)))
			}
			in := w.see(t, llama).Capacity(capacity.Safe, capacity.Config{})
			require.Equal(t, c.want, *in.Variants[0].Pending)
		})
	}
}

// Gateways send an engine no more than it has slots: what is too much waits with them.
// The upstream rules get what an engine reports of itself, and nothing of its slots or of what
// waits in gateways.
func TestCapacityAsUpstreamHasIt(t *testing.T) {
	w := two()
	w.managed.Queue.Waiting = 100
	in := w.see(t, llama).Capacity(capacity.WVA, capacity.Config{})
	require.Equal(t, []enginemetrics.Value{enginemetrics.Of(0.5), enginemetrics.Of(0.7)}, []enginemetrics.Value{in.Replicas[0].KVCacheUsage, in.Replicas[1].KVCacheUsage})
	require.Equal(t, []enginemetrics.Value{enginemetrics.Of(1), enginemetrics.Of(0)}, []enginemetrics.Value{in.Replicas[0].QueueLength, in.Replicas[1].QueueLength})
}

func TestCapacityBehindGateways(t *testing.T) {
	full := func(w *world, kv float64) {
		for i := range w.report.Engines {
			w.report.Engines[i].View = view(w.report.Engines[i].View.Replica, kv, 0, 16)
		}
	}
	for name, c := range map[string]struct {
		change func(*world)
		grows  bool
		kv     float64
		sized  bool
	}{
		"slots are full and KV memory is not": {func(w *world) { full(w, 0.2) }, true, 1, false},
		"KV memory fills first": {func(w *world) {
			for i := range w.report.Engines {
				w.report.Engines[i].View = view(w.report.Engines[i].View.Replica, 0.9, 0, 4)
			}
		}, true, 0.9, true},
		"a queue alone": {func(w *world) {
			w.managed.Queue.Waiting = 20
			for i := range w.report.Engines {
				w.report.Engines[i].View = view(w.report.Engines[i].View.Replica, 0.1, 0, 1)
			}
		}, true, 0.1, true},
		"neither": {func(w *world) {
			w.managed.Queue.Waiting = 0
			for i := range w.report.Engines {
				w.report.Engines[i].View = view(w.report.Engines[i].View.Replica, 0.2, 0, 2)
			}
		}, false, 0.2, true},
		"a KV usage that cannot be": {func(w *world) { full(w, math.NaN()) }, false, math.NaN(), true},
	} {
		t.Run(name, func(t *testing.T) {
			w := two()
			w.managed.Variants[0].Starting, w.managed.Variants[0].Current = 0, 2
			w.managed.Copies = w.managed.Copies[:2]
			c.change(w)
			in := w.see(t, llama).Capacity(capacity.Safe, capacity.Config{})
			kv, flaw := in.Replicas[0].KVCacheUsage.Get()
			if math.IsNaN(c.kv) {
				require.NotEqual(t, enginemetrics.None, flaw)
			} else {
				require.Equal(t, c.kv, kv)
			}
			require.Equal(t, c.sized, !in.Replicas[0].KVCapacity.IsZero())
			a, err := capacity.Explain(capacity.Safe, in)
			require.NoError(t, err)
			require.Equal(t, c.grows, a.Decisions["l4"].Target > 0, a.Decisions["l4"].Reason)
		})
	}
}

func TestCapacityOfPlainJobGroups(t *testing.T) {
	w := &world{report: observe.Report{Engines: []observe.Reported{reported("a", view("x1", 0.5, 1, 10))}}}
	in := w.see(t, observe.Target{Model: "llama", Group: &observe.JobGroup{Variant: "a", Cost: 2, Count: 3}}).Capacity(capacity.Safe, capacity.Config{})
	require.NoError(t, in.Validate(capacity.Safe))
	require.Nil(t, in.Variants[0].Pending, "nobody knows what the others do")
	require.Nil(t, in.Variants[0].Max)
	require.Zero(t, *in.Variants[0].Min)
	require.Equal(t, 3, in.Variants[0].Current)
}

func TestMeasured(t *testing.T) {
	w := two()
	w.managed.Variants[0].Hot, w.managed.Variants[0].Current = 3, 5
	w.managed.Copies = append(w.managed.Copies, hot("llama:a100:7", "a100"))
	s := w.see(t, llama)
	for m, want := range map[observe.Metric][]hpa.Milli{
		observe.MetricKV: {500, 700}, observe.MetricRunning: {10_000, 12_000}, observe.MetricWaiting: {1000, 0},
	} {
		got := s.Measured(m, false, 800, hpa.DefaultTolerance())
		require.Equal(t, 5, got.Current)
		require.Equal(t, []hpa.Replica{{Value: want[0]}, {Value: want[1]}, {Condition: hpa.Missing}, {Condition: hpa.Unready}, {Condition: hpa.Unready}}, got.Replicas, string(m))
	}
	for i := range s.Engines {
		s.Engines[i].KVNow = enginemetrics.Of(0.1)
	}
	require.Equal(t, hpa.Milli(100), s.Measured(observe.MetricKV, true, 800, hpa.DefaultTolerance()).Replicas[0].Value, "now and not at the peak")
	require.False(t, s.Measured(observe.MetricKV, false, 800, hpa.DefaultTolerance()).Desired().Unknown)
}

func TestAverageAndBacklog(t *testing.T) {
	w := two()
	s := w.see(t, llama)
	a, why := s.Average(1000, hpa.DefaultTolerance())
	require.Empty(t, why)
	require.Equal(t, hpa.Average{Current: 3, Value: 4000, Target: 1000, Tolerance: hpa.DefaultTolerance()}, a)
	require.Equal(t, 4, a.Desired().Replicas)
	require.Equal(t, hpa.Observed{Current: 3, Ready: 2, Queue: 4, Running: 20}, s.Backlog(false))
	require.Equal(t, int64(24), s.Backlog(true).Queue)

	w.managed.Queue = observe.Queue{}
	w.report = observe.Report{}
	s = w.see(t, llama)
	_, why = s.Average(1000, hpa.DefaultTolerance())
	require.Contains(t, why, "no gateway")
	require.Equal(t, why, s.Backlog(true).Unknown)
}

func TestParseMetric(t *testing.T) {
	for _, name := range []string{"queue", "running", "kv", "waiting"} {
		m, err := observe.ParseMetric(name)
		require.NoError(t, err)
		require.Equal(t, name, string(m))
	}
	_, err := observe.ParseMetric("cpu")
	require.ErrorContains(t, err, "queue, running, kv, waiting")
}

func TestUtilization(t *testing.T) {
	w := two()
	in := w.see(t, llama).Utilization()
	require.Equal(t, utilization.Input{Model: "llama", Now: epoch, Requested: 3, Healthy: in.Healthy, Starting: 1,
		RequestsPerMinute: enginemetrics.Of(180), SuccessfulPerMinute: enginemetrics.Of(180),
		InferenceSecondsPerMinute: enginemetrics.Of(2 * 60 * 2 * 4), // two engines, 2/s each, 5 s of which 1 s waiting
		Utilization:               enginemetrics.Of(22.0 / 32)}, in)
	require.Equal(t, 2, *in.Healthy)

	w.report.Engines = w.report.Engines[:1]
	in = w.see(t, llama).Utilization()
	require.Equal(t, enginemetrics.Of(1200), in.InferenceSecondsPerMinute, "20 requests in flight, as gateways say")
	require.True(t, in.Utilization.IsZero())

	w.managed.Queue = observe.Queue{}
	in = w.see(t, llama).Utilization()
	require.True(t, in.InferenceSecondsPerMinute.IsZero())
	require.True(t, in.RequestsPerMinute.IsZero())
}

// TestAnySnapshotConverts: whatever the sources say, the analyzer can read the input, and
// its answer stays within the model's bounds.
func TestAnySnapshotConverts(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		m := observe.Managed{Snapshot: observe.Snapshot{Min: rapid.IntRange(0, 3).Draw(r, "min"), Management: "full"}}
		m.Max = m.Min + rapid.IntRange(0, 6).Draw(r, "room")
		w := &world{managed: &m}
		value := func(label string) enginemetrics.Value {
			return rapid.SampledFrom([]enginemetrics.Value{{}, enginemetrics.Of(0), enginemetrics.Of(0.3), enginemetrics.Of(0.85), enginemetrics.Of(1), enginemetrics.Flawed(enginemetrics.NotANumber), enginemetrics.Flawed(enginemetrics.Mismatch)}).Draw(r, label)
		}
		for v := range rapid.IntRange(1, 3).Draw(r, "variants") {
			name := fmt.Sprintf("v%d", v)
			one := observe.Variant{Variant: name, Slots: rapid.IntRange(0, 4).Draw(r, "slots"), Unplaceable: rapid.Bool().Draw(r, "unplaceable")}
			for i := range rapid.IntRange(0, 4).Draw(r, "copies") {
				c := observe.Copy{Replica: fmt.Sprintf("llama:%s:%d", name, i), Variant: name, Phase: rapid.SampledFrom([]observe.Phase{observe.Hot, observe.Starting, observe.Draining}).Draw(r, "phase")}
				switch c.Phase {
				case observe.Hot:
					one.Hot++
				case observe.Starting:
					one.Starting++
				default:
					one.Draining++
				}
				m.Copies = append(m.Copies, c)
				if rapid.Bool().Draw(r, "reported") {
					class := rapid.SampledFrom([]enginemetrics.Class{enginemetrics.ClassOK, enginemetrics.ClassStale, enginemetrics.ClassUnknown, enginemetrics.ClassDuplicate}).Draw(r, "class")
					v := enginemetrics.View{Replica: c.Replica, Class: class, KVUsage: value("kv"), Waiting: value("waiting"), Running: value("running")}
					w.report.Engines = append(w.report.Engines, observe.Reported{View: v, Variant: name, Slots: one.Slots})
				}
			}
			one.Current = one.Hot + one.Starting
			m.Variants = append(m.Variants, one)
		}
		o, err := observe.New(observe.Config{Controller: w, Metrics: w})
		require.NoError(r, err)
		s, err := o.Observe(t.Context(), llama)
		require.NoError(r, err)
		in := s.Capacity(capacity.Safe, capacity.Config{})
		require.NoError(r, in.Validate(capacity.Safe))
		a, err := capacity.Explain(capacity.Safe, in)
		require.NoError(r, err)
		total := 0
		for _, d := range a.Decisions {
			total += d.Target
		}
		require.LessOrEqual(r, total, max(m.Max, s.Current()), "never above max by its own doing")
		require.GreaterOrEqual(r, total, min(m.Min, s.Current()), "never below min by its own doing")
		require.NotNil(r, s.Measured(observe.MetricKV, false, 800, hpa.DefaultTolerance()).Replicas)
		require.NoError(r, utilization.DefaultConfig().Validate())
		require.Equal(r, "llama", utilization.Decide(utilization.DefaultConfig(), s.Utilization()).Model)
	})
}
