package reconcile

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Reconciler reconciles while its server leads.
type Reconciler struct {
	cfg     Config
	metrics *metrics

	mu   sync.Mutex // guards loop
	loop *loop      // nil while this server does not lead
}

// New returns a Reconciler, or an error if cfg is invalid. It starts nothing; see Run.
func New(cfg Config) (*Reconciler, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	r := &Reconciler{cfg: cfg}
	r.metrics = newMetrics(r)
	if cfg.Registerer != nil {
		if err := cfg.Registerer.Register(r.metrics); err != nil {
			return nil, fmt.Errorf("reconcile: metrics: %w", err)
		}
	}
	return r, nil
}

// Run reconciles whenever this server leads, until ctx ends or Raft is closed. When it returns,
// every goroutine that it started has ended. It must be called at most once.
func (r *Reconciler) Run(ctx context.Context) {
	if r.cfg.Registerer != nil {
		defer r.cfg.Registerer.Unregister(r.metrics)
	}
	r.cfg.Raft.WhileLeader(ctx, func(ctx context.Context, term uint64) {
		l := newLoop(r, term)
		r.set(l)
		defer r.set(nil)
		l.run(ctx)
	})
}

func (r *Reconciler) set(l *loop) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.loop = l
}

func (r *Reconciler) current() *loop {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.loop
}

// Source is the state of a watch of Nomad or Consul.
type Source struct {
	// Known means that the last report is up to date.
	Known bool
	// LastContactAt is when it last reported a change, zero if it has not since this server
	// leads.
	LastContactAt time.Time
	// Error is why it is not up to date, LostAt since when.
	Error  string
	LostAt time.Time
}

// Waiting is an action that failed and is tried again.
type Waiting struct {
	Replica, Kind, Pool string
	Failures            int
	Error               string
	RetryAt             time.Time
}

// Status is the status of the Reconciler. It is zero unless this server leads.
type Status struct {
	Leading bool
	Term    uint64
	// Nodes and Jobs are those of the controller's own Nomad, Engines those of Consul.
	Nodes, Jobs, Engines Source
	// Pools are all pools, the controller's own first.
	Pools []PoolStatus
	// Paused means that an operator has paused reconciling.
	Paused bool
	// LastRunAt is when the loop last ran.
	LastRunAt time.Time
	// Error is why the last write to the state failed, empty if it did not fail. The write is
	// tried again.
	Error string
	// Running is the number of running actions; Waiting are those that failed, sorted by
	// replica.
	Running int
	Waiting []Waiting
}

// Status returns the present status.
func (r *Reconciler) Status() Status {
	l := r.current()
	if l == nil {
		return Status{}
	}
	return l.status()
}
