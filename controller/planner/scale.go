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
func (d *draft) scale(m *model) {
	d.takePlaces(m)
	if m.rolledBack {
		return // its replicas are those of another definition: the next plan begins with them
	}
	for _, g := range m.groups() {
		d.trials(g)
		if m.rolledBack {
			return
		}
		d.dropOutdated(g)
		d.replaceFailing(g)
		d.scaleDown(g)
		d.scaleUp(g)
		d.replace(g)
		d.retire(g)
		d.retry(g)
		d.finish(g)
	}
}

// allowance is how many members a group may have beyond its target: one for each that
// has to leave its node, and the model's surge for those that use GPUs out of use, are outdated,
// in a pool where they are not expected, or about to take another's place in a pool where they
// are. A surge of 0 is of rollouts only.
func (d *draft) allowance(g *group) int {
	leaving := g.count((*member).leavesNode)
	others := g.count(func(r *member) bool {
		return !r.leavesNode() && (d.displaced(r) || d.misplaced(g.model, r) || g.Surge() > 0 && g.outdated(r))
	})
	return leaving + min(g.spare(), others+d.arriving(g))
}

// spare is how many replicas the group may have beyond its target, for other reasons than a
// rollout.
func (g *group) spare() int { return max(g.Surge(), 1) }

// replaces reports whether another member is to take the place of this one: it is displaced,
// its definition is outdated, or it is in a pool where people expect fewer.
func (d *draft) replaces(g *group, r *member) bool {
	return d.displaced(r) || g.outdated(r) || d.misplaced(g.model, r)
}

// scaleDown sends away what is too much. A model whose management is disabled keeps
// what runs, unless it is stopped. External pools are left first, the dearest of them
// before the others, but slowly: what waits for that is not taken from elsewhere.
func (d *draft) scaleDown(g *group) {
	if g.keeps() {
		return
	}
	most := g.target + d.allowance(g)
	if g.target == 0 {
		most = 0
		for _, variant := range slices.Sorted(maps.Keys(g.canaries)) {
			d.sendAway(g, g.canaries[variant])
		}
	}
	excess := len(g.members) - most
	if excess <= 0 {
		return
	}
	going := slices.DeleteFunc(d.leastWanted(g, g.members), func(r *member) bool { return !d.mayLeave(g.model, r) })
	serving := g.count(d.serves)
	for _, r := range going[:min(excess, len(going))] {
		if d.serves(r) {
			if serving <= g.target {
				break // what does not serve may not leave its pool, and this one stays for it
			}
			serving--
		}
		d.sendAway(g, r)
	}
	g.staying()
}

// sendAway dismisses one member that is too much, in the next plan where this one
// changes it already. It goes WARM where its model keeps some so, or where it served
// while its model was in the dedicated set.
func (d *draft) sendAway(g *group, r *member) {
	if r.changed || d.full() || !g.Stopped && !d.leaveNow(r) {
		return
	}
	load := d.obs.Loads[r.name]
	kind, where := KindScaleDown, ""
	if pool := d.poolOf(r); pool != "" {
		kind, where = KindLeavePool, " in pool "+pool
	}
	warm := d.keepsWarm(g, r)
	if warm {
		where += ": going WARM"
	}
	d.decide(kind, g.Name, r.name, fmt.Sprintf("target is %d and there are %d replicas: removing this one, %s with %d requests in flight%s", g.target, len(g.members), r.next.Status, load.InFlight, where),
		inputs{"target": strconv.Itoa(g.target), "replicas": strconv.Itoa(len(g.members)), "in_flight": strconv.Itoa(load.InFlight), "cost": strconv.FormatFloat(g.cost(r), 'g', -1, 64), "status": string(r.next.Status), "pool": d.poolOf(r)})
	if warm {
		d.happens(r, state.EventDrain, state.GoalWarm, nil)
		return
	}
	d.dismiss(r)
}

