package plugin

import (
	"cmp"
	"time"

	"remuda/autoscaler-plugin/predictive"
)

// PredictiveOptions are those of remuda-predictive.
type PredictiveOptions struct {
	Config predictive.Config `json:"config"`
	// TargetWait is how long a request may wait for an engine, ColdStart how long it takes
	// from the start of a replica until it serves, 0: as the controller has measured it, and 110 s
	// until it has; in nanoseconds.
	TargetWait time.Duration `json:"target_wait_ns"`
	ColdStart  time.Duration `json:"cold_start_ns"`
}

// Defaults of what is not measured. The cold start is the middle one of the three that the
// policy study uses (docs/benchmarks.md).
const (
	defaultTargetWait = 2 * time.Second
	defaultColdStart  = 110 * time.Second
	mostColdStart     = time.Hour
)

func readPredictive(r *Settings) *PredictiveOptions {
	c := predictive.DefaultConfig()
	r.Parsed("config", func(s string) error { return decode(s, &c) })
	c.Goal = r.Number("goal", c.Goal, 0.5, 0.999999)
	c.PaybackSeconds = int(r.Duration("payback", time.Duration(c.PaybackSeconds)*time.Second, time.Minute, 24*time.Hour) / time.Second)
	if err := c.Validate(); err != nil {
		r.Fault("config", "is invalid: %w", err)
	}
	return &PredictiveOptions{Config: c, TargetWait: r.Duration("target_wait", defaultTargetWait, 0, time.Hour),
		ColdStart: r.Duration("cold_start", 0, 0, mostColdStart)}
}

// predict asks remuda-predictive (package predictive), which remembers what it saw whatever
// becomes of its answer: also while the model sleeps.
func (c *Call) predict(s *State, low, high int) *predictive.Decision {
	o := c.Options.Predictive
	wait := o.TargetWait
	if goal := c.Snapshot.Goals.FirstToken.Within; goal > 0 {
		wait = min(wait, goal)
	}
	in := c.Snapshot.Predictive(cmp.Or(o.ColdStart, c.coldStart(), defaultColdStart), wait)
	const most = 1_000_000 // predictive.Input.Validate
	if wait == c.Snapshot.Goals.FirstToken.Within {
		in.Late = c.Snapshot.Queue.Late // by that wait
	}
	in.Min, in.Max = min(low, most), min(high, most)
	if s.Predictive == nil {
		s.Predictive = &predictive.State{}
	}
	d := predictive.Next(&o.Config, s.Predictive, &in)
	return &d
}

// coldStart is the longest start that was measured of the variants that may grow, 0 for none. What a
// wake takes is left out: the errors of the forecast are learnt for one time ahead, and WARM replicas
// are not always there.
func (c *Call) coldStart() time.Duration {
	longest := time.Duration(0)
	for _, v := range c.Snapshot.Variants {
		if !v.Removed {
			longest = max(longest, min(v.ColdStart, mostColdStart))
		}
	}
	return longest
}

// predicted takes the answer over.
func (c *Call) predicted(a *Answer) {
	d := a.Predictive
	a.Reason = d.Reason
	if d.Rule == predictive.ByInvalid && c.Snapshot.HotCount() == 0 && c.unsized() {
		a.Reason = "the number of slots per replica is unknown until a replica serves: set slots, or wait for the first replica"
		return
	}
	if d.Inert() {
		a.Inert = d.Reason
	}
	for v := range a.Targets {
		a.Targets[v] = d.Targets[v]
	}
}

// unsized tells whether the slots of no variant are known.
func (c *Call) unsized() bool {
	for _, v := range c.Snapshot.Variants {
		if v.Slots > 0 {
			return false
		}
	}
	return true
}
