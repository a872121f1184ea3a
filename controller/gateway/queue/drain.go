package queue

import (
	"math"
	"time"
)

const (
	drainSlices = 16
	// recentSlices are looked at alone if at least recentEnough requests ended
	// in them. With 10, chance alone is about a third.
	recentSlices, recentEnough = 4, 10
	// minDrainWindow is the shortest window of a Drain.
	minDrainWindow = drainSlices * time.Millisecond
)

// Drain estimates how fast a queue empties, from the times at which requests
// end.
type Drain struct {
	ends window
	// first is when the first request ended after a window without any. It is
	// where counting starts, and is not counted itself: n ends span n-1 gaps.
	first, last time.Time
	any         bool
}

// NewDrain returns an estimate over the requests of the last window. It should
// be several times as long as a request takes. Less than 16 ms counts as that.
func NewDrain(window time.Duration) *Drain {
	return &Drain{ends: newWindow(max(window, minDrainWindow)/drainSlices, drainSlices)}
}

// Done tells that a request ended.
func (d *Drain) Done(now time.Time) {
	d.ends.move(now)
	if !d.any || d.over(now) {
		d.first, d.any = now, true
	} else {
		d.ends.add()
	}
	d.last = now
}

// over tells whether no request ended for a whole window.
func (d *Drain) over(now time.Time) bool { return now.Sub(d.last) >= drainSlices*d.ends.slice }

// PerSecond is how many requests ended per second, over the window, or since
// the first one if that is less. It is 0 until two have ended.
func (d *Drain) PerSecond(now time.Time) float64 {
	r, _ := d.rate(now, drainSlices)
	return r
}

// rate of the newest slices, and the number of requests it is from.
func (d *Drain) rate(now time.Time, slices int) (perSecond float64, n int64) {
	if !d.any || d.over(now) {
		return 0, 0
	}
	d.ends.move(now)
	from := d.ends.start(1 - slices)
	if from.Before(d.first) {
		from = d.first
	}
	n = d.ends.sum(slices)
	// Several that end at the same moment say nothing about the next moment.
	span := max(now.Sub(from), d.ends.slice)
	return float64(n) / span.Seconds(), n
}

// Wait is how long it will take until so many requests have ended. It is false
// if too little ended lately to tell.
//
// The rate is that of the window, or that of its last quarter if it is higher
// and rests on at least 10 requests: a queue that has just become long was
// often short before, when the engines had less to do than they can.
func (d *Drain) Wait(now time.Time, ahead int) (time.Duration, bool) {
	if ahead <= 0 {
		return 0, true
	}
	rate, _ := d.rate(now, drainSlices)
	if recent, n := d.rate(now, recentSlices); n >= recentEnough {
		// One less, as the higher of two guesses tends to be too high.
		rate = max(rate, recent*float64(n-1)/float64(n))
	}
	if rate <= 0 {
		return 0, false
	}
	ns := float64(ahead) / rate * float64(time.Second)
	if ns >= math.MaxInt64 {
		return math.MaxInt64, true
	}
	return time.Duration(ns), true
}
