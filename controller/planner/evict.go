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

// hasTraffic reports whether a model may have had a request of late: what is not known
// counts as one.
func (b *planBuilder) hasTraffic(m *model) bool {
	if !b.obs.TrafficKnown || !b.due(b.obs.GatewaysSince.Add(b.conf.TrafficWindow)) {
		return true
	}
	return slices.ContainsFunc(m.members, func(r *member) bool {
		l := b.obs.Loads[r.name]
		return l.InFlight > 0 || !l.LastRequest.IsZero() && !b.due(l.LastRequest.Add(b.conf.TrafficWindow))
	})
}

// mayEvict tells of each tenant whether a model may evict it: idle, only where its model
// has no traffic. Those in protected are not evicted. The rules that need no asker are
// in ways.
func (b *planBuilder) mayEvict(by *model, idle bool, protected map[string]bool) func(*placement.Tenant) bool {
	room := map[string]bool{}
	return func(t *placement.Tenant) bool {
		r := b.byMember[t.Name]
		if r == nil || r.changed || protected[t.Name] {
			return false
		}
		m := b.byName[r.Name.Model]
		if r.next.Tier() == state.Warm {
			return m.Priority <= by.Priority && (m == by || !b.placing[m.Name])
		}
		ok, asked := room[m.Name]
		if !asked {
			ok = m != by && !b.placing[m.Name] && m.Priority <= by.Priority &&
				!b.evictedFor(by, m.Name) &&
				b.mayLose(m, by) > 0 && (!idle || !b.hasTraffic(m))
			room[m.Name] = ok
		}
		if !ok {
			return false
		}
		if r.next.Status == state.StatusFailed {
			return true
		}
		return !b.keptLately(r) && (by.dedicated || b.due(r.Since.Add(b.conf.MinAge)))
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
func (b *planBuilder) mayLose(m, to *model) int {
	if to.Priority > m.Priority {
		return len(m.members)
	}
	counted, serving := 0, 0
	for _, r := range m.members {
		if r.counts() {
			counted++
		}
		if r.counts() && b.serves(r) {
			serving++
		}
	}
	n := max(m.target.Replicas, counted) - m.floor()
	if b.hasTraffic(m) {
		n = min(n, max(serving-1, counted-serving))
	}
	return n
}

// maxRoomSearches is how often findRoom searches before it limits the victims of every model.
const maxRoomSearches = 64

// findRoom searches a place that has room once some replicas are evicted and the changes under way
// are done. If the cheapest evictions would take more from a model than it may lose, the most
// expensive of them are protected, and the search is repeated. After maxRoomSearches the victims of
// each model are limited on each node to what the model may lose, so that the search ends however
// many replicas there are.
func (b *planBuilder) findRoom(by *model, v *state.Variant, idle bool) (placement.Choice, *placement.Refusal) {
	protected := map[string]bool{}
	for tries := 0; ; tries++ {
		if tries == maxRoomSearches {
			for _, m := range b.models {
				b.limitVictims(m, b.mayLose(m, by), protected)
			}
		}
		c, no := b.find(by, v, ask{evict: b.mayEvict(by, idle, protected), future: true})
		if no != nil {
			return c, no
		}
		over := b.tooMany(by, c.Evict)
		if len(over) == 0 {
			return c, nil
		}
		for _, name := range over {
			protected[name] = true
		}
	}
}

// tooMany returns the dearest of the evictions of each model that would lose more by them than
// it may lose.
func (b *planBuilder) tooMany(by *model, evicted []placement.Eviction) []string {
	lost := map[string][]placement.Eviction{}
	for _, e := range evicted {
		if r := b.byMember[e.Tenant]; r.next.Tier() == state.Hot {
			lost[r.Name.Model] = append(lost[r.Name.Model], e)
		}
	}
	var over []string
	for _, name := range slices.Sorted(maps.Keys(lost)) {
		m, es := b.byName[name], lost[name]
		if n := b.mayLose(m, by); len(es) > n || b.stopsServing(m, by, es) {
			slices.SortStableFunc(es, func(a, b placement.Eviction) int {
				return cmp.Or(cmp.Compare(a.Cost, b.Cost), strings.Compare(a.Tenant, b.Tenant))
			})
			over = append(over, es[len(es)-1].Tenant)
		}
	}
	return over
}

// limitVictims protects all members of a model but the cheapest n on each node. A place is on a
// single node, so no place takes more than n of them.
func (b *planBuilder) limitVictims(m *model, n int, protected map[string]bool) {
	type priced struct {
		r    *member
		cost float64
	}
	on := map[string][]priced{}
	for _, r := range m.members {
		if r.next.Tier() != state.Hot || !r.counts() || r.changed || protected[r.name] {
			continue
		}
		to := state.GoalCold
		if b.canSleep(m, r) {
			to = state.GoalWarm
		}
		on[r.Placement.Node] = append(on[r.Placement.Node], priced{r, b.evictionCost(m, r, to)})
	}
	for _, ps := range on {
		slices.SortFunc(ps, func(a, b priced) int { return cmp.Or(cmp.Compare(a.cost, b.cost), strings.Compare(a.r.name, b.r.name)) })
		for _, p := range ps[min(max(n, 0), len(ps)):] {
			protected[p.r.name] = true
		}
	}
}

// stopsServing reports whether a model that has traffic would be left without a replica
// that serves, by those evictions for a model of no higher priority.
func (b *planBuilder) stopsServing(m, by *model, es []placement.Eviction) bool {
	if by.Priority > m.Priority || !b.hasTraffic(m) {
		return false
	}
	had, has := 0, 0
	for _, r := range m.members {
		if !r.counts() || !b.serves(r) {
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
func (b *planBuilder) makeRoom(by *model, v *state.Variant, c placement.Choice) {
	b.placing[by.Name] = true
	for _, e := range c.Evict {
		r := b.byMember[e.Tenant]
		m := b.byName[r.Name.Model]
		b.tally.cost += e.Cost
		b.tally.busy += btoi(b.hasTraffic(m))
		b.record(KindEvict, m.Name, r.name, fmt.Sprintf("evicted from %s to %s to make room for %s on node %s", r.next.Tier(), e.To.Tier(), by.Name, nodeName(r)), inputs{
			"for": by.Name, "variant": v.Name, "to": string(e.To), "cost": seconds(e.Cost), "idle_for": b.obs.Now.Sub(b.usedLast(r)).String(),
			"in_flight": strconv.Itoa(b.obs.Loads[r.name].InFlight), "priority": strconv.Itoa(m.Priority), "by_priority": strconv.Itoa(by.Priority),
		})
		if r.next.Tier() == state.Hot {
			b.noteEviction(m, by.Name)
			b.evictedFrom[m.Name] = true
			b.displace(m, r)
		}
		b.evict(r, e.To, by.Name)
	}
	b.reservePlace(by, v, c)
}

// evict sends a member to a tier for a model.
func (b *planBuilder) evict(r *member, to state.Goal, by string) {
	makesRoom := func(c *state.Move) { c.MakesRoomFor = &by }
	switch {
	case to == state.GoalWarm:
		b.happens(r, state.EventDrain, state.GoalWarm, makesRoom)
	case r.next.Status == state.StatusFailed:
		b.happens(r, state.EventStop, state.GoalGone, makesRoom) // its weights may not be on the disk
	default:
		b.endAs(r, state.GoalCold, makesRoom)
	}
}

// reservePlace reserves the place of a choice for a model until it is free, and records that.
func (b *planBuilder) reservePlace(m *model, v *state.Variant, c placement.Choice) {
	b.placing[m.Name] = true
	b.reserved++
	b.ledger().Reserve(c, fmt.Sprintf("place %d of %s", b.reserved, m.Name), m.Name)
	in := inputs{"variant": v.Name, "about": fmt.Sprintf("place %d", b.waiting[m.Name]), "node": c.Placement.Node, "level": c.Level.String(), "seconds": seconds(c.Seconds)}
	b.waiting[m.Name]++
	node := c.Placement.Node
	if n := b.byID[node]; n != nil {
		node = cmp.Or(n.Name, n.ID)
	}
	b.recordOnce(KindWaitsForRoom, m.Name, c.Wake, fmt.Sprintf("waiting for room on node %s, which leaving replicas will free", node), in)
}
