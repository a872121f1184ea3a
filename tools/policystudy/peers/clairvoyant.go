package peers

import (
	"fmt"
	"math"
	"time"

	"remuda/tools/policystudy/scalesim"
)

// Clairvoyant is a policy that knows the trace: it plays a plan that was made from it. What
// it reaches is real, as it comes from the simulation, and near the least that can be
// reached: the tests hold it against a proven lower bound.
//
// The plan. The load is what would run if no request ever waited, or what must run then if
// all wait as long as they may (or half as long) and still start in time. Each level (the
// first replica, the second, ...) is on or off in each second. On costs a GPU-second, off
// costs a price for each slot-second of the level's load that is not served, and switching
// on costs the cold start and what a drain keeps of a replica. Two states solve that exactly
// for each level. Replicas are started one cold start before their level is on.
//
// The load, the price and what is reckoned for a drain are searched for: of all plans that
// start the share in time when they are simulated, the one with the fewest GPU-hours is
// kept. So it is not the optimum: it weighs loads, not queues, and it does not choose which
// requests are late.
type Clairvoyant struct {
	plan   []int32 // wanted at each bin, cold starts included
	result scalesim.Result
}

var _ scalesim.Paced = (*Clairvoyant)(nil)

// NewClairvoyant makes a plan for a share, by up to 54 simulations. Where no plan reaches
// the share, as with a cold start at the beginning of the score, the plan with the highest
// share is taken: see Result.
func NewClairvoyant(cfg scalesim.Config, trace *scalesim.Trace, share float64) (*Clairvoyant, error) {
	if err := valid(cfg, trace, share); err != nil {
		return nil, fmt.Errorf("clairvoyant: %w", err)
	}
	search := planner{cfg: cfg, trace: trace, share: share}
	slots := float64(cfg.Slots)
	// Where a replica must be full to be worth its time, and where one request is enough.
	least, most := math.Log(1/slots), math.Log(1e4)
	service := trace.MeanService().Seconds()
	for _, part := range []float64{0, 0.5, 1} {
		low, high := occupancy(trace, 0, time.Duration(part*float64(cfg.TargetWait)))
		search.load = high
		if part > 0 {
			search.load = low
		}
		search.levels = levels(search.load, cfg.Slots)
		for _, drain := range []float64{0, 2 * service} {
			if err := search.try(math.Inf(1), drain); err != nil {
				return nil, err
			}
			if search.reached < share {
				continue // no lower price does
			}
			a, b := least, most
			for range 8 {
				x := (a + b) / 2
				if err := search.try(math.Exp(x), drain); err != nil {
					return nil, err
				}
				if search.reached >= share {
					b = x
					continue
				}
				a = x
			}
		}
	}
	return search.best, nil
}

// Name implements scalesim.Policy.
func (c *Clairvoyant) Name() string { return "clairvoyant" }

// Interval implements scalesim.Paced.
func (c *Clairvoyant) Interval() time.Duration { return bin }

// Decide implements scalesim.Policy.
func (c *Clairvoyant) Decide(o *scalesim.Observation) int {
	return int(c.plan[min(int(o.Now/bin), len(c.plan)-1)])
}

// Result is that of the simulation with the plan.
func (c *Clairvoyant) Result() scalesim.Result { return c.result }

// planner searches for a plan.
type planner struct {
	cfg     scalesim.Config
	trace   *scalesim.Trace
	share   float64
	load    []int32
	levels  int
	best    *Clairvoyant
	reached float64 // the share, by the last try
}

// try simulates the plan for a price and a drain (s), and keeps it if it is better.
func (p *planner) try(price, drain float64) error {
	on := p.solve(price, drain)
	c := &Clairvoyant{plan: p.ahead(on)}
	result, err := scalesim.Run(p.cfg, p.trace, c)
	if err != nil {
		return err
	}
	c.result, p.reached = result, result.InTime
	if p.best == nil || better(result, p.best.result, p.share) {
		p.best = c
	}
	return nil
}

// better says whether a is a better answer than b: it reaches the share and is cheaper, or
// comes nearer to the share.
func better(a, b scalesim.Result, share float64) bool {
	if a.InTime < share || b.InTime < share {
		return a.InTime > b.InTime || (a.InTime == b.InTime && a.GPUHours < b.GPUHours)
	}
	return a.GPUHours < b.GPUHours
}

// solve gives the number of levels that are on in each bin.
func (p *planner) solve(price, drain float64) []int32 {
	n := len(p.load)
	count := make([]int32, n)
	// Bit i of stay[s]: the best way to state s in bin i comes from the same state.
	stay := [2][]uint64{make([]uint64, (n+63)/64), make([]uint64, (n+63)/64)}
	step := bin.Seconds()
	start := p.cfg.ColdStart.Seconds() + drain
	for k := range p.levels {
		clear(stay[0])
		clear(stay[1])
		on, off := 0.0, 0.0
		for i, l := range p.load {
			missed := 0.0
			if r := levelLoad(l, k, p.cfg.Slots); r > 0 {
				missed = price * r * step
			}
			nextOn, nextOff := off+start+step, on+missed
			if on+step <= nextOn {
				nextOn = on + step
				stay[1][i>>6] |= 1 << (i & 63)
			}
			if off+missed <= nextOff {
				nextOff = off + missed
				stay[0][i>>6] |= 1 << (i & 63)
			}
			on, off = nextOn, nextOff
		}
		state := 0
		if on < off {
			state = 1
		}
		for i := n - 1; i >= 0; i-- {
			count[i] += int32(state)
			if stay[state][i>>6]&(1<<(i&63)) == 0 {
				state = 1 - state
			}
		}
	}
	return count
}

// ahead turns levels into wishes: what is on at some time until a cold start later.
func (p *planner) ahead(on []int32) []int32 {
	cold := p.cfg.ColdStart.Seconds() * (1 + p.cfg.ColdStartSpread)
	reach := int(math.Ceil(cold/bin.Seconds())) + 1
	n := len(on)
	wish := make([]int32, n)
	queue := make([]int, 0, reach+1) // bins with falling counts
	for i := n - 1; i >= 0; i-- {
		for len(queue) > 0 && on[queue[len(queue)-1]] <= on[i] {
			queue = queue[:len(queue)-1]
		}
		queue = append(queue, i)
		if queue[0] > i+reach {
			queue = queue[1:]
		}
		wish[i] = on[queue[0]]
	}
	return wish
}
