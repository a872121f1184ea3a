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

// scale brings each group of a model nearer to its number and its definitions.
func (b *planBuilder) scale(m *model) {
	b.takePlaces(m)
	if m.rolledBack {
		return // its replicas are those of another definition: the next plan begins with them
	}
	for _, g := range m.groups() {
		b.trials(g)
		if m.rolledBack {
			return
		}
		b.dropOutdated(g)
		b.replaceFailing(g)
		b.scaleDown(g)
		b.scaleUp(g)
		b.standIn(g)
		b.replace(g)
		b.retire(g)
		b.retry(g)
		b.finish(g)
	}
}

// allowance is how many members a group may have beyond its target: one for each that
// has to leave its node, and the model's surge for those that use GPUs out of use, are outdated,
// in a pool where they are not expected, or about to take another's place in a pool where they
// are. A surge of 0 is of rollouts only.
func (b *planBuilder) allowance(g *group) int {
	leaving := g.count((*member).leavesNode)
	others := g.count(func(r *member) bool {
		return !r.leavesNode() && (b.mustMove(r) || b.misplaced(g.model, r) || g.Surge() > 0 && g.outdated(r))
	})
	return leaving + min(g.spare(), others+b.arriving(g))
}

// spare is how many replicas the group may have beyond its target, for other reasons than a
// rollout.
func (g *group) spare() int { return max(g.Surge(), 1) }

// replaces reports whether another member is to take the place of this one: it must move,
// its definition is outdated, or it is in a pool where people expect fewer.
func (b *planBuilder) replaces(g *group, r *member) bool {
	return b.mustMove(r) || g.outdated(r) || b.misplaced(g.model, r)
}

// scaleDown ends the surplus members. A model whose management is disabled keeps its members,
// unless it is stopped. Members in external pools end first, the most expensive pool before the
// others, at the pace of takePoolDeparture: while one waits for that, no other ends in its place.
func (b *planBuilder) scaleDown(g *group) {
	if g.keeps() {
		return
	}
	b.keepReturned(g)
	most := g.target + b.allowance(g) + b.beside(g)
	if g.target == 0 {
		most = b.beside(g)
		for _, variant := range slices.Sorted(maps.Keys(g.canaries)) {
			b.endSurplus(g, g.canaries[variant])
		}
	}
	excess := len(g.members) - most
	if excess <= 0 {
		return
	}
	candidates, loads := b.leastWanted(g, g.members), b.beside(g)
	// What loads to be kept WARM does not end in the place of what serves and is too much.
	for i, r := range slices.Backward(candidates) {
		if loads > 0 && !b.serves(r) && r.next.Status != state.StatusFailed {
			candidates = slices.Delete(candidates, i, i+1)
			loads--
		}
	}
	candidates = slices.DeleteFunc(candidates, func(r *member) bool { return !b.mayLeave(g.model, r) })
	serving := g.count(b.serves)
	for _, r := range candidates[:min(excess, len(candidates))] {
		if b.serves(r) {
			if serving <= g.target {
				break // what does not serve may not leave its pool, and this one stays for it
			}
			if !b.leavesRedundant(g, r) {
				continue
			}
			serving--
		}
		b.endSurplus(g, r)
	}
	g.staying()
}

// endSurplus ends one surplus member, or leaves that to the next plan if this plan changes the member
// already. The member goes WARM if its model keeps WARM replicas, or if it served while its model
// was in the dedicated set.
func (b *planBuilder) endSurplus(g *group, r *member) {
	if r.changed || b.full() || !g.Stopped && !b.takePoolDeparture(r) {
		return
	}
	load := b.obs.Loads[r.name]
	kind, where := KindScaleDown, ""
	if pool := b.poolOf(r); pool != "" {
		kind, where = KindLeavePool, " in pool "+pool
	}
	warm, what := b.keepsWarm(g, r), "removing this one"
	if warm {
		what = "this one goes WARM"
	}
	b.record(kind, g.Name, r.name, fmt.Sprintf("target is %d and there are %d replicas: %s, %s with %d requests in flight%s", g.target, len(g.members), what, r.next.Status, load.InFlight, where),
		inputs{"target": strconv.Itoa(g.target), "replicas": strconv.Itoa(len(g.members)), "in_flight": strconv.Itoa(load.InFlight), "cost": strconv.FormatFloat(g.cost(r), 'g', -1, 64), "status": string(r.next.Status), "pool": b.poolOf(r)})
	if warm {
		b.happens(r, state.EventDrain, state.GoalWarm, nil)
		return
	}
	b.end(r)
}

// keepsWarm reports whether a surplus member goes WARM.
func (b *planBuilder) keepsWarm(g *group, r *member) bool {
	if g.Stopped || !b.serves(r) || g.outdated(r) || b.mustMove(r) || !b.canSleep(g.model, r) || b.keptLately(r) {
		return false
	}
	return g.resting() < g.KeepWarm || b.released(g.model, r)
}

