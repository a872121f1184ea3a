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

// updateStatus changes a member's status to what is observed of it.
func (b *planBuilder) updateStatus(m *model, r *member) {
	if r.gone() {
		b.writeOff(m, r)
		return
	}
	if r.resting() && b.endRest(m, r) {
		return
	}
	if b.abandon(m, r) {
		return
	}
	b.recordJobDrift(m, r)
	switch {
	case r.next.Status == state.StatusCold:
		b.forget(m, r)
	case r.next.Ending():
		b.stopped(m, r)
	case r.next.Status == state.StatusDraining && r.leaving():
		b.drain(m, r)
	case r.next.Status == state.StatusDraining:
		b.drainToWarm(m, r)
	case r.next.Status == state.StatusSleeping:
		b.sleeping(m, r)
	case r.next.Status == state.StatusWarm:
		b.warm(m, r)
	case r.next.Status == state.StatusWaking:
		b.waking(m, r)
	case r.next.Status == state.StatusPlaced:
		b.placed(m, r)
	case r.next.Status == state.StatusStarting:
		b.starting(m, r)
	case r.next.Status == state.StatusFailed && r.successor():
		b.retrySuccessor(m, r)
	case r.serving():
		b.noteFailover(r)
		b.running(m, r)
	}
}

// writeOff removes a member whose node is gone. Its job is stopped first, so that it does not
// start again unnoticed when the node returns.
func (b *planBuilder) writeOff(m *model, r *member) {
	switch {
	case r.next.Status == state.StatusCold:
		b.remove(r)
	case r.next.Ending():
		if r.jobKnown && (r.job == nil || r.job.Stopped) {
			b.remove(r)
		}
	default:
		b.record(KindNodeGone, m.Name, r.name, fmt.Sprintf("node %s is gone: replica lost", nodeName(r)), inputs{"node": nodeName(r), "status": string(r.next.Status)})
		b.happens(r, state.EventStop, state.GoalGone, nil)
	}
}

func nodeName(r *member) string {
	if r.node == nil {
		return r.Placement.Node
	}
	return cmp.Or(r.node.Name, r.node.ID)
}

// forget removes a COLD member whose weights will not be used again.
func (b *planBuilder) forget(m *model, r *member) {
	if m.Stopped || !m.wants(r) {
		b.remove(r)
	}
}

// dropDuplicateCold removes a COLD member if its node has another member of the variant.
func (b *planBuilder) dropDuplicateCold(m *model) {
	type place struct{ variant, node string }
	known := map[place]bool{}
	for _, r := range m.members {
		if !r.leaving() {
			known[place{r.Name.Variant, r.Placement.Node}] = true
		}
	}
	for _, r := range m.members {
		if r.next.Status != state.StatusCold || r.changed {
			continue
		}
		at := place{r.Name.Variant, r.Placement.Node}
		if known[at] {
			b.remove(r)
		}
		known[at] = true
	}
}

// stopped ends a member whose job is over.
func (b *planBuilder) stopped(m *model, r *member) {
	switch {
	case !b.jobOver(r):
	case r.Goal == state.GoalCold:
		b.happens(r, state.EventStopped, "", nil)
	default:
		b.remove(r)
	}
}

// drain stops a member whose engine has ended, or whose drain timeout is reached. A member
// without requests in flight is stopped by After.
func (b *planBuilder) drain(m *model, r *member) {
	stop := func(kind, reason string) {
		load := b.obs.Loads[r.name]
		b.record(kind, m.Name, r.name, reason, inputs{"in_flight": strconv.Itoa(load.InFlight), "drained_for": b.obs.Now.Sub(r.Since).String()})
		b.happens(r, state.EventStop, r.Goal, nil)
	}
	switch {
	case b.jobOver(r):
		stop(KindDrained, "job ended before the drain finished")
	case r.ended():
		stop(KindDrained, "its engine ended before the drain finished")
	case b.due(r.Since.Add(b.conf.DrainTimeout)):
		stop(KindDrainTimeout, fmt.Sprintf("drain timeout of %s reached: stopping with requests in flight", b.conf.DrainTimeout))
	}
}

// ended reports whether the member's engines have ended with their allocation, although its
// job may have another one.
func (r *member) ended() bool {
	if !r.jobKnown || r.passes || r.job == nil {
		return false
	}
	a := r.job.Alloc
	return a == nil || a.Client == clientComplete || a.Client == clientFailed
}

