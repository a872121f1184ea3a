package peers

import (
	"fmt"
	"math"
	"slices"
	"time"

	"remuda/tools/policystudy/scalesim"
)

// Bound is a proven lower bound.
type Bound struct {
	// GPUHours is what a policy that starts the share in time is charged at least.
	GPUHours float64 `json:"gpu_hours"`
	// Share is the share of requests to be started in time.
	Share float64 `json:"share"`
	// Price is the multiplier that gave the bound: GPU-seconds for one slot-second that
	// late requests free.
	Price float64 `json:"price"`
}

// LowerBound gives GPU-hours that no policy can stay below if it starts at least the share
// of requests in time, whatever it knows, on the Config and Trace as they are simulated.
//
// Why it is a bound. A request that arrives at a and starts in time, at a+w at the latest,
// holds a slot from a+w until a+service, whenever it started. Let M(t) count the requests
// for which t is in that time, and n(t) be the replicas that are ready or drain. At most
// late(t) of the M(t) may be late ones, so M(t) - slots*n(t) <= late(t). Only N*(1-share)
// requests may be late, so the integral of late(t) is at most B, the sum of the longest
// such times of so many requests. Each rise of n(t) costs a cold start, charged before it.
//
// Multiplying the condition on B by a price p (Lagrange) splits the problem by replica: in
// each level k, which has the load r_k(t) = M(t) - k*slots cut to 0..slots, a second costs
// 1 if the level is on and p*r_k(t) if it is off, and switching on costs a cold start. Two
// states, on and off, solve that exactly. The sum over levels less p*B is a bound for every
// p; the highest over a search for p is given. Within a second the lowest M(t) counts, and
// a level may switch at the best moment, which only lowers the bound.
//
// Where the target wait is not small beside the service times, M(t) is too little. So the
// same is done for windows of 10 to 120 s, with the slot-seconds that a request spends at
// least in a window wherever it starts in time. A level that switches within a window is
// charged for the load that it serves only. The highest of these bounds is given.
//
// What makes it lower than what can be reached: a request may move between replicas, drains
// take no longer than the load needs, the first replicas need no start, Config.Min and Max
// are not held, and late requests need no slot at all.
func LowerBound(cfg scalesim.Config, trace *scalesim.Trace, share float64) (Bound, error) {
	if err := valid(cfg, trace, share); err != nil {
		return Bound{}, fmt.Errorf("lower bound: %w", err)
	}
	if cfg.BatchSlope > 0 {
		// No request takes less than it does alone.
		quick := &scalesim.Trace{Name: trace.Name, Span: trace.Span, Arrivals: slices.Clone(trace.Arrivals)}
		for i := range quick.Arrivals {
			a := &quick.Arrivals[i]
			a.Service = max(time.Duration(float64(a.Service)/(1+cfg.BatchSlope)), 1)
		}
		trace = quick
	}
	best := Bound{Share: share}
	low, _ := occupancy(trace, cfg.ScoreFrom, cfg.TargetWait)
	low = low[:(trace.Span-cfg.ScoreFrom)/bin] // what is left at the end costs nothing
	instant := dual{step: bin.Seconds(), load: make([]float64, len(low)), instant: true}
	for i, l := range low {
		instant.load[i] = float64(l)
	}
	needs := func(a *scalesim.Arrival) float64 {
		return max(0, min(a.At+a.Service, trace.Span)-a.At-cfg.TargetWait).Seconds()
	}
	best.raise(&instant, cfg, trace, needs)
	for _, window := range windows {
		d := energy(cfg, trace, window)
		best.raise(&d, cfg, trace, func(a *scalesim.Arrival) float64 {
			sum := 0.0
			spend(cfg, a, window, len(d.load), func(_ int, seconds float64) { sum += seconds })
			return sum
		})
	}
	return best, nil
}

// windows are what energy is tried with.
var windows = []time.Duration{10 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute}

