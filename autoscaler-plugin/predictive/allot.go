package predictive

import (
	"cmp"
	"math"
	"slices"
)

// allot fills Targets so that they have at least want slots, within all bounds: growth goes
// to the cheapest slot that can be placed, reduction takes the dearest. Equal ones go by
// name. Where want is what there is, only bounds that are broken are mended.
func (d *Decision) allot(in *Input, want float64, have int) {
	order := slices.Clone(in.Variants)
	price := func(v Variant) float64 { return cmp.Or(v.Cost, DefaultCost) / float64(v.Slots) }
	slices.SortFunc(order, func(a, b Variant) int {
		return cmp.Or(cmp.Compare(price(a), price(b)), cmp.Compare(a.Variant, b.Variant))
	})
	total := 0
	slots := 0
	for i := range order {
		v := &order[i]
		if v.Max == 0 || v.Max > in.Max {
			v.Max = max(in.Max, v.Min)
		}
		d.Targets[v.Variant] = min(max(v.Current, v.Min), v.Max)
		total += d.Targets[v.Variant]
		slots += d.Targets[v.Variant] * v.Slots
	}
	// Down first: the dearest slots that are not needed, and what is above the bound.
	for i := len(order) - 1; i >= 0; i-- {
		v := order[i]
		least := min(v.Min, d.Targets[v.Variant])
		spare := 0
		if want < float64(have) {
			spare = int((float64(slots) - want) / float64(v.Slots))
		}
		spare = min(spare, total-in.Min)
		drop := min(max(spare, total-in.Max, 0), d.Targets[v.Variant]-least)
		d.Targets[v.Variant] -= drop
		total -= drop
		slots -= drop * v.Slots
	}
	for _, v := range order {
		lack := 0
		if want > float64(have) || want > float64(slots) {
			lack = int(math.Min(math.Ceil(math.Max(want-float64(slots), 0)/float64(v.Slots)), maxCount))
		}
		lack = max(lack, in.Min-total)
		add := min(max(lack, 0), v.Max-d.Targets[v.Variant], in.Max-total)
		if v.Unplaceable || add <= 0 {
			continue
		}
		d.Targets[v.Variant] += add
		total += add
		slots += add * v.Slots
	}
	d.Replicas = total
	d.Short = math.Max(0, want-float64(slots))
}
