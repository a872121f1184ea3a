package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	"github.com/prometheus/client_golang/prometheus"

	"remuda/controller/gatewayreport"
	"remuda/controller/nomad"
	"remuda/controller/planner"
	"remuda/controller/shimclient"
	"remuda/controller/state"
	"remuda/internal/replica"
)

// Raft holds the state, as raft.Node.
type Raft interface {
	// WhileLeader calls lead with a context that ends when this server no longer leads,
	// and waits for it to return.
	WhileLeader(ctx context.Context, lead func(ctx context.Context, term uint64))
	Apply(ctx context.Context, c state.Command) (state.Result, error)
	// Verify asks a majority of the servers whether this server leads.
	Verify(ctx context.Context) error
	// Barrier returns once every command proposed before is applied or lost.
	Barrier(ctx context.Context) error
	Store() *state.Store
}

// Nomad is a client of one Nomad, as nomad.Client. Its methods are called from several
// goroutines at once and return when their context ends.
type Nomad interface {
	WatchNodes(ctx context.Context, known []string, update func(nodes []state.Node, unread map[string]error), lost func(error)) error
	WatchJobs(ctx context.Context, update func(nomad.Listing), lost func(error)) error
	Render(ctx context.Context, r nomad.Request) (*api.Job, error)
	Register(ctx context.Context, job *api.Job, index uint64) (nomad.Registration, error)
	Stop(ctx context.Context, name replica.Name, index uint64, purge bool) (uint64, error)
	Why(ctx context.Context, name replica.Name) (string, error)
	GPUMemory(ctx context.Context, node string) (map[string]nomad.Sample, error)
}

// Shims is a client of the shims around engines, as shimclient.Client. Its methods are called
// from several goroutines at once and return when their context ends.
type Shims interface {
	State(ctx context.Context, address string) (shimclient.State, error)
	Takeover(ctx context.Context, to shimclient.Target) (shimclient.State, error)
	Drain(ctx context.Context, to shimclient.Target, timeout time.Duration) error
	Sleep(ctx context.Context, to shimclient.Target, since time.Time, drain time.Duration) (shimclient.State, error)
	Wake(ctx context.Context, to shimclient.Target, since time.Time, gpus []string) (shimclient.State, error)
	Failover(ctx context.Context, to shimclient.Target, since time.Time, drain time.Duration, drill bool) error
}

// Consul watches the engines, as consul.Watcher. Watch is called each time this server becomes
// leader, never twice at once.
type Consul interface {
	Watch(ctx context.Context, update func(engines []replica.Engine, afterOutage bool), lost func()) error
}

// Planner makes plans, as planner.Planner.
type Planner interface {
	Plan(*state.View, planner.Observation) (*state.Plan, time.Time)
}

// Config configures a Reconciler.
type Config struct {
	Raft Raft
	// Nomad is the controller's own Nomad. Pools are the Nomads of the external capacity pools
	// by name; the names are those of Planner.Pools.
	Nomad  Nomad
	Pools  map[string]Nomad
	Shims  Shims
	Consul Consul
	// Loads has the gateways' reports. The Reconciler resets it at the start of each term.
	Loads *gatewayreport.Store

	// Planner is the planner's configuration. The Reconciler uses its times for nodes, jobs,
	// sleeps and wakes as well.
	Planner planner.Config
	// NewPlanner, Actions and After are planner.New, planner.Actions and planner.After. A
	// planner is used for one term of leadership, or for one preview.
	NewPlanner func(planner.Config) Planner
	Actions    func(*state.View, planner.Observation, planner.Config) []planner.Action
	After      func(*state.View, planner.Outcome, time.Time, planner.Config) *state.Plan

	// Workers limits the actions that run in one Nomad at once. Tiers limits the drains, the
	// sleeps and the wakes at the shims of one pool. The limits are per pool, so that a pool
	// that hangs does not delay the others.
	Workers, Tiers int
	// Settle is the shortest time between two runs. Changes within it are handled together.
	Settle time.Duration
	// Resync is the longest time between two runs.
	Resync time.Duration
	// PlanRate limits the plans committed per second, on average, and PlanBurst those at once.
	PlanRate  float64
	PlanBurst int
	// Retry is the delay after an action or a write that failed. It doubles with each failure in
	// a row, up to RetryMax.
	Retry, RetryMax time.Duration
	// ShimRetryMax is RetryMax for a shim that does not answer.
	ShimRetryMax time.Duration
	// WhyInterval is how often Nomad is asked why it does not place a job, and a shim why its
	// engine does not serve.
	WhyInterval time.Duration
	// ConsulGrace is how long the list of engines is not trusted after an outage of Consul, so
	// that the engines can renew their checks.
	ConsulGrace time.Duration
	// LagTimeout is how long after a write Nomad may return lists from before it, as a server may
	// that was just elected. A list that is requested later counts even if its index is lower:
	// Nomad was restored from a snapshot.
	LagTimeout time.Duration

	// Now is the clock.
	Now    func() time.Time
	Logger hclog.Logger
	// Registerer is where metrics are registered; nil for no metrics.
	Registerer prometheus.Registerer
}

