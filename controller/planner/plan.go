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

// Plan returns what to commit, nil where nothing is to be changed, and when to look
// again although nothing happens, zero where that is never. What it returns is made
// from this view and is not refused as long as the view is the newest.
//
// Nodes are written by the reconciler: it sets Node.LostSince when Nomad says that a
// node is down, and Node.Gone once that was Config.NodeGrace ago. Plan only looks.
func Plan(v *state.View, o Observation, c Config) (*state.Plan, time.Time) {
	if v.Switch(nil, state.SwitchPauseReconcile) != "" {
		return nil, time.Time{}
	}
	alone := newDraft(v, o, c)
	p := alone.run()
	if !alone.tally.joinable() {
		return p, alone.next
	}
	together := newDraft(v, o, c)
	together.joint = &joint{alone: &alone.tally, searched: map[class]bool{}, places: map[string][]option{}}
	if q := together.run(); together.tally.better(&alone.tally) {
		return q, together.next
	}
	return p, alone.next
}

// run applies all rules, and returns the plan, nil where it changes nothing.
func (d *draft) run() *state.Plan {
	if d.calendar() {
		return d.plan
	}
	for _, m := range d.models {
		for _, r := range m.members {
			if d.full() {
				return d.finished()
			}
			d.follow(m, r)
		}
		d.tidy(m)
	}
	d.orphans()
	d.demand()
	d.prune()
	for _, m := range d.models {
		if d.full() {
			return d.finished()
		}
		d.scale(m)
	}
	d.forgetMarks()
	for _, m := range d.models {
		if was := m.Unplaceable; m.unplaceable != "" && (was == nil || was.Reason != m.unplaceable) || m.unplaceable == "" && was != nil && !m.rolledBack {
			d.plan.Unplaceable = append(d.plan.Unplaceable, state.SetUnplaceable{Model: m.Name, Reason: m.unplaceable})
		}
	}
	return d.finished()
}

// finished returns the plan with the numbers of the models, nil where it changes
// nothing.
func (d *draft) finished() *state.Plan {
	for _, m := range d.models {
		if m.rescaled {
			d.plan.Rescales = append(d.plan.Rescales, state.Rescale{Model: m.Name, ModifyIndex: m.ModifyIndex, Replicas: m.Replicas, Spread: m.Spread})
		}
	}
	if d.size() == 0 {
		return nil
	}
	return d.plan
}
