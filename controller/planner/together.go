package planner

import (
	"cmp"
	"math"
	"slices"

	"remuda/controller/placement"
	"remuda/controller/state"
)

// Missing replicas are first placed one by one, model by model, in the order of their
// priorities (see strategies). Where that evicts something or leaves a replica without a place,
// the plan is made once more, with one search for all missing replicas of a class together: a
// place that one of them could take or leave may be the only one of another, and what is evicted
// can make room for two. The second plan is used only if no model gets fewer replicas by it and
// it gets more of them or evicts less; see better. So it is never worse than the first.

// class are models with the same right to a place. Replicas of different classes are not
// searched together: the higher class has what it needs before the lower one is asked.
type class struct {
	priority  int
	dedicated bool
}

func classOf(m *model) class { return class{m.Priority, m.dedicated} }

// need is a missing replica, and the place that was found for it one by one.
type need struct {
	model, group string
	v            *state.Variant
	at           *placement.Choice // nil: none
	spilled      bool              // the place is in an external pool
	busy         bool              // it may evict replicas that are in use
}

// hard reports whether a joint search may find a better place.
func (n *need) hard() bool { return n.at == nil || len(n.at.Evict) > 0 || n.spilled }

// tally is what a plan found for missing replicas.
type tally struct {
	needs map[class][]need
	// found counts the replicas of each model that come up or wait for a place that becomes
	// free. Of these spilled are in external pools.
	found   map[string]int
	spilled int
	// busy counts the evicted replicas of models with traffic. cost is of all evictions, in
	// seconds.
	busy int
	cost float64
}

// add notes what became of the next of a group's missing replicas. If nothing did, the others
// that are missing are not tried, and get nothing either.
func (t *tally) add(g *group, s step, ok bool, missing int) {
	if t.needs == nil {
		t.needs, t.found = map[class][]need{}, map[string]int{}
	}
	c := classOf(g.model)
	n := need{model: g.Name, group: g.key(), spilled: s.spilled, busy: s.busy}
	switch {
	case ok:
		t.found[g.Name]++
		if s.spilled {
			t.spilled++
		}
		if s.place == nil {
			return // nothing was searched for it
		}
		n.v, n.at = s.place.v, &s.place.c
		t.needs[c] = append(t.needs[c], n)
	default:
		n.v, n.busy = g.definitions()[0], true
		for range min(missing, placement.MaxTogether) {
			t.needs[c] = append(t.needs[c], n)
		}
	}
}

// joinable reports whether a joint search could find something better for a class.
func (t *tally) joinable() bool {
	for _, ns := range t.needs {
		if len(ns) > 1 && slices.ContainsFunc(ns, func(n need) bool { return n.hard() }) {
			return true
		}
	}
	return false
}

// better reports whether t is better than what was found one by one: it brings no model fewer
// replicas, and either more in all, or as many with fewer evictions of replicas in use, fewer in
// external pools, or cheaper evictions.
func (t *tally) better(alone *tally) bool {
	sum := 0
	for name, n := range alone.found {
		if t.found[name] < n {
			return false
		}
		sum -= n
	}
	for _, n := range t.found {
		sum += n
	}
	if sum != 0 {
		return sum > 0
	}
	return cmp.Or(cmp.Compare(t.busy, alone.busy), cmp.Compare(t.spilled, alone.spilled), cmp.Compare(t.cost, alone.cost)) < 0
}

// joint is what the second plan knows of the first, and what its own searches found.
type joint struct {
	alone    *tally
	searched map[class]bool
	places   map[string][]option // of each group, reserved in the fleet
}

// together makes second, a builder for the same view, the second plan, which uses the results of b.
func (b *planBuilder) together(second *planBuilder) *planBuilder {
	second.joint = &joint{alone: &b.tally, searched: map[class]bool{}, places: map[string][]option{}}
	return second
}

// key names a group among those of its model.
func (g *group) key() string { return g.Name + ":" + g.variants[0].Name }

// placeTogether gives a replica the place that the joint search found for it.
func (b *planBuilder) placeTogether(g *group) (step, bool) {
	if b.joint == nil {
		return step{}, false
	}
	if c := classOf(g.model); !b.joint.searched[c] {
		b.joint.searched[c] = true
		b.searchTogether(b.joint.alone.needs[c])
	}
	for key := g.key(); len(b.joint.places[key]) > 0; {
		o := b.joint.places[key][0]
		b.joint.places[key] = b.joint.places[key][1:]
		b.release(o.c)
		switch {
		case !b.stillFree(o.c):
		case len(o.c.Evict) > 0:
			b.makeRoom(g.model, o.v, o.c)
			return step{place: &o}, true
		case b.ledger().Fits(&o.c, false):
			return b.taken(g, &o), true
		default:
			b.reservePlace(g.model, o.v, o.c)
			return step{place: &o}, true
		}
	}
	return step{}, false
}

