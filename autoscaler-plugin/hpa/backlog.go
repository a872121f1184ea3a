package hpa

import (
	"errors"
	"fmt"
)

// Backlog is the queue-based form of Replicate's scaler: each replica should have Target
// requests of the queue.
type Backlog struct {
	// Target is how many requests of the queue each replica is to have, in thousandths.
	Target Milli `json:"target_milli"`
	// Headroom is how many requests are added to the queue, so that as many find room at once.
	Headroom int `json:"headroom,omitempty"`
	// Hysteresis is by which share of the target the backlog of a replica must be off for
	// the count to move, in thousandths: smaller differences are ignored. Replicate uses 0.02.
	Hysteresis Milli `json:"hysteresis_milli"`
	// Behavior has the windows and policies. Its FromZero is not needed here: the first
	// request wakes the target.
	Behavior Behavior `json:"behavior"`
	// Min and Max bound the count.
	Min int `json:"min"`
	Max int `json:"max"`
	// MinOverride is used in place of Min, where it is set (Replicate's "override min replicas").
	MinOverride *int `json:"min_override,omitempty"`
	// SlowStart is the largest count until the first replica is ready; Replicate uses 5. It
	// removes no replica. 0 is no such limit.
	SlowStart int `json:"slow_start,omitempty"`
	// ScaleToZero lets a target without requests go to 0 replicas, where the min is 0.
	// Without it the last replica stays (Replicate's kill switch).
	ScaleToZero bool `json:"scale_to_zero,omitempty"`
	// IdleSeconds is for how long there must have been no request before that, in seconds.
	IdleSeconds int `json:"idle_seconds,omitempty"`
	// Cap is the emergency cap: no answer is above it, whatever min, windows and policies
	// say. Nil is no cap.
	Cap *int `json:"emergency_cap,omitempty"`
}

// DefaultBacklog has Replicate's numbers: up by the larger of 5 and 100 % a minute to the
// smallest recommendation of 30 s, down without limit to the largest of two minutes,
// hysteresis 0.02, slow start 5, min 0. Replicate publishes no idle delay, target and max:
// five minutes, 1 and 100 are ours.
func DefaultBacklog() Backlog {
	return Backlog{
		Target:     1000,
		Hysteresis: 20,
		Behavior: Behavior{
			ScaleUp: Rules{
				StabilizationWindowSeconds: 30,
				SelectPolicy:               SelectMax,
				Policies:                   []Policy{{Type: Pods, Value: 5, PeriodSeconds: 60}, {Type: Percent, Value: 100, PeriodSeconds: 60}},
			},
			ScaleDown: Rules{
				StabilizationWindowSeconds: 120,
				SelectPolicy:               SelectMax,
				Policies:                   []Policy{{Type: Percent, Value: 100, PeriodSeconds: 60}},
			},
			MaxGapSeconds: 60,
		},
		Max:         100,
		SlowStart:   5,
		ScaleToZero: true,
		IdleSeconds: 300,
	}
}

// Validate names every bad field.
func (b *Backlog) Validate() error {
	var errs []error
	if b.Target <= 0 || b.Target > MaxMilli {
		errs = append(errs, fmt.Errorf("target_milli is %d: must be 1 to %d", b.Target, MaxMilli))
	}
	errs = append(errs,
		within("headroom", b.Headroom, 0, MaxCount),
		within("hysteresis_milli", int(b.Hysteresis), 0, 1000),
		b.Behavior.Validate(),
		within("min", b.Min, 0, MaxCount),
		within("max", b.Max, 1, MaxCount),
		within("slow_start", b.SlowStart, 0, MaxCount),
		within("idle_seconds", b.IdleSeconds, 0, MaxSeconds))
	if b.MinOverride != nil {
		errs = append(errs, within("min_override", *b.MinOverride, 0, MaxCount))
	}
	if b.Cap != nil {
		errs = append(errs, within("emergency_cap", *b.Cap, 0, MaxCount))
	}
	if low := b.min(); low > b.Max {
		errs = append(errs, fmt.Errorf("min is %d and max is %d: min must be at most max", low, b.Max))
	}
	return errors.Join(errs...)
}

// min is the min that counts.
func (b *Backlog) min() int {
	if b.MinOverride != nil {
		return *b.MinOverride
	}
	return b.Min
}

// Observed is what a target looks like now.
type Observed struct {
	// Current is the count now, Ready how many of them can serve.
	Current int `json:"current"`
	Ready   int `json:"ready"`
	// Queue is the queue's length: requests that wait, and those being served as well if
	// Target counts them.
	Queue int64 `json:"queue"`
	// Running is how many requests are being served. A target that serves one is not idle.
	Running int64 `json:"running,omitempty"`
	// Requests is a counter of all requests so far, where there is one: a target whose
	// counter moved, in whichever direction, was not idle since the last call.
	Requests int64 `json:"requests,omitempty"`
	// Unknown says why Queue or Running is not known; empty where they are.
	Unknown string `json:"unknown,omitempty"`
}

// unknown says why the numbers cannot be used, and is empty where they can.
func (o *Observed) unknown() string {
	switch {
	case o.Unknown != "":
		return o.Unknown
	case o.Queue < 0:
		return fmt.Sprintf("the queue length is %d: must be 0 or more", o.Queue)
	case o.Running < 0:
		return fmt.Sprintf("the number of running requests is %d: must be 0 or more", o.Running)
	}
	return ""
}
