package state

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/go-memdb"
)

// Holding is what a replica holds of its node, to the exclusion of all others.
type Holding struct {
	Seats []string
	// Memory in bytes, by GPU.
	Memory     map[string]int64
	HostMemory int64
	// Weights are the part of Memory that it shares: replicas of a node with equal Weights take these bytes
	// once, together.
	Weights Weights
}

// Weights identify shared bytes on a set of GPUs. The GPU memory service shares them by the model's version and by
// the GPU's place among the engine's GPUs, so replicas share only if they use exactly the same GPUs.
type Weights struct {
	// Of names the weights, see WeightsOf; empty for none.
	Of string
	// GPUs are the UUIDs of the GPUs, sorted and joined by commas.
	GPUs string
	// Bytes on each GPU, above 0.
	Bytes int64
}

// WeightsOf names the weights of a variant in a version of a model.
func WeightsOf(model string, version int, variant string) string {
	return model + "@" + strconv.Itoa(version) + "/" + variant
}

// NewWeights returns the weights of this name on the GPUs that a placement uses, none where it shares none.
func NewWeights(of string, p *Placement) Weights {
	if p.SharedMemory == 0 {
		return Weights{}
	}
	return Weights{Of: of, GPUs: strings.Join(sortedKeys(p.Memory), ","), Bytes: p.SharedMemory}
}

// On returns how many bytes of a GPU they take.
func (w *Weights) On(gpu string) int64 {
	if w.Of == "" || !slices.Contains(strings.Split(w.GPUs, ","), gpu) {
		return 0
	}
	return w.Bytes
}

// Holds returns what a replica holds now. A replica on its way between HOT and WARM
// holds the memory of both: the one is not surely free before the other is in use. One that loads to
// become WARM holds what that takes. A
// WARM one keeps its seats and what a process that sleeps takes of the GPUs, a COLD one
// at rest holds nothing.
func (r *Replica) Holds() Holding {
	l := lives[r.Status]
	if l.tier == Cold {
		return Holding{}
	}
	h := Holding{Seats: r.Placement.Seats}
	switch {
	case l.serving && r.Loads():
		h.Memory = make(map[string]int64, len(r.Placement.Memory))
		for gpu := range r.Placement.Memory {
			h.Memory[gpu] = r.Placement.LoadMemory
		}
	case l.serving:
		h.Memory = r.Placement.Memory
		if r.Placement.SharedMemory > 0 {
			h.Weights = NewWeights(WeightsOf(r.Name.Model, r.Version, r.Name.Variant), &r.Placement)
		}
		if r.Placement.SleepMemory > 0 && len(r.SleepingGPUs) > 0 {
			h.Memory = maps.Clone(h.Memory)
			for _, gpu := range r.SleepingGPUs {
				h.Memory[gpu] = max(h.Memory[gpu], r.Placement.SleepMemory)
			}
		}
	case l.sleeping && r.Placement.SleepMemory > 0:
		h.Memory = make(map[string]int64, len(r.Placement.Memory))
		for gpu := range r.Placement.Memory {
			h.Memory[gpu] = r.Placement.SleepMemory
		}
	}
	if l.host || r.Loads() {
		h.HostMemory = r.Placement.HostMemory
	}
	return h
}

// LeftBehind returns the GPUs in had that are not in takes: where a replica slept but does not
// wake.
func LeftBehind(had, takes map[string]int64) []string {
	var left []string
	for _, gpu := range sortedKeys(had) {
		if _, again := takes[gpu]; !again {
			left = append(left, gpu)
		}
	}
	return left
}

// NodeUsage is what the replicas on one node hold together.
type NodeUsage struct {
	Node string
	// Seats has the replica in each seat that is held.
	Seats map[string]string
	// Memory in bytes, by GPU.
	Memory     map[string]int64
	HostMemory int64

	weights map[Weights]bool // that are counted
}

// NewUsage is that of a node on which nobody holds anything.
func NewUsage(node string) *NodeUsage {
	return &NodeUsage{Node: node, Seats: map[string]string{}, Memory: map[string]int64{}, weights: map[Weights]bool{}}
}

