package planner

import (
	"maps"
	"strconv"
	"time"

	"remuda/controller/placement"
	"remuda/controller/state"
)

// ledger returns the fleet with all members as the plan leaves them. The first plan that
// asks makes it.
func (b *planBuilder) ledger() *placement.Fleet {
	b.markDirty()
	if b.fleet != nil {
		return b.fleet
	}
	b.fleet = placement.NewFleet(b.nodes, placement.Config{Rates: b.conf.Rates, WarmShare: b.conf.WarmShare})
	var changed []*member
	for _, m := range b.models {
		for _, r := range m.members {
			if !r.fresh {
				b.hold(r, r.Replica)
			}
			if r.changed {
				changed = append(changed, r)
			}
		}
	}
	b.fleet.Begin(b.price)
	for _, r := range changed {
		b.put(r)
	}
	return b.fleet
}

// put updates the fleet, if there is one, with what a member holds as the plan leaves it, and with
// what it will hold.
func (b *planBuilder) put(r *member) {
	switch {
	case b.fleet == nil:
	case r.removed:
		b.fleet.Drop(r.name)
	default:
		b.hold(r, r.next)
	}
}

// hold updates the fleet with what a member holds, and will hold, according to next.
func (b *planBuilder) hold(r *member, next *state.Replica) {
	t := placement.Tenant{Name: r.name, Node: next.Placement.Node, Model: next.Name.Model, Holds: holds(next), Priced: true}
	switch {
	case next.Status == state.StatusCold:
		b.fleet.Drop(r.name)
		return
	case next.Leaving():
		t.After = &state.Holding{}
	case next.Resting() && next.Tier() == state.Hot:
		t.After = new(asleep(next))
	case next.Status == state.StatusWarm:
		t.Woken = next.Placement.Memory
	case next.Status == state.StatusWaking:
		if awake, err := next.Advance(state.EventServing, "", next.Since); err == nil {
			holds := awake.Holds()
			t.After = &holds
		}
	}
	b.fleet.Put(t)
}

// holds returns what a replica holds. One that goes COLD because its sleep or its wake has
// failed may have its weights in the node's memory until its process is gone, which the state
// does not count.
func holds(r *state.Replica) state.Holding {
	h := r.Holds()
	if r.Status == state.StatusStopping && r.Goal == state.GoalCold {
		h.HostMemory = r.Placement.HostMemory
	}
	return h
}

// price returns the ways of a member of that name.
func (b *planBuilder) price(name string) []placement.Way {
	r := b.byMember[name]
	if r == nil {
		return nil
	}
	return b.ways(b.byName[r.Name.Model], r, r.next)
}

// asleep returns what a replica holds once it is WARM.
func asleep(r *state.Replica) state.Holding {
	warm := *r
	warm.Status, warm.Goal = state.StatusWarm, state.GoalWarm
	return warm.Holds()
}

// ways returns how a member may be evicted if the model that asks is worth it. See
// mayEvict for the rest.
func (b *planBuilder) ways(m *model, r *member, next *state.Replica) []placement.Way {
	if r.changed || m.dedicated || m.frozen || r.gone() || b.poolOf(r) != "" {
		return nil
	}
	cold := placement.Way{To: state.GoalCold, Cost: b.evictionCost(m, r, state.GoalCold)}
	switch {
	case m.succeeds(r):
		return nil // its model has a replica less without it
	case r.next.Status == state.StatusWarm:
		return []placement.Way{cold}
	case r.next.Tier() != state.Hot || !r.counts():
		return nil
	case r.next.Status == state.StatusFailed:
		return []placement.Way{cold}
	case r.next.Status != state.StatusServing || m.onTrial(r):
		return nil
	}
	if !b.canSleep(m, r) {
		return []placement.Way{cold}
	}
	return []placement.Way{{To: state.GoalWarm, Holds: asleep(next), Cost: b.evictionCost(m, r, state.GoalWarm)}, cold}
}

// evictionCost prices the way of a member to WARM or COLD, in seconds.
func (b *planBuilder) evictionCost(m *model, r *member, to state.Goal) float64 {
	w := placement.Worth{Priority: m.Priority, Failed: r.next.Status == state.StatusFailed, Idle: b.obs.Now.Sub(b.usedLast(r))}
	if v := m.variantOf(r); v != nil {
		w.Weights = placement.Weights(v)
	}
	if b.obs.Loads[r.name].InFlight > 0 || !b.obs.TrafficKnown {
		w.Idle = 0
	}
	return placement.EvictionCost(b.conf.Rates, w, to)
}

