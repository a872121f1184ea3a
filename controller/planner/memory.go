package planner

import (
	"maps"
	"time"

	"remuda/controller/state"
)

// setPace changes in the plan when the planner last did what it does only so often.
func (d *draft) setPace(change func(*state.Pace)) {
	d.stir()
	next := *d.pace
	change(&next)
	d.pace, d.plan.Pace = &next, &next
}

// evictedFor reports whether a replica of m was evicted for another model within the thrash
// window.
func (d *draft) evictedFor(m *model, other string) bool {
	at, ok := m.EvictedFor[other]
	return ok && !d.due(at.Add(d.conf.ThrashWindow))
}

// keptLately reports whether the member's way to WARM was cancelled within the thrash window.
func (d *draft) keptLately(r *member) bool {
	at := r.next.KeptAt
	return !at.IsZero() && !d.due(at.Add(d.conf.ThrashWindow))
}

// noteEviction notes that a replica of m is evicted for another model, and drops what was noted
// before the thrash window.
func (d *draft) noteEviction(m *model, other string) {
	next := *m.Model
	next.EvictedFor = map[string]time.Time{}
	maps.Copy(next.EvictedFor, m.EvictedFor)
	next.EvictedFor[other] = d.obs.Now
	maps.DeleteFunc(next.EvictedFor, func(_ string, at time.Time) bool { return !d.obs.Now.Before(at.Add(d.conf.ThrashWindow)) })
	m.Model, m.stirred = &next, true
	for i := range d.plan.Evictions {
		if c := &d.plan.Evictions[i]; c.Model == m.Name {
			c.EvictedFor = next.EvictedFor
			return
		}
	}
	d.plan.Evictions = append(d.plan.Evictions, state.SetEvictedFor{Model: m.Name, EvictedFor: next.EvictedFor})
}
