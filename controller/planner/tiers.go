package planner

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"remuda/controller/state"
)

// endRest ends a resting member that will not be woken, and reports whether it did.
func (b *planBuilder) endRest(m *model, r *member) bool {
	to, kind, why := state.GoalGone, KindScaleDown, ""
	switch {
	case m.Stopped:
		why = "the model is stopped"
	case m.Variant(r.Name.Variant) == nil:
		kind, why = KindVariantRemoved, "the variant was removed"
	case (!r.successor() || !m.isNew(r)) && (m.definition(r.Name.Variant) == nil || m.definition(r.Name.Variant).Hash != m.hashOf(r)):
		kind, why = KindRolling, "its definition is outdated"
	case b.leaves(r):
		to, kind, why = state.GoalCold, KindMoveAway, b.whyMove(r)
	case r.successor() && !m.succeeds(r) && m.resting() > m.KeepWarm:
		why = "no replica of another definition is left for it to replace"
	default:
		return false
	}
	if r.next.Loads() {
		to = state.GoalGone // its weights may not be on the disk
	}
	b.record(kind, m.Name, r.name, fmt.Sprintf("no longer kept %s: %s", state.Warm, why), inputs{"version": strconv.Itoa(r.Version), "status": string(r.next.Status)})
	b.endAs(r, to, nil)
	return true
}

// leaves reports whether a resting member has to leave its place. A successor does not wait for a GPU that may
// recover: the replica beside it serves, or another one takes its place.
func (b *planBuilder) leaves(r *member) bool {
	return r.leavesNode() || (r.cordoned() || r.successor()) && b.outOfUse(r) != ""
}

// drainToWarm puts a member to sleep on which no gateway reports a request any more. The
// engine's shim waits for those that are not reported.
func (b *planBuilder) drainToWarm(m *model, r *member) {
	in := inputs{"in_flight": strconv.Itoa(b.obs.Loads[r.name].InFlight), "drained_for": b.obs.Now.Sub(r.Since).String()}
	switch {
	case b.jobOver(r):
		b.record(KindDrained, m.Name, r.name, "job ended before the drain finished: nothing to keep WARM", in)
		b.happens(r, state.EventStop, state.GoalCold, nil)
	case !b.canSleep(m, r):
		b.record(KindCannotSleep, m.Name, r.name, "engine does not support sleep: going COLD", in)
		b.happens(r, state.EventDrain, state.GoalCold, nil)
	case b.obs.Pools[b.poolOf(r)].JobsKnown && b.obs.Loads[r.name].InFlight == 0: // else its shim cannot be reached
		b.putToSleep(m, r, in)
	case b.due(r.Since.Add(b.conf.DrainTimeout)):
		b.record(KindCalledOff, m.Name, r.name, fmt.Sprintf("drain timeout of %s reached with %d requests in flight: staying HOT", b.conf.DrainTimeout, b.obs.Loads[r.name].InFlight), in)
		b.keepHot(m, r)
	}
}

// putToSleep begins the sleep of a member that is drained, if the host memory for WARM
// replicas has room. What sleeps already and is worth less makes room; where that is not
// enough, the member goes COLD.
func (b *planBuilder) putToSleep(m *model, r *member, in inputs) {
	need := r.Placement.HostMemory
	budget := int64(b.conf.WarmShare * float64(r.node.HostMemory))
	used := b.ledger().Usage(r.node.ID).HostMemory
	in["host_memory"], in["warm_used"], in["warm_budget"] = strconv.FormatInt(need, 10), strconv.FormatInt(used, 10), strconv.FormatInt(budget, 10)
	if used+need <= budget {
		b.record(KindDrained, m.Name, r.name, "drained: going to sleep", in)
		b.happens(r, state.EventSleep, "", nil)
		return
	}
	var less []*member
	for _, other := range b.models {
		for _, o := range other.members {
			if o.Placement.Node != r.Placement.Node || o.next.Status == state.StatusCold {
				continue
			}
			if o.leaving() {
				used -= holds(o.next).HostMemory
			} else if o.next.Status == state.StatusWarm && !o.changed && !other.succeeds(o) && !other.frozen && !other.dedicated && other.Priority <= m.Priority {
				less = append(less, o)
			}
		}
	}
	cost := func(o *member) float64 { return b.evictionCost(b.byName[o.Name.Model], o, state.GoalCold) }
	slices.SortStableFunc(less, func(a, b *member) int { return cmp.Or(cmp.Compare(cost(a), cost(b)), cmp.Compare(a.name, b.name)) })
	var victims []*member
	freed := used + need - budget
	for _, o := range less {
		if freed > 0 {
			victims = append(victims, o)
			freed -= o.Placement.HostMemory
		}
	}
	for i := len(victims) - 1; i >= 0; i-- { // what came first may not be necessary
		if freed+victims[i].Placement.HostMemory <= 0 {
			freed += victims[i].Placement.HostMemory
			victims = slices.Delete(victims, i, i+1)
		}
	}
	total := 0.0
	for _, o := range victims {
		total += cost(o)
	}
	worth := cost(r) - b.evictionCost(m, r, state.GoalWarm)
	in["cost"], in["worth"] = seconds(total), seconds(worth)
	if freed > 0 || len(victims) > 0 && total >= worth || len(victims) == 0 && b.due(r.Since.Add(b.conf.DrainTimeout)) {
		b.record(KindCannotSleep, m.Name, r.name, fmt.Sprintf("not enough host memory on node %s to keep it WARM: going COLD", nodeName(r)), in)
		b.happens(r, state.EventStop, state.GoalCold, nil)
		return
	}
	for _, o := range victims {
		b.record(KindEvictWarm, o.Name.Model, o.name, fmt.Sprintf("making room for %s in the host memory of node %s: going COLD", m.Name, nodeName(o)),
			inputs{"for": m.Name, "host_memory": strconv.FormatInt(o.Placement.HostMemory, 10), "cost": seconds(cost(o)), "worth": seconds(worth)})
		b.evict(o, state.GoalCold, m.Name)
	}
}

