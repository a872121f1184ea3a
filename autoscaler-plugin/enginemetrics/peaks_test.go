package enginemetrics_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/autoscaler-plugin/enginemetrics"
)

var start = time.Date(2026, 11, 22, 8, 0, 0, 0, time.UTC)

func at(seconds float64) time.Time {
	return start.Add(time.Duration(seconds * float64(time.Second)))
}

// load is a sample of an engine with this queue and KV usage.
func load(waiting, kv float64) enginemetrics.Sample {
	return enginemetrics.Sample{Dialect: "vllm", Ranks: 1, Running: of(1), Waiting: of(waiting), KVUsage: of(kv)}
}

// counted is a sample whose counters of finished requests and written tokens are these.
func counted(finished, tokens float64) enginemetrics.Sample {
	s := load(0, 0)
	s.Counters.Finished, s.Counters.GenerationTokens = of(finished), of(tokens)
	return s
}

func observe(t *testing.T, p *enginemetrics.Peaks, replica string, seconds float64, s enginemetrics.Sample) {
	t.Helper()
	p.Observe(replica, at(seconds), s)
}

func TestPeaksWindow(t *testing.T) {
	p := enginemetrics.NewPeaks()
	require.Equal(t, enginemetrics.ClassUnknown, p.Read("r", at(0)).Class)
	observe(t, p, "r", 0, load(9, 0.2))
	observe(t, p, "r", 20, load(1, 0.8))
	observe(t, p, "r", 40, load(2, 0.1))
	v := p.Read("r", at(40))
	require.Equal(t, enginemetrics.ClassOK, v.Class)
	require.Equal(t, [2]enginemetrics.Value{of(9), of(0.8)}, [2]enginemetrics.Value{v.Waiting, v.KVUsage})
	require.Equal(t, 3, v.Points)
	observe(t, p, "r", 60, load(2, 0.1))
	require.Equal(t, of(2), p.Read("r", at(60)).Waiting, "the window does not include its beginning")
	v = p.Read("r", at(79.999))
	require.Equal(t, of(0.8), v.KVUsage)
	require.Equal(t, 19999*time.Millisecond, v.Age)
	require.Equal(t, of(0.1), p.Read("r", at(80)).KVUsage)
	require.Equal(t, enginemetrics.ClassOK, p.Read("r", at(90)).Class, "30 s old is not too old")
	v = p.Read("r", at(90.001))
	require.Equal(t, enginemetrics.ClassStale, v.Class)
	require.Equal(t, of(2), v.Waiting, "the last known value, not zero")
}

func TestBadNowIsNotHiddenByThePast(t *testing.T) {
	p := enginemetrics.NewPeaks()
	observe(t, p, "r", 0, load(9, 0.9))
	s := load(3, 0)
	s.KVUsage = bad(enginemetrics.NotANumber)
	observe(t, p, "r", 10, s)
	v := p.Read("r", at(10))
	require.Equal(t, enginemetrics.ClassUnknown, v.Class)
	require.Equal(t, "kv_usage is invalid: not_a_number", v.Why)
	require.Equal(t, bad(enginemetrics.NotANumber), v.KVUsage)
	require.Equal(t, of(9), v.Waiting)
	observe(t, p, "r", 20, load(0, 0.1))
	v = p.Read("r", at(20))
	require.Equal(t, enginemetrics.ClassOK, v.Class)
	require.Equal(t, of(0.9), v.KVUsage, "the peak before comes back")
	s = load(0, 0)
	s.Asleep = true
	observe(t, p, "r", 30, s)
	require.Equal(t, enginemetrics.ClassAsleep, p.Read("r", at(30)).Class)
}

