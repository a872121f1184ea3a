package scalesim

import "math/bits"

// loads finds the ready replica that runs the fewest, or the most, requests and has a free
// slot, in constant time: replicas with equal load are in one list, and a bit says whether
// the list has any.
type loads struct {
	slots int32
	head  []int32  // by load; -1 is the end
	any   []uint64 // of the loads below slots
}

func newLoads(slots int) loads {
	l := loads{slots: int32(slots), head: make([]int32, slots+1), any: make([]uint64, (slots+63)/64)}
	for i := range l.head {
		l.head[i] = -1
	}
	return l
}

// add puts a replica into the list of its load, at the front.
func (l *loads) add(reps []replica, r int32) {
	rep := &reps[r]
	load := rep.running
	next := l.head[load]
	rep.prev, rep.next = -1, next
	if next >= 0 {
		reps[next].prev = r
	} else if load < l.slots {
		l.any[load>>6] |= 1 << (load & 63)
	}
	l.head[load] = r
}

// remove takes a replica out of the list of its load.
func (l *loads) remove(reps []replica, r int32) {
	rep := &reps[r]
	if rep.next >= 0 {
		reps[rep.next].prev = rep.prev
	}
	if rep.prev >= 0 {
		reps[rep.prev].next = rep.next
		return
	}
	load := rep.running
	l.head[load] = rep.next
	if rep.next < 0 && load < l.slots {
		l.any[load>>6] &^= 1 << (load & 63)
	}
}

// least gives the emptiest replica with a free slot, or -1.
func (l *loads) least() int32 {
	for i, w := range l.any {
		if w != 0 {
			return l.head[i<<6+bits.TrailingZeros64(w)]
		}
	}
	return -1
}

// most gives the fullest replica with a free slot, or -1.
func (l *loads) most() int32 {
	for i := len(l.any) - 1; i >= 0; i-- {
		if w := l.any[i]; w != 0 {
			return l.head[i<<6+63-bits.LeadingZeros64(w)]
		}
	}
	return -1
}
