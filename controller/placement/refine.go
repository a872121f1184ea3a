package placement

import (
	"cmp"
	"slices"
)

// refine makes the best of a search that ran out of its budget.
func (s *search) refine() {
	if s.best.found {
		s.replay()
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

// replay does what the best solution does, until clear.
func (s *search) replay() {
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
// and then takes back what was not necessary. It finds a place where there is one, unless a node's memory is too
// small for all of them that can only go WARM: which of them stay is a guess then.
func (s *search) greedy(st *site) {
	if st.self >= 0 {
		s.victims[st.self].locked = true
		defer func() { s.victims[st.self].locked = false }()
	}
	s.need(st, 1)
	defer s.need(st, -1)
	for h := range s.hosts {
		host := &s.hosts[h]
		host.spare = host.limit - host.used
		for _, i := range host.victims {
			if v := &s.victims[i]; !v.locked && v.may&1 != 0 {
				host.spare -= min(v.options[v.strongest()].freeing.host, 0)
			}
		}
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
			if v := &s.victims[i]; s.leaves(v) {
				o := &v.options[v.strongest()]
				w.cost += o.freeing.cost
				free += o.of(at, false)
				seats += int(o.of(at, true))
			}
		}
		w.memory = free+s.left(at) >= st.memory-st.credit[p]
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
			if v := &s.victims[i]; v.chosen < 0 && s.leaves(v) && !s.last(v, v.strongest()) {
				s.evict(int(i), v.strongest(), 0)
			}
		}
	}
	for h := range s.hosts {
		for _, i := range s.hosts[h].victims {
			if v := &s.victims[i]; s.hosts[h].used > s.hosts[h].limit && v.chosen < 0 && !v.locked && v.may&1 != 0 && !s.last(v, v.strongest()) {
				s.evict(int(i), v.strongest(), 0)
			}
		}
	}
	s.stay()
	if memory == 0 && seats == 0 && s.holds() {
		s.tighten()
		s.solved()
	}
	s.clear()
}

// leaves reports whether a victim may be evicted, and the node's memory has room for it if it is the only one.
func (s *search) leaves(v *victim) bool {
	return !v.locked && v.may&1 != 0 && v.options[v.strongest()].freeing.host <= s.hosts[v.node].spare
}

// stay takes back evictions of those that go WARM until the node's memory has room for the others. Those that take most
// of it stay.
func (s *search) stay() {
	for h := range s.hosts {
		for s.hosts[h].used > s.hosts[h].limit {
			most := -1
			for i := range s.victims {
				v := &s.victims[i]
				if v.node == h && v.chosen >= 0 && v.takes() > 0 && (most < 0 || v.takes() > s.victims[most].takes()) {
					most = i
				}
			}
			if most < 0 {
				break
			}
			s.keep(most)
		}
	}
}

// takes is what the way that was chosen takes of the node's memory.
func (v *victim) takes() int64 { return v.options[v.chosen].freeing.host }

// left returns the bytes of shared weights that a slot gets back if every victim on it is evicted: the weights of
// each crowd that then has no tenant.
func (s *search) left(at int32) int64 {
	var sum int64
	for i := range s.crowds {
		c := &s.crowds[i]
		if c.needed > 0 || !slices.Contains(c.crowd.gpus, int(at)-c.first) {
			continue
		}
		stay := c.left
		for _, k := range s.slots[at].victims {
			if v := &s.victims[k]; v.crowd == i && s.leaves(v) && v.options[v.strongest()].freeing.leaves {
				stay--
			}
		}
		if stay == 0 {
			sum += c.crowd.Bytes
		}
	}
	return sum
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
