package planner

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"remuda/controller/placement"
	"remuda/controller/state"
)

// open reports whether a pool takes placements: its Nomad is reachable, and it is the
// controller's own or its management is not disabled.
func (b *planBuilder) open(pool string) bool {
	if !b.obs.Pools[pool].JobsKnown {
		return false
	}
	p, ok := b.pools[pool]
	return pool == "" || ok && p.Management != state.ManagementDisabled
}

// spills reports whether a pool takes what the own one has no room for.
func (p Pool) spills() bool {
	return p.Management == state.ManagementUpscaling || p.Management == state.ManagementFull
}

// byPrice are the external pools, the cheapest first.
func (b *planBuilder) byPrice() []Pool {
	return slices.SortedFunc(maps.Values(b.pools), func(a, b Pool) int {
		return cmp.Or(cmp.Compare(a.Price, b.Price), cmp.Compare(a.Name, b.Name))
	})
}

// openPools returns the pools in which a replica of the model may be placed for another one: the
// controller's own, those that take what that has no room for, and those where replicas are
// expected. It returns none while the own pool is unreachable: that is no reason to leave it.
func (b *planBuilder) openPools(m *model) []string {
	if !b.open("") {
		return nil
	}
	pools := []string{""}
	for _, p := range b.byPrice() {
		if b.open(p.Name) && (p.spills() || m.active.In(p.Name) > 0) {
			pools = append(pools, p.Name)
		}
	}
	return pools
}

// expectedIn returns how many replicas of a variant's share, or with an empty variant of any's,
// should be in an external pool: no more than the target, as far as that is for the model to have.
func (m *model) expectedIn(pool, variant string) int {
	left := m.target.Replicas
	if m.Stopped || m.Management == state.ManagementDisabled {
		left = m.active.Total()
	}
	for _, share := range m.active {
		if share.Pool == "" {
			continue
		}
		n := min(share.Replicas, left)
		if share.Pool == pool && share.Variant == variant {
			return n
		}
		left -= n
	}
	return 0
}

