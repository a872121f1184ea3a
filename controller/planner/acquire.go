package planner

import (
	"fmt"
	"slices"
	"strconv"

	"remuda/controller/placement"
	"remuda/controller/state"
)

// strategy tries one way to bring up one more replica of a group. It reports whether it
// succeeded. If not, the plan is unchanged, and the step has the refusals.
type strategy func(*planBuilder, *group) (step, bool)

// strategies are all ways to bring a replica up, in the order in which they are tried: what
// costs the least comes first.
var strategies = []strategy{
	(*planBuilder).cancelDrain,    // one that was about to go WARM serves on
	(*planBuilder).waitForNomad,   // while its Nomad is out of reach nothing is known
	(*planBuilder).waitForSleep,   // one that is going to sleep is woken then
	(*planBuilder).placeTogether,  // the place that was found for all missing replicas together
	(*planBuilder).wake,           // a WARM one that has room
	(*planBuilder).waitForWake,    // a WARM one, sooner than a cold start, once its room is free
	(*planBuilder).makeRoomToWake, // a WARM one, sooner than a cold start, by evicting idle replicas
	(*planBuilder).placeFree,      // a new one where there is room
	(*planBuilder).waitForRoom,    // a place that leaving replicas will free
	(*planBuilder).waitForTurn,    // a model that has just lost replicas to another one waits for the next plan
	(*planBuilder).evictIdle,      // the place of idle replicas
	(*planBuilder).spill,          // an external pool
	(*planBuilder).evictBusy,      // the place of replicas that are in use
}

// step is what a strategy did for a missing replica.
type step struct {
	// replica comes up; nil: the group waits for a place.
	replica *member
	// place was chosen by a search, nil where there was none. It is in an external pool, or
	// may need replicas evicted that are in use.
	place         *option
	spilled, busy bool
	// refused are why nothing was done.
	refused []*placement.Refusal
}

// option is a place for a definition.
type option struct {
	v *state.Variant
	c placement.Choice
}

// acquireReplica brings up one more replica of a group, or prepares that. It reports whether a
// replica comes up or has a place that becomes free; if not, the step has the refusals.
func (b *planBuilder) acquireReplica(g *group) (step, bool) {
	b.markDirty()
	var refused []*placement.Refusal
	for _, try := range strategies {
		s, ok := try(b, g)
		if ok {
			return s, true
		}
		refused = append(refused, s.refused...)
	}
	return step{refused: refused}, false
}

// cancelDrain returns a member that drains to WARM, and makes room for no model, to service when
// its group needs it again.
func (b *planBuilder) cancelDrain(g *group) (step, bool) {
	for _, r := range g.model.members {
		if r.resting() && r.next.Status == state.StatusDraining && r.next.MakesRoomFor == "" && !r.changed && g.has(r) && b.mayStay(r) {
			b.record(KindCalledOff, g.Name, r.name, fmt.Sprintf("drain cancelled: target is %d and there are %d replicas", g.target, len(g.members)),
				inputs{"target": strconv.Itoa(g.target), "replicas": strconv.Itoa(len(g.members))})
			b.happens(r, state.EventServing, "", nil)
			return step{replica: r}, true
		}
	}
	return step{}, false
}

// mayStay reports whether the member can stay without taking a place that another model waits for.
func (b *planBuilder) mayStay(r *member) bool {
	return b.ledger().Fits(&placement.Choice{Placement: r.next.Placement, Wake: r.name}, true)
}

// waitForNomad waits while the controller's own Nomad is out of reach.
func (b *planBuilder) waitForNomad(*group) (step, bool) { return step{}, !b.open("") }

// waitForSleep waits for a member of the group that is going to sleep and makes room for no
// model: it can be woken then. If that takes longer than the usual seconds, another way is tried.
func (b *planBuilder) waitForSleep(g *group) (step, bool) {
	for _, r := range g.model.members {
		if r.resting() && r.next.Status == state.StatusSleeping && r.next.MakesRoomFor == "" && !r.changed && !b.awaited[r.name] && g.has(r) && !b.due(r.Since.Add(2*b.conf.MemoryTimeout)) && b.mayStay(r) {
			b.awaited[r.name] = true
			b.ledger().Put(placement.Tenant{Name: r.name, Node: r.Placement.Node, Model: g.Name, Holds: r.next.Holds()})
			return step{}, true
		}
	}
	return step{}, false
}

// wake wakes a WARM replica that has room.
func (b *planBuilder) wake(g *group) (step, bool) {
	if !b.hasWarm(g) {
		return step{}, false
	}
	if o, wakes := b.best(g, b.free); wakes {
		return b.taken(g, o), true
	}
	return step{}, false
}

// waitForWake reserves the place of a WARM replica whose room is being made, if the replica
// serves sooner than one that starts cold.
func (b *planBuilder) waitForWake(g *group) (step, bool) {
	cold := b.coldStart(g)
	if cold == nil || !b.isMakingRoom(g.Name) {
		return step{}, false
	}
	o, wakes := b.best(g, b.freeLater)
	if !wakes || o.c.Seconds >= cold.c.Seconds {
		return step{}, false
	}
	b.reservePlace(g.model, o.v, o.c)
	return step{place: o}, true
}

