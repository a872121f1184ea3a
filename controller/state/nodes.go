package state

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
)

// UpsertNodes writes what Nomad says of nodes. Quarantined and its reason are not
// Nomad's to say: they are kept as they were (see Node.Keeping). A node that is as before keeps its ModifyIndex. What replicas
// hold of a node stays theirs, whatever is said of the node.
type UpsertNodes struct {
	Nodes []Node
}

// Type implements Command.
func (*UpsertNodes) Type() Type { return TypeUpsertNodes }

func (c *UpsertNodes) apply(t *txn) *Error {
	for i := range c.Nodes {
		n := c.Nodes[i]
		if err := n.validate(); err != nil {
			return err
		}
		n.CreateIndex, n.ModifyIndex = t.index, t.index
		old := first[Node](t.Txn, TableNodes, byID, n.ID)
		n = n.Keeping(old)
		if old != nil {
			n.CreateIndex, n.ModifyIndex = old.CreateIndex, old.ModifyIndex
			if reflect.DeepEqual(&n, old) {
				continue
			}
			n.ModifyIndex = t.index
		}
		t.put(TableNodes, &n)
	}
	return nil
}

// unlisted is the Reason of a GPU that Node.Keeping keeps.
const unlisted = "not offered by its node"

// Keeping returns n with what is the state's own of its row, which may be nil: the
// quarantines. A GPU in quarantine that the node does not offer any more, as while its
// device plugin starts anew, stays without seats, so that it is still in quarantine
// when it comes back.
func (n Node) Keeping(row *Node) Node {
	gpus := slices.Clone(n.GPUs)
	for i := range gpus {
		was := row.GPU(gpus[i].UUID)
		gpus[i].Quarantined, gpus[i].QuarantineReason = false, ""
		if was != nil {
			gpus[i].Quarantined, gpus[i].QuarantineReason = was.Quarantined, was.QuarantineReason
		}
	}
	if row != nil {
		for _, was := range row.GPUs {
			if was.Quarantined && n.GPU(was.UUID) == nil {
				was.Seats, was.Healthy, was.Reason = nil, false, unlisted
				gpus = append(gpus, was)
			}
		}
	}
	n.GPUs = gpus
	return n
}

// GPU returns the GPU of that UUID, nil where the node, which may be nil, has none.
func (n *Node) GPU(uuid string) *GPU {
	if n == nil {
		return nil
	}
	for i := range n.GPUs {
		if n.GPUs[i].UUID == uuid {
			return &n.GPUs[i]
		}
	}
	return nil
}

// Usable returns why nothing may be placed on the node, empty where it may.
func (n *Node) Usable() string {
	switch {
	case n.Gone:
		return "gone"
	case !n.LostSince.IsZero():
		return "down"
	case !n.Ready:
		return "not ready"
	case n.Draining:
		return "draining"
	}
	return ""
}

func (n *Node) validate() *Error {
	errs := []error{checkName("node ID", n.ID), checkTime("lost since", &n.LostSince)}
	if n.HostMemory < 0 || n.CPU < 0 {
		errs = append(errs, fmt.Errorf("host memory is %d and CPU is %d: must not be negative", n.HostMemory, n.CPU))
	}
	gpus, seats := map[string]bool{}, map[string]bool{}
	for i := range n.GPUs {
		g := &n.GPUs[i]
		errs = append(errs, checkName("GPU UUID", g.UUID))
		if g.Memory < 0 {
			errs = append(errs, fmt.Errorf("GPU %s: memory is %d: must not be negative", g.UUID, g.Memory))
		}
		if gpus[g.UUID] {
			errs = append(errs, fmt.Errorf("duplicate GPU %s", g.UUID))
		}
		gpus[g.UUID] = true
		for _, s := range g.Seats {
			errs = append(errs, checkName("seat", s))
			if seats[s] {
				errs = append(errs, fmt.Errorf("duplicate seat %s", s))
			}
			seats[s] = true
		}
	}
	return faults(n.ID, errs...)
}

// DeleteNode forgets a node. It is refused while replicas are on it.
type DeleteNode struct {
	Node string
}

// Type implements Command.
func (*DeleteNode) Type() Type { return TypeDeleteNode }

func (c *DeleteNode) apply(t *txn) *Error {
	n := first[Node](t.Txn, TableNodes, byID, c.Node)
	if n == nil {
		return notFound(c.Node, "node %q does not exist", c.Node)
	}
	if rs, _ := each[Replica](t.Txn, TableReplicas, byNode, c.Node); len(rs) > 0 {
		return conflict(c.Node, "node %q still has %d replicas", c.Node, len(rs))
	}
	t.remove(TableNodes, n)
	return nil
}

// maxReason is the longest reason of a quarantine, in bytes.
const maxReason = 4 << 10

// Quarantine keeps placements away from a GPU, or lets them back. What is on it stays.
// One that is in quarantine already keeps its reason.
type Quarantine struct {
	Node, GPU string
	On        bool
	// Reason says why, to people.
	Reason string `json:",omitempty"`
}

// Type implements Command.
func (*Quarantine) Type() Type { return TypeQuarantine }

func (c *Quarantine) apply(t *txn) *Error {
	if len(c.Reason) > maxReason {
		return badRequest(c.GPU, "reason is %d bytes: must be at most %d bytes", len(c.Reason), maxReason)
	}
	old := first[Node](t.Txn, TableNodes, byID, c.Node)
	if old == nil {
		return notFound(c.Node, "node %q does not exist", c.Node)
	}
	g := old.GPU(c.GPU)
	if g == nil {
		return notFound(c.GPU, "node %q has no GPU %q", c.Node, c.GPU)
	}
	reason := ""
	if c.On {
		reason = cmp.Or(g.QuarantineReason, c.Reason)
	}
	if g.Quarantined == c.On && g.QuarantineReason == reason {
		return nil
	}
	n := *old
	n.GPUs = slices.Clone(old.GPUs)
	g = n.GPU(c.GPU)
	g.Quarantined, g.QuarantineReason = c.On, reason
	n.ModifyIndex = t.index
	t.put(TableNodes, &n)
	return nil
}
