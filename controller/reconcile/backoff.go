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
