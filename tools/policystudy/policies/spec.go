package policies

import (
	"errors"
	"fmt"
	"math"
	"time"

	"remuda/tools/policystudy/peers"
	"remuda/tools/policystudy/scalesim"
)

// Spec is one setting of one policy.
type Spec struct {
	Policy string `json:"policy"`
	// Aim is the share of slots in use that is aimed at, Hold how long wishes are held.
	Aim  float64       `json:"aim,omitempty"`
	Hold time.Duration `json:"hold_ns,omitempty"`
	// Other is the second value of the policy's window or rate (see Grid); without it the one
	// that its authors ship.
	Other bool `json:"other,omitempty"`
	// Replicas is Static's.
	Replicas int `json:"replicas,omitempty"`
	// Goal is Predictive's.
	Goal float64 `json:"goal,omitempty"`
}

// The policies, by the names of their series.
const (
	Static      = "static"
	Season      = "season-static"
	Quantile    = "quantile"
	CapacityWVA = "capacity-wva"
	Capacity    = "capacity-safe"
	HPA         = "hpa"
	HPASeason   = "hpa-season"
	Replicate   = "replicate"
	Utilization = "utilization"
	KPA         = "kpa"
	Predictive  = "predictive"
)

// Names are all of them, peers first.
func Names() []string {
	return []string{Static, Season, Quantile, CapacityWVA, Capacity, HPA, HPASeason, Replicate, Utilization, KPA, Predictive}
}

// Setting tells settings of a policy apart.
func (s Spec) Setting() string {
	switch s.Policy {
	case Static:
		return fmt.Sprintf("replicas=%d", s.Replicas)
	case Predictive:
		return fmt.Sprintf("goal=%g", s.Goal)
	}
	text := fmt.Sprintf("aim=%g hold=%v", s.Aim, s.Hold)
	if s.Other {
		text += " other"
	}
	return text
}

// New makes the policy.
func (s Spec) New() (scalesim.Policy, error) {
	if s.Policy != Static && s.Policy != Predictive {
		if err := s.valid(); err != nil {
			return nil, err
		}
	}
	switch s.Policy {
	case Static:
		return peers.Static(s.Replicas), nil
	case Season:
		return &held{Policy: &seasonPolicy{name: Season, aim: s.Aim, pace: time.Minute}, hold: s.Hold, pace: time.Minute}, nil
	case Quantile:
		return &quantilePolicy{aim: s.Aim, window: max(int(s.Hold/(30*time.Second)), 1)}, nil
	case CapacityWVA, Capacity:
		return newCapacity(s)
	case HPA:
		return newHPA(s)
	case HPASeason:
		basis, err := newHPA(s)
		return &seasonPolicy{name: HPASeason, aim: s.Aim, basis: basis, pace: 15 * time.Second}, err
	case Replicate:
		return newReplicate(s)
	case Utilization:
		return newUtilization(s)
	case KPA:
		c := peers.DefaultKnativeConfig()
		if s.Other {
			c.StableWindow, c.PanicWindow = 5*time.Minute, 30*time.Second
		}
		c.TargetUtilization, c.ScaleDownDelay = s.Aim, min(s.Hold, time.Hour)
		k, err := peers.NewKnative(c)
		if err != nil || s.Hold <= time.Hour {
			return k, err
		}
		return &held{Policy: k, hold: s.Hold, pace: k.Interval()}, nil
	case Predictive:
		return NewPredictive(s.Goal)
	}
	return nil, fmt.Errorf("policy is %q: it must be one of %v", s.Policy, Names())
}

func (s Spec) valid() error {
	var errs []error
	if !(s.Aim > 0 && s.Aim <= 1) {
		errs = append(errs, fmt.Errorf("aim is %v: it must be above 0 and at most 1", s.Aim))
	}
	if s.Hold < 0 || s.Hold > 24*time.Hour || s.Hold%time.Second != 0 {
		errs = append(errs, fmt.Errorf("hold is %v: it must be whole seconds from 0 to 24h", s.Hold))
	}
	return errors.Join(errs...)
}

// Grid is what the policies are tuned on. Besides Aims and Holds, these have a second value of
// their window or rate: KPA (windows of 5 min and 30 s beside 1 min and 6 s), HPA (a tolerance
// of 0.02 beside 0.1) and Replicate (growth without a limit beside +5 or 100 % a minute).
type Grid struct {
	Aims  []float64       `json:"aims"`
	Holds []time.Duration `json:"holds_ns"`
	// Statics are multiples of the mean load that Static is tried with.
	Statics []float64 `json:"statics"`
	Goals   []float64 `json:"goals"`
}

// DefaultGrid has 8 settings for each peer and 16 for those with a second value.
func DefaultGrid() Grid {
	return Grid{Aims: []float64{0.6, 0.7, 0.8, 0.9},
		Holds:   []time.Duration{15 * time.Minute, time.Hour},
		Statics: []float64{1, 1.1, 1.25, 1.5, 1.75, 2, 2.25, 2.5, 3, 4},
		Goals:   []float64{0.998, 0.999, 0.9995}}
}

// Specs are the settings of a policy for a trace with so many erlangs.
func (g Grid) Specs(policy string, offered float64, slots int) ([]Spec, error) {
	var out []Spec
	switch policy {
	case Static:
		seen := map[int]bool{}
		for _, m := range g.Statics {
			if n := int(math.Ceil(m * offered / float64(slots))); !seen[n] {
				seen[n] = true
				out = append(out, Spec{Policy: policy, Replicas: n})
			}
		}
	case Predictive:
		for _, goal := range g.Goals {
			out = append(out, Spec{Policy: policy, Goal: goal})
		}
	case Season, Quantile, CapacityWVA, Capacity, HPA, HPASeason, Replicate, Utilization, KPA:
		for _, aim := range g.Aims {
			for _, hold := range g.Holds {
				out = append(out, Spec{Policy: policy, Aim: aim, Hold: hold})
				if policy == KPA || policy == HPA || policy == Replicate {
					out = append(out, Spec{Policy: policy, Aim: aim, Hold: hold, Other: true})
				}
			}
		}
	default:
		return nil, fmt.Errorf("policy is %q: it must be one of %v", policy, Names())
	}
	return out, nil
}
