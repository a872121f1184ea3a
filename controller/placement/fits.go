package placement

import "cmp"

// shape is what a place looks like, apart from bytes.
type shape struct {
	ledger int
	gpus   int // with memory
	reach  int // with seats, gpus or more
	seats  int // of each
}

// order returns the GPUs of a group that have the seats, the fullest first.
func (g *group) order(s shape, into []int) []int {
	n := g.node
	for _, i := range g.gpus {
		if n.gpus[i].freeSeats(s.ledger) < s.seats {
			continue
		}
		at := len(into)
		into = append(into, i)
		for ; at > 0 && n.fuller(s.ledger, i, into[at-1]) < 0; at-- {
			into[at] = into[at-1]
		}
		into[at] = i
	}
	return into
}

// fuller compares two GPUs: less memory, fewer seats, the node's order.
func (n *node) fuller(l, a, b int) int {
	x, y := &n.gpus[a], &n.gpus[b]
	if x.free[l] != y.free[l] {
		return cmp.Compare(x.free[l], y.free[l])
	}
	return cmp.Or(cmp.Compare(x.freeSeats(l), y.freeSeats(l)), cmp.Compare(a, b))
}

// beside moves the GPUs on which a place that starts at order[i] has seats only behind
// those with memory: the ones with the fewest seats of all others, then the fullest. It
// returns the GPUs of the place, those with memory first.
func (n *node) beside(s shape, order []int, i int, into []int) []int {
	into = append(into, order[i:i+s.gpus]...)
	for len(into) < s.reach {
		best := -1
		for k, c := range order {
			if k >= i && k < i+s.gpus {
				continue
			}
			if used(into[s.gpus:], c) {
				continue
			}
			if best < 0 || n.gpus[c].freeSeats(s.ledger) < n.gpus[best].freeSeats(s.ledger) {
				best = c
			}
		}
		into = append(into, best)
	}
	return into
}

func used(gpus []int, g int) bool {
	for _, u := range gpus {
		if u == g {
			return true
		}
	}
	return false
}

// seatsLeft is how many seats a place leaves on its GPUs.
func (n *node) seatsLeft(s shape, gpus []int) int {
	left := 0
	for _, g := range gpus {
		left += n.gpus[g].freeSeats(s.ledger) - s.seats
	}
	return left
}

// fitIndex finds the groups where a shape fits, by the memory that is free on the
// fullest GPU and the seats that are left.
type fitIndex struct {
	follower
	shape      shape
	gpus, room []int
}

func newFitIndex(p *partition, s shape) *fitIndex {
	x := &fitIndex{shape: s}
	x.part = p
	x.keys = x.keysOf
	return x
}

func (x *fitIndex) keysOf(g *group, into []entry) []entry {
	s := x.shape
	x.gpus = g.order(s, x.gpus[:0])
	if len(x.gpus) < s.reach {
		return into
	}
	for i := 0; i+s.gpus <= len(x.gpus); i++ {
		free := g.node.gpus[x.gpus[i]].free[s.ledger]
		if free < 0 {
			continue
		}
		x.room = g.node.beside(s, x.gpus, i, x.room[:0])
		e := entry{first: free, second: int32(g.node.seatsLeft(s, x.room)), rank: g.rank}
		at := len(into)
		for at > 0 && into[at-1].compare(e) > 0 {
			at--
		}
		if at > 0 && into[at-1] == e {
			continue
		}
		into = append(into, e)
		copy(into[at+1:], into[at:])
		into[at] = e
	}
	return into
}

// place is where an entry of the index fits: of GPUs that start with the fullest.
func (x *fitIndex) place(e entry) []int {
	g := x.part.groups[e.rank]
	x.gpus = g.order(x.shape, x.gpus[:0])
	for i := 0; i+x.shape.gpus <= len(x.gpus); i++ {
		if g.node.gpus[x.gpus[i]].free[x.shape.ledger] != e.first {
			continue
		}
		x.room = g.node.beside(x.shape, x.gpus, i, x.room[:0])
		if int32(g.node.seatsLeft(x.shape, x.room)) == e.second {
			return x.room
		}
	}
	return nil
}

// first returns the place with the least memory left in one group, and its entry, nil
// where there is none.
func (g *group) first(s shape, memory int64, order, into []int) ([]int, entry) {
	order = g.order(s, order)
	if len(order) < s.reach {
		return nil, entry{}
	}
	for i := 0; i+s.gpus <= len(order); i++ {
		if free := g.node.gpus[order[i]].free[s.ledger]; free >= memory {
			into = g.node.beside(s, order, i, into)
			return into, entry{first: free, second: int32(g.node.seatsLeft(s, into)), rank: g.rank}
		}
	}
	return nil, entry{}
}

func (p *partition) fit(s shape, j *journal) *fitIndex {
	x := p.fits[s]
	if x == nil {
		x = newFitIndex(p, s)
		p.fits[s] = x
	}
	x.follow(j)
	return x
}

// costShape is a shape with its bytes.
type costShape struct {
	shape
	memory int64
}

// costIndexes is for how many shapes a partition keeps a costIndex.
const costIndexes = 32

// costIndex orders groups by a bound below the cost of making room for a shape: nothing
// that is evicted there costs less. Groups where all that has a way could go and it would
// still not fit are left out.
type costIndex struct {
	follower
}

// raise replaces the bound of a group by a higher one that was learned from a search, until
// the group changes.
func (x *costIndex) raise(e entry) {
	x.list.remove(x.have[e.rank][0])
	x.list.insert(e)
	x.have[e.rank][0] = e
}

func (p *partition) cost(s costShape, f *Fleet) *costIndex {
	x := p.costs[s]
	if x == nil {
		if len(p.costs) >= costIndexes {
			clear(p.costs)
		}
		x = &costIndex{}
		x.part = p
		x.keys = func(g *group, into []entry) []entry {
			if bound := f.search.bound(g, s); bound < never {
				into = append(into, entry{first: int64(bound), rank: g.rank})
			}
			return into
		}
		p.costs[s] = x
	}
	x.follow(&f.changed)
	return x
}
