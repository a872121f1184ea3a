package optimizer

import (
	"errors"
	"fmt"
	"math"

	"remuda/autoscaler-plugin/measure"
)

// Config is what the optimizer aims at.
type Config struct {
	// TargetWaitSeconds is how long a request may wait for a slot, TargetProbability
	// the share of the requests that must not wait longer.
	TargetWaitSeconds float64 `json:"target_wait_seconds"`
	TargetProbability float64 `json:"target_probability"`
	// MaxUtilization bounds the arrivals as a share of what the station can serve:
	// nearer to 1 a small error of the fit becomes a large one of the wait.
	MaxUtilization float64 `json:"max_utilization"`
	// Caution is by how many standard errors of the fit the service times are taken to
	// be longer than fitted.
	Caution float64 `json:"caution"`
	// MaxReplicas is the most replicas of a variant without a bound of its own. An
	// answer that would need more is refused.
	MaxReplicas int `json:"max_replicas"`
	// MaxEvaluations bounds the search, in evaluated mixes. Answer.Proven tells
	// whether it sufficed.
	MaxEvaluations int `json:"max_evaluations"`
}

// DefaultConfig asks for 99.9 % within two seconds, at most 95 % full, one standard
// error of caution.
func DefaultConfig() Config {
	return Config{
		TargetWaitSeconds: 2, TargetProbability: 0.999, MaxUtilization: 0.95, Caution: 1,
		MaxReplicas: 256, MaxEvaluations: 2000,
	}
}

// Validate names every wrong field at once.
func (c Config) Validate() error {
	var errs []error
	want := func(ok bool, field string, value any, expected string) {
		if !ok {
			errs = append(errs, fmt.Errorf("%s is %v: must be %s", field, value, expected))
		}
	}
	want(c.TargetWaitSeconds >= 0 && !math.IsInf(c.TargetWaitSeconds, 1), "target_wait_seconds", c.TargetWaitSeconds, "0 or more, finite")
	want(c.TargetProbability > 0 && c.TargetProbability < 1, "target_probability", c.TargetProbability, "a share between 0 and 1, both excluded")
	want(c.MaxUtilization > 0 && c.MaxUtilization < 1, "max_utilization", c.MaxUtilization, "a share between 0 and 1, both excluded")
	want(c.Caution >= 0 && c.Caution <= 10, "caution", c.Caution, "0 to 10 standard errors")
	want(c.MaxReplicas >= 1 && c.MaxReplicas <= 100_000, "max_replicas", c.MaxReplicas, "1 to 100000")
	want(c.MaxEvaluations >= 1, "max_evaluations", c.MaxEvaluations, "1 or more")
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("optimizer config: %w", err)
	}
	return nil
}

// DefaultCost is the cost of a replica that names none, as in package capacity.
const DefaultCost = 10

// Variant is one way to run the model.
type Variant struct {
	Variant string `json:"variant"`
	// Cost is per replica and hour; absent is DefaultCost.
	Cost measure.Value `json:"cost,omitzero"`
	// Slots is how many requests a replica serves at once.
	Slots int `json:"slots"`
	// Current is how many replicas there are, Min and Max bound the answer. A Max of 0
	// is no bound.
	Current int `json:"current"`
	Min     int `json:"min,omitempty"`
	Max     int `json:"max,omitempty"`
	// Unplaceable variants are not chosen for growth.
	Unplaceable bool     `json:"unplaceable,omitempty"`
	Samples     []Sample `json:"samples,omitempty"`
}

// Input is what is known of one model.
type Input struct {
	Model string `json:"model"`
	// ArrivalsPerSecond is the rate of requests to plan for.
	ArrivalsPerSecond measure.Value `json:"arrivals_per_second"`
	// ArrivalSCV and ServiceSCV are the measured variability (see Traffic). Absent is 1.
	ArrivalSCV measure.Value `json:"arrival_scv,omitzero"`
	ServiceSCV measure.Value `json:"service_scv,omitzero"`
	Variants   []Variant     `json:"variants"`
}

// Report is what is known of one variant.
type Report struct {
	Variant string `json:"variant"`
	// Curve is the fit, Belief how far to believe it, Refusal why there is none.
	Curve   Curve    `json:"curve,omitzero"`
	Belief  Belief   `json:"belief"`
	Refusal *Refusal `json:"refusal,omitempty"`
	// Alone is how many replicas of this variant hold the target with every other
	// variant at its least; 0 where no allowed number does.
	Alone  int `json:"alone,omitempty"`
	Target int `json:"target"`
}

// Answer is the optimizer's.
type Answer struct {
	Model string `json:"model"`
	// Targets has every variant of the input, or is empty after a refusal.
	Targets map[string]int `json:"model_based_targets,omitempty"`
	Refusal *Refusal       `json:"refusal,omitempty"`
	// Holds tells that the targets hold the target wait. Where they do not, they are
	// all that the bounds allow.
	Holds bool `json:"holds"`
	// Proven tells that no cheaper mix holds it.
	Proven bool `json:"proven"`
	// CostPerHour is that of the targets, Wait and Probability what they will give.
	CostPerHour float64  `json:"cost_per_hour"`
	Wait        Wait     `json:"wait"`
	Probability float64  `json:"probability"`
	Reason      string   `json:"reason"`
	Variants    []Report `json:"variants"` // in the order of their names
}