// scaleUp wakes or places the missing members.
func (b *planBuilder) scaleUp(g *group) {
	missing := b.refill(g, b.placeExpected(g, g.target-len(g.members)))
	for ; missing > 0 && !b.full(); missing-- {
		s, ok := b.acquireReplica(g)
		b.tally.add(g, s, ok, missing)
		if !ok {
			b.recordUnplaceable(KindCannotPlace, g, g.variants[0].Name, "missing", fmt.Sprintf("%d of %d replicas are missing", missing, g.target), s.refused)
			return
		}
		if s.replica != nil {
			g.members = append(g.members, s.replica)
		}
	}
}

// maxUnplaceable is the maximum length of the reason that gateways get, in bytes.
const maxUnplaceable = 500

// clip shortens a text for people to at most n bytes.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n-len("…")], "") + "…"
}

// maxNodes bounds the nodes of which a decision has the reason why nothing fits there.
const maxNodes = 50

// recordUnplaceable records why something is not placed: once for each summary, and again after
// repeatAfter if the refusals have changed. The kind, the variant and about distinguish it from
// other things that wait at the same time.
func (b *planBuilder) recordUnplaceable(kind string, g *group, variant, about, summary string, refused []*placement.Refusal) {
	in := inputs{"variant": variant, "about": about}
	reason := summary
	for _, no := range refused {
		reason += "; " + no.Error()
		for i, node := range slices.Sorted(maps.Keys(no.Nodes())) {
			if i == maxNodes {
				in["nodes left out"] = strconv.Itoa(len(no.Nodes()) - maxNodes)
				break
			}
			why := no.Nodes()[node]
			if had := in["node "+node]; had != "" && had != why {
				why = had + "; " + why
			}
			in["node "+node] = why
		}
	}
	news := b.recordIfNew(kind, g.Name, "", reason, summary, in)
	if kind != KindCannotPlace {
		return
	}
	if g.unplaceable = clip(reason, maxUnplaceable); g.Unplaceable != nil && !news {
		g.unplaceable = g.Unplaceable.Reason // other details are not worth a change of the state
	}
}

// replace places members beside those that have to go, before they go: see replaces. What
// fits nowhere else stays. All members that leave their nodes are replaced at once, since a
// node's drain has a deadline; of the others, the model's surge at a time. An outdated one
// without room for another one beside it makes way for its successor, as far as the model lets it.
func (b *planBuilder) replace(g *group) {
	old := b.leastWanted(g, slices.DeleteFunc(slices.Clone(g.members), func(r *member) bool { return !b.replaces(g, r) }))
	slices.SortStableFunc(old, func(a, b *member) int { return cmp.Compare(btoi(!a.leavesNode()), btoi(!b.leavesNode())) })
	extra := max(len(g.members)-g.target, 0)
	type class struct {
		variant, pool                 string
		mustMove, misplaced, expected bool
	}
	refusing := map[class][]*placement.Refusal{}
	// stuck are the outdated members without room for another one beside them, by class; classes has
	// their order.
	stuck := map[class][]*member{}
	var classes []class
	stays := func(of class, r *member) {
		if g.outdated(r) {
			if len(stuck[of]) == 0 {
				classes = append(classes, of)
			}
			stuck[of] = append(stuck[of], r)
		}
	}
	surge := 0 // of those that do not leave their nodes
	for i, r := range old {
		if b.full() || !r.leavesNode() && surge >= g.spare() {
			break
		}
		of := class{r.Name.Variant, b.poolOf(r), b.mustMove(r), !g.outdated(r) && b.misplaced(g.model, r), b.expected(g.model, r)}
		if _, refuses := refusing[of]; refuses || g.Surge() == 0 && !of.mustMove && !of.misplaced {
			stays(of, r)
			continue
		}
		if i < extra { // its replacement is on its way
			surge += btoi(!r.leavesNode())
			continue
		}
		if of.mustMove && !r.leavesNode() && !b.open(of.pool) {
			continue // its pool is out of reach
		}
		variants := g.definitions()
		if g.Variant(r.Name.Variant) != nil {
			own := g.definition(r.Name.Variant)
			variants = append([]*state.Variant{own}, slices.DeleteFunc(variants, func(v *state.Variant) bool { return !of.mustMove && !of.misplaced || v.Name == own.Name })...)
		}
		pools := b.openPools(g.model)
		if of.misplaced {
			pools = slices.DeleteFunc(pools, func(p string) bool { return p == of.pool })
		}
		if of.expected && b.open(of.pool) {
			pools = []string{of.pool} // it is placed there and nowhere else
		}
		if len(pools) == 0 {
			continue // they are out of reach
		}
		fresh, refused := b.placeFirst(g.model, variants, pools, nil, nil)
		if fresh != nil {
			g.members = append(g.members, fresh)
			surge += btoi(!r.leavesNode())
			if of.mustMove {
				b.record(KindMoveAway, g.Name, r.name, fmt.Sprintf("%s: %s takes over", b.whyMove(r), fresh.name), inputs{"by": fresh.name, "node": nodeName(r)})
			}
			continue
		}
		refusing[of] = refused
		switch {
		case of.mustMove:
			kind, about := KindGPUOutOfUse, r.name
			if r.leavesNode() {
				kind, about = KindNodeDraining, nodeName(r)
			}
			if of.expected {
				about += ", in pool " + of.pool
			}
			b.recordUnplaceable(kind, g, r.Name.Variant, about, b.whyMove(r)+": its replicas fit nowhere else and stay", refused)
		case of.misplaced:
			b.recordUnplaceable(KindLeavePool, g, r.Name.Variant, of.pool, fmt.Sprintf("fewer replicas are expected in pool %s, but there is no room for them elsewhere: scale the model down to remove them", of.pool), refused)
		}
		stays(of, r)
	}
	for _, of := range classes {
		about := "next"
		if of.pool != "" {
			about += " in pool " + of.pool
		}
		if of.mustMove {
			about += ", which must move"
		}
		b.replaceInPlace(g, stuck[of], about, refusing[of])
	}
}

