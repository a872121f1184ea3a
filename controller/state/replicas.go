package state

import (
	"fmt"
	"time"

	"remuda/internal/replica"
)

// Plan is a change of several replicas that happens as a whole or not at all: first
// what goes, then what moves, then what comes, then how far rollouts have come.
type Plan struct {
	// ID names the plan in logs and decisions.
	ID string
	// Index is View.Index of the view that the plan was made from. It is refused where
	// a model or a node on which it places has changed since, or a model whose rollout
	// it moves on. (Seats and bytes are looked at themselves, so that a plan does not
	// fail for a neighbour's change.)
	Index uint64
	// Time is when it was made.
	Time      time.Time
	Remove    []Remove
	Move      []Move
	Place     []Place
	Rollouts  []SetRollout `json:",omitempty"`
	Decisions []Decision
}

// Type implements Command.
func (*Plan) Type() Type { return TypePlan }

func (c *Plan) apply(t *txn) *Error {
	if err := faults(c.ID, checkTime("time", &c.Time)); err != nil {
		return err
	}
	for i := range c.Remove {
		if err := c.Remove[i].apply(t); err != nil {
			return err
		}
	}
	for i := range c.Move {
		if c.Move[i].Time.IsZero() {
			c.Move[i].Time = c.Time
		}
		if err := c.Move[i].apply(t); err != nil {
			return err
		}
	}
	for i := range c.Place {
		if err := c.Place[i].apply(t, c.Index, c.Time); err != nil {
			return err
		}
	}
	// After the placements, which a model that has changed since the plan was made
	// refuses.
	for i := range c.Rollouts {
		if err := c.Rollouts[i].apply(t, c.Index, c.Time); err != nil {
			return err
		}
	}
	return t.record(c.Decisions)
}

// Place puts a new replica somewhere.
type Place struct {
	Name        replica.Name
	VariantHash string
	Placement   Placement
	Job         string
	Canary      bool
	// Adopt takes in a replica that runs already, as JobIndex, Tier and Phase say: HOT
	// starting or running, or WARM running. It need not be in a place where a new one
	// could go, but takes no seat and no byte that is another's.
	Adopt    bool
	JobIndex uint64
	Tier     Tier
	Phase    Phase

	// Failures, LastError and Retry are carried over from the replica that it stands
	// for, so that a failure is not forgotten by going elsewhere.
	Failures  int       `json:",omitempty"`
	LastError string    `json:",omitempty"`
	Retry     time.Time `json:",omitzero"`
}

func (p *Place) apply(t *txn, planned uint64, now time.Time) *Error {
	name := p.Name.String()
	if parsed, err := replica.ParseName(name); err != nil {
		return badRequest(name, "%v", err)
	} else if parsed != p.Name {
		return badRequest(name, "variant and ID of %q must not hold a ':'", name)
	}
	errs := []error{checkName("replica", name), checkName("node", p.Placement.Node), checkTime("retry", &p.Retry)}
	if p.Failures < 0 {
		errs = append(errs, fmt.Errorf("failures is %d", p.Failures))
	}
	if err := faults(name, errs...); err != nil {
		return err
	}
	if planned == 0 && !p.Adopt {
		return badRequest(name, "the plan does not say which index it was made from")
	}
	if first[Replica](t.Txn, TableReplicas, byID, name) != nil {
		return conflict(name, "replica %s exists already", name)
	}
	m := first[Model](t.Txn, TableModels, byID, p.Name.Model)
	if m == nil {
		return notFound(p.Name.Model, "model %q does not exist", p.Name.Model)
	}
	n := first[Node](t.Txn, TableNodes, byID, p.Placement.Node)
	if n == nil {
		return notFound(p.Placement.Node, "node %q does not exist", p.Placement.Node)
	}

	r := &Replica{
		Name: p.Name, VariantHash: p.VariantHash, Tier: Hot, Phase: Placed,
		Placement: p.Placement, Job: p.Job, Canary: p.Canary,
		Failures: p.Failures, LastError: p.LastError, Retry: p.Retry,
		Since: now, Created: now, CreateIndex: t.index, ModifyIndex: t.index,
	}
	if p.Adopt {
		r.Tier, r.Phase, r.JobIndex = p.Tier, p.Phase, p.JobIndex
		switch r.Stage() {
		case Stage{Hot, Starting}, Stage{Hot, Running}, Stage{Warm, Running}:
		default:
			return badRequest(name, "%s is adopted as %s: want HOT starting, HOT running or WARM running", name, r.Stage())
		}
	} else {
		if m.ModifyIndex > planned {
			return conflict(m.Name, "model %q has changed at %d, after the plan was made at %d", m.Name, m.ModifyIndex, planned)
		}
		if m.Stopped {
			return conflict(m.Name, "model %q is stopped", m.Name)
		}
		if n.ModifyIndex > planned {
			return conflict(n.ID, "node %s has changed at %d, after the plan was made at %d", n.ID, n.ModifyIndex, planned)
		}
		if why := n.Usable(); why != "" {
			return conflict(n.ID, "node %s %s", n.ID, why)
		}
	}
	if err := p.checkShape(m, n); err != nil {
		return err
	}
	if err := admit(t, r, Holding{}, p.Adopt); err != nil {
		return err
	}
	t.put(TableReplicas, r)
	return nil
}

