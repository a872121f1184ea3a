package observe

import (
	"maps"
	"math"

	"remuda/autoscaler-plugin/allocate"
	"remuda/controller/api"
)

// Counted returns how many replicas of each variant count for scaling: those that were ordered,
// as far as there is a place for them.
//
// The controller takes a while to carry an order out: it places new replicas at a certain pace,
// and drains surplus ones one after the other. A scaler that went by the replicas that exist
// would order the same again, or take back a part of its own order; one that went by the order
// alone would wait for what has no place. So a variant with a share of its own counts as ordered,
// one without a place no more than exist, and the variants that share the rest of the model's
// target add up to that rest: more is given to the cheapest one with a place, and less is taken
// from those that are no longer in the model's file and then from the most expensive (the
// planner's own order). Where a floor or a ceiling keeps the target from what was ordered, all
// variants share it.
func Counted(st *api.ModelStatus) map[string]int {
	there := make(map[string]int, len(st.VariantCounts))
	for name, c := range st.VariantCounts {
		there[name] = c.Hot + c.Starting + c.Failed
	}
	out := make(map[string]int, len(there)+len(st.Model.Variants))
	cost := map[string]float64{}
	for _, v := range st.Model.Variants {
		cost[v.Name] = v.Cost
		out[v.Name] = 0
	}
	rest := st.Model.Target
	var shared []allocate.Variant
	for name, n := range there {
		out[name] = n
	}
	for name := range out {
		_, unplaceable := st.Unplaceable[name]
		ordered, alone := st.Model.Own(name)
		price, known := cost[name]
		if !alone || !known || st.Model.Stopped || st.Model.Bound != "" && st.Model.Bound != "displaced" {
			if !known {
				price, unplaceable = math.Inf(1), true
			}
			shared = append(shared, allocate.Variant{Name: name, Cost: price, Current: out[name], Unplaceable: unplaceable})
			continue
		}
		rest -= ordered
		if unplaceable {
			ordered = min(ordered, out[name])
		}
		out[name] = ordered
	}
	maps.Copy(out, allocate.Spread(max(rest, 0), shared, nil))
	return out
}
