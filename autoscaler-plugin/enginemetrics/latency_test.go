package enginemetrics_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/autoscaler-plugin/enginemetrics"
)

// buckets is a histogram by its bounds, with the count of each bound and of all.
func buckets(bounds []float64, counts ...float64) enginemetrics.Latency {
	return enginemetrics.Latency{Bounds: bounds, Counts: counts}
}

func TestQuantile(t *testing.T) {
	fine, coarse := []float64{0.5, 1, 2}, []float64{1, 4}
	for _, tc := range []struct {
		name string
		all  []enginemetrics.Latency
		want enginemetrics.Value
	}{
		{"nothing", nil, absent},
		{"no observation", []enginemetrics.Latency{buckets(fine, 0, 0, 0, 0), {}}, absent},
		{"within a bucket", []enginemetrics.Latency{buckets(fine, 0, 90, 100, 100)}, of(1.5)},
		{"at a bound", []enginemetrics.Latency{buckets(fine, 0, 95, 100, 100)}, of(1)},
		{"the first bucket begins at 0", []enginemetrics.Latency{buckets(fine, 100, 100, 100, 100)}, of(0.475)},
		{"beyond the highest bound", []enginemetrics.Latency{buckets(fine, 0, 0, 10, 100)}, of(2)},
		{"two engines", []enginemetrics.Latency{buckets(fine, 0, 100, 100, 100), buckets(fine, 0, 0, 100, 100)}, of(1.9)},
		{"bounds of two kinds", []enginemetrics.Latency{buckets(fine, 100, 100, 100, 100), buckets(coarse, 0, 100, 100)}, of(3.7)},
		{"one that cannot be", []enginemetrics.Latency{buckets(fine, 0, 100, 100, 100), {Flaw: enginemetrics.NotANumber}}, bad(enginemetrics.NotANumber)},
	} {
		got := enginemetrics.Quantile(0.95, tc.all)
		if want, flaw := tc.want.Get(); flaw == enginemetrics.None {
			require.InDelta(t, want, got.Or(math.NaN()), 1e-9, tc.name)
		} else {
			require.Equal(t, tc.want, got, tc.name)
		}
	}
}

// The quantile of many histograms does not depend on their order and lies within their bounds. It does not fall if the
// share q rises or if slow observations are added.
func TestQuantileProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		one := rapid.Custom(func(t *rapid.T) enginemetrics.Latency {
			bounds := rapid.SliceOfNDistinct(rapid.Float64Range(0.001, 100), 1, 6, rapid.ID).Draw(t, "bounds")
			slices.Sort(bounds)
			counts, n := []float64{}, 0.0
			for range len(bounds) + 1 {
				n += float64(rapid.IntRange(0, 20).Draw(t, "observations"))
				counts = append(counts, n)
			}
			return buckets(bounds, counts...)
		})
		all := rapid.SliceOfN(one, 1, 5).Draw(t, "histograms")
		got := enginemetrics.Quantile(0.95, all)
		turned := slices.Clone(all)
		slices.Reverse(turned)
		require.InDelta(t, got.Or(-1), enginemetrics.Quantile(0.95, turned).Or(-1), 1e-9)
		require.LessOrEqual(t, got.Or(0), 100.0)
		require.LessOrEqual(t, enginemetrics.Quantile(0.5, all).Or(0), got.Or(0)+1e-9)
		slow := append(slices.Clone(all), buckets([]float64{100, 101}, 0, 10, 10))
		require.GreaterOrEqual(t, enginemetrics.Quantile(0.95, slow).Or(0), got.Or(0)-1e-9)
	})
}

