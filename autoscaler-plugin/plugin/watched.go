package plugin

import (
	"math"
	"time"
)

// breakAfter is how long the load may go unobserved before the windows start again. A restart
// of nomad-autoscaler takes less. An agent that waits for longer while another one leads has a
// state that is too old to remove anything by.
const breakAfter = 5 * time.Minute

// mostWatched is the longest time that is counted.
const mostWatched = 365 * 24 * time.Hour

// window is what the strategy must have observed before it removes anything.
func (c *Call) window() time.Duration {
	switch o := &c.Options; {
	case o.Capacity != nil:
		return o.Capacity.Hold
	case o.HPA != nil:
		return time.Duration(o.HPA.behavior().ScaleDown.StabilizationWindowSeconds) * time.Second
	case o.Utilization != nil:
		return o.Utilization.Window
	case o.Predictive != nil:
		return time.Duration(o.Predictive.Config.PaybackSeconds) * time.Second
	}
	return 0
}

// longestGap is the most time that may pass between two decisions and counts as observed. A
// behavior of remuda-hpa has its own, for policies that are rarely evaluated.
func (c *Call) longestGap() time.Duration {
	if c.Options.HPA == nil {
		return maxGap
	}
	if s := c.Options.HPA.behavior().MaxGapSeconds; s > 0 {
		return time.Duration(s) * time.Second
	}
	return math.MaxInt64
}

// broke reports whether a time without a decision ends all windows.
func (c *Call) broke(gap time.Duration) bool { return gap > max(breakAfter, c.longestGap()) }

// watch counts the time in which the strategy could observe the load.
func (c *Call) watch(s *State) {
	gap := time.Duration(c.Now - s.WatchedAt)
	switch {
	case s.WatchedAt == 0 || c.broke(gap):
		s.WatchedFor = 0
	case gap > 0: // else the clock went back
		s.WatchedFor = min(s.WatchedFor+min(gap, c.longestGap(), mostWatched), mostWatched)
	}
	s.WatchedAt = c.Now
}