// searchTogether searches places for the missing replicas of a class, and reserves them in the
// fleet until their groups take them. Those that are hard to place come first where there are
// too many for one search; the others are placed one by one.
func (b *planBuilder) searchTogether(needs []need) {
	needs = slices.DeleteFunc(slices.Clone(needs), func(n need) bool { return b.byName[n.model] == nil })
	slices.SortStableFunc(needs, func(a, b need) int { return btoi(b.hard()) - btoi(a.hard()) })
	needs = needs[:min(len(needs), placement.MaxTogether)]
	var added []string
	for _, n := range needs {
		if !b.placing[n.model] {
			b.placing[n.model] = true
			added = append(added, n.model)
		}
	}
	defer func() {
		for _, name := range added {
			delete(b.placing, name)
		}
	}()
	needs = b.placeable(needs)
	if b.reserveTogether(needs) {
		return
	}
	placed := slices.DeleteFunc(slices.Clone(needs), func(n need) bool { return n.at == nil })
	if len(placed) < len(needs) {
		b.reserveTogether(placed)
	}
}

// placeable leaves out the needs for which there is no place even if they are the only ones.
func (b *planBuilder) placeable(needs []need) []need {
	refused := map[*state.Variant]bool{}
	return slices.DeleteFunc(needs, func(n need) bool {
		if n.at != nil {
			return false
		}
		if _, known := refused[n.v]; !known {
			_, no := b.findRoom(b.byName[n.model], n.v, !n.busy)
			refused[n.v] = no != nil
		}
		return refused[n.v]
	})
}

// jointTries is how often a joint search is made at most because it would take more from a model
// than it may lose. Each takes up to some 100 ms.
const jointTries = 2

// reserveTogether searches places for needs together. It reports whether it found some that are
// better than those found one by one, and reserves them then.
func (b *planBuilder) reserveTogether(needs []need) bool {
	if len(needs) < 2 || !slices.ContainsFunc(needs, func(n need) bool { return n.hard() }) {
		return false
	}
	below := 0.0
	near := make([]string, len(needs))
	for i, n := range needs {
		if n.at == nil || n.spilled {
			below = math.Inf(1)
			continue
		}
		near[i] = n.at.Placement.Node
		below += n.at.Seconds + n.at.Cost
	}
	protected := map[string]bool{}
	for range jointTries {
		requests := make([]placement.Request, len(needs))
		for i, n := range needs {
			m := b.byName[n.model]
			requests[i] = b.request(m, n.v, ask{evict: b.mayEvict(m, !n.busy, protected)})
		}
		choices := b.ledger().Together(requests, near, below)
		if choices == nil {
			return false
		}
		var evicted []placement.Eviction
		for _, c := range choices {
			evicted = append(evicted, c.Evict...)
		}
		// Within a class each model may take as much from another one.
		if over := b.tooMany(b.byName[needs[0].model], evicted); len(over) > 0 {
			for _, name := range over {
				protected[name] = true
			}
			continue
		}
		for i, n := range needs {
			b.joint.places[n.group] = append(b.joint.places[n.group], option{n.v, choices[i]})
			b.ledger().Reserve(choices[i], reservation(choices[i]), n.model)
		}
		return true
	}
	return false
}

// reservation names the place of a choice in the fleet until its group takes it.
func reservation(c placement.Choice) string { return "joint\x1f" + c.Placement.Seats[0] }

// release takes a reservation back: the tenants are what they were.
func (b *planBuilder) release(c placement.Choice) {
	names := []string{c.Wake}
	for _, e := range c.Evict {
		names = append(names, e.Tenant)
	}
	b.ledger().Drop(reservation(c))
	for _, name := range names {
		if r := b.byMember[name]; r != nil {
			b.put(r)
		}
	}
}

// stillFree reports whether nothing in this plan has come in the way of a choice.
func (b *planBuilder) stillFree(c placement.Choice) bool {
	if r := b.byMember[c.Wake]; c.Wake != "" && (r == nil || r.changed) {
		return false
	}
	for _, e := range c.Evict {
		if r := b.byMember[e.Tenant]; r == nil || r.changed {
			return false
		}
	}
	return b.ledger().Fits(&c, true)
}
