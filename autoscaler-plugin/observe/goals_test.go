package observe_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/autoscaler-plugin/enginemetrics"
	"remuda/autoscaler-plugin/observe"
)

// took is a histogram of so many observations of about so many seconds.
func took(n, seconds float64) enginemetrics.Latency {
	return enginemetrics.Latency{Bounds: []float64{seconds * 0.999, seconds}, Counts: []float64{0, n, n}, Over: time.Minute}
}

// withGoals is the world of two engines with goals of 2 s and 50 ms, and latencies of 1 s and 25 ms.
func withGoals() *world {
	w := two()
	w.managed.Goals.FirstToken.Within, w.managed.Goals.InterToken.Within = 2*time.Second, 50*time.Millisecond
	w.managed.Queue.Waiting, w.managed.Queue.Oldest = 0, time.Time{}
	for i := range w.report.Engines {
		v := &w.report.Engines[i].View
		v.Waiting, v.Last.Waiting = enginemetrics.Of(0), enginemetrics.Of(0)
		v.Rates.FirstTokens, v.Rates.InterTokens, v.Rates.PromptTokens = took(60, 1), took(600, 0.025), enginemetrics.Of(1000)
	}
	return w
}

func TestGoals(t *testing.T) {
	first := func(w *world, i int) *enginemetrics.Latency {
		return &w.report.Engines[i].View.Rates.FirstTokens
	}
	for _, tc := range []struct {
		name       string
		edit       func(*world)
		grow, keep int
		reason     string
	}{
		{"no goal", func(w *world) { w.managed.Goals = observe.Goals{}; *first(w, 0) = took(60, 9) }, 0, 0, ""},
		{"half of each goal", func(*world) {}, 0, 1, ""},
		{"nearly the goal: nothing may go", func(w *world) { *first(w, 0), *first(w, 1) = took(60, 1.8), took(60, 1.8) }, 0, 2, ""},
		{"missed by a half", func(w *world) { *first(w, 0), *first(w, 1) = took(60, 3), took(60, 3) }, 3, 3,
			"95 of 100 first tokens took up to 3s: the goal is 2s"},
		{"missed by far: at most twice as many", func(w *world) { *first(w, 0) = took(60, 90) }, 4, 3, "95 of 100 first tokens took up to 90s"},
		{"one engine of two is slow", func(w *world) { *first(w, 0) = took(2, 90) }, 0, 1, ""},
		{"tokens are slow", func(w *world) { w.report.Engines[0].View.Rates.InterTokens = took(600, 0.1) }, 4, 3,
			"95 of 100 times between tokens took up to 0.1s: the goal is 50ms"},
		{"as many replicas as requests", func(w *world) {
			*first(w, 0), *first(w, 1) = took(60, 3), took(60, 3)
			w.managed.Queue.InFlight = 2
			for i := range w.report.Engines {
				w.report.Engines[i].View.Running = enginemetrics.Of(1)
			}
		}, 0, 3, "which more replicas would not change: there are 2 for 2 requests"},
		{"measured on one replica of two", func(w *world) {
			*first(w, 0), *first(w, 1) = took(60, 4), took(60, 4)
			w.managed.Copies[0].Since, w.managed.Copies[1].Since = epoch.Add(-59*time.Second), epoch.Add(-time.Minute)
		}, 2, 3, "took up to 4s"},
		{"no request in the last minute", func(w *world) {
			for i := range w.report.Engines {
				w.report.Engines[i].View.Rates.FirstTokens, w.report.Engines[i].View.Rates.InterTokens = took(0, 1), took(0, 1)
			}
		}, 0, 0, ""},
		{"a request waits for too long", func(w *world) { w.managed.Queue.Waiting, w.managed.Queue.Oldest = 1, epoch.Add(-3*time.Second) }, 3, 3,
			"a request has waited for 3s: its first token is due within 2s"},
		{"a backlog in the engines", func(w *world) { w.report.Engines[0].View.Last.Waiting = enginemetrics.Of(6) }, 3, 3,
			"6 requests wait with about 6000 tokens, which take 3s at 2000 tokens per second: the goal is 2s"},
		{"a backlog at the gateways", func(w *world) { w.managed.Queue.Waiting, w.managed.Queue.WaitingTokens = 2, 6000 }, 3, 3,
			"2 requests wait with about 6000 tokens"},
		{"a backlog that is done in time", func(w *world) { w.managed.Queue.Waiting, w.managed.Queue.WaitingTokens = 2, 3000 }, 0, 2, ""},
		{"a backlog, and nothing is read", func(w *world) {
			w.report.Engines[0].View.Last.Waiting = enginemetrics.Of(6)
			for i := range w.report.Engines {
				w.report.Engines[i].View.Rates.PromptTokens = enginemetrics.Value{}
			}
		}, 0, 3, "6 requests wait, and no prompt was read in the last minute"},
		{"a histogram that cannot be", func(w *world) { *first(w, 1) = enginemetrics.Latency{Flaw: enginemetrics.NotANumber} }, 0, 3,
			"ttft_p95 is unknown: its histogram is invalid: not_a_number"},
		{"an engine that is not read", func(w *world) { w.report.Engines[1].View.Class = enginemetrics.ClassStale }, 0, 3,
			"ttft_p95 is unknown: replica llama:a100:2 is stale; itl_p95 is unknown: replica llama:a100:2 is stale"},
		{"an engine that is new", func(w *world) {
			w.report.Engines[1].View.Class, w.report.Engines[1].View.Points = enginemetrics.ClassUnknown, 0
			w.managed.Copies[0].Since = epoch.Add(-5 * time.Second)
		}, 0, 1, ""},
		{"engines of TGI have no first token", func(w *world) {
			for i := range w.report.Engines {
				w.report.Engines[i].View.Last.Dialect, *first(w, i) = "tgi", enginemetrics.Latency{}
			}
		}, 0, 1, "ttft_p95 is not measured everywhere: engines of dialect tgi do not report it"},
		{"a source without histograms", func(w *world) {
			for i := range w.report.Engines {
				w.report.Engines[i].View.Rates = enginemetrics.Rates{}
			}
		}, 0, 0, "ttft_p95 is not measured everywhere: the metrics of replica llama:a100:1 do not have it; " +
			"itl_p95 is not measured everywhere: the metrics of replica llama:a100:1 do not have it"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := withGoals()
			tc.edit(w)
			s := w.see(t, llama)
			r := s.Required()
			reason := strings.Join(r.Reasons, "; ")
			require.Equal(t, [2]int{tc.grow, tc.keep}, [2]int{r.Grow, r.Keep}, reason)
			if tc.reason == "" {
				require.Empty(t, reason)
			}
			require.Contains(t, reason, tc.reason)
		})
	}
}