// passing reports whether an engine of a replica serves.
func (b *planBuilder) passing(name string) bool {
	return b.obs.EnginesKnown && slices.ContainsFunc(b.obs.Engines[name], func(e Engine) bool { return e.Passing })
}

// lastServed is when a member may last have served: when its allocation's engine was started, or, as a
// pair serves on after one of its engines was restarted, when one was last seen to pass.
func (b *planBuilder) lastServed(r *member, a *Alloc) time.Time {
	at, seen := b.obs.PassedAt[r.name]
	if !seen {
		at = b.obs.EnginesSince
	}
	if a.Started.After(at) {
		return a.Started
	}
	return at
}

// serves reports whether the member is HOT and its engine is not known to fail its health check: an
// engine that hangs is still running, for Nomad and for the state.
func (b *planBuilder) serves(r *member) bool { return r.serving() && (!b.obs.EnginesKnown || r.passes) }

// hadTimeToPlace reports whether Nomad could have placed the member for PlaceTimeout: a successor since
// the member in whose place it starts has ended; see placesFreed.
func (b *planBuilder) hadTimeToPlace(r *member) bool {
	if r.successor() && !b.due(r.RetryAt.Add(b.conf.PlaceTimeout)) {
		return false
	}
	return b.hadTime(r, b.conf.PlaceTimeout)
}

// hadTime reports whether the member has had its status for at least that long, counting only
// since its Nomad was last unreachable.
func (b *planBuilder) hadTime(r *member, long time.Duration) bool {
	pool := b.obs.Pools[b.poolOf(r)]
	from := r.Since
	if pool.JobsSince.After(from) {
		from = pool.JobsSince
	}
	return pool.JobsKnown && b.due(from.Add(long))
}

// placed fails a member whose job Nomad has rejected for PlaceTimeout.
func (b *planBuilder) placed(m *model, r *member) {
	if b.obs.Pools[b.poolOf(r)].JobsKnown && r.LastError != "" && b.hadTimeToPlace(r) {
		b.fail(m, r, fmt.Sprintf("job could not be registered for %s: %s", b.conf.PlaceTimeout, r.LastError))
	}
}

// itsOwn reports whether an engine that passes is of the member's allocation as it is
// now. The catalog may still have one that was killed before; where the name never had
// another engine, there is no need to wait until Nomad's client says that the
// allocation runs, which it tells once a second only (allocSyncIntv in client/client.go).
func (b *planBuilder) itsOwn(r *member) bool {
	a := r.job.Alloc
	switch {
	case a == nil:
		return false
	case a.Client == clientRunning:
		return true
	}
	return a.Client == clientPending && a.First && r.Failures == 0 && r.Since.Sub(r.CreatedAt) < b.conf.SettleTime
}

// starting checks whether a member serves or has failed. A member whose allocation runs may load
// for any time. One that loads to become WARM is so when its sleep is done, see After, and has failed
// if that is not known in time.
func (b *planBuilder) starting(m *model, r *member) {
	if r.passes && !r.resting() && (!b.obs.Pools[b.poolOf(r)].JobsKnown || r.jobKnown && r.job != nil && !r.job.Stopped && b.itsOwn(r)) {
		b.record(KindServing, m.Name, r.name, fmt.Sprintf("serving %s after start", b.obs.Now.Sub(r.Since).Round(time.Millisecond)), inputs{"started_for": b.obs.Now.Sub(r.Since).String(), "node": nodeName(r)})
		b.happens(r, state.EventServing, "", nil)
		return
	}
	if !r.jobKnown || r.job == nil || r.job.Stopped || !b.due(r.Since.Add(b.conf.SettleTime)) {
		return
	}
	b.replanAt(parkedFrom(r.Replica, r.job, b.conf)) // for Actions
	a := r.job.Alloc
	switch {
	case a != nil && (a.Failed || a.Client == clientFailed):
		b.fail(m, r, fmt.Sprintf("allocation %s failed: %s", a.ID, cmp.Or(a.Event, "Nomad reports no reason")))
	case a != nil && b.obs.EnginesKnown && a.Restarts >= b.conf.Restarts && a.Restarts >= r.restartsBefore()+b.conf.Restarts:
		n := a.Restarts - r.restartsBefore()
		b.fail(m, r, fmt.Sprintf("restarted %d times without serving: %s", n, cmp.Or(a.Event, "Nomad reports no reason")))
	case a != nil && a.Client == clientRunning && r.next.Loads():
		if limit := b.conf.LoadTimeout + b.conf.SleepTimeout; b.due(a.Started.Add(limit)) && b.hadTime(r, limit) {
			b.fail(m, r, fmt.Sprintf("did not become WARM within %s: its shim is out of reach, or the node reports no memory", limit))
		}
	case a == nil || a.Client == clientComplete || a.Client == clientLost:
		if r.node.DownSince.IsZero() && !m.makesWay(r) && b.hadTimeToPlace(r) {
			b.failed(m, r, true, fmt.Sprintf("Nomad did not place the job within %s: %s", b.conf.PlaceTimeout, cmp.Or(r.job.Unplaceable, "Nomad reports no reason")))
		}
	}
}