// retire ends members that are to be replaced, as far as others serve in their place.
func (b *planBuilder) retire(g *group) {
	if len(g.members) <= g.target {
		return
	}
	serving := g.count(b.serves)
	for _, r := range b.leastWanted(g, g.members) {
		if r.changed || b.full() || len(g.members) <= g.target || !b.replaces(g, r) {
			continue
		}
		switch {
		case b.serves(r) && serving > g.target:
			if !r.leavesNode() && !b.leavesRedundant(g, r) {
				continue
			}
			serving--
		case !b.serves(r) && (serving >= g.target || !r.serving() && !r.allocRuns()):
		default:
			continue
		}
		kind, reason := KindRolling, "replaced by replicas of the new definition"
		if why := b.whyMove(r); why != "" {
			kind, reason = KindMoveAway, why+": replaced by another replica"
		} else if !g.outdated(r) {
			if !b.takePoolDeparture(r) {
				continue
			}
			kind, reason = KindLeavePool, fmt.Sprintf("fewer replicas are expected in pool %s: replaced by another replica", b.poolOf(r))
		}
		b.record(kind, g.Name, r.name, reason, inputs{"serving": strconv.Itoa(serving), "target": strconv.Itoa(g.target), "version": strconv.Itoa(r.Version)})
		b.end(r)
		g.staying()
	}
}

// retry starts failed members again: on another node if possible, else where they are.
func (b *planBuilder) retry(g *group) {
	for _, r := range g.members {
		if r.next.Status != state.StatusFailed || r.changed || b.full() || b.mustMove(r) || !b.due(r.RetryAt) || !b.jobOver(r) {
			continue
		}
		v := g.definition(r.Name.Variant)
		carry := func(p *state.Place) {
			p.Failures, p.LastError, p.NotPlaced, p.RetryAt = r.Failures, r.LastError, r.NotPlaced, r.RetryAt
		}
		in := inputs{"failures": strconv.Itoa(r.Failures)}
		pools := b.openPools(g.model)
		if b.expected(g.model, r) {
			pools = slices.DeleteFunc([]string{b.poolOf(r)}, func(p string) bool { return !b.open(p) })
		}
		if len(pools) == 0 {
			continue // they are out of reach
		}
		fresh, _ := b.placeFirst(g.model, []*state.Variant{v}, pools, map[string]bool{r.Placement.Node: true}, carry)
		if fresh == nil && usable(r) {
			b.record(KindRetry, g.Name, r.name, fmt.Sprintf("retrying on node %s: no room elsewhere", nodeName(r)), in)
			b.happens(r, state.EventRetry, "", func(c *state.Move) {
				if r.job != nil {
					c.JobIndex = &r.job.Index // that one is over; see jobOver
				}
			})
			continue
		}
		var refused []*placement.Refusal
		if fresh == nil {
			fresh, refused = b.placeFirst(g.model, []*state.Variant{v}, pools, nil, carry)
		}
		if fresh == nil {
			b.recordUnplaceable(KindCannotPlace, g, v.Name, r.name, "replica "+r.Name.ID+" has failed and cannot be retried", refused)
			continue
		}
		b.record(KindRetry, g.Name, r.name, fmt.Sprintf("replaced by %s", fresh.name), in)
		b.happens(r, state.EventStop, state.GoalGone, nil)
	}
}

// usable reports whether a member can be started again where it is.
func usable(r *member) bool {
	if r.node == nil || r.node.Usable() != "" || r.OutOfUse(r.node) != "" {
		return false
	}
	for _, s := range r.Placement.Seats {
		if !slices.ContainsFunc(r.node.GPUs, func(g state.GPU) bool { return slices.Contains(g.Seats, s) }) {
			return false
		}
	}
	return true
}
