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

	"remuda/controller/load"
	"remuda/controller/nomad"
	"remuda/controller/planner"
	"remuda/controller/shim"
	"remuda/controller/state"
	"remuda/internal/replica"
)

// Raft is where the state is, as raft.Node.
type Raft interface {
	// WhileLeader calls lead with a context that ends when this server leads no more,
	// and waits for it to return.
	WhileLeader(ctx context.Context, lead func(ctx context.Context, term uint64))
	Apply(ctx context.Context, c state.Command) (state.Result, error)
	// Verify asks a majority whether this server leads.
	Verify(ctx context.Context) error
	// Barrier returns when everything that was proposed before is applied or lost.
	Barrier(ctx context.Context) error
	Store() *state.Store
}

// Nomad is where the jobs are, as nomad.Client. Its methods are called from several
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

// Shims is the way to the shims around engines, as shim.Client. Its methods are called
// from several goroutines at once and return when their context ends.
type Shims interface {
	State(ctx context.Context, address string) (shim.State, error)
	Drain(ctx context.Context, address string, timeout time.Duration) error
	Sleep(ctx context.Context, address string, since time.Time, drain time.Duration) (shim.State, error)
	Wake(ctx context.Context, address string, since time.Time, gpus []string) (shim.State, error)
}

// Consul is where the engines are, as consul.Watcher. Watch is called anew each time
// that this server begins to lead, never twice at once.
type Consul interface {
	Watch(ctx context.Context, update func(engines []replica.Engine, afterOutage bool), lost func()) error
}

// Planner plans, see planner.Planner.
type Planner interface {
	Plan(*state.View, planner.Observation) (*state.Plan, time.Time)
}

// Config says how the world is reconciled.
type Config struct {
	Raft Raft
	// Nomad is the controller's own, Pools are those of the external capacity pools by
	// name: as many as Planner.Pools has, of the same names.
	Nomad  Nomad
	Pools  map[string]Nomad
	Shims  Shims
	Consul Consul
	// Loads is given to the term in which this server leads.
	Loads *load.Store

	// Planner is passed on; its times for nodes, jobs, sleeps and wakes are used here as
	// well.
	Planner planner.Config
	// NewPlanner, Actions and After decide: planner.New, planner.Actions and planner.After. A
	// planner plans for one term of leadership, or for one preview.
	NewPlanner func(planner.Config) Planner
	Actions    func(*state.View, planner.Observation, planner.Config) []planner.Action
	After      func(*state.View, planner.Outcome, time.Time, planner.Config) *state.Plan

	// Workers is how many actions are done in one Nomad at once, and Tiers how many
	// drains, sleeps, and wakes each, among the shims of one pool. Each pool has its own, so
	// that one that hangs keeps no other waiting.
	Workers, Tiers int
	// Settle is the least time between two looks, in which changes are gathered.
	Settle time.Duration
	// Resync is the longest time between two looks.
	Resync time.Duration
	// PlanRate is how many plans a second are committed at most, on average, and
	// PlanBurst how many at once.
	PlanRate  float64
	PlanBurst int
	// Retry is the wait after an action or a write that failed. It doubles with each
	// failure in a row, up to RetryMax.
	Retry, RetryMax time.Duration
	// ShimRetryMax is RetryMax for a shim that does not answer.
	ShimRetryMax time.Duration
	// WhyInterval is how long until Nomad is asked again why it does not place a job.
	WhyInterval time.Duration
	// ConsulGrace is how long a Consul that was out of reach is given to hear from the
	// engines again, before anything is concluded from those that it does not list.
	ConsulGrace time.Duration
	// LagTimeout is how long Nomad may answer with a state from before a write that it has
	// acknowledged, as a server may that was just elected. What it answers to a question that was
	// asked later counts, although its index is lower: it was restored from a snapshot.
	LagTimeout time.Duration

	// Now is the clock.
	Now    func() time.Time
	Logger hclog.Logger
	// Registerer, nil: no metrics.
	Registerer prometheus.Registerer
}

// DefaultConfig has the reasons beside the numbers.
func DefaultConfig() Config {
	return Config{
		Planner:      planner.DefaultConfig(),
		NewPlanner:   func(c planner.Config) Planner { return planner.New(c) },
		Actions:      planner.Actions,
		After:        planner.After,
		Workers:      32,                     // the client's rate limit is reached with fewer
		Tiers:        256,                    // they wait for engines, and cost a goroutine each
		Settle:       5 * time.Millisecond,   // far below what an engine takes for anything
		Resync:       30 * time.Second,       // a belt: a look costs no write
		PlanRate:     10,                     // a plan holds all that is to be done at its time
		PlanBurst:    50,                     // a rollout's steps come one by one
		Retry:        200 * time.Millisecond, // an election of Nomad's takes some of these
		RetryMax:     30 * time.Second,       // somebody who mends a job file should not wait for long
		ShimRetryMax: 2 * time.Second,        // requests wait for the engine behind it
		WhyInterval:  30 * time.Second,       // what Nomad lacks does not come in seconds
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
