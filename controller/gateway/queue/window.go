package queue

import "time"

// window counts events of the recent past in slices of time.
type window struct {
	slice  time.Duration
	counts []int64 // of the newest slice and those before it; slice i is at i % len

	base   time.Time
	based  bool
	newest int64 // the slice that the latest time is in
}

func newWindow(slice time.Duration, slices int) window {
	return window{slice: slice, counts: make([]int64, slices)}
}

// move brings the window to a time. One that is before the latest counts as
// part of the newest slice.
func (w *window) move(now time.Time) {
	if !w.based {
		w.base, w.based = now, true
	}
	n := int64(now.Sub(w.base) / w.slice)
	for i := max(w.newest+1, n-int64(len(w.counts))+1); i <= n; i++ {
		w.counts[i%int64(len(w.counts))] = 0
	}
	w.newest = max(w.newest, n)
}

// add counts one event in the newest slice.
func (w *window) add() { w.counts[w.newest%int64(len(w.counts))]++ }

// sum is the number of events in the newest slices, so many of them.
func (w *window) sum(slices int) (n int64) {
	for i := range min(int64(slices), w.newest+1) {
		n += w.counts[(w.newest-i)%int64(len(w.counts))]
	}
	return n
}

// start is when the slice begins that is so many after the newest, or before.
func (w *window) start(after int) time.Time {
	return w.base.Add(time.Duration(w.newest+int64(after)) * w.slice)
}
