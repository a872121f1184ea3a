package capacity

import (
	"math"
	"slices"
)

// room is step 5, the simulation of removals: the load of all replicas, saturated and
// draining ones included, against the room of those that remain.
//
// A removed replica takes its size with it. Sizes are those that the input tells. Where it
// does not tell them all they are not known, and a removal must be safe both with equal sizes
// and, where costs differ, with sizes as the costs are.
type room struct {
	sized  bool // sizes are told
	priced bool // sizes as the costs are looked at, too

	left    int     // replicas that remain
	calm    int     // of them, those that are not saturated
	kv      float64 // load, in replicas of equal size
	queue   float64 // waiting requests
	sizedKV float64 // load, in units of size
	total   float64 // size of those that remain
}

// burden sums the load of all replicas, and the sizes of those that may remain.
func (a *Analyzer) burden(sized bool) {
	uneven, least := false, math.Inf(1)
	for i := range a.vars {
		uneven = uneven || a.vars[i].cost != a.vars[0].cost
		least = min(least, a.vars[i].cost)
	}
	r := &a.whole
	r.sized, r.priced = sized, !sized && uneven && least > 0
	for i := range a.entries {
		e := &a.entries[i]
		if e.class > Draining {
			continue
		}
		a.loadKV.add(e.kv)
		a.loadQueue.add(e.queue)
		size := e.size
		if r.priced {
			size = a.vars[e.variant].cost
		} else if !sized {
			continue
		}
		a.sizedLoad.add(e.kv * size)
		if e.class != Draining {
			a.sizes.add(size)
			v := &a.vars[e.variant]
			v.largest = max(v.largest, size)
		}
	}
	r.kv, r.queue = a.loadKV.value(), a.loadQueue.value()
	r.sizedKV, r.total = a.sizedLoad.value(), a.sizes.value()
}

// empty forgets the removals.
func (a *Analyzer) empty() {
	a.room = a.whole
	for i := range a.vars {
		a.vars[i].removed = 0
	}
}

// fits tells whether the load would fit if the variant lost one replica more.
func (a *Analyzer) fits(v *variant, c *Config) bool {
	r := &a.room
	if v.removed >= v.reporting {
		return true // one that starts: it has no room to take away
	}
	// As upstream: two replicas must not be saturated, of which one goes.
	if r.left < 2 || r.calm < 2 {
		return false
	}
	n := float64(r.left - 1)
	if !(c.QueueLengthThreshold-r.queue/n >= c.QueueSpareTrigger) {
		return false
	}
	if !r.sized && !(c.KVCacheThreshold-r.kv/n >= c.KVSpareTrigger) {
		return false
	}
	if !r.sized && !r.priced {
		return true
	}
	total := r.total - a.next(v)
	return total > 0 && c.KVCacheThreshold-r.sizedKV/total >= c.KVSpareTrigger
}

// next is the size of the largest replica of the variant that remains.
func (a *Analyzer) next(v *variant) float64 {
	if v.removed == 0 || !a.room.sized {
		return v.largest
	}
	a.weights = a.weights[:0]
	for i := range a.entries {
		if e := &a.entries[i]; (e.class == OK || e.class == Saturated) && &a.vars[e.variant] == v {
			a.weights = append(a.weights, e.size)
		}
	}
	slices.Sort(a.weights)
	return a.weights[len(a.weights)-1-v.removed]
}

// reduce goes from the variant's current count towards a target, one replica after the other
// while the load fits, and returns how far it came and what stopped it. It remembers what it
// removed. A target above the count is reached at once. Removals beyond the replicas that
// report are of such that start: they take no room away.
func (a *Analyzer) reduce(v *variant, target int, out *Result) (int, Hold) {
	if target >= v.current {
		return target, HoldNone
	}
	if out.Hold != HoldNone && out.Hold != HoldLoad {
		return v.current, out.Hold
	}
	for n := v.current; n > target && v.removed < v.reporting; n-- {
		if !a.fits(v, &out.Config) {
			return n, HoldLoad
		}
		if a.room.sized || a.room.priced {
			a.room.total -= a.next(v)
		}
		a.room.left--
		a.room.calm--
		v.removed++
	}
	return target, HoldNone
}
