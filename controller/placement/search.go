package placement

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
)

// nanos is a cost or a time in billionths of a second: sums of it do not depend on the
// order in which they are made.
type nanos int64

// never is more than any sum of costs.
const (
	never   nanos = math.MaxInt64 / 4
	maxCost       = 1e6 // seconds
)

func toNanos(seconds float64) nanos {
	if !(seconds > 0) {
		return 0
	}
	return nanos(math.Round(min(seconds, maxCost) * 1e9))
}

func (n nanos) seconds() float64 { return float64(n) / 1e9 }

// Budgets of a search, in steps of some 100 ns each.
const (
	groupSteps = 20_000  // in one group, before what was found so far is taken
	tieSteps   = 2_000   // of these, as long as places of the same cost are compared
	placeSteps = 400_000 // in one decision, before groups get few
	fewSteps   = 500
	batchSteps = 600_000 // in one batch
)

// search finds the cheapest evictions that make room for members, exactly while its
// budget lasts, by branch and bound over the GPUs of a place, for each GPU over the
// ways to make room there, and last over the ways to make room in the nodes' memory.
// It works on a copy of what is left of nodes, and is used again and again.
type search struct {
	fleet   *Fleet
	ledger  int
	slots   []slot
	hosts   []hostRoom
	victims []victim
	members []member

	base, paid nanos
	count      int
	moved      int
	taken      []taken
	steps      int // left
	begun      int
	best       solution
	denied     bool // somebody who has a way may not go

	pool []freed // of all options
	opts []option
	span []int16 // of each victim, in the site at hand
	dens []density
}

// slot is a GPU.
type slot struct {
	node    int // in hosts
	gpu     int // of the node
	free    int64
	seats   int
	victims []int32
}

// hostRoom is a node's memory for WARM replicas.
type hostRoom struct {
	node        *node
	first       int   // slot
	used, limit int64 // bytes
	warmers     uint64
	victims     []int32 // that may give some back
}

// victim is a tenant that may be evicted for some of the members.
type victim struct {
	t       *tenant
	node    int
	may     uint64 // members
	options []option
	chosen  int // option, -1 for none
	by      int // member
	locked  bool
	least   nanos
}

type option struct {
	freeing *freeing
	frees   []freed
}

type freed struct {
	slot   int32
	seats  int32
	memory int64
}

// member is one of those for which room is made.
type member struct {
	request *Request
	sites   []site
	least   nanos // base of its best site
	twin    bool  // the same as the member before it
	site    int   // chosen
}

// site is a set of GPUs of which a member needs some.
type site struct {
	shape
	group  *group
	memory int64
	base   nanos // seconds until it serves there
	wake   *Warm
	self   int // the victim that is woken, -1
	slots  []int32
	bounds []nanos
	credit []int64 // what it holds already of each slot
}

// taken is a slot that a member took.
type taken struct {
	member int
	slot   int32
	memory int64 // in addition to what it held, 0 for one with seats only
	seats  int
	uses   bool // with memory
}

// solution is the best that was found.
type solution struct {
	found     bool
	total     nanos
	count     int
	moved     int
	memory    int64
	seats     int
	taken     []taken
	victims   []chosenWay
	sites     []int
	exhausted bool
}

type chosenWay struct{ victim, option, by int }

type density struct {
	cost   float64
	amount int64
}

// reset forgets everything, for a ledger.
func (s *search) reset(ledger int) {
	s.ledger = ledger
	s.slots, s.hosts, s.victims = s.slots[:0], s.hosts[:0], s.victims[:0]
	s.members, s.taken = s.members[:0], s.taken[:0]
	s.pool, s.opts = s.pool[:0], s.opts[:0]
	s.base, s.paid, s.count, s.moved = 0, 0, 0, 0
	s.denied = false
}