// Add counts what the replica of a name holds.
func (u *NodeUsage) Add(name string, h *Holding) {
	for _, s := range h.Seats {
		u.Seats[s] = name
	}
	for gpu, bytes := range h.Memory {
		u.Memory[gpu] += bytes - u.Shared(h, gpu)
	}
	if h.Weights.Of != "" {
		u.weights[h.Weights] = true
	}
	u.HostMemory += h.HostMemory
}

// Shared returns how many of h's bytes on a GPU are shared weights that are counted already.
func (u *NodeUsage) Shared(h *Holding, gpu string) int64 {
	if !u.weights[h.Weights] {
		return 0
	}
	return h.Weights.On(gpu)
}

// FreeMemory returns the free bytes of g. They are negative if the node reported less memory
// after the memory was taken.
func (u *NodeUsage) FreeMemory(g *GPU) int64 { return g.Memory - u.Memory[g.UUID] }

// usage returns the ledger of one node: the sum of its replicas, without the one named
// except. It is computed on each call, so that it cannot differ from the replicas.
func usage(t *memdb.Txn, node, except string) *NodeUsage {
	rs, _ := each[Replica](t, TableReplicas, byNode, node)
	return usageOf(node, rs, except)
}

func usageOf(node string, rs []*Replica, except string) *NodeUsage {
	u := NewUsage(node)
	for _, r := range rs {
		if name := r.Name.String(); name != except {
			h := r.Holds()
			u.Add(name, &h)
		}
	}
	return u
}

// admit checks that r can hold what it is to hold beside the other replicas on its node. Before is
// what it holds now. Only what it takes in addition must be free, and on a usable GPU unless
// adopted: a replica keeps what it has when a node shrinks or a GPU fails.
func admit(t *txn, r *Replica, before Holding, adopted bool) *Error {
	name := r.Name.String()
	after := r.Holds()
	if len(after.Seats) == 0 && len(after.Memory) == 0 && after.HostMemory == 0 {
		return nil
	}
	n := first[Node](t.Txn, TableNodes, byID, r.Placement.Node)
	used := usage(t.Txn, r.Placement.Node, name)

	for _, s := range after.Seats {
		if other, held := used.Seats[s]; held {
			return conflict(s, "seat %s on node %s is held by %s", s, r.Placement.Node, other)
		}
		if !slices.Contains(before.Seats, s) && !n.hasSeat(s) {
			return conflict(s, "node %s has no seat %s", r.Placement.Node, s)
		}
	}
	for _, gpu := range sortedKeys(after.Memory) {
		bytes := after.Memory[gpu]
		if _, had := before.Memory[gpu]; had && bytes <= before.Memory[gpu] {
			continue
		}
		g := n.GPU(gpu)
		if g == nil {
			return conflict(gpu, "node %s has no GPU %s", r.Placement.Node, gpu)
		}
		if why := g.OutOfUse(); why != "" && !adopted {
			return conflict(gpu, "GPU %s on node %s %s", gpu, r.Placement.Node, why)
		}
		if free := used.FreeMemory(g) + used.Shared(&after, gpu); bytes > free {
			return conflict(gpu, "GPU %s on node %s has %d of %d bytes free: replica %s needs %d", gpu, r.Placement.Node, max(free, 0), g.Memory, name, bytes)
		}
	}
	if after.HostMemory > before.HostMemory {
		var capacity int64
		if n != nil {
			capacity = n.HostMemory
		}
		if free := capacity - used.HostMemory; after.HostMemory > free {
			return conflict(r.Placement.Node, "node %s has %d of %d bytes of host memory free: replica %s needs %d", r.Placement.Node, max(free, 0), capacity, name, after.HostMemory)
		}
	}
	return nil
}

func (n *Node) hasSeat(seat string) bool {
	return n.seatGPU(seat) != ""
}

// seatGPU returns the UUID of the GPU that offers the seat, empty where none does.
func (n *Node) seatGPU(seat string) string {
	if n == nil {
		return ""
	}
	for i := range n.GPUs {
		if slices.Contains(n.GPUs[i].Seats, seat) {
			return n.GPUs[i].UUID
		}
	}
	return ""
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
