package hpa_test

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/autoscaler-plugin/hpa"
)

const second = time.Second

// TestClockJumps: a jump is no time in which the target was watched, so it neither empties
// a window nor makes one stick.
func TestClockJumps(t *testing.T) {
	const year = 365 * 24 * time.Hour
	for name, jump := range map[string]time.Duration{
		"a year back": -year, "a year ahead": year, "a suspended host, for a night": 9 * time.Hour,
		"to the clock's end": math.MaxInt64, "to its other end": math.MinInt64,
	} {
		t.Run(name, func(t *testing.T) {
			b := hpa.DefaultBehavior() // MaxGapSeconds 60
			var s hpa.State
			now := 1000 * second
			require.Equal(t, 8, b.Next(&s, now, 8, 8, 1, 20).Replicas)
			for range 10 {
				now += 10 * second
				require.Equal(t, 8, b.Next(&s, now, 8, 2, 1, 20).Replicas, "the window of 300 s")
			}
			if jump == math.MaxInt64 || jump == math.MinInt64 {
				now = jump / 2
			} else {
				now += jump
			}
			require.Equal(t, 8, b.Next(&s, now, 8, 2, 1, 20).Replicas, "the jump alone scales nothing")
			// 100 s were seen before it, and 60 s at most are the jump's.
			waited := 0 * second
			for b.Next(&s, now, 8, 2, 1, 20).Replicas == 8 {
				now += 10 * second
				waited += 10 * second
				require.LessOrEqual(t, waited, 200*second, "the window sticks")
			}
			require.GreaterOrEqual(t, waited, 140*second)
		})
	}
}

// TestEndsOfTheClock: the difference between the two ends of the clock fits no Duration.
func TestEndsOfTheClock(t *testing.T) {
	b := hpa.DefaultBehavior()
	b.MaxGapSeconds = 0
	var s hpa.State
	require.Equal(t, 8, b.Next(&s, math.MinInt64, 8, 2, 1, 20).Replicas)
	require.Equal(t, 2, b.Next(&s, math.MaxInt64, 8, 2, 1, 20).Replicas, "every window is over")
	require.NoError(t, s.Validate())
	require.Equal(t, 2, b.Next(&s, math.MinInt64, 2, 2, 1, 20).Replicas)
}

// TestWindowsSurviveARestart: also with another clock afterwards.
func TestWindowsSurviveARestart(t *testing.T) {
	b := hpa.DefaultBehavior()
	var s hpa.State
	b.Next(&s, 1000*second, 3, 90, 1, 90)
	raw, err := json.Marshal(s)
	require.NoError(t, err)
	require.JSONEq(t, `{"seen":true,"last_ns":1000000000000,"recommendations":[{"replicas":3,"age_ns":0},{"replicas":90,"age_ns":0}],"events":[{"change":4,"age_ns":0}],"change":4,"from":3}`, string(raw))

	s = throughJSON(t, s)
	d := b.Next(&s, 5*second, 7, 90, 1, 90)
	require.Equal(t, 7, d.Replicas, "the clock is another: the budget is used up")
	require.Equal(t, hpa.LimitUpRate, d.LimitedBy)
	s = throughJSON(t, s)
	require.Equal(t, 14, b.Next(&s, 20*second, 7, 90, 1, 90).Replicas)
	s = throughJSON(t, s)
	require.Equal(t, 14, b.Next(&s, 40*second, 14, 1, 1, 90).Replicas, "the window for going down")
}

// TestFailed: what was not carried out uses up no budget, and a 0 that was not reached is
// no 0 of ours.
func TestFailed(t *testing.T) {
	b := hpa.DefaultBehavior()
	var s hpa.State
	require.Equal(t, 7, b.Next(&s, 0, 3, 90, 1, 90).Replicas)
	s.Done(s.From)
	s.Done(s.From) // once is enough
	require.Equal(t, 7, b.Next(&s, 1*second, 3, 90, 1, 90).Replicas)
	require.Equal(t, 7, b.Next(&s, 2*second, 7, 90, 1, 90).Replicas)
	s.Done(s.From) // nothing was to be done
	require.Equal(t, hpa.LimitUpRate, b.Next(&s, 3*second, 7, 90, 1, 90).LimitedBy)

	// Two opposite moves in one moment, of which the second fails: the first still counts.
	b = hpa.Behavior{ScaleUp: rules(0, "Max", pods(2, 60)), ScaleDown: rules(0, "Max", pods(2, 60))}
	s = hpa.State{}
	require.Equal(t, 6, b.Next(&s, 0, 8, 6, 1, 90).Replicas)
	require.Equal(t, 8, b.Next(&s, 0, 6, 8, 1, 90).Replicas)
	s.Done(s.From)
	require.Equal(t, hpa.LimitDownRate, b.Next(&s, second, 6, 5, 1, 90).LimitedBy)

	b = hpa.Behavior{ScaleUp: free, ScaleDown: free}
	s = hpa.State{}
	require.Equal(t, 0, b.Next(&s, 0, 3, 0, 0, 90).Replicas)
	s.Done(s.From)
	require.Equal(t, hpa.LimitZero, b.Next(&s, second, 0, 3, 0, 90).LimitedBy, "someone else made it 0")
	s = hpa.State{}
	require.Equal(t, 0, b.Next(&s, 0, 3, 0, 0, 90).Replicas)
	require.Equal(t, 5, b.Next(&s, second, 0, 5, 0, 90).Replicas)
	s.Done(s.From)
	require.Equal(t, 5, b.Next(&s, 2*second, 0, 5, 0, 90).Replicas, "it is still our 0")
	require.Equal(t, 5, b.Next(&s, 3*second, 5, 5, 0, 90).Replicas)
	require.Equal(t, hpa.LimitZero, b.Next(&s, 4*second, 0, 5, 0, 90).LimitedBy, "and now someone else's")
}

func TestCloneSharesNothing(t *testing.T) {
	b := hpa.DefaultBehavior()
	var s hpa.State
	b.Next(&s, 0, 3, 9, 1, 20)
	c := s.Clone()
	require.Equal(t, s, c)
	b.Next(&c, 60*second, 7, 5, 1, 20)
	b.Next(&s, 1*second, 7, 9, 1, 20)
	require.NotEqual(t, s, c)
	require.Equal(t, 1*second, s.Recommendations[0].Age)
}

func TestStateValidate(t *testing.T) {
	good := hpa.State{Recommendations: []hpa.Recommended{{Replicas: 3, Age: 9}, {Replicas: 1, Age: 9}}, Events: []hpa.Event{{Change: -3, Age: 2}, {Change: 1}}}
	require.NoError(t, good.Validate())
	bad := hpa.State{
		Recommendations: []hpa.Recommended{{Replicas: -3, Age: 9}, {Replicas: 1, Age: 10}, {Replicas: 1, Age: -1}},
		Events:          []hpa.Event{{Change: math.MinInt, Age: -2}, {Change: 1, Age: 1}},
		IdleFor:         -1,
		Change:          math.MaxInt,
	}
	err := bad.Validate()
	for _, want := range []string{
		"recommendations[0].replicas is -3", "recommendations[1].age_ns is 10", "recommendations[2].age_ns is -1",
		"events[0].change is -9223372036854775808", "events[0].age_ns is -2", "events[1].age_ns is 1", "idle_ns is -1", "change is 9223372036854775807",
	} {
		require.ErrorContains(t, err, want)
	}
}
