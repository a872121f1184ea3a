package state

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// EvictRequest evicts a replica, or all replicas of a model. A replica that serves is drained
// first. A replica that is WARM, going to sleep or waking is stopped. A replica that never served
// is stopped and removed. With GoalWarm, a replica that serves is drained and put to sleep; one that
// is WARM or going to sleep is unchanged; one that cannot go WARM is an error if it is named, and is
// skipped if its model is.
//
// Evicted replicas that counted are displaced until clients wait, but never so many that fewer than
// Min are left. A stopped model keeps its scale. If the whole model is evicted, its replicas that
// were evicted for other models do not return before clients wait either. Replicas that are
// already leaving are unchanged.
//
// The request is rejected for a dedicated model, below Min, and if management is disabled, unless
// Force is set. If it is forced below Min, new replicas are placed. With GoalWarm it is
// rejected below Min even then: the next plan would wake the replicas, or cancel their drain.
type EvictRequest struct {
	// Replica or Model names what is evicted. Exactly one is set.
	Replica, Model string
	// To is GoalWarm, GoalCold or GoalGone.
	To    Goal
	Force bool
	// Time is when it was decided; drains are measured from it.
	Time time.Time
}

// Resolve implements Proposal. It returns a *Plan, which is empty if nothing is evicted.
func (r *EvictRequest) Resolve(v *View) (Command, *Error) {
	var errs []error
	if r.Time.IsZero() {
		errs = append(errs, fmt.Errorf("time is zero: must be the time of the decision"))
	}
	if (r.Replica == "") == (r.Model == "") {
		errs = append(errs, fmt.Errorf("replica is %q and model is %q: exactly one must be set", r.Replica, r.Model))
	}
	if r.To != GoalWarm && r.To != GoalCold && r.To != GoalGone {
		errs = append(errs, fmt.Errorf("goal is %q: must be %s, %s or %s", r.To, GoalWarm, GoalCold, GoalGone))
	}
	subject := r.Replica + r.Model
	if err := invalid(subject, errs...); err != nil {
		return nil, err
	}
	plan := &Plan{ID: "evict " + subject, Index: v.Index(), Time: r.Time}
	m, victims, err := r.victims(v)
	if err != nil {
		return nil, err
	}
	less, short := v.without(m, victims)
	if short > 0 && r.To == GoalWarm {
		return nil, reject(CodeForbidden, subject, "model %q: %s: a replica that goes WARM would serve again at once: lower min in the model file, or evict it to COLD", m.Name, belowMin(m, less, short))
	}
	if why := v.mayEvict(m, less, short); why != "" && !r.Force {
		return nil, reject(CodeForbidden, subject, "model %q: %s: set Force (-force) to evict anyway", m.Name, why)
	}
	if r.Model != "" {
		less.Displaced = less.Displaced.AllUntilAsked()
	}
	if !less.sameScale(m) {
		less.ScaledAt = r.Time
		plan.Scales = []Scale{*ScaleOf(less)}
	}
	for _, one := range victims {
		plan.Move = append(plan.Move, r.move(one))
	}
	return plan, nil
}

// victims returns the replicas to evict, and their model.
func (r *EvictRequest) victims(v *View) (*Model, []*Replica, *Error) {
	var victims []*Replica
	model := r.Model
	if r.Replica != "" {
		one := v.Replica(nil, r.Replica)
		if one == nil {
			return nil, nil, notFound(r.Replica, "replica %q does not exist", r.Replica)
		}
		model = one.Name.Model
		if !one.Leaving() {
			victims = append(victims, one)
		}
	}
	m := v.Model(nil, model)
	if m == nil {
		return nil, nil, notFound(model, "model %q does not exist", model)
	}
	if r.Model != "" {
		victims = slices.DeleteFunc(v.ReplicasOf(nil, model), (*Replica).Leaving)
	}
	if r.To != GoalWarm {
		return m, victims, nil
	}
	for _, one := range victims {
		if why := one.neverWarm(); why != "" && r.Replica != "" {
			return nil, nil, conflict(r.Replica, "replica %s is %s: %s", r.Replica, one.Status, why)
		}
	}
	return m, slices.DeleteFunc(victims, func(r *Replica) bool { return r.Status != StatusServing }), nil
}

// move returns the move that ends a replica, or puts it to sleep.
func (r *EvictRequest) move(one *Replica) Move {
	c := Move{Replica: one.Name.String(), ModifyIndex: one.ModifyIndex, Event: EventStop, Goal: r.To}
	switch one.Status {
	case StatusServing, StatusDraining:
		c.Event = EventDrain
	case StatusPlaced, StatusStarting, StatusFailed:
		c.Goal = GoalGone // its weights may not be on the disk
	}
	return c
}

// neverWarm returns why r, which is not on its way out, cannot be kept WARM by an
// eviction, empty if it can or rests already.
func (r *Replica) neverWarm() string {
	switch r.Status {
	case StatusPlaced, StatusStarting, StatusFailed:
		return "only a serving replica can go WARM: evict it to COLD"
	case StatusWaking:
		return "wait until it serves, or evict it to COLD"
	}
	return ""
}

// without returns m with its scale reduced by the victims, and how many of them would have to be
// placed again because fewer than Min would be left. A surplus replica reduces no share. If an
// external pool has no surplus, a victim in it reduces that pool's share.
func (v *View) without(m *Model, victims []*Replica) (less *Model, short int) {
	l := *m
	if m.Stopped {
		return &l, 0
	}
	active := m.Active()
	of, total := active.cells(), active.Total()
	shareOf := func(r *Replica) cell {
		if _, own := active.Of(r.Name.Variant); own {
			return cell{v.poolOf(r), r.Name.Variant}
		}
		return cell{v.poolOf(r), ""}
	}
	running := map[cell]int{}
	for _, r := range v.StayingOf(nil, m.Name) {
		running[shareOf(r)]++
	}
	for _, r := range victims {
		if !r.Counts() {
			continue
		}
		c := shareOf(r)
		pools := active.ownFirst()
		if n := of[c]; n > 0 && running[c] <= n {
			pools = []string{c.pool}
		}
		running[c]--
		switch trial := maps.Clone(of); {
		case take(trial, 1, pools, []string{c.variant}) > 0: // it is one more than there should be
		case total <= m.Min:
			short++
		default:
			of = trial
			total--
		}
	}
	l.Displaced = m.displacedBeyond(active.cells(), of, UntilAsked)
	return &l, short
}

// poolOf returns the capacity pool of a replica's node, empty where that is not known.
func (v *View) poolOf(r *Replica) string {
	if n := v.Node(nil, r.Placement.Node); n != nil {
		return n.CapacityPool
	}
	return ""
}

// mayEvict returns why m may not become less, empty if it may.
func (v *View) mayEvict(m, less *Model, short int) string {
	switch {
	case v.IsDedicated(nil, m):
		return "the model is dedicated"
	case short > 0:
		return belowMin(m, less, short)
	case m.Management == ManagementDisabled && !m.sameScale(less):
		return "scaling is disabled (management = \"disabled\" in the model file)"
	}
	return ""
}

func belowMin(m, less *Model, short int) string {
	target := m.Active().Total()
	return fmt.Sprintf("the target is %d replicas, and %d fewer would be below min, which is %d", target, target-less.Active().Total()+short, m.Min)
}
