package optimizer

import (
	"cmp"
	"slices"
	"sort"
)

// choice is a variant that may be chosen.
type choice struct {
	index     int // in the answer
	cost      float64
	low, high int
	alone     int
	open      bool // high is only Config.MaxReplicas
	group     Group
}

// capacity is what one full replica serves per second.
func (c choice) capacity() float64 {
	g := c.group
	g.Replicas = 1
	return g.rate(1)
}

// search is a branch and bound over the counts.
type search struct {
	config  Config
	traffic Traffic
	choices []choice

	left     int // evaluations that are left
	best     []int
	bestCost float64
	counts   []int
	groups   []Group
}

// run finds the best mix; best stays nil where no allowed one holds.
func (s *search) run() {
	slices.SortStableFunc(s.choices, func(a, b choice) int {
		return cmp.Compare(a.cost/a.capacity(), b.cost/b.capacity())
	})
	s.left = s.config.MaxEvaluations
	s.counts = make([]int, len(s.choices))
	s.groups = make([]Group, len(s.choices))
	s.first()
	if s.best != nil && len(s.choices) > 1 {
		s.branch(0, 0)
	}
}

// first finds mixes to start from: each variant alone above the least of the others,
// and the better ones filled up one after the other.
func (s *search) first() {
	lows := func() {
		for i, ch := range s.choices {
			s.counts[i] = ch.low
		}
	}
	if len(s.choices) == 0 {
		if s.holds() {
			s.keep()
		}
		return
	}
	for i := range s.choices {
		lows()
		if s.raise(i, s.choices[i].high) {
			s.choices[i].alone = s.counts[i]
			s.keep()
		}
	}
	lows()
	for i := range s.choices {
		if s.raise(i, s.choices[i].high) {
			s.keep()
			return
		}
	}
}

// branch tries every count of choice i and after it that can still be cheaper.
func (s *search) branch(i int, spent float64) {
	ch := s.choices[i]
	if i == len(s.choices)-1 {
		if s.left > 0 && s.raise(i, s.cheaper(i, spent)) {
			s.keep()
		}
		return
	}
	for n := ch.low; n <= ch.high && s.left > 0; n++ {
		s.counts[i] = n
		cost := spent + ch.cost*float64(n)
		if cost >= s.bestCost {
			return
		}
		if cost+s.atLeast(i) < s.bestCost {
			s.branch(i+1, cost)
		}
	}
}

// atLeast is the least cost of what follows choice i: the least counts, and the
// capacity that is still missing at the best price among those that follow.
func (s *search) atLeast(i int) float64 {
	missing := s.traffic.PerSecond / s.config.MaxUtilization
	for j := range i + 1 {
		missing -= s.choices[j].capacity() * float64(s.counts[j])
	}
	cost := 0.0
	for _, ch := range s.choices[i+1:] {
		cost += ch.cost * float64(ch.low)
		missing -= ch.capacity() * float64(ch.low)
	}
	if missing > 0 {
		// The choices are in the order of their price of capacity.
		next := s.choices[i+1]
		cost += missing * next.cost / next.capacity()
	}
	return cost
}

// cheaper is the largest count of choice i that could still be cheaper than the best,
// after so much was spent on the others.
func (s *search) cheaper(i int, spent float64) int {
	ch := s.choices[i]
	if ch.cost == 0 {
		return ch.high
	}
	return int(min(float64(ch.high), (s.bestCost-spent)/ch.cost))
}

// raise sets choice i to the smallest allowed count up to most that holds, and tells
// whether there is one; if not, it leaves most.
func (s *search) raise(i, most int) bool {
	low := s.choices[i].low
	s.counts[i] = most
	if most < low || !s.holds() {
		return false
	}
	s.counts[i] = low + sort.Search(most-low, func(n int) bool {
		s.counts[i] = low + n
		return s.holds()
	})
	return true
}

// keep takes the present counts where they are cheaper than the best so far. Of equal
// ones the first stays.
func (s *search) keep() {
	cost := 0.0
	for i, ch := range s.choices {
		cost += ch.cost * float64(s.counts[i])
	}
	if s.best == nil || cost < s.bestCost {
		s.best, s.bestCost = slices.Clone(s.counts), cost
	}
}

// holds tells whether the present counts hold the target.
func (s *search) holds() bool {
	if s.traffic.PerSecond == 0 {
		return true
	}
	capacity := 0.0
	for i, ch := range s.choices {
		capacity += ch.capacity() * float64(s.counts[i])
	}
	if s.traffic.PerSecond > s.config.MaxUtilization*capacity {
		return false
	}
	s.left--
	return s.wait(s.counts).Within(s.config.TargetWaitSeconds) >= s.config.TargetProbability
}

func (s *search) wait(counts []int) Wait {
	for i, ch := range s.choices {
		s.groups[i] = ch.group
		s.groups[i].Replicas = counts[i]
	}
	return Queue(s.traffic, s.groups)
}
