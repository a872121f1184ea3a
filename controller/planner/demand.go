package planner

import (
	"maps"
	"slices"
	"strconv"

	"remuda/controller/state"
)

// demand gives a replica to each model that clients asked for and that is to have none.
func (d *draft) demand() {
	for _, name := range slices.Sorted(maps.Keys(d.obs.Demand)) {
		m := d.byName[name]
		if m == nil || m.Stopped || m.frozen || m.Max < 1 || m.target.Replicas > 0 || m.limits.Cap != nil && *m.limits.Cap == 0 ||
			slices.ContainsFunc(m.members, (*member).counts) {
			continue
		}
		// What a replica did since it was asked for is the answer to that: it served, and
		// was sent away again.
		asked := d.obs.Demand[name]
		if slices.ContainsFunc(m.members, func(r *member) bool { return !r.Since.Before(asked) }) {
			continue
		}
		m.setDesired(m.Resized(1, m.shareOf("")))
		d.decide(KindDemand, m.Name, "", "request for a model without replicas: scaling to 1",
			inputs{"asked": asked.UTC().Format("15:04:05.000"), "replicas": "1", "min": strconv.Itoa(m.Min), "max": strconv.Itoa(m.Max)})
	}
}

// cheapest returns the variant with the lowest cost, the first of the file of those.
func cheapest(m *state.Model) *state.Variant {
	best := &m.Variants[0]
	for i := range m.Variants {
		if m.Variants[i].Cost < best.Cost {
			best = &m.Variants[i]
		}
	}
	return best
}