// inPool returns the members of a variant's share that count in a pool, those that it should
// keep first: what serves, then the oldest.
func (b *planBuilder) inPool(m *model, pool, variant string) []*member {
	var in []*member
	for _, r := range m.members {
		if r.counts() && b.poolOf(r) == pool && m.shareOf(r.Name.Variant) == variant {
			in = append(in, r)
		}
	}
	slices.SortStableFunc(in, func(x, y *member) int {
		return cmp.Or(cmp.Compare(btoi(!b.serves(x)), btoi(!b.serves(y))), x.CreatedAt.Compare(y.CreatedAt), cmp.Compare(x.name, y.name))
	})
	return in
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// expected reports whether the member is one of those that its model should have in its
// external pool.
func (b *planBuilder) expected(m *model, r *member) bool {
	pool, variant := b.poolOf(r), m.shareOf(r.Name.Variant)
	n := m.expectedIn(pool, variant)
	if pool == "" || n == 0 {
		return false
	}
	key := [2]string{pool, variant}
	if m.kept[key] == nil {
		if m.kept == nil {
			m.kept = map[[2]string]map[*member]bool{}
		}
		in := b.inPool(m, pool, variant)
		m.kept[key] = make(map[*member]bool, n)
		for _, r := range in[:min(n, len(in))] {
			m.kept[key][r] = true
		}
	}
	return m.kept[key][r]
}

// misplaced reports whether the member is in an external pool that has more replicas than
// expected, and was not placed there for lack of room.
func (b *planBuilder) misplaced(m *model, r *member) bool {
	pool := b.poolOf(r)
	if pool == "" || !b.open(pool) {
		return false
	}
	return !r.next.Spilled && !b.expected(m, r)
}

// mayLeave reports whether a member may be ended because it is surplus. In an external pool it may
// in mode full, and otherwise only if fewer replicas are expected there.
func (b *planBuilder) mayLeave(m *model, r *member) bool {
	pool := b.poolOf(r)
	if pool == "" || m.Stopped {
		return true
	}
	return b.open(pool) && (b.pools[pool].Management == state.ManagementFull || b.misplaced(m, r))
}

// takePoolDeparture reports whether a member of an external pool may leave it now, and counts it
// as leaving if so: Batch replicas may leave at a time, once in Interval.
func (b *planBuilder) takePoolDeparture(r *member) bool {
	p, external := b.pools[b.poolOf(r)]
	if !external {
		return true
	}
	b.markDirty()
	if n, leaving := b.poolDepartures[p.Name]; leaving {
		b.poolDepartures[p.Name] = n + 1
		return n < p.Batch
	}
	if at := b.pace.Left[p.Name]; !at.IsZero() && !b.due(at.Add(p.Interval)) {
		return false
	}
	b.poolDepartures[p.Name] = 1
	b.setPace(func(next *state.Pace) {
		next.Left = maps.Clone(next.Left)
		maps.DeleteFunc(next.Left, func(pool string, at time.Time) bool { return !b.obs.Now.Before(at.Add(b.pools[pool].Interval)) })
		if next.Left == nil {
			next.Left = map[string]time.Time{}
		}
		next.Left[p.Name] = b.obs.Now
	})
	return true
}

// placeExpected places what a group has shares of in external pools and has not there, and
// returns how many of the missing ones are left for other places. One may be placed
// beyond the target, to take the place of another elsewhere.
func (b *planBuilder) placeExpected(g *group, missing int) int {
	for _, pool := range g.active.External() {
		expected := g.expectedIn(pool, g.share)
		for owed := expected - len(b.inPool(g.model, pool, g.share)); owed > 0 && g.target > 0; owed-- {
			b.markDirty()
			beyond := missing <= 0
			if beyond && (len(g.members) >= g.target+g.spare() || g.keeps()) || b.full() {
				break
			}
			var r *member
			var refused []*placement.Refusal
			what := fmt.Sprintf("%d of %d replicas expected in pool %s are missing", owed, expected, pool)
			p, ok := b.pools[pool]
			switch {
			case !ok:
				what += ": no such pool in the agent config"
			case p.Management == state.ManagementDisabled:
				what += ": the pool's management is disabled"
			case !b.open(pool):
				what = "" // an unreachable pool is not reported as unplaceable
			default:
				r, refused = b.placeFirst(g.model, g.definitions(), []string{pool}, nil, nil)
			}
			if r == nil {
				missing -= owed // they are placed there and nowhere else
				if what != "" {
					b.recordUnplaceable(KindCannotPlace, g, g.variants[0].Name, "pool "+pool, what, refused)
				}
				break
			}
			missing--
			g.members = append(g.members, r)
		}
	}
	return missing
}

// arriving is how many members of a group are expected in external pools and do not
// serve there yet: as long, others serve in their place.
func (b *planBuilder) arriving(g *group) int {
	return g.count(func(r *member) bool { return !r.serving() && b.expected(g.model, r) })
}

// definitions returns the current definitions of the group's variants.
func (g *group) definitions() []*state.Variant {
	var out []*state.Variant
	for _, v := range g.variants {
		out = append(out, g.definition(v.Name))
	}
	return out
}

// spill places a replica in an external pool, for lack of room in the own one: where it
// costs the least.
func (b *planBuilder) spill(g *group) (step, bool) {
	type offer struct {
		pool Pool
		v    *state.Variant
	}
	var offers []offer
	for _, p := range b.byPrice() {
		if !p.spills() || !b.open(p.Name) {
			continue
		}
		for _, v := range g.definitions() {
			offers = append(offers, offer{p, v})
		}
	}
	slices.SortStableFunc(offers, func(a, b offer) int { return cmp.Compare(a.v.Cost*a.pool.Price, b.v.Cost*b.pool.Price) })
	var refused []*placement.Refusal
	for _, o := range offers {
		c, no := b.find(g.model, o.v, ask{pool: o.pool.Name})
		if no != nil {
			refused = append(refused, no)
			continue
		}
		r := b.take(g.model, o.v, c, func(p *state.Place) { p.Spilled = true })
		price := strconv.FormatFloat(o.v.Cost*o.pool.Price, 'g', -1, 64)
		b.record(KindSpill, g.Name, r.name, fmt.Sprintf("no room in the controller's own pool: placed in pool %s at a cost of %s", o.pool.Name, price),
			inputs{"pool": o.pool.Name, "cost": price, "price": strconv.FormatFloat(o.pool.Price, 'g', -1, 64), "variant": o.v.Name})
		return step{replica: r, place: &option{o.v, c}, spilled: true}, true
	}
	return step{refused: refused}, false
}

// dearness orders members by their pools, the one to leave first highest: external ones
// by their price, then the own one, and last where people expect them.
func (b *planBuilder) dearness(m *model, r *member) float64 {
	switch pool := b.poolOf(r); {
	case pool == "":
		return -1
	case b.expected(m, r):
		return -2
	default:
		return b.pools[pool].Price
	}
}