func TestLatencyOfAPage(t *testing.T) {
	page := func(lines ...string) string {
		return small(`vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0`) + strings.Join(lines, "\n") + "\n"
	}
	line := func(rank int, le string, n any) string {
		return fmt.Sprintf(`vllm:time_to_first_token_seconds_bucket{engine="%d",model_name="m",le=%q} %v`, rank, le, n)
	}
	first := func(lines ...string) enginemetrics.Latency {
		s := parse(t, page(lines...), enginemetrics.Options{Models: []string{"m"}})
		require.True(t, s.Known(), "a histogram does not make the load unknown")
		return s.Counters.FirstTokens
	}
	require.Equal(t, buckets([]float64{1, 2.5}, 3, 4, 9), first(line(0, "2.5", 4), line(0, "+Inf", 9), line(0, "1", 3)))
	require.Equal(t, buckets([]float64{1}, 5, 12), first(line(0, "1", 3), line(0, "+Inf", 9), line(1, "1", 2), line(1, "+Inf", 3)), "ranks add up")
	require.Equal(t, enginemetrics.Latency{}, first(strings.ReplaceAll(line(0, "1", 3), `"m"`, `"other"`)))
	for name, lines := range map[string][]string{
		"falls":    {line(0, "1", 3), line(0, "2", 2), line(0, "+Inf", 9)},
		"no end":   {line(0, "1", 3), line(0, "2", 4)},
		"NaN":      {line(0, "1", "NaN"), line(0, "+Inf", 9)},
		"negative": {line(0, "1", -1), line(0, "+Inf", 9)},
		"no bound": {line(0, "x", 1), line(0, "+Inf", 9)},
		"no value": {line(0, "1", "x"), line(0, "+Inf", 9)},
	} {
		l := first(lines...)
		require.NotEqual(t, enginemetrics.None, l.Flaw, name)
		require.Empty(t, l.Counts, name)
	}
}

func TestLatencyOfTheWindow(t *testing.T) {
	bounds := []float64{1, 2}
	with := func(l enginemetrics.Latency) enginemetrics.Sample {
		s := counted(0, 0)
		s.Counters.FirstTokens = l
		return s
	}
	seen := func(p *enginemetrics.Peaks, seconds float64) []float64 {
		return p.Read("r", at(seconds)).Rates.FirstTokens.Counts
	}
	p := enginemetrics.NewPeaks()
	observe(t, p, "r", 0, with(buckets(bounds, 100, 100, 100)))
	require.Equal(t, []float64{0, 0, 0}, seen(p, 0), "what was before is left out")
	observe(t, p, "r", 20, with(buckets(bounds, 101, 103, 106)))
	require.Equal(t, []float64{1, 3, 6}, seen(p, 20))
	observe(t, p, "r", 40, with(buckets(bounds, 2, 2, 2)))
	require.Equal(t, []float64{3, 5, 8}, seen(p, 40), "the engine began anew")
	observe(t, p, "r", 65, with(buckets(bounds, 2, 2, 3)))
	observe(t, p, "r", 90, with(buckets(bounds, 2, 3, 4)))
	require.Equal(t, []float64{2, 3, 4}, seen(p, 90), "from the last sample before the window")
	require.Equal(t, 70.0, p.Read("r", at(90)).Rates.FirstTokens.Over.Seconds())
	observe(t, p, "r", 100, with(buckets([]float64{3}, 5, 5)))
	require.Equal(t, []float64{0, 0}, seen(p, 100), "other buckets")
	observe(t, p, "r", 110, with(enginemetrics.Latency{Flaw: enginemetrics.NotANumber}))
	require.Equal(t, enginemetrics.NotANumber, p.Read("r", at(110)).Rates.FirstTokens.Flaw)
	observe(t, p, "r", 120, with(buckets([]float64{3}, 7, 9)))
	observe(t, p, "r", 160, with(buckets([]float64{3}, 8, 10)))
	require.Equal(t, []float64{0, 0}, seen(p, 160), "not across a gap")
	observe(t, p, "r", 100, with(buckets([]float64{3}, 9, 12)))
	observe(t, p, "r", 110, with(buckets([]float64{3}, 10, 14)))
	require.Equal(t, []float64{1, 2}, seen(p, 110), "the clock was set back")
}
