package state

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// Move is an event in a replica's life, or a change of details.
type Move struct {
	Replica string
	// ModifyIndex is the replica's as the caller knows it.
	ModifyIndex uint64
	// Event and Goal are as for Replica.Advance.
	Event Event `json:",omitempty"`
	Goal  Goal  `json:",omitempty"`
	// Time is when it was decided; in a plan, zero is the plan's.
	Time time.Time

	// Details; nil: as they are.
	JobIndex *uint64 `json:",omitempty"`
	Canary   *bool   `json:",omitempty"`
	Failures *int    `json:",omitempty"`
	// LastError also sets NotPlaced.
	LastError      *string    `json:",omitempty"`
	NotPlaced      bool       `json:",omitempty"`
	RestartsBefore *Restarts  `json:",omitempty"`
	RetryAt        *time.Time `json:",omitempty"`
	MakesRoomFor   *string    `json:",omitempty"`
	// Spilled sets Spilled, and Kept sets KeptAt to Time.
	Spilled, Kept bool `json:",omitempty"`
	// Memory, with EventWake: the GPUs to wake on, in the place of those that it slept
	// on. It has seats on them, and takes as many bytes as before of as many GPUs.
	Memory map[string]int64 `json:",omitempty"`
	// SleepMemory, with EventSlept: how many bytes it keeps of each of its GPUs while it sleeps.
	SleepMemory *int64 `json:",omitempty"`
}

// Type implements Command.
func (*Move) Type() Type { return TypeMove }

func (c *Move) apply(t *txn) *Error {
	old := first[Replica](t.Txn, TableReplicas, byID, c.Replica)
	if old == nil {
		return notFound(c.Replica, "replica %q does not exist", c.Replica)
	}
	if err := checkIndex("replica", c.Replica, old.ModifyIndex, c.ModifyIndex); err != nil {
		return err
	}
	next, err := old.Advance(c.Event, c.Goal, c.Time)
	if err != nil {
		return conflict(c.Replica, "replica %s: %v", c.Replica, err)
	}
	r := *next
	errs := []error{checkTime("time", &c.Time)}
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
		r.LastError, r.NotPlaced = *c.LastError, c.NotPlaced
	}
	if c.RestartsBefore != nil {
		r.RestartsBefore = *c.RestartsBefore
	}
	if c.MakesRoomFor != nil {
		errs = append(errs, r.checkFor(*c.MakesRoomFor))
		r.MakesRoomFor = *c.MakesRoomFor
	}
	if c.RetryAt != nil {
		r.RetryAt = *c.RetryAt
		errs = append(errs, checkTime("retry", &r.RetryAt))
	}
	r.Spilled = r.Spilled || c.Spilled
	if c.Kept {
		r.KeptAt = c.Time
	}
	if err := invalid(c.Replica, errs...); err != nil {
		return err
	}
	if r.MakesRoomFor != "" && r.MakesRoomFor != old.MakesRoomFor && t.isDedicated(first[Model](t.Txn, TableModels, byID, r.Name.Model)) {
		return conflict(c.Replica, "replica %s cannot be evicted for model %q: its own model is dedicated", c.Replica, r.MakesRoomFor)
	}
	if len(c.Memory) > 0 {
		if err := c.wakeOn(t, &r); err != nil {
			return err
		}
	}
	if c.SleepMemory != nil {
		if err := c.sleepWith(&r); err != nil {
			return err
		}
	}
	if c.Event == EventWake {
		n := first[Node](t.Txn, TableNodes, byID, r.Placement.Node)
		if n == nil {
			return conflict(c.Replica, "replica %s: its node does not exist", c.Replica)
		}
		if n.WrittenOff || !n.DownSince.IsZero() {
			return conflict(n.ID, "node %s is %s", n.ID, n.Usable())
		}
	}
	if err := admit(t, &r, old.Holds(), false); err != nil {
		return err
	}
	r.ModifyIndex = t.index
	t.put(TableReplicas, &r)
	if c.Event == EventServing {
		t.served(old, &r)
	}
	return nil
}

// wakeOn puts the memory of r, which begins to wake, on the GPUs of c.Memory.
func (c *Move) wakeOn(t *txn, r *Replica) *Error {
	if c.Event != EventWake {
		return badRequest(c.Replica, "replica %s: GPUs cannot change with event %q: must be %q", c.Replica, c.Event, EventWake)
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
	r.SleepingGPUs = LeftBehind(r.Placement.Memory, c.Memory)
	r.Placement.Memory = maps.Clone(c.Memory)
	return nil
}

// sleepWith notes what r, which sleeps now, keeps of its GPUs.
func (c *Move) sleepWith(r *Replica) *Error {
	if c.Event != EventSlept {
		return badRequest(c.Replica, "replica %s: memory of a sleeping replica cannot change with event %q: must be %q", c.Replica, c.Event, EventSlept)
	}
	for _, gpu := range sortedKeys(r.Placement.Memory) {
		if most := r.Placement.Memory[gpu]; *c.SleepMemory < 0 || *c.SleepMemory > most {
			return badRequest(gpu, "replica %s: memory of GPU %s while it sleeps is %d bytes: must be 0 to %d, as while it serves", c.Replica, gpu, *c.SleepMemory, most)
		}
	}
	r.Placement.SleepMemory = *c.SleepMemory
	return nil
}

func (r *Replica) checkFor(model string) error {
	if model == "" {
		return nil
	}
	if !r.makesRoom() {
		return fmt.Errorf("evicted for model %q while it is %s: must be draining, sleeping, stopping or discarding", model, r.Status)
	}
	return checkName("model to make room for", model)
}