// learned is what a place in the group that was searched last costs at least, in all,
// whoever asks: nothing is learned where somebody may not be evicted, or the search was
// cut short. It has looked for what costs no more than limit.
func (s *search) learned(limit nanos) nanos {
	switch {
	case s.denied || len(s.members) == 0 || s.best.exhausted:
		return 0
	case s.best.found:
		return s.best.total
	}
	return limit
}

// load adds a node, with those of its tenants that may be evicted as may says. With a
// group it leaves out those who cannot help there.
func (s *search) load(n *node, only *group, may func(*tenant) uint64) int {
	h := len(s.hosts)
	if h < cap(s.hosts) {
		s.hosts = s.hosts[:h+1]
	} else {
		s.hosts = append(s.hosts, hostRoom{})
	}
	host := &s.hosts[h]
	*host = hostRoom{node: n, first: len(s.slots), used: n.host[s.ledger], limit: max(n.warmRoom, n.host[s.ledger]), victims: host.victims[:0]}
	for i := range n.gpus {
		at := len(s.slots)
		if at < cap(s.slots) {
			s.slots = s.slots[:at+1]
		} else {
			s.slots = append(s.slots, slot{})
		}
		g := &n.gpus[i]
		s.slots[at] = slot{node: h, gpu: i, free: g.free[s.ledger], seats: g.freeSeats(s.ledger), victims: s.slots[at].victims[:0]}
	}
	start := len(s.victims)
	for _, t := range n.tenants {
		if len(t.Ways) == 0 || only != nil && !t.helps(s.ledger, only) {
			continue
		}
		ways := t.freeings(s.ledger)
		if len(ways) == 0 {
			continue
		}
		mask := may(t)
		if mask == 0 {
			s.denied = true
			continue
		}
		s.victims = append(s.victims, victim{t: t, node: h, may: mask, chosen: -1, least: never})
	}
	own := s.victims[start:]
	for i := range own {
		v := &own[i]
		from := len(s.opts)
		for w := range v.t.ways[s.ledger] {
			fr := &v.t.ways[s.ledger][w]
			begin := len(s.pool)
			for _, sh := range fr.shares {
				seats := bits.OnesCount64(sh.seats &^ n.gpus[sh.gpu].twice[s.ledger])
				s.pool = append(s.pool, freed{slot: int32(host.first + sh.gpu), seats: int32(seats), memory: sh.memory})
			}
			s.opts = append(s.opts, option{freeing: fr, frees: s.pool[begin:len(s.pool):len(s.pool)]})
			v.least = min(v.least, fr.cost)
			if fr.host < 0 && (len(host.victims) == 0 || host.victims[len(host.victims)-1] != int32(start+i)) {
				host.victims = append(host.victims, int32(start+i))
			}
		}
		v.options = s.opts[from:len(s.opts):len(s.opts)]
		for _, sh := range v.t.uses[s.ledger].shares {
			sl := &s.slots[host.first+sh.gpu]
			sl.victims = append(sl.victims, int32(start+i))
		}
	}
	for i := host.first; i < len(s.slots); i++ {
		s.cheapestFirst(s.slots[i].victims)
	}
	s.cheapestFirst(host.victims)
	return h
}

func (s *search) cheapestFirst(of []int32) {
	for i := 1; i < len(of); i++ {
		for k := i; k > 0 && s.victims[of[k]].least < s.victims[of[k-1]].least; k-- {
			of[k], of[k-1] = of[k-1], of[k]
		}
	}
}

// helps tells whether the tenant holds something of a group, or of the node's memory.
func (t *tenant) helps(l int, g *group) bool {
	if t.uses[l].host > 0 {
		return true
	}
	for _, s := range t.uses[l].shares {
		if slices.Contains(g.gpus, s.gpu) {
			return true
		}
	}
	return false
}

// everyone may be evicted, for a bound.
func everyone(*tenant) uint64 { return 1 }

