package planner

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"remuda/controller/state"
)

// Nomad's words for what an allocation does (api.AllocClientStatus…). The missing
// one, unknown, is of a node that cannot be reached.
const (
	clientPending  = "pending"
	clientRunning  = "running"
	clientComplete = "complete"
	clientFailed   = "failed"
	clientLost     = "lost"
)

// follow lets a member's phase follow what is seen of it.
func (d *draft) follow(m *model, r *member) {
	if r.gone() {
		d.writeOff(m, r)
		return
	}
	if r.resting && d.endRest(m, r) {
		return
	}
	d.tellJob(m, r)
	switch {
	case r.tier == state.Cold:
		d.forget(m, r)
	case r.phase == state.Stopping:
		d.stopped(m, r)
	case r.phase == state.Draining && r.leaving:
		d.drain(m, r)
	case r.phase == state.Draining:
		d.drainToWarm(m, r)
	case r.phase == state.Sleeping:
		d.sleeping(m, r)
	case r.tier == state.Warm && r.phase == state.Running:
		d.warm(m, r)
	case r.phase == state.Waking:
		d.waking(m, r)
	case r.phase == state.Placed:
		d.placed(m, r)
	case r.phase == state.Starting:
		d.starting(m, r)
	case r.serving():
		d.running(m, r)
	}
}

// writeOff lets go of a member whose node is gone. Its job is stopped first, so that
// it does not begin to run again behind our back when the node returns.
func (d *draft) writeOff(m *model, r *member) {
	switch {
	case r.tier == state.Cold:
		d.remove(r)
	case r.phase == state.Stopping:
		if r.jobKnown && (r.job == nil || r.job.Stopped) {
			d.remove(r)
		}
	default:
		d.decide(KindNodeGone, m.Name, r.name, fmt.Sprintf("node %s is gone: replica lost", nodeName(r)), inputs{"node": nodeName(r), "tier": string(r.tier), "phase": string(r.phase)})
		d.move(r, state.Stopping, "", nil)
	}
}

func nodeName(r *member) string {
	if r.node == nil {
		return r.Placement.Node
	}
	return cmp.Or(r.node.Name, r.node.ID)
}

// forget removes a COLD member whose weights nobody will want.
func (d *draft) forget(m *model, r *member) {
	if m.Stopped || m.VariantOf(r.Replica) == nil {
		d.remove(r)
	}
}

// tidy removes COLD members on nodes where another one of the variant is.
func (d *draft) tidy(m *model) {
	type place struct{ variant, node string }
	known := map[place]bool{}
	for _, r := range m.members {
		if !r.leaving {
			known[place{r.Name.Variant, r.Placement.Node}] = true
		}
	}
	for _, r := range m.members {
		if r.tier != state.Cold || r.changed {
			continue
		}
		at := place{r.Name.Variant, r.Placement.Node}
		if known[at] {
			d.remove(r)
		}
		known[at] = true
	}
}

// stopped ends a member whose job is over.
func (d *draft) stopped(m *model, r *member) {
	switch {
	case !d.jobOver(r):
	case r.Target == state.Cold:
		d.plan.Move = append(d.plan.Move, state.Move{Replica: r.name, ModifyIndex: r.ModifyIndex, Tier: state.Cold, Phase: state.Running})
		r.tier, r.phase, r.target, r.changed = state.Cold, state.Running, "", true
		d.put(m, r)
	default:
		d.remove(r)
	}
}

// drain stops a member that has no requests any more, or had its time.
func (d *draft) drain(m *model, r *member) {
	stop := func(kind, reason string) {
		load := d.obs.Loads[r.name]
		d.decide(kind, m.Name, r.name, reason, inputs{"in_flight": strconv.Itoa(load.InFlight), "drained_for": d.obs.Now.Sub(r.Since).String()})
		d.move(r, state.Stopping, r.Target, nil)
	}
	switch {
	case d.jobOver(r):
		stop(KindDrained, "job ended before the drain finished")
	case d.obs.Drained[r.name]:
		stop(KindDrained, "drained: no requests in flight")
	case d.due(r.Since.Add(d.conf.DrainTimeout)):
		stop(KindDrainTimeout, fmt.Sprintf("drain timeout of %s reached: stopping with requests in flight", d.conf.DrainTimeout))
	}
}

