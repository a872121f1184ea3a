package hpa_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/autoscaler-plugin/hpa"
)

// at is one call.
type at struct {
	t       float64 // seconds
	desired int
	want    int
	by      hpa.Limit
	// set is the count that someone else set before, plus 1; 0 is nobody.
	set int
}

func rules(window int, selected string, policies ...hpa.Policy) hpa.Rules {
	return hpa.Rules{StabilizationWindowSeconds: window, SelectPolicy: selected, Policies: policies}
}

func pods(value, period int) hpa.Policy {
	return hpa.Policy{Type: hpa.Pods, Value: value, PeriodSeconds: period}
}
func percent(value, period int) hpa.Policy {
	return hpa.Policy{Type: hpa.Percent, Value: value, PeriodSeconds: period}
}

// free sets no limit.
var free = rules(0, hpa.SelectMax, pods(1000, 1), percent(100, 1))

func TestNext(t *testing.T) {
	exact := hpa.DefaultBehavior()
	exact.MaxGapSeconds = 0
	for name, tc := range map[string]struct {
		behavior          hpa.Behavior
		initial, min, max int
		calls             []at
	}{
		"a growth of one period": {exact, 3, 1, 20, []at{{t: 0, desired: 7, want: 7}, {t: 15, desired: 7, want: 7}}},
		"up: the larger of 4 and 100 %": {exact, 3, 1, 100, []at{
			{t: 0, desired: 90, want: 7, by: hpa.LimitUpRate}, {t: 14.999999999, desired: 90, want: 7, by: hpa.LimitUpRate},
			{t: 15, desired: 90, want: 14, by: hpa.LimitUpRate}, {t: 30, desired: 90, want: 28, by: hpa.LimitUpRate}}},
		"down window: the largest of 300 s, which ends at 300 s": {exact, 9, 1, 20, []at{
			{t: 0, desired: 2, want: 9, by: hpa.LimitScaleDown}, {t: 100, desired: 5, want: 9, by: hpa.LimitScaleDown},
			{t: 299.999999999, desired: 2, want: 9, by: hpa.LimitScaleDown}, {t: 300, desired: 2, want: 5, by: hpa.LimitScaleDown},
			{t: 399.999999999, desired: 2, want: 5, by: hpa.LimitScaleDown}, {t: 400, desired: 2, want: 2}}},
		"first sight: the current count is a recommendation": {exact, 4, 1, 20, []at{
			{t: 1000, desired: 1, want: 4, by: hpa.LimitScaleDown}, {t: 1300, desired: 1, want: 1}}},
		"up window: the smallest of it, strictly younger": {hpa.Behavior{ScaleUp: rules(30, "Max", pods(100, 1)), ScaleDown: free}, 2, 1, 50, []at{
			{t: 0, desired: 9, want: 2, by: hpa.LimitScaleUp}, {t: 1, desired: 10, want: 2, by: hpa.LimitScaleUp},
			{t: 29.999999999, desired: 12, want: 2, by: hpa.LimitScaleUp}, {t: 30, desired: 12, want: 10, by: hpa.LimitScaleUp}, {t: 31, desired: 12, want: 12}}},
		"raw recommendations are stored, not stabilised ones": {hpa.Behavior{ScaleUp: rules(10, "Max", pods(100, 1)), ScaleDown: rules(10, "Max", percent(100, 1))}, 5, 1, 50, []at{
			{t: 0, desired: 20, want: 5, by: hpa.LimitScaleUp}, {t: 10, desired: 20, want: 20}, {t: 19, desired: 3, want: 20, by: hpa.LimitScaleDown}, {t: 20, desired: 3, want: 3}}},
		"between the windows the count stays": {hpa.Behavior{ScaleUp: rules(60, "Max", pods(100, 1)), ScaleDown: rules(60, "Max", percent(100, 1))}, 5, 1, 50, []at{
			{t: 0, desired: 8, want: 5, by: hpa.LimitScaleUp}, {t: 1, desired: 2, want: 5, by: hpa.LimitScaleDown}, {t: 2, desired: 5, want: 5}}},
		"min policy: the smallest change": {hpa.Behavior{ScaleUp: rules(0, "Min", pods(4, 15), percent(50, 15)), ScaleDown: rules(0, "Min", pods(4, 15), percent(50, 15))}, 4, 1, 90, []at{
			{t: 0, desired: 90, want: 6, by: hpa.LimitUpRate}, {t: 15, desired: 90, want: 9, by: hpa.LimitUpRate}, {t: 30, desired: 90, want: 13, by: hpa.LimitUpRate},
			{t: 45, desired: 1, want: 9, by: hpa.LimitDownRate}, {t: 60, desired: 1, want: 5, by: hpa.LimitDownRate}, {t: 75, desired: 1, want: 2, by: hpa.LimitDownRate}}},
		"disabled freezes one direction": {hpa.Behavior{ScaleUp: free, ScaleDown: rules(0, "Disabled", percent(100, 15))}, 4, 1, 90, []at{
			{t: 0, desired: 1, want: 4, by: hpa.LimitDisabled}, {t: 9, desired: 8, want: 8}, {t: 90, desired: 1, want: 8, by: hpa.LimitDisabled}}},
		"disabled does not hold a count out of its bounds": {hpa.Behavior{ScaleUp: rules(0, "Disabled", pods(1, 1)), ScaleDown: rules(0, "Disabled", pods(1, 1))}, 9, 1, 5, []at{
			{t: 0, desired: 9, want: 5, by: hpa.LimitMax}, {t: 1, desired: 9, want: 5, by: hpa.LimitDisabled}, {t: 2, desired: 9, set: 1, want: 0, by: hpa.LimitZero}}},
		"percent up rounds up, down truncates": {hpa.Behavior{ScaleUp: rules(0, "Max", percent(10, 15)), ScaleDown: rules(0, "Max", percent(10, 15))}, 11, 1, 90, []at{
			{t: 0, desired: 90, want: 13, by: hpa.LimitUpRate}, {t: 20, desired: 1, want: 11, by: hpa.LimitDownRate}}},
		"percent where floats fail: 100 * 1.1 is 110": {hpa.Behavior{ScaleUp: rules(0, "Max", percent(10, 15)), ScaleDown: free}, 100, 1, 900, []at{
			{t: 0, desired: 900, want: 110, by: hpa.LimitUpRate}}},
		"percent where floats fail: 10 less 90 % is 1": {hpa.Behavior{ScaleUp: free, ScaleDown: rules(0, "Max", percent(90, 15))}, 10, 0, 900, []at{
			{t: 0, desired: 0, want: 1, by: hpa.LimitDownRate}}},
		"more than 100 % down is all": {hpa.Behavior{ScaleUp: free, ScaleDown: rules(0, "Max", percent(250, 15))}, 10, 0, 90, []at{{t: 0, desired: 0, want: 0}}},
		"percent alone cannot leave 0": {hpa.Behavior{ScaleUp: rules(0, "Max", percent(900, 15)), ScaleDown: free}, 1, 0, 90, []at{
			{t: 0, desired: 0, want: 0}, {t: 60, desired: 5, want: 0, by: hpa.LimitUpRate}, {t: 6000, desired: 5, want: 0, by: hpa.LimitUpRate}}},
		"percent leaves 0 by the budget of what was removed in the period": {hpa.Behavior{ScaleUp: rules(0, "Max", percent(100, 15)), ScaleDown: free}, 1, 0, 90, []at{
			{t: 0, desired: 0, want: 0}, {t: 14, desired: 5, want: 2, by: hpa.LimitUpRate}}},
		"pods leave 0":                     {hpa.Behavior{ScaleUp: rules(0, "Max", pods(3, 15)), ScaleDown: free}, 1, 0, 90, []at{{t: 0, desired: 0, want: 0}, {t: 60, desired: 5, want: 3, by: hpa.LimitUpRate}}},
		"an initial 0 stays 0, before min": {exact, 0, 2, 20, []at{{t: 0, desired: 7, want: 0, by: hpa.LimitZero}, {t: 600, desired: 7, want: 0, by: hpa.LimitZero}}},
		"an initial 0 stays 0, with min 0": {exact, 0, 0, 20, []at{{t: 0, desired: 7, want: 0, by: hpa.LimitZero}}},
		"someone switches scaling off and on": {exact, 5, 1, 20, []at{
			{t: 0, desired: 5, want: 5}, {t: 9, desired: 5, set: 0 + 1, want: 0, by: hpa.LimitZero}, {t: 99, desired: 5, want: 0, by: hpa.LimitZero}, {t: 999, desired: 5, set: 2 + 1, want: 5}}},
		"from zero, where asked for":           {hpa.Behavior{ScaleUp: free, ScaleDown: free, FromZero: true}, 0, 0, 20, []at{{t: 0, desired: 7, want: 7}}},
		"from zero to min at once":             {hpa.Behavior{ScaleUp: free, ScaleDown: free, FromZero: true}, 0, 2, 20, []at{{t: 0, desired: 7, want: 2, by: hpa.LimitMin}, {t: 1, desired: 7, want: 7}}},
		"a 0 of our own comes to a raised min": {hpa.Behavior{ScaleUp: free, ScaleDown: free}, 1, 0, 20, []at{{t: 0, desired: 0, want: 0}, {t: 1, desired: 1, want: 1}}},
		"min above current skips windows and rates": {hpa.Behavior{ScaleUp: rules(600, "Max", pods(1, 600)), ScaleDown: free}, 1, 10, 20, []at{
			{t: 0, desired: 3, want: 10, by: hpa.LimitMin}}},
		"max below current skips windows and rates": {exact, 50, 1, 20, []at{{t: 0, desired: 90, want: 20, by: hpa.LimitMax}}},
		"a jump into bounds uses up the budget": {exact, 1, 10, 50, []at{
			{t: 0, desired: 50, want: 10, by: hpa.LimitMin}, {t: 14, desired: 50, want: 10, by: hpa.LimitUpRate}, {t: 15, desired: 50, want: 20, by: hpa.LimitUpRate}}},
		"out of bounds no recommendation is stored": {exact, 50, 1, 20, []at{
			{t: 0, desired: 90, want: 20, by: hpa.LimitMax}, {t: 299, desired: 3, want: 20, by: hpa.LimitScaleDown}, {t: 300, desired: 3, want: 3}}},
		"min above max: nothing moves": {exact, 4, 9, 3, []at{{t: 0, desired: 7, want: 4, by: hpa.LimitBounds}, {t: 900, desired: 1, want: 4, by: hpa.LimitBounds}}},
		"recommendations beyond the bounds": {hpa.Behavior{ScaleUp: free, ScaleDown: free}, 4, 2, 9, []at{
			{t: 0, desired: 100, want: 9, by: hpa.LimitMax}, {t: 1, desired: 0, want: 2, by: hpa.LimitMin}, {t: 2, desired: 2, want: 2}}},
		"opposite moves in a period widen the budget": {hpa.Behavior{ScaleUp: rules(0, "Max", pods(4, 60)), ScaleDown: free}, 10, 1, 90, []at{
			{t: 0, desired: 14, want: 14}, {t: 1, desired: 5, want: 5}, {t: 2, desired: 90, want: 14, by: hpa.LimitUpRate}}},
		// Going down has no period longer than 1 s, but what was removed counts for the
		// minute that going up has: 10 less 5 plus 4 again is 9 from 10, not from 5.
		"an event is kept for the other direction's period": {hpa.Behavior{ScaleUp: rules(0, "Max", pods(1, 60)), ScaleDown: rules(0, "Max", pods(5, 1))}, 10, 1, 90, []at{
			{t: 0, desired: 5, want: 5}, {t: 30, desired: 90, want: 11, by: hpa.LimitUpRate}}},
		"a period is over at its end": {hpa.Behavior{ScaleUp: rules(0, "Max", pods(2, 60)), ScaleDown: free}, 1, 1, 90, []at{
			{t: 0, desired: 90, want: 3, by: hpa.LimitUpRate}, {t: 59.999999999, desired: 90, want: 3, by: hpa.LimitUpRate}, {t: 60, desired: 90, want: 5, by: hpa.LimitUpRate}}},
		"manual scaling up in mid-window": {exact, 3, 1, 50, []at{
			{t: 0, desired: 3, want: 3}, {t: 10, desired: 3, set: 20 + 1, want: 3}}},
		"manual scaling up after a larger recommendation": {exact, 3, 1, 50, []at{
			{t: 0, desired: 7, want: 7}, {t: 10, desired: 3, set: 20 + 1, want: 7, by: hpa.LimitScaleDown}}},
		"manual scaling is no event": {exact, 3, 1, 90, []at{
			{t: 0, desired: 3, want: 3}, {t: 1, desired: 90, set: 10 + 1, want: 20, by: hpa.LimitUpRate}}},
		"manual scaling down leaves our budget used up": {exact, 3, 1, 90, []at{
			{t: 0, desired: 90, want: 7, by: hpa.LimitUpRate}, {t: 1, desired: 90, set: 2 + 1, want: 2, by: hpa.LimitUpRate}, {t: 15, desired: 90, want: 6, by: hpa.LimitUpRate}}},
		"the same moment twice": {exact, 3, 1, 90, []at{{t: 0, desired: 90, want: 7, by: hpa.LimitUpRate}, {t: 0, desired: 90, want: 7, by: hpa.LimitUpRate}}},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, tc.behavior.Validate())
			var s hpa.State
			current := tc.initial
			for i, c := range tc.calls {
				if c.set > 0 {
					current = c.set - 1
				}
				now := time.Duration(math.Round(c.t * 1e9))
				d := tc.behavior.Next(&s, now, current, c.desired, tc.min, tc.max)
				require.Equal(t, c.want, d.Replicas, "call %d: %+v", i, d)
				require.Equal(t, c.by, d.LimitedBy, "call %d: %+v", i, d)
				current = d.Replicas
			}
		})
	}
}

// TestOddCounts: what a caller should not say does no harm.
func TestOddCounts(t *testing.T) {
	b := hpa.DefaultBehavior()
	var s hpa.State
	require.Equal(t, 0, b.Next(&s, 0, -5, 3, 1, 9).Replicas, "below 0 is 0")
	s = hpa.State{}
	d := b.Next(&s, 0, 4, math.MinInt, -7, 9)
	require.Equal(t, 4, d.Replicas)
	require.Equal(t, 0, d.Desired)
	b = hpa.Behavior{ScaleUp: rules(0, "Max", percent(math.MaxInt32, 1), pods(math.MaxInt32, 1)), ScaleDown: rules(0, "Max", percent(100, 1))}
	require.NoError(t, b.Validate())
	s = hpa.State{}
	require.Equal(t, hpa.MaxCount, b.Next(&s, 0, hpa.MaxCount-1, math.MaxInt, 0, math.MaxInt).Replicas)
	require.NoError(t, s.Validate())
}
