package planner

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"remuda/controller/state"
)

// demand gives one more replica to each model for which clients wait, where some of it are
// displaced or it is to have none.
func (d *draft) demand() {
	for _, name := range slices.Sorted(maps.Keys(d.obs.Demand)) {
		m := d.byName[name]
		if m == nil || m.Stopped || m.frozen || m.target.Replicas > 0 && m.Displaced.IsZero() ||
			slices.ContainsFunc(m.members, func(r *member) bool { return r.counts() && !d.serves(r) }) {
			continue
		}
		was := m.target.Replicas
		if serving, _ := d.up(m); serving != was || was >= m.most() || was > 0 && m.active.Total() != was {
			continue // one is missing already, or there may be no more
		}
		// What a replica did since it was asked for is the answer to that: it served, and
		// was sent away again.
		asked := d.obs.Demand[name]
		if slices.ContainsFunc(m.members, func(r *member) bool { return !r.Since.Before(asked) }) {
			continue
		}
		m.more(was+1, "", state.UntilAsked, state.UntilRoom)
		why := "request for a model without replicas"
		if was > 0 {
			why = fmt.Sprintf("clients wait although %d of its replicas serve", was)
		}
		d.decide(KindDemand, m.Name, "", fmt.Sprintf("%s: scaling to %d", why, m.target.Replicas),
			inputs{"asked": asked.UTC().Format("15:04:05.000"), "replicas": strconv.Itoa(m.target.Replicas), "desired": strconv.Itoa(m.Desired.Total()), "min": strconv.Itoa(m.Min), "max": strconv.Itoa(m.Max)})
	}
}

// most is how many replicas the model has at most.
func (m *model) most() int {
	if m.limits.Cap != nil {
		return min(m.Max, *m.limits.Cap)
	}
	return m.Max
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
