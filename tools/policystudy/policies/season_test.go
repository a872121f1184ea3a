package policies_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/tools/policystudy/policies"
	"remuda/tools/policystudy/scalesim"
)

// clock asks a policy at a time of a day, from 0 on, with so many requests at work. Replicas have four
// slots, of which half are to be in use.
func clock(t *testing.T, spec policies.Spec) func(day int, at string, running int) int {
	t.Helper()
	spec.Aim = 0.5
	p, err := spec.New()
	require.NoError(t, err)
	return func(day int, at string, running int) int {
		clock, err := time.Parse("15:04", at)
		require.NoError(t, err)
		now := time.Duration(day)*24*time.Hour + time.Duration(clock.Hour())*time.Hour + time.Duration(clock.Minute())*time.Minute
		return p.Decide(&scalesim.Observation{Now: now, Interval: 15 * time.Second, Slots: 4, Max: 1000, Desired: 1, Ready: 1, Running: running, PeakRunning: running, TargetWait: 2 * time.Second})
	}
}

// TestSeason: on its first day it follows the load; then it has what yesterday and the same day of last
// week had in this quarter of an hour and in the next one, whatever the load is.
func TestSeason(t *testing.T) {
	want := clock(t, policies.Spec{Policy: policies.Season})
	require.Equal(t, 3, want(0, "00:00", 6), "no day is known")
	require.Equal(t, 10, want(0, "06:05", 20))
	require.Equal(t, 1, want(0, "06:20", 2))
	require.Equal(t, 0, want(1, "05:40", 0))
	require.Equal(t, 10, want(1, "05:45", 0), "a quarter of an hour ahead")
	require.Equal(t, 10, want(1, "06:14", 0))
	require.Equal(t, 1, want(1, "06:15", 100), "the calendar knows no load of now")
	require.Equal(t, 50, want(2, "06:15", 0), "which is yesterday's tomorrow")
	require.Equal(t, 0, want(6, "06:00", 0), "neither yesterday nor a week ago")
	require.Equal(t, 10, want(7, "06:00", 0), "a week ago")
	require.Equal(t, 50, want(8, "06:15", 0))

	held := clock(t, policies.Spec{Policy: policies.Season, Hold: time.Hour})
	held(0, "06:05", 20)
	require.Equal(t, 10, held(1, "06:14", 0))
	require.Equal(t, 10, held(1, "07:13", 0))
	require.Equal(t, 0, held(1, "07:14", 0), "the hold is over")
}

// TestSeasonOverHPA: with a basis it is the larger of both.
func TestSeasonOverHPA(t *testing.T) {
	both, hpa := clock(t, policies.Spec{Policy: policies.HPASeason}), clock(t, policies.Spec{Policy: policies.HPA})
	ask := func(day int, at string, running int) (season, basis int) {
		return both(day, at, running), hpa(day, at, running)
	}
	ask(0, "06:00", 20)
	season, basis := ask(1, "05:50", 0)
	require.Equal(t, 10, season)
	require.Less(t, basis, season, "what HPA does not see coming")
	season, basis = ask(1, "12:00", 40)
	require.Equal(t, basis, season)
	require.Greater(t, basis, 1, "what was not there yesterday")
}

// TestQuantile: 98 of 100 samples of the hold had no more, and what there is now is served at once.
func TestQuantile(t *testing.T) {
	p, err := policies.Spec{Policy: policies.Quantile, Aim: 0.5, Hold: 50 * time.Minute}.New()
	require.NoError(t, err)
	require.Equal(t, 30*time.Second, p.(scalesim.Paced).Interval())
	ask := func(n, waiting int) int {
		return p.Decide(&scalesim.Observation{Slots: 4, Running: n - waiting, Waiting: waiting})
	}
	// 100 samples: 0 to 99, shuffled.
	for i := range 100 {
		ask(i*37%100, 0)
	}
	require.Equal(t, 49, ask(0, 0), "98 for slots of which 2 a replica may be in use: the highest sample is left out")
	require.Equal(t, 60, ask(120, 20), "a burst")
	require.Equal(t, 49, ask(0, 0), "and not for long: the burst is one of the two highest samples, which are left out")
	for range 98 {
		ask(10, 0)
	}
	require.Equal(t, 5, ask(10, 0), "what is older than the hold is forgotten")
}
