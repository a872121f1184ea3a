package planner

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"remuda/controller/placement"
	"remuda/controller/state"
)

// hasTraffic tells whether a model may have had a request of late: what is not known
// counts as one.
func (d *draft) hasTraffic(m *model) bool {
	if !d.obs.TrafficKnown || !d.due(d.obs.GatewaysSince.Add(d.conf.TrafficWindow)) {
		return true
	}
	return slices.ContainsFunc(m.members, func(r *member) bool {
		l := d.obs.Loads[r.name]
		return l.InFlight > 0 || !l.LastRequest.IsZero() && !d.due(l.LastRequest.Add(d.conf.TrafficWindow))
	})
}

// mayEvict tells of each tenant whether a model may evict it: idle, only where its model
// has no traffic. Those in spared are not to be touched. The rules that need no asker are
// in ways.
func (d *draft) mayEvict(by *model, idle bool, spared map[string]bool) func(*placement.Tenant) bool {
	room := map[string]bool{}
	return func(t *placement.Tenant) bool {
		r := d.byMember[t.Name]
		if r == nil || r.changed || spared[t.Name] {
			return false
		}
		m := d.byName[r.Name.Model]
		if r.next.Tier() == state.Warm {
			return m.Priority <= by.Priority && (m == by || !d.batch[m.Name])
		}
		ok, asked := room[m.Name]
		if !asked {
			ok = m != by && !d.batch[m.Name] && m.Priority <= by.Priority &&
				!d.evictedFor(by, m.Name) &&
				d.mayLose(m, by) > 0 && (!idle || !d.hasTraffic(m))
			room[m.Name] = ok
		}
		if !ok {
			return false
		}
		if r.next.Status == state.StatusFailed {
			return true
		}
		return !d.keptLately(r) && (by.dedicated || d.due(r.Since.Add(d.conf.MinAge)))
	}
}

// floor is the number of replicas below which the planner does not bring a model by
// itself.
func (m *model) floor() int {
	external := m.active.Total() - m.active.In("")
	return max(m.Min, m.limits.Dedicated, min(external, m.target.Replicas))
}

// mayLose is how many of its replicas a model may lose to another one: a higher priority
// takes all, an equal one leaves it its minimum, and one that serves where it has
// traffic.
func (d *draft) mayLose(m, to *model) int {
	if to.Priority > m.Priority {
		return len(m.members)
	}
	counting, serving := 0, 0
	for _, r := range m.members {
		if r.counts() {
			counting++
		}
		if r.counts() && d.serves(r) {
			serving++
		}
	}
	n := max(m.target.Replicas, counting) - m.floor()
	if d.hasTraffic(m) {
		n = min(n, max(serving-1, counting-serving))
	}
	return n
}

// maxSparing is how often findRoom looks again for a better place.
const maxSparing = 64

// findRoom looks for a place that has room once something is evicted, and what is under way is
// done. Where the cheapest
// evictions would take more from a model than it may lose, the dearest of them are
// spared, and it looks again. After maxSparing times no model has more left on any node
// than it may lose, so that there is an end however many replicas there are.
func (d *draft) findRoom(by *model, v *state.Variant, idle bool) (placement.Choice, *placement.Refusal) {
	spared := map[string]bool{}
	for tries := 0; ; tries++ {
		if tries == maxSparing {
			for _, m := range d.models {
				d.thin(m, d.mayLose(m, by), spared)
			}
		}
		c, no := d.find(by, v, ask{evict: d.mayEvict(by, idle, spared), future: true})
		if no != nil {
			return c, no
		}
		over := d.tooMany(by, c.Evict)
		if len(over) == 0 {
			return c, nil
		}
		for _, name := range over {
			spared[name] = true
		}
	}
}

// tooMany returns the dearest of the evictions of each model that would lose more by them than
// it may lose.
func (d *draft) tooMany(by *model, evicted []placement.Eviction) []string {
	lost := map[string][]placement.Eviction{}
	for _, e := range evicted {
		if r := d.byMember[e.Tenant]; r.next.Tier() == state.Hot {
			lost[r.Name.Model] = append(lost[r.Name.Model], e)
		}
	}
	var over []string
	for _, name := range slices.Sorted(maps.Keys(lost)) {
		m, es := d.byName[name], lost[name]
		if n := d.mayLose(m, by); len(es) > n || d.stopsServing(m, by, es) {
			slices.SortStableFunc(es, func(a, b placement.Eviction) int {
				return cmp.Or(cmp.Compare(a.Cost, b.Cost), strings.Compare(a.Tenant, b.Tenant))
			})
			over = append(over, es[len(es)-1].Tenant)
		}
	}
	return over
}

