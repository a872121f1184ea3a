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
func (d *draft) prune() {
	if !d.obs.TrafficKnown {
		return
	}
	var again time.Time // zero: at once
	if at := d.pace.Pruned; !at.IsZero() {
		again = at.Add(d.conf.PruneInterval)
	}
	type idler struct {
		m     *model
		r     *member
		since time.Time
	}
	var idlers []idler
	for m := range d.moving(pruning) {
		if m.frozen || m.dedicated || m.Stopped {
			continue
		}
		for _, r := range m.members {
			after := d.prunes(m, r)
			if after <= 0 {
				continue
			}
			since := d.usedLast(r)
			at := since.Add(after)
			for _, other := range []time.Time{again, r.Since.Add(d.conf.TierGrace)} {
				if other.After(at) {
					at = other
				}
			}
			if d.due(at) {
				d.stir()
				idlers = append(idlers, idler{m, r, since})
			}
		}
	}
	slices.SortStableFunc(idlers, func(a, b idler) int { return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.r.name, b.r.name)) })
	pruned := 0
	for _, i := range idlers {
		switch {
		case d.full():
		case pruned >= d.conf.PruneMax:
			d.look(d.obs.Now.Add(d.conf.PruneInterval))
		case d.prunes(i.m, i.r) <= 0 || d.obs.Now.Sub(i.since) < d.prunes(i.m, i.r) || !d.leaveNow(i.r):
			// Others of its model went before it.
		default:
			pruned++
			d.pruneOne(i.m, i.r, i.since)
		}
	}
	if pruned > 0 {
		d.setPace(func(p *state.Pace) { p.Pruned = d.obs.Now })
	}
}

// prunes returns how long a member must be idle before it is pruned, 0: it is not.
func (d *draft) prunes(m *model, r *member) time.Duration {
	pool := d.poolOf(r)
	if r.changed || r.leavesNode() || !d.open(pool) || pool != "" && d.pools[pool].Management != state.ManagementFull {
		return 0 // where Nomad is out of reach nothing could be put to sleep, or come back
	}
	if r.next.Status == state.StatusWarm {
		return m.IdleCold
	}
	if !r.counts() || !d.serves(r) || m.Rollouts[r.Name.Variant].Ongoing() || m.target.Replicas <= m.floor() || d.obs.Loads[r.name].InFlight > 0 || d.expected(m, r) || d.keptLately(r) {
		return 0
	}
	serving, coming := d.up(m)
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
func (d *draft) pruneOne(m *model, r *member, since time.Time) {
	idle := d.obs.Now.Sub(since).Round(time.Millisecond)
	in := inputs{"idle_for": idle.String(), "idle_warm": m.IdleWarm.String(), "idle_cold": m.IdleCold.String(), "replicas": strconv.Itoa(m.target.Replicas), "min": strconv.Itoa(m.Min)}
	if r.next.Tier() == state.Warm {
		d.decide(KindPruned, m.Name, r.name, fmt.Sprintf("WARM without requests for %s: going COLD", idle), in)
		d.happens(r, state.EventStop, state.GoalCold, nil)
		return
	}
	to := state.GoalCold
	if d.canSleep(m, r) && !d.displaced(r) {
		to = state.GoalWarm
	}
	d.decide(KindIdle, m.Name, r.name, fmt.Sprintf("no requests for %s: going %s", idle, to.Tier()), in)
	// What is missing is not asked for either.
	serving, _ := d.up(m)
	m.fewer(min(m.target.Replicas, serving)-1, r.Name.Variant, state.UntilAsked)
	if m.Displaced.UntilRoom != nil {
		m.rescale(func(next *state.Model) { next.Displaced = next.Displaced.Asleep() })
	}
	d.happens(r, state.EventDrain, to, nil)
}

// up returns how many replicas of a model serve, and whether another one is about to.
func (d *draft) up(m *model) (serving int, coming bool) {
	if m.standing == nil {
		m.standing = &standing{}
		for _, r := range m.members {
			switch {
			case !r.counts():
			case d.serves(r):
				m.standing.serving++
			case r.next.Status != state.StatusFailed:
				m.standing.coming = true
			}
		}
	}
	return m.standing.serving, m.standing.coming
}

// standing is how many replicas of a model serve, and whether another one is about to.
type standing struct {
	serving int
	coming  bool
}
