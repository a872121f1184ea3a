package hpa

import (
	"fmt"
	"time"
)

// Limit names the rule that a Decision was held by.
type Limit string

// The rules that can hold a decision.
const (
	LimitNone      Limit = ""
	LimitScaleUp   Limit = "scale_up_window"   // smaller counts were recommended lately
	LimitScaleDown Limit = "scale_down_window" // larger counts were recommended lately
	LimitUpRate    Limit = "scale_up_policy"   // the policies allow no more in this period
	LimitDownRate  Limit = "scale_down_policy" // the policies allow no less in this period
	LimitDisabled  Limit = "disabled"          // this direction is switched off
	LimitMin       Limit = "min"
	LimitMax       Limit = "max"
	LimitZero      Limit = "switched_off"  // 0 replicas that others made mean that scaling is switched off
	LimitBounds    Limit = "min_above_max" // the bounds contradict each other
	LimitUnknown   Limit = "unknown"       // the metric is not known (Backlog)
	LimitHeld      Limit = "hysteresis"    // the change is too small (Backlog)
	LimitSlowStart Limit = "slow_start"    // no replica has been ready yet (Backlog)
	LimitAwake     Limit = "last_replica"  // one replica stays until the idle delay is over, or comes for a first request (Backlog)
	LimitCap       Limit = "emergency_cap" // the emergency cap (Backlog)
)

// Decision is what a call decided.
type Decision struct {
	// Replicas is how many there should be.
	Replicas int `json:"replicas"`
	// Current is how many there were.
	Current int `json:"current"`
	// Desired is what was recommended.
	Desired int `json:"desired"`
	// Stabilized is what the windows made of it.
	Stabilized int `json:"stabilized"`
	// LimitedBy is the last rule that made Replicas another than it would have been.
	LimitedBy Limit `json:"limited_by,omitempty"`
	// Reason tells a person why, with the numbers.
	Reason string `json:"reason"`
}

// limit takes a rule's answer, where it is another.
func (d *Decision) limit(replicas int, by Limit, format string, args ...any) {
	if replicas != d.Replicas {
		d.Replicas, d.LimitedBy, d.Reason = replicas, by, fmt.Sprintf(format, args...)
	}
}

// Next makes of a recommendation what the count should be now (rules 4 to 6), and
// takes it that this is done: a change is remembered as an event unless
// State.Done says otherwise. A change that somebody else made to the count is not recorded as a scaling event.
//
// now is the caller's clock: the time since any fixed moment, as in
// time.Duration(time.Now().UnixNano()). b must be valid. Counts below 0 are taken for 0.
// With lowest above highest nothing is scaled.
func (b *Behavior) Next(s *State, now time.Duration, current, desired, lowest, highest int) Decision {
	current, desired, lowest, highest = count(current), count(desired), count(lowest), count(highest)
	s.pass(now, b.MaxGapSeconds)
	s.see(current)
	d := Decision{Replicas: current, Current: current, Desired: desired, Stabilized: current}
	switch {
	case lowest > highest:
		d.LimitedBy, d.Reason = LimitBounds, fmt.Sprintf("min is %d and max is %d: min must be at most max, and the count stays until this is corrected", lowest, highest)
	case current == 0 && !s.Zeroed && !b.FromZero:
		d.LimitedBy, d.Reason = LimitZero, "the count was set to 0 from outside: scaling is off until it is set to another count"
	case current > highest:
		d.limit(highest, LimitMax, "%d replicas are above max: down to %d at once", current, highest)
	case current < lowest:
		d.limit(lowest, LimitMin, "%d replicas are below min: up to %d at once", current, lowest)
	default:
		b.stabilize(s, &d)
		b.limitRate(s, &d)
		d.bound(lowest, highest)
	}
	if d.Reason == "" {
		d.Reason = fmt.Sprintf("%d recommended: no limit applies", desired)
	}
	s.act(&d, b.longestPeriod())
	return d
}