// thin spares all members of a model but the cheapest n on each node: the place of a
// replica is on one.
func (d *draft) thin(m *model, n int, spared map[string]bool) {
	type priced struct {
		r    *member
		cost float64
	}
	on := map[string][]priced{}
	for _, r := range m.members {
		if r.next.Tier() != state.Hot || !r.counts() || r.changed || spared[r.name] {
			continue
		}
		to := state.GoalCold
		if d.canSleep(m, r) {
			to = state.GoalWarm
		}
		on[r.Placement.Node] = append(on[r.Placement.Node], priced{r, d.evictionCost(m, r, to)})
	}
	for _, ps := range on {
		slices.SortFunc(ps, func(a, b priced) int { return cmp.Or(cmp.Compare(a.cost, b.cost), strings.Compare(a.r.name, b.r.name)) })
		for _, p := range ps[min(max(n, 0), len(ps)):] {
			spared[p.r.name] = true
		}
	}
}

// stopsServing tells whether a model that has traffic would be left without a replica
// that serves, by those evictions for a model of no higher priority.
func (d *draft) stopsServing(m, by *model, es []placement.Eviction) bool {
	if by.Priority > m.Priority || !d.hasTraffic(m) {
		return false
	}
	had, has := 0, 0
	for _, r := range m.members {
		if !r.counts() || !d.serves(r) {
			continue
		}
		had++
		if !slices.ContainsFunc(es, func(e placement.Eviction) bool { return e.Tenant == r.name }) {
			has++
		}
	}
	return had > 0 && has == 0
}

// makeRoom evicts what a choice needs to have gone, and keeps its place for the model.
func (d *draft) makeRoom(by *model, v *state.Variant, c placement.Choice) {
	d.batch[by.Name] = true
	for _, e := range c.Evict {
		r := d.byMember[e.Tenant]
		m := d.byName[r.Name.Model]
		d.tally.cost += e.Cost
		d.tally.busy += btoi(d.hasTraffic(m))
		d.decide(KindEvict, m.Name, r.name, fmt.Sprintf("evicted from %s to %s to make room for %s on node %s", r.next.Tier(), e.To.Tier(), by.Name, nodeName(r)), inputs{
			"for": by.Name, "variant": v.Name, "to": string(e.To), "cost": seconds(e.Cost), "idle_for": d.obs.Now.Sub(d.usedLast(r)).String(),
			"in_flight": strconv.Itoa(d.obs.Loads[r.name].InFlight), "priority": strconv.Itoa(m.Priority), "by_priority": strconv.Itoa(by.Priority),
		})
		if r.next.Tier() == state.Hot {
			d.noteEviction(m, by.Name)
			d.losers[m.Name] = true
			d.displace(m, r)
		}
		d.evict(r, e.To, by.Name)
	}
	d.waitFor(by, v, c)
}

// evict sends a member to a tier for a model.
func (d *draft) evict(r *member, to state.Goal, by string) {
	makesRoom := func(c *state.Move) { c.MakesRoomFor = &by }
	switch {
	case to == state.GoalWarm:
		d.happens(r, state.EventDrain, state.GoalWarm, makesRoom)
	case r.next.Status == state.StatusFailed:
		d.happens(r, state.EventStop, state.GoalGone, makesRoom) // its weights may not be on the disk
	default:
		d.sendTo(r, state.GoalCold, makesRoom)
	}
}

// waitFor keeps the place of a choice for a model until it is free, and says so.
func (d *draft) waitFor(m *model, v *state.Variant, c placement.Choice) {
	d.batch[m.Name] = true
	d.reserved++
	d.ledger().Reserve(c, fmt.Sprintf("place %d of %s", d.reserved, m.Name), m.Name)
	in := inputs{"variant": v.Name, "about": fmt.Sprintf("place %d", d.waiting[m.Name]), "node": c.Placement.Node, "level": c.Level.String(), "seconds": seconds(c.Seconds)}
	d.waiting[m.Name]++
	node := c.Placement.Node
	if n := d.byID[node]; n != nil {
		node = cmp.Or(n.Name, n.ID)
	}
	d.decideOnce(KindWaitsForRoom, m.Name, c.Wake, fmt.Sprintf("waiting for room on node %s, which leaving replicas will free", node), in)
}
