package planner_test

import (
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/planner"
	"remuda/controller/state"
)

// act does in Nomad what is asked for, and tells the state, as the reconciler does.
func (w *world) act(a planner.Action, crash bool) {
	j := w.nomad[a.Replica]
	w.log("%s %s: %s", a.Kind, a.Replica, a.Reason)
	switch a.Kind {
	case planner.Register:
		r := w.view().Replica(nil, a.Replica)
		require.NotNil(w.t, r, "a replica that is registered exists")
		require.NotNil(w.t, w.view().VariantOf(nil, r), "a replica that is registered has a definition")
		var have uint64
		if j != nil {
			have = j.Index
		}
		if have != a.Index {
			w.log("  conflict: %d, not %d", have, a.Index)
			return
		}
		if j == nil {
			j = &job{}
			w.nomad[a.Replica] = j
		}
		if j.Index == 0 || j.Stopped || j.Hash != w.hash(r) || j.drifting != "" {
			w.index2++
			w.registered++
			j.Job, j.version = planner.Job{Name: r.Name, Hash: w.hash(r), Placement: r.Placement, Index: w.index2, StartsWarm: r.Loads()}, r.Version
			j.loads = r.Placement.LoadMemory
			j.drifting, j.ends = "", time.Time{}
			if j.alloc != nil && j.alloc.Failed {
				j.alloc = nil
			}
		}
		if crash {
			return
		}
		w.wrote[a.Replica] = j.Index
		if r.Status == state.StatusPlaced || r.JobIndex != j.Index {
			var event state.Event
			if r.Status == state.StatusPlaced || r.Status == state.StatusServing {
				event = state.EventStarted
			}
			w.must(&state.Move{Replica: a.Replica, ModifyIndex: r.ModifyIndex, Event: event, Time: w.now, JobIndex: &j.Index})
		}
	case planner.Stop:
		if j != nil && !j.Stopped {
			w.index2++
			j.Stopped, j.Index = true, w.index2
			w.wrote[a.Replica] = j.Index
		}
	case planner.Drain:
		w.drain(a.Replica, j, crash)
	case planner.Sleep:
		w.sleep(a.Replica, j, crash)
	case planner.Wake:
		w.wake(a.Replica, j, crash)
	case planner.Purge:
		if j == nil {
			return // the list was old
		}
		w.holds(j.Stopped, "only what was stopped is purged: %s", a.Replica)
		if j.alloc != nil {
			require.NotContains(w.t, []string{"pending", "running", "unknown"}, j.alloc.Client, "only what has ended is purged")
		}
		delete(w.nomad, a.Replica)
		w.index2++
		w.wrote[a.Replica] = w.index2
	}
}
