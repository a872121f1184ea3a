package placement

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"remuda/controller/state"
	"remuda/internal/bytesize"
)

// candidate is a place that may be chosen.
type candidate struct {
	solution
	node *node
	wake *Warm
	// gpus of the node, those with memory first, uses of them.
	gpus []int
	uses int
	ways []goes
	// shared bytes on each GPU are there already, because others have the same weights there.
	shared int64
}

// goes is a tenant that is evicted.
type goes struct {
	t   *tenant
	way int
	by  int
}

// asking is a request on its way.
type asking struct {
	*Request
	shape
	memory     int64
	cold, disk nanos // until a new replica serves
	warm       nanos // until a WARM one does
	crowded    int   // of the places that fits looks for now
	wanted     int   // groups with the same bound that are looked at, see ties
	steps      int
}

// ties is in how many groups with the same bound on the cost the best fit is looked for.
const ties = 32

// directly is up to how many nodes with the weights are looked at one by one.
const directly = 128

func (f *Fleet) ask(r *Request) asking {
	v := r.Variant
	weights := Weights(v)
	a := asking{
		Request: r, shape: shape{gpus: v.GPUs, reach: max(v.Reach, v.GPUs), seats: r.SeatsPerGPU()}, memory: v.Memory,
		cold: toNanos(f.conf.Rates.ColdSeconds(weights, false)), disk: toNanos(f.conf.Rates.ColdSeconds(weights, true)),
		warm: toNanos(f.conf.Rates.WarmSeconds(weights)), wanted: ties, steps: placeSteps,
	}
	if r.Future {
		a.ledger = later
	}
	return a
}

// invalid says why nothing could ever be placed for a request.
func (r *Request) invalid() string {
	if Degree(r.Variant.GPUs) != r.Variant.GPUs || r.Variant.GPUs == 0 {
		return fmt.Sprintf("a replica on %s: the number of GPUs (tensor-parallel degree) must be 1, 2, 4, 8 or 16", plural(r.Variant.GPUs, "GPU"))
	}
	return ""
}

// Place finds the place with the least of seconds until it serves and cost of what must
// go, then the one without evictions, then the best fit: the least memory left on the
// fullest GPU, the fewest seats left, the first node by name. It changes nothing.
func (f *Fleet) Place(r Request) (Choice, *Refusal) {
	best := f.best(&r)
	if best == nil {
		return Choice{}, f.refusal(&r)
	}
	l := now
	if r.Future {
		l = later
	}
	seats := newSeating(l)
	seats.free(best.ways)
	return f.choice(&r, best, seats), nil
}

// best returns the best place, nil where there is none.
func (f *Fleet) best(r *Request) *candidate {
	if r.invalid() != "" {
		return nil
	}
	a := f.ask(r)
	best := &candidate{solution: solution{total: never, memory: 1<<63 - 1, seats: 1 << 30}}
	f.fits(&a, best)
	f.wakes(&a, best)
	f.beside(&a, best)
	if r.MayEvict != nil {
		f.evicts(&a, best)
	}
	if best.node == nil {
		return nil
	}
	return best
}

// fits looks for the best place where nothing has to go: first for one where every WARM replica could
// still wake, then for any if that one would serve sooner.
func (f *Fleet) fits(a *asking, best *candidate) {
	soonest := a.cold
	if len(a.OnDisk) > 0 {
		soonest = a.disk
	}
	if a.ledger == now && f.sleepers > 0 {
		a.ledger = awake
		f.fitsIn(a, best)
		a.ledger = now
		if best.node != nil {
			best.memory = best.node.memoryLeft(best.gpus[:best.uses]) - a.memory
			if best.total <= soonest {
				return
			}
		}
		a.crowded = 1
	}
	f.fitsIn(a, best)
}

// memoryLeft returns the free memory of the fullest of some GPUs.
func (n *node) memoryLeft(gpus []int) int64 {
	left := int64(math.MaxInt64)
	for _, g := range gpus {
		left = min(left, n.gpus[g].free[now])
	}
	return left
}

