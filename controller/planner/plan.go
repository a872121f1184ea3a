package planner

import (
	"time"

	"remuda/controller/state"
)

// maxChanges is about how much one plan changes: it is one entry of the Raft log, some
// kilobytes for each change, and the next plan goes on where this one ends.
const maxChanges = 1000

// maxText is the approximate maximum length of the decisions of one plan, in bytes: those that
// have a reason for each node can be very long.
const maxText = state.MaxCommand / 4

// rules make a plan, one after the other. Each sees what those before it have done.
var rules = []func(*planBuilder){
	(*planBuilder).calendar,           // the dedicated set of this time of day
	(*planBuilder).updateStatuses,     // replicas follow what is observed of them
	(*planBuilder).resolveUnknownJobs, // jobs without a replica are adopted, or keep what they hold
	(*planBuilder).demand,             // models without replicas that clients ask for
	(*planBuilder).prune,              // idle replicas go WARM or COLD
	(*planBuilder).keepPlaces,
	(*planBuilder).scaleAll, // models come nearer to their numbers and definitions
	(*planBuilder).returns,  // displaced replicas come back where there is room
	(*planBuilder).reserves, // what models keep WARM is started where there is room
	(*planBuilder).reportUnplaceable,
}

// Planner makes one plan after the other, and keeps what it computes for models of which
// nothing changes; see world. Each plan is the one that a new Planner would make of the same
// view and observation. A Planner is not safe for concurrent use.
//
// The maps of an observation must not change once Plan has seen them: the same map again means
// that nothing in it is new.
type Planner struct {
	world *world
}

// New returns a planner that has seen nothing.
func New(c Config) *Planner { return &Planner{world: newWorld(c)} }

// Plan returns what to commit, nil if there is nothing to change, and when to plan again if nothing
// happens before, zero for never. The plan is made from this view, and is not rejected while the
// view is the newest.
//
// The reconciler writes the nodes: it sets Node.DownSince when Nomad reports that a node is
// down, and Node.WrittenOff once that was Config.NodeGrace ago. Plan only reads them.
func (p *Planner) Plan(v *state.View, o Observation) (*state.Plan, time.Time) {
	if v.Switch(nil, state.SwitchPauseReconcile) != "" {
		return nil, time.Time{}
	}
	alone := p.world.beginPlan(v, o)
	plan := alone.run()
	if !alone.tally.joinable() {
		return plan, alone.next
	}
	together := alone.together(p.world.beginPlan(v, o))
	if other := together.run(); together.tally.better(&alone.tally) {
		return other, together.next
	}
	return plan, alone.next
}

// run applies all rules, and returns the plan, nil where it changes nothing.
func (b *planBuilder) run() *state.Plan {
	for _, rule := range rules {
		// A full plan goes on in the next one. What another dedicated set changes does, too.
		if b.full() || b.plan.Dedicated != nil {
			return b.finished()
		}
		rule(b)
	}
	for _, m := range b.models {
		m.evaluated = true
	}
	return b.finished()
}

// updateStatuses changes the statuses of replicas to what is observed.
func (b *planBuilder) updateStatuses() {
	for m := range b.moving(following) {
		for _, r := range m.members {
			if b.full() {
				break
			}
			b.updateStatus(m, r)
		}
		b.placesFreed(m)
		if !b.full() {
			b.dropDuplicateCold(m)
		}
	}
}

// scaleAll brings models nearer to their numbers and their definitions.
func (b *planBuilder) scaleAll() {
	for m := range b.moving(scaling) {
		b.scale(m)
	}
}

// reportUnplaceable sets at each model why replicas of it are missing.
func (b *planBuilder) reportUnplaceable() {
	for _, m := range b.models {
		if was := m.Unplaceable; m.unplaceable != "" && (was == nil || was.Reason != m.unplaceable) || m.unplaceable == "" && was != nil && !m.rolledBack {
			b.plan.Unplaceable = append(b.plan.Unplaceable, state.SetUnplaceable{Model: m.Name, Reason: m.unplaceable})
		}
	}
}

// finished returns the plan with the scales of the models, nil where it changes nothing.
func (b *planBuilder) finished() *state.Plan {
	for _, m := range b.models {
		if m.scaled && !m.rolledBack { // its stable version may have other bounds
			b.plan.Scales = append(b.plan.Scales, *state.ScaleOf(m.Model))
		}
	}
	if b.size() == 0 {
		return nil
	}
	return b.plan
}
