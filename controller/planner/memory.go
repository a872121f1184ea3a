package planner

import (
	"maps"
	"time"

	"remuda/controller/state"
)

// setPace changes in the plan when the planner last did what it does only so often.
func (b *planBuilder) setPace(change func(*state.Pace)) {
	b.markDirty()
	next := *b.pace
	change(&next)
	b.pace, b.plan.Pace = &next, &next
}

// evictedFor reports whether a replica of m was evicted for another model within the thrash
// window.
func (b *planBuilder) evictedFor(m *model, other string) bool {
	at, ok := m.EvictedFor[other]
	return ok && !b.due(at.Add(b.conf.ThrashWindow))
}

// keptLately reports whether the member's way to WARM was cancelled within the thrash window.
func (b *planBuilder) keptLately(r *member) bool {
	at := r.next.KeptAt
	return !at.IsZero() && !b.due(at.Add(b.conf.ThrashWindow))
}

// noteEviction notes that a replica of m is evicted for another model, and drops what was noted
// before the thrash window.
func (b *planBuilder) noteEviction(m *model, other string) {
	next := *m.Model
	next.EvictedFor = map[string]time.Time{}
	maps.Copy(next.EvictedFor, m.EvictedFor)
	next.EvictedFor[other] = b.obs.Now
	maps.DeleteFunc(next.EvictedFor, func(_ string, at time.Time) bool { return !b.obs.Now.Before(at.Add(b.conf.ThrashWindow)) })
	m.Model, m.dirty = &next, true
	for i := range b.plan.Evictions {
		if c := &b.plan.Evictions[i]; c.Model == m.Name {
			c.EvictedFor = next.EvictedFor
			return
		}
	}
	b.plan.Evictions = append(b.plan.Evictions, state.SetEvictedFor{Model: m.Name, EvictedFor: next.EvictedFor})
}
