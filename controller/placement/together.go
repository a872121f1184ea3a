package placement

import (
	"cmp"
	"math"
	"slices"
)

// MaxTogether is how many requests one joint search takes at most: it looks at all sets of them.
const MaxTogether = 8

// Bounds of a joint search.
const (
	jointNodes = 12 // that are searched
	perRequest = 4  // of which each request has at least so many of its own
)

// Together finds places for several requests, so that together they take the least of seconds
// and evictions, and less than below seconds. It counts on what tenants hold once what is under
// way is done, whatever Request.Future says; so a place may become free only later, by an
// eviction of its own choice or of another one. No tenant is evicted twice, and none wakes that
// is evicted.
//
// What a set of replicas costs on one node does not depend on other nodes. So the search finds
// that for each set and node, and then the cheapest way to share the requests among the nodes.
// This is exact for the nodes that are searched while the budget of steps lasts. These are the
// nodes in near, which has for each request the ID of a node where it could be placed alone,
// empty where none is known; those of its WARM replicas, and of others that share its weights; and those where room costs least.
//
// The choices are in the order of the requests, at most MaxTogether. They are nil where nothing
// was found below that. Nothing is changed.
func (f *Fleet) Together(rs []Request, near []string, below float64) []Choice {
	if len(rs) == 0 || len(rs) > MaxTogether {
		return nil
	}
	order := make([]int, len(rs))
	for i := range order {
		order[i] = i
		if rs[i].invalid() != "" {
			return nil
		}
	}
	// The biggest first: they have the fewest places.
	size := func(i int) int64 { return rs[i].Variant.Memory * int64(rs[i].Variant.GPUs) }
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(rs[b].Variant.GPUs, rs[a].Variant.GPUs), cmp.Compare(size(b), size(a)))
	})
	j := jointSearch{fleet: f, steps: jointSteps, limit: never, best: slices.Repeat([]nanos{never}, 1<<len(rs))}
	j.best[0] = 0
	if below < maxCost {
		j.limit = toNanos(below)
	}
	for _, i := range order {
		a := f.ask(&rs[i])
		a.ledger = later
		j.asks = append(j.asks, a)
		j.least = append(j.least, j.soonest(&a))
	}
	nodes := f.promising(j.asks, near)
	for _, n := range nodes {
		j.share(n)
	}
	if j.best[j.all()] >= j.limit {
		return nil
	}
	choices := make([]Choice, len(rs))
	for rest, i := j.all(), len(nodes)-1; rest != 0; i-- {
		set := j.taken[i][rest]
		if set == 0 {
			continue
		}
		for k, c := range j.choices(nodes[i], set, j.tries[i][set]) {
			choices[order[k]] = c
		}
		rest &^= set
	}
	return choices
}

// jointSearch shares requests among nodes.
type jointSearch struct {
	fleet *Fleet
	asks  []asking
	least []nanos // that each takes on any node
	limit nanos   // what is found must cost less
	steps int     // left
	// best is the least cost of each set of requests on the nodes so far. For each of these
	// nodes, taken is which of the set are on it then if it is the last, and tries has what each
	// set costs there.
	best  []nanos
	taken [][]requests
	tries [][]try
}

// try is one search for a set of requests on a node, and the cost that it found, never for none.
type try struct {
	cost, limit, floor nanos
	steps              int
}

// requests is a set of requests, as bits.
type requests uint

func (j *jointSearch) all() requests { return 1<<len(j.asks) - 1 }

// soonest is the least time that a request takes on any node.
func (j *jointSearch) soonest(a *asking) nanos {
	least := a.cold
	if len(a.OnDisk) > 0 {
		least = a.disk
	}
	if len(a.Warm) > 0 {
		least = min(least, a.warm)
	}
	return least
}

// share lets one more node take any set of the requests.
func (j *jointSearch) share(n *node) {
	count := j.all() + 1
	// The sets in this order come after all of their subsets.
	tries := make([]try, count)
	for set := requests(1); set < count; set++ {
		tries[set] = j.try(n, set, tries)
	}
	best, taken := slices.Clone(j.best), make([]requests, count)
	for all := requests(1); all < count; all++ {
		for set := all; set != 0; set = (set - 1) & all {
			if with := j.best[all&^set] + tries[set].cost; tries[set].cost < never && with < best[all] {
				best[all], taken[all] = with, set
			}
		}
	}
	j.best, j.taken, j.tries = best, append(j.taken, taken), append(j.tries, tries)
	j.limit = min(j.limit, best[j.all()]+1)
}

// try searches what a set of requests costs on a node: never where it has no room or is too
// dear to matter. The tries of its subsets are known.
func (j *jointSearch) try(n *node, set requests, tries []try) try {
	t := try{cost: never}
	var others nanos
	for k := range j.asks {
		if set>>k&1 == 0 {
			others += j.least[k]
			continue
		}
		fewer := tries[set&^(1<<k)].cost
		if fewer >= never {
			return t
		}
		t.floor = max(t.floor, fewer+j.least[k])
	}
	t.limit, t.steps = j.limit-others, min(setSteps, j.steps)
	if t.floor >= t.limit || t.steps <= 0 || !j.load(n, set) {
		return t
	}
	s := &j.fleet.search
	s.try(t)
	j.steps -= s.begun - max(s.steps, 0)
	if s.best.found {
		t.cost = s.best.total
	}
	return t
}

// try searches as for the first time.
func (s *search) try(t try) {
	s.best = solution{total: t.limit, count: math.MinInt, taken: s.best.taken[:0], victims: s.best.victims[:0], sites: s.best.sites[:0]}
	s.floor = t.floor
	s.run(t.steps)
	s.floor = 0
}

