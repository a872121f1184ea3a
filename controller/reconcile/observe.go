package reconcile

import (
	"cmp"
	"slices"
	"time"

	"remuda/controller/api"
	"remuda/controller/nomad"
	"remuda/controller/planner"
	"remuda/controller/state"
)

// observe builds the planner's Observation.
func (l *loop) observe(view *state.View, snap snapshot, jobs map[string]job, inFlight map[string]bool, now time.Time) planner.Observation {
	o := planner.Observation{
		Now:      now,
		Jobs:     make(map[string]planner.Job, len(jobs)),
		Pools:    make(map[string]planner.PoolView, len(snap.pools)),
		InFlight: inFlight,
		Engines:  snap.engines, EnginesKnown: snap.enginesKnown, PassedAt: snap.passedAt, EnginesSince: l.began,
		Loads: map[string]planner.Load{},
	}
	if o.Engines == nil {
		o.Engines = map[string][]planner.Engine{}
	}
	for name, p := range snap.pools {
		o.Pools[name] = viewOf(p)
	}
	for id, j := range jobs {
		r := view.Replica(nil, id)
		out := jobOf(j.Job, r != nil && r.Status == state.StatusStarting)
		out.Pool = j.pool
		if r != nil && !inFlight[id] {
			out.Drift = j.Drift(*r)
		}
		out.Unplaceable = l.blocked.answer(id, j.Index)
		pair := l.pairs.answer(id, j.Index)
		out.Degraded, out.Takeover, out.WeightsLost = pair.Degraded, takeoverOf(pair.LastFailover), pair.weightsLost
		o.Jobs[id] = out
	}
	o.TrafficKnown, o.Demand = l.cfg.Loads.Known(), l.cfg.Loads.Demand(scaledAt(view))
	o.GatewaysSince, _ = l.cfg.Loads.Since()
	for name, one := range l.cfg.Loads.Totals() {
		o.Loads[name] = planner.Load{
			InFlight: one.InFlight, LastRequest: one.LastRequest,
			Recent: planner.Outcomes(one.Recent), Row: planner.Outcomes(one.Row),
		}
	}
	waiting := l.cfg.Loads.Waiting()
	for _, r := range view.Replicas(nil) {
		// While requests wait for a model, none of its replicas counts as idle, so none is pruned
		// or evicted as idle: a waiting request counts as one that was just sent to each of them.
		if waiting[r.Name.Model] > 0 {
			one := o.Loads[r.Name.String()]
			if now.After(one.LastRequest) {
				one.LastRequest = now
			}
			o.Loads[r.Name.String()] = one
		}
	}
	return o
}

func takeoverOf(t api.Takeover) planner.Takeover {
	return planner.Takeover{From: t.From, Cause: t.Cause, Reason: t.Reason, Ended: t.Ended, At: t.At, Seconds: t.Seconds}
}

// scaledAt returns a function that returns from when on demand for a model counts, see
// state.Model.
func scaledAt(view *state.View) func(model string) time.Time {
	return func(model string) time.Time {
		if m := view.Model(nil, model); m != nil {
			return m.ScaledAt
		}
		return time.Time{}
	}
}

// draining reports whether a replica drains towards WARM. The drain ends as soon as the gateways
// report no request there.
func draining(view *state.View) bool {
	return slices.ContainsFunc(view.Replicas(nil), func(r *state.Replica) bool { return r.Status == state.StatusDraining && r.Resting() })
}

// jobOf converts Nomad's job to the planner's. starting reports whether its replica has not
// served since it was started.
func jobOf(j nomad.Job, starting bool) planner.Job {
	return planner.Job{
		Name: j.Name, Hash: j.Hash, Placement: j.Placement, Problem: j.Problem,
		StartsWarm: j.StartsWarm, Stopped: j.Stopped, Ended: j.Ended(), Index: j.Index, Alloc: allocOf(j.Allocations, starting),
	}
}

// currentOf returns the current allocation: the newest that should run, or the newest if none
// should.
func currentOf(all []nomad.Allocation) (nomad.Allocation, bool) {
	if len(all) == 0 {
		return nomad.Allocation{}, false
	}
	return all[max(slices.IndexFunc(all, func(a nomad.Allocation) bool { return a.Desired == "run" }), 0)], true
}

// allocOf converts the current allocation to the planner's. Until the engines serve, it also
// looks at the tasks beside them, which may be the cause: one that fetches the weights before
// the engines start, or the lockd whose lock they wait for.
func allocOf(all []nomad.Allocation, starting bool) *planner.Alloc {
	if len(all) == 0 {
		return nil
	}
	a, _ := currentOf(all)
	out := &planner.Alloc{ID: a.ID, Client: a.Client, Failed: a.Client == "failed", First: len(all) == 1 && a.JobVersion == 0}
	// The engines are the tasks with seats. If there are none, use all tasks.
	tasks := slices.DeleteFunc(slices.Clone(a.Tasks), func(t nomad.Task) bool { return len(a.Seats[t.Name]) == 0 })
	if len(tasks) == 0 {
		tasks = a.Tasks
	}
	for _, t := range tasks {
		if t.Started.After(out.Started) {
			out.Started = t.Started
		}
		if !t.Started.IsZero() && (out.Oldest.IsZero() || t.Started.Before(out.Oldest)) {
			out.Oldest = t.Started
		}
	}
	if out.Started.IsZero() {
		tasks = a.Tasks
	}
	for _, t := range tasks {
		out.Failed = out.Failed || t.Failed && t.State == "dead"
	}
	if starting {
		tasks = a.Tasks // for the event
	}
	var worst nomad.Task
	// A failed task beside the engines, for example a lockd with a wrong command, explains more
	// than an engine that waits for it.
	for _, t := range a.Tasks {
		if t.Failed && t.State == "dead" && t.Event != "" {
			worst = t
		}
	}
	for _, t := range a.Tasks {
		out.Restarts = max(out.Restarts, t.Restarts)
	}
	for _, t := range tasks {
		if better := worst.Name == "" || worse(t, worst); better && t.Event != "" {
			worst = t
		}
	}
	if worst.Name != "" {
		out.Event = worst.Name + ": " + worst.Event
	}
	out.Event = cmp.Or(out.Event, a.Description)
	return out
}

// worse reports whether a is in a worse state than b, so that its event is the one to report.
func worse(a, b nomad.Task) bool {
	if a.Failed != b.Failed {
		return a.Failed
	}
	return a.Restarts > b.Restarts
}

// live reports whether a job has an allocation that runs or will run.
func live(j nomad.Job) bool {
	return slices.ContainsFunc(j.Allocations, func(a nomad.Allocation) bool { return a.Desired == "run" && !a.Ended() })
}
