package peers

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"remuda/tools/policystudy/scalesim"
)

// bin is the length of a step of plans and bounds.
const bin = time.Second

// occupancy gives, for each bin from from on, the lowest and the highest number of requests
// that hold a slot in it, if each request that arrives at a holds one from a+delay until
// a+service. Only requests that arrive at from or later count.
func occupancy(trace *scalesim.Trace, from, delay time.Duration) (low, high []int32) {
	n := int((trace.Span - from + bin - 1) / bin)
	low, high = make([]int32, n), make([]int32, n)
	begins := make([]int64, 0, len(trace.Arrivals))
	ends := make([]int64, 0, len(trace.Arrivals))
	for i := range trace.Arrivals {
		a := &trace.Arrivals[i]
		if a.At >= from && a.Service > delay {
			begins = append(begins, int64(a.At+delay-from))
			ends = append(ends, int64(a.At+a.Service-from))
		}
	}
	slices.Sort(ends)
	b, e, now := 0, 0, int32(0)
	for k := range n {
		start, stop := int64(k)*int64(bin), int64(k+1)*int64(bin)
		// What changes as the bin begins has changed for all of it.
		for ; e < len(ends) && ends[e] <= start; e++ {
			now--
		}
		for ; b < len(begins) && begins[b] <= start; b++ {
			now++
		}
		lo, hi := now, now
		for {
			begin, end := int64(math.MaxInt64), int64(math.MaxInt64)
			if b < len(begins) {
				begin = begins[b]
			}
			if e < len(ends) {
				end = ends[e]
			}
			// Within one instant an end comes first, as in the simulation.
			if min(begin, end) >= stop {
				break
			}
			if end <= begin {
				now--
				e++
				lo = min(lo, now)
				continue
			}
			now++
			b++
			hi = max(hi, now)
		}
		low[k], high[k] = lo, hi
	}
	return low, high
}

// levelLoad is the load that falls to level k (from 0) when levels below are filled first.
func levelLoad(load int32, k, slots int) float64 {
	return float64(min(max(int(load)-k*slots, 0), slots))
}

// levels is how many replicas the highest load fills, the last maybe in part.
func levels(load []int32, slots int) int {
	top := int32(0)
	for _, l := range load {
		top = max(top, l)
	}
	return (int(top) + slots - 1) / slots
}

func valid(cfg scalesim.Config, trace *scalesim.Trace, share float64) error {
	errs := []error{cfg.Validate(), trace.Validate()}
	if !(share > 0 && share <= 1) {
		errs = append(errs, fmt.Errorf("the share is %v: it must be above 0 and at most 1", share))
	}
	if cfg.ScoreFrom >= trace.Span {
		errs = append(errs, fmt.Errorf("score_from_ns is %v: it must be before the end of the trace at %v", cfg.ScoreFrom, trace.Span))
	}
	return errors.Join(errs...)
}