// passing tells whether an engine of a replica serves.
func (d *draft) passing(name string) bool {
	return d.obs.EnginesKnown && slices.ContainsFunc(d.obs.Engines[name], func(e Engine) bool { return e.Passing })
}

// serves tells whether the member is HOT and running and nothing says that it does not
// serve now: one that hangs is still running, for Nomad and for the state.
func (d *draft) serves(r *member) bool { return r.serving() && (!d.obs.EnginesKnown || r.passes) }

// hadTimeToPlace tells whether Nomad could have placed the member for PlaceTimeout.
func (d *draft) hadTimeToPlace(r *member) bool { return d.hadTime(r, d.conf.PlaceTimeout) }

// hadTime tells whether the member has been in its phase for so long while its Nomad was
// to be asked without a break.
func (d *draft) hadTime(r *member, long time.Duration) bool {
	pool := d.obs.Pools[d.poolOf(r)]
	from := r.Since
	if pool.JobsSince.After(from) {
		from = pool.JobsSince
	}
	return pool.JobsKnown && d.due(from.Add(long))
}

// placed fails a member whose job Nomad has refused for long.
func (d *draft) placed(m *model, r *member) {
	if d.obs.Pools[d.poolOf(r)].JobsKnown && r.LastError != "" && d.hadTimeToPlace(r) {
		d.fail(m, r, fmt.Sprintf("job could not be registered for %s: %s", d.conf.PlaceTimeout, r.LastError))
	}
}

// itsOwn tells whether an engine that passes is of the member's allocation as it is
// now. The catalog may still have one that was killed before; where the name never had
// another engine, there is no need to wait until Nomad's client says that the
// allocation runs, which it tells once a second only (allocSyncIntv in client/client.go).
func (d *draft) itsOwn(r *member) bool {
	a := r.job.Alloc
	switch {
	case a == nil:
		return false
	case a.Client == clientRunning:
		return true
	}
	return a.Client == clientPending && a.First && r.Failures == 0 && r.Since.Sub(r.Created) < d.conf.SettleTime
}

// starting looks whether a member serves, or has failed. One whose allocation runs
// may load for as long as it likes.
func (d *draft) starting(m *model, r *member) {
	if r.passes && (!d.obs.Pools[d.poolOf(r)].JobsKnown || r.jobKnown && r.job != nil && !r.job.Stopped && d.itsOwn(r)) {
		d.decide(KindServing, m.Name, r.name, fmt.Sprintf("serving %s after start", d.obs.Now.Sub(r.Since).Round(time.Millisecond)), inputs{"started_for": d.obs.Now.Sub(r.Since).String(), "node": nodeName(r)})
		d.move(r, state.Running, "", nil)
		return
	}
	if !r.jobKnown || r.job == nil || r.job.Stopped || !d.due(r.Since.Add(d.conf.SettleTime)) {
		return
	}
	d.look(parkedFrom(r.Replica, r.job, d.conf)) // for Actions
	a := r.job.Alloc
	switch {
	case a != nil && (a.Failed || a.Client == clientFailed):
		d.fail(m, r, fmt.Sprintf("allocation %s failed: %s", a.ID, cmp.Or(a.Event, "Nomad reports no reason")))
	case a != nil && d.obs.EnginesKnown && a.Restarts >= d.conf.Restarts && a.Restarts >= d.restartsBefore(m, r)+d.conf.Restarts:
		n := a.Restarts - d.restartsBefore(m, r)
		d.fail(m, r, fmt.Sprintf("engine restarted %d times without serving: %s", n, cmp.Or(a.Event, "Nomad reports no reason")))
	case a == nil || a.Client == clientComplete || a.Client == clientLost:
		if r.node.LostSince.IsZero() && d.hadTimeToPlace(r) {
			d.fail(m, r, fmt.Sprintf("%s within %s: %s", nomadHasNotPlaced, d.conf.PlaceTimeout, cmp.Or(r.job.Unplaceable, "Nomad reports no reason")))
		}
	}
}

// nomadHasNotPlaced begins the error of a replica whose job Nomad did not place in time.
const nomadHasNotPlaced = "Nomad did not place the job"