// choices are the places of a set of requests on a node that a try has found, by the numbers of
// the requests.
func (j *jointSearch) choices(n *node, set requests, t try) map[int]Choice {
	j.load(n, set)
	s := &j.fleet.search
	s.try(t)
	s.replay()
	var found []candidate
	for m := range s.members {
		found = append(found, s.candidate(m))
	}
	s.clear()
	seats := newSeating(later)
	for _, c := range found {
		seats.free(c.ways)
	}
	out := map[int]Choice{}
	for k, m := 0, 0; k < len(j.asks); k++ {
		if set>>k&1 == 1 {
			out[k] = j.fleet.choice(j.asks[k].Request, &found[m], seats)
			m++
		}
	}
	return out
}

// load loads a node, with a member for each request of a set. It reports whether each of them
// has a place there, if it were alone.
func (j *jointSearch) load(n *node, set requests) bool {
	s := &j.fleet.search
	s.reset(later)
	var in []*asking
	for k := range j.asks {
		if set>>k&1 == 1 {
			in = append(in, &j.asks[k])
		}
	}
	h := s.load(n, nil, func(t *tenant) uint64 {
		var mask uint64
		for m, a := range in {
			if a.MayEvict != nil && a.MayEvict(t.asked) {
				mask |= 1 << m
			}
		}
		return mask
	})
	at := map[*node]int{n: h}
	for k, a := range in {
		s.members = append(s.members, member{request: a.Request})
		for _, g := range n.groups {
			if n.CapacityPool != a.Pool || a.Variant.GPUModel != "" && g.part.model != a.Variant.GPUModel || a.Exclude[n.ID] {
				continue
			}
			st := site{shape: a.shape, group: g, memory: a.memory, base: a.cold, self: -1}
			if a.OnDisk[n.ID] {
				st.base = a.disk
			}
			s.sites(&st, h, g.gpus, nil, 1<<k)
			if s.siteBound(&st) < never {
				s.members[k].sites = append(s.members[k].sites, st)
			}
		}
		for _, c := range j.fleet.crowds[a.Weights] {
			if g := a.joins(c); g != nil && c.node == n {
				a.loadBeside(s, c, g, h, k)
			}
		}
		for i := range a.Warm {
			w := &a.Warm[i]
			j.fleet.loadWarm(a, w, k, at, nil)
			for _, c := range j.fleet.crowds[w.Weights] {
				j.fleet.loadWarm(a, w, k, at, c)
			}
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
		m.twin = k > 0 && s.twins(in[k-1], a, k)
	}
	return true
}

// twins reports whether two members ask for the same.
func (s *search) twins(a, b *asking, k int) bool {
	if a.shape != b.shape || a.memory != b.memory || a.cold != b.cold || a.Variant.GPUModel != b.Variant.GPUModel || a.Pool != b.Pool ||
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

// promising returns the nodes that a joint search looks at: where each could be alone, where its
// WARM replicas are, and for each request those that have its weights or where room costs least.
func (f *Fleet) promising(asks []asking, near []string) []*node {
	var nodes []*node
	add := func(n *node) bool {
		if n == nil || slices.Contains(nodes, n) || len(nodes) == jointNodes {
			return false
		}
		nodes = append(nodes, n)
		return true
	}
	for _, id := range near {
		add(f.byID[id])
	}
	for k := range asks {
		for i := range asks[k].Warm {
			if t := f.tenants[asks[k].Warm[i].Tenant]; t != nil {
				add(t.node)
			}
		}
		for _, c := range f.crowds[asks[k].Weights] {
			if asks[k].joins(c) != nil {
				add(c.node)
			}
		}
	}
	each := max(perRequest, jointNodes/len(asks))
	for k := range asks {
		a := &asks[k]
		left := each
		for _, id := range sorted(a.OnDisk) {
			if left > 0 && !a.Exclude[id] && add(f.byID[id]) {
				left--
			}
		}
		for _, p := range f.partitions(a.Pool, a.Variant.GPUModel) {
			p.cost(costShape{a.shape, a.memory}, f).list.from(0, func(e entry) bool {
				if n := p.groups[e.rank].node; !a.Exclude[n.ID] && add(n) {
					left--
				}
				return left > 0 && len(nodes) < jointNodes
			})
		}
	}
	return nodes
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
	left := map[*crowd]int{} // of those that somebody leaves, how many stay
	leave := func(ch change) {
		changes = append(changes, ch)
		if had := ch.t.uses[l].crowd; had != nil && had != ch.kept.crowd {
			if _, begun := left[had]; !begun {
				left[had] = had.size[l]
			}
			left[had]--
		}
	}
	if t := f.tenants[c.Wake]; t != nil {
		leave(change{t: t})
	}
	for _, e := range c.Evict {
		t := f.tenants[e.Tenant]
		if t == nil || t.node != n {
			continue
		}
		if i := slices.IndexFunc(f.waysOf(t), func(w Way) bool { return w.To == e.To }); i >= 0 {
			leave(change{t, f.use(n, &t.Ways[i].Holds)})
		}
	}
	need := f.use(n, new(c.holds()))
	for _, s := range need.shares {
		g := &n.gpus[s.gpu]
		free, held := g.free[l], g.held[l]
		for had, stay := range left {
			if stay == 0 && slices.Contains(had.gpus, s.gpu) {
				free += had.Bytes
			}
		}
		if need.crowd != nil && slices.Contains(need.crowd.gpus, s.gpu) {
			if stay, begun := left[need.crowd]; begun && stay == 0 || need.crowd.size[l] == 0 {
				free -= need.crowd.Bytes
			}
		}
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
