package planner_test

import (
	"maps"
	"slices"
	"time"

	"remuda/controller/planner"
	"remuda/controller/state"
)

// drain is a shim that is told to drain its engine, and what the state hears.
func (w *world) drain(name string, j *job, crash bool) {
	out := planner.Outcome{Kind: planner.Drain, Replica: name, Class: planner.Done}
	switch {
	case j == nil || !j.live() || w.down[j.Placement.Node]:
		out.Class, out.Error = planner.Unreachable, "the simulated shim does not answer"
	case len(w.requests[name]) > 0:
		out.Class, out.Error = planner.Unreachable, "the simulated shim still waits"
	}
	if !crash {
		w.after(out)
	}
}

// sleep is a shim that is told to put its engine to sleep, and what the state hears.
func (w *world) sleep(name string, j *job, crash bool) {
	r := w.view().Replica(nil, name)
	out := planner.Outcome{Kind: planner.Sleep, Replica: name, Class: planner.Done}
	w.sleeps++
	if w.outcome != nil {
		out.Class = w.outcome(planner.Sleep, r)
	}
	switch {
	case j == nil || !j.live() || w.down[j.Placement.Node]:
		out.Class = planner.Unreachable
	case j.asleep && len(j.using) > 0 && slices.Max(slices.Collect(maps.Values(j.using))) > w.keep(r):
		out.Class, out.Kept = planner.MemoryHeld, maps.Clone(j.using)
	case j.asleep:
		out.Class, out.Kept = planner.Done, maps.Clone(j.using)
	case j.loads > 0 && (j.serves.IsZero() || w.now.Before(j.serves)):
		out.Class = planner.Loading
	case len(w.requests[name]) > 0:
		out.Class = planner.NotDrained
	case out.Class == planner.Done:
		j.asleep, j.loads, j.host = true, 0, r.Placement.HostMemory
		j.using = map[string]int64{}
		for gpu := range r.Placement.Memory {
			j.using[gpu] = w.keep(r)
		}
		out.Kept = maps.Clone(j.using)
	case out.Class == planner.MemoryHeld && j.loads > 0:
		out.Class = planner.Failed // a load takes less than that
	case out.Class == planner.MemoryHeld:
		j.asleep, j.held, j.host = true, true, r.Placement.HostMemory // and using as before
		out.Kept = map[string]int64{}
		for gpu, bytes := range r.Placement.Memory {
			out.Kept[gpu] = bytes
		}
	}
	if out.Class != planner.Done {
		out.Error = "the simulated shim says " + string(out.Class)
	}
	w.physics()
	if !crash {
		w.after(out)
	}
}

// keep is what a sleeping replica really keeps of each of its GPUs, whatever the model file says.
func (w *world) keep(r *state.Replica) int64 {
	if bytes, set := w.keeps[r.Name.Model]; set {
		return bytes
	}
	if v := w.view().VariantOf(nil, r); v != nil {
		return v.SleepMemory
	}
	return r.Placement.SleepMemory
}

// wake is a shim that is told to wake its engine, and what the state hears.
func (w *world) wake(name string, j *job, crash bool) {
	r := w.view().Replica(nil, name)
	out := planner.Outcome{Kind: planner.Wake, Replica: name, Class: planner.Done}
	w.sleeps++
	if w.outcome != nil {
		out.Class = w.outcome(planner.Wake, r)
	}
	switch {
	case j == nil || !j.live() || w.down[j.Placement.Node]:
		out.Class = planner.Unreachable
	case !j.asleep:
		out.Class = planner.Done
	case out.Class == planner.Done:
		j.asleep, j.held, j.host, j.serves = false, false, 0, w.now.Add(w.unseen)
		j.using, j.moved = r.Placement.Memory, r.Placement.Memory
	case out.Class == planner.Failed: // the shim and its engine die of it
		j.restart(w.now)
		j.alloc.Event = "Exit Code: 1"
		j.alloc.Restarts++
		j.serves = time.Time{}
		j.using, j.host = nil, 0
	}
	if out.Class != planner.Done {
		out.Error = "the simulated shim says " + string(out.Class)
	}
	w.physics()
	if !crash {
		w.after(out)
	}
}

// after tells the state what became of a sleep or a wake.
func (w *world) after(out planner.Outcome) {
	w.log("  %s %s: %s", out.Kind, out.Replica, out.Class)
	if p := planner.After(w.view(), out, w.now, w.conf); p != nil {
		for _, d := range p.Decisions {
			w.log("  %s %s%s: %s", d.Kind, d.Model, d.Replica, d.Reason)
		}
		w.must(p)
	}
}