// raise takes the bound of d if it is higher. needs is what one request adds to the load,
// in slot-seconds.
func (b *Bound) raise(d *dual, cfg scalesim.Config, trace *scalesim.Trace, needs func(*scalesim.Arrival) float64) {
	d.slots = float64(cfg.Slots)
	d.cold = cfg.ColdStart.Seconds() * (1 - cfg.ColdStartSpread)
	budget, late := relief(cfg, trace, b.Share, needs)
	try := func(price float64) float64 {
		v := d.value(price) / 3600
		if late > 0 {
			v -= price * budget / 3600
		}
		if v > b.GPUHours {
			b.GPUHours, b.Price = v, price
		}
		return v
	}
	if late == 0 {
		try(1e9) // nothing is left off
		return
	}
	// The value is concave in the price, and so has one top also over its logarithm.
	golden(math.Log(1e-3/d.slots), math.Log(1e4), 24, func(x float64) float64 { return try(math.Exp(x)) })
}

// relief gives the slot-seconds that late requests can free at most, and how many may be
// late.
func relief(cfg scalesim.Config, trace *scalesim.Trace, share float64, needs func(*scalesim.Arrival) float64) (seconds float64, late int) {
	var all []float64
	for i := range trace.Arrivals {
		if a := &trace.Arrivals[i]; a.At >= cfg.ScoreFrom {
			all = append(all, needs(a))
		}
	}
	late = int(math.Floor((1-share)*float64(len(all)) + 1e-6))
	if late == 0 {
		return 0, 0
	}
	slices.Sort(all)
	for _, d := range all[len(all)-late:] {
		seconds += d
	}
	return seconds, late
}

// energy has the load of each window: the slots that requests need in the mean at least.
func energy(cfg scalesim.Config, trace *scalesim.Trace, window time.Duration) dual {
	d := dual{step: window.Seconds(), load: make([]float64, (trace.Span-cfg.ScoreFrom)/window)}
	for i := range trace.Arrivals {
		if a := &trace.Arrivals[i]; a.At >= cfg.ScoreFrom {
			spend(cfg, a, window, len(d.load), func(k int, seconds float64) { d.load[k] += seconds / d.step })
		}
	}
	return d
}

// spend gives the seconds that a request holds a slot at least in each window from
// Config.ScoreFrom on, if it starts in time. The least is with the first or with the last
// start, as the time in a window first grows and then falls with the start.
func spend(cfg scalesim.Config, a *scalesim.Arrival, window time.Duration, n int, add func(k int, seconds float64)) {
	at := a.At - cfg.ScoreFrom
	for k := int((at + min(cfg.TargetWait, a.Service)) / window); k < n; k++ {
		start := time.Duration(k) * window
		if start >= at+a.Service {
			return
		}
		overlap := func(from time.Duration) time.Duration {
			return min(from+a.Service, start+window) - max(from, start)
		}
		if least := min(overlap(at), overlap(at+cfg.TargetWait)); least > 0 {
			add(k, least.Seconds())
		}
	}
}

// dual is the priced problem.
type dual struct {
	load    []float64 // of each step
	step    float64   // seconds
	slots   float64
	cold    float64 // seconds
	instant bool    // the load is there at each moment of the step, not in the mean
}

// value is the least cost, in GPU-seconds, at a price.
func (d *dual) value(price float64) float64 {
	sum, top := 0.0, 0.0
	for _, l := range d.load {
		top = math.Max(top, l)
	}
	for base := 0.0; base < top; base += d.slots {
		on, off := 0.0, 0.0
		for i, l := range d.load {
			r := math.Min(math.Max(l-base, 0), d.slots)
			missed := price * r * d.step
			mixed := math.Min(missed, r/d.slots*d.step)
			if d.instant {
				mixed = math.Min(missed, d.step)
			}
			// A start in the first seconds of the score is charged only in part.
			start := math.Min(d.cold, float64(i)*d.step)
			toOn := math.Min(on+math.Min(d.step, start+mixed), off+start+mixed)
			off = math.Min(off+math.Min(missed, start+mixed), on+mixed)
			on = toOn
		}
		sum += math.Min(on, off)
	}
	return sum
}

// golden narrows [a, b] down around the top of f, which has one, in a number of steps.
func golden(a, b float64, steps int, f func(float64) float64) {
	const phi = 0.6180339887498949
	x, y := b-phi*(b-a), a+phi*(b-a)
	fx, fy := f(x), f(y)
	for range steps {
		if fx > fy {
			b, y, fy = y, x, fx
			x = b - phi*(b-a)
			fx = f(x)
			continue
		}
		a, x, fx = x, y, fy
		y = a + phi*(b-a)
		fy = f(y)
	}
}
