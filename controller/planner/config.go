package planner

import (
	"fmt"
	"math"
	"strings"
	"time"

	"remuda/controller/placement"
	"remuda/controller/state"
	"remuda/internal/hclfault"
)

// Config has the timeouts and limits of the planner. The fields with an hcl tag are settings of the
// agent's config file; the others are constants that suit production or simulations.
type Config struct {
	// Profile is "production", or "simulation" for simulated engines, which load within a
	// second: then what takes minutes otherwise takes seconds, such as how long a model that
	// was evicted may not evict in turn.
	Profile string `hcl:"profile"`
	// NodeGrace is how long a node may be lost before it is written off. The reconciler
	// applies it when it writes the nodes; Plan reads Node.WrittenOff only.
	NodeGrace time.Duration `hcl:"node_grace"`
	// DrainTimeout is how long the requests of a draining replica may take before it
	// is stopped all the same.
	DrainTimeout time.Duration `hcl:"drain_timeout"`
	// CanaryTime is how long a canary must serve before the others follow.
	CanaryTime time.Duration `hcl:"canary_time"`
	// ServingGrace is how long a replica counts as running although none of its
	// engines serves, after its allocation began anew.
	ServingGrace time.Duration
	// PlaceTimeout is how long Nomad may leave a job without an allocation, or refuse
	// the job itself, before that is a failure.
	PlaceTimeout time.Duration
	// Backoff is the wait after the first failure of a start, and after the first
	// replacement of a replica that fails its requests. It doubles with each of them in
	// a row, up to BackoffMax.
	Backoff time.Duration `hcl:"backoff"`
	// BackoffMax is the longest wait after a failure.
	BackoffMax time.Duration `hcl:"backoff_max"`
	// Restarts is how often an engine may come back without ever serving before its
	// replica has failed.
	Restarts uint64
	// SteadyTime is how long a replica must run before its failures are forgotten, and how
	// long a model must need no replacement.
	SteadyTime time.Duration
	// SettleTime is how long Nomad may take to act on a job that was registered: until then it
	// may show an allocation of the try before, or none. It is also how long a registration
	// whose answer was lost may take to arrive.
	SettleTime time.Duration

	// StandInAfter is how long a replica that served may not serve before a WARM one is woken beside
	// it.
	StandInAfter time.Duration
	// MinAge is how long a replica has served before another model may evict it; a
	// dedicated model need not wait.
	MinAge time.Duration `hcl:"min_age"`
	// ThrashWindow is for how long a model that another one has evicted may not evict
	// that one's replicas in turn.
	ThrashWindow time.Duration
	// TrafficWindow: a model with a request in it has traffic.
	TrafficWindow time.Duration
	// TierGrace is for how long a replica that has changed its tier is not pruned.
	TierGrace time.Duration
	// PruneInterval is how often idle replicas are looked for.
	PruneInterval time.Duration
	// PruneMax is how many replicas are pruned at once at most.
	PruneMax int
	// WakeTimeout is how long a wake may take before it has failed, SleepTimeout how long
	// a shim may be out of reach that is to put its engine to sleep.
	WakeTimeout, SleepTimeout time.Duration
	// LoadTimeout is how long a replica that loads to become WARM may take beyond SleepTimeout before it has
	// failed. Its shim ends a load sooner (-init-timeout): this limit is for one whose shim is out of reach.
	LoadTimeout time.Duration
	// MemoryTimeout is for how long the memory of a GPU is waited for after a sleep. What is in
	// use MemorySettle after it is what the sleeping processes keep.
	MemoryTimeout, MemorySettle time.Duration
	// WarmShare of a node's host memory is for WARM replicas.
	WarmShare float64 `hcl:"warm_share"`
	// Rates are what loading times are estimated from.
	Rates placement.Rates
	// Pools are the external capacity pools. A node of a pool that is not here takes no
	// placements, and what is there stays as in mode disabled.
	Pools []Pool
}