// restartsBefore returns how many restarts of its present allocation do not count against
// the member's present start.
func (r *member) restartsBefore() uint64 {
	if r.RestartsBefore.Alloc != r.job.Alloc.ID {
		return 0
	}
	return r.RestartsBefore.Count
}

// restarts returns how often the tasks of an allocation have been restarted; a may be nil.
func restarts(a *Alloc) state.Restarts {
	if a == nil {
		return state.Restarts{}
	}
	return state.Restarts{Alloc: a.ID, Count: a.Restarts}
}

// running checks whether a member still serves. It does, unless none of its engines serves and
// its allocation is known to have restarted or ended.
func (b *planBuilder) running(m *model, r *member) {
	if r.passes || !b.obs.EnginesKnown || !r.jobKnown {
		if (r.Failures > 0 || r.LastError != "") && r.passes && b.due(r.Since.Add(b.conf.SteadyTime)) {
			b.happens(r, "", "", func(c *state.Move) { c.Failures, c.LastError = new(int), new(string) })
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
		in["alloc"], in["restarts"] = a.ID, strconv.FormatUint(a.Restarts, 10)
		b.replanAt(parkedFrom(r.Replica, r.job, b.conf)) // for Actions
		switch a.Client {
		case clientPending, clientComplete, clientFailed:
			why, trouble = fmt.Sprintf("allocation %s is %s: %s", a.ID, a.Client, cmp.Or(a.Event, "Nomad reports no reason")), true
		case clientRunning:
			if a.Started.After(r.Since) && b.due(b.lastServed(r, a).Add(b.conf.ServingGrace)) {
				why, trouble = fmt.Sprintf("the engine restarted in allocation %s and has not served since: %s", a.ID, cmp.Or(a.Event, "Nomad reports no reason")), true
			}
		}
	}
	if why == "" {
		return
	}
	reason := "not serving: " + why
	b.record(KindNotServing, m.Name, r.name, reason, in)
	if trouble && !b.mustMove(r) && m.onTrial(r) {
		b.rollBack(m, r, reason)
		return
	}
	before := state.Restarts{}
	if r.job != nil {
		before = restarts(r.job.Alloc)
	}
	b.happens(r, state.EventStarted, "", func(c *state.Move) { c.RestartsBefore = &before })
}

// fail records that a member could not be started. One failure of a definition that is being
// rolled out rolls it back, unless the member must move.
func (b *planBuilder) fail(m *model, r *member, reason string) { b.failed(m, r, false, reason) }

// failed is fail; notPlaced is set if Nomad did not place the job.
func (b *planBuilder) failed(m *model, r *member, notPlaced bool, reason string) {
	if m.Rollouts[r.Name.Variant].Ongoing() && !b.mustMove(r) && m.isNew(r) {
		b.rollBack(m, r, reason)
		return
	}
	failures := r.Failures + 1
	wait := Backoff(b.conf.Backoff, b.conf.BackoffMax, failures)
	retry := b.obs.Now.Add(wait)
	b.record(KindLoadFailed, m.Name, r.name, fmt.Sprintf("%s: retrying in %s", reason, wait), inputs{"failures": strconv.Itoa(failures), "backoff": wait.String(), "node": nodeName(r)})
	b.happens(r, state.EventFailed, "", func(c *state.Move) {
		c.Failures, c.LastError, c.NotPlaced, c.RetryAt = &failures, &reason, notPlaced, &retry
	})
	b.replanAt(retry)
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