// bound returns what making room in a group costs at least, never where it cannot be
// made.
func (s *search) bound(g *group, c costShape) nanos {
	s.reset(c.ledger)
	h := s.load(g.node, g, everyone)
	st := site{shape: c.shape, group: g, memory: c.memory, self: -1}
	s.sites(&st, h, g.gpus, nil, 1)
	return s.siteBound(&st)
}

// siteBound is what a site costs at least.
func (s *search) siteBound(st *site) nanos {
	if len(st.slots) < st.reach {
		return never
	}
	var sum nanos
	for i := range st.gpus {
		if st.bounds[i] >= never {
			return never
		}
		sum += st.bounds[i]
	}
	return sum
}

// sites fills in the slots of a site, the cheapest first; those that are of no use are
// left out.
func (s *search) sites(st *site, h int, gpus []int, credit []int64, member uint64) {
	first := s.hosts[h].first
	for len(s.span) < len(s.victims) {
		s.span = append(s.span, 0)
	}
	if st.gpus > 1 {
		for i := range s.victims {
			s.span[i] = 0
		}
		for _, g := range gpus {
			for _, v := range s.slots[first+g].victims {
				s.span[v]++
			}
		}
	}
	st.slots, st.bounds, st.credit = st.slots[:0], st.bounds[:0], st.credit[:0]
	for i, g := range gpus {
		at := int32(first + g)
		var own int64
		if credit != nil {
			own = credit[i]
		}
		memory := s.slotBound(at, st.memory-own, st.seats, member, st.gpus > 1)
		if memory >= never && (st.reach == st.gpus || s.slotBound(at, math.MinInt64, st.seats, member, st.gpus > 1) >= never) {
			continue
		}
		k := len(st.slots)
		st.slots, st.bounds, st.credit = append(st.slots, at), append(st.bounds, memory), append(st.credit, own)
		for ; k > 0 && (st.bounds[k] < st.bounds[k-1] || st.bounds[k] == st.bounds[k-1] && s.closer(st, k)); k-- {
			st.slots[k], st.slots[k-1] = st.slots[k-1], st.slots[k]
			st.bounds[k], st.bounds[k-1] = st.bounds[k-1], st.bounds[k]
			st.credit[k], st.credit[k-1] = st.credit[k-1], st.credit[k]
		}
	}
}

// closer tells whether slot k of a site fits better than the one before it.
func (s *search) closer(st *site, k int) bool {
	a, b := &s.slots[st.slots[k]], &s.slots[st.slots[k-1]]
	aFree, bFree := a.free+st.credit[k]-st.memory, b.free+st.credit[k-1]-st.memory
	if (aFree >= 0) != (bFree >= 0) {
		return aFree >= 0
	}
	if aFree != bFree {
		return aFree < bFree
	}
	return a.seats < b.seats
}

// slotBound is what it costs at least to have so much on a slot: the cheapest fractions
// of victims that free enough. With shared a victim's cost counts on each slot of the
// site only in part.
func (s *search) slotBound(at int32, memory int64, seats int, member uint64, shared bool) nanos {
	sl := &s.slots[at]
	lackMemory, lackSeats := memory-sl.free, seats-sl.seats
	if memory == math.MinInt64 {
		lackMemory = 0
	}
	if lackMemory <= 0 && lackSeats <= 0 {
		return 0
	}
	bound := 0.0
	for kind := range 2 {
		lack := lackMemory
		if kind == 1 {
			lack = int64(lackSeats)
		}
		if lack <= 0 {
			continue
		}
		s.dens = s.dens[:0]
		for _, i := range sl.victims {
			v := &s.victims[i]
			if v.may&member == 0 || v.locked {
				continue
			}
			cost, most := never, int64(0)
			for o := range v.options {
				amount := v.options[o].of(at, kind == 1)
				if amount > 0 {
					cost, most = min(cost, v.options[o].freeing.cost), max(most, amount)
				}
			}
			if most == 0 {
				continue
			}
			share := float64(cost)
			if shared {
				share /= float64(s.span[i])
			}
			k := len(s.dens)
			s.dens = append(s.dens, density{share, most})
			for ; k > 0 && s.dens[k].cost*float64(s.dens[k-1].amount) < s.dens[k-1].cost*float64(s.dens[k].amount); k-- {
				s.dens[k], s.dens[k-1] = s.dens[k-1], s.dens[k]
			}
		}
		sum := 0.0
		for _, d := range s.dens {
			if lack <= 0 {
				break
			}
			sum += d.cost * min(1, float64(lack)/float64(d.amount))
			lack -= d.amount
		}
		if lack > 0 {
			return never
		}
		bound = max(bound, sum)
	}
	// A little less, as fractions are not exact.
	return max(0, nanos(bound*(1-1e-9))-1)
}