// fitsIn looks for the best place by the ledger of a.
func (f *Fleet) fitsIn(a *asking, best *candidate) {
	for _, p := range f.partitions(a.Pool, a.Variant.GPUModel) {
		few := len(a.OnDisk) <= directly
		if few {
			for id := range a.OnDisk {
				n := f.byID[id]
				if n == nil || a.Exclude[id] {
					continue
				}
				for _, g := range n.groups {
					if g.part != p {
						continue
					}
					if gpus, e := g.first(a.shape, a.memory, nil, nil); gpus != nil {
						f.fit(a, best, n, gpus, e, a.disk)
					}
				}
			}
		}
		x := p.fit(a.shape, &f.changed)
		seen := false
		x.list.from(a.memory, func(e entry) bool {
			n := p.groups[e.rank].node
			onDisk := len(a.OnDisk) > 0 && a.OnDisk[n.ID]
			if len(a.Exclude) > 0 && a.Exclude[n.ID] || seen && !onDisk || onDisk && few {
				return true
			}
			seconds := a.cold
			if onDisk {
				seconds = a.disk
			}
			f.fit(a, best, n, x.place(e), e, seconds)
			seen = true
			return !onDisk && !few
		})
	}
}

// fit takes a place where nothing has to go if it is better.
func (f *Fleet) fit(a *asking, best *candidate, n *node, gpus []int, e entry, seconds nanos) {
	s := solution{found: true, total: seconds, crowded: a.crowded, memory: e.first - a.memory, seats: int(e.second)}
	if c := s.compare(&best.solution); c > 0 || c == 0 && best.node != nil && best.node.rank <= n.rank {
		return
	}
	*best = candidate{solution: s, node: n, gpus: append(best.gpus[:0], gpus...), uses: a.gpus}
}

// wakes looks at each WARM replica: whether there is room, or can be made, on GPUs on
// which it has a seat.
func (f *Fleet) wakes(a *asking, best *candidate) {
	if a.warm > best.total {
		return
	}
	for i := range a.Warm {
		w := &a.Warm[i]
		s := &f.search
		for _, c := range append([]*crowd{nil}, f.crowds[w.Weights]...) {
			s.reset(a.ledger)
			s.members = append(s.members, member{request: a.Request, least: a.warm})
			if n := f.loadWarm(a, w, 0, nil, c); n != nil && len(s.members[0].sites) > 0 {
				f.look(a, best, n)
			}
		}
	}
}

// loadWarm adds the site where a replica wakes to member m of the search, and returns
// its node; nil where it cannot wake. The node is loaded where at is nil. With a crowd, it wakes on exactly the
// GPUs of the crowd and shares its weights.
func (f *Fleet) loadWarm(a *asking, w *Warm, m int, at map[*node]int, with *crowd) *node {
	s := &f.search
	t := f.tenants[w.Tenant]
	if t == nil || t.taken || t.node.Usable() != "" || t.node.CapacityPool != a.Pool || a.Exclude[t.node.ID] {
		return nil
	}
	if t.After != nil && len(t.After.Seats) == 0 {
		return nil // it is on its way to COLD
	}
	if with != nil && (with.node != t.node || with.size[a.ledger] == 0 || len(with.gpus) != len(w.Placement.Memory) || with.Bytes != w.Placement.SharedMemory) {
		return nil
	}
	n := t.node
	h, loaded := at[n]
	if !loaded {
		if at != nil {
			return nil
		}
		h = s.load(n, nil, a.mayEvict(t))
	}
	held := f.use(n, &state.Holding{Seats: w.Placement.Seats})
	var gpus []int
	var credit []int64
	for _, sh := range held.shares {
		if g := n.gpus[sh.gpu].GPU; g.OutOfUse() != "" || with != nil && !slices.Contains(with.gpus, sh.gpu) {
			continue
		}
		gpus = append(gpus, sh.gpu)
		credit = append(credit, t.uses[a.ledger].of(sh.gpu).memory)
	}
	want := len(w.Placement.Memory)
	if want == 0 {
		want = a.gpus
	}
	st := site{shape: shape{ledger: a.ledger, gpus: want, reach: want}, memory: a.memory, base: a.warm, wake: w, self: -1}
	if with != nil {
		s.join(&st, with, s.hosts[h].first)
	}
	for i := range s.victims {
		if s.victims[i].t == t {
			st.self = i
		}
	}
	s.sites(&st, h, gpus, credit, 1<<m)
	if s.siteBound(&st) < never {
		s.members[m].sites = append(s.members[m].sites, st)
	}
	return n
}

