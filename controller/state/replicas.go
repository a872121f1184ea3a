package state

import (
	"fmt"
	"time"

	"remuda/internal/replica"
)

// Plan is a change of several replicas that happens as a whole or not at all: first
// what goes, then what moves, then what comes, then how far rollouts have come; then
// the numbers of models and what the planner remembers of them, cordons and the dedicated set.
type Plan struct {
	// ID names the plan in logs and decisions.
	ID string
	// Index is View.Index of the view that the plan was made from. It is rejected where
	// a model or a node on which it places has changed since, or a model whose rollout
	// it moves on. (Seats and bytes are looked at themselves, so that a plan does not
	// fail for a neighbour's change.)
	Index uint64
	// Time is when it was made.
	Time     time.Time
	Remove   []Remove
	Move     []Move
	Place    []Place
	Rollouts []SetRollout `json:",omitempty"`
	// Scales change the scale of models.
	Scales []Scale `json:",omitempty"`
	// Replacements are of models of which a replica is replaced because it fails its requests.
	Replacements []SetReplacements `json:",omitempty"`
	// Cordons cordon GPUs, or uncordon them.
	Cordons []Cordon `json:",omitempty"`
	// Evictions are of models of which a replica is evicted for another one.
	Evictions []SetEvictedFor `json:",omitempty"`
	// Sleeps are what sleeps have shown of variants.
	Sleeps []SetSleep `json:",omitempty"`
	// Pace, nil: it stays as it is.
	Pace *Pace `json:",omitempty"`
	// Unplaceable are the models that have a replica without a place, or have none any more.
	Unplaceable []SetUnplaceable `json:",omitempty"`
	// Dedicated, nil: the set stays as it is.
	Dedicated *SetDedicated `json:",omitempty"`
	Decisions []Decision
}

// Type implements Command.
func (*Plan) Type() Type { return TypePlan }

func (c *Plan) check() *Error {
	for i := range c.Cordons {
		if err := c.Cordons[i].check(); err != nil {
			return err
		}
	}
	return nil
}