// Whatever engines report: the order does not matter, growth is at most twofold and only where a goal is
// missed, slower answers never call for fewer replicas, and what is unknown keeps everything.
func TestGoalsOfAnything(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := withGoals()
		odd := rapid.SampledFrom([]enginemetrics.Latency{{Flaw: enginemetrics.NotANumber}, {Flaw: enginemetrics.Contradictory}})
		number := rapid.SampledFrom([]enginemetrics.Value{{}, enginemetrics.Of(0), enginemetrics.Of(3), enginemetrics.Of(1e300), enginemetrics.Flawed(enginemetrics.NotANumber)})
		w.managed.Copies, w.report.Engines = nil, nil
		n := rapid.IntRange(1, 5).Draw(rt, "replicas")
		w.managed.Variants[0].Current, w.managed.Variants[0].Hot, w.managed.Variants[0].Starting = n, n, 0
		unknown := false
		for i := range n {
			name := fmt.Sprint("llama:a100:", i)
			v := view(name, 0.5, 0, float64(rapid.IntRange(0, 16).Draw(rt, "running")))
			v.Last.Waiting, v.Rates.PromptTokens = number.Draw(rt, "waiting"), number.Draw(rt, "prompt tokens")
			v.Rates.FirstTokens, v.Rates.InterTokens = took(float64(rapid.IntRange(0, 90).Draw(rt, "requests")), rapid.Float64Range(0.01, 9).Draw(rt, "seconds")), took(500, 0.03)
			if rapid.IntRange(0, 5).Draw(rt, "odd") == 0 {
				v.Rates.FirstTokens, unknown = odd.Draw(rt, "histogram"), true
			}
			w.managed.Copies = append(w.managed.Copies, hot(name, "a100"))
			w.report.Engines = append(w.report.Engines, reported("a100", v))
		}
		s := w.see(t, llama)
		r := s.Required()
		slices.Reverse(w.managed.Copies)
		slices.Reverse(w.report.Engines)
		turned := w.see(t, llama)
		require.Equal(rt, r, turned.Required())
		require.LessOrEqual(rt, r.Grow, 2*n)
		require.LessOrEqual(rt, r.Keep, n)
		if r.Grow > 0 {
			require.Equal(rt, n, r.Keep)
			require.NotEmpty(rt, r.Reasons)
		}
		if unknown {
			require.Equal(rt, n, r.Keep)
			return
		}
		slower := s
		slower.Goals.FirstToken.Within /= 2
		more := slower.Required()
		require.GreaterOrEqual(rt, more.Grow, r.Grow)
		require.GreaterOrEqual(rt, more.Keep, r.Keep)
	})
}

// A percentile that cannot be is not known: nothing is removed by it.
func TestAPercentileThatCannotBe(t *testing.T) {
	w := withGoals()
	for _, p95 := range []enginemetrics.Value{enginemetrics.Of(math.NaN()), enginemetrics.Of(math.Inf(1)), enginemetrics.Of(-1), enginemetrics.Flawed(enginemetrics.TooLarge)} {
		s := w.see(t, llama)
		s.Goals.FirstToken.P95 = p95
		r := s.Required()
		require.Equal(t, s.Current(), r.Keep, p95)
		require.Contains(t, strings.Join(r.Reasons, "; "), "ttft_p95 is unknown: its histogram is invalid: ")
	}
}
