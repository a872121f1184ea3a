package planner

import (
	"time"

	"remuda/controller/state"
)

// PlanAlone is Plan without the joint search.
func PlanAlone(v *state.View, o Observation, c Config) (*state.Plan, time.Time) {
	b := newWorld(c).beginPlan(v, o)
	return b.run(), b.next
}

// Found is what a plan finds for missing replicas.
type Found struct {
	// Replicas that come up or wait for a place, by model. Busy are evicted replicas of models
	// with traffic. Cost is of all evictions, in seconds.
	Replicas map[string]int
	Busy     int
	Cost     float64
	Joint    bool // it is the plan of the joint search
}

// FindBoth returns what a plan finds one by one, and what Plan finds.
func FindBoth(v *state.View, o Observation, c Config) (alone, chosen Found) {
	found := func(t *tally) Found { return Found{Replicas: t.found, Busy: t.busy, Cost: t.cost} }
	w := newWorld(c)
	one := w.beginPlan(v, o)
	one.run()
	alone = found(&one.tally)
	if one.tally.joinable() {
		all := one.together(w.beginPlan(v, o))
		all.run()
		if all.tally.better(&one.tally) {
			chosen = found(&all.tally)
			chosen.Joint = true
			return alone, chosen
		}
	}
	return alone, alone
}

// AtRest returns how many models are at rest after the last plan.
func (p *Planner) AtRest() int {
	n := 0
	for _, m := range p.world.byName {
		n += btoi(m.atRest())
	}
	return n
}

// Kept returns what is kept of a model. It is another thing once the model was made anew.
func (p *Planner) Kept(model string) any { return p.world.byName[model] }

// Plan is the plan of a new Planner.
func Plan(v *state.View, o Observation, c Config) (*state.Plan, time.Time) { return New(c).Plan(v, o) }