// Pool is an external capacity pool.
type Pool struct {
	// Name is that of the nodes' CapacityPool, never empty.
	Name string `hcl:"name,label"`
	// Management: in the modes manual, upscaling and full the replicas that a model
	// expects there are placed there; in upscaling and full it takes what the own pool
	// has no room for; in full it is left again, by itself. In disabled nothing is
	// placed, and nothing is taken away but what is stopped.
	Management state.Management `hcl:"management"`
	// Price is a factor on the cost of a variant, 1 where it costs as much as at home.
	Price float64 `hcl:"price"`
	// Batch is how many replicas leave the pool at a time, once in Interval.
	Batch int `hcl:"batch"`
	// Interval is how often a batch of replicas leaves the pool.
	Interval time.Duration `hcl:"interval"`
}

// DefaultConfig returns numbers that suit engines which load for minutes.
func DefaultConfig() Config {
	return Config{
		Profile:      ProfileProduction,
		NodeGrace:    2 * time.Minute,  // a reboot of a switch is shorter, a reload of the weights longer
		DrainTimeout: 10 * time.Minute, // the longest answers of reasoning models take minutes
		CanaryTime:   time.Minute,      // several health checks, and some requests where there are any
		ServingGrace: 30 * time.Second, // a shadow takes over in seconds
		PlaceTimeout: 5 * time.Minute,  // a blocked evaluation often waits for an allocation's kill_timeout
		Backoff:      10 * time.Second, // a passing fault is over soon
		BackoffMax:   10 * time.Minute, // a lasting one should not download weights all day
		Restarts:     3,                // one is bad luck; Nomad's own restarts are in place and cheap
		SteadyTime:   10 * time.Minute, // as long as the longest backoff, so that a loop of failures stays one
		SettleTime:   5 * time.Second,  // Nomad places within milliseconds, and within seconds while it elects a leader

		StandInAfter:  3 * time.Second,  // a shadow takes over in less
		MinAge:        5 * time.Minute,  // several times a load, so that loading is not all that is done
		ThrashWindow:  10 * time.Minute, // two models in turn cost each other one load in this time at most
		TrafficWindow: 5 * time.Minute,  // a conversation pauses for as long
		TierGrace:     time.Minute,      // what was woken for a request has answered it by then
		PruneInterval: time.Minute,      // idle times are minutes at least
		PruneMax:      100,              // a fleet that idles goes to rest in steps, not at once
		WakeTimeout:   5 * time.Minute,  // the largest models wake in seconds, a disk that swaps needs minutes
		SleepTimeout:  12 * time.Minute, // a whole drain, and two minutes
		LoadTimeout:   4 * time.Hour,    // twice what the jobs allow a load (start_budget)
		MemoryTimeout: 30 * time.Second, // drivers take 0.5 to 1.5 s, and Nomad samples once in several seconds
		MemorySettle:  3 * time.Second,  // twice what drivers take
		WarmShare:     0.9,              // as NDIF does; the rest is for the processes
		Rates:         placement.DefaultRates(),
	}
}

// The profiles.
const (
	ProfileProduction = "production"
	ProfileSimulation = "simulation"
)

// Profiled returns c with the constants of its profile.
func (c Config) Profiled() Config {
	if c.Profile != ProfileSimulation {
		return c
	}
	c.ServingGrace, c.SettleTime, c.MemoryTimeout = 5*time.Second, 2*time.Second, 8*time.Second
	c.PlaceTimeout = 3 * time.Minute // Nomad shares a laptop with all the engines
	c.ThrashWindow, c.TrafficWindow = 5*time.Second, 3*time.Second
	c.TierGrace, c.PruneInterval = time.Second, time.Second
	c.MemorySettle = time.Second // no driver takes any
	c.StandInAfter = 2 * time.Second
	c.Rates.Start = time.Second
	return c
}

