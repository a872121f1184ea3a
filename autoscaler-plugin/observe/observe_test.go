package observe_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/autoscaler-plugin/capacity"
	"remuda/autoscaler-plugin/enginemetrics"
	"remuda/autoscaler-plugin/observe"
)

func TestAControlledModel(t *testing.T) {
	w := two()
	s := w.see(t, observe.Target{Model: "llama", Group: &observe.JobGroup{Variant: "unused"}})
	require.Equal(t, []string{"llama:a100:1", "llama:a100:2", "llama:a100:3"}, w.asked.Replicas)
	require.Nil(t, w.asked.Group)
	require.Equal(t, "vllm", w.asked.Dialects["a100"])
	require.True(t, s.Controlled)
	require.Equal(t, uint64(77), s.ModifyIndex)
	require.Equal(t, []int{1, 8}, []int{s.Min, s.Max})
	require.Equal(t, []int{3, 2, 1}, []int{s.Current(), s.HotCount(), s.StartingCount()})
	require.Empty(t, s.Findings)
	require.Empty(t, s.Away)
	require.Empty(t, s.Hold())
	require.Equal(t, 2, s.Census.OK)
	require.Len(t, s.Engines, 2)
	require.Equal(t, observe.Engine{Replica: "llama:a100:1", Variant: "a100", Slots: 16, Class: enginemetrics.ClassOK, Dialect: "vllm",
		KV: enginemetrics.Of(0.5), Waiting: enginemetrics.Of(1), Running: enginemetrics.Of(10), KVNow: enginemetrics.Of(0.5), WaitingNow: enginemetrics.Of(1), RunningNow: enginemetrics.Of(10),
		KVTokens: enginemetrics.Of(65536), AgeSeconds: 2,
		Rates: observe.Rates{Finished: enginemetrics.Of(2), EndToEnd: enginemetrics.Of(5), Queue: enginemetrics.Of(1)}}, s.Engines[0])
	require.Equal(t, 3*time.Second, s.At.Sub(s.Queue.Oldest))
}

func TestTheOrderOfTheAnswersDoesNotMatter(t *testing.T) {
	w := two()
	w.report.Engines = append(w.report.Engines, reported("l4", view("llama:l4:9", 0.1, 0, 1)))
	first := w.see(t, llama)
	slices.Reverse(w.managed.Copies)
	slices.Reverse(w.report.Engines)
	require.Equal(t, first, w.see(t, llama))
}

func TestASnapshotSurvivesJSON(t *testing.T) {
	w := two()
	v := view("llama:a100:2", 0.7, 0, 12)
	v.KVUsage, v.Class, v.Why = enginemetrics.Flawed(enginemetrics.AboveOne), enginemetrics.ClassUnknown, "kv_usage is bad: above_one"
	w.report.Engines[1].View = v
	w.report.Findings = []enginemetrics.Finding{{Kind: enginemetrics.LabelMismatch, Want: []string{"llama"}, Seen: []string{"other"}}}
	s := w.see(t, llama)
	text, err := json.Marshal(s)
	require.NoError(t, err)
	var back observe.Snapshot
	require.NoError(t, json.Unmarshal(text, &back))
	again, err := json.Marshal(back)
	require.NoError(t, err)
	require.JSONEq(t, string(text), string(again))
	require.Equal(t, s.At, back.At)
	require.True(t, back.Engines[1].KV.Raw() != back.Engines[1].KV.Raw(), "a value that cannot be stays one")
	require.Equal(t, s.Census, back.Census)
	require.Equal(t, s.Queue, back.Queue)
}

func TestReplicasThatShouldServeAndAreNotReported(t *testing.T) {
	w := two()
	w.report.Engines = w.report.Engines[:1]
	s := w.see(t, llama)
	require.Len(t, s.Engines, 2)
	require.Equal(t, enginemetrics.ClassUnknown, s.Engines[1].Class)
	require.False(t, s.Census.Inert)

	w.report.Engines = nil
	s = w.see(t, llama)
	require.True(t, s.Census.Inert)
	require.Contains(t, strings.Join(s.Findings, "\n"), "the policy is inert")
}

func TestAnEngineThatHasJustComeUpCounts(t *testing.T) {
	w := two()
	w.report.Engines = append(w.report.Engines, reported("a100", view("llama:a100:3", 0.1, 0, 1)))
	require.Len(t, w.see(t, llama).Engines, 3)
	w.report.Engines[2].Gone = true
	s := w.see(t, llama)
	require.Len(t, s.Engines, 2, "one that is only remembered has not come up")
	require.Zero(t, s.Census.Gone)
}

