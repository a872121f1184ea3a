package placement

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"remuda/controller/state"
)

// Bounds of what is tried for a batch.
const (
	jointMembers = 8  // so many are placed in one search, in more each is placed for itself
	jointGroups  = 16 // and it looks at so many groups
	perMember    = 4  // of which each member has at least so many of its own
	reorders     = 4  // how often those without a place are tried first
)

// PlaceBatch places several at once, the biggest first, so that together they take the
// least of seconds and evictions; an answer for each request, in the same order. None is
// evicted for another, and what is evicted for two counts for one of them: each choice
// holds once the evictions of all are done. Where each for itself needs evictions, or
// finds no place, all are placed in one search, which is exact while its budget lasts. It
// changes nothing.
func (f *Fleet) PlaceBatch(rs []Request) []Answer {
	order := make([]int, len(rs))
	for i := range order {
		order[i] = i
	}
	size := func(i int) int64 { return rs[i].Variant.Memory * int64(rs[i].Variant.GPUs) }
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(rs[b].Variant.GPUs, rs[a].Variant.GPUs), cmp.Compare(size(b), size(a)))
	})
	best := f.inTurn(rs, order)
	if best.dear || best.missing > 0 {
		if joint := f.joint(rs, order, best); joint != nil {
			best = joint
		}
	}
	for range reorders {
		if best.missing == 0 {
			break
		}
		slices.SortStableFunc(order, func(a, b int) int {
			return cmp.Compare(boolInt(best.answers[a].Refusal == nil), boolInt(best.answers[b].Refusal == nil))
		})
		again := f.inTurn(rs, order)
		if again.missing >= best.missing {
			break
		}
		best = again
	}
	return best.answers
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// outcome is what became of a batch.
type outcome struct {
	answers []Answer
	missing int
	total   nanos
	count   int
	dear    bool    // something has to go
	places  []*node // where its members are
}

// inTurn places each for itself, in an order.
func (f *Fleet) inTurn(rs []Request, order []int) *outcome {
	t := trial{fleet: f}
	defer t.undo()
	out := &outcome{answers: make([]Answer, len(rs))}
	for _, i := range order {
		r := &rs[i]
		c := f.best(r)
		if c == nil {
			out.answers[i].Refusal = f.refusal(r)
			out.answers[i].Refusal.Nodes() // while the others are there
			out.missing++
			continue
		}
		out.answers[i].Choice = f.choice(r, c, false)
		out.total += c.total
		out.count += len(c.ways)
		out.dear = out.dear || len(c.ways) > 0
		out.places = append(out.places, c.node)
		for _, g := range c.ways {
			t.evict(g)
		}
		t.hold(i, &out.answers[i].Choice)
	}
	out.merge(order)
	return out
}

// merge puts what was evicted for two, WARM for the one and COLD for the other, to the
// first.
func (o *outcome) merge(order []int) {
	first := map[string]*Choice{}
	for _, i := range order {
		c := &o.answers[i].Choice
		kept := c.Evict[:0]
		for _, e := range c.Evict {
			owner := first[e.Tenant]
			if owner == nil {
				first[e.Tenant] = c
				kept = append(kept, e)
				continue
			}
			at := slices.IndexFunc(owner.Evict, func(x Eviction) bool { return x.Tenant == e.Tenant })
			owner.Evict[at].To = e.To
			owner.Evict[at].Cost += e.Cost
			owner.Cost += e.Cost
			c.Cost = max(0, c.Cost-e.Cost)
			o.count--
		}
		c.Evict = kept
	}
}

// trial changes a fleet for a while.
type trial struct {
	fleet *Fleet
	saved []saved
}

type saved struct {
	name string
	old  *tenant
}

func (t *trial) put(n *tenant) {
	t.saved = append(t.saved, saved{n.Name, t.fleet.tenants[n.Name]})
	t.fleet.put(n)
}

func (t *trial) undo() {
	for _, s := range slices.Backward(t.saved) {
		t.fleet.Drop(s.name)
		if s.old != nil {
			t.fleet.put(s.old)
		}
	}
}

// evict makes a tenant what it is after a way. It may go further, at what that costs
// more.
func (t *trial) evict(g goes) {
	w := g.t.Ways[g.way]
	after := &tenant{Tenant: g.t.Tenant, asked: g.t.asked, taken: true}
	after.Holds, after.After, after.Ways, after.Priced = w.Holds, nil, nil, false
	for _, more := range g.t.Ways {
		if more.To != w.To && more.Cost >= w.Cost {
			more.Cost -= w.Cost
			after.Ways = append(after.Ways, more)
		}
	}
	t.put(after)
}

// hold gives member i its place.
func (t *trial) hold(i int, c *Choice) {
	p := c.Placement
	own := &tenant{Tenant: Tenant{Name: fmt.Sprintf("\x00%d", i), Node: p.Node, Holds: state.Holding{Seats: p.Seats, Memory: p.Memory}}}
	if c.Wake != "" {
		own.Name = c.Wake
		own.Holds.HostMemory, own.taken = p.HostMemory, true
	}
	own.asked = &own.Tenant
	t.put(own)
}