// keepHot returns a member that was on its way to WARM to service. If that had lowered the target of
// its model, the target is raised again.
func (b *planBuilder) keepHot(m *model, r *member) {
	if regainsReplica(m.Model, m.target.Replicas, r.Replica, b.view.StayingOf(nil, m.Name)) {
		m.more(m.target.Replicas+1, r.Name.Variant, recallOrder(r.Replica)...)
	}
	b.happens(r, state.EventServing, "", func(c *state.Move) { c.Kept = true })
}

// regainsReplica reports whether a model should have one replica more than its target, because r
// stays HOT after all and had made room for another model or is its only one. The counted replicas
// are those that count against the target.
func regainsReplica(m *state.Model, target int, r *state.Replica, counted []*state.Replica) bool {
	return len(counted) >= target && !m.Stopped && (r.MakesRoomFor != "" || target == 0)
}

// recallOrder returns the order in which displaced replicas come back when r stays HOT after all.
func recallOrder(r *state.Replica) []state.Until {
	if r.MakesRoomFor != "" {
		return []state.Until{state.UntilRoom, state.UntilAsked}
	}
	return []state.Until{state.UntilAsked, state.UntilRoom}
}

// lost returns why the weights of a sleeping member are certainly lost, empty if they are not: its
// process has ended, or restarted after that time. A pair's weights outlive one of its two engines,
// unless the other one's shim reports that they are lost.
func (b *planBuilder) lost(r *member, since time.Time) string {
	if !r.jobKnown {
		return ""
	}
	switch j := r.job; {
	case j == nil:
		return "the job is missing in Nomad"
	case j.Problem != "":
		return ""
	case j.Stopped || j.Ended:
		return "the job was stopped"
	case j.Alloc == nil:
		if b.due(r.Since.Add(b.conf.SettleTime)) {
			return "the allocation is gone"
		}
	case j.Alloc.Client == clientComplete || j.Alloc.Client == clientFailed || j.Alloc.Client == clientLost || j.Alloc.Failed:
		return fmt.Sprintf("allocation %s is %s", j.Alloc.ID, cmp.Or(j.Alloc.Event, j.Alloc.Client))
	case j.Alloc.Client == clientPending:
		if b.due(r.Since.Add(b.conf.SettleTime)) {
			return fmt.Sprintf("allocation %s restarted", j.Alloc.ID)
		}
	case j.Alloc.Oldest.After(since):
		return fmt.Sprintf("the process restarted in allocation %s", j.Alloc.ID)
	case j.WeightsLost:
		return fmt.Sprintf("the engine that kept them has ended in allocation %s", j.Alloc.ID)
	}
	return ""
}

// sleeping stops a member that cannot be put to sleep: its process is lost, or its shim was
// unreachable for too long.
func (b *planBuilder) sleeping(m *model, r *member) {
	why := b.lost(r, r.Since)
	if why == "" && b.hadTime(r, b.conf.SleepTimeout) {
		why = fmt.Sprintf("could not be put to sleep within %s", b.conf.SleepTimeout)
	}
	if why != "" {
		b.record(KindSleepFailed, m.Name, r.name, why+": going COLD", inputs{"sleeping_for": b.obs.Now.Sub(r.Since).String(), "node": nodeName(r)})
		b.happens(r, state.EventStop, state.GoalCold, func(c *state.Move) { c.LastError = &why })
	}
}

// warm stops a WARM member whose weights are lost.
func (b *planBuilder) warm(m *model, r *member) {
	if why := b.lost(r, r.Since); why != "" {
		b.record(KindLostWarm, m.Name, r.name, "WARM weights lost: "+why, inputs{"warm_for": b.obs.Now.Sub(r.Since).String(), "node": nodeName(r)})
		b.happens(r, state.EventStop, state.GoalCold, nil)
	}
}

// waking stops a member whose wake takes too long, or whose process is gone.
func (b *planBuilder) waking(m *model, r *member) {
	why := ""
	if r.jobKnown && (r.job == nil || r.job.Problem == "" && (r.job.Stopped || r.job.Alloc != nil && (r.job.Alloc.Failed || r.job.Alloc.Client == clientFailed))) {
		why = "the job is missing, stopped or failed"
	}
	if why == "" && b.hadTime(r, b.conf.WakeTimeout) {
		why = fmt.Sprintf("did not wake within %s", b.conf.WakeTimeout)
	}
	if why == "" {
		return
	}
	if m.Rollouts[r.Name.Variant].Ongoing() && m.isNew(r) && !b.mustMove(r) {
		b.rollBack(m, r, why)
		return
	}
	failures := r.Failures + 1
	b.record(KindWakeFailed, m.Name, r.name, why+": going COLD, another replica takes over", inputs{"failures": strconv.Itoa(failures), "waking_for": b.obs.Now.Sub(r.Since).String(), "node": nodeName(r)})
	b.happens(r, state.EventStop, state.GoalCold, func(c *state.Move) { c.Failures, c.LastError = &failures, &why })
}