// beside looks at the GPUs that already have the request's weights. A new replica takes only the rest of its memory
// there, as long as one of the replicas that share them stays.
func (f *Fleet) beside(a *asking, best *candidate) {
	for _, c := range f.crowds[a.Weights] {
		seconds := a.cold
		if a.OnDisk[c.node.ID] {
			seconds = a.disk
		}
		g := a.joins(c)
		if g == nil || seconds > best.total {
			continue
		}
		s := &f.search
		s.reset(a.ledger)
		h := s.load(c.node, g, a.mayEvict(nil))
		s.members = append(s.members, member{request: a.Request, least: seconds})
		if a.loadBeside(s, c, g, h, 0); len(s.members[0].sites) > 0 {
			f.look(a, best, c.node)
		}
	}
}

// loadBeside adds the site beside a crowd to member m of the search, which has loaded the node as h.
func (a *asking) loadBeside(s *search, c *crowd, g *group, h, m int) {
	st := site{shape: a.shape, group: g, memory: a.memory, base: a.cold, self: -1}
	if a.OnDisk[c.node.ID] {
		st.base = a.disk
	}
	s.join(&st, c, s.hosts[h].first)
	s.sites(&st, h, c.gpus, nil, 1<<m)
	if s.siteBound(&st) < never {
		s.members[m].sites = append(s.members[m].sites, st)
	}
}

// joins returns the group of a crowd's GPUs if the crowd has tenants and a new replica may use these GPUs, else nil.
func (a *asking) joins(c *crowd) *group {
	if c.size[a.ledger] == 0 || c.node.CapacityPool != a.Pool || a.Exclude[c.node.ID] ||
		len(c.gpus) != a.gpus || a.reach != a.gpus || c.Bytes != a.Variant.SharedMemory {
		return nil
	}
	for _, g := range c.node.groups {
		if (a.Variant.GPUModel == "" || a.Variant.GPUModel == g.part.model) && !slices.ContainsFunc(c.gpus, func(i int) bool { return !slices.Contains(g.gpus, i) }) {
			return g
		}
	}
	return nil
}

// mayEvict tells of a tenant whether it may go, never of self.
func (a *asking) mayEvict(self *tenant) func(*tenant) uint64 {
	return func(t *tenant) uint64 {
		if t != self && a.MayEvict != nil && a.MayEvict(t.asked) {
			return 1
		}
		return 0
	}
}

// look runs the search on what is loaded of one node, and takes what it finds if it is
// better.
func (f *Fleet) look(a *asking, best *candidate, n *node) {
	s := &f.search
	limit := best.solution
	if best.node != nil && n.rank < best.node.rank {
		limit.seats++ // the first by name is better where all else is equal
	}
	limit.found, limit.taken, limit.victims, limit.sites = false, s.best.taken[:0], s.best.victims[:0], s.best.sites[:0]
	s.best = limit
	budget := s.most
	if a.steps <= 0 {
		budget = min(s.most, fewSteps)
	}
	s.run(budget)
	a.steps -= s.begun - max(s.steps, 0)
	if s.best.found {
		*best = s.candidate(0)
	}
}

// candidate is what the search found for a member. The memory and seats that it leaves are
// those of a single member, or as they are after replay.
func (s *search) candidate(m int) candidate {
	st := &s.members[m].sites[s.best.sites[m]]
	c := candidate{solution: s.best, wake: st.wake, shared: st.shared}
	c.taken, c.victims, c.sites = nil, nil, nil
	c.total = st.base
	if len(s.members) > 1 {
		c.memory, c.seats, c.moved = math.MaxInt64, 0, 0
		for _, t := range s.best.taken {
			if t.member != m {
				continue
			}
			c.seats += s.slots[t.slot].seats
			if t.uses {
				c.memory = min(c.memory, s.slots[t.slot].free)
				c.moved += boolInt(st.wake != nil && !s.slept(st.wake, t.slot))
			}
		}
	}
	for _, uses := range []bool{true, false} {
		for _, t := range s.best.taken {
			if t.member != m || t.uses != uses {
				continue
			}
			sl := &s.slots[t.slot]
			c.node = s.hosts[sl.node].node
			c.gpus = append(c.gpus, sl.gpu)
			if uses {
				c.uses++
			}
		}
	}
	for _, v := range s.best.victims {
		if v.by == m {
			own := &s.victims[v.victim]
			c.ways = append(c.ways, goes{own.t, own.options[v.option].freeing.way, m})
			c.total += own.options[v.option].freeing.cost
		}
	}
	return c
}