func TestRates(t *testing.T) {
	rate := func(p *enginemetrics.Peaks, seconds float64) enginemetrics.Value {
		return p.Read("r", at(seconds)).Rates.GenerationTokens
	}
	t.Run("steady", func(t *testing.T) {
		p := enginemetrics.NewPeaks()
		observe(t, p, "r", 0, counted(100, 5000))
		require.Equal(t, absent, rate(p, 0), "one sample is no rate")
		observe(t, p, "r", 10, counted(120, 6000))
		v := p.Read("r", at(10))
		require.Equal(t, [2]enginemetrics.Value{of(2), of(100)}, [2]enginemetrics.Value{v.Rates.Finished, v.Rates.GenerationTokens})
		require.Equal(t, absent, v.Rates.PromptTokens)
	})
	t.Run("reset", func(t *testing.T) {
		p := enginemetrics.NewPeaks()
		observe(t, p, "r", 0, counted(100, 5000))
		observe(t, p, "r", 10, counted(110, 6000))
		observe(t, p, "r", 20, counted(3, 500))
		v := p.Read("r", at(20))
		require.Equal(t, of(75), v.Rates.GenerationTokens)
		require.Equal(t, of(0.65), v.Rates.Finished)
	})
	t.Run("not across a gap", func(t *testing.T) {
		p := enginemetrics.NewPeaks()
		observe(t, p, "r", 0, counted(0, 0))
		observe(t, p, "r", 10, counted(0, 100))
		observe(t, p, "r", 41, counted(0, 1000000))
		require.Equal(t, absent, rate(p, 41))
		observe(t, p, "r", 51, counted(0, 1000050))
		require.Equal(t, of(5), rate(p, 51))
	})
	t.Run("not across a bad or absent counter", func(t *testing.T) {
		for _, broken := range []enginemetrics.Value{absent, bad(enginemetrics.NotANumber)} {
			p := enginemetrics.NewPeaks()
			observe(t, p, "r", 0, counted(0, 1000))
			s := counted(0, 0)
			s.Counters.GenerationTokens = broken
			observe(t, p, "r", 10, s)
			require.Equal(t, absent, rate(p, 10))
			observe(t, p, "r", 20, counted(0, 500))
			require.Equal(t, absent, rate(p, 20))
			observe(t, p, "r", 30, counted(0, 510))
			require.Equal(t, of(1), rate(p, 30))
		}
	})
	t.Run("from the last sample before the window", func(t *testing.T) {
		p := enginemetrics.NewPeaks()
		for i := range 7 {
			observe(t, p, "r", float64(i*25), counted(0, float64(i*i)))
		}
		require.Equal(t, of(27.0/75), rate(p, 150))
		require.Equal(t, 3, p.Read("r", at(150)).Points)
	})
	t.Run("latencies", func(t *testing.T) {
		p := enginemetrics.NewPeaks()
		a, b := counted(0, 0), counted(0, 0)
		a.Counters.Queue = enginemetrics.Histogram{Sum: of(10), Count: of(100)}
		b.Counters.Queue = enginemetrics.Histogram{Sum: of(16), Count: of(103)}
		b.Counters.EndToEnd = enginemetrics.Histogram{Sum: of(16), Count: of(103)}
		observe(t, p, "r", 0, a)
		observe(t, p, "r", 10, b)
		r := p.Read("r", at(10)).Rates
		require.Equal(t, of(2), r.Queue)
		require.Equal(t, absent, r.EndToEnd)
	})
}

