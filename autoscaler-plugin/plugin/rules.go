package plugin

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"remuda/autoscaler-plugin/allocate"
	"remuda/autoscaler-plugin/capacity"
	"remuda/autoscaler-plugin/hpa"
	"remuda/autoscaler-plugin/observe"
	"remuda/autoscaler-plugin/utilization"
)

// capacity is remuda-capacity (package capacity).
func (c *Call) capacity(a *Answer) {
	rules, err := capacity.ParseRules(c.Options.Capacity.Rules)
	if err != nil {
		a.Reason = err.Error()
		return
	}
	in := c.Snapshot.Capacity(rules, c.Options.Capacity.Config)
	answer, err := capacity.Explain(rules, in)
	if err != nil {
		a.Reason = "invalid input of the capacity analyzer: " + strings.ReplaceAll(err.Error(), "\n", "; ")
		a.Inert = a.Reason
		return
	}
	a.Capacity = &answer
	var changed []string
	for name, d := range answer.Decisions {
		if _, ours := a.Targets[name]; !ours {
			continue // it reports, and nobody counts it
		}
		a.Targets[name] = d.Target
		if d.Target != d.Current {
			changed = append(changed, fmt.Sprintf("%s from %d to %d: %s", name, d.Current, d.Target, d.Reason))
		}
	}
	slices.Sort(changed)
	switch {
	case len(changed) > 0:
		a.Reason = strings.Join(changed, "; ")
	case answer.ScaleUp:
		a.Reason = answer.ScaleUpReason + ", but no variant can grow now"
	case answer.ScaleDownHold != "":
		a.Reason = "no change: " + answer.ScaleDownHold
	default:
		a.Reason = "no change: the capacity fits the load"
	}
}

// CapacityInput is what the capacity analyzer is asked, as `remuda capacity explain` reads it.
func (c *Call) CapacityInput() capacity.Input {
	d, _, _ := c.prepared()
	rules, _ := capacity.ParseRules(c.Options.Capacity.Rules) // an unknown name decides nothing
	return d.Snapshot.Capacity(rules, c.Options.Capacity.Config)
}

// hpa is remuda-hpa (package hpa).
func (c *Call) hpa(a *Answer, s *State, variants []allocate.Variant, low, high int) {
	if s.HPA == nil {
		s.HPA = &hpa.State{}
	}
	// The policy's own bounds, a cooldown, the model's bounds or missing places may have let a
	// part of the last answer through, or nothing.
	s.HPA.Done(a.Current)
	now := time.Duration(c.Now)
	o := c.Options.HPA
	var d hpa.Decision
	if o.Backlog != nil {
		b := *o.Backlog
		b.Min, b.Max = low, min(high, hpa.MaxCount)
		seen := c.Snapshot.Backlog(o.Metric == observe.MetricRunning)
		if seen.Unknown != "" {
			a.Inert = seen.Unknown
		}
		d = b.Next(s.HPA, now, seen)
	} else {
		r := c.recommend(o)
		a.Recommended = &r
		if r.Unknown {
			a.Inert = r.Reason
		}
		d = o.Behavior.Next(s.HPA, now, a.Current, r.Replicas, low, min(high, hpa.MaxCount))
		d.Reason = r.Reason + ": " + d.Reason
	}
	a.HPA, a.Reason = &d, d.Reason
	a.Targets = allocate.Spread(d.Replicas, variants, nil)
}

// recommend applies rules 1 to 3 of package hpa to the chosen metric.
func (c *Call) recommend(o *HPAOptions) hpa.Recommendation {
	if o.Metric != observe.MetricQueue {
		return c.Snapshot.Measured(o.Metric, o.Now, o.Target, o.Tolerance).Desired()
	}
	average, why := c.Snapshot.Average(o.Target, o.Tolerance)
	if why != "" {
		return hpa.Recommendation{Replicas: c.Snapshot.Current(), Why: hpa.WhyNoMetric, Unknown: true, Reason: why + ": the count is held"}
	}
	return average.Desired()
}

// utilization is remuda-utilization (package utilization).
func (c *Call) utilization(a *Answer, s *State, variants []allocate.Variant, low, high int) {
	snap := &c.Snapshot
	config := c.Options.Utilization.Config
	config.MinCount, config.MaxCount = max(config.MinCount, low), min(config.MaxCount, high)
	if config.MaxConcurrency == 0 {
		config.MaxConcurrency = c.slots()
	}
	if snap.Management == string(utilization.Upscaling) {
		config.Management = utilization.Upscaling
	}
	in := snap.Utilization()
	in.InferenceSecondsPerMinute, in.ForecastSecondsPerMinute = c.Usage, c.Forecast
	in.OutOfCapacityPerMinute = c.Refused
	if !c.Finished.IsZero() {
		in.SuccessfulPerMinute = c.Finished
	}
	if !c.Arrived.IsZero() {
		in.RequestsPerMinute = c.Arrived
	}
	in.Tier = c.Options.Utilization.Tier
	if in.Tier != s.Tier {
		if s.Tier != "" {
			s.TierSince = c.Now
		}
		s.Tier = in.Tier
	}
	if s.TierSince != 0 {
		in.TierChanged = time.Unix(0, s.TierSince)
	}
	in.RemovedInCycle, in.ShedInCycle = s.removed(c.Now, c.Options.Utilization.Cycle, a.Current)
	d := utilization.Decide(config, in)
	a.Utilization, a.Reason = &d, d.Reason
	if d.Inert() {
		a.Inert = d.Reason
	}
	a.Targets = allocate.Spread(d.Target, variants, nil)
	if n := a.Current - allocate.Sum(a.Targets); n > 0 {
		s.Before = a.Current
		s.Removals = append(s.Removals, Removal{At: c.Now, Count: n, Shed: d.Code == utilization.ShedsUnhealthy})
	}
}

// slots is how many requests one replica serves at once: of the variants that there are
// replicas of the fewest, as the rule knows one number.
func (c *Call) slots() int {
	fewest := 0
	for _, v := range c.Snapshot.Variants {
		if v.Slots > 0 && v.Current > 0 && (fewest == 0 || v.Slots < fewest) {
			fewest = v.Slots
		}
	}
	return fewest
}