// evicts looks for places where something has to go, from the groups on where that may
// cost least.
func (f *Fleet) evicts(a *asking, best *candidate) {
	shape := costShape{a.shape, a.memory}
	few := len(a.OnDisk) <= directly
	soonest := a.cold
	if len(a.OnDisk) > 0 {
		soonest = a.disk
	}
	if best.count == 0 && best.total <= soonest {
		return
	}
	for _, p := range f.partitions(a.Pool, a.Variant.GPUModel) {
		base := a.cold
		if few {
			for _, id := range sorted(a.OnDisk) {
				if n := f.byID[id]; n != nil && !a.Exclude[id] {
					for _, g := range n.groups {
						if g.part == p {
							f.lookAt(a, best, g, a.disk)
						}
					}
				}
			}
		} else {
			base = a.disk
		}
		equal := 0
		x := p.cost(shape, f)
		var learned []entry
		x.list.from(0, func(e entry) bool {
			bound := base + nanos(e.first)
			if bound > best.total || bound == best.total && best.count == 0 {
				return false
			}
			if bound == best.total {
				if equal++; equal > a.wanted {
					return false
				}
			}
			g := p.groups[e.rank]
			id := g.node.ID
			if len(a.Exclude) > 0 && a.Exclude[id] {
				return true
			}
			seconds := a.cold
			if len(a.OnDisk) > 0 && a.OnDisk[id] {
				if few {
					return true
				}
				seconds = a.disk
			}
			if seconds+nanos(e.first) > best.total {
				return true
			}
			limit := best.total
			f.lookAt(a, best, g, seconds)
			if least := f.search.learned(limit); seconds+nanos(e.first) < least {
				learned = append(learned, entry{first: int64(least - seconds), rank: e.rank})
			}
			return true
		})
		for _, e := range learned {
			x.raise(e)
		}
	}
}