// usedLast returns the latest time at which the member may have had a request. Requests before the
// start of a gateway, and before the member got its status, are unknown.
func (b *planBuilder) usedLast(r *member) time.Time {
	t := r.Since
	if r.Status != state.StatusServing && r.Status != state.StatusWarm { // since then it is on its way to something else
		t = r.CreatedAt
	}
	for _, other := range []time.Time{b.obs.GatewaysSince, b.obs.Loads[r.name].LastRequest} {
		if other.After(t) {
			t = other
		}
	}
	return t
}

// canSleep reports whether the member's engine may have a sleep.
func (b *planBuilder) canSleep(m *model, r *member) bool {
	v := m.variantOf(r)
	return v != nil && !m.Sleeps[v.Hash].None
}

// ask is what the fleet is asked for.
type ask struct {
	pool    string
	exclude map[string]bool
	evict   func(*placement.Tenant) bool
	future  bool
}

// find asks the fleet for a place.
func (b *planBuilder) find(m *model, v *state.Variant, a ask) (placement.Choice, *placement.Refusal) {
	return b.ledger().Place(b.request(m, v, a))
}

// request is what the fleet is asked for.
func (b *planBuilder) request(m *model, v *state.Variant, a ask) placement.Request {
	if bytes := m.SleepMemory(v); bytes != v.SleepMemory {
		measured := *v
		measured.SleepMemory = bytes
		v = &measured
	}
	req := placement.Request{
		Model: m.Name, Variant: v, Failover: m.pairs(v), Pool: a.pool, Exclude: a.exclude,
		OnDisk: map[string]bool{}, MayEvict: a.evict, Future: a.future,
		Weights: state.WeightsOf(m.Name, m.versionOf(v), v.Name),
	}
	for _, r := range m.members {
		switch {
		case r.Name.Variant != v.Name:
		case r.next.Status == state.StatusCold:
			req.OnDisk[r.Placement.Node] = true
		case r.next.Status == state.StatusWarm && !r.changed && m.hashOf(r) == v.Hash && r.node != nil && r.node.Usable() == "":
			req.Warm = append(req.Warm, placement.Warm{
				Tenant: r.name, Placement: r.next.Placement, Weights: state.WeightsOf(m.Name, r.Version, v.Name),
			})
		}
	}
	return req
}

// fits reports whether a definition could be placed somewhere without evicting anything.
func (b *planBuilder) fits(m *model, v *state.Variant, exclude map[string]bool) bool {
	for _, pool := range b.openPools(m) {
		if _, no := b.find(m, v, ask{pool: pool, exclude: exclude}); no == nil {
			return true
		}
	}
	return false
}

// placeFirst places a replica of the first of the definitions that fits in the first of
// the pools that has room, without evicting anything, and returns the refusals if none has. The
// details, of a new one, may be nil.
func (b *planBuilder) placeFirst(m *model, variants []*state.Variant, pools []string, exclude map[string]bool, details func(*state.Place)) (*member, []*placement.Refusal) {
	var refused []*placement.Refusal
	for _, pool := range pools {
		for _, v := range variants {
			c, no := b.find(m, v, ask{pool: pool, exclude: exclude})
			if no == nil {
				return b.take(m, v, c, details), nil
			}
			refused = append(refused, no)
		}
	}
	return nil, refused
}

// take makes a replica of a choice that has nothing to evict: a new one, or one that is
// woken. The details, of a new one, may be nil.
func (b *planBuilder) take(m *model, v *state.Variant, c placement.Choice, details func(*state.Place)) *member {
	b.placing[m.Name] = true
	in := inputs{"variant": v.Name, "cost": strconv.FormatFloat(v.Cost, 'g', -1, 64), "level": c.Level.String(), "seconds": seconds(c.Seconds)}
	maps.Copy(in, c.Inputs)
	if c.Wake != "" {
		r := b.byMember[c.Wake]
		b.record(KindWake, m.Name, r.name, "woken "+c.Why, in)
		b.happens(r, state.EventWake, "", func(m *state.Move) {
			m.Memory = c.Placement.Memory
			if details != nil {
				var p state.Place
				details(&p)
				m.Spilled = p.Spilled
			}
		})
		return r
	}
	r := b.place(m, v, c, details)
	b.record(KindPlace, m.Name, r.name, "placed "+c.Why, in)
	if pool := b.poolOf(r); pool != "" {
		in["pool"] = pool
	}
	return r
}

func seconds(s float64) string { return strconv.FormatFloat(s, 'f', 1, 64) }