// makeRoomToWake evicts idle replicas for a WARM one, where that costs less than to start one
// cold.
func (b *planBuilder) makeRoomToWake(g *group) (step, bool) {
	cold := b.coldStart(g)
	if cold == nil {
		return step{}, false
	}
	o, wakes := b.best(g, b.idleRoom)
	if !wakes || len(o.c.Evict) == 0 || o.c.Seconds+o.c.Cost >= cold.c.Seconds+cold.c.Cost {
		return step{}, false
	}
	b.makeRoom(g.model, o.v, o.c)
	return step{place: o}, true
}

// coldStart returns the place where a replica would start cold although the group has a WARM
// one that could be woken, nil where it has none, or no such place, or may not wait.
func (b *planBuilder) coldStart(g *group) *option {
	if !b.hasWarm(g) || b.evictedFrom[g.Name] {
		return nil
	}
	o, _ := b.best(g, b.free)
	return o
}

// placeFree starts a replica where there is room.
func (b *planBuilder) placeFree(g *group) (step, bool) {
	o, _ := b.best(g, b.free)
	if o == nil {
		return step{}, false
	}
	return b.taken(g, o), true
}

// waitForRoom reserves a place that leaving replicas will free.
func (b *planBuilder) waitForRoom(g *group) (step, bool) {
	o, _ := b.best(g, b.freeLater)
	if o == nil {
		return step{}, false
	}
	b.reservePlace(g.model, o.v, o.c)
	return step{place: o}, true
}

// waitForTurn leaves a model that has lost replicas to another one in this plan to the next
// plan, so that it does not evict replicas of a third model before its own eviction is settled.
func (b *planBuilder) waitForTurn(g *group) (step, bool) {
	if !b.evictedFrom[g.Name] {
		return step{}, false
	}
	b.replanAt(b.obs.Now.Add(1))
	return step{}, true
}

// evictIdle evicts replicas of models without traffic.
func (b *planBuilder) evictIdle(g *group) (step, bool) {
	o, _ := b.best(g, b.idleRoom)
	if o == nil {
		return step{}, false
	}
	b.makeRoom(g.model, o.v, o.c)
	return step{place: o}, true
}

// evictBusy evicts replicas that may be in use.
func (b *planBuilder) evictBusy(g *group) (step, bool) {
	var refused []*placement.Refusal
	for _, v := range g.definitions() {
		c, no := b.findRoom(g.model, v, false)
		if no == nil {
			b.makeRoom(g.model, v, c)
			return step{place: &option{v, c}, busy: true}, true
		}
		refused = append(refused, no)
	}
	return step{refused: refused}, false
}

// taken places or wakes a replica in a free place, and returns the step.
func (b *planBuilder) taken(g *group, o *option) step {
	return step{replica: b.take(g.model, o.v, o.c, nil), place: o}
}

// finder searches a place for a definition of a model.
type finder func(*model, *state.Variant) (placement.Choice, *placement.Refusal)

// free finds a place that is free.
func (b *planBuilder) free(m *model, v *state.Variant) (placement.Choice, *placement.Refusal) {
	return b.find(m, v, ask{})
}

// freeLater finds a place that will be free once what is under way is done.
func (b *planBuilder) freeLater(m *model, v *state.Variant) (placement.Choice, *placement.Refusal) {
	return b.find(m, v, ask{future: true})
}

// idleRoom finds a place that will be free once idle replicas are evicted.
func (b *planBuilder) idleRoom(m *model, v *state.Variant) (placement.Choice, *placement.Refusal) {
	return b.findRoom(m, v, true)
}

// best returns what the first of the group's definitions finds, or before it the first
// that wakes a replica, and reports whether it does; nil where none finds anything.
func (b *planBuilder) best(g *group, find finder) (_ *option, wakes bool) {
	var first *option
	for _, v := range g.definitions() {
		c, no := find(g.model, v)
		switch {
		case no != nil:
		case c.Wake != "":
			return &option{v, c}, true
		case first == nil:
			first = &option{v, c}
		}
	}
	return first, false
}

// hasWarm reports whether a replica of the group is WARM and could be woken.
func (b *planBuilder) hasWarm(g *group) bool {
	return slices.ContainsFunc(g.model.members, func(r *member) bool { return r.next.Status == state.StatusWarm && !r.changed && g.has(r) })
}

// isMakingRoom reports whether a replica of another model is on its way out for that one.
func (b *planBuilder) isMakingRoom(name string) bool {
	for _, m := range b.models {
		if slices.ContainsFunc(m.members, func(r *member) bool {
			return r.next.MakesRoomFor == name && !r.counts() && r.next.Status != state.StatusCold
		}) {
			return true
		}
	}
	return false
}

// has reports whether the member is of one of the group's variants as they are made now.
func (g *group) has(r *member) bool {
	return slices.ContainsFunc(g.definitions(), func(v *state.Variant) bool { return v.Name == r.Name.Variant && v.Hash == g.hashOf(r) })
}
