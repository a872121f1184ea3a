package state

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// Move changes a replica's stage or details.
type Move struct {
	Replica string
	// ModifyIndex is the replica's as the caller knows it.
	ModifyIndex uint64
	Tier        Tier
	Phase       Phase
	Target      Tier
	// Time is when it was decided; in a plan, zero is the plan's.
	Time time.Time

	// Details; nil: as they are.
	Job       *string    `json:",omitempty"`
	JobIndex  *uint64    `json:",omitempty"`
	Canary    *bool      `json:",omitempty"`
	Failures  *int       `json:",omitempty"`
	LastError *string    `json:",omitempty"`
	Retry     *time.Time `json:",omitempty"`
	For       *string    `json:",omitempty"`
	// Memory, with WARM waking: the GPUs to wake on, in the place of those that it slept
	// on. It has seats on them, and takes as many bytes as before of as many GPUs.
	Memory map[string]int64 `json:",omitempty"`
}

// Type implements Command.
func (*Move) Type() Type { return TypeMove }

func (c *Move) apply(t *txn) *Error {
	old := first[Replica](t.Txn, TableReplicas, byID, c.Replica)
	if old == nil {
		return notFound(c.Replica, "replica %q does not exist", c.Replica)
	}
	if err := compare("replica", c.Replica, old.ModifyIndex, c.ModifyIndex); err != nil {
		return err
	}
	to := Stage{c.Tier, c.Phase}
	if why := old.mayMove(to, c.Target); why != "" {
		return conflict(c.Replica, "replica %s: %s", c.Replica, why)
	}
	r := *old
	r.Tier, r.Phase, r.Target = c.Tier, c.Phase, c.Target
	errs := []error{checkTime("time", &c.Time)}
	if to != old.Stage() {
		r.Since = c.Time
	}
	if c.Job != nil {
		r.Job = *c.Job
	}
	if c.JobIndex != nil {
		r.JobIndex = *c.JobIndex
	}
	if c.Canary != nil {
		r.Canary = *c.Canary
	}
	if c.Failures != nil {
		r.Failures = *c.Failures
		if r.Failures < 0 {
			errs = append(errs, fmt.Errorf("failures is %d: must not be negative", r.Failures))
		}
	}
	if c.LastError != nil {
		r.LastError = *c.LastError
	}
	if c.For != nil {
		if err := checkFor(*c.For, c.Phase); err != nil {
			errs = append(errs, err)
		}
		r.For = *c.For
	}
	if !makesRoom(c.Phase) {
		r.For = ""
	}
	if c.Phase != Waking && c.Phase != Stopping {
		r.Slept = nil
	}
	if c.Retry != nil {
		r.Retry = *c.Retry
		errs = append(errs, checkTime("retry", &r.Retry))
	}
	if err := faults(c.Replica, errs...); err != nil {
		return err
	}
	if r.Tier == Cold {
		r.Placement = Placement{Node: r.Placement.Node}
		r.JobIndex = 0
	}
	if r.For != "" && r.For != old.For && t.isDedicated(first[Model](t.Txn, TableModels, byID, r.Name.Model)) {
		return conflict(c.Replica, "replica %s cannot be evicted for model %q: its own model is dedicated", c.Replica, r.For)
	}
	if len(c.Memory) > 0 {
		if err := c.wakeOn(t, &r, old.Stage()); err != nil {
			return err
		}
	}
	if to == (Stage{Warm, Waking}) && to != old.Stage() {
		n := first[Node](t.Txn, TableNodes, byID, r.Placement.Node)
		if n == nil {
			return conflict(c.Replica, "replica %s: its node does not exist", c.Replica)
		}
		if n.Gone || !n.LostSince.IsZero() {
			return conflict(n.ID, "node %s is %s", n.ID, n.Usable())
		}
	}
	if err := admit(t, &r, old.Holds(), false); err != nil {
		return err
	}
	r.ModifyIndex = t.index
	t.put(TableReplicas, &r)
	return nil
}

// wakeOn puts the memory of r, which was in the stage from, on the GPUs of c.Memory.
func (c *Move) wakeOn(t *txn, r *Replica, from Stage) *Error {
	if to := r.Stage(); to != (Stage{Warm, Waking}) || from != (Stage{Warm, Running}) {
		return badRequest(c.Replica, "replica %s: cannot change its GPUs in the transition from %s to %s: only a replica that starts to wake can", c.Replica, from, to)
	}
	n := first[Node](t.Txn, TableNodes, byID, r.Placement.Node)
	seats := map[string]bool{}
	for _, s := range r.Placement.Seats {
		seats[n.seatGPU(s)] = true
	}
	for _, gpu := range sortedKeys(c.Memory) {
		if gpu == "" || !seats[gpu] {
			return conflict(c.Replica, "replica %s cannot wake on GPU %q of node %s: it has no seat there", c.Replica, gpu, r.Placement.Node)
		}
	}
	had, want := slices.Sorted(maps.Values(r.Placement.Memory)), slices.Sorted(maps.Values(c.Memory))
	if !slices.Equal(had, want) {
		return badRequest(c.Replica, "replica %s: GPU memory to wake with is %d bytes: must be %d, as before it slept", c.Replica, want, had)
	}
	r.Slept = LeftBehind(r.Placement.Memory, c.Memory)
	r.Placement.Memory = maps.Clone(c.Memory)
	return nil
}

// makesRoom tells whether a replica in that phase can be on its way for another model.
func makesRoom(p Phase) bool { return p == Draining || p == Sleeping || p == Stopping }

func checkFor(model string, phase Phase) error {
	if model == "" {
		return nil
	}
	if !makesRoom(phase) {
		return fmt.Errorf("evicted for model %q in phase %s: must be draining, sleeping or stopping", model, phase)
	}
	return checkName("model to make room for", model)
}