func TestWhatTheControllerDoesNotKnowIsGone(t *testing.T) {
	w := two()
	w.report.Engines = append(w.report.Engines, reported("a100", view("llama:a100:dead", 0.9, 9, 1)))
	s := w.see(t, llama)
	require.Len(t, s.Engines, 2)
	require.Equal(t, 1, s.Census.Gone)
}

func TestDraining(t *testing.T) {
	w := two()
	w.managed.Variants[0].Draining = 2
	w.managed.Copies = append(w.managed.Copies,
		observe.Copy{Replica: "llama:a100:4", Variant: "a100", Phase: observe.Draining, Slots: 16, InFlight: enginemetrics.Of(4)},
		observe.Copy{Replica: "llama:a100:5", Variant: "a100", Phase: observe.Draining})
	s := w.see(t, llama)
	require.Len(t, s.Engines, 4)
	four, five := s.Engines[2], s.Engines[3]
	require.True(t, four.Draining && five.Draining)
	require.Equal(t, enginemetrics.ClassOK, four.Class, "gateways say what it still has")
	require.True(t, four.BySlots)
	require.Equal(t, enginemetrics.Of(4), four.Running)
	require.Equal(t, enginemetrics.ClassUnknown, five.Class)
	require.Equal(t, 2, s.Census.OK, "those that drain are no part of the census")
}

func TestSlotsStandInForEnginesWithoutMetrics(t *testing.T) {
	silent := enginemetrics.View{Replica: "llama:a100:1", Class: enginemetrics.ClassUnknown, Why: "engines of dialect ollama show no metrics",
		Last: enginemetrics.Sample{Dialect: "ollama", Findings: []enginemetrics.Finding{{Kind: enginemetrics.NoMetrics, Want: []string{"ollama"}}}}}
	for name, c := range map[string]struct {
		inFlight         enginemetrics.Value
		slots            int
		running, waiting float64
		class            enginemetrics.Class
	}{
		"idle":             {enginemetrics.Of(0), 4, 0, 0, enginemetrics.ClassOK},
		"busy":             {enginemetrics.Of(3), 4, 3, 0, enginemetrics.ClassOK},
		"more than fits":   {enginemetrics.Of(7), 4, 4, 3, enginemetrics.ClassOK},
		"nobody tells":     {enginemetrics.Value{}, 4, 0, 0, enginemetrics.ClassUnknown},
		"slots are hidden": {enginemetrics.Of(3), 0, 0, 0, enginemetrics.ClassUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{managed: &observe.Managed{Snapshot: observe.Snapshot{Max: 4, Variants: []observe.Variant{{Variant: "a100", Dialect: "ollama", Current: 1, Hot: 1}}},
				Copies: []observe.Copy{{Replica: "llama:a100:1", Variant: "a100", Phase: observe.Hot, InFlight: c.inFlight}}},
				report: observe.Report{Engines: []observe.Reported{{View: silent, Variant: "a100", Slots: c.slots}}}}
			s := w.see(t, llama)
			require.Equal(t, c.class, s.Engines[0].Class)
			require.Equal(t, c.class != enginemetrics.ClassOK, s.Census.Inert)
			if c.class == enginemetrics.ClassOK {
				require.True(t, s.Engines[0].BySlots)
				require.Equal(t, c.running, s.Engines[0].Running.Raw())
				require.Equal(t, c.waiting, s.Engines[0].Waiting.Raw())
				require.Empty(t, s.Findings)
			}
		})
	}
}

func TestAnEngineWithMetricsThatCannotBeReadStaysUnknown(t *testing.T) {
	w := two()
	w.managed.Copies[0].InFlight = enginemetrics.Of(3)
	w.report.Engines[1].View = enginemetrics.View{Replica: "llama:a100:2", Class: enginemetrics.ClassUnknown, Why: "read metrics: refused"}
	s := w.see(t, llama)
	require.Equal(t, enginemetrics.ClassUnknown, s.Engines[1].Class)
	require.False(t, s.Engines[1].BySlots)
}

