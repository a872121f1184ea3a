package reconcile

import (
	"math/rand/v2"
	"time"
)

// spread makes a wait shorter by up to a half, so that those who failed together do
// not come back together.
func spread(d time.Duration) time.Duration {
	return d - rand.N(d/2+1)
}

// schedule collects when to look again; zero is never.
type schedule struct{ at time.Time }

func (s *schedule) add(at time.Time) {
	if !at.IsZero() && (s.at.IsZero() || at.Before(s.at)) {
		s.at = at
	}
}

// bucket is a token bucket on the injected clock. It belongs to one goroutine.
type bucket struct {
	rate, burst float64
	tokens      float64
	last        time.Time
}

// take takes a token, or says when there will be one.
func (b *bucket) take(now time.Time) (ok bool, again time.Time) {
	if b.last.IsZero() {
		b.tokens = b.burst
	} else if d := now.Sub(b.last); d > 0 {
		b.tokens = min(b.burst, b.tokens+d.Seconds()*b.rate)
	}
	b.last = now
	if b.tokens < 1 {
		wait := time.Duration((1 - b.tokens) / b.rate * float64(time.Second))
		return false, now.Add(max(wait, time.Millisecond))
	}
	b.tokens--
	return true, time.Time{}
}
