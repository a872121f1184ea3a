package capacity

import "remuda/autoscaler-plugin/enginemetrics"

// Action is what happens to a variant, in upstream's words.
type Action string

// The actions.
const (
	ScaleUp   Action = "scale-up"
	ScaleDown Action = "scale-down"
	NoChange  Action = "no-change"
)

func actionOf(current, target int) Action {
	switch {
	case target > current:
		return ScaleUp
	case target < current:
		return ScaleDown
	}
	return NoChange
}

// Result is what an Analyzer found. Its slices are used again by the next analysis into it.
type Result struct {
	Rules  Rules
	Config Config
	// TotalReplicas report, with whatever values; one that is listed twice counts once under
	// Safe. NonSaturated and Saturated are those among them that serve with known load.
	TotalReplicas, NonSaturated, Saturated int
	// Unknown is how many replicas' load is not known: they are missing, or what they report
	// cannot be used. Safe only.
	Unknown int
	// Surplus is how many replicas more than there are report. Safe only.
	Surplus int
	// ScaleUp: the model needs more. ScaleDownSafe: the load would fit on one replica fewer.
	ScaleUp, ScaleDownSafe bool
	// SpareKV and SpareQueue are the averages that were held against the triggers, absent
	// where no replica counts towards them, and KVShort and QueueShort say which of them are
	// below.
	SpareKV, SpareQueue enginemetrics.Value
	KVShort, QueueShort bool
	// RemainingKV and RemainingQueue are what the replicas that remain would have to spare, on
	// average, if one went: absent where a removal is not simulated. Safe only.
	RemainingKV, RemainingQueue enginemetrics.Value
	// Full: every replica whose load is known is saturated.
	Full bool
	// Stuck: the model needs more, and no variant may grow. Safe only.
	Stuck bool
	// Hold says why nothing may be removed.
	Hold Hold
	// Classes are those of Input.Replicas, in its order.
	Classes []Class
	// Decisions are sorted by variant.
	Decisions []Decision

	// hidden are capacity targets without a decision: WVA, of variants that report and are
	// not among Input.Variants, next to an optimizer.
	hidden []Decision
}

// Decision is about one variant.
type Decision struct {
	Variant string
	Cost    float64
	Action  Action
	// Current is Input's; for a variant that is not in Input.Variants, what reports.
	Current, Desired int
	// Reporting replicas have known load and take requests; of the others, Starting start.
	Reporting, Starting int
	// CapacityTarget is the analyzer's own target. HasCapacity is false where it has none,
	// which happens under WVA for variants that do not report.
	CapacityTarget int
	HasCapacity    bool
	// ModelBased is the optimizer's target, where HasModelBased.
	ModelBased    int
	HasModelBased bool
	Target        int
	// SafetyOverride: the analyzer did not let the model-based target have its way.
	SafetyOverride bool
	// Why gives the rule that decided, Capacity the one behind CapacityTarget, and Hold what
	// kept a removal from happening, or part of it.
	Why, Capacity Why
	Hold          Hold
}

// Hold is a reason to remove nothing.
type Hold uint8

// The holds, in the order in which they are looked for.
const (
	HoldNone      Hold = iota
	HoldNoData         // no replica's load is known
	HoldScaleUp        // the model needs more
	HoldUnknown        // the load of some replicas is unknown
	HoldSurplus        // more replicas report than there are
	HoldFew            // fewer than two replicas are not saturated
	HoldLoad           // the load would not fit on those that remain
	HoldModelWide      // WVA: a removal is not safe, for one of the last three reasons
)

// Why is the rule that decided.
type Why uint8

// The rules, with the row of upstream's tables that they are from.
const (
	WhyEnough      Why = iota // "otherwise": no action is needed
	WhyPreserved              // "desired != 0 and desired != current"
	WhyCheapest               // "capacity needs scale-up": the cheapest variant
	WhyStarts                 // as before, but replicas of it start: they are waited for
	WhyCostliest              // "capacity allows scale-down": the most expensive variant
	WhyNoData                 // upstream's nil safety: nothing is known
	WhySilent                 // Safe: the variant does not report
	WhyUnlisted               // Safe: it reports, and is not in the input's variants
	WhyMin                    // Safe: its lower bound
	WhyMax                    // Safe: its upper bound
	WhyUnplaceable            // Safe: there is no place for more
	WhyVeto                   // matrix, row 1: scale-up against scale-down
	WhyBlock                  // matrix, row 2: an unsafe scale-down
	WhyCapacity               // matrix, row 3: scale-up against no change
	WhyModel                  // matrix, rows 4 and 5: the model-based target
	WhyModelStays             // the analyzer would remove, the optimizer would not
	WhyBoth                   // both want more: the larger target (Safe)
	WhyNoOpinion              // Safe: no model-based target for the variant: the analyzer's
	WhyModelAbsent            // WVA: no model-based target for the variant: taken for 0
)
