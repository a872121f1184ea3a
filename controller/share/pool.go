package share

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"remuda/controller/api"
)

const (
	// turnReports is for how many reports a gateway keeps its only unit while others wait for it.
	// A unit that changes hands is idle for about two reports.
	turnReports = 8
	// bandPart is the part of the whole by which shares may differ from the ideal ones before they
	// are divided anew, if all needs are met, and by which a need may shrink before it counts at
	// once: an eighth.
	bandPart = 8
	// weightBand is the part of its weight by which a gateway's weight may differ before it counts.
	// Without it a slot would move with every request.
	weightBand = 32
)

// claim is what one gateway has of a pool.
type claim struct {
	gateway  string
	of       int
	need     int // as of the newest report
	lastNeed int // as of the report before
	// weight is how many units the gateway's keys should have if there are too few.
	weight  float64
	leaving bool
	// mayUse is the most that the gateway may use: what its newest report shows, or the answer to
	// that report.
	mayUse int
	// target is the share that the gateway gets as soon as the others have released it.
	target int
	// turn is for how many reports it has had its only unit; queued is its place among those that
	// wait for one, 0 if it does not wait. Both are used in a contended pool only.
	turn   int
	queued uint64
	// report is the Ledger's number of the last report with this claim.
	report uint64
}

// demand is the need that counts. A need that shrinks a little counts one report later, so that one
// that changes by a unit in each report moves nothing.
func (c *claim) demand() int {
	if c.lastNeed-c.need <= band(c.of) {
		return max(c.need, c.lastNeed)
	}
	return c.need
}

// band is by how much numbers of a whole may differ and still count as about equal.
func band(whole int) int { return max(1, whole/bandPart) }

// pool is one resource.
type pool struct {
	kind, name string
	claims     []claim // sorted by gateway
	whole      int
	mayUse     int // the sum over the claims
	// stale: the targets have to be computed again.
	stale bool
	// contended: more gateways need a unit than there are units.
	contended bool
	// lastPlace is the highest claim.queued.
	lastPlace uint64
	*scratch
}

// scratch is the space in which one pool after the other divides.
type scratch struct {
	needs []Need
	ideal []int
	order []*claim
}

func (p *pool) find(gateway string) (int, bool) {
	return slices.BinarySearchFunc(p.claims, gateway, func(c claim, name string) int { return strings.Compare(c.gateway, name) })
}

// report takes a gateway's claim and returns its share. The share grows only if grow is set.
func (p *pool) report(gateway string, in api.ShareClaim, weight float64, leaving bool, number uint64, grow bool) int {
	i, known := p.find(gateway)
	if !known {
		p.claims = slices.Insert(p.claims, i, claim{gateway: gateway, of: in.Of})
		p.stale = true
	}
	c := &p.claims[i]
	last := c.demand()
	c.lastNeed, c.need = c.need, in.Need
	demand := c.demand()
	if p.contended { // it counts only whether the gateway needs a unit
		last, demand = min(last, 1), min(demand, 1)
	}
	if weight == 0 {
		weight = 1 // it names no keys
	}
	if math.Abs(weight-c.weight) > c.weight/weightBand {
		c.weight, p.stale = weight, true
	}
	p.stale = p.stale || c.of != in.Of || c.leaving != leaving || demand != last
	c.of, c.leaving, c.report = in.Of, leaving, number
	if p.contended && c.target > 0 && in.Held > 0 {
		c.turn++
	}
	if p.stale || c.turn >= turnReports {
		p.divide()
	}
	others := p.mayUse - c.mayUse
	units := c.target
	if units > in.Held {
		units = in.Held
		if grow {
			units = max(units, min(c.target, p.whole-others))
		}
	}
	c.mayUse = max(in.Held, in.Used, units)
	p.mayUse = others + c.mayUse
	return units
}

// remove forgets a gateway's claim.
func (p *pool) remove(i int) {
	p.mayUse -= p.claims[i].mayUse
	p.claims = slices.Delete(p.claims, i, i+1)
	p.stale = true
}

// divide computes the targets.
func (p *pool) divide() {
	p.stale = false
	p.whole = p.claims[0].of
	p.needs = p.needs[:0]
	needing := 0
	for i := range p.claims {
		c := &p.claims[i]
		p.whole = min(p.whole, c.of)
		n := c.demand()
		if n > 0 {
			needing++
		}
		p.needs = append(p.needs, Need{Units: n, Weight: c.weight, Leaving: c.leaving})
	}
	was := p.contended
	if p.contended = needing > p.whole; p.contended {
		p.takeTurns()
		return
	}
	p.ideal = Divide(p.ideal[:0], p.whole, p.needs)
	if !was && p.settled() {
		return
	}
	for i := range p.claims {
		c := &p.claims[i]
		c.target, c.turn, c.queued = p.ideal[i], 0, 0
	}
}

// settled reports whether the targets may stay: no gateway lacks anything, and the rest is divided
// about evenly.
func (p *pool) settled() bool {
	sum, band := 0, band(p.whole)
	for i := range p.claims {
		c, ideal := &p.claims[i], p.ideal[i]
		switch {
		case c.target < min(p.needs[i].Units, ideal):
			return false // it lacks something
		case c.target == 0 && ideal > 0:
			return false // it has no room for a burst
		case c.target > ideal+band || c.target < ideal-band || c.leaving && c.target > ideal:
			return false
		}
		sum += c.target - ideal
	}
	return sum == 0
}

// takeTurns gives a unit each to as many gateways as there are units: first those that have one
// and whose turn is not over, then those that wait, the longest first.
func (p *pool) takeTurns() {
	order := p.order[:0]
	for i := range p.claims {
		c := &p.claims[i]
		if c.demand() == 0 {
			c.target, c.turn, c.queued = 0, 0, 0
			continue
		}
		if c.target == 0 && c.queued == 0 {
			p.wait(c)
		}
		order = append(order, c)
	}
	p.order = order
	rank := func(c *claim) int {
		switch {
		case c.target == 0:
			return 1
		case c.turn < turnReports:
			return 0
		}
		return 2
	}
	slices.SortStableFunc(order, func(a, b *claim) int { return cmp.Or(rank(a)-rank(b), cmp.Compare(a.queued, b.queued)) })
	for i, c := range order {
		switch {
		case i < p.whole:
			c.target, c.queued = 1, 0
		case c.target > 0:
			c.target = 0
			p.wait(c)
		}
	}
}

// wait puts a gateway last among those that wait for a unit.
func (p *pool) wait(c *claim) {
	p.lastPlace++
	c.queued, c.turn = p.lastPlace, 0
}