func (o *option) of(slot int32, seats bool) int64 {
	for i := range o.frees {
		if o.frees[i].slot == slot {
			if seats {
				return int64(o.frees[i].seats)
			}
			return o.frees[i].memory
		}
	}
	return 0
}

// run searches, for something better than what is in best already.
func (s *search) run(steps int) {
	s.steps, s.begun = steps, steps
	s.place(0)
	s.best.exhausted = s.steps <= 0
	if s.best.exhausted {
		s.refine()
	}
}

// hopeless tells whether a way on which everything costs at least bound is not worth
// going.
func (s *search) hopeless(bound nanos) bool {
	if bound != s.best.total {
		return bound > s.best.total
	}
	return s.count > s.best.count || s.begun-s.steps > tieSteps && s.best.found
}

// rest is the time that members from m on take at least.
func (s *search) rest(m int) nanos {
	var sum nanos
	for i := m; i < len(s.members); i++ {
		sum += s.members[i].least
	}
	return sum
}

// place places member m and those after it.
func (s *search) place(m int) {
	if m == len(s.members) {
		s.room(0, 0)
		return
	}
	own := &s.members[m]
	from := 0
	if own.twin {
		from = s.members[m-1].site
	}
	for i := from; i < len(own.sites); i++ {
		st := &own.sites[i]
		if s.hopeless(s.base + st.base + s.rest(m+1) + s.paid) {
			continue
		}
		if st.self >= 0 {
			self := &s.victims[st.self]
			if self.chosen >= 0 || self.locked {
				continue
			}
			self.locked = true
		} else if st.wake != nil && s.woken(m, st.wake.Tenant) {
			continue
		}
		own.site = i
		s.base += st.base
		s.pick(m, st, 0, st.gpus, st.reach-st.gpus, 0)
		s.base -= st.base
		if st.self >= 0 {
			s.victims[st.self].locked = false
		}
	}
}

// woken tells whether a member before m wakes a replica.
func (s *search) woken(m int, name string) bool {
	for i := range m {
		if w := s.members[i].sites[s.members[i].site].wake; w != nil && w.Tenant == name {
			return true
		}
	}
	return false
}

// pick takes slots of a site from position p on: so many with memory, and so many with
// seats only.
func (s *search) pick(m int, st *site, p, memory, seats int, bound nanos) {
	if memory == 0 && seats == 0 {
		s.place(m + 1)
		return
	}
	if s.steps--; s.steps <= 0 || len(st.slots)-p < memory+seats {
		return
	}
	least := bound
	for i := range memory {
		least += st.bounds[p+i]
	}
	if s.hopeless(s.base + s.rest(m+1) + max(s.paid, least)) {
		return
	}
	if memory > 0 && st.bounds[p] < never {
		s.cover(m, st, p, memory, seats, true, 0, bound+st.bounds[p])
	}
	if seats > 0 {
		s.cover(m, st, p, memory, seats, false, 0, bound)
	}
	// Without this one: then without those that are the same, too.
	next := p + 1
	for next < len(st.slots) && s.same(st, p, next) {
		next++
	}
	if len(st.slots)-next >= memory+seats {
		s.pick(m, st, next, memory, seats, bound)
	}
}

