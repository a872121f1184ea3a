package planner

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"remuda/controller/state"
)

// demand adds one replica to each model for which clients wait, if the model has displaced
// replicas or a target of 0.
func (b *planBuilder) demand() {
	for _, name := range slices.Sorted(maps.Keys(b.obs.Demand)) {
		m := b.byName[name]
		if m == nil || m.Stopped || m.frozen || m.target.Replicas > 0 && m.Displaced.IsZero() ||
			slices.ContainsFunc(m.members, func(r *member) bool { return r.counts() && !b.serves(r) }) {
			continue
		}
		was := m.target.Replicas
		if serving, _ := b.servingCount(m); serving != was || was >= m.replicaCap() || was > 0 && m.active.Total() != was {
			continue // one is missing already, or there may be no more
		}
		// What a replica did since it was asked for is the answer to that: it served, and
		// was sent away again.
		asked := b.obs.Demand[name]
		if slices.ContainsFunc(m.members, func(r *member) bool { return !r.Since.Before(asked) }) {
			continue
		}
		m.more(was+1, "", state.UntilAsked, state.UntilRoom)
		why := "request for a model without replicas"
		if was > 0 {
			why = fmt.Sprintf("clients wait although %d of its replicas serve", was)
		}
		b.record(KindDemand, m.Name, "", fmt.Sprintf("%s: scaling to %d", why, m.target.Replicas),
			inputs{"asked": asked.UTC().Format("15:04:05.000"), "replicas": strconv.Itoa(m.target.Replicas), "desired": strconv.Itoa(m.Desired.Total()), "min": strconv.Itoa(m.Min), "max": strconv.Itoa(m.Max)})
	}
}

// replicaCap returns the maximum number of replicas of the model.
func (m *model) replicaCap() int {
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
