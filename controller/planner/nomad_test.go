package planner_test

import (
	"fmt"
	"slices"
	"time"

	"remuda/controller/planner"
	"remuda/controller/state"
)

type job struct {
	planner.Job
	alloc    *planner.Alloc
	serves   time.Time // when the engine serves; zero: never
	retries  time.Time // of a broken one
	ends     time.Time // of an allocation that was told to stop
	allocs   int
	drifting string
	// asleep: its engine has given its memory back. using is what is really in use of
	// each GPU, and host of the node's memory, as long as the process is there.
	asleep bool
	// held: it sleeps and has given nothing back, its share of the weights included.
	held bool
	// loads, above 0: its engines load to sleep, and take this of each GPU until they do.
	loads int64
	// refused: Nomad makes no allocation for it.
	refused bool
	// strange: it was not made by us, and takes what it likes.
	strange bool
	using   map[string]int64
	// moved is what it takes of the GPUs to which its last wake moved it, nil where none did. Its
	// shim keeps them in the allocation's directory, and starts the engine there again.
	moved map[string]int64
	host  int64
	// version is that of the model under which its engines share their weights.
	version int
}

// live reports whether a process of it may be there.
func (j *job) live() bool {
	return j.alloc != nil && slices.Contains([]string{"pending", "running", "unknown"}, j.alloc.Client)
}

// restart starts all its engines.
func (j *job) restart(at time.Time) { j.alloc.Started, j.alloc.Oldest = at, at }

// run lets one job of Nomad's go on.
func (w *world) run(j *job) {
	n := w.nodes[j.Placement.Node]
	reachable := n != nil && !w.down[n.ID]
	a := j.alloc
	live := a != nil && (a.Client == "pending" || a.Client == "running" || a.Client == "unknown")
	switch {
	case live && !reachable:
		a.Client = "unknown"
		j.serves = time.Time{}
	case live && a.Client == "unknown": // the node is back
		a.Client = "running"
		j.restart(w.now)
		j.serves = w.now.Add(w.load())
		j.begin()
	case live && j.Stopped:
		if j.ends.IsZero() {
			j.ends = w.now.Add(tick)
		}
		if !w.now.Before(j.ends) {
			a.Client = "complete"
		}
	case live && n.Draining && w.now.Sub(w.drains[n.ID]) > 30*tick: // Nomad's drain has a deadline
		a.Client = "complete"
		j.serves = time.Time{}
	case live && a.Client == "pending":
		a.Client = "running"
		j.restart(w.now)
		j.serves = w.now.Add(w.load())
		j.begin()
		if w.crashes(j) {
			j.serves, j.retries = time.Time{}, w.now.Add(tick)
		}
	case live && w.crashes(j) && j.serves.IsZero() && !j.asleep && !w.now.Before(j.retries):
		a.Restarts++
		j.restart(w.now)
		a.Event, j.retries = "Exit Code: 1", w.now.Add(tick)
		if a.Restarts > 2 {
			a.Client, a.Failed = "failed", true
		}
	case live && j.serves.IsZero() && !w.crashes(j) && !j.asleep:
		j.serves = w.now.Add(w.load())
	case j.refused:
	case !live && !j.Stopped && (a == nil || !a.Failed) && j.Problem == "" && reachable && n.Ready && !n.Draining:
		for _, s := range j.Placement.Seats {
			if w.occupied(s, j) || !offers(n, s) {
				return
			}
		}
		j.allocs++
		j.alloc = &planner.Alloc{ID: fmt.Sprintf("%s/%d", j.Name.ID[:4], j.allocs), Client: "pending"}
		j.serves, j.ends = time.Time{}, time.Time{}
		if j.asleep || j.moved != nil { // Nomad starts it anew on its own account, with a new directory
			j.asleep, j.held, j.strange, j.moved = false, false, true, nil
		}
	}
}

// crashes reports whether the engine of a job ends whenever it starts.
func (w *world) crashes(j *job) bool {
	for gpu := range j.starts() {
		if w.dead[gpu] {
			return true
		}
	}
	return w.broken[j.Hash]
}

// offers reports whether Nomad gives a seat of a node to a new allocation.
func offers(n *state.Node, seat string) bool {
	return slices.ContainsFunc(n.GPUs, func(g state.GPU) bool { return g.Healthy && slices.Contains(g.Seats, seat) })
}

// starts is what its engine takes of which GPUs when it starts.
func (j *job) starts() map[string]int64 {
	if j.moved != nil {
		return j.moved
	}
	return j.Placement.Memory
}

// begin is the start of a process: it takes its GPUs.
func (j *job) begin() {
	j.using, j.host = j.starts(), 0
	if j.asleep { // its shim is parked, and starts no engine
		j.using = nil
	}
	if j.loads > 0 {
		j.using = map[string]int64{}
		for gpu := range j.Placement.Memory {
			j.using[gpu] = j.loads
		}
	}
}

func (w *world) occupied(seat string, but *job) bool {
	for _, other := range w.nomad {
		if other != but && other.alloc != nil && slices.Contains([]string{"pending", "running", "unknown"}, other.alloc.Client) && slices.Contains(other.Placement.Seats, seat) {
			return true
		}
	}
	return false
}

func (j *job) serving(now time.Time) bool {
	return j.alloc != nil && j.alloc.Client == "running" && !j.asleep && j.loads == 0 && !j.serves.IsZero() && !now.Before(j.serves)
}

// list is what Nomad would answer now.
func (w *world) list() map[string]planner.Job {
	out := map[string]planner.Job{}
	for name, j := range w.nomad {
		p := j.Job
		if n := w.nodes[p.Placement.Node]; n != nil {
			p.Pool = n.CapacityPool
		}
		p.Ended = j.Stopped
		p.Placement.SharedMemory, p.Placement.LoadMemory = 0, 0 // no job has them
		if j.alloc != nil {
			a := *j.alloc
			p.Alloc = &a
			p.Ended = j.Stopped && (a.Client == "complete" || a.Client == "failed")
		}
		out[name] = p
	}
	return out
}

// relist has the watch see Nomad as it is.
func (w *world) relist() { w.listed, w.listedAt = w.list(), w.index2 }