func TestSourcesThatAreAway(t *testing.T) {
	t.Run("metrics", func(t *testing.T) {
		w := two()
		w.report, w.reportErr = observe.Report{}, errAway
		s := w.see(t, llama)
		require.Equal(t, []string{"consul"}, s.Away)
		require.Empty(t, s.Hold(), "each strategy deals with unknown engines")
		require.True(t, s.Census.Inert)
		require.Contains(t, s.Findings[0], "no route to host")
	})
	t.Run("controller", func(t *testing.T) {
		w := two()
		w.controllerErr = errAway
		s := w.see(t, llama)
		require.Equal(t, []string{"controller"}, s.Away)
		require.False(t, s.Controlled)
		require.Contains(t, s.Hold(), "controller did not answer")
		require.Len(t, s.Engines, 2)
	})
	t.Run("both", func(t *testing.T) {
		w := two()
		w.controllerErr, w.reportErr = errAway, errAway
		_, err := w.observer(t).Observe(t.Context(), llama)
		require.ErrorIs(t, err, errAway)
		require.ErrorContains(t, err, `model "llama"`)
	})
	t.Run("no controller and no metrics", func(t *testing.T) {
		w := &world{reportErr: errAway}
		_, err := w.observer(t).Observe(t.Context(), llama)
		require.ErrorIs(t, err, errAway)
	})
}

func TestWhoMayNotScale(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*observe.Managed)
		want   string
	}{
		"full":      {func(*observe.Managed) {}, ""},
		"upscaling": {func(m *observe.Managed) { m.Management = "upscaling" }, ""},
		"manual":    {func(m *observe.Managed) { m.Management = "manual" }, "it is not scaled automatically"},
		"disabled":  {func(m *observe.Managed) { m.Management = "disabled" }, "it is not scaled automatically"},
		"stopped":   {func(m *observe.Managed) { m.Stopped = true }, "stopped"},
	} {
		t.Run(name, func(t *testing.T) {
			w := two()
			c.change(w.managed)
			if hold := w.see(t, llama).Hold(); c.want == "" {
				require.Empty(t, hold)
			} else {
				require.Contains(t, hold, c.want)
			}
		})
	}
}

func TestPlainJobGroups(t *testing.T) {
	w := &world{report: observe.Report{
		Engines:    []observe.Reported{reported("a100", view("x1", 0.5, 1, 10)), reported("seen", view("x2", 0.2, 2, 3)), {View: view("x3", 1, 1, 1), Variant: "a100", Gone: true}},
		NotPassing: map[string]int{"seen": 1, "l4": 2},
	}}
	s := w.see(t, observe.Target{Model: "llama", Dialect: "vllm", Group: &observe.JobGroup{Variant: "a100", Cost: 20, Count: 4}})
	require.False(t, s.Controlled)
	require.Empty(t, s.Hold())
	require.Nil(t, w.asked.Replicas)
	require.Equal(t, "a100", w.asked.Group.Variant)
	require.Equal(t, []observe.Variant{
		{Variant: "a100", Cost: enginemetrics.Of(20), Dialect: "vllm", Slots: 16, Current: 4, Hot: 1, Starting: 3},
	}, s.Variants, "other groups have policies of their own: counted here, their replicas would be ordered again")
	require.Len(t, s.Engines, 1)
	require.Equal(t, 1, s.Census.Gone)
	require.Equal(t, observe.Queue{Known: true, Source: observe.FromEngines, Waiting: 1, InFlight: 10, Served: enginemetrics.Of(2)}, s.Queue)
	require.Contains(t, s.Findings, `the policy names the job group "a100": engines of "seen" are ignored`)
	require.Len(t, w.report.Engines, 3, "the source's own answer is not written to")
	require.Len(t, w.report.NotPassing, 2)

	s = w.see(t, llama)
	require.Equal(t, []observe.Variant{{Variant: "a100", Slots: 16, Current: 1, Hot: 1}, {Variant: "l4", Current: 2, Starting: 2},
		{Variant: "seen", Slots: 16, Current: 2, Hot: 1, Starting: 1}}, s.Variants, "who names no groups sees all")
	require.Equal(t, 3, s.Queue.Waiting)
}

func TestOneJobGroupWithoutAName(t *testing.T) {
	w := &world{report: observe.Report{
		Engines:    []observe.Reported{reported("h100", view("x1", 0.5, 1, 10)), reported("l4", view("x2", 0.2, 2, 3))},
		NotPassing: map[string]int{"l4": 1},
	}}
	target := observe.Target{Model: "llama", Group: &observe.JobGroup{Variant: observe.DefaultVariant, Count: 3}}
	s := w.see(t, target)
	require.Equal(t, []observe.Variant{{Variant: observe.DefaultVariant, Slots: 16, Current: 3, Hot: 2, Starting: 1}}, s.Variants)
	require.Equal(t, observe.DefaultVariant, s.Engines[0].Variant)
	require.Equal(t, "h100", w.report.Engines[0].Variant, "the source's own answer is not written to")
	target.Group.Count = 1
	require.Equal(t, []int{1, 1, 0}, []int{w.see(t, target).Current(), w.see(t, target).HotCount(), w.see(t, target).StartingCount()}, "the others are on their way out")
}

