package placement

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
)

// run searches, for something better than what is in best already.
func (s *search) run(steps int) {
	s.steps, s.begun = steps, steps
	s.measure()
	s.place(0)
	s.best.exhausted = s.steps <= 0
	if s.best.exhausted {
		s.refine()
	}
}

// hopeless tells whether a way on which everything costs at least bound is not worth
// going.
func (s *search) hopeless(bound nanos) bool {
	if s.floor > 0 && s.best.found && s.best.total <= s.floor {
		return true
	}
	if bound != s.best.total {
		return bound > s.best.total
	}
	return s.count > s.best.count || s.begun-s.steps > tieSteps && s.best.found
}

// measure prepares shortage.
func (s *search) measure() {
	s.needs, s.givers = s.needs[:0], s.givers[:0]
	if len(s.members) == 1 {
		return
	}
	for range len(s.members) + 1 {
		s.needs = append(s.needs, 0)
	}
	for m, own := range slices.Backward(s.members) {
		least := int64(math.MaxInt64)
		for i := range own.sites {
			least = min(least, own.sites[i].needs(own.sites[i].gpus))
		}
		s.needs[m] = s.needs[m+1] + least
	}
	for i := range s.victims {
		g := giver{victim: i, cost: float64(s.victims[i].least)}
		for _, o := range s.victims[i].options {
			amount := int64(0)
			for _, fr := range o.frees {
				amount += fr.memory
			}
			if o.freeing.leaves {
				c := s.crowds[s.victims[i].crowd].crowd
				amount += c.Bytes * int64(len(c.gpus))
			}
			g.amount = max(g.amount, amount)
		}
		if g.amount > 0 {
			s.givers = append(s.givers, g)
		}
	}
	slices.SortStableFunc(s.givers, func(a, b giver) int {
		return cmp.Compare(a.cost*float64(b.amount), b.cost*float64(a.amount))
	})
}

// needs is how much memory so many GPUs of a site need, 0 for a replica that wakes: it may have
// some already.
func (st *site) needs(gpus int) int64 {
	if st.wake != nil {
		return 0
	}
	return int64(gpus) * st.memory
}

// shortage is what it costs at least to evict as much memory as there is too little of, for the
// members after m and so many GPUs of the site of m: fractions of the cheapest victims.
func (s *search) shortage(m int, st *site, gpus int) nanos {
	if len(s.members) == 1 {
		return 0
	}
	lack := s.needs[m+1] + st.needs(gpus)
	for i := range s.slots {
		lack -= max(s.slots[i].free, 0)
	}
	sum := 0.0
	for i := range s.givers {
		if lack <= 0 {
			return max(0, nanos(sum*(1-1e-9))-1)
		}
		g := &s.givers[i]
		if v := &s.victims[g.victim]; v.chosen >= 0 || v.locked {
			continue
		}
		sum += g.cost * min(1, float64(lack)/float64(g.amount))
		lack -= g.amount
	}
	if lack > 0 {
		return never
	}
	return max(0, nanos(sum*(1-1e-9))-1)
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
		if st.with > 0 && s.crowds[st.with-1].left == 0 {
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
		first := 0
		if own.twin && i == from && st.reach == 1 {
			first = s.members[m-1].slot // the other order is the same
		}
		s.base += st.base
		s.need(st, 1)
		s.pick(m, st, first, st.gpus, st.reach-st.gpus, 0)
		s.need(st, -1)
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
	rest := s.base + s.rest(m+1)
	if s.hopeless(rest + max(s.paid, least)) {
		return
	}
	if s.count > 0 { // else it is what least is
		if s.hopeless(rest + s.paid + s.leastFrom(m, st, p, memory)) {
			return
		}
	}
	if s.hopeless(rest + s.paid + s.shortage(m, st, memory)) {
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

// leastFrom is what it costs at least, beside what is paid, to have memory on so many slots of a
// site from position p on.
func (s *search) leastFrom(m int, st *site, p, memory int) nanos {
	s.cheapest = s.cheapest[:0]
	for ; p < len(st.slots) && memory > 0; p++ {
		b := s.slotBound(st.slots[p], st.memory-st.credit[p], st.seats, 1<<m, st.gpus)
		k := len(s.cheapest)
		s.cheapest = append(s.cheapest, b)
		for ; k > 0 && s.cheapest[k] < s.cheapest[k-1]; k-- {
			s.cheapest[k], s.cheapest[k-1] = s.cheapest[k-1], s.cheapest[k]
		}
	}
	var sum nanos
	for i := range memory {
		if i >= len(s.cheapest) || s.cheapest[i] >= never {
			return never
		}
		sum += s.cheapest[i]
	}
	return sum
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
			if (!lackMemory || s.gives(v, o, at, false) <= 0) && (!lackSeats || opt.of(at, true) <= 0) {
				continue
			}
			if s.hopelessWith(opt.freeing.cost, m, bound) || s.last(v, o) {
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
	s.members[m].slot = p
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
	if o.freeing.leaves {
		c := &s.crowds[v.crowd]
		before := c.left > 0
		c.left -= sign
		if before != (c.left > 0) {
			for _, g := range c.crowd.gpus {
				s.slots[c.first+g].free += int64(sign) * c.crowd.Bytes
			}
		}
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
			if v.options[o].freeing.host >= 0 || s.last(v, o) || s.hopelessWith(v.options[o].freeing.cost, len(s.members)-1, 0) {
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
// that moves less, the one that leaves WARM replicas room to wake, and the one that fits better.
func (a *solution) compare(b *solution) int {
	return cmp.Or(cmp.Compare(a.total, b.total), cmp.Compare(a.count, b.count), cmp.Compare(a.moved, b.moved),
		cmp.Compare(a.crowded, b.crowded), cmp.Compare(a.memory, b.memory), cmp.Compare(a.seats, b.seats))
}
