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

// follow lets a member's status follow what is seen of it.
func (d *draft) follow(m *model, r *member) {
	if r.gone() {
		d.writeOff(m, r)
		return
	}
	if r.resting() && d.endRest(m, r) {
		return
	}
	if d.abandon(m, r) {
		return
	}
	d.tellJob(m, r)
	switch {
	case r.next.Status == state.StatusCold:
		d.forget(m, r)
	case r.next.Ending():
		d.stopped(m, r)
	case r.next.Status == state.StatusDraining && r.leaving():
		d.drain(m, r)
	case r.next.Status == state.StatusDraining:
		d.drainToWarm(m, r)
	case r.next.Status == state.StatusSleeping:
		d.sleeping(m, r)
	case r.next.Status == state.StatusWarm:
		d.warm(m, r)
	case r.next.Status == state.StatusWaking:
		d.waking(m, r)
	case r.next.Status == state.StatusPlaced:
		d.placed(m, r)
	case r.next.Status == state.StatusStarting:
		d.starting(m, r)
	case r.serving():
		d.running(m, r)
	}
}

// writeOff lets go of a member whose node is gone. Its job is stopped first, so that
// it does not begin to run again behind our back when the node returns.
func (d *draft) writeOff(m *model, r *member) {
	switch {
	case r.next.Status == state.StatusCold:
		d.remove(r)
	case r.next.Ending():
		if r.jobKnown && (r.job == nil || r.job.Stopped) {
			d.remove(r)
		}
	default:
		d.decide(KindNodeGone, m.Name, r.name, fmt.Sprintf("node %s is gone: replica lost", nodeName(r)), inputs{"node": nodeName(r), "status": string(r.next.Status)})
		d.happens(r, state.EventStop, state.GoalGone, nil)
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
	if m.Stopped || !m.wants(r) {
		d.remove(r)
	}
}

// tidy removes COLD members on nodes where another one of the variant is.
func (d *draft) tidy(m *model) {
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
			d.remove(r)
		}
		known[at] = true
	}
}

// stopped ends a member whose job is over.
func (d *draft) stopped(m *model, r *member) {
	switch {
	case !d.jobOver(r):
	case r.Goal == state.GoalCold:
		d.happens(r, state.EventStopped, "", nil)
	default:
		d.remove(r)
	}
}

// drain stops a member whose engine has ended, or which had its time. One whose engine has no
// request any more is stopped by After.
func (d *draft) drain(m *model, r *member) {
	stop := func(kind, reason string) {
		load := d.obs.Loads[r.name]
		d.decide(kind, m.Name, r.name, reason, inputs{"in_flight": strconv.Itoa(load.InFlight), "drained_for": d.obs.Now.Sub(r.Since).String()})
		d.happens(r, state.EventStop, r.Goal, nil)
	}
	switch {
	case d.jobOver(r):
		stop(KindDrained, "job ended before the drain finished")
	case r.ended():
		stop(KindDrained, "its engine ended before the drain finished")
	case d.due(r.Since.Add(d.conf.DrainTimeout)):
		stop(KindDrainTimeout, fmt.Sprintf("drain timeout of %s reached: stopping with requests in flight", d.conf.DrainTimeout))
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

// passing tells whether an engine of a replica serves.
func (d *draft) passing(name string) bool {
	return d.obs.EnginesKnown && slices.ContainsFunc(d.obs.Engines[name], func(e Engine) bool { return e.Passing })
}

// serves tells whether the member is HOT and running and nothing says that it does not
// serve now: one that hangs is still running, for Nomad and for the state.
func (d *draft) serves(r *member) bool { return r.serving() && (!d.obs.EnginesKnown || r.passes) }

// hadTimeToPlace tells whether Nomad could have placed the member for PlaceTimeout.
func (d *draft) hadTimeToPlace(r *member) bool { return d.hadTime(r, d.conf.PlaceTimeout) }

// hadTime reports whether the member has had its status for that long, counting only since
// its Nomad was last out of reach.
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
	return a.Client == clientPending && a.First && r.Failures == 0 && r.Since.Sub(r.CreatedAt) < d.conf.SettleTime
}

// starting looks whether a member serves, or has failed. One whose allocation runs
// may load for as long as it likes.
func (d *draft) starting(m *model, r *member) {
	if r.passes && (!d.obs.Pools[d.poolOf(r)].JobsKnown || r.jobKnown && r.job != nil && !r.job.Stopped && d.itsOwn(r)) {
		d.decide(KindServing, m.Name, r.name, fmt.Sprintf("serving %s after start", d.obs.Now.Sub(r.Since).Round(time.Millisecond)), inputs{"started_for": d.obs.Now.Sub(r.Since).String(), "node": nodeName(r)})
		d.happens(r, state.EventServing, "", nil)
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
	case a != nil && d.obs.EnginesKnown && a.Restarts >= d.conf.Restarts && a.Restarts >= r.restartsBefore()+d.conf.Restarts:
		n := a.Restarts - r.restartsBefore()
		d.fail(m, r, fmt.Sprintf("restarted %d times without serving: %s", n, cmp.Or(a.Event, "Nomad reports no reason")))
	case a == nil || a.Client == clientComplete || a.Client == clientLost:
		if r.node.DownSince.IsZero() && d.hadTimeToPlace(r) {
			d.failed(m, r, true, fmt.Sprintf("Nomad did not place the job within %s: %s", d.conf.PlaceTimeout, cmp.Or(r.job.Unplaceable, "Nomad reports no reason")))
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

// running looks whether a member still serves. It is believed to, unless nothing
// serves and its allocation is known to have begun anew or to have ended.
func (d *draft) running(m *model, r *member) {
	if r.passes || !d.obs.EnginesKnown || !r.jobKnown {
		if (r.Failures > 0 || r.LastError != "") && r.passes && d.due(r.Since.Add(d.conf.SteadyTime)) {
			d.happens(r, "", "", func(c *state.Move) { c.Failures, c.LastError = new(int), new(string) })
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
	if trouble && !d.displaced(r) && m.onTrial(r) {
		d.rollBack(m, r, reason)
		return
	}
	before := state.Restarts{}
	if r.job != nil {
		before = restarts(r.job.Alloc)
	}
	d.happens(r, state.EventStarted, "", func(c *state.Move) { c.RestartsBefore = &before })
}

// fail remembers that a member could not be started. Of a new definition that is
// being rolled out one failure is enough to go back, unless the member is displaced.
func (d *draft) fail(m *model, r *member, reason string) { d.failed(m, r, false, reason) }

// failed is fail; notPlaced: because Nomad did not place the job.
func (d *draft) failed(m *model, r *member, notPlaced bool, reason string) {
	if m.Rollouts[r.Name.Variant].Ongoing() && !d.displaced(r) && m.isNew(r) {
		d.rollBack(m, r, reason)
		return
	}
	failures := r.Failures + 1
	wait := Backoff(d.conf.Backoff, d.conf.BackoffMax, failures)
	retry := d.obs.Now.Add(wait)
	d.decide(KindLoadFailed, m.Name, r.name, fmt.Sprintf("%s: retrying in %s", reason, wait), inputs{"failures": strconv.Itoa(failures), "backoff": wait.String(), "node": nodeName(r)})
	d.happens(r, state.EventFailed, "", func(c *state.Move) {
		c.Failures, c.LastError, c.NotPlaced, c.RetryAt = &failures, &reason, notPlaced, &retry
	})
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