// stabilize is rule 4. It stores the raw recommendation.
func (b *Behavior) stabilize(s *State, d *Decision) {
	up, down := seconds(b.ScaleUp.StabilizationWindowSeconds), seconds(b.ScaleDown.StabilizationWindowSeconds)
	low, high := d.Desired, d.Desired
	for _, r := range s.Recommendations {
		if r.Age < up {
			low = min(low, r.Replicas)
		}
		if r.Age < down {
			high = max(high, r.Replicas)
		}
	}
	s.recommend(d.Desired, max(up, down))
	d.Stabilized = min(max(d.Current, low), high)
	d.Replicas = d.Desired
	if d.Stabilized < d.Desired {
		d.limit(d.Stabilized, LimitScaleUp, "%d recommended, but %d was recommended within the last %s", d.Desired, low, up)
	} else {
		d.limit(d.Stabilized, LimitScaleDown, "%d recommended, but %d was recommended within the last %s", d.Desired, high, down)
	}
}

// limitRate is rule 5.
func (b *Behavior) limitRate(s *State, d *Decision) {
	want := d.Replicas
	switch {
	case want > d.Current && b.ScaleUp.SelectPolicy == SelectDisabled:
		d.limit(d.Current, LimitDisabled, "%d recommended, but scaling up is disabled", d.Desired)
	case want > d.Current:
		limit := max(d.Current, b.upLimit(s, d.Current))
		d.limit(min(want, limit), LimitUpRate, "%d recommended, but the scale-up policies allow %d now", want, limit)
	case want < d.Current && b.ScaleDown.SelectPolicy == SelectDisabled:
		d.limit(d.Current, LimitDisabled, "%d recommended, but scaling down is disabled", d.Desired)
	case want < d.Current:
		limit := min(d.Current, b.downLimit(s, d.Current))
		d.limit(max(want, limit), LimitDownRate, "%d recommended, but the scale-down policies allow %d now", want, limit)
	}
}

// bound is rule 6, for a count that was within its bounds.
func (d *Decision) bound(low, high int) {
	d.limit(min(d.Replicas, high), LimitMax, "%d recommended, but max is %d", d.Desired, high)
	d.limit(max(d.Replicas, low), LimitMin, "%d recommended, but min is %d", d.Desired, low)
}

// upLimit is the largest count that the policies allow in this moment.
func (b *Behavior) upLimit(s *State, current int) int {
	limit := -1
	for _, p := range b.ScaleUp.Policies {
		start := current - s.changed(seconds(p.PeriodSeconds))
		allowed := start
		switch {
		case p.Type == Pods:
			allowed = start + p.Value
		case start > 0:
			_, ceil := wideOf(uint64(start)).mul(uint64(100 + p.Value)).quotients(100)
			allowed = countOf(ceil)
		}
		allowed = max(allowed, 0)
		if limit < 0 || (allowed < limit) == (b.ScaleUp.SelectPolicy == SelectMin) {
			limit = allowed
		}
	}
	return limit
}

// downLimit is the smallest count that the policies allow in this moment.
func (b *Behavior) downLimit(s *State, current int) int {
	limit := -1
	for _, p := range b.ScaleDown.Policies {
		start := current - s.changed(seconds(p.PeriodSeconds))
		allowed := 0
		switch {
		case p.Type == Pods:
			allowed = start - p.Value
		case start > 0 && p.Value < 100, start < 0 && p.Value > 100:
			// Below 0, as others removed what we had added, the rule is taken at its word.
			floor, _ := wideOf(uint64(abs(start))).mul(uint64(abs(100 - p.Value))).quotients(100)
			allowed = countOf(floor)
		}
		allowed = max(allowed, 0)
		if limit < 0 || (allowed > limit) == (b.ScaleDown.SelectPolicy == SelectMin) {
			limit = allowed
		}
	}
	if limit < 0 {
		return current
	}
	return limit
}

// longestPeriod is for how long an event can be needed: an event in one direction widens
// the budget of the other, so both directions' policies count.
func (b *Behavior) longestPeriod() time.Duration {
	longest := 0
	for _, rules := range []*Rules{&b.ScaleUp, &b.ScaleDown} {
		for _, p := range rules.Policies {
			longest = max(longest, p.PeriodSeconds)
		}
	}
	return seconds(longest)
}
