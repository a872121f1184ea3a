package planner_test

import (
	"slices"
	"strings"
	"time"

	"remuda/controller/state"
)

// editGPU changes a GPU of a node as Nomad reports it.
func (w *world) editGPU(gpu string, edit func(*state.GPU)) {
	id, _, _ := strings.Cut(gpu, "-GPU")
	w.setNode(id, func(n *state.Node) {
		n.GPUs = slices.Clone(n.GPUs)
		for i := range n.GPUs {
			if n.GPUs[i].UUID == gpu {
				edit(&n.GPUs[i])
			}
		}
	})
}

// sicken makes a GPU unhealthy, or healthy again.
func (w *world) sicken(gpu string, healthy bool) {
	w.log("GPU %s is healthy: %v", gpu, healthy)
	w.editGPU(gpu, func(g *state.GPU) {
		g.Healthy, g.Reason = healthy, ""
		if !healthy {
			g.Reason = "XID 79"
		}
	})
	if healthy {
		delete(w.dead, gpu)
	}
}

// lose takes a GPU out of what its node offers.
func (w *world) lose(gpu string) {
	w.log("GPU %s is not offered any more", gpu)
	id, _, _ := strings.Cut(gpu, "-GPU")
	w.setNode(id, func(n *state.Node) {
		var kept []state.GPU
		for _, g := range n.GPUs {
			if g.UUID == gpu {
				w.missing[id] = append(w.missing[id], g)
			} else {
				kept = append(kept, g)
			}
		}
		n.GPUs = kept
	})
}

// offerAll has a node offer all its GPUs again.
func (w *world) offerAll(id string) {
	w.log("node %s offers all its GPUs", id)
	w.setNode(id, func(n *state.Node) {
		for _, g := range w.missing[id] {
			delete(w.dead, g.UUID)
		}
		n.GPUs = append(slices.Clone(n.GPUs), w.missing[id]...)
		slices.SortFunc(n.GPUs, func(a, b state.GPU) int { return strings.Compare(a.UUID, b.UUID) })
		w.missing[id] = nil
	})
}

// kill ends the engines on a GPU. Until it is healthy or offered again, none runs there.
func (w *world) kill(gpu string) {
	w.log("the engines on GPU %s end", gpu)
	w.dead[gpu] = true
	for _, name := range sorted(w.nomad) {
		if j := w.nomad[name]; j.alloc != nil && j.alloc.Client == "running" && !j.asleep && j.using[gpu] > 0 {
			j.alloc.Client, j.alloc.Event, j.serves, j.using = "pending", "Exit Code: 1", time.Time{}, nil
			j.alloc.Restarts++
		}
	}
}
