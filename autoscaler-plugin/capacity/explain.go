package capacity

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"remuda/autoscaler-plugin/enginemetrics"
)

// Answer is what `remuda capacity explain -json` prints (the format of the autoscaler facts).
// The fields after Decisions are Safe's, but for Notes, which are WVA's.
type Answer struct {
	TotalReplicas   int                `json:"total_replicas"`
	NonSaturated    int                `json:"non_saturated"`
	ScaleUp         bool               `json:"scale_up"`
	ScaleDownSafe   bool               `json:"scale_down_safe"`
	CapacityTargets map[string]int     `json:"capacity_targets"`
	Decisions       map[string]Verdict `json:"decisions"`

	// UnknownReplicas is how many replicas' load is not known.
	UnknownReplicas int `json:"unknown_replicas,omitzero"`
	// AvgSpareKV and AvgSpareQueue are what was held against the triggers.
	AvgSpareKV    enginemetrics.Value `json:"avg_spare_kv,omitzero"`
	AvgSpareQueue enginemetrics.Value `json:"avg_spare_queue,omitzero"`
	// RemainingSpareKV and RemainingSpareQueue are what would be left on average after a removal,
	// where one was simulated.
	RemainingSpareKV    enginemetrics.Value `json:"remaining_spare_kv,omitzero"`
	RemainingSpareQueue enginemetrics.Value `json:"remaining_spare_queue,omitzero"`
	// ScaleUpReason says what is short, and ScaleDownHold why nothing may be removed.
	ScaleUpReason string `json:"scale_up_reason,omitzero"`
	ScaleDownHold string `json:"scale_down_hold,omitzero"`
	// Replicas say what each entry was taken for, sorted by variant and name.
	Replicas []Finding `json:"replicas,omitzero"`
	// Notes are the values that WVA takes and Safe rejects, in the order of the input.
	Notes []Note `json:"notes,omitzero"`
}

// Verdict is the decision about one variant.
type Verdict struct {
	Variant        string `json:"variant"`
	Action         Action `json:"action"`
	Current        int    `json:"current"`
	Target         int    `json:"target"`
	SafetyOverride bool   `json:"safety_override"`
	Reason         string `json:"reason"`
	// Cost of a replica, Accelerator the GPU model that its replicas report, and Ready how many
	// replicas report a known load. Safe only.
	Cost        float64 `json:"cost,omitzero"`
	Accelerator string  `json:"accelerator,omitzero"`
	Ready       int     `json:"ready,omitzero"`
}

// Finding is what an entry of Input.Replicas was taken for, and why.
type Finding struct {
	Replica string `json:"replica"`
	Variant string `json:"variant"`
	Class   string `json:"class"`
	Reason  string `json:"reason,omitzero"`
}

// Explain answers one input, with reasons. The answer does not depend on the order of the
// input's replicas and variants, unless WVA has to take the last of two entries of a variant.
// An error is that of in.Validate.
func Explain(rules Rules, in Input) (Answer, error) {
	notes := in.problems() // before the order changes
	if err := asErrors(rules, notes); err != nil {
		return Answer{}, err
	}
	// Of two entries of one replica the second is the duplicate: an order makes it the same.
	in.Replicas = slices.Clone(in.Replicas)
	slices.SortFunc(in.Replicas, compareReplicas)
	var a Analyzer
	var r Result
	if err := a.Analyze(rules, &in, &r); err != nil {
		return Answer{}, err
	}
	answer := r.Answer(&in)
	answer.Notes = notes
	return answer, nil
}

// compareReplicas orders by variant and name, and then by all that the analysis looks at.
func compareReplicas(x, y Replica) int {
	flag := func(b bool) int {
		if b {
			return 1
		}
		return 0
	}
	value := func(x, y enginemetrics.Value) int {
		return cmp.Or(cmp.Compare(flag(!x.IsZero()), flag(!y.IsZero())), cmp.Compare(x.Raw(), y.Raw()))
	}
	return cmp.Or(strings.Compare(x.Variant, y.Variant), strings.Compare(x.Replica, y.Replica),
		value(x.KVCacheUsage, y.KVCacheUsage), value(x.QueueLength, y.QueueLength), value(x.KVCapacity, y.KVCapacity),
		cmp.Compare(x.AgeSeconds, y.AgeSeconds), cmp.Compare(flag(x.Draining), flag(y.Draining)), value(x.Cost, y.Cost))
}