// restartsBefore returns how often the engine had come back when it last ceased to
// serve in this allocation, or was taken in: those do not count against this start.
func (d *draft) restartsBefore(m *model, r *member) uint64 {
	for _, p := range d.decisionsOf(m.Name) {
		if p.Replica != r.name || p.Kind != KindNotServing && p.Kind != KindAdopt {
			continue
		}
		n, err := strconv.ParseUint(p.Inputs["restarts"], 10, 64)
		if err != nil || p.Inputs["alloc"] != r.job.Alloc.ID {
			return 0
		}
		return n
	}
	// Decisions are not kept for ever. Where this start may be older than the oldest one,
	// nobody knows, and all of them may have been before it.
	if all := d.decisionsOf(""); len(all) >= state.DecisionLimit && !all[len(all)-1].Time.Before(r.Since) {
		return r.job.Alloc.Restarts
	}
	return 0
}

// restarts adds how often the engines of an allocation have come back, for
// restartsBefore.
func (in inputs) restarts(a *Alloc) {
	if a != nil {
		in["alloc"], in["restarts"] = a.ID, strconv.FormatUint(a.Restarts, 10)
	}
}

// running looks whether a member still serves. It is believed to, unless nothing
// serves and its allocation is known to have begun anew or to have ended.
func (d *draft) running(m *model, r *member) {
	if r.passes || !d.obs.EnginesKnown || !r.jobKnown {
		if (r.Failures > 0 || r.LastError != "") && r.passes && d.due(r.Since.Add(d.conf.SteadyTime)) {
			d.move(r, state.Running, "", func(c *state.Move) { c.Failures, c.LastError = new(int), new(string) })
		}
		return
	}
	var why string
	in := inputs{}
	trouble := false // of its own making
	if r.job == nil {
		why = "the job is missing in Nomad"
	} else if a := r.job.Alloc; r.job.Stopped {
		why = "the job was stopped"
	} else if a == nil {
		why = "the allocation is gone"
	} else {
		in.restarts(a)
		d.look(parkedFrom(r.Replica, r.job, d.conf)) // for Actions
		switch a.Client {
		case clientPending, clientComplete, clientFailed:
			why, trouble = fmt.Sprintf("allocation %s is %s: %s", a.ID, a.Client, cmp.Or(a.Event, "Nomad reports no reason")), true
		case clientRunning:
			if a.Started.After(r.Since) && d.due(a.Started.Add(d.conf.ServingGrace)) {
				why, trouble = fmt.Sprintf("the engine restarted in allocation %s and has not served since: %s", a.ID, cmp.Or(a.Event, "Nomad reports no reason")), true
			}
		}
	}
	if why == "" {
		return
	}
	reason := "not serving: " + why
	d.decide(KindNotServing, m.Name, r.name, reason, in)
	if ro := m.rollouts[r.Name.Variant]; trouble && !r.displaced() && r.Canary && ro.Status == state.RolloutCanary && ro.NewHash == r.VariantHash {
		d.rollBack(m, r, reason)
		return
	}
	d.move(r, state.Starting, "", nil)
}

// fail remembers that a member could not be started. Of a new definition that is
// being rolled out one failure is enough to go back, unless its node is being emptied.
func (d *draft) fail(m *model, r *member, reason string) {
	if ro, ok := m.rollouts[r.Name.Variant]; ok && !r.displaced() && ro.NewHash == r.VariantHash && ro.Status != state.RolloutRolledBack {
		d.rollBack(m, r, reason)
		return
	}
	failures := r.Failures + 1
	wait := Backoff(d.conf.Backoff, d.conf.BackoffMax, failures)
	retry := d.obs.Now.Add(wait)
	d.decide(KindLoadFailed, m.Name, r.name, fmt.Sprintf("%s: retrying in %s", reason, wait), inputs{"failures": strconv.Itoa(failures), "backoff": wait.String(), "node": nodeName(r)})
	d.move(r, state.Failed, "", func(c *state.Move) { c.Failures, c.LastError, c.Retry = &failures, &reason, &retry })
	d.look(retry)
}

// Backoff is the wait after so many failures in a row: low after the first, twice as
// long after each, at most high.
func Backoff(low, high time.Duration, failures int) time.Duration {
	wait := low
	for i := 1; i < failures && wait < high; i++ {
		wait *= 2
	}
	return min(wait, high)
}
