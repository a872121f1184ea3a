package optimizer

import (
	"math"
	"sort"
)

// Traffic is how requests arrive and how their service times vary.
type Traffic struct {
	PerSecond float64 `json:"per_second"`
	// ArrivalSCV and ServiceSCV are squared coefficients of variation (variance over
	// the squared mean) of the times between arrivals and of the service times. 1 is a
	// Poisson stream and exponential service.
	ArrivalSCV float64 `json:"arrival_scv"`
	ServiceSCV float64 `json:"service_scv"`
}

// Group is so many equal replicas.
type Group struct {
	Replicas int
	Slots    int // of each
	Curve    Curve
}

// Wait is how long requests wait for a slot, in the long run.
type Wait struct {
	// Stable tells that the station keeps up. Where it does not, every request waits
	// for ever, and the other fields say so.
	Stable bool `json:"stable"`
	// Utilization is the arrivals as a share of what the full station serves. It is
	// absent (0) where nothing can be served at all.
	Utilization float64 `json:"utilization"`
	// Delayed is the probability that a request waits at all.
	Delayed float64 `json:"delayed"`
	// MeanSeconds is the mean wait over all requests; 0 where it is not stable.
	MeanSeconds float64 `json:"mean_seconds"`
	// DecayPerSecond is the rate at which the tail of the wait falls.
	DecayPerSecond float64 `json:"decay_per_second"`
}

// Within is the probability that a request waits no longer than so many seconds.
func (w Wait) Within(seconds float64) float64 {
	if !w.Stable {
		return 0
	}
	return 1 - w.Delayed*math.Exp(-w.DecayPerSecond*max(seconds, 0))
}

const (
	// minVariability bounds the Allen-Cunneen factor from below at that of constant
	// service: a smoother station than that is not believed.
	minVariability = 0.5
	// maxStates bounds the work for very large stations. Fewer, larger servers wait
	// longer at the same utilization, so that the bound errs on the safe side.
	maxStates = 1 << 16
)

// Queue computes the wait of a station of groups behind one queue, first come first
// served. It is the stationary distribution of the birth-death chain whose death rate,
// with a share x of all slots taken, is the sum over the replicas of x*slots/Seconds:
// the gateway keeps all replicas equally full. By the memoryless service of a full
// station the wait of those who wait is exponential.
//
// Exact for Poisson arrivals and exponential service; with level curves it is Erlang C.
// Bursts follow Hayward's approximation (the station as one of c/z servers, z the
// peakedness) and variability that of Allen and Cunneen.
func Queue(tr Traffic, groups []Group) Wait {
	slots, full := 0, 0.0
	for _, g := range groups {
		slots += g.Replicas * g.Slots
		full += g.rate(1)
	}
	switch {
	case tr.PerSecond <= 0:
		return Wait{Stable: true, DecayPerSecond: full}
	case slots == 0:
		return Wait{Delayed: 1}
	case tr.PerSecond >= full:
		return Wait{Delayed: 1, Utilization: tr.PerSecond / full}
	}
	peakedness := max(1, (1+tr.ArrivalSCV)/2)
	states := max(1, min(int(float64(slots)/peakedness), maxStates))
	rate := func(state int) float64 {
		r := 0.0
		for _, g := range groups {
			r += g.rate(float64(state) / float64(states))
		}
		return r
	}
	// b is the probability of state j among the states up to j: Erlang B's recursion
	// with a rate for each state. It cannot overflow.
	b := 1.0
	for j := firstState(states, tr.PerSecond, rate) + 1; j <= states; j++ {
		r := tr.PerSecond / rate(j) * b
		b = r / (1 + r)
	}
	w := Wait{Stable: true, Utilization: tr.PerSecond / full}
	w.Delayed = b / (1 - w.Utilization*(1-b))
	w.DecayPerSecond = (full - tr.PerSecond) / max((tr.ArrivalSCV+tr.ServiceSCV)/2, minVariability)
	w.MeanSeconds = w.Delayed / w.DecayPerSecond
	return w
}

// firstState is the state from which the recursion may start with b = 1. Each state
// below the typical one shrinks the error of b by its rate over the arrivals, so that
// states further below than shrink it to 1e-18 cannot be told from the answer.
func firstState(states int, arrivals float64, rate func(int) float64) int {
	j := sort.Search(states, func(j int) bool { return rate(j+1) >= arrivals })
	for left := 1.0; j > 0 && left > 1e-18; j-- {
		left *= rate(j) / arrivals
	}
	return j
}

// rate is how many requests the group finishes per second with a share of its slots
// taken.
func (g Group) rate(share float64) float64 {
	running := share * float64(g.Slots)
	return float64(g.Replicas) * running / g.Curve.Seconds(running)
}
