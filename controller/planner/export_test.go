package planner

import (
	"time"

	"remuda/controller/state"
)

// PlanAlone is Plan without the joint search.
func PlanAlone(v *state.View, o Observation, c Config) (*state.Plan, time.Time) {
	d := newDraft(v, o, c)
	return d.run(), d.next
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
	one := newDraft(v, o, c)
	one.run()
	alone = found(&one.tally)
	if one.tally.joinable() {
		all := one.together()
		all.run()
		if all.tally.better(&one.tally) {
			chosen = found(&all.tally)
			chosen.Joint = true
			return alone, chosen
		}
	}
	return alone, alone
}