// Answer puts a result into words; in is what was analysed.
func (r *Result) Answer(in *Input) Answer {
	ans := Answer{
		TotalReplicas: r.TotalReplicas, NonSaturated: r.NonSaturated, ScaleUp: r.ScaleUp, ScaleDownSafe: r.ScaleDownSafe,
		CapacityTargets: map[string]int{}, Decisions: make(map[string]Verdict, len(r.Decisions)),
	}
	for i := range r.Decisions {
		d := &r.Decisions[i]
		if d.HasCapacity {
			ans.CapacityTargets[d.Variant] = d.CapacityTarget
		}
		v := Verdict{Variant: d.Variant, Action: d.Action, Current: d.Current, Target: d.Target, SafetyOverride: d.SafetyOverride, Reason: r.Reason(d)}
		if r.Rules == Safe {
			v.Cost, v.Ready, v.Accelerator = d.Cost, d.Reporting, accelerator(in.Replicas, d.Variant)
		}
		ans.Decisions[d.Variant] = v
	}
	if r.Rules == WVA {
		// A variant that reports and is not among the variants has a target, and with a
		// model-based optimizer no decision.
		for i := range r.hidden {
			ans.CapacityTargets[r.hidden[i].Variant] = r.hidden[i].CapacityTarget
		}
		return ans
	}
	ans.UnknownReplicas = r.Unknown
	ans.AvgSpareKV, ans.AvgSpareQueue = r.SpareKV, r.SpareQueue
	ans.RemainingSpareKV, ans.RemainingSpareQueue = r.RemainingKV, r.RemainingQueue
	if r.ScaleUp {
		ans.ScaleUpReason = r.Shortage()
	}
	ans.ScaleDownHold = r.HoldText(r.Hold)
	for i := range in.Replicas {
		e, class := &in.Replicas[i], r.Classes[i]
		ans.Replicas = append(ans.Replicas, Finding{Replica: e.Replica, Variant: e.Variant, Class: class.String(), Reason: class.explain(e, &r.Config)})
	}
	slices.SortFunc(ans.Replicas, func(x, y Finding) int {
		return cmp.Or(strings.Compare(x.Variant, y.Variant), strings.Compare(x.Replica, y.Replica), strings.Compare(x.Class, y.Class), strings.Compare(x.Reason, y.Reason))
	})
	return ans
}

// accelerator is the first GPU model by name that replicas of a variant report.
func accelerator(all []Replica, variant string) (first string) {
	for i := range all {
		if a := all[i].Accelerator; all[i].Variant == variant && a != "" && (first == "" || a < first) {
			first = a
		}
	}
	return first
}

// Shortage says what there is too little of; "" where there is enough.
func (r *Result) Shortage() string {
	var what []string
	if r.KVShort {
		what = append(what, fmt.Sprintf("spare KV cache is %.3f, below %s", r.SpareKV.Raw(), enginemetrics.Text(r.Config.KVSpareTrigger)))
	}
	if r.QueueShort {
		what = append(what, fmt.Sprintf("spare queue is %.1f, below %s", r.SpareQueue.Raw(), enginemetrics.Text(r.Config.QueueSpareTrigger)))
	}
	if len(what) == 0 && r.Full && r.ScaleUp {
		what = append(what, "every replica is saturated")
	}
	return strings.Join(what, " and ")
}

