package placement

import (
	"cmp"
	"math"
	"slices"

	"remuda/controller/state"
)

// MaxTogether is how many requests one joint search takes at most: its work grows with the
// product of what each could have.
const MaxTogether = 8

// Bounds of a joint search.
const (
	jointGroups = 16 // groups of GPUs that are searched
	perMember   = 4  // of which each request has at least so many of its own
)

// Together finds places for several requests in one search, so that together they take the
// least of seconds and evictions, less than below seconds. It counts on what tenants hold once
// what is under way is done, whatever Request.Future says; so a place may become free only
// later, by an eviction of its own choice or of another one. No tenant is evicted twice, and
// none wakes that is evicted.
//
// near has for each request the ID of a node where it could be placed alone, empty where none
// is known: its GPUs are searched first. Requests are at most MaxTogether.
//
// The choices are in the order of the requests. They are nil where the search found nothing
// below that, within its budget of steps and groups. Nothing is changed.
func (f *Fleet) Together(rs []Request, near []string, below float64) []Choice {
	order := make([]int, len(rs))
	for i := range order {
		order[i] = i
		if rs[i].invalid() != "" {
			return nil
		}
	}
	if len(rs) == 0 || len(rs) > MaxTogether {
		return nil
	}
	// The biggest first: they have the fewest places.
	size := func(i int) int64 { return rs[i].Variant.Memory * int64(rs[i].Variant.GPUs) }
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(rs[b].Variant.GPUs, rs[a].Variant.GPUs), cmp.Compare(size(b), size(a)))
	})
	asks := make([]asking, len(order))
	nodes := make([]string, len(order))
	for k, i := range order {
		asks[k] = f.ask(&rs[i])
		asks[k].ledger = later
		nodes[k] = near[i]
	}
	if !f.loadTogether(asks, f.promising(asks, nodes)) {
		return nil
	}
	limit := never
	if below < maxCost {
		limit = toNanos(below)
	}
	s := &f.search
	s.best = solution{total: limit, count: math.MinInt, taken: s.best.taken[:0], victims: s.best.victims[:0], sites: s.best.sites[:0]}
	s.run(batchSteps)
	if !s.best.found {
		return nil
	}
	found := make([]candidate, len(order))
	s.replay()
	for k := range order {
		found[k] = s.candidate(k)
	}
	s.clear()
	seats := newSeating(later)
	for k := range found {
		seats.free(found[k].ways)
	}
	choices := make([]Choice, len(rs))
	for k, i := range order {
		choices[i] = f.choice(&rs[i], &found[k], seats)
	}
	return choices
}

// loadTogether loads the groups, and makes a member of each request. It reports whether each
// of them has a place, if it were alone.
func (f *Fleet) loadTogether(asks []asking, groups []*group) bool {
	s := &f.search
	s.reset(later)
	may := func(t *tenant) uint64 {
		var mask uint64
		for k := range asks {
			if m := asks[k].MayEvict; m != nil && m(t.asked) {
				mask |= 1 << k
			}
		}
		return mask
	}
	at := map[*node]int{}
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
			return false
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
	return true
}

// twins reports whether two members ask for the same.
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

// promising returns the groups that a joint search loads: where each could be alone, where its
// WARM replicas are, and for each request those where room costs least.
func (f *Fleet) promising(asks []asking, near []string) []*group {
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
	addNode := func(n *node) {
		if n != nil {
			for _, g := range n.groups {
				add(g)
			}
		}
	}
	for k := range asks {
		for i := range asks[k].Warm {
			if t := f.tenants[asks[k].Warm[i].Tenant]; t != nil {
				addNode(t.node)
			}
		}
	}
	for _, id := range near {
		addNode(f.byID[id])
	}
	each := max(perMember, jointGroups/len(asks))
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

// Fits reports whether the place of a choice is free once its own evictions are done: now, or
// with future once what is under way is done as well.
func (f *Fleet) Fits(c *Choice, future bool) bool {
	l := now
	if future {
		l = later
	}
	n := f.byID[c.Placement.Node]
	if n == nil || n.Usable() != "" {
		return false
	}
	type change struct {
		t    *tenant
		kept use
	}
	var changes []change
	if t := f.tenants[c.Wake]; t != nil {
		changes = append(changes, change{t: t})
	}
	for _, e := range c.Evict {
		t := f.tenants[e.Tenant]
		if t == nil || t.node != n {
			continue
		}
		if i := slices.IndexFunc(f.waysOf(t), func(w Way) bool { return w.To == e.To }); i >= 0 {
			changes = append(changes, change{t, n.use(&t.Ways[i].Holds)})
		}
	}
	need := n.use(&state.Holding{Seats: c.Placement.Seats, Memory: c.Placement.Memory})
	for _, s := range need.shares {
		g := &n.gpus[s.gpu]
		free, held := g.free[l], g.held[l]
		for _, ch := range changes {
			had, kept := ch.t.uses[l].of(s.gpu), ch.kept.of(s.gpu)
			free += had.memory - kept.memory
			held &^= had.seats &^ kept.seats &^ g.twice[l]
		}
		if free < s.memory || held&s.seats != 0 {
			return false
		}
	}
	return true
}
