package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"remuda/controller/state"
)

// Request says what is to be placed.
type Request struct {
	// Model says by Model.Failover whether each GPU gives two seats or one. It is the
	// caller's to set where the variant is an older definition.
	Model   *state.Model
	Variant *state.Variant
	// Exclude are node IDs that are out of the question.
	Exclude map[string]bool
	// Prefer are node IDs that come before all others, because they have the weights.
	Prefer map[string]bool
}

// SeatsPerGPU returns how many seats the request takes of each of its GPUs.
func (r Request) SeatsPerGPU() int {
	if r.Model.Failover {
		return 2
	}
	return 1
}

// Taken is what is held of each node, by its ID: the state's ledger, and what the
// caller knows beyond it, as jobs in Nomad of which the state has no replica.
type Taken map[string]*state.NodeUsage

// Of returns what is held of a node. What is added to it counts from then on.
func (t Taken) Of(node string) *state.NodeUsage {
	u := t[node]
	if u == nil {
		u = &state.NodeUsage{Node: node, Seats: map[string]string{}, Memory: map[string]int64{}}
		t[node] = u
	}
	return u
}

// Hold adds what a replica is going to hold as HOT.
func (t Taken) Hold(replica string, p state.Placement) {
	u := t.Of(p.Node)
	for _, s := range p.Seats {
		u.Seats[s] = replica
	}
	for gpu, bytes := range p.Memory {
		u.Memory[gpu] += bytes
	}
}

// Free takes away what a replica holds.
func (t Taken) Free(r *state.Replica) {
	h := r.Holds()
	u := t.Of(r.Placement.Node)
	for _, s := range h.Seats {
		if u.Seats[s] == r.Name.String() {
			delete(u.Seats, s)
		}
	}
	for gpu, bytes := range h.Memory {
		u.Memory[gpu] -= bytes
	}
	u.HostMemory -= h.HostMemory
}

// Choice is a place that was found.
type Choice struct {
	Placement state.Placement
	// Why is a sentence for people, Inputs the numbers it was made from.
	Why    string
	Inputs map[string]string
}

// Placer chooses a place. It changes none of its arguments, and is safe for use by
// several goroutines at once. One of the answers is set: a choice or a refusal.
type Placer interface {
	Place(nodes []*state.Node, taken Taken, r Request) (Choice, *Refusal)
}

// Refusal says of each node why nothing fits there.
type Refusal struct {
	// What is what did not fit.
	What string
	// Nodes has the reasons, by the nodes' names.
	Nodes map[string]string
}

// A sentence names so many nodes for one reason, and so many reasons.
const (
	named   = 3
	reasons = 6
)

// Error is a sentence with the reasons grouped, those of most nodes first.
func (r *Refusal) Error() string {
	if len(r.Nodes) == 0 {
		return r.What + " fits nowhere: there are no nodes with GPUs"
	}
	byReason := map[string][]string{}
	for node, reason := range r.Nodes {
		byReason[reason] = append(byReason[reason], node)
	}
	order := make([]string, 0, len(byReason))
	for reason, nodes := range byReason {
		slices.Sort(nodes)
		order = append(order, reason)
	}
	slices.SortFunc(order, func(a, b string) int {
		return cmp.Or(cmp.Compare(len(byReason[b]), len(byReason[a])), strings.Compare(a, b))
	})
	var parts []string
	rest := 0
	for i, reason := range order {
		nodes := byReason[reason]
		if i >= reasons {
			rest += len(nodes)
			continue
		}
		who := strings.Join(nodes[:min(named, len(nodes))], ", ")
		if len(nodes) > named {
			who = fmt.Sprintf("%s and %d more", who, len(nodes)-named)
		}
		parts = append(parts, who+": "+reason)
	}
	if rest > 0 {
		parts = append(parts, plural(rest, "node")+" for other reasons")
	}
	return r.What + " fits nowhere: " + strings.Join(parts, "; ")
}