func sorted(set map[string]bool) []string {
	keys := make([]string, 0, len(set))
	for k, in := range set {
		if in {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys
}

// lookAt searches in one group.
func (f *Fleet) lookAt(a *asking, best *candidate, g *group, seconds nanos) {
	s := &f.search
	s.reset(a.ledger)
	s.best.found = false
	h := s.load(g.node, g, a.mayEvict(nil))
	st := site{shape: a.shape, group: g, memory: a.memory, base: seconds, self: -1}
	s.sites(&st, h, g.gpus, nil, 1)
	bound := s.siteBound(&st)
	if bound >= never || seconds+bound > best.total || seconds+bound == best.total && best.count == 0 {
		return
	}
	s.members = append(s.members, member{request: a.Request, least: seconds, sites: []site{st}})
	f.look(a, best, g.node)
}

// seating is which seats are given to choices that belong together.
type seating struct {
	ledger      int
	gone, given map[*gpu]uint64 // by evictions, to choices
}

func newSeating(ledger int) *seating {
	return &seating{ledger, map[*gpu]uint64{}, map[*gpu]uint64{}}
}

// free frees the seats of tenants that are evicted.
func (s *seating) free(ways []goes) {
	for _, w := range ways {
		for _, sh := range w.t.freeing(s.ledger, w.way).shares {
			g := &w.t.node.gpus[sh.gpu]
			s.gone[g] |= sh.seats &^ g.twice[s.ledger]
		}
	}
}

// take gives out so many seats of a GPU: first those that nobody holds in either ledger.
func (s *seating) take(g *gpu, count int) []string {
	var out []string
	l := s.ledger
	for _, held := range []uint64{g.held[now] | g.held[later], g.held[l] &^ s.gone[g]} {
		for i := 0; i < len(g.times[l]) && count > 0; i++ {
			if bit := uint64(1) << i; (held|s.given[g])&bit == 0 {
				s.given[g] |= bit
				out = append(out, g.Seats[i])
				count--
			}
		}
	}
	return out
}

// choice puts a candidate in words and numbers.
func (f *Fleet) choice(r *Request, c *candidate, seats *seating) Choice {
	n := c.node
	out := Choice{Level: Free}
	var cost nanos
	for _, g := range c.ways {
		w := &g.t.Ways[g.way]
		fr := g.t.freeing(seats.ledger, g.way)
		cost += fr.cost
		out.Evict = append(out.Evict, Eviction{Tenant: g.t.Name, To: w.To, Cost: fr.cost.seconds()})
	}
	slices.SortFunc(out.Evict, func(a, b Eviction) int { return strings.Compare(a.Tenant, b.Tenant) })
	out.Cost, out.Seconds = cost.seconds(), (c.total - cost).seconds()

	uses := slices.Clone(c.gpus[:c.uses])
	slices.Sort(uses)
	memory := make(map[string]int64, len(uses))
	uuids := make([]string, len(uses))
	for i, g := range uses {
		uuids[i] = n.gpus[g].UUID
		memory[uuids[i]] = r.Variant.Memory
	}
	if c.wake != nil {
		out.Level, out.Wake, out.Placement = CachedAndFree, c.wake.Tenant, c.wake.Placement
		out.Placement.Memory = memory
		out.Weights = state.NewWeights(c.wake.Weights, &out.Placement)
	} else {
		all := slices.Clone(c.gpus)
		slices.Sort(all)
		ids := make([]string, 0, len(all)*r.SeatsPerGPU())
		for _, i := range all {
			ids = append(ids, seats.take(&n.gpus[i], r.SeatsPerGPU())...)
		}
		out.Placement = state.Placement{Node: n.ID, Seats: ids, Memory: memory, HostMemory: r.Variant.HostMemory, SleepMemory: r.Variant.SleepMemory, SharedMemory: r.Variant.SharedMemory}
		out.Weights = state.NewWeights(r.Weights, &out.Placement)
	}
	if len(out.Evict) > 0 {
		out.Level += CachedAndFull - CachedAndFree
	}
	out.Inputs = map[string]string{
		"node": n.Name, "level": out.Level.String(), "gpus": strings.Join(uuids, ","), "seats": strings.Join(out.Placement.Seats, ","),
		"memory_per_gpu": strconv.FormatInt(r.Variant.Memory, 10), "memory_left": strconv.FormatInt(c.memory, 10),
		"seats_left": strconv.Itoa(c.seats), "seconds": number(out.Seconds), "cost": number(out.Cost),
	}
	if c.shared > 0 {
		out.Inputs["memory_shared"] = strconv.FormatInt(c.shared, 10)
	}
	out.Why = f.why(r, c, &out)
	return out
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

func number(v float64) string { return strconv.FormatFloat(v, 'f', 1, 64) }

// freeing is what one way gives back.
func (t *tenant) freeing(l, way int) *freeing {
	all := t.ways[l] // a search has made them
	for i := range all {
		if all[i].way == way {
			return &all[i]
		}
	}
	return &freeing{way: way}
}

func (f *Fleet) why(r *Request, c *candidate, out *Choice) string {
	var b strings.Builder
	b.WriteString("on node ")
	b.WriteString(cmp.Or(c.node.Name, c.node.ID))
	switch {
	case c.wake != nil:
		b.WriteString(": " + out.Wake + " is WARM and ready in about " + number(out.Seconds) + " s")
		if c.moved > 0 {
			b.WriteString(", on other GPUs than before")
		}
	case r.OnDisk[c.node.ID]:
		b.WriteString(", which has the weights: ready in about " + number(out.Seconds) + " s")
	default:
		b.WriteString(", ready in about " + number(out.Seconds) + " s")
	}
	if len(out.Evict) > 0 {
		b.WriteString("; evicts ")
		for i, e := range out.Evict {
			switch {
			case i == named && len(out.Evict) > named+1:
				fmt.Fprintf(&b, " and %d more", len(out.Evict)-named)
			case i > named:
			case i > 0:
				b.WriteString(", ")
				fallthrough
			default:
				fmt.Fprintf(&b, "%s to %s", e.Tenant, e.To)
			}
		}
		b.WriteString(", at a cost of " + number(out.Cost) + " s")
		out.Inputs["evict"] = strconv.Itoa(len(out.Evict))
	}
	if c.shared > 0 {
		b.WriteString("; shares " + bytesize.Text(c.shared) + " of weights on each GPU")
	}
	b.WriteString("; ")
	b.WriteString(bytesize.Text(c.memory))
	b.WriteString(" of GPU memory and ")
	b.WriteString(plural(c.seats, "seat"))
	b.WriteString(" stay free there")
	return b.String()
}