func (c *Plan) apply(t *txn) *Error {
	if err := invalid(c.ID, checkTime("time", &c.Time)); err != nil {
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
	// rejects.
	for i := range c.Rollouts {
		if err := c.Rollouts[i].apply(t, c.Index, c.Time); err != nil {
			return err
		}
	}
	for i := range c.Scales {
		if err := c.Scales[i].apply(t); err != nil {
			return err
		}
	}
	for i := range c.Replacements {
		if err := c.Replacements[i].apply(t); err != nil {
			return err
		}
	}
	for i := range c.Cordons {
		if err := c.Cordons[i].apply(t); err != nil {
			return err
		}
	}
	for i := range c.Evictions {
		if err := c.Evictions[i].apply(t); err != nil {
			return err
		}
	}
	for i := range c.Sleeps {
		if err := c.Sleeps[i].apply(t); err != nil {
			return err
		}
	}
	if c.Pace != nil {
		if err := c.Pace.apply(t); err != nil {
			return err
		}
	}
	for i := range c.Unplaceable {
		c.Unplaceable[i].apply(t, c.Time)
	}
	if c.Dedicated != nil {
		if c.Dedicated.Time.IsZero() {
			c.Dedicated.Time = c.Time
		}
		if err := c.Dedicated.apply(t); err != nil {
			return err
		}
	}
	return t.record(c.Decisions)
}

// SetUnplaceable changes why no place is found for a model's replica.
type SetUnplaceable struct {
	Model string
	// Reason, empty: there is no such replica.
	Reason string `json:",omitempty"`
}

func (c *SetUnplaceable) apply(t *txn, now time.Time) {
	old := first[Model](t.Txn, TableModels, byID, c.Model)
	if old == nil {
		return
	}
	m := *old
	switch {
	case c.Reason == "":
		m.Unplaceable = nil
	case old.Unplaceable != nil:
		m.Unplaceable = &Unplaceable{Reason: c.Reason, Since: old.Unplaceable.Since}
	default:
		m.Unplaceable = &Unplaceable{Reason: c.Reason, Since: now}
	}
	t.put(TableModels, &m)
}

// Place puts a new replica somewhere.
type Place struct {
	Name replica.Name
	// Version of the model that it is made from.
	Version   int
	Placement Placement
	Canary    bool
	// Adopt takes in a replica whose job runs already, with JobIndex and Status: starting,
	// serving or warm. It need not be in a place where a new one could go, but takes no
	// seat and no byte that another replica holds.
	Adopt    bool
	JobIndex uint64
	Status   Status `json:",omitempty"`

	// Failures, LastError and RetryAt are carried over from the replica that it stands
	// for, so that a failure is not forgotten by going elsewhere.
	Failures  int       `json:",omitempty"`
	LastError string    `json:",omitempty"`
	NotPlaced bool      `json:",omitempty"`
	RetryAt   time.Time `json:",omitzero"`
	// RestartsBefore, with Adopt, and Spilled are as of Replica.
	RestartsBefore Restarts `json:",omitzero"`
	Spilled        bool     `json:",omitempty"`
}

func (p *Place) apply(t *txn, planned uint64, now time.Time) *Error {
	name := p.Name.String()
	if parsed, err := replica.ParseName(name); err != nil {
		return badRequest(name, "%v", err)
	} else if parsed != p.Name {
		return badRequest(name, "replica %q: variant and ID must not contain a ':'", name)
	}
	errs := []error{checkName("replica", name), checkName("node", p.Placement.Node), checkTime("retry", &p.RetryAt)}
	if p.Failures < 0 {
		errs = append(errs, fmt.Errorf("failures is %d: must not be negative", p.Failures))
	}
	if err := invalid(name, errs...); err != nil {
		return err
	}
	if planned == 0 && !p.Adopt {
		return badRequest(name, "plan has no index of the state it was made from")
	}
	if first[Replica](t.Txn, TableReplicas, byID, name) != nil {
		return conflict(name, "replica %s already exists", name)
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
		Name: p.Name, Version: p.Version, Goal: GoalRun, Status: StatusPlaced,
		Placement: p.Placement, Canary: p.Canary,
		Failures: p.Failures, LastError: p.LastError, NotPlaced: p.NotPlaced, RetryAt: p.RetryAt, RestartsBefore: p.RestartsBefore, Spilled: p.Spilled,
		Since: now, CreatedAt: now, CreateIndex: t.index, ModifyIndex: t.index,
	}
	if r.Loads() {
		r.Goal = GoalWarm
	}
	if p.Adopt {
		r.Status, r.JobIndex, r.Served = p.Status, p.JobIndex, p.Status != StatusStarting
		switch p.Status {
		case StatusStarting, StatusServing:
		case StatusWarm:
			r.Goal = GoalWarm
		default:
			return badRequest(name, "replica %s is adopted as %q: must be starting, serving or warm", name, p.Status)
		}
	} else {
		if m.ModifyIndex > planned {
			return conflict(m.Name, "model %q changed at index %d, after the plan was made at index %d", m.Name, m.ModifyIndex, planned)
		}
		if m.Stopped {
			return conflict(m.Name, "model %q is stopped", m.Name)
		}
		if n.ModifyIndex > planned {
			return conflict(n.ID, "node %s changed at index %d, after the plan was made at index %d", n.ID, n.ModifyIndex, planned)
		}
		if why := n.Usable(); why != "" {
			return conflict(n.ID, "node %s is %s", n.ID, why)
		}
	}
	v := t.versions(p.Name.Model).Get(p.Version)
	if v == nil {
		return conflict(name, "model %q has no version %d", p.Name.Model, p.Version)
	}
	if err := p.checkShape(&v.Model, n); err != nil {
		return err
	}
	if err := admit(t, r, Holding{}, p.Adopt); err != nil {
		return err
	}
	t.put(TableReplicas, r)
	return nil
}

// checkShape checks that the seats are of GPUs of n, and the memory of some of the same:
// of all of them, but for the Reach of the definition m that the replica is made from. And
// that they are as many as that asks for.
func (p *Place) checkShape(m *Model, n *Node) *Error {
	name := p.Name.String()
	if p.Placement.HostMemory < 0 || p.Placement.SleepMemory < 0 {
		return badRequest(name, "host memory is %d and sleep memory is %d: must not be negative", p.Placement.HostMemory, p.Placement.SleepMemory)
	}
	if len(p.Placement.Seats) == 0 {
		return badRequest(name, "replica %s has no seats", name)
	}
	taken := make(map[string]bool, len(p.Placement.Seats))
	perGPU := make(map[string]int, len(p.Placement.Memory))
	for _, s := range p.Placement.Seats {
		if taken[s] {
			return badRequest(s, "duplicate seat %s", s)
		}
		taken[s] = true
		gpu := n.seatGPU(s)
		if gpu == "" {
			return conflict(s, "node %s has no seat %s", n.ID, s)
		}
		perGPU[gpu]++
	}
	if p.Placement.LoadMemory < 0 || p.Placement.LoadMemory > 0 && p.Adopt {
		return badRequest(name, "replica %s: memory to load with is %d: must not be negative, and 0 for one that is adopted", name, p.Placement.LoadMemory)
	}
	for _, gpu := range sortedKeys(p.Placement.Memory) {
		if l := p.Placement.LoadMemory; l > p.Placement.Memory[gpu] || l > 0 && l < p.Placement.SleepMemory {
			return badRequest(gpu, "replica %s: %d bytes of GPU %s to load with: must be %d to %d, as while it sleeps and while it serves", name, l, gpu, p.Placement.SleepMemory, p.Placement.Memory[gpu])
		}
		if p.Placement.Memory[gpu] < 0 {
			return badRequest(gpu, "memory of GPU %s is %d: must not be negative", gpu, p.Placement.Memory[gpu])
		}
		if p.Placement.SleepMemory > p.Placement.Memory[gpu] {
			return badRequest(gpu, "replica %s: sleep memory of %d bytes on GPU %s is larger than its serving memory of %d bytes", name, p.Placement.SleepMemory, gpu, p.Placement.Memory[gpu])
		}
		if perGPU[gpu] == 0 {
			return badRequest(gpu, "replica %s takes memory of GPU %s but no seat on it", name, gpu)
		}
	}
	if len(p.Placement.Memory) == 0 {
		return badRequest(name, "replica %s takes no GPU memory", name)
	}
	v := m.Variant(p.Name.Variant)
	if v == nil {
		return conflict(name, "version %d of model %q has no variant %q", p.Version, m.Name, p.Name.Variant)
	}
	if s := p.Placement.SharedMemory; s != 0 && (s != v.SharedMemory || p.Adopt) {
		return badRequest(name, "replica %s shares %d bytes of each GPU: must be %d, as variant %q has it, or 0, as for one that is adopted", name, s, v.SharedMemory, v.Name)
	}
	for _, gpu := range sortedKeys(p.Placement.Memory) {
		if p.Placement.SharedMemory > p.Placement.Memory[gpu] {
			return badRequest(gpu, "replica %s: %d bytes of GPU %s that it shares are more than its memory of %d bytes", name, p.Placement.SharedMemory, gpu, p.Placement.Memory[gpu])
		}
	}
	seats := 1
	if m.Failover {
		seats = 2
	}
	if len(p.Placement.Memory) != v.GPUs {
		return badRequest(name, "replica %s takes memory of %d GPUs: variant %q needs %d", name, len(p.Placement.Memory), v.Name, v.GPUs)
	}
	if want := max(v.Reach, v.GPUs); len(perGPU) != want {
		return badRequest(name, "replica %s has seats on %d GPUs: variant %q needs %d", name, len(perGPU), v.Name, want)
	}
	for _, gpu := range sortedKeys(perGPU) {
		if perGPU[gpu] != seats {
			return badRequest(name, "replica %s has %d seats on GPU %s: must be %d", name, perGPU[gpu], gpu, seats)
		}
	}
	return nil
}

// Remove, a part of a plan, forgets a replica whose seats and bytes are free: it is stopping and its job
// is gone, or its job was never registered, or it is COLD, or its node is gone.
type Remove struct {
	Replica string
	// ModifyIndex is the replica's as the caller knows it.
	ModifyIndex uint64
}

func (c *Remove) apply(t *txn) *Error {
	r := first[Replica](t.Txn, TableReplicas, byID, c.Replica)
	if r == nil {
		return notFound(c.Replica, "replica %q does not exist", c.Replica)
	}
	if err := checkIndex("replica", c.Replica, r.ModifyIndex, c.ModifyIndex); err != nil {
		return err
	}
	n := first[Node](t.Txn, TableNodes, byID, r.Placement.Node)
	if why := r.removable(n); why != "" {
		return conflict(c.Replica, "replica %s: %s", c.Replica, why)
	}
	t.remove(TableReplicas, r)
	return nil
}
