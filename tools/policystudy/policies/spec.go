package policies

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
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
	// Replicas is Static's.
	Replicas int `json:"replicas,omitempty"`
	// Goal and Lower are Predictive's: the share aimed at, and how much must be too much
	// before it shrinks (more is fewer actions).
	Goal  float64 `json:"goal,omitempty"`
	Lower float64 `json:"lower,omitempty"`
}

// The policies, by the names of their series.
const (
	Static      = "static"
	CapacityWVA = "capacity-wva"
	Capacity    = "capacity-safe"
	HPA         = "hpa"
	Replicate   = "replicate"
	Utilization = "utilization"
	KPA         = "kpa"
	Predictive  = "predictive"
)

// Names are all of them, peers first.
func Names() []string {
	return []string{Static, CapacityWVA, Capacity, HPA, Replicate, Utilization, KPA, Predictive}
}

// Setting tells settings of a policy apart.
func (s Spec) Setting() string {
	switch s.Policy {
	case Static:
		return fmt.Sprintf("replicas=%d", s.Replicas)
	case Predictive:
		return fmt.Sprintf("goal=%g lower=%g", s.Goal, s.Lower)
	}
	return fmt.Sprintf("aim=%g hold=%v", s.Aim, s.Hold)
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
	case CapacityWVA, Capacity:
		return newCapacity(s)
	case HPA:
		return newHPA(s)
	case Replicate:
		return newReplicate(s)
	case Utilization:
		return newUtilization(s)
	case KPA:
		c := peers.DefaultKnativeConfig()
		c.TargetUtilization, c.ScaleDownDelay = s.Aim, min(s.Hold, time.Hour)
		k, err := peers.NewKnative(c)
		if err != nil || s.Hold <= time.Hour {
			return k, err
		}
		return &held{Policy: k, hold: s.Hold, pace: k.Interval()}, nil
	case Predictive:
		return NewPredictive(s.Goal, s.Lower)
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

// Grid is what the policies are tuned on.
type Grid struct {
	Aims  []float64       `json:"aims"`
	Holds []time.Duration `json:"holds_ns"`
	// Statics are multiples of the mean load that Static is tried with.
	Statics []float64 `json:"statics"`
	Goals   []float64 `json:"goals"`
	Lowers  []float64 `json:"lowers"`
}

// DefaultGrid has 40 settings for each peer: from what its authors ship to holds of two hours,
// which only a trace with outages asks for. Predictive has fourteen.
func DefaultGrid() Grid {
	return Grid{Aims: []float64{0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95},
		Holds:   []time.Duration{2 * time.Minute, 5 * time.Minute, 15 * time.Minute, time.Hour, 2 * time.Hour},
		Statics: []float64{1, 1.25, 1.5, 1.75, 2, 2.5, 3, 4},
		Goals:   []float64{0.99, 0.995, 0.998, 0.999, 0.9993, 0.9995, 0.9998}, Lowers: []float64{0.1, 0.2}}
}

// Specs are the settings of a policy for a trace with so many erlangs.
func (g Grid) Specs(policy string, offered float64, slots int) ([]Spec, error) {
	lines, err := g.Lines(policy, offered, slots)
	return slices.Concat(lines...), err
}

// Lines are the same settings in groups. Within a group only one number differs, and each
// setting is leaner than the one before it.
func (g Grid) Lines(policy string, offered float64, slots int) ([][]Spec, error) {
	if !slices.Contains(Names(), policy) {
		return nil, fmt.Errorf("policy is %q: it must be one of %v", policy, Names())
	}
	var out [][]Spec
	switch policy {
	case Static:
		var line []Spec
		for _, m := range g.Statics {
			line = append(line, Spec{Policy: policy, Replicas: int(math.Ceil(m * offered / float64(slots)))})
		}
		out = append(out, line)
	case Predictive:
		for _, lower := range g.Lowers {
			var line []Spec
			for _, goal := range g.Goals {
				line = append(line, Spec{Policy: policy, Goal: goal, Lower: lower})
			}
			out = append(out, line)
		}
	default:
		for _, hold := range g.Holds {
			var line []Spec
			for _, aim := range g.Aims {
				line = append(line, Spec{Policy: policy, Aim: aim, Hold: hold})
			}
			out = append(out, line)
		}
	}
	some := false
	for i, line := range out {
		slices.SortFunc(line, func(a, b Spec) int {
			return cmp.Or(cmp.Compare(b.Replicas, a.Replicas), cmp.Compare(b.Goal, a.Goal), cmp.Compare(a.Aim, b.Aim))
		})
		out[i] = slices.Compact(line)
		some = some || len(line) > 0
	}
	if !some {
		return nil, fmt.Errorf("the grid has no setting for %q", policy)
	}
	return out, nil
}
