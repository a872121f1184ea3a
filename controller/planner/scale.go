package planner

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"remuda/controller/placement"
	"remuda/controller/state"
)

// scale brings each group of a model nearer to its number and its definitions.
func (d *draft) scale(m *model) {
	for _, g := range m.groups() {
		d.trials(g)
		d.dropOutdated(g)
		d.scaleDown(g)
		d.scaleUp(g)
		d.replace(g)
		d.retire(g)
		d.retry(g)
		d.finish(g)
	}
}

// allowance is how many members a group may have beyond its target: one for each that
// has to leave its node, and Surge for those that are outdated.
func (d *draft) allowance(g *group) int {
	displaced := g.count((*member).displaced)
	outdated := g.count(func(r *member) bool { return !r.displaced() && g.outdated(r) })
	return displaced + min(d.conf.Surge, outdated)
}

// scaleDown sends away what is too much. A model whose management is disabled keeps
// what runs, unless it is stopped.
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
	for _, r := range d.leastWanted(g, g.members)[:excess] {
		d.sendAway(g, r)
	}
	g.staying()
}

// sendAway dismisses one member that is too much, in the next plan where this one
// changes it already.
func (d *draft) sendAway(g *group, r *member) {
	if r.changed || d.full() {
		return
	}
	load := d.obs.Loads[r.name]
	d.decide(KindScaleDown, g.Name, r.name, fmt.Sprintf("%d are wanted and %d are there: it was HOT %s with %d requests in flight, and is the least wanted", g.target, len(g.members), r.phase, load.InFlight),
		inputs{"target": strconv.Itoa(g.target), "replicas": strconv.Itoa(len(g.members)), "in_flight": strconv.Itoa(load.InFlight), "cost": strconv.FormatFloat(g.cost(r), 'g', -1, 64), "phase": string(r.phase)})
	d.dismiss(r)
}

// scaleUp places what is missing: the cheapest variant that fits.
func (d *draft) scaleUp(g *group) {
	for missing := g.target - len(g.members); missing > 0 && !d.full(); missing-- {
		r, refused := d.placeAny(g, g.variants, nil)
		if r == nil {
			d.cannot(KindCannotPlace, g, g.variants[0].Name, "missing", fmt.Sprintf("%d of %d replicas are missing", missing, g.target), refused)
			return
		}
		g.members = append(g.members, r)
	}
}

// placeAny places a replica of the first of the variants that fits, and says why none
// does.
func (d *draft) placeAny(g *group, variants []*state.Variant, details func(*state.Place)) (*member, []*placement.Refusal) {
	var refused []*placement.Refusal
	for _, v := range variants {
		r, no := d.placeOne(g.model, g.definition(v.Name), nil, details)
		if r != nil {
			return r, nil
		}
		refused = append(refused, no)
	}
	return nil, refused
}

// placeOne places a replica of a definition, or says why it cannot.
func (d *draft) placeOne(m *model, v *state.Variant, exclude map[string]bool, details func(*state.Place)) (*member, *placement.Refusal) {
	at, no := d.find(m, v, exclude, d.taken)
	if no != nil {
		return nil, no
	}
	r := d.place(m, v, at, details)
	in := inputs{"variant": v.Name, "cost": strconv.FormatFloat(v.Cost, 'g', -1, 64)}
	maps.Copy(in, at.Inputs)
	d.decide(KindPlace, m.Name, r.name, "it was placed "+at.Why, in)
	return r, nil
}

// find asks the placer for a place.
func (d *draft) find(m *model, v *state.Variant, exclude map[string]bool, taken placement.Taken) (placement.Choice, *placement.Refusal) {
	asked := *m.Model
	asked.Failover = m.FailoverOf(v.Name, v.Hash)
	prefer := map[string]bool{}
	for _, r := range m.members {
		if r.tier == state.Cold && r.Name.Variant == v.Name {
			prefer[r.Placement.Node] = true
		}
	}
	return d.placer.Place(d.nodes, taken, placement.Request{Model: &asked, Variant: v, Exclude: exclude, Prefer: prefer})
}

// maxNodes is of how many nodes a decision says why nothing fits there.
const maxNodes = 50

// cannot says once why something is not placed. The kind, the variant and what it is
// about tell it from other things that wait at the same time.
func (d *draft) cannot(kind string, g *group, variant, about, what string, refused []*placement.Refusal) {
	in := inputs{"variant": variant, "about": about}
	reason := what
	for _, no := range refused {
		reason += "; " + no.Error()
		for i, node := range slices.Sorted(maps.Keys(no.Nodes)) {
			if i == maxNodes {
				in["nodes left out"] = strconv.Itoa(len(no.Nodes) - maxNodes)
				break
			}
			why := no.Nodes[node]
			if had := in["node "+node]; had != "" && had != why {
				why = had + "; " + why
			}
			in["node "+node] = why
		}
	}
	d.decideOnce(kind, g.Name, "", reason, in)
}

