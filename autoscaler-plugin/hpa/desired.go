package hpa

import (
	"errors"
	"fmt"
)

// maxTolerance is the largest tolerance, 1000 = a million thousandths.
const maxTolerance Milli = 1_000_000

// Tolerance is how far the ratio of metric and target may be from 1 without a change
// (rule 1), both ends included. 100 is 0.1.
type Tolerance struct {
	// Up is how far the ratio may be above 1 before the count grows.
	Up Milli `json:"up_milli"`
	// Down is how far the ratio may be below 1 before the count shrinks.
	Down Milli `json:"down_milli"`
}

// DefaultTolerance is Kubernetes' 0.1 both ways.
func DefaultTolerance() Tolerance { return Tolerance{Up: 100, Down: 100} }

// Validate names every bad field.
func (t Tolerance) Validate() error {
	return errors.Join(within("tolerance.up_milli", int(t.Up), 0, int(maxTolerance)), within("tolerance.down_milli", int(t.Down), 0, int(maxTolerance)))
}

// Why says by which rule a count was recommended.
type Why string

// The rules.
const (
	WhyRatio      Why = "ratio"      // the metric's ratio to its target
	WhyTolerance  Why = "tolerance"  // the ratio is within its tolerance: hold
	WhyDirection  Why = "direction"  // missing or unready replicas turn the direction: hold
	WhyFromZero   Why = "from_zero"  // from 0 replicas there is no tolerance
	WhyNoMetric   Why = "no_metric"  // no replica has a metric: hold
	WhyImpossible Why = "impossible" // the metric is negative or too large: hold
	WhyTarget     Why = "target"     // the target cannot be: hold
)

// Recommendation is a raw recommendation, which Behavior.Next takes.
type Recommendation struct {
	Replicas int `json:"replicas"`
	Why      Why `json:"why"`
	// Unknown: the metric says nothing, so Replicas is the current count.
	Unknown bool   `json:"unknown,omitempty"`
	Reason  string `json:"reason"`
}

// Condition is what is known of a replica.
type Condition string

// The conditions. The empty one is Ready.
const (
	Ready   Condition = ""
	Missing Condition = "missing" // it should have a metric and has none, or one that cannot be
	Unready Condition = "unready" // it has not started yet, so what it reports is not its load
)

// Replica is one replica's metric.
type Replica struct {
	Value     Milli     `json:"value_milli"`
	Condition Condition `json:"condition,omitempty"`
}

// Measured is a metric that each replica has, whose average is to be near the target
// (Kubernetes' Resource and Pods metrics, and engines' KV usage or queue length).
type Measured struct {
	// Current is the count now. Replicas that have just been ordered and are not in Replicas
	// are thereby counted as running: no answer above the target ever lowers the count.
	Current   int       `json:"current"`
	Target    Milli     `json:"target_milli"`
	Tolerance Tolerance `json:"tolerance"`
	Replicas  []Replica `json:"replicas"`
}

// Desired applies rules 1 to 3. The order of the replicas does not
// matter. A replica whose value cannot be counts as missing. Whatever is wrong ends in a
// hold with Unknown set.
func (m Measured) Desired() Recommendation {
	current := count(m.Current)
	if r, bad := badTarget(current, m.Target, m.Tolerance); bad {
		return r
	}
	var sum wide
	var ready, missing, unready uint64
	for _, r := range m.Replicas {
		switch {
		case r.Condition == Unready:
			unready++
		case r.Condition != Ready || !r.Value.usable():
			missing++
		default:
			ready++
			sum = sum.plus(wideOf(uint64(r.Value)))
		}
	}
	if ready == 0 {
		return Recommendation{Replicas: current, Why: WhyNoMetric, Unknown: true,
			Reason: fmt.Sprintf("none of %d replicas has a metric (%d missing, %d unready): the count is held", len(m.Replicas), missing, unready)}
	}
	target := wideOf(uint64(m.Target))
	before := sum.cmp(target.mul(ready))
	counted := ready
	if before < 0 && missing > 0 {
		// Each as the target: what they do is unknown, so they are no reason to shrink.
		sum = sum.plus(target.mul(missing))
		counted += missing
	} else if before > 0 {
		counted += missing + unready // each as 0
	}
	full := target.mul(counted)
	after := sum.cmp(full)
	told := fmt.Sprintf("%s over %d replicas against a target of %s", sum, counted, m.Target)
	if missing+unready > 0 {
		told += fmt.Sprintf(" (%d missing, %d unready)", missing, unready)
	}
	switch {
	case before > 0 && after < 0 || before < 0 && after > 0:
		return Recommendation{Replicas: current, Why: WhyDirection, Reason: told + ": counting them would reverse the direction, so the count is held"}
	case m.Tolerance.holds(sum, full):
		return Recommendation{Replicas: current, Why: WhyTolerance, Reason: told + ": within the tolerance"}
	}
	_, ceil := sum.quotients(uint64(m.Target)) // r * counted = sum / target
	return towards(current, countOf(ceil), after, told)
}

