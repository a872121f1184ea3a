package planner

import (
	"errors"
	"fmt"
	"math"
	"time"

	"remuda/controller/placement"
	"remuda/controller/state"
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

	// MinAge is how long a replica has served before another model may evict it; a
	// dedicated model need not wait.
	MinAge time.Duration
	// ThrashWindow is for how long a model that another one has evicted may not evict
	// that one's replicas in turn.
	ThrashWindow time.Duration
	// TrafficWindow: a model with a request in it has traffic.
	TrafficWindow time.Duration
	// TierGrace is for how long a replica that has changed its tier is not pruned.
	TierGrace time.Duration
	// PruneInterval is how often idle replicas are looked for, PruneMax how many are
	// pruned then at most.
	PruneInterval time.Duration
	PruneMax      int
	// WakeTimeout is how long a wake may take before it has failed, SleepTimeout how long
	// a shim may be out of reach that is to put its engine to sleep.
	WakeTimeout, SleepTimeout time.Duration
	// MemoryTimeout is for how long the memory of a GPU is waited for after a sleep, and
	// MemorySlack how many bytes beyond the ledger may be in use on it then.
	MemoryTimeout time.Duration
	MemorySlack   int64
	// WarmShare of a node's host memory is for WARM replicas.
	WarmShare float64
	// Rates are what loading times are estimated from.
	Rates placement.Rates
	// Pools are the external capacity pools. A node of a pool that is not here takes no
	// placements, and what is there stays as in mode disabled.
	Pools []Pool
}

// Pool is an external capacity pool.
type Pool struct {
	// Name is that of the nodes' CapacityPool, never empty.
	Name string
	// Management: in the modes manual, upscaling and full the replicas that a model
	// expects there are placed there; in upscaling and full it takes what the own pool
	// has no room for; in full it is left again, by itself. In disabled nothing is
	// placed, and nothing is taken away but what is stopped.
	Management state.Management
	// Price is a factor on the cost of a variant, 1 where it costs as much as at home.
	Price float64
	// Batch is how many replicas leave the pool at a time, once in Interval.
	Batch    int
	Interval time.Duration
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

		MinAge:        5 * time.Minute,  // several times a load, so that loading is not all that is done
		ThrashWindow:  10 * time.Minute, // two models in turn cost each other one load in this time at most
		TrafficWindow: 5 * time.Minute,  // a conversation pauses for as long
		TierGrace:     time.Minute,      // what was woken for a request has answered it by then
		PruneInterval: time.Minute,      // idle times are minutes at least
		PruneMax:      100,              // a fleet that idles goes to rest in steps, not at once
		WakeTimeout:   5 * time.Minute,  // the largest models wake in seconds, a disk that swaps needs minutes
		SleepTimeout:  12 * time.Minute, // a whole drain, and two minutes
		MemoryTimeout: 30 * time.Second, // drivers take 0.5 to 1.5 s, and Nomad samples once in several seconds
		MemorySlack:   1 << 30,          // what a driver and a CUDA context take
		WarmShare:     0.9,              // as NDIF does; the rest is for the processes
		Rates:         placement.DefaultRates(),
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
			errs = append(errs, fmt.Errorf("%s is %s: must be more than 0", d.name, d.value))
		}
	}
	if c.BackoffMax < c.Backoff {
		errs = append(errs, fmt.Errorf("longest backoff is %s: must be at least the first, %s", c.BackoffMax, c.Backoff))
	}
	if c.Restarts < 1 {
		errs = append(errs, errors.New("restarts is 0: must be at least 1"))
	}
	if c.Surge < 1 {
		errs = append(errs, fmt.Errorf("surge is %d: must be at least 1", c.Surge))
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"min age", c.MinAge}, {"thrash window", c.ThrashWindow}, {"traffic window", c.TrafficWindow}, {"tier grace", c.TierGrace},
	} {
		if d.value < 0 {
			errs = append(errs, fmt.Errorf("%s is %s: must be 0 or more", d.name, d.value))
		}
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"prune interval", c.PruneInterval}, {"wake timeout", c.WakeTimeout}, {"sleep timeout", c.SleepTimeout}, {"memory timeout", c.MemoryTimeout},
	} {
		if d.value <= 0 {
			errs = append(errs, fmt.Errorf("%s is %s: must be more than 0", d.name, d.value))
		}
	}
	if c.PruneMax < 1 {
		errs = append(errs, fmt.Errorf("prune max is %d: must be at least 1", c.PruneMax))
	}
	if c.MemorySlack < 0 {
		errs = append(errs, fmt.Errorf("memory slack is %d bytes: must be 0 or more", c.MemorySlack))
	}
	if !(c.WarmShare >= 0 && c.WarmShare <= 1) {
		errs = append(errs, fmt.Errorf("warm share is %g: must be 0 to 1", c.WarmShare))
	}
	for name, rate := range map[string]float64{"fetch": c.Rates.Fetch, "disk": c.Rates.Disk, "host": c.Rates.Host, "start": float64(c.Rates.Start), "wake": float64(c.Rates.Wake)} {
		if !(rate > 0) {
			errs = append(errs, fmt.Errorf("rate %s is %g: must be more than 0", name, rate))
		}
	}
	seen := map[string]bool{}
	for _, p := range c.Pools {
		errs = append(errs, p.validate()...)
		if seen[p.Name] {
			errs = append(errs, fmt.Errorf("duplicate pool %q", p.Name))
		}
		seen[p.Name] = true
	}
	return errors.Join(errs...)
}

// validate names every bad field.
func (p Pool) validate() []error {
	var errs []error
	if p.Name == "" {
		errs = append(errs, errors.New("pool with an empty name: only the controller's own pool has no name"))
	}
	switch p.Management {
	case state.ManagementDisabled, state.ManagementManual, state.ManagementUpscaling, state.ManagementFull:
	default:
		errs = append(errs, fmt.Errorf("pool %q: management is %q: must be disabled, manual, upscaling or full", p.Name, p.Management))
	}
	if !(p.Price >= 0) || math.IsInf(p.Price, 0) {
		errs = append(errs, fmt.Errorf("pool %q: price is %g: must be 0 or more", p.Name, p.Price))
	}
	if p.Batch < 1 {
		errs = append(errs, fmt.Errorf("pool %q: batch is %d: must be at least 1", p.Name, p.Batch))
	}
	if p.Interval < 0 {
		errs = append(errs, fmt.Errorf("pool %q: interval is %s: must be 0 or more", p.Name, p.Interval))
	}
	return errs
}

// DefaultPool returns a pool of that name whose numbers are cautious.
func DefaultPool(name string) Pool {
	return Pool{
		Name:       name,
		Management: state.ManagementManual, // what costs money by the hour is for people to decide
		Price:      1,
		Batch:      1, // slowly: what is left comes back more slowly than it goes
		Interval:   5 * time.Minute,
	}
}