// DefaultConfig returns the defaults; the comments give the reasons.
func DefaultConfig() Config {
	return Config{
		Planner:      planner.DefaultConfig(),
		NewPlanner:   func(c planner.Config) Planner { return planner.New(c) },
		Actions:      planner.Actions,
		After:        planner.After,
		Workers:      32,                     // the client's rate limit is reached with fewer
		Tiers:        256,                    // they wait for engines, and cost a goroutine each
		Settle:       5 * time.Millisecond,   // far below what an engine takes for anything
		Resync:       30 * time.Second,       // a safety net: a run without changes writes nothing
		PlanRate:     10,                     // a plan has all decisions of its time
		PlanBurst:    50,                     // each step of a rollout is a plan
		Retry:        200 * time.Millisecond, // an election of Nomad's takes some of these
		RetryMax:     30 * time.Second,       // the fix of a job file should take effect soon
		ShimRetryMax: 2 * time.Second,        // requests wait for the engine behind it
		WhyInterval:  30 * time.Second,       // missing resources do not appear within seconds
		ConsulGrace:  15 * time.Second,       // three pushes of an engine's check
		LagTimeout:   15 * time.Second,       // an election of Nomad's takes less
		Now:          time.Now,
		Logger:       hclog.NewNullLogger(),
	}
}

func (c Config) validate() error {
	var errs []error
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"raft", c.Raft != nil}, {"nomad", c.Nomad != nil}, {"shims", c.Shims != nil}, {"consul", c.Consul != nil}, {"loads", c.Loads != nil},
		{"new planner", c.NewPlanner != nil}, {"actions", c.Actions != nil}, {"after", c.After != nil}, {"now", c.Now != nil}, {"logger", c.Logger != nil},
	} {
		if !f.set {
			errs = append(errs, fmt.Errorf("%s must be set", f.name))
		}
	}
	for _, d := range []struct {
		name string
		is   time.Duration
	}{
		{"settle", c.Settle}, {"resync", c.Resync}, {"retry", c.Retry}, {"why interval", c.WhyInterval}, {"lag timeout", c.LagTimeout},
	} {
		if d.is <= 0 {
			errs = append(errs, fmt.Errorf("%s is %s: must be more than 0", d.name, d.is))
		}
	}
	if c.ConsulGrace < 0 {
		errs = append(errs, fmt.Errorf("consul grace is %s: must be 0 or more", c.ConsulGrace))
	}
	if c.RetryMax < c.Retry {
		errs = append(errs, fmt.Errorf("longest retry is %s: must be at least the first, %s", c.RetryMax, c.Retry))
	}
	if c.ShimRetryMax < c.Retry {
		errs = append(errs, fmt.Errorf("longest retry at a shim is %s: must be at least the first, %s", c.ShimRetryMax, c.Retry))
	}
	if c.Workers < 1 {
		errs = append(errs, fmt.Errorf("workers is %d: must be at least 1", c.Workers))
	}
	if c.Tiers < 1 {
		errs = append(errs, fmt.Errorf("tiers is %d: must be at least 1", c.Tiers))
	}
	planned := map[string]bool{}
	for _, p := range c.Planner.Pools {
		planned[p.Name] = true
		if c.Pools[p.Name] == nil {
			errs = append(errs, fmt.Errorf("pool %q has no Nomad client", p.Name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Pools)) {
		if !planned[name] {
			errs = append(errs, fmt.Errorf("Nomad client of pool %q: the planner has no such pool", name))
		}
	}
	if !(c.PlanRate > 0) || c.PlanBurst < 1 {
		errs = append(errs, fmt.Errorf("plan rate is %g and burst %d: must be more than 0 a second, and at least 1", c.PlanRate, c.PlanBurst))
	}
	if err := c.Planner.Validate(); err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("reconcile: %w", err)
	}
	return nil
}