// keepsWarm tells whether a member that is too much goes WARM.
func (d *draft) keepsWarm(g *group, r *member) bool {
	if g.Stopped || !d.serves(r) || g.outdated(r) || d.displaced(r) || !d.canSleep(g.model, r) || d.keptLately(r) {
		return false
	}
	resting := 0
	for _, o := range g.model.members {
		if o.resting() {
			resting++
		}
	}
	return resting < g.KeepWarm || d.released(g.model, r)
}

// scaleUp wakes or places what is missing.
func (d *draft) scaleUp(g *group) {
	missing := d.refill(g, d.placeExpected(g, g.target-len(g.members)))
	for ; missing > 0 && !d.full(); missing-- {
		s, ok := d.obtain(g)
		d.tally.add(g, s, ok, missing)
		if !ok {
			d.cannot(KindCannotPlace, g, g.variants[0].Name, "missing", fmt.Sprintf("%d of %d replicas are missing", missing, g.target), s.refused)
			return
		}
		if s.replica != nil {
			g.members = append(g.members, s.replica)
		}
	}
}

// maxUnplaceable is how long the reason that gateways get is at most, in bytes.
const maxUnplaceable = 500

// clip shortens a text for people to at most n bytes.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n-len("…")], "") + "…"
}

// maxNodes is of how many nodes a decision says why nothing fits there.
const maxNodes = 50

