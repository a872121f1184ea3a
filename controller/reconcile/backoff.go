package reconcile

import (
	"math/rand/v2"
	"time"
)

// spread shortens a delay by up to a half at random, so that actions that failed together are
// not all tried again at the same time.
func spread(d time.Duration) time.Duration {
	return d - rand.N(d/2+1)
}

// schedule collects the earliest time of the next run; zero is never.
type schedule struct{ at time.Time }

func (s *schedule) add(at time.Time) {
	if !at.IsZero() && (s.at.IsZero() || at.Before(s.at)) {
		s.at = at
	}
}
