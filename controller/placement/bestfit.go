package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"remuda/controller/state"
	"remuda/internal/bytesize"
)

// BestFit chooses the place where the least GPU memory is left over on the fullest of
// the GPUs, then the fewest seats, then the first node by name: what is free stays in
// large pieces. Nodes that are preferred come first. A replica of several GPUs gets
// them in one group of Nomad's, which is one GPU model in one NVLink clique; GPUs that
// name no clique are a group of their own on each node.
type BestFit struct{}

var _ Placer = BestFit{}

// fit is one place where a request fits.
type fit struct {
	node       *state.Node
	gpus       []free
	preferred  bool
	memoryLeft int64 // of the fullest GPU
	seatsLeft  int   // of all its GPUs
}

// free is a GPU with what is free of it.
type free struct {
	gpu    *state.GPU
	seats  int
	memory int64
}

// sameGroup tells whether one device request of Nomad's can draw from both.
func (f free) sameGroup(o free) bool {
	return f.gpu.Model == o.gpu.Model && f.gpu.Clique == o.gpu.Clique
}

func (f fit) compare(o fit) int {
	if f.preferred != o.preferred {
		if f.preferred {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(f.memoryLeft, o.memoryLeft), cmp.Compare(f.seatsLeft, o.seatsLeft),
		strings.Compare(f.node.Name, o.node.Name), strings.Compare(f.node.ID, o.node.ID))
}

// Place implements Placer.
func (BestFit) Place(nodes []*state.Node, taken Taken, r Request) (Choice, *Refusal) {
	var best *fit
	fits := 0
	for _, n := range nodes {
		found, _ := on(n, taken[n.ID], r)
		if found == nil {
			continue
		}
		fits++
		found.preferred = r.Prefer[n.ID]
		if best == nil || found.compare(*best) < 0 {
			best = found
		}
	}
	if best != nil {
		return best.choice(taken[best.node.ID], r, fits), nil
	}
	no := &Refusal{What: r.String(), Nodes: make(map[string]string, len(nodes))}
	for _, n := range nodes {
		_, t := on(n, taken[n.ID], r)
		no.Nodes[label(n, no.Nodes)] = t.reason(n, r)
	}
	return Choice{}, no
}

// String says what is asked for.
func (r Request) String() string {
	s := fmt.Sprintf("a replica of %s:%s (%d GPU", r.Model.Name, r.Variant.Name, r.Variant.GPUs)
	if r.Variant.GPUs != 1 {
		s += "s"
	}
	if r.Variant.GPUModel != "" {
		s += " " + r.Variant.GPUModel
	}
	return fmt.Sprintf("%s with %s and %s each)", s, plural(r.SeatsPerGPU(), "seat"), bytesize.Text(r.Variant.Memory))
}

// label is the node's name, with its ID where two have the same name.
func label(n *state.Node, used map[string]string) string {
	if _, twice := used[n.Name]; twice || n.Name == "" {
		return strings.TrimSpace(n.Name + " " + n.ID)
	}
	return n.Name
}

// on returns the best place on one node, nil where there is none, and what speaks
// against its GPUs.
func on(n *state.Node, used *state.NodeUsage, r Request) (*fit, tally) {
	var t tally
	if r.Exclude[n.ID] || n.Usable() != "" {
		return nil, t
	}
	if used == nil {
		used = &state.NodeUsage{}
	}
	gpus := make([]free, 0, len(n.GPUs))
	for i := range n.GPUs {
		g := &n.GPUs[i]
		f := free{gpu: g, memory: used.FreeMemory(g)}
		for _, s := range g.Seats {
			if _, held := used.Seats[s]; !held {
				f.seats++
			}
		}
		if t.admits(f, r) {
			gpus = append(gpus, f)
		}
	}
	// By group, and in it the fullest that still fit; the sort is stable, so that
	// equals stay in the node's order.
	slices.SortStableFunc(gpus, func(a, b free) int {
		return cmp.Or(strings.Compare(a.gpu.Model, b.gpu.Model), strings.Compare(a.gpu.Clique, b.gpu.Clique),
			cmp.Compare(a.memory, b.memory), cmp.Compare(a.seats, b.seats))
	})
	var best *fit
	for start, end := 0, 0; start < len(gpus); start = end {
		for end = start; end < len(gpus) && gpus[end].sameGroup(gpus[start]); end++ {
		}
		t.most = max(t.most, end-start)
		if end-start < r.Variant.GPUs {
			continue
		}
		found := fit{node: n, gpus: gpus[start : start+r.Variant.GPUs], memoryLeft: gpus[start].memory - r.Variant.Memory}
		for _, f := range found.gpus {
			found.seatsLeft += f.seats - r.SeatsPerGPU()
		}
		if best == nil || found.compare(*best) < 0 {
			best = &found
		}
	}
	return best, t
}

// tally counts why GPUs of one node are no good.
type tally struct {
	model, ill, seats, memory int
	illness                   string
	freest                    int64
	most                      int // GPUs of one group that would do
}

func (t *tally) admits(f free, r Request) bool {
	g := f.gpu
	switch {
	case r.Variant.GPUModel != "" && g.Model != r.Variant.GPUModel:
		t.model++
	case g.Quarantined:
		t.ill++
		t.illness = "quarantined"
	case !g.Healthy:
		t.ill++
		t.illness = cmp.Or(g.Reason, "unhealthy")
	case f.seats < r.SeatsPerGPU():
		t.seats++
	case f.memory < r.Variant.Memory:
		t.memory++
		t.freest = max(t.freest, f.memory)
	default:
		return true
	}
	return false
}

// reason puts in words why nothing fits on n.
func (t *tally) reason(n *state.Node, r Request) string {
	switch {
	case r.Exclude[n.ID]:
		return "is left out because of what happened there"
	case n.Usable() != "":
		return n.Usable()
	case len(n.GPUs) == 0:
		return "has no GPUs"
	}
	var parts []string
	if t.model > 0 {
		parts = append(parts, fmt.Sprintf("%s of another model than %s", plural(t.model, "GPU"), r.Variant.GPUModel))
	}
	if t.ill > 0 {
		parts = append(parts, fmt.Sprintf("%s not in good order (%s)", plural(t.ill, "GPU"), t.illness))
	}
	if t.seats > 0 {
		parts = append(parts, fmt.Sprintf("%s with too few seats free", plural(t.seats, "GPU")))
	}
	if t.memory > 0 {
		parts = append(parts, fmt.Sprintf("%s with too little memory free (at most %s)", plural(t.memory, "GPU"), bytesize.Text(t.freest)))
	}
	if t.most > 0 {
		parts = append(parts, fmt.Sprintf("only %s that would do in one clique", plural(t.most, "GPU")))
	}
	return strings.Join(parts, ", ")
}

func (f fit) choice(used *state.NodeUsage, r Request, fits int) Choice {
	if used == nil {
		used = &state.NodeUsage{}
	}
	p := state.Placement{Node: f.node.ID, Memory: make(map[string]int64, len(f.gpus)), HostMemory: r.Variant.HostMemory}
	uuids := make([]string, len(f.gpus))
	for i, g := range f.gpus {
		uuids[i] = g.gpu.UUID
		p.Seats = append(p.Seats, used.FreeSeats(g.gpu)[:r.SeatsPerGPU()]...)
		p.Memory[g.gpu.UUID] = r.Variant.Memory
	}
	why := fmt.Sprintf("on node %s: %s of GPU memory and %s are left over there, the least of %s where it fits",
		f.node.Name, bytesize.Text(f.memoryLeft), plural(f.seatsLeft, "seat"), plural(fits, "node"))
	if f.preferred {
		why = fmt.Sprintf("on node %s, which has the weights: %s of GPU memory and %s are left over there", f.node.Name, bytesize.Text(f.memoryLeft), plural(f.seatsLeft, "seat"))
	}
	return Choice{Placement: p, Why: why, Inputs: map[string]string{
		"node": f.node.Name, "gpus": strings.Join(uuids, ","), "seats": strings.Join(p.Seats, ","),
		"memory_per_gpu": strconv.FormatInt(r.Variant.Memory, 10), "memory_left": strconv.FormatInt(f.memoryLeft, 10),
		"seats_left": strconv.Itoa(f.seatsLeft), "nodes_that_fit": strconv.Itoa(fits),
	}}
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