// joint places all in one search, and returns nil where it finds nothing better than
// what is there.
func (f *Fleet) joint(rs []Request, order []int, than *outcome) *outcome {
	if len(rs) > jointMembers {
		return nil
	}
	asks := make([]asking, len(order))
	for k, i := range order {
		if rs[i].invalid() != "" || rs[i].Future != rs[order[0]].Future {
			return nil
		}
		asks[k] = f.ask(&rs[i])
	}
	s := &f.search
	groups := f.promising(asks, than)
	s.reset(asks[0].ledger)
	at := map[*node]int{}
	may := func(t *tenant) uint64 {
		var mask uint64
		for k := range asks {
			if m := asks[k].MayEvict; m != nil && m(t.asked) {
				mask |= 1 << k
			}
		}
		return mask
	}
	for _, g := range groups {
		if _, ok := at[g.node]; !ok {
			at[g.node] = s.load(g.node, nil, may)
		}
	}
	for k := range asks {
		a := &asks[k]
		s.members = append(s.members, member{request: a.Request})
		for _, g := range groups {
			if g.node.CapacityPool != a.Pool || a.Variant.GPUModel != "" && g.part.model != a.Variant.GPUModel || a.Exclude[g.node.ID] {
				continue
			}
			st := site{shape: a.shape, group: g, memory: a.memory, base: a.cold, self: -1}
			if a.OnDisk[g.node.ID] {
				st.base = a.disk
			}
			s.sites(&st, at[g.node], g.gpus, nil, 1<<k)
			if s.siteBound(&st) < never {
				s.members[k].sites = append(s.members[k].sites, st)
			}
		}
		for w := range a.Warm {
			f.loadWarm(a, &a.Warm[w], k, at)
		}
		m := &s.members[k]
		if len(m.sites) == 0 {
			return nil
		}
		slices.SortStableFunc(m.sites, func(x, y site) int {
			return cmp.Compare(x.base+s.siteBound(&x), y.base+s.siteBound(&y))
		})
		m.least = never
		for i := range m.sites {
			m.least = min(m.least, m.sites[i].base)
		}
		m.twin = k > 0 && s.twins(&asks[k-1], a, k)
	}
	limit := solution{total: never, count: math.MaxInt, taken: s.best.taken[:0], victims: s.best.victims[:0], sites: s.best.sites[:0]}
	if than.missing == 0 {
		limit.total, limit.count, limit.memory = than.total, than.count, math.MaxInt64
		limit.moved = -1 // only something cheaper
	}
	s.best = limit
	s.run(batchSteps)
	if !s.best.found {
		return nil
	}
	return f.together(rs, order)
}

// twins tells whether two members ask for the same.
func (s *search) twins(a, b *asking, k int) bool {
	if a.shape != b.shape || a.memory != b.memory || a.Variant != b.Variant || a.Pool != b.Pool ||
		len(a.Warm)+len(b.Warm)+len(a.Exclude)+len(b.Exclude)+len(a.OnDisk)+len(b.OnDisk) > 0 {
		return false
	}
	for i := range s.victims {
		if s.victims[i].may>>k&1 != s.victims[i].may>>(k-1)&1 {
			return false
		}
	}
	return true
}

// promising are the groups that a joint search looks at: those on the nodes where each
// for itself is, and for each member those where room costs least.
func (f *Fleet) promising(asks []asking, than *outcome) []*group {
	var groups []*group
	seen := map[*group]bool{}
	add := func(g *group) bool {
		if !seen[g] && len(groups) < jointGroups {
			seen[g] = true
			groups = append(groups, g)
			return true
		}
		return false
	}
	for k := range asks {
		for i := range asks[k].Warm {
			if t := f.tenants[asks[k].Warm[i].Tenant]; t != nil {
				for _, g := range t.node.groups {
					add(g)
				}
			}
		}
	}
	for _, n := range than.places {
		for _, g := range n.groups {
			add(g)
		}
	}
	each := max(perMember, jointGroups/max(1, len(asks)))
	for k := range asks {
		a := &asks[k]
		left := each
		for _, id := range sorted(a.OnDisk) {
			if n := f.byID[id]; n != nil && left > 0 && !a.Exclude[id] {
				for _, g := range n.groups {
					if add(g) {
						left--
					}
				}
			}
		}
		for _, p := range f.partitions(a.Pool, a.Variant.GPUModel) {
			p.cost(costShape{a.shape, a.memory}, f).list.from(0, func(e entry) bool {
				if g := p.groups[e.rank]; !a.Exclude[g.node.ID] && add(g) {
					left--
				}
				return left > 0 && len(groups) < jointGroups
			})
		}
	}
	return groups
}

// together makes answers of what the search found.
func (f *Fleet) together(rs []Request, order []int) *outcome {
	t := trial{fleet: f}
	defer t.undo()
	out := &outcome{answers: make([]Answer, len(rs)), total: f.search.best.total, count: f.search.best.count, dear: f.search.best.count > 0}
	found := make([]candidate, len(order))
	for k := range order {
		found[k] = f.search.candidate(k)
		for _, g := range found[k].ways {
			t.evict(g)
		}
	}
	for k, i := range order {
		c := &found[k]
		c.left(&rs[i], f)
		out.answers[i].Choice = f.choice(&rs[i], c, true)
		out.places = append(out.places, c.node)
		t.hold(i, &out.answers[i].Choice)
	}
	return out
}

// left says what a candidate leaves on its GPUs as the fleet is now.
func (c *candidate) left(r *Request, f *Fleet) {
	a := f.ask(r)
	c.memory, c.seats = math.MaxInt64, 0
	for k, i := range c.gpus {
		g := &c.node.gpus[i]
		if c.wake == nil {
			c.seats += g.freeSeats(a.ledger) - a.seats
		}
		if k >= c.uses {
			continue
		}
		free := g.free[a.ledger] - a.memory
		if c.wake != nil {
			free += f.tenants[c.wake.Tenant].uses[a.ledger].of(i).memory
		}
		c.memory = min(c.memory, free)
	}
}