// cannot says once why something is not placed, and again after a while where there are
// other reasons. The kind, the variant and what it is
// about tell it from other things that wait at the same time.
func (d *draft) cannot(kind string, g *group, variant, about, what string, refused []*placement.Refusal) {
	in := inputs{"variant": variant, "about": about}
	reason := what
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
	news := d.tell(kind, g.Name, "", reason, what, in)
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
func (d *draft) replace(g *group) {
	old := d.leastWanted(g, slices.DeleteFunc(slices.Clone(g.members), func(r *member) bool { return !d.replaces(g, r) }))
	slices.SortStableFunc(old, func(a, b *member) int { return cmp.Compare(btoi(!a.leavesNode()), btoi(!b.leavesNode())) })
	extra := max(len(g.members)-g.target, 0)
	type class struct {
		variant, pool                  string
		displaced, misplaced, expected bool
	}
	refusing := map[class]bool{}
	surge := 0 // of those that do not leave their nodes
	for i, r := range old {
		if d.full() || !r.leavesNode() && surge >= g.spare() {
			return
		}
		of := class{r.Name.Variant, d.poolOf(r), d.displaced(r), !g.outdated(r) && d.misplaced(g.model, r), d.expected(g.model, r)}
		if g.Surge() == 0 && !of.displaced && !of.misplaced {
			d.replaceInPlace(g, r, nil)
			continue
		}
		if !r.leavesNode() && (i < extra || !of.displaced) {
			surge++
		}
		if i < extra || refusing[of] || of.displaced && !r.leavesNode() && !d.open(of.pool) {
			continue // its replacement is on its way, or would not fit, or its pool is out of reach
		}
		variants := g.definitions()
		if g.Variant(r.Name.Variant) != nil {
			own := g.definition(r.Name.Variant)
			variants = append([]*state.Variant{own}, slices.DeleteFunc(variants, func(v *state.Variant) bool { return !of.displaced && !of.misplaced || v.Name == own.Name })...)
		}
		pools := d.openPools(g.model)
		if of.misplaced {
			pools = slices.DeleteFunc(pools, func(p string) bool { return p == of.pool })
		}
		if of.expected && d.open(of.pool) {
			pools = []string{of.pool} // it is placed there and nowhere else
		}
		if len(pools) == 0 {
			continue // they are out of reach
		}
		fresh, refused := d.placeFirst(g.model, variants, pools, nil, nil)
		if fresh != nil {
			g.members = append(g.members, fresh)
			if of.displaced {
				surge += btoi(!r.leavesNode())
				d.decide(KindMoveAway, g.Name, r.name, fmt.Sprintf("%s: %s takes over", d.displacedBy(r), fresh.name), inputs{"by": fresh.name, "node": nodeName(r)})
			}
			continue
		}
		refusing[of] = true
		if of.misplaced && !of.displaced {
			d.cannot(KindLeavePool, g, r.Name.Variant, of.pool, fmt.Sprintf("fewer replicas are expected in pool %s, but there is no room for them elsewhere: scale the model down to remove them", of.pool), refused)
			continue
		}
		if of.displaced {
			kind, about := KindGPUOutOfUse, r.name
			if r.leavesNode() {
				kind, about = KindNodeDraining, nodeName(r)
			}
			if of.expected {
				about += ", in pool " + of.pool
			}
			d.cannot(kind, g, r.Name.Variant, about, d.displacedBy(r)+": its replicas fit nowhere else and stay", refused)
			continue
		}
		d.replaceInPlace(g, r, refused)
	}
}

// retire sends away members that have to go, as far as others serve in their place.
func (d *draft) retire(g *group) {
	if len(g.members) <= g.target {
		return
	}
	serving := g.count(d.serves)
	for _, r := range d.leastWanted(g, g.members) {
		if r.changed || d.full() || len(g.members) <= g.target || !d.replaces(g, r) {
			continue
		}
		switch {
		case d.serves(r) && serving > g.target:
			serving--
		case !d.serves(r) && (serving >= g.target || !r.serving() && !r.allocRuns()):
		default:
			continue
		}
		kind, reason := KindRolling, "replaced by replicas of the new definition"
		if why := d.displacedBy(r); why != "" {
			kind, reason = KindMoveAway, why+": replaced by another replica"
		} else if !g.outdated(r) {
			if !d.leaveNow(r) {
				continue
			}
			kind, reason = KindLeavePool, fmt.Sprintf("fewer replicas are expected in pool %s: replaced by another replica", d.poolOf(r))
		}
		d.decide(kind, g.Name, r.name, reason, inputs{"serving": strconv.Itoa(serving), "target": strconv.Itoa(g.target), "version": strconv.Itoa(r.Version)})
		d.dismiss(r)
		g.staying()
	}
}

// retry tries members that have failed once more: elsewhere where that is possible,
// and else where they are.
func (d *draft) retry(g *group) {
	for _, r := range g.members {
		if r.next.Status != state.StatusFailed || r.changed || d.full() || d.displaced(r) || !d.due(r.RetryAt) || !d.jobOver(r) {
			continue
		}
		v := g.definition(r.Name.Variant)
		carry := func(p *state.Place) {
			p.Failures, p.LastError, p.NotPlaced, p.RetryAt = r.Failures, r.LastError, r.NotPlaced, r.RetryAt
		}
		in := inputs{"failures": strconv.Itoa(r.Failures)}
		pools := d.openPools(g.model)
		if d.expected(g.model, r) {
			pools = slices.DeleteFunc([]string{d.poolOf(r)}, func(p string) bool { return !d.open(p) })
		}
		if len(pools) == 0 {
			continue // they are out of reach
		}
		fresh, _ := d.placeFirst(g.model, []*state.Variant{v}, pools, map[string]bool{r.Placement.Node: true}, carry)
		if fresh == nil && usable(r) {
			d.decide(KindRetry, g.Name, r.name, fmt.Sprintf("retrying on node %s: no room elsewhere", nodeName(r)), in)
			d.happens(r, state.EventRetry, "", func(c *state.Move) {
				if r.job != nil {
					c.JobIndex = &r.job.Index // that one is over; see jobOver
				}
			})
			continue
		}
		var refused []*placement.Refusal
		if fresh == nil {
			fresh, refused = d.placeFirst(g.model, []*state.Variant{v}, pools, nil, carry)
		}
		if fresh == nil {
			d.cannot(KindCannotPlace, g, v.Name, r.name, "replica "+r.Name.ID+" has failed and cannot be retried", refused)
			continue
		}
		d.decide(KindRetry, g.Name, r.name, fmt.Sprintf("replaced by %s", fresh.name), in)
		d.happens(r, state.EventStop, state.GoalGone, nil)
	}
}

// usable tells whether a member could be started again where it is.
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