func TestTheQueueOfEnginesIsKnownOnlyIfAllAre(t *testing.T) {
	w := &world{report: observe.Report{Engines: []observe.Reported{reported("a", view("x1", 0.5, 1, 10)), reported("a", view("x2", 0.5, 1, 10))}}}
	w.report.Engines[1].View.Class = enginemetrics.ClassStale
	require.False(t, w.see(t, llama).Queue.Known)
	w.report.Engines = nil
	require.False(t, w.see(t, llama).Queue.Known, "who waits while nothing runs is elsewhere")
}

func TestBadTargetsAreNamedAtOnce(t *testing.T) {
	target := observe.Target{Dialect: "cobol", Group: &observe.JobGroup{Cost: -1, Count: -1, Slots: -1}}
	_, err := two().observer(t).Observe(t.Context(), target)
	for _, part := range []string{"model is empty", `"cobol"`, "variant is empty", "cost is -1", "count is -1", "slots is -1"} {
		require.ErrorContains(t, err, part)
	}
}

func TestNewWantsASource(t *testing.T) {
	_, err := observe.New(observe.Config{})
	require.Error(t, err)
}

func TestAControllerAloneWillDo(t *testing.T) {
	w := two()
	o, err := observe.New(observe.Config{Controller: w})
	require.NoError(t, err)
	s, err := o.Observe(t.Context(), llama)
	require.NoError(t, err)
	require.Len(t, s.Engines, 2)
	require.Equal(t, 2, s.Census.Unknown)
	w.managed = nil
	_, err = o.Observe(t.Context(), llama)
	require.ErrorIs(t, err, observe.ErrUnknownModel)
}

func TestMissingSeriesAreNoAlarmWhereNothingShouldBeThere(t *testing.T) {
	mismatch := []enginemetrics.Finding{{Kind: enginemetrics.LabelMismatch, Want: []string{"llama"}, Seen: []string{"mistral"}}, {Kind: enginemetrics.NoSeries, Want: []string{"vllm"}}}
	plain := func(count int) observe.Target {
		return observe.Target{Model: "llama", Group: &observe.JobGroup{Variant: "a", Count: count}}
	}
	for name, c := range map[string]struct {
		world  *world
		target observe.Target
		alarm  bool
	}{
		"all report":            {two(), llama, false},
		"one does not":          {func() *world { w := two(); w.report.Engines = w.report.Engines[:1]; return w }(), llama, true},
		"no replica serves":     {&world{managed: &observe.Managed{Snapshot: observe.Snapshot{Variants: []observe.Variant{{Variant: "a"}}}}}, llama, false},
		"a group without any":   {&world{}, plain(0), false},
		"a group with one":      {&world{}, plain(1), true},
		"nobody tells anything": {&world{}, llama, true},
	} {
		t.Run(name, func(t *testing.T) {
			c.world.report.Findings = mismatch
			s := c.world.see(t, c.target)
			require.Equal(t, c.alarm, len(s.Census.Findings) == 2)
			require.Equal(t, c.alarm, strings.Contains(strings.Join(s.Findings, "\n"), "label mismatch"))
		})
	}
}

func BenchmarkObserve(b *testing.B) {
	w := two()
	for i := range 20 {
		name := fmt.Sprintf("llama:l4:%d", i)
		w.managed.Copies = append(w.managed.Copies, hot(name, "l4"))
		w.report.Engines = append(w.report.Engines, reported("l4", view(name, 0.5, 1, 4)))
	}
	w.managed.Variants[1].Hot, w.managed.Variants[1].Current = 20, 20
	o := w.observer(b)
	b.ReportAllocs()
	for b.Loop() {
		s, err := o.Observe(b.Context(), llama)
		if err != nil || len(s.Engines) != 22 {
			b.Fatal(err, len(s.Engines))
		}
		if in := s.Capacity(capacity.Safe, capacity.Config{}); len(in.Replicas) != 22 {
			b.Fatal(len(in.Replicas))
		}
	}
}