// replace places members beside those that have to go, before they go: on their nodes
// others are wanted, or their definition is outdated. What fits nowhere else stays.
func (d *draft) replace(g *group) {
	var old []*member
	for _, r := range d.leastWanted(g, g.members) {
		if r.displaced() {
			old = append(old, r)
		}
	}
	displaced := len(old)
	for _, r := range d.leastWanted(g, g.members) {
		if !r.displaced() && g.outdated(r) && len(old) < displaced+d.conf.Surge {
			old = append(old, r)
		}
	}
	extra := max(len(g.members)-g.target, 0)
	type class struct {
		variant   string
		displaced bool
	}
	refusing := map[class]bool{}
	for i, r := range old {
		of := class{r.Name.Variant, r.displaced()}
		if i < extra || refusing[of] || d.full() {
			continue // its replacement is on its way, or would not fit
		}
		variants := g.variants
		if own := g.Variant(r.Name.Variant); own != nil {
			variants = append([]*state.Variant{own}, slices.DeleteFunc(slices.Clone(g.variants), func(v *state.Variant) bool { return !of.displaced || v.Name == own.Name })...)
		}
		fresh, refused := d.placeAny(g, variants, nil)
		if fresh != nil {
			g.members = append(g.members, fresh)
			continue
		}
		refusing[of] = true
		if of.displaced {
			d.cannot(KindNodeDraining, g, r.Name.Variant, nodeName(r), fmt.Sprintf("node %s is being drained, and what is on it stays there", nodeName(r)), refused)
			continue
		}
		d.cannot(KindRolloutWaits, g, r.Name.Variant, "next", "the next replica of the new definition has no room beside the old ones, which go on serving", refused)
	}
}

// retire sends away members that have to go, as far as others serve in their place.
func (d *draft) retire(g *group) {
	serving := g.count(d.serves)
	for _, r := range d.leastWanted(g, g.members) {
		if r.changed || d.full() || len(g.members) <= g.target || !r.displaced() && !g.outdated(r) {
			continue
		}
		switch {
		case d.serves(r) && serving > g.target:
			serving--
		case !d.serves(r) && (serving >= g.target || !r.serving() && !r.allocRuns()):
		default:
			continue
		}
		kind, reason := KindRolling, "replicas of the new definition serve in its place"
		if r.displaced() {
			kind, reason = KindMoveAway, fmt.Sprintf("its node %s is being drained, and there is another replica in its place", nodeName(r))
		}
		d.decide(kind, g.Name, r.name, reason, inputs{"serving": strconv.Itoa(serving), "target": strconv.Itoa(g.target), "variant_hash": r.VariantHash})
		d.dismiss(r)
		g.staying()
	}
}

// retry tries members that have failed once more: elsewhere where that is possible,
// and else where they are.
func (d *draft) retry(g *group) {
	for _, r := range g.members {
		if r.phase != state.Failed || r.changed || d.full() || r.displaced() || !d.due(r.Retry) || !d.jobOver(r) {
			continue
		}
		v := g.definition(r.Name.Variant)
		carry := func(p *state.Place) { p.Failures, p.LastError, p.Retry = r.Failures, r.LastError, r.Retry }
		in := inputs{"failures": strconv.Itoa(r.Failures)}
		fresh, no := d.placeOne(g.model, v, map[string]bool{r.Placement.Node: true}, carry)
		if fresh == nil && usable(r) {
			d.decide(KindRetry, g.Name, r.name, fmt.Sprintf("it is tried again on node %s, because nothing else fits", nodeName(r)), in)
			d.move(r, state.Placed, "", func(c *state.Move) {
				if r.job != nil {
					c.JobIndex = &r.job.Index // that one is over; see jobOver
				}
			})
			continue
		}
		if fresh == nil {
			fresh, no = d.placeOne(g.model, v, nil, carry)
		}
		if fresh == nil {
			d.cannot(KindCannotPlace, g, v.Name, r.name, "replica "+r.Name.ID+" has failed, and cannot be tried again", []*placement.Refusal{no})
			continue
		}
		d.decide(KindRetry, g.Name, r.name, fmt.Sprintf("%s is tried in its place", fresh.name), in)
		d.move(r, state.Stopping, "", nil)
	}
}

// usable tells whether a member could be started again where it is.
func usable(r *member) bool {
	if r.node == nil || r.node.Usable() != "" {
		return false
	}
	for uuid := range r.Placement.Memory {
		if g := r.node.GPU(uuid); g == nil || !g.Healthy || g.Quarantined {
			return false
		}
	}
	for _, s := range r.Placement.Seats {
		if !slices.ContainsFunc(r.node.GPUs, func(g state.GPU) bool { return slices.Contains(g.Seats, s) }) {
			return false
		}
	}
	return true
}