// Average is one value for the whole target, of which each replica is to have the target's
// share (Kubernetes' External metrics with an AverageValue, as a queue's length).
type Average struct {
	Current   int       `json:"current"`
	Value     Milli     `json:"value_milli"`
	Target    Milli     `json:"target_milli"` // for each replica
	Tolerance Tolerance `json:"tolerance"`
}

// Desired is ceil(value/target), unless value/(target*current) is within the tolerance.
func (a Average) Desired() Recommendation {
	current := count(a.Current)
	if r, bad := badTarget(current, a.Target, a.Tolerance); bad {
		return r
	}
	if !a.Value.usable() {
		return badValue(current, a.Value)
	}
	value, full := wideOf(uint64(a.Value)), wideOf(uint64(a.Target)).mul(uint64(current))
	told := fmt.Sprintf("%s against a target of %s for each of %d replicas", a.Value, a.Target, current)
	if current > 0 && a.Tolerance.holds(value, full) {
		return Recommendation{Replicas: current, Why: WhyTolerance, Reason: told + ": within the tolerance"}
	}
	_, ceil := value.quotients(uint64(a.Target))
	why := WhyRatio
	if current == 0 {
		why = WhyFromZero
	}
	return Recommendation{Replicas: countOf(ceil), Why: why, Reason: told}
}

// holds is rule 1: (1-down)*full <= sum <= (1+up)*full.
func (t Tolerance) holds(sum, full wide) bool {
	thousand := sum.mul(1000)
	low := max(1000-t.Down, 0)
	return thousand.cmp(full.mul(uint64(low))) >= 0 && thousand.cmp(full.mul(uint64(1000+t.Up))) <= 0
}

// towards refuses a count that lies on the other side of the current one than the metric
// does: fewer replicas than there are, because some are not counted, is no scale-up.
func towards(current, desired, direction int, told string) Recommendation {
	if direction > 0 && desired < current || direction < 0 && desired > current {
		return Recommendation{Replicas: current, Why: WhyDirection,
			Reason: fmt.Sprintf("%s: %d is in the wrong direction from %d, so the count is held", told, desired, current)}
	}
	return Recommendation{Replicas: desired, Why: WhyRatio, Reason: told}
}

func badTarget(current int, target Milli, t Tolerance) (Recommendation, bool) {
	if target <= 0 || target > MaxMilli {
		return Recommendation{Replicas: current, Why: WhyTarget, Unknown: true,
			Reason: fmt.Sprintf("the target is %s: must be more than 0 and at most %s; the count is held", target, MaxMilli)}, true
	}
	if err := t.Validate(); err != nil {
		return Recommendation{Replicas: current, Why: WhyTarget, Unknown: true, Reason: err.Error()}, true
	}
	return Recommendation{}, false
}

func badValue(current int, v Milli) Recommendation {
	return Recommendation{Replicas: current, Why: WhyImpossible, Unknown: true,
		Reason: fmt.Sprintf("the metric is %s: must be 0 to %s; the count is held", v, MaxMilli)}
}
