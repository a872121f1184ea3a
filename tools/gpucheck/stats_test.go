package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSummarize(t *testing.T) {
	upTo := func(n int) []time.Duration {
		var out []time.Duration
		for i := n; i > 0; i-- {
			out = append(out, time.Duration(i))
		}
		return out
	}
	for name, tc := range map[string]struct {
		times []time.Duration
		want  summary
	}{
		"none":    {nil, summary{}},
		"one":     {upTo(1), summary{1, 1, 1, 1, 1}},
		"two":     {upTo(2), summary{2, 1, 1, 2, 2}},
		"three":   {upTo(3), summary{3, 1, 2, 3, 3}},
		"twenty":  {upTo(20), summary{20, 1, 10, 20, 20}},
		"hundred": {upTo(100), summary{100, 1, 50, 99, 100}},
		"more":    {upTo(1000), summary{1000, 1, 500, 990, 1000}},
	} {
		t.Run(name, func(t *testing.T) {
			given := append([]time.Duration(nil), tc.times...)
			require.Equal(t, tc.want, summarize(given))
			require.Equal(t, tc.times, given, "it sorts a copy")
		})
	}
}

func TestSummaryAsTextAndFigures(t *testing.T) {
	s := summarize([]time.Duration{41234 * time.Microsecond, 12345678 * time.Microsecond, 1234 * time.Microsecond})
	require.Equal(t, "p50 41.2ms, p99 12.3s, max 12.3s (n=3)", s.String())
	f := Figures{}
	s.addTo(f, "x")
	require.Equal(t, Figures{"x_n": 3, "x_min_seconds": 0.001234, "x_p50_seconds": 0.041234, "x_p99_seconds": 12.345678, "x_max_seconds": 12.345678}, f)
}

func TestShort(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0:                                    "0s",
		12345 * time.Nanosecond:              "10µs",
		1239 * time.Microsecond:              "1.24ms",
		456789 * time.Nanosecond:             "460µs",
		123456789:                            "123ms",
		1234567890:                           "1.23s",
		83*time.Second + 44*time.Millisecond: "1m23s",
	} {
		require.Equal(t, want, short(d))
	}
}