func TestClocks(t *testing.T) {
	filled := func(t *testing.T) *enginemetrics.Peaks {
		p := enginemetrics.NewPeaks()
		for i := range 4 {
			s := counted(0, float64(100*i))
			s.Waiting = of([]float64{1, 7, 2, 3}[i])
			observe(t, p, "r", float64(10*i), s)
			observe(t, p, "silent", float64(10*i), s)
		}
		return p
	}
	for name, jump := range map[string]float64{"an hour back": -3600, "20 years back": -20 * 365 * 86400, "ten seconds back": -10} {
		t.Run(name, func(t *testing.T) {
			p := filled(t)
			v := p.Read("silent", at(30+jump))
			require.Equal(t, enginemetrics.ClassOK, v.Class)
			require.Zero(t, v.Age)
			require.Equal(t, of(7), v.Waiting)
			// Life goes on by the new clock: nothing gets stuck, the silent one ages.
			for i := 1; i <= 7; i++ {
				s := counted(0, float64(300+100*i))
				p.Observe("r", at(30+jump+float64(10*i)), s)
			}
			v = p.Read("r", at(100+jump))
			require.Equal(t, of(0), v.Waiting, "no peak is stuck")
			require.Equal(t, of(10), v.Rates.GenerationTokens)
			require.Equal(t, enginemetrics.ClassStale, p.Read("silent", at(100+jump)).Class)
		})
	}
	for name, jump := range map[string]float64{"an hour forward or a suspended host": 3600, "200 years forward": 200 * 365 * 86400} {
		t.Run(name, func(t *testing.T) {
			p := filled(t)
			v := p.Read("r", at(30+jump))
			require.Equal(t, enginemetrics.ClassStale, v.Class, "stale, not idle")
			require.Equal(t, of(3), v.Waiting)
			require.Equal(t, absent, v.Rates.GenerationTokens)
			p.Observe("r", at(31+jump), counted(0, 400))
			v = p.Read("r", at(31+jump))
			require.Equal(t, enginemetrics.ClassOK, v.Class)
			require.Equal(t, of(0), v.Waiting)
			require.Equal(t, absent, v.Rates.GenerationTokens, "no rate across the gap")
		})
	}
	t.Run("answers out of order", func(t *testing.T) {
		p := enginemetrics.NewPeaks()
		for i := range 61 {
			observe(t, p, "a", float64(i), load(float64(i), 0))
			p.Observe("b", at(float64(i)-2), load(float64(i), 0))
		}
		v := p.Read("a", at(60))
		require.Equal(t, 60, v.Points, "ages did not drift")
		require.Equal(t, of(60), v.Waiting)
	})
	t.Run("monotonic clock does not count", func(t *testing.T) {
		p := enginemetrics.NewPeaks()
		now := time.Now()
		p.Observe("r", now, load(1, 0))
		require.Equal(t, enginemetrics.ClassStale, p.Read("r", now.Round(0).Add(time.Hour)).Class)
	})
}

func TestForgetting(t *testing.T) {
	p := enginemetrics.NewPeaks()
	for i, r := range []string{"a", "b", "c"} {
		observe(t, p, r, float64(i), load(0, 0))
	}
	observe(t, p, "a", 121, load(0, 0))
	p.Forget(at(121))
	require.Equal(t, 3, p.Len(), "b is just not old enough")
	p.Forget(at(121.1))
	require.Equal(t, 2, p.Len())
	p.Forget(at(122.1))
	require.Equal(t, 1, p.Len())
	p.Forget(at(241))
	require.Equal(t, 1, p.Len())
	p.Forget(at(241.1))
	require.Zero(t, p.Len())
}

// obs is an observation of the reference model.
type obs struct {
	at      float64
	waiting float64
}

// The peaks are the highest of the window, straight from the definition, whatever
// the times are.
func TestPeaksAgainstDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := enginemetrics.NewPeaks()
		var seen []obs
		now := 0.0
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			step := rapid.SampledFrom([]float64{0, 1, 5, 10, 29, 30, 31, 60, 3600, -1, -100}).Draw(t, "step")
			switch {
			case step >= 0:
				now += step
			case step < -5: // everything moves with the clock
				for i := range seen {
					seen[i].at += step
				}
				now += step
			}
			w := float64(rapid.IntRange(0, 20).Draw(t, "waiting"))
			when := at(now)
			if step == -1 && len(seen) > 0 { // late, taken as of now
				when = at(now - 1)
			}
			p.Observe("r", when, load(w, w/20))
			seen = append(seen, obs{now, w})
			want := 0.0
			for _, o := range seen {
				if o.at > now-60 {
					want = math.Max(want, o.waiting)
				}
			}
			v := p.Read("r", at(now))
			require.Equal(t, of(want), v.Waiting)
			require.Equal(t, of(want/20), v.KVUsage)
		}
	})
}

func BenchmarkPeaks(b *testing.B) {
	p := enginemetrics.NewPeaks()
	s := counted(1, 1)
	names := make([]string, 1000)
	for i := range names {
		names[i] = fmt.Sprintf("llama:v1:%d", i)
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i++
		now := at(float64(i/len(names)) * 5)
		s.Counters.Finished = of(float64(i))
		p.Observe(names[i%len(names)], now, s)
		p.Read(names[i%len(names)], now)
	}
}