// checkShape checks that the seats and the memory are of the same GPUs of n, and as
// many as the definition asks for that the replica is made from, where it is known.
func (p *Place) checkShape(m *Model, n *Node) *Error {
	name := p.Name.String()
	if p.Placement.HostMemory < 0 {
		return badRequest(name, "host memory is %d", p.Placement.HostMemory)
	}
	if len(p.Placement.Seats) == 0 {
		return badRequest(name, "%s has no seats", name)
	}
	taken := make(map[string]bool, len(p.Placement.Seats))
	perGPU := make(map[string]int, len(p.Placement.Memory))
	for _, s := range p.Placement.Seats {
		if taken[s] {
			return badRequest(s, "seat %s is there twice", s)
		}
		taken[s] = true
		gpu := n.seatGPU(s)
		if gpu == "" {
			return conflict(s, "node %s has no seat %s", n.ID, s)
		}
		perGPU[gpu]++
	}
	for _, gpu := range sortedKeys(p.Placement.Memory) {
		if p.Placement.Memory[gpu] < 0 {
			return badRequest(gpu, "memory of GPU %s is %d", gpu, p.Placement.Memory[gpu])
		}
		if perGPU[gpu] == 0 {
			return badRequest(gpu, "%s takes memory of GPU %s and no seat", name, gpu)
		}
	}
	if len(perGPU) != len(p.Placement.Memory) {
		return badRequest(name, "%s has seats on %d GPUs and memory of %d", name, len(perGPU), len(p.Placement.Memory))
	}
	v, failover := m.definition(p.Name.Variant, p.VariantHash)
	if v == nil {
		return nil
	}
	seats := 1
	if failover {
		seats = 2
	}
	if len(perGPU) != v.GPUs {
		return badRequest(name, "%s is on %d GPUs: variant %q needs %d", name, len(perGPU), v.Name, v.GPUs)
	}
	for _, gpu := range sortedKeys(perGPU) {
		if perGPU[gpu] != seats {
			return badRequest(name, "%s has %d seats on GPU %s: want %d", name, perGPU[gpu], gpu, seats)
		}
	}
	return nil
}

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
			errs = append(errs, fmt.Errorf("failures is %d", r.Failures))
		}
	}
	if c.LastError != nil {
		r.LastError = *c.LastError
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
	if to == (Stage{Warm, Waking}) && to != old.Stage() {
		n := first[Node](t.Txn, TableNodes, byID, r.Placement.Node)
		if n == nil {
			return conflict(c.Replica, "replica %s: its node is not known", c.Replica)
		}
		if n.Gone || !n.LostSince.IsZero() {
			return conflict(n.ID, "node %s %s", n.ID, n.Usable())
		}
	}
	if err := admit(t, &r, old.Holds(), false); err != nil {
		return err
	}
	r.ModifyIndex = t.index
	t.put(TableReplicas, &r)
	return nil
}

// Remove forgets a replica whose seats and bytes are free: it is stopping and its job
// is gone, or its job was never registered, or it is COLD, or its node is gone.
type Remove struct {
	Replica string
	// ModifyIndex is the replica's as the caller knows it.
	ModifyIndex uint64
}

// Type implements Command.
func (*Remove) Type() Type { return TypeRemove }

func (c *Remove) apply(t *txn) *Error {
	r := first[Replica](t.Txn, TableReplicas, byID, c.Replica)
	if r == nil {
		return notFound(c.Replica, "replica %q does not exist", c.Replica)
	}
	if err := compare("replica", c.Replica, r.ModifyIndex, c.ModifyIndex); err != nil {
		return err
	}
	n := first[Node](t.Txn, TableNodes, byID, r.Placement.Node)
	if why := r.removable(n); why != "" {
		return conflict(c.Replica, "replica %s: %s", c.Replica, why)
	}
	t.remove(TableReplicas, r)
	return nil
}
