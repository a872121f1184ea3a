package planner

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"remuda/controller/state"
)

// Actions returns the actions that bring Nomad to the state, sorted by the names of the replicas. It
// may be called again at any time: an action is not returned again once Nomad's lists show its
// effect. It returns no actions for a pool that is unreachable.
func Actions(v *state.View, o Observation, c Config) []Action {
	if v.Switch(nil, state.SwitchPauseReconcile) != "" {
		return nil
	}
	models, nodes := map[string]*state.Model{}, map[string]*state.Node{}
	for _, m := range v.Models(nil) {
		models[m.Name] = m
	}
	for _, n := range v.Nodes(nil) {
		nodes[n.ID] = n
	}
	var out []Action
	for _, r := range v.Replicas(nil) {
		name := r.Name.String()
		var listed *Job
		if j, ok := o.Jobs[name]; ok {
			listed = &j
		}
		n := nodes[r.Placement.Node]
		pool := poolOf(n, listed)
		if !o.Pools[pool].JobsKnown {
			continue
		}
		if a := actionFor(n, r, name, listed, pool, o, c); a.Kind != "" {
			out = append(out, a)
		}
	}
	for name, j := range o.Jobs {
		if v.Replica(nil, name) == nil {
			if why := stopsUnknown(v, o, name, j); why != "" {
				out = append(out, Action{Kind: Stop, Replica: name, Name: j.Name, Pool: j.Pool, Reason: "the state has no such replica: " + why})
			}
		}
		if !o.Pools[j.Pool].JobsKnown || !j.Ended || j.Problem != "" || j.Name.String() != name {
			continue
		}
		// What is cold or not known needs no job, not even one that has ended.
		if r := v.Replica(nil, name); r == nil || r.Status == state.StatusCold {
			out = append(out, Action{Kind: Purge, Replica: name, Name: j.Name, Pool: j.Pool, Reason: "the job has ended and is no longer needed"})
		}
	}
	slices.SortStableFunc(out, func(a, b Action) int { return strings.Compare(a.Replica, b.Replica) })
	return out
}

// mayBeParked reports whether the engine of a replica that should serve may have been put
// to sleep, as its shim remembers over restarts: its allocation runs, and none of its
// engines serves.
func mayBeParked(r *state.Replica, name string, j *Job, o Observation, c Config) bool {
	from := parkedFrom(r, j, c)
	if from.IsZero() || o.Now.Before(from) || !o.EnginesKnown {
		return false
	}
	return !o.passing(name)
}

// parkedFrom is from when on a replica that does not serve may be parked, zero where it
// cannot be, or is meant to be. One that starts is most likely loading, and its shim is asked only after
// what a wake may take.
func parkedFrom(r *state.Replica, j *Job, c Config) time.Time {
	if j == nil || j.Alloc == nil || j.Alloc.Client != clientRunning || j.Alloc.Started.IsZero() || r.Resting() {
		return time.Time{}
	}
	wait := c.ServingGrace
	switch r.Status {
	case state.StatusServing:
	case state.StatusStarting:
		if wait = max(c.ServingGrace, c.WakeTimeout); j.StartsWarm {
			wait = 0 // a new allocation of the job loads and then waits
		}
	default:
		return time.Time{}
	}
	from := j.Alloc.Started
	if r.Since.After(from) {
		from = r.Since
	}
	return from.Add(wait)
}

// actionFor returns the action for one replica on a node. Its kind is empty if there is nothing to
// do. The node and the job may be nil.
func actionFor(n *state.Node, r *state.Replica, name string, listed *Job, pool string, o Observation, c Config) Action {
	j, known := believedJob(listed, o.Pools[pool].JobsKnown, o.InFlight[name])
	a := Action{Replica: name, Name: r.Name, Pool: pool}
	do := func(kind Kind, reason string) Action {
		a.Kind, a.Reason = kind, reason
		if kind == Register && j != nil {
			a.Index = j.Index
		}
		return a
	}
	request := r.Status.Request()
	switch {
	case request == state.RequestNone:
		return Action{}
	case request == state.RequestRegister:
		// Known or not: it is written over the version that is there, or not at all.
		return do(Register, "the replica was placed")
	case !known:
		return Action{}
	case request == state.RequestStop:
		if j != nil && !j.Stopped {
			return do(Stop, fmt.Sprintf("the replica is %s", r.Status))
		}
		return Action{}
	case request == state.RequestDrain || request == state.RequestSleep || request == state.RequestWake:
		switch {
		case j == nil || j.Stopped:
			return Action{} // it is lost: a new job would have no weights
		case request == state.RequestSleep:
			return do(Sleep, "the replica is drained")
		case request == state.RequestWake:
			return do(Wake, "the replica is needed again")
		case r.Resting(): // its engine is drained when it is put to sleep
			return Action{}
		}
		return do(Drain, "the replica leaves")
	}
	if n == nil || n.WrittenOff {
		return Action{}
	}
	switch {
	case j == nil:
		return do(Register, "the job is missing in Nomad")
	case j.Problem != "":
		return Action{}
	case j.Stopped:
		return do(Register, "the job was stopped outside remuda")
	case len(j.Drift) > 0:
		return do(Register, "the job was changed outside remuda: "+strings.Join(j.Drift, "; "))
	case r.Loads() && r.Status == state.StatusStarting && j.Alloc != nil && j.Alloc.Client == clientRunning:
		return do(Sleep, "the replica loads to become WARM")
	case mayBeParked(r, name, j, o, c):
		return do(Wake, "the allocation runs but no engine serves: the engine may be asleep")
	}
	return Action{}
}
