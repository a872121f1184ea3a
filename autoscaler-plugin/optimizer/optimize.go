package optimizer

import (
	"cmp"
	"fmt"
	"slices"

	"remuda/autoscaler-plugin/measure"
)

// Optimize answers with the cheapest mix that holds the target wait.
//
// A variant whose fit is refused is not chosen: without replicas it stays at its least,
// and what it would serve is not counted. Where such a variant has replicas, the whole
// answer is refused, because nobody knows what those serve. Of mixes that cost the same
// the one with the better value per capacity first, then by name, wins.
func Optimize(c Config, in Input) Answer {
	a := Answer{Model: in.Model, Variants: []Report{}}
	tr, r := check(c, in)
	if r != nil {
		return a.refused(r)
	}
	variants := slices.SortedFunc(slices.Values(in.Variants), func(x, y Variant) int { return cmp.Compare(x.Variant, y.Variant) })
	s := search{config: c, traffic: tr}
	fixed := 0.0
	for i, v := range variants {
		curve, belief, refusal := Fit(v.Samples, v.Slots)
		low, high := v.bounds(c)
		a.Variants = append(a.Variants, Report{Variant: v.Variant, Curve: curve, Belief: belief, Refusal: refusal, Target: low})
		switch {
		case refusal == nil:
			slow := curve.slower(1 + c.Caution*belief.ErrorAtFull)
			s.choices = append(s.choices, choice{index: i, cost: v.cost(), low: low, high: high, open: v.Max == 0 && !v.Unplaceable, group: Group{Slots: v.Slots, Curve: slow}})
		case v.Current > 0 && tr.PerSecond > 0:
			return a.refused(refuse(refusal.Code, "variant %s has %d replicas and no usable fit: %s", v.Variant, v.Current, refusal.Reason))
		default:
			fixed += v.cost() * float64(low)
		}
	}
	if len(s.choices) == 0 && tr.PerSecond > 0 {
		return a.refused(refuse(NoVariant, "no variant has a usable fit"))
	}
	s.run()
	if s.best == nil {
		for _, ch := range s.choices {
			if ch.open {
				return a.refused(refuse(AbsurdDemand, "%v requests per second would need more than max_replicas %d of variant %s", tr.PerSecond, c.MaxReplicas, a.Variants[ch.index].Variant))
			}
		}
	}
	a.complete(&s, fixed)
	return a
}

func (a Answer) refused(r *Refusal) Answer {
	a.Refusal, a.Reason = r, r.Error()
	for i := range a.Variants {
		a.Variants[i].Target = 0
	}
	return a
}

// complete fills the answer from a search that is done.
func (a *Answer) complete(s *search, fixed float64) {
	a.Holds, a.Proven = s.best != nil, s.best != nil && s.left > 0
	counts := s.best
	if counts == nil {
		for _, ch := range s.choices {
			counts = append(counts, ch.high)
		}
	}
	a.CostPerHour = fixed
	for i, ch := range s.choices {
		a.Variants[ch.index].Target, a.Variants[ch.index].Alone = counts[i], ch.alone
		a.CostPerHour += ch.cost * float64(counts[i])
	}
	a.Targets = map[string]int{}
	for _, v := range a.Variants {
		a.Targets[v.Variant] = v.Target
	}
	a.Wait = s.wait(counts)
	a.Probability = a.Wait.Within(s.config.TargetWaitSeconds)
	a.Reason = fmt.Sprintf("%.6g requests per second: %.4g %% start within %v s at %.3g per hour", s.traffic.PerSecond, 100*a.Probability, s.config.TargetWaitSeconds, a.CostPerHour)
	if !a.Holds {
		a.Reason += fmt.Sprintf("; the bounds do not allow the target of %.4g %%", 100*s.config.TargetProbability)
	}
}

// check returns the traffic, or why there is no answer.
func check(c Config, in Input) (Traffic, *Refusal) {
	if err := c.Validate(); err != nil {
		return Traffic{}, refuse(BadInput, "%v", err)
	}
	var tr Traffic
	for _, f := range []struct {
		name   string
		value  measure.Value
		absent float64
		into   *float64
	}{
		{"arrivals_per_second", in.ArrivalsPerSecond, -1, &tr.PerSecond},
		{"arrival_scv", in.ArrivalSCV, 1, &tr.ArrivalSCV},
		{"service_scv", in.ServiceSCV, 1, &tr.ServiceSCV},
	} {
		v, flaw := f.value.Get()
		switch {
		case flaw == measure.Absent && f.absent >= 0:
			v = f.absent
		case flaw != measure.None:
			return tr, refuse(TrafficUnknown, "%s is %s", f.name, flaw)
		case v > maxNumber:
			return tr, refuse(TrafficUnknown, "%s is %v: must be at most %v", f.name, v, float64(maxNumber))
		}
		*f.into = v
	}
	seen := map[string]bool{}
	for _, v := range in.Variants {
		if r := v.check(); r != nil {
			return tr, r
		}
		if seen[v.Variant] {
			return tr, refuse(BadInput, "duplicate variant %q", v.Variant)
		}
		seen[v.Variant] = true
	}
	return tr, nil
}

func (v Variant) check() *Refusal {
	const most = 1 << 20
	cost, flaw := v.Cost.Get()
	switch {
	case v.Variant == "":
		return refuse(BadInput, "a variant has no name")
	case flaw != measure.None && flaw != measure.Absent:
		return refuse(BadInput, "variant %s: cost is %s", v.Variant, flaw)
	case cost > 1e12:
		return refuse(BadInput, "variant %s: cost is %v: must be at most 1e12", v.Variant, cost)
	case v.Slots < 1 || v.Slots > most:
		return refuse(BadInput, "variant %s: slots is %d: must be 1 to %d", v.Variant, v.Slots, most)
	case v.Current < 0 || v.Min < 0 || v.Max < 0 || max(v.Current, v.Min, v.Max) > most:
		return refuse(BadInput, "variant %s: current, min and max are %d, %d and %d: must be 0 to %d", v.Variant, v.Current, v.Min, v.Max, most)
	case v.Max > 0 && v.Min > v.Max:
		return refuse(BadInput, "variant %s: min is %d: must be at most max, which is %d", v.Variant, v.Min, v.Max)
	}
	return nil
}

func (v Variant) cost() float64 {
	if f, flaw := v.Cost.Get(); flaw == measure.None {
		return f
	}
	return DefaultCost
}

// bounds is what the answer may be. A variant that cannot be placed cannot grow, not
// even to its Min.
func (v Variant) bounds(c Config) (low, high int) {
	high = max(c.MaxReplicas, v.Min)
	if v.Max > 0 {
		high = v.Max
	}
	if v.Unplaceable {
		high = min(high, v.Current)
	}
	return min(v.Min, high), high
}
