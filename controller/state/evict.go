package state

import (
	"fmt"
	"maps"
	"time"
)

// Evict sends a replica, or all replicas of a model, away: one that serves is drained
// first, one that is WARM or on its way there or back is stopped, one that never served
// is stopped and forgotten. The model should then have as many replicas less, and its
// variant where it has a number of its own, but never less than Min; a stopped model
// keeps its numbers. What is on its way out already stays as it is.
//
// It is refused for a dedicated model, below Min, and where management is disabled,
// unless Force is set. Forced below Min, what goes is placed anew.
type Evict struct {
	// Replica or Model, one of them, is what goes.
	Replica, Model string
	// To is Cold, where the weights on the node's disk are remembered, or empty.
	To    Tier
	Force bool
	// Time is when it was decided; drains are measured from it.
	Time time.Time
}

// Type implements Command.
func (*Evict) Type() Type { return TypeEvict }

func (c *Evict) apply(t *txn) *Error {
	errs := []error{checkTime("time", &c.Time)}
	if c.Time.IsZero() {
		errs = append(errs, fmt.Errorf("time is zero: want when it was decided"))
	}
	if (c.Replica == "") == (c.Model == "") {
		errs = append(errs, fmt.Errorf("replica is %q and model %q: want one of them", c.Replica, c.Model))
	}
	if c.To != "" && c.To != Cold {
		errs = append(errs, fmt.Errorf("it is to become %q: want %s or nothing", c.To, Cold))
	}
	subject := c.Replica + c.Model
	if err := faults(subject, errs...); err != nil {
		return err
	}
	var going []*Replica
	model := c.Model
	if c.Replica != "" {
		r := first[Replica](t.Txn, TableReplicas, byID, c.Replica)
		if r == nil {
			return notFound(c.Replica, "replica %q does not exist", c.Replica)
		}
		model = r.Name.Model
		if !r.Leaving() {
			going = append(going, r)
		}
	}
	m := first[Model](t.Txn, TableModels, byID, model)
	if m == nil {
		return notFound(model, "model %q does not exist", model)
	}
	if c.Model != "" {
		going = staying(t, model)
	}
	if len(going) == 0 {
		return nil
	}
	less, short := m.without(going)
	if why := m.mayEvict(less, short); why != "" && !c.Force {
		return refuse(CodeForbidden, subject, "model %q: %s: force it if that is meant", m.Name, why)
	}
	if !less.sameScale(m) {
		less.ModifyIndex = t.index
		t.put(TableModels, less)
	}
	for _, r := range going {
		if err := c.send(t, r); err != nil {
			return err
		}
	}
	return nil
}

// without returns the model as it should be without those replicas, and how many of
// them would have to come again because there would be fewer than Min. Only what is a
// part of Replicas counts: a replica more than that is taken from none.
func (m *Model) without(going []*Replica) (less *Model, short int) {
	l := *m
	if m.Stopped {
		return &l, 0
	}
	shared := m.Shared()
	l.Spread = maps.Clone(m.Spread)
	for _, r := range going {
		n, set := l.Spread[r.Name.Variant]
		switch {
		case set && n == 0, !set && shared == 0:
			continue
		case l.Replicas <= m.Min:
			short++
			continue
		case set:
			l.Spread[r.Name.Variant] = n - 1
		default:
			shared--
		}
		l.Replicas--
	}
	return &l, short
}

// mayEvict returns why m may not become less, empty where it may.
func (m *Model) mayEvict(less *Model, short int) string {
	switch {
	case m.Dedicated:
		return "it is dedicated"
	case short > 0:
		return fmt.Sprintf("it should have %d replicas, and %d fewer would be below its minimum, which is %d", m.Replicas, m.Replicas-less.Replicas+short, m.Min)
	case m.Management == ManagementDisabled && !m.sameScale(less):
		return "its management is disabled: nobody changes its scale"
	}
	return ""
}

// send puts a replica on its way out.
func (c *Evict) send(t *txn, old *Replica) *Error {
	r := *old
	switch old.Stage() {
	case Stage{Hot, Running}, Stage{Hot, Draining}:
		r.Phase, r.Target = Draining, c.To
	case Stage{Hot, Placed}, Stage{Hot, Starting}, Stage{Hot, Failed}:
		// Its weights may not be on the disk.
		r.Phase, r.Target = Stopping, ""
	case Stage{Warm, Waking}:
		r.Tier, r.Phase, r.Target = Hot, Stopping, c.To
	default:
		r.Phase, r.Target = Stopping, c.To
	}
	if why := old.mayMove(r.Stage(), r.Target); why != "" {
		return conflict(r.Name.String(), "replica %s: %s", r.Name, why)
	}
	if r.Stage() != old.Stage() {
		r.Since = c.Time
	}
	r.ModifyIndex = t.index
	t.put(TableReplicas, &r)
	return nil
}
