package placement

import (
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
	setSteps   = 100_000 // for a set of requests on a node
	jointSteps = 600_000 // in one joint search
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
	crowds  []leavers

	base, paid nanos
	count      int
	moved      int
	taken      []taken
	most       int // steps in one group: groupSteps
	steps      int // left
	begun      int
	best       solution
	denied     bool    // somebody who has a way may not go
	floor      nanos   // nothing costs less: what costs no more is not improved
	needs      []int64 // the memory that members from each one on need, see shortage
	givers     []giver // the victims by what their memory costs, the cheapest first

	pool     []freed // of all options
	opts     []option
	dens     []density
	cheapest []nanos
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
	spare       int64 // of greedy: what there is for those that go WARM if all that may give some back do
	warmers     uint64
	victims     []int32 // that may give some back
}

// victim is a tenant that may be evicted for some of the members.
type victim struct {
	t       *tenant
	node    int
	may     uint64 // members
	options []option
	crowd   int // in crowds, -1 for none
	chosen  int // option, -1 for none
	by      int // member
	locked  bool
	least   nanos
}

// leavers is the state of a crowd during a search.
type leavers struct {
	crowd *crowd
	first int // slot of the node
	left  int // tenants that are not evicted
	// needed is the number of members that count on the crowd's weights. While it is above 0, one tenant of the
	// crowd may not be evicted.
	needed int
}

type option struct {
	freeing *freeing
	frees   []freed
}

type freed struct {
	slot   int32
	seats  int32
	memory int64 // without shared weights
}

// member is one of those for which room is made.
type member struct {
	request *Request
	sites   []site
	least   nanos // base of its best site
	twin    bool  // the same as the member before it
	site    int   // chosen
	slot    int   // position in it of the GPU that was taken last
}

// site is a set of GPUs of which a member needs some.
type site struct {
	shape
	group  *group
	memory int64
	base   nanos // seconds until it serves there
	wake   *Warm
	self   int   // the victim that is woken, -1
	with   int   // the crowd that shares its weights, in crowds from 1 on; 0 for none
	shared int64 // bytes of these weights, which are there already and not in memory
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
	crowded   int // 1 where a WARM replica could not wake any more
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

// giver is a victim, with the most memory that it gives and the least that it costs.
type giver struct {
	victim int
	cost   float64
	amount int64
}

// reset forgets everything, for a ledger.
func (s *search) reset(ledger int) {
	s.ledger = ledger
	s.slots, s.hosts, s.victims = s.slots[:0], s.hosts[:0], s.victims[:0]
	s.members, s.taken, s.crowds = s.members[:0], s.taken[:0], s.crowds[:0]
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
		if only != nil && !t.helps(s.ledger, only) || len(s.fleet.waysOf(t)) == 0 {
			continue
		}
		ways := s.fleet.freeings(t, s.ledger)
		if len(ways) == 0 {
			continue
		}
		mask := may(t)
		if mask == 0 {
			s.denied = true
			continue
		}
		s.victims = append(s.victims, victim{t: t, node: h, may: mask, crowd: s.crowd(t.uses[s.ledger].crowd, host.first), chosen: -1, least: never})
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

// crowd returns the number of a crowd in crowds, -1 for nil.
func (s *search) crowd(c *crowd, first int) int {
	if c == nil {
		return -1
	}
	for i := range s.crowds {
		if s.crowds[i].crowd == c {
			return i
		}
	}
	s.crowds = append(s.crowds, leavers{crowd: c, first: first, left: c.size[s.ledger]})
	return len(s.crowds) - 1
}

// last reports whether a victim may not be evicted because it is the last of a crowd whose weights a member needs.
func (s *search) last(v *victim, o int) bool {
	return v.options[o].freeing.leaves && s.crowds[v.crowd].needed > 0 && s.crowds[v.crowd].left == 1
}

// join lets a site count on the weights of a crowd.
func (s *search) join(st *site, c *crowd, first int) {
	st.with, st.shared = s.crowd(c, first)+1, c.Bytes
	st.memory -= c.Bytes
}

// need adds sign to the number of members that count on the weights of a site's crowd.
func (s *search) need(st *site, sign int) {
	if st.with > 0 {
		s.crowds[st.with-1].needed += sign
	}
}

// gives returns the most that an option of a victim frees on a slot. Of memory, this includes the shared weights,
// as if the victim were the last of its crowd to leave.
func (s *search) gives(v *victim, o int, slot int32, seats bool) int64 {
	opt := &v.options[o]
	amount := opt.of(slot, seats)
	if !seats && opt.freeing.leaves {
		if c := &s.crowds[v.crowd]; slices.Contains(c.crowd.gpus, int(slot)-c.first) {
			amount += c.crowd.Bytes
		}
	}
	return amount
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
	st.slots, st.bounds, st.credit = st.slots[:0], st.bounds[:0], st.credit[:0]
	for i, g := range gpus {
		at := int32(first + g)
		var own int64
		if credit != nil {
			own = credit[i]
		}
		memory := s.slotBound(at, st.memory-own, st.seats, member, st.gpus)
		if memory >= never && (st.reach == st.gpus || s.slotBound(at, math.MinInt64, st.seats, member, st.gpus) >= never) {
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
// of victims that are not chosen and free enough. What a victim costs is counted in part on each
// of its slots, of which a site takes so many GPUs.
func (s *search) slotBound(at int32, memory int64, seats int, member uint64, gpus int) nanos {
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
			if v.may&member == 0 || v.locked || v.chosen >= 0 {
				continue
			}
			cost, most := never, int64(0)
			for o := range v.options {
				amount := s.gives(v, o, at, kind == 1)
				if amount > 0 {
					cost, most = min(cost, v.options[o].freeing.cost), max(most, amount)
				}
			}
			if most == 0 {
				continue
			}
			share := float64(cost)
			share /= float64(min(len(v.t.uses[s.ledger].shares), gpus))
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