// same tells whether two slots of a site cannot be told apart: nobody who may be evicted
// is on them.
func (s *search) same(st *site, a, b int) bool {
	x, y := &s.slots[st.slots[a]], &s.slots[st.slots[b]]
	return x.free == y.free && x.seats == y.seats && len(x.victims) == 0 && len(y.victims) == 0 && st.credit[a] == st.credit[b] && st.wake == nil
}

// cover makes room on one slot, with victims from a position on, and goes on.
func (s *search) cover(m int, st *site, p, memory, seats int, withMemory bool, from int, bound nanos) {
	at := st.slots[p]
	sl := &s.slots[at]
	need := st.memory - st.credit[p]
	lackMemory := withMemory && sl.free < need
	lackSeats := sl.seats < st.seats
	if !lackMemory && !lackSeats {
		s.take(m, st, p, memory, seats, withMemory, bound)
		return
	}
	if s.steps--; s.steps <= 0 {
		return
	}
	bit := uint64(1) << m
	for j := from; j < len(sl.victims); j++ {
		i := int(sl.victims[j])
		v := &s.victims[i]
		if v.chosen >= 0 || v.locked || v.may&bit == 0 {
			continue
		}
		for o := range v.options {
			opt := &v.options[o]
			if (!lackMemory || opt.of(at, false) <= 0) && (!lackSeats || opt.of(at, true) <= 0) {
				continue
			}
			if s.hopelessWith(opt.freeing.cost, m, bound) {
				continue
			}
			before := s.hosts[v.node].warmers
			s.evict(i, o, m)
			s.cover(m, st, p, memory, seats, withMemory, j+1, bound)
			s.keep(i)
			s.hosts[v.node].warmers = before
		}
	}
}

func (s *search) hopelessWith(cost nanos, m int, bound nanos) bool {
	s.count++
	no := s.hopeless(s.base + s.rest(m+1) + max(s.paid+cost, bound))
	s.count--
	return no
}

// take gives a slot to a member and goes on.
func (s *search) take(m int, st *site, p, memory, seats int, withMemory bool, bound nanos) {
	at := st.slots[p]
	t := taken{member: m, slot: at, seats: st.seats, uses: withMemory}
	moved := 0
	if withMemory {
		t.memory = st.memory - st.credit[p]
		memory--
		if st.wake != nil && !s.slept(st.wake, at) {
			moved = 1
		}
	} else {
		seats--
	}
	s.moved += moved
	s.give(t, 1)
	s.pick(m, st, p+1, memory, seats, bound)
	s.taken = s.taken[:len(s.taken)-1]
	s.give(t, -1)
	s.moved -= moved
}

// slept tells whether a replica used a slot before it slept.
func (s *search) slept(w *Warm, at int32) bool {
	sl := &s.slots[at]
	_, ok := w.Placement.Memory[s.hosts[sl.node].node.gpus[sl.gpu].UUID]
	return ok
}

// give gives a slot to a member, or takes it back.
func (s *search) give(t taken, sign int) {
	s.slots[t.slot].free -= int64(sign) * t.memory
	s.slots[t.slot].seats -= sign * t.seats
	if sign > 0 {
		s.taken = append(s.taken, t)
	}
}

// evict makes a victim go, for a member.
func (s *search) evict(i, o, by int) {
	v := &s.victims[i]
	v.chosen, v.by = o, by
	s.apply(v, 1)
	if v.options[o].freeing.host > 0 {
		s.hosts[v.node].warmers |= 1 << by
	}
}

// keep lets it stay after all.
func (s *search) keep(i int) {
	v := &s.victims[i]
	s.apply(v, -1)
	v.chosen = -1
}

func (s *search) apply(v *victim, sign int) {
	o := &v.options[v.chosen]
	for _, f := range o.frees {
		s.slots[f.slot].free += int64(sign) * f.memory
		s.slots[f.slot].seats += sign * int(f.seats)
	}
	s.hosts[v.node].used += int64(sign) * o.freeing.host
	s.paid += nanos(sign) * o.freeing.cost
	s.count += sign
}

