package planner

import (
	"errors"
	"fmt"
	"time"
)

// Config says how patient the planner is.
type Config struct {
	// NodeGrace is how long a node may be lost before it is Gone. The reconciler
	// applies it, when it writes the nodes; Plan looks at Node.Gone only.
	NodeGrace time.Duration
	// DrainTimeout is how long the requests of a draining replica may take before it
	// is stopped all the same.
	DrainTimeout time.Duration
	// CanaryTime is how long a canary must serve before the others follow.
	CanaryTime time.Duration
	// ServingGrace is how long a replica counts as running although none of its
	// engines serves, after its allocation began anew.
	ServingGrace time.Duration
	// PlaceTimeout is how long Nomad may leave a job without an allocation, or refuse
	// the job itself, before that is a failure.
	PlaceTimeout time.Duration
	// Backoff is the wait after the first failure. It doubles with each failure in a
	// row, up to BackoffMax.
	Backoff, BackoffMax time.Duration
	// Restarts is how often an engine may come back without ever serving before its
	// replica has failed.
	Restarts uint64
	// SteadyTime is how long a replica must run before its failures are forgotten.
	SteadyTime time.Duration
	// SettleTime is for how long after a step Nomad's lists may still show what was
	// before it: a job that is not listed yet, an allocation of the try before.
	SettleTime time.Duration
	// Surge is how many replicas a variant may have beyond its number while it is
	// rolled out.
	Surge int
}

// DefaultConfig returns numbers that suit engines which load for minutes.
func DefaultConfig() Config {
	return Config{
		NodeGrace:    2 * time.Minute,  // a reboot of a switch is shorter, a reload of the weights longer
		DrainTimeout: 10 * time.Minute, // the longest answers of reasoning models take minutes
		CanaryTime:   time.Minute,      // several health checks, and some requests where there are any
		ServingGrace: 30 * time.Second, // a shadow takes over in seconds
		PlaceTimeout: 5 * time.Minute,  // a blocked evaluation often waits for an allocation's kill_timeout
		Backoff:      10 * time.Second, // a passing fault is over soon
		BackoffMax:   10 * time.Minute, // a lasting one should not download weights all day
		Restarts:     3,                // one is bad luck; Nomad's own restarts are in place and cheap
		SteadyTime:   10 * time.Minute, // as long as the longest backoff, so that a loop of failures stays one
		SettleTime:   5 * time.Second,  // the lists lag by milliseconds, and by seconds while Nomad elects a leader
		Surge:        1,                // GPUs are dear: rollouts are slow and small
	}
}

// Validate names every bad field.
func (c Config) Validate() error {
	var errs []error
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"node grace", c.NodeGrace}, {"drain timeout", c.DrainTimeout}, {"canary time", c.CanaryTime},
		{"serving grace", c.ServingGrace}, {"place timeout", c.PlaceTimeout}, {"backoff", c.Backoff}, {"steady time", c.SteadyTime}, {"settle time", c.SettleTime},
	} {
		if d.value <= 0 {
			errs = append(errs, fmt.Errorf("%s is %s: want more than 0", d.name, d.value))
		}
	}
	if c.BackoffMax < c.Backoff {
		errs = append(errs, fmt.Errorf("longest backoff is %s: want at least the first, %s", c.BackoffMax, c.Backoff))
	}
	if c.Restarts < 1 {
		errs = append(errs, errors.New("restarts is 0: want at least 1"))
	}
	if c.Surge < 1 {
		errs = append(errs, fmt.Errorf("surge is %d: want at least 1", c.Surge))
	}
	return errors.Join(errs...)
}
