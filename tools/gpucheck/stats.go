package main

import (
	"fmt"
	"slices"
	"time"
)

// summary is what a number of measured times come to.
type summary struct {
	n                  int
	min, p50, p99, max time.Duration
}

// summarize leaves its argument as it is. Percentiles are by nearest rank, so each
// is a time that was measured; p99 of fewer than 100 is the largest.
func summarize(times []time.Duration) summary {
	if len(times) == 0 {
		return summary{}
	}
	s := slices.Sorted(slices.Values(times))
	rank := func(percent int) time.Duration { return s[(percent*len(s)+99)/100-1] }
	return summary{n: len(s), min: s[0], p50: rank(50), p99: rank(99), max: s[len(s)-1]}
}

// String is for the table.
func (s summary) String() string {
	return fmt.Sprintf("p50 %s, p99 %s, max %s (n=%d)", short(s.p50), short(s.p99), short(s.max), s.n)
}

// addTo adds the summary to f, in seconds.
func (s summary) addTo(f Figures, name string) {
	f[name+"_n"] = float64(s.n)
	f[name+"_min_seconds"], f[name+"_p50_seconds"] = s.min.Seconds(), s.p50.Seconds()
	f[name+"_p99_seconds"], f[name+"_max_seconds"] = s.p99.Seconds(), s.max.Seconds()
}

// short is d with three digits or so.
func short(d time.Duration) string {
	switch {
	case d >= 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d >= 100*time.Millisecond:
		return d.Round(time.Millisecond).String()
	case d >= 10*time.Millisecond:
		return d.Round(100 * time.Microsecond).String()
	default:
		return d.Round(10 * time.Microsecond).String()
	}
}