// room makes room in the memory of nodes where too much has gone WARM, from one node
// and one of its victims on. Who goes for it must be allowed to go for all those for
// whom others went WARM there.
func (s *search) room(h, from int) {
	for ; h < len(s.hosts) && s.hosts[h].used <= s.hosts[h].limit; h++ {
		from = 0
	}
	if h == len(s.hosts) {
		s.solved()
		return
	}
	if s.steps--; s.steps <= 0 {
		return
	}
	host := &s.hosts[h]
	for j := from; j < len(host.victims); j++ {
		i := int(host.victims[j])
		v := &s.victims[i]
		if v.chosen >= 0 || v.locked || v.may&host.warmers != host.warmers {
			continue
		}
		for o := range v.options {
			if v.options[o].freeing.host >= 0 || s.hopelessWith(v.options[o].freeing.cost, len(s.members)-1, 0) {
				continue
			}
			s.evict(i, o, bits.TrailingZeros64(host.warmers))
			s.room(h, j+1)
			s.keep(i)
		}
	}
}

// solved looks at what was found, and keeps it where it is better.
func (s *search) solved() {
	now := solution{found: true, total: s.base + s.paid, count: s.count, moved: s.moved, memory: math.MaxInt64}
	for _, t := range s.taken {
		if t.uses {
			now.memory = min(now.memory, s.slots[t.slot].free)
		}
		now.seats += s.slots[t.slot].seats
	}
	if now.compare(&s.best) >= 0 {
		return
	}
	now.taken = append(s.best.taken[:0], s.taken...)
	now.victims, now.sites = s.best.victims[:0], s.best.sites[:0]
	for i := range s.victims {
		if v := &s.victims[i]; v.chosen >= 0 {
			now.victims = append(now.victims, chosenWay{i, v.chosen, v.by})
		}
	}
	for i := range s.members {
		now.sites = append(now.sites, s.members[i].site)
	}
	s.best = now
}

// compare says which is better: the cheaper, then the one with fewer evictions, the one
// that moves less, and the one that fits better.
func (a *solution) compare(b *solution) int {
	return cmp.Or(cmp.Compare(a.total, b.total), cmp.Compare(a.count, b.count), cmp.Compare(a.moved, b.moved),
		cmp.Compare(a.memory, b.memory), cmp.Compare(a.seats, b.seats))
}

// refine makes the best of a search that ran out of its budget.
func (s *search) refine() {
	if s.best.found {
		for _, c := range s.best.victims {
			s.evict(c.victim, c.option, c.by)
		}
		for _, t := range s.best.taken {
			s.give(t, 1)
		}
		for i, site := range s.best.sites {
			s.members[i].site = site
			s.base += s.members[i].sites[site].base
		}
		s.moved = s.best.moved
		s.tighten()
		s.solved()
		s.clear()
	}
	if len(s.members) == 1 {
		for i := range s.members[0].sites {
			s.members[0].site = i
			s.greedy(&s.members[0].sites[i])
		}
	}
}

// clear takes everything back.
func (s *search) clear() {
	for i := range s.victims {
		if s.victims[i].chosen >= 0 {
			s.keep(i)
		}
	}
	for _, t := range s.taken {
		s.give(t, -1)
	}
	s.taken, s.base, s.moved = s.taken[:0], 0, 0
	for i := range s.hosts {
		s.hosts[i].warmers = 0
	}
}

