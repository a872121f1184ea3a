package planner

import (
	"fmt"
	"slices"
	"strconv"

	"remuda/controller/placement"
	"remuda/controller/state"
)

// strategy tries one way to bring up one more replica of a group. It reports whether it did
// something about it. If not, the plan is as it was, and the step has the refusals.
type strategy func(*draft, *group) (step, bool)

// strategies are all ways to bring a replica up, in the order in which they are tried: what
// costs the least comes first.
var strategies = []strategy{
	(*draft).cancelDrain,    // one that was about to go WARM serves on
	(*draft).awaitNomad,     // while its Nomad is out of reach nothing is known
	(*draft).awaitSleep,     // one that is going to sleep is woken then
	(*draft).placeTogether,  // the place that was found for all missing replicas together
	(*draft).wake,           // a WARM one that has room
	(*draft).awaitWake,      // a WARM one, sooner than a cold start, once its room is free
	(*draft).makeRoomToWake, // a WARM one, sooner than a cold start, by evicting idle replicas
	(*draft).placeFree,      // a new one where there is room
	(*draft).awaitRoom,      // a place that leaving replicas will free
	(*draft).awaitTurn,      // a model that has just lost replicas to another one waits for the next plan
	(*draft).evictIdle,      // the place of idle replicas
	(*draft).spill,          // an external pool
	(*draft).evictBusy,      // the place of replicas that are in use
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

// obtain brings one more replica of a group up, or prepares that. It reports whether one comes
// up or has a place that becomes free; if not, the step has why.
func (d *draft) obtain(g *group) (step, bool) {
	d.stir()
	var refused []*placement.Refusal
	for _, try := range strategies {
		s, ok := try(d, g)
		if ok {
			return s, true
		}
		refused = append(refused, s.refused...)
	}
	return step{refused: refused}, false
}

// cancelDrain cancels the way to WARM of a member that makes room for no model, because its
// group needs it.
func (d *draft) cancelDrain(g *group) (step, bool) {
	for _, r := range g.model.members {
		if r.resting() && r.next.Status == state.StatusDraining && r.next.MakesRoomFor == "" && !r.changed && g.has(r) && d.mayStay(r) {
			d.decide(KindCalledOff, g.Name, r.name, fmt.Sprintf("drain cancelled: target is %d and there are %d replicas", g.target, len(g.members)),
				inputs{"target": strconv.Itoa(g.target), "replicas": strconv.Itoa(len(g.members))})
			d.happens(r, state.EventServing, "", nil)
			return step{replica: r}, true
		}
	}
	return step{}, false
}

// mayStay reports whether no place that another model waits for needs what the member leaves.
func (d *draft) mayStay(r *member) bool {
	return d.ledger().Fits(&placement.Choice{Placement: r.next.Placement, Wake: r.name}, true)
}

// awaitNomad waits while the controller's own Nomad is out of reach.
func (d *draft) awaitNomad(*group) (step, bool) { return step{}, !d.open("") }

// awaitSleep keeps a member for its group that goes to sleep and makes room for no model: it
// is woken then. That takes seconds; where it takes longer another one is sought.
func (d *draft) awaitSleep(g *group) (step, bool) {
	for _, r := range g.model.members {
		if r.resting() && r.next.Status == state.StatusSleeping && r.next.MakesRoomFor == "" && !r.changed && !d.awaited[r.name] && g.has(r) && !d.due(r.Since.Add(2*d.conf.MemoryTimeout)) && d.mayStay(r) {
			d.awaited[r.name] = true
			d.ledger().Put(placement.Tenant{Name: r.name, Node: r.Placement.Node, Model: g.Name, Holds: r.next.Holds()})
			return step{}, true
		}
	}
	return step{}, false
}

// wake wakes a WARM replica that has room.
func (d *draft) wake(g *group) (step, bool) {
	if !d.hasWarm(g) {
		return step{}, false
	}
	if o, wakes := d.best(g, d.free); wakes {
		return d.taken(g, o), true
	}
	return step{}, false
}

// awaitWake keeps a WARM replica whose room is being made, where it serves sooner than one that
// starts cold.
func (d *draft) awaitWake(g *group) (step, bool) {
	cold := d.coldStart(g)
	if cold == nil || !d.isMakingRoom(g.Name) {
		return step{}, false
	}
	o, wakes := d.best(g, d.freeLater)
	if !wakes || o.c.Seconds >= cold.c.Seconds {
		return step{}, false
	}
	d.waitFor(g.model, o.v, o.c)
	return step{place: o}, true
}

// makeRoomToWake evicts idle replicas for a WARM one, where that costs less than to start one
// cold.
func (d *draft) makeRoomToWake(g *group) (step, bool) {
	cold := d.coldStart(g)
	if cold == nil {
		return step{}, false
	}
	o, wakes := d.best(g, d.idleRoom)
	if !wakes || len(o.c.Evict) == 0 || o.c.Seconds+o.c.Cost >= cold.c.Seconds+cold.c.Cost {
		return step{}, false
	}
	d.makeRoom(g.model, o.v, o.c)
	return step{place: o}, true
}

// coldStart returns the place where a replica would start cold although the group has a WARM
// one that could be woken, nil where it has none, or no such place, or may not wait.
func (d *draft) coldStart(g *group) *option {
	if !d.hasWarm(g) || d.losers[g.Name] {
		return nil
	}
	o, _ := d.best(g, d.free)
	return o
}

// placeFree starts a replica where there is room.
func (d *draft) placeFree(g *group) (step, bool) {
	o, _ := d.best(g, d.free)
	if o == nil {
		return step{}, false
	}
	return d.taken(g, o), true
}

// awaitRoom keeps a place that leaving replicas will free.
func (d *draft) awaitRoom(g *group) (step, bool) {
	o, _ := d.best(g, d.freeLater)
	if o == nil {
		return step{}, false
	}
	d.waitFor(g.model, o.v, o.c)
	return step{place: o}, true
}

// awaitTurn leaves a model to the next plan that has just made room for another one: it does
// not do to a third model what was done to it before that is settled.
func (d *draft) awaitTurn(g *group) (step, bool) {
	if !d.losers[g.Name] {
		return step{}, false
	}
	d.look(d.obs.Now.Add(1))
	return step{}, true
}

// evictIdle evicts replicas of models without traffic.
func (d *draft) evictIdle(g *group) (step, bool) {
	o, _ := d.best(g, d.idleRoom)
	if o == nil {
		return step{}, false
	}
	d.makeRoom(g.model, o.v, o.c)
	return step{place: o}, true
}

// evictBusy evicts replicas that may be in use.
func (d *draft) evictBusy(g *group) (step, bool) {
	var refused []*placement.Refusal
	for _, v := range g.definitions() {
		c, no := d.findRoom(g.model, v, false)
		if no == nil {
			d.makeRoom(g.model, v, c)
			return step{place: &option{v, c}, busy: true}, true
		}
		refused = append(refused, no)
	}
	return step{refused: refused}, false
}

// taken takes a place that is free.
func (d *draft) taken(g *group, o *option) step {
	return step{replica: d.take(g.model, o.v, o.c, nil), place: o}
}

// finder searches a place for a definition of a model.
type finder func(*model, *state.Variant) (placement.Choice, *placement.Refusal)

// free finds a place that is free.
func (d *draft) free(m *model, v *state.Variant) (placement.Choice, *placement.Refusal) {
	return d.find(m, v, ask{})
}

// freeLater finds a place that will be free once what is under way is done.
func (d *draft) freeLater(m *model, v *state.Variant) (placement.Choice, *placement.Refusal) {
	return d.find(m, v, ask{future: true})
}

// idleRoom finds a place that will be free once idle replicas are evicted.
func (d *draft) idleRoom(m *model, v *state.Variant) (placement.Choice, *placement.Refusal) {
	return d.findRoom(m, v, true)
}

// best returns what the first of the group's definitions finds, or before it the first
// that wakes a replica, and reports whether it does; nil where none finds anything.
func (d *draft) best(g *group, find finder) (_ *option, wakes bool) {
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
func (d *draft) hasWarm(g *group) bool {
	return slices.ContainsFunc(g.model.members, func(r *member) bool { return r.next.Status == state.StatusWarm && !r.changed && g.has(r) })
}

// isMakingRoom reports whether a replica of another model is on its way out for that one.
func (d *draft) isMakingRoom(name string) bool {
	for _, m := range d.models {
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
