package planner

import (
	"time"

	"remuda/controller/state"
)

// maxChanges is about how much one plan changes: it is one entry of the Raft log, some
// kilobytes for each change, and the next plan goes on where this one ends.
const maxChanges = 1000

// maxText is about how long the decisions of one plan are, in bytes: those that say of
// each node why nothing fits there can be very long.
const maxText = state.MaxCommand / 4

// rules make a plan, one after the other. Each sees what those before it have done.
var rules = []func(*draft){
	(*draft).calendar,  // the dedicated set of this time of day
	(*draft).followAll, // replicas follow what is observed of them
	(*draft).orphans,   // jobs without a replica are adopted, or keep what they hold
	(*draft).demand,    // models without replicas that clients ask for
	(*draft).prune,     // idle replicas go WARM or COLD
	(*draft).keepPlaces,
	(*draft).scaleAll, // models come nearer to their numbers and definitions
	(*draft).returns,  // displaced replicas come back where there is room
	(*draft).reportUnplaceable,
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

// Plan returns what to commit, nil where nothing is to be changed, and when to look
// again although nothing happens, zero where that is never. What it returns is made
// from this view and is not refused as long as the view is the newest.
//
// Nodes are written by the reconciler: it sets Node.DownSince when Nomad says that a
// node is down, and Node.WrittenOff once that was Config.NodeGrace ago. Plan only looks.
func (p *Planner) Plan(v *state.View, o Observation) (*state.Plan, time.Time) {
	if v.Switch(nil, state.SwitchPauseReconcile) != "" {
		return nil, time.Time{}
	}
	alone := p.world.draft(v, o)
	plan := alone.run()
	if !alone.tally.joinable() {
		return plan, alone.next
	}
	together := alone.together(p.world.draft(v, o))
	if other := together.run(); together.tally.better(&alone.tally) {
		return other, together.next
	}
	return plan, alone.next
}

// run applies all rules, and returns the plan, nil where it changes nothing.
func (d *draft) run() *state.Plan {
	for _, rule := range rules {
		// A full plan goes on in the next one. What another dedicated set changes does, too.
		if d.full() || d.plan.Dedicated != nil {
			return d.finished()
		}
		rule(d)
	}
	for _, m := range d.models {
		m.judged = true
	}
	return d.finished()
}

// followAll lets the statuses of replicas follow what is observed.
func (d *draft) followAll() {
	for m := range d.moving(following) {
		for _, r := range m.members {
			if d.full() {
				return
			}
			d.follow(m, r)
		}
		d.tidy(m)
	}
}

// scaleAll brings models nearer to their numbers and their definitions.
func (d *draft) scaleAll() {
	for m := range d.moving(scaling) {
		d.scale(m)
	}
}

// reportUnplaceable notes at the models why replicas of them are missing.
func (d *draft) reportUnplaceable() {
	for _, m := range d.models {
		if was := m.Unplaceable; m.unplaceable != "" && (was == nil || was.Reason != m.unplaceable) || m.unplaceable == "" && was != nil && !m.rolledBack {
			d.plan.Unplaceable = append(d.plan.Unplaceable, state.SetUnplaceable{Model: m.Name, Reason: m.unplaceable})
		}
	}
}

// finished returns the plan with the scales of the models, nil where it changes nothing.
func (d *draft) finished() *state.Plan {
	for _, m := range d.models {
		if m.scaled && !m.rolledBack { // its stable version may have other bounds
			d.plan.Scales = append(d.plan.Scales, *state.ScaleOf(m.Model))
		}
	}
	if d.size() == 0 {
		return nil
	}
	return d.plan
}