// tighten takes back what is not necessary, the dearest first, or finds it a cheaper way.
func (s *search) tighten() {
	var chosen []int
	for i := range s.victims {
		if s.victims[i].chosen >= 0 {
			chosen = append(chosen, i)
		}
	}
	slices.SortStableFunc(chosen, func(a, b int) int { return cmp.Compare(s.victims[b].cost(), s.victims[a].cost()) })
	// What a cheaper way takes of a node's memory can make another one necessary, and one
	// that goes COLD another one not: go on until nothing changes.
	for again := true; again; {
		again = false
		for _, i := range chosen {
			v := &s.victims[i]
			if v.chosen < 0 {
				continue
			}
			was, by := v.chosen, v.by
			s.keep(i)
			if s.holds() {
				again = true
				continue
			}
			to := was
			for o := range v.options {
				if v.options[o].freeing.cost >= v.options[was].freeing.cost {
					continue
				}
				s.evict(i, o, by)
				if s.holds() && v.options[o].freeing.cost < v.options[to].freeing.cost {
					to = o
				}
				s.keep(i)
			}
			again = again || to != was
			s.evict(i, to, by)
		}
	}
}

func (v *victim) cost() nanos { return v.options[v.chosen].freeing.cost }

// holds tells whether there is room for all that was taken.
func (s *search) holds() bool {
	for _, t := range s.taken {
		if sl := &s.slots[t.slot]; sl.free < 0 || sl.seats < 0 {
			return false
		}
	}
	for i := range s.hosts {
		if s.hosts[i].used > s.hosts[i].limit {
			return false
		}
	}
	return true
}

// greedy evicts all that may be evicted on the slots of a site where that costs least,
// and then takes back what was not necessary. It finds a place where there is one.
func (s *search) greedy(st *site) {
	if st.self >= 0 {
		s.victims[st.self].locked = true
		defer func() { s.victims[st.self].locked = false }()
	}
	type whole struct {
		p      int
		cost   nanos
		memory bool
	}
	var all []whole
	for p, at := range st.slots {
		sl := &s.slots[at]
		w := whole{p: p}
		free, seats := sl.free, sl.seats
		for _, i := range sl.victims {
			if v := &s.victims[i]; !v.locked && v.may&1 != 0 {
				o := &v.options[v.strongest()]
				w.cost += o.freeing.cost
				free += o.of(at, false)
				seats += int(o.of(at, true))
			}
		}
		w.memory = free >= st.memory-st.credit[p]
		if seats >= st.seats {
			all = append(all, w)
		}
	}
	slices.SortStableFunc(all, func(a, b whole) int { return cmp.Compare(a.cost, b.cost) })
	memory, seats := st.gpus, st.reach-st.gpus
	for _, uses := range []bool{true, false} {
		for i := range all {
			left := &seats
			if uses {
				left = &memory
			}
			if *left == 0 || all[i].p < 0 || uses && !all[i].memory {
				continue
			}
			p := all[i].p
			all[i].p = -1
			*left--
			t := taken{slot: st.slots[p], seats: st.seats, uses: uses}
			if uses {
				t.memory = st.memory - st.credit[p]
				if st.wake != nil && !s.slept(st.wake, t.slot) {
					s.moved++
				}
			}
			s.give(t, 1)
		}
	}
	s.base += st.base
	for _, t := range s.taken {
		for _, i := range s.slots[t.slot].victims {
			if v := &s.victims[i]; v.chosen < 0 && !v.locked && v.may&1 != 0 {
				s.evict(int(i), v.strongest(), 0)
			}
		}
	}
	for h := range s.hosts {
		for _, i := range s.hosts[h].victims {
			if v := &s.victims[i]; s.hosts[h].used > s.hosts[h].limit && v.chosen < 0 && !v.locked && v.may&1 != 0 {
				s.evict(int(i), v.strongest(), 0)
			}
		}
	}
	if memory == 0 && seats == 0 && s.holds() {
		s.tighten()
		s.solved()
	}
	s.clear()
}

// strongest is the option that gives back most: the most seats, then the most memory.
func (v *victim) strongest() int {
	best, seats, memory := 0, int32(-1), int64(-1)
	for o := range v.options {
		var s int32
		var m int64
		for _, f := range v.options[o].frees {
			s, m = s+f.seats, m+f.memory
		}
		if s > seats || s == seats && m > memory {
			best, seats, memory = o, s, m
		}
	}
	return best
}
