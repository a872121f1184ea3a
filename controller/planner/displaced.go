package planner

import (
	"fmt"
	"slices"
	"strconv"

	"remuda/controller/state"
)

// rescale gives the model another scale in this plan.
func (m *model) rescale(change func(*state.Model)) {
	next := *m.Model
	change(&next)
	m.Model, m.scaled = &next, true
	m.target, m.active = next.Target(m.limits), next.Active()
	m.moved()
}

// fewer displaces replicas until n are left, those of the variant first, but not below Min. A
// target that a ceiling keeps lower is not raised, nor one that a floor keeps higher lowered.
func (m *model) fewer(n int, variant string, until state.Until) {
	n = max(n, m.Min)
	has := m.active.Total()
	if m.Management == state.ManagementDisabled || n >= m.target.Replicas || n >= has {
		return
	}
	m.rescale(func(next *state.Model) { next.Displaced = m.Displace(has-n, variant, until) })
}

// more lets displaced replicas come back until there are n, those first that are displaced for
// the first reason, and of them the variant's. Where so many were not asked for, the model
// should have them from now on. It has never more than Max.
func (m *model) more(n int, variant string, order ...state.Until) {
	n = min(n, m.Max)
	has := m.active.Total()
	if m.Management == state.ManagementDisabled || n <= m.target.Replicas || n <= has {
		return
	}
	m.rescale(func(next *state.Model) {
		next.Displaced = m.Recall(n-has, variant, order...)
		if short := n - next.Active().Total(); short > 0 {
			next.Desired = next.With(next.Desired, short, m.shareOf(variant))
		}
	})
}

// displace counts a replica that the planner evicts for another model as displaced, unless it is
// more than there should be, or the model is at its floor.
func (b *planBuilder) displace(m *model, r *member) {
	counted := 0
	for _, o := range m.members {
		if o.counts() {
			counted++
		}
	}
	n, _ := m.active.Of(m.shareOf(r.Name.Variant))
	if counted > m.target.Replicas || m.target.Replicas <= m.floor() || n == 0 {
		return
	}
	m.fewer(m.target.Replicas-1, r.Name.Variant, state.UntilRoom)
}

// returns lets replicas that were displaced for room come back where there is some now: nothing
// is evicted for them and no place is kept. They come after all replicas that are missing.
func (b *planBuilder) returns() {
	for m := range b.moving(returning) {
		if m.rolledBack || m.frozen || m.Stopped || m.Displaced.UntilRoom.Total() == 0 || b.evictedFrom[m.Name] {
			continue
		}
		b.markDirty() // room comes from others
		if slices.ContainsFunc(m.members, func(r *member) bool { return r.counts() && !b.serves(r) }) {
			continue // one after the other
		}
		if slices.ContainsFunc(m.members, func(r *member) bool { return r.changed && r.Status == state.StatusServing && !r.counts() }) {
			continue // one that served has just left, for a smaller target
		}
		for _, share := range m.Displaced.UntilRoom {
			if b.comesBack(m, share) {
				break
			}
		}
	}
}

// recall returns what stays displaced if n replicas of a share that were evicted for other models
// come back, and by how much that raises the target.
func (m *model) recall(n int, share string) (state.Displaced, int) {
	next := *m.Model
	next.Displaced = m.Recall(n, share, state.UntilRoom)
	return next.Displaced, next.Target(m.limits).Replicas - m.target.Replicas
}

// keepReturned counts serving members beyond the group's target as returned, as far as replicas of
// its share were evicted for other models: these have a place.
func (b *planBuilder) keepReturned(g *group) {
	m := g.model
	if m.frozen || m.Stopped || b.evictedFrom[m.Name] {
		return
	}
	evicted, _ := m.Displaced.UntilRoom.Of(g.share)
	surplus := g.count(func(r *member) bool { return b.serves(r) && !b.replaces(g, r) }) - g.target
	if min(evicted, surplus) <= 0 {
		return
	}
	recalled, more := m.recall(min(evicted, surplus), g.share)
	if more <= 0 {
		return // a bound keeps the target
	}
	m.rescale(func(next *state.Model) { next.Displaced = recalled })
	g.target += more
	b.record(KindReturn, m.Name, "", fmt.Sprintf("enough replicas serve: back to %d of %d", m.target.Replicas, m.Desired.Total()),
		inputs{"replicas": strconv.Itoa(m.Desired.Total()), "target": strconv.Itoa(m.target.Replicas), "displaced": strconv.Itoa(m.Displaced.Total())})
}

// comesBack lets one replica of a displaced share come back if there is room.
func (b *planBuilder) comesBack(m *model, share state.Share) bool {
	if share.Pool != "" || !b.open("") {
		return false // what is expected in an external pool is not displaced by the planner
	}
	recalled, more := m.recall(1, share.Variant)
	if more <= 0 {
		return false // a bound keeps the target
	}
	for _, g := range m.groups() {
		if g.share != share.Variant || len(g.members) != g.target {
			continue
		}
		o, _ := b.best(g, b.free)
		if o == nil {
			return false
		}
		m.rescale(func(next *state.Model) { next.Displaced = recalled })
		s := b.taken(g, o)
		b.record(KindReturn, m.Name, s.replica.name, fmt.Sprintf("there is room again: back to %d of %d replicas", m.target.Replicas, m.Desired.Total()),
			inputs{"replicas": strconv.Itoa(m.Desired.Total()), "target": strconv.Itoa(m.target.Replicas), "displaced": strconv.Itoa(m.Displaced.Total())})
		return true
	}
	return false
}
