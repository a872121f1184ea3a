package planner

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"remuda/controller/state"
)

// prune sends idle members on: HOT ones to WARM, WARM ones to COLD, the longest idle
// first, at most PruneMax once in PruneInterval. While it is not known when a replica
// had its last request, nothing is pruned: a busy replica must not be taken for an idle one.
func (b *planBuilder) prune() {
	if !b.obs.TrafficKnown {
		return
	}
	var again time.Time // zero: at once
	if at := b.pace.Pruned; !at.IsZero() {
		again = at.Add(b.conf.PruneInterval)
	}
	type idler struct {
		m     *model
		r     *member
		since time.Time
	}
	var idlers []idler
	for m := range b.moving(pruning) {
		if m.frozen || m.dedicated || m.Stopped {
			continue
		}
		for _, r := range m.members {
			after := b.prunes(m, r)
			if after <= 0 {
				continue
			}
			since := b.usedLast(r)
			at := since.Add(after)
			for _, other := range []time.Time{again, r.Since.Add(b.conf.TierGrace)} {
				if other.After(at) {
					at = other
				}
			}
			if b.due(at) {
				b.markDirty()
				idlers = append(idlers, idler{m, r, since})
			}
		}
	}
	slices.SortStableFunc(idlers, func(a, b idler) int { return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.r.name, b.r.name)) })
	pruned := 0
	for _, i := range idlers {
		switch {
		case b.full():
		case pruned >= b.conf.PruneMax:
			b.replanAt(b.obs.Now.Add(b.conf.PruneInterval))
		case b.prunes(i.m, i.r) <= 0 || b.obs.Now.Sub(i.since) < b.prunes(i.m, i.r) || !b.takePoolDeparture(i.r):
			// Others of its model went before it.
		default:
			pruned++
			b.pruneOne(i.m, i.r, i.since)
		}
	}
	if pruned > 0 {
		b.setPace(func(p *state.Pace) { p.Pruned = b.obs.Now })
	}
}

// prunes returns how long a member must be idle before it is pruned, 0: it is not.
func (b *planBuilder) prunes(m *model, r *member) time.Duration {
	pool := b.poolOf(r)
	if r.changed || m.succeeds(r) || r.leavesNode() || !b.open(pool) || pool != "" && b.pools[pool].Management != state.ManagementFull {
		return 0 // where Nomad is out of reach nothing could be put to sleep, or come back
	}
	if r.next.Status == state.StatusWarm {
		if m.resting() <= m.KeepWarm {
			return 0
		}
		return m.IdleCold
	}
	if !r.counts() || !b.serves(r) || m.Rollouts[r.Name.Variant].Ongoing() || m.target.Replicas <= m.floor() || b.obs.Loads[r.name].InFlight > 0 || b.expected(m, r) || b.keptLately(r) {
		return 0
	}
	serving, coming := b.servingCount(m)
	if coming || serving <= m.floor() {
		return 0
	}
	if serving == 1 { // the last one
		if m.limits.KeepLast || m.IdleWarm == 0 {
			return 0
		}
		return max(m.IdleWarm, m.limits.ScaleToZeroDelay)
	}
	return m.IdleWarm
}

// pruneOne sends a member on to its next tier.
func (b *planBuilder) pruneOne(m *model, r *member, since time.Time) {
	idle := b.obs.Now.Sub(since).Round(time.Millisecond)
	in := inputs{"idle_for": idle.String(), "idle_warm": m.IdleWarm.String(), "idle_cold": m.IdleCold.String(), "replicas": strconv.Itoa(m.target.Replicas), "min": strconv.Itoa(m.Min)}
	if r.next.Tier() == state.Warm {
		b.record(KindPruned, m.Name, r.name, fmt.Sprintf("WARM without requests for %s: going COLD", idle), in)
		b.happens(r, state.EventStop, state.GoalCold, nil)
		return
	}
	to := state.GoalCold
	if b.canSleep(m, r) && !b.mustMove(r) {
		to = state.GoalWarm
	}
	b.record(KindIdle, m.Name, r.name, fmt.Sprintf("no requests for %s: going %s", idle, to.Tier()), in)
	// What is missing is not asked for either.
	serving, _ := b.servingCount(m)
	m.fewer(min(m.target.Replicas, serving)-1, r.Name.Variant, state.UntilAsked)
	if m.Displaced.UntilRoom != nil {
		m.rescale(func(next *state.Model) { next.Displaced = next.Displaced.AllUntilAsked() })
	}
	b.happens(r, state.EventDrain, to, nil)
}

// servingCount returns how many replicas of a model serve, and whether another one is coming up.
func (b *planBuilder) servingCount(m *model) (serving int, coming bool) {
	if m.serving == nil {
		m.serving = &servingCounts{}
		for _, r := range m.members {
			switch {
			case !r.counts():
			case b.serves(r):
				m.serving.serving++
			case r.next.Status != state.StatusFailed:
				m.serving.coming = true
			}
		}
	}
	return m.serving.serving, m.serving.coming
}

// servingCounts is the result of servingCount for a model.
type servingCounts struct {
	serving int
	coming  bool
}
