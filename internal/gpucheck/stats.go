package gpucheck

import (
	"fmt"
	"slices"
	"time"
)

// Summary is what a number of measured times come to.
type Summary struct {
	N                  int
	Min, P50, P99, Max time.Duration
}

// Summarize leaves its argument as it is. Percentiles are by nearest rank, so each
// is a time that was measured; p99 of fewer than 100 is the largest.
func Summarize(times []time.Duration) Summary {
	if len(times) == 0 {
		return Summary{}
	}
	s := slices.Sorted(slices.Values(times))
	rank := func(percent int) time.Duration { return s[(percent*len(s)+99)/100-1] }
	return Summary{N: len(s), Min: s[0], P50: rank(50), P99: rank(99), Max: s[len(s)-1]}
}

// String is for the table.
func (s Summary) String() string {
	return fmt.Sprintf("p50 %s, p99 %s, max %s (n=%d)", short(s.P50), short(s.P99), short(s.Max), s.N)
}

// figures adds the summary to f, in seconds.
func (s Summary) figures(f Figures, name string) {
	f[name+"_n"] = float64(s.N)
	f[name+"_min_seconds"], f[name+"_p50_seconds"] = s.Min.Seconds(), s.P50.Seconds()
	f[name+"_p99_seconds"], f[name+"_max_seconds"] = s.P99.Seconds(), s.Max.Seconds()
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

// amount is bytes for people.
func amount(bytes uint64) string {
	for _, u := range []struct {
		name string
		size uint64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		switch {
		case bytes >= u.size && bytes%u.size == 0:
			return fmt.Sprintf("%d %s", bytes/u.size, u.name)
		case bytes >= u.size:
			return fmt.Sprintf("%.1f %s", float64(bytes)/float64(u.size), u.name)
		}
	}
	return fmt.Sprintf("%d B", bytes)
}

// rate is how fast that many bytes went in d.
func rate(bytes uint64, d time.Duration) string {
	return fmt.Sprintf("%.1f GiB/s", float64(bytes)/float64(1<<30)/max(d.Seconds(), 1e-9))
}