// HoldText says in words what a Hold is.
func (r *Result) HoldText(h Hold) string {
	switch h {
	case HoldNoData:
		return "the load of every replica is unknown"
	case HoldScaleUp:
		return "the model needs more replicas: " + r.Shortage()
	case HoldUnknown:
		return fmt.Sprintf("the load of %s is unknown", replicas(r.Unknown))
	case HoldSurplus:
		return fmt.Sprintf("the metrics show %s more than the model has, perhaps a stopped or draining one", replicas(r.Surplus))
	case HoldFew:
		return fmt.Sprintf("%d of %s not saturated: must be at least 2", r.NonSaturated, replicas(r.TotalReplicas))
	case HoldLoad:
		return "the load would not fit on the remaining replicas"
	case HoldModelWide:
		return r.HoldText(r.Hold)
	}
	return ""
}

// Reason says in words why a variant's target is what it is.
func (r *Result) Reason(d *Decision) string {
	text := r.reason(d, d.Why)
	if d.Hold != HoldNone && d.Why != WhyBlock {
		text += fmt.Sprintf("; no further scale-down: %s", r.HoldText(d.Hold))
	}
	return text
}

func (r *Result) reason(d *Decision, why Why) string {
	switch why {
	case WhyEnough:
		if r.ScaleUp && r.Stuck {
			return fmt.Sprintf("the model needs more replicas (%s), but no variant can grow now", r.Shortage())
		}
		return "no action is needed"
	case WhyPreserved:
		return fmt.Sprintf("the earlier target of %d is kept (current: %d)", d.Desired, d.Current)
	case WhyCheapest:
		if d.CapacityTarget <= d.Current { // WVA counts the replicas that report
			return fmt.Sprintf("%s: %s of the cheapest variant, one more than report (cost %s)", r.Shortage(), replicas(d.CapacityTarget), enginemetrics.Text(d.Cost))
		}
		return fmt.Sprintf("%s: adding %s of the cheapest variant that can grow (cost %s)", r.Shortage(), some(d.CapacityTarget-d.Current), enginemetrics.Text(d.Cost))
	case WhyStarts:
		if d.Starting == 0 {
			return r.Shortage() + ": waiting for the replicas of other variants that start"
		}
		return fmt.Sprintf("%s: waiting for %s of the cheapest variant to start", r.Shortage(), replicas(d.Starting))
	case WhyCostliest:
		return fmt.Sprintf("the load fits on one replica fewer: removing a replica of the most expensive variant that can shrink (cost %s)", enginemetrics.Text(d.Cost))
	case WhyNoData:
		return "the load of every replica is unknown: no change"
	case WhySilent:
		return fmt.Sprintf("none of its %s reports usable metrics: no change", replicas(d.Current))
	case WhyUnlisted:
		return "it reports metrics and is not in variants: no change"
	case WhyMin:
		return fmt.Sprintf("at the lower bound (current: %d, bound: %d)", d.Current, d.Target)
	case WhyMax:
		return fmt.Sprintf("at the upper bound (current: %d)", d.Current)
	case WhyUnplaceable:
		return "another replica cannot be placed"
	case WhyVeto:
		return fmt.Sprintf("capacity veto: the analyzer's target is %d, the model-based target is %d", d.CapacityTarget, d.ModelBased)
	case WhyBlock:
		return fmt.Sprintf("safety block: the model-based target is %d: %s", d.ModelBased, r.HoldText(d.Hold))
	case WhyCapacity:
		return fmt.Sprintf("capacity-driven: the model-based target of %d allows it: %s", d.ModelBased, r.reason(d, d.Capacity))
	case WhyModel:
		return fmt.Sprintf("model-based target %d: capacity allows it", d.ModelBased)
	case WhyModelStays:
		return fmt.Sprintf("no scale-down: the model-based target is %d", d.ModelBased)
	case WhyBoth:
		return fmt.Sprintf("the analyzer's target is %d and the model-based target is %d: the larger one is used", d.CapacityTarget, d.ModelBased)
	case WhyNoOpinion:
		return "no model-based target: " + r.reason(d, d.Capacity)
	case WhyModelAbsent:
		return "no model-based target, which counts as 0"
	}
	return ""
}

// some is a number of replicas that are added.
func some(n int) string {
	if n == 1 {
		return "a replica"
	}
	return replicas(n)
}

func replicas(n int) string {
	if n == 1 {
		return "1 replica"
	}
	return fmt.Sprintf("%d replicas", n)
}
