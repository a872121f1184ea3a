package state

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// Evict sends a replica, or all replicas of a model, away: one that serves is drained
// first, one that is WARM or on its way there or back is stopped, one that never served
// is stopped and forgotten. To WARM, one that serves is drained and put to sleep, what
// rests already stays as it is, and what cannot go there is refused where it is named
// and left alone where its model is.
//
// As many of the model's replicas as counted and go are displaced until clients wait, but never
// so many that fewer than Min are left; a stopped model keeps its scale. What is on its way out
// already stays as it is.
//
// It is refused for a dedicated model, below Min, and where management is disabled,
// unless Force is set. Forced below Min, what goes is placed anew. To WARM it is refused below
// Min in any case: the next plan would wake what goes, or call it back.
type Evict struct {
	// Replica or Model, one of them, is what goes.
	Replica, Model string
	// To is GoalWarm, GoalCold or GoalGone.
	To    Goal
	Force bool
	// Time is when it was decided; drains are measured from it.
	Time time.Time
}

// Type implements Command.
func (*Evict) Type() Type { return TypeEvict }

func (c *Evict) apply(t *txn) *Error {
	errs := []error{checkTime("time", &c.Time)}
	if c.Time.IsZero() {
		errs = append(errs, fmt.Errorf("time is zero: must be the time of the decision"))
	}
	if (c.Replica == "") == (c.Model == "") {
		errs = append(errs, fmt.Errorf("replica is %q and model is %q: exactly one must be set", c.Replica, c.Model))
	}
	if c.To != GoalWarm && c.To != GoalCold && c.To != GoalGone {
		errs = append(errs, fmt.Errorf("goal is %q: must be %s, %s or %s", c.To, GoalWarm, GoalCold, GoalGone))
	}
	subject := c.Replica + c.Model
	if err := faults(subject, errs...); err != nil {
		return err
	}
	m, going, err := c.going(t)
	if err != nil || len(going) == 0 {
		return err
	}
	less, short := t.without(m, going)
	if short > 0 && c.To == GoalWarm {
		return refuse(CodeForbidden, subject, "model %q: %s: a replica that goes WARM would serve again at once: lower min in the model file, or evict it to COLD", m.Name, belowMin(m, less, short))
	}
	if why := t.mayEvict(m, less, short); why != "" && !c.Force {
		return refuse(CodeForbidden, subject, "model %q: %s: set Force (-force) to evict anyway", m.Name, why)
	}
	if !less.sameScale(m) {
		less.ModifyIndex, less.ScaledAt = t.index, c.Time
		t.put(TableModels, less)
	}
	for _, r := range going {
		if err := c.send(t, r); err != nil {
			return err
		}
	}
	return nil
}

// going returns the replicas that go, and their model.
func (c *Evict) going(t *txn) (*Model, []*Replica, *Error) {
	var going []*Replica
	model := c.Model
	if c.Replica != "" {
		r := first[Replica](t.Txn, TableReplicas, byID, c.Replica)
		if r == nil {
			return nil, nil, notFound(c.Replica, "replica %q does not exist", c.Replica)
		}
		model = r.Name.Model
		if !r.Leaving() {
			going = append(going, r)
		}
	}
	m := first[Model](t.Txn, TableModels, byID, model)
	if m == nil {
		return nil, nil, notFound(model, "model %q does not exist", model)
	}
	if c.Model != "" {
		going = present(t, model)
	}
	if c.To != GoalWarm {
		return m, going, nil
	}
	for _, r := range going {
		if why := r.neverWarm(); why != "" && c.Replica != "" {
			return nil, nil, conflict(c.Replica, "replica %s is %s: %s", c.Replica, r.Status, why)
		}
	}
	return m, slices.DeleteFunc(going, func(r *Replica) bool { return r.Status != StatusServing }), nil
}

// neverWarm returns why r, which is not on its way out, cannot be kept WARM by an
// eviction, empty where it can or rests already.
func (r *Replica) neverWarm() string {
	switch r.Status {
	case StatusPlaced, StatusStarting, StatusFailed:
		return "only a serving replica can go WARM: evict it to COLD"
	case StatusWaking:
		return "wait until it serves, or evict it to COLD"
	}
	return ""
}

// without returns m as it should be without those replicas, and how many of them would
// have to come again because there would be fewer than Min. A replica that is more than there
// should be is taken from no share. Where there are no more replicas in an external pool than
// there should be, one that goes is taken from that pool's share.
func (t *txn) without(m *Model, going []*Replica) (less *Model, short int) {
	l := *m
	if m.Stopped {
		return &l, 0
	}
	active := m.Active()
	of, total := active.cells(), active.Total()
	shareOf := func(r *Replica) cell {
		if _, own := active.Of(r.Name.Variant); own {
			return cell{t.poolOf(r), r.Name.Variant}
		}
		return cell{t.poolOf(r), ""}
	}
	running := map[cell]int{}
	for _, r := range counting(t, m.Name) {
		running[shareOf(r)]++
	}
	for _, r := range going {
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
func (t *txn) poolOf(r *Replica) string {
	if n := first[Node](t.Txn, TableNodes, byID, r.Placement.Node); n != nil {
		return n.CapacityPool
	}
	return ""
}

// mayEvict returns why m may not become less, empty where it may.
func (t *txn) mayEvict(m, less *Model, short int) string {
	switch {
	case t.isDedicated(m):
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

// send puts a replica on its way out, or to sleep.
func (c *Evict) send(t *txn, old *Replica) *Error {
	event, goal := EventStop, c.To
	switch old.Status {
	case StatusServing, StatusDraining:
		event = EventDrain
	case StatusPlaced, StatusStarting, StatusFailed:
		goal = GoalGone // its weights may not be on the disk
	}
	r, err := old.Advance(event, goal, c.Time)
	if err != nil {
		return conflict(old.Name.String(), "replica %s: %v", old.Name, err)
	}
	r.ModifyIndex = t.index
	t.put(TableReplicas, r)
	return nil
}
