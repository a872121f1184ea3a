package share

import (
	"math"
	"slices"
	"strings"

	"remuda/controller/api"
)

const (
	// turnReports is how many reports of each gateway make a turn, after which a unit that cannot be
	// divided goes to another gateway. A unit that changes hands is idle for about two reports.
	turnReports = 16
	// turnPart is the part of a gateway's ideal share by which its share may differ from it for
	// long, a 16th. If it differs by more, gateways take turns.
	turnPart = 16
	// fade is the part of a credit that is forgotten in a turn.
	fade = 1.0 / 64
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
	// part is the ideal share, and credit what it has had less than that in the turns so far.
	part, credit float64
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
	// scarce: the needs are above the whole.
	scarce bool
	// reports counts those of the turn.
	reports int
	*scratch
}

// scratch is the space in which one pool after the other divides.
type scratch struct {
	needs []Need
	ideal []int
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
	if weight == 0 {
		weight = 1 // it names no keys
	}
	if math.Abs(weight-c.weight) > c.weight/weightBand {
		c.weight, p.stale = weight, true
	}
	p.stale = p.stale || c.of != in.Of || c.leaving != leaving || c.demand() != last
	c.of, c.leaving, c.report = in.Of, leaving, number
	if p.reports++; p.reports >= turnReports*len(p.claims) {
		p.endTurn()
	}
	if p.stale {
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

// endTurn counts what gateways may use too much or too little of, and lets other ones have the units that
// cannot be divided.
func (p *pool) endTurn() {
	p.reports = 0
	for i := range p.claims {
		c := &p.claims[i]
		c.credit -= c.credit * fade
		if p.scarce {
			c.credit += c.part - float64(c.mayUse)
			p.stale = p.stale || math.Abs(c.part-float64(c.target)) > c.part/turnPart
		}
	}
}

// divide computes the targets.
func (p *pool) divide() {
	p.stale = false
	p.whole = p.claims[0].of
	p.needs = p.needs[:0]
	needed := 0
	for i := range p.claims {
		c := &p.claims[i]
		p.whole = min(p.whole, c.of)
		n := c.demand()
		needed += n
		p.needs = append(p.needs, Need{Units: n, Weight: c.weight, Credit: c.credit, Leaving: c.leaving})
	}
	p.ideal = Divide(p.ideal[:0], p.whole, p.needs)
	if p.scarce = needed > p.whole; !p.scarce && p.settled() {
		return
	}
	for i := range p.claims {
		c := &p.claims[i]
		c.target, c.part = p.ideal[i], p.needs[i].Part
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