// Problems are all bad fields but the pools, by their names in the config file.
func (c Config) Problems() hclfault.Problems {
	var bad hclfault.Problems
	for _, d := range []struct {
		name   string
		value  time.Duration
		zeroOK bool
	}{
		{"node_grace", c.NodeGrace, false},
		{"drain_timeout", c.DrainTimeout, false},
		{"canary_time", c.CanaryTime, false},
		{"serving_grace", c.ServingGrace, false},
		{"place_timeout", c.PlaceTimeout, false},
		{"backoff", c.Backoff, false},
		{"steady_time", c.SteadyTime, false},
		{"settle_time", c.SettleTime, false},
		{"min_age", c.MinAge, true},
		{"thrash_window", c.ThrashWindow, true},
		{"traffic_window", c.TrafficWindow, true},
		{"tier_grace", c.TierGrace, true},
		{"prune_interval", c.PruneInterval, false},
		{"wake_timeout", c.WakeTimeout, false},
		{"sleep_timeout", c.SleepTimeout, false},
		{"load_timeout", c.LoadTimeout, false},
		{"memory_timeout", c.MemoryTimeout, false},
		{"memory_settle", c.MemorySettle, true},
		{"stand_in_after", c.StandInAfter, true},
		{"rates.start", c.Rates.Start, false},
		{"rates.wake", c.Rates.Wake, false},
	} {
		switch {
		case d.zeroOK && d.value < 0:
			bad.Add(d.name, "is %s: must be 0 or more", d.value)
		case !d.zeroOK && d.value <= 0:
			bad.Add(d.name, "is %s: must be more than 0", d.value)
		}
	}
	if c.BackoffMax < c.Backoff {
		bad.Add("backoff_max", "is %s: must be at least backoff (%s)", c.BackoffMax, c.Backoff)
		bad.Blame("backoff")
	}
	for _, n := range []struct {
		name  string
		value int64
		least int64
	}{
		{"restarts", int64(min(c.Restarts, math.MaxInt64)), 1},
		{"prune_max", int64(c.PruneMax), 1},
	} {
		if n.value < n.least {
			bad.Add(n.name, "is %d: must be at least %d", n.value, n.least)
		}
	}
	if !(c.WarmShare >= 0 && c.WarmShare <= 1) {
		bad.Add("warm_share", "is %g: must be 0 to 1, a share of the node's memory", c.WarmShare)
	}
	for _, r := range []struct {
		name  string
		value float64
	}{{"rates.fetch", c.Rates.Fetch}, {"rates.disk", c.Rates.Disk}, {"rates.host", c.Rates.Host}} {
		if !(r.value > 0) {
			bad.Add(r.name, "is %g: must be more than 0 bytes a second", r.value)
		}
	}
	if c.Profile != ProfileProduction && c.Profile != ProfileSimulation {
		bad.Add("profile", "is %q: must be %q or %q", c.Profile, ProfileProduction, ProfileSimulation)
	}
	return bad
}

// PoolProblems are all bad fields of pools, named `pool "NAME".price`.
func PoolProblems(pools []Pool) hclfault.Problems {
	var bad hclfault.Problems
	seen := map[string]bool{}
	for _, p := range pools {
		title := fmt.Sprintf("pool %q", p.Name)
		if seen[p.Name] {
			bad.Add(title, "is a duplicate: each pool needs its own name")
		}
		seen[p.Name] = true
		if p.Name == "" || len(p.Name) > maxPoolName || strings.Trim(p.Name, poolNameCharacters) != "" {
			bad.Add(title, "is not a valid name: must be 1 to %d letters, digits, '-', '_' and '.'", maxPoolName)
		}
		bad.Within(title+".", p.problems(), title)
	}
	return bad
}

// Validate returns an error that names every bad field.
func (c Config) Validate() error {
	return append(c.Problems(), PoolProblems(c.Pools)...).Err("planner")
}

const (
	// maxPoolName is about as long as the name of a Nomad region may be.
	maxPoolName        = 64
	poolNameCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."
)

// problems are all bad fields but the name.
func (p Pool) problems() hclfault.Problems {
	var bad hclfault.Problems
	switch p.Management {
	case state.ManagementDisabled, state.ManagementManual, state.ManagementUpscaling, state.ManagementFull:
	default:
		bad.Add("management", `is %q: must be "disabled", "manual", "upscaling" or "full"`, p.Management)
	}
	if !(p.Price >= 0) || math.IsInf(p.Price, 0) {
		bad.Add("price", "is %g: must be 0 or more, a factor on the cost of a variant", p.Price)
	}
	if p.Batch < 1 {
		bad.Add("batch", "is %d: must be at least 1", p.Batch)
	}
	if p.Interval < 0 {
		bad.Add("interval", "is %s: must be 0 or more", p.Interval)
	}
	return bad
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
