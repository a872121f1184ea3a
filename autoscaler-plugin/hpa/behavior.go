package hpa

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Words of a Behavior.
const (
	SelectMax      = "Max"      // the policy that allows the largest change counts
	SelectMin      = "Min"      // the policy that allows the smallest change counts
	SelectDisabled = "Disabled" // no change in this direction

	Pods    = "Pods"    // a policy's value is a number of replicas
	Percent = "Percent" // a policy's value is a percentage of the count at the period's start
)

// MaxSeconds is the longest window, period or gap: seven days.
const MaxSeconds = 7 * 24 * 60 * 60

// Behavior says how fast a count may follow what is recommended (rules 4 and 5 of the
// package comment; Kubernetes' HorizontalPodAutoscalerBehavior).
type Behavior struct {
	ScaleUp   Rules `json:"scale_up"`
	ScaleDown Rules `json:"scale_down"`
	// MaxGapSeconds is the most time, in seconds, that one call of Next passes, whatever
	// the clock says. Longer gaps are a clock that jumped, a suspended host or a stopped
	// autoscaler: nobody watched, so they count no more than this. It should be a few times
	// the interval between calls, as windows last longer where it is shorter than that.
	// 0 takes every gap as it is.
	MaxGapSeconds int `json:"max_gap_seconds,omitempty"`
	// FromZero: a count of 0 that others made is a count like any other. Without it such a
	// count stays 0, whatever min is, as in Kubernetes, where it means that scaling is
	// switched off; a 0 that we scaled to can be left either way.
	FromZero bool `json:"from_zero,omitempty"`
}

// Rules are one direction's.
type Rules struct {
	// StabilizationWindowSeconds is for how long, in seconds, recommendations are
	// remembered. A count rises to the smallest of them at most, and falls to the largest.
	StabilizationWindowSeconds int `json:"stabilization_window_seconds"`
	// SelectPolicy is Max, Min or Disabled. Empty is Max.
	SelectPolicy string `json:"select_policy"`
	// Policies limit the change within a period.
	Policies []Policy `json:"policies"`
}

// Policy limits the change within a period, counted from what there was at its start.
type Policy struct {
	Type          string `json:"type"`           // Pods or Percent
	Value         int    `json:"value"`          // replicas or percent, above 0
	PeriodSeconds int    `json:"period_seconds"` // seconds, above 0
}

// DefaultBehavior is Kubernetes' default: up at once by the larger of 4 replicas and
// 100 % in 15 s, down without limit once nothing larger was recommended for 300 s. A gap
// counts for 60 s at most.
func DefaultBehavior() Behavior {
	return Behavior{
		ScaleUp: Rules{
			SelectPolicy: SelectMax,
			Policies:     []Policy{{Type: Pods, Value: 4, PeriodSeconds: 15}, {Type: Percent, Value: 100, PeriodSeconds: 15}},
		},
		ScaleDown: Rules{
			StabilizationWindowSeconds: 300,
			SelectPolicy:               SelectMax,
			Policies:                   []Policy{{Type: Percent, Value: 100, PeriodSeconds: 15}},
		},
		MaxGapSeconds: 60,
	}
}

// unread is what a Behavior is before JSON is read into it: the defaults, but without
// policies, as encoding/json would read new ones over old ones.
func unread(d Behavior) Behavior {
	d.ScaleUp.Policies, d.ScaleDown.Policies = nil, nil
	return d
}

// withPolicies adds the default policies where JSON named none.
func (b Behavior) withPolicies(d Behavior) Behavior {
	if b.ScaleUp.Policies == nil {
		b.ScaleUp.Policies = d.ScaleUp.Policies
	}
	if b.ScaleDown.Policies == nil {
		b.ScaleDown.Policies = d.ScaleDown.Policies
	}
	return b
}

// ParseBehavior reads a Behavior from JSON, checked. What the JSON leaves out is as in
// DefaultBehavior, field by field, as in Kubernetes; unknown fields are refused.
func ParseBehavior(raw []byte) (Behavior, error) {
	d := DefaultBehavior()
	b := unread(d)
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&b); err != nil {
		return Behavior{}, fmt.Errorf("read the behavior: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Behavior{}, errors.New("read the behavior: unexpected data after the first JSON value: must be one object")
	}
	b = b.withPolicies(d)
	if err := b.Validate(); err != nil {
		return Behavior{}, err
	}
	return b, nil
}

// Validate names every bad field. As in Kubernetes, a direction needs at least one
// policy: Percent 100 going down sets no limit, and Disabled goes nowhere.
func (b *Behavior) Validate() error {
	err := errors.Join(b.ScaleUp.validate("behavior.scale_up"), b.ScaleDown.validate("behavior.scale_down"))
	return errors.Join(err, within("behavior.max_gap_seconds", b.MaxGapSeconds, 0, MaxSeconds))
}

func (r *Rules) validate(name string) error {
	errs := []error{within(name+".stabilization_window_seconds", r.StabilizationWindowSeconds, 0, MaxSeconds)}
	switch r.SelectPolicy {
	case "", SelectMax, SelectMin, SelectDisabled:
	default:
		errs = append(errs, fmt.Errorf("%s.select_policy is %q: must be %s, %s or %s", name, r.SelectPolicy, SelectMax, SelectMin, SelectDisabled))
	}
	if len(r.Policies) == 0 {
		errs = append(errs, fmt.Errorf("%s.policies is empty: must have at least one policy (omit the field for the defaults)", name))
	}
	for i, p := range r.Policies {
		at := fmt.Sprintf("%s.policies[%d]", name, i)
		if p.Type != Pods && p.Type != Percent {
			errs = append(errs, fmt.Errorf("%s.type is %q: must be %s or %s", at, p.Type, Pods, Percent))
		}
		errs = append(errs, within(at+".value", p.Value, 1, MaxCount), within(at+".period_seconds", p.PeriodSeconds, 1, MaxSeconds))
	}
	return errors.Join(errs...)
}

// within tells that a field's value is outside what it may be.
func within(name string, value, low, high int) error {
	if value < low || value > high {
		return fmt.Errorf("%s is %d: must be %d to %d", name, value, low, high)
	}
	return nil
}
