package state

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// UpsertNodes writes what Nomad reports of nodes. Nomad does not know of cordons: they are
// kept as they were (see Node.Keeping). A node that is as before keeps its ModifyIndex. What
// replicas hold of a node stays theirs, whatever is reported of the node.
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
// cordons. A cordoned GPU that the node does not offer any more, as while Nomad's client
// starts anew, stays without seats, so that it is still cordoned when it comes back.
func (n Node) Keeping(row *Node) Node {
	gpus := slices.Clone(n.GPUs)
	for i := range gpus {
		was := row.GPU(gpus[i].UUID)
		gpus[i].Cordoned, gpus[i].CordonReason = false, ""
		if was != nil {
			gpus[i].Cordoned, gpus[i].CordonReason = was.Cordoned, was.CordonReason
		}
	}
	if row != nil {
		for _, was := range row.GPUs {
			if was.Cordoned && n.GPU(was.UUID) == nil {
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

// NotFreed is in the reason of a cordon by the controller: a sleeping replica's memory was not freed.
const NotFreed = "not freed after"

// MemoryHeld reports whether the controller has cordoned the GPU because a replica that went to
// sleep did not free its memory.
func (g *GPU) MemoryHeld() bool { return g.Cordoned && strings.Contains(g.CordonReason, NotFreed) }

// NVMLIsLate begins the reason of a GPU that is unhealthy only as long as a call of NVML for it has not
// returned, as the device plugin says it. Nothing new is placed there; replicas stay, and may wake, because
// a busy driver may take that long, and mostly does for all GPUs of a node.
const NVMLIsLate = "NVML has not returned from "

// OutOfUse returns why replicas leave the GPU, and why none wakes there: "is cordoned: too hot".
// It is empty for a GPU in good order, and for one of which NVML is late. A nil GPU is one that
// its node does not offer.
func (g *GPU) OutOfUse() string {
	because := func(what, reason string) string {
		if reason == "" {
			return what
		}
		return what + ": " + reason
	}
	switch {
	case g == nil:
		return "is " + unlisted
	case g.Cordoned:
		return because("is cordoned", g.CordonReason)
	case !g.Healthy && !strings.HasPrefix(g.Reason, NVMLIsLate):
		return because("is unhealthy", g.Reason)
	}
	return ""
}

// OutOfUse returns which of the GPUs of n on which r has a seat is out of use, and why; empty
// if all are in good order, and if n is nil or gone.
func (r *Replica) OutOfUse(n *Node) string {
	if n == nil || n.WrittenOff {
		return ""
	}
	for _, seat := range r.Placement.Seats {
		gpu, _, _ := strings.Cut(seat, "#")
		if why := n.GPU(gpu).OutOfUse(); why != "" {
			return fmt.Sprintf("GPU %s of node %s %s", gpu, cmp.Or(n.Name, n.ID), why)
		}
	}
	return ""
}

// Usable returns why nothing may be placed on the node, empty if it may.
func (n *Node) Usable() string {
	switch {
	case n.WrittenOff:
		return "gone"
	case !n.DownSince.IsZero():
		return "down"
	case !n.Ready:
		return "not ready"
	case n.Draining:
		return "draining"
	case n.Unserved:
		return "without lockd or the GPU memory service: not all tasks of the job remuda-node run there"
	}
	return ""
}

func (n *Node) validate() *Error {
	errs := []error{checkName("node ID", n.ID), checkTime("lost since", &n.DownSince)}
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
	return invalid(n.ID, errs...)
}

// DeleteNode deletes a node. It is rejected while the node has replicas.
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

// maxReason is the longest reason of a cordon, in bytes.
const maxReason = 4 << 10

// Cordon keeps new replicas away from GPUs, or admits them again. A GPU that is cordoned
// already keeps its reason.
type Cordon struct {
	Node string
	// GPU is the UUID of one GPU; empty: all GPUs that the node has now.
	GPU string `json:",omitempty"`
	On  bool
	// Reason is shown to operators.
	Reason string `json:",omitempty"`
}

// Type implements Command.
func (*Cordon) Type() Type { return TypeCordon }

func (c *Cordon) check() *Error {
	if len(c.Reason) > maxReason {
		return badRequest(c.GPU, "reason is %d bytes: must be at most %d bytes", len(c.Reason), maxReason)
	}
	return nil
}

func (c *Cordon) apply(t *txn) *Error {
	old := first[Node](t.Txn, TableNodes, byID, c.Node)
	switch {
	case old == nil:
		return notFound(c.Node, "node %q does not exist", c.Node)
	case c.GPU == "" && len(old.GPUs) == 0:
		return notFound(c.Node, "node %q has no GPUs", c.Node)
	case c.GPU != "" && old.GPU(c.GPU) == nil:
		return notFound(c.GPU, "node %q has no GPU %q", c.Node, c.GPU)
	}
	n := *old
	n.GPUs = slices.Clone(old.GPUs)
	for i := range n.GPUs {
		g := &n.GPUs[i]
		if c.GPU != "" && c.GPU != g.UUID {
			continue
		}
		g.Cordoned = c.On
		if g.CordonReason = cmp.Or(g.CordonReason, c.Reason); !c.On {
			g.CordonReason = ""
		}
	}
	if reflect.DeepEqual(&n, old) {
		return nil
	}
	n.ModifyIndex = t.index
	t.put(TableNodes, &n)
	return nil
}
