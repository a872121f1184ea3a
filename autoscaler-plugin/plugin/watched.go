package plugin

import (
	"fmt"
	"math"
	"time"

	"remuda/autoscaler-plugin/allocate"
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
		return time.Duration(o.Predictive.Config.HoldSeconds) * time.Second
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

// holdUntilWatched removes nothing before the load was observed for one full window: after a
// start without a state, after a break, and where another agent led. What is above the model's
// max does not wait.
func (c *Call) holdUntilWatched(a *Answer, s *State, variants []allocate.Variant, high int) {
	if a.Inert == "" {
		c.watch(s)
	}
	window := c.window()
	if s.WatchedFor >= window {
		return
	}
	held := false
	if a.Current > high {
		if held = allocate.Sum(a.Targets) < high; held {
			a.Targets = allocate.Spread(high, variants, nil)
		}
	} else {
		held = len(c.keepCurrent(a, high)) > 0
	}
	if held {
		a.Reason = fmt.Sprintf("scale-down waits, because the load was observed for only %s of the required %s: %s", s.WatchedFor.Round(time.Second), window, a.Reason)
	}
}
