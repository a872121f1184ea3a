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

	mu      sync.Mutex // guards what follows
	leading *leading   // nil while this server does not lead
}

// New checks cfg; nothing starts before Run.
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

// Run reconciles whenever this server leads, until ctx ends or Raft is closed. When
// it returns, everything that it started has ended. It is called once.
func (r *Reconciler) Run(ctx context.Context) {
	if r.cfg.Registerer != nil {
		defer r.cfg.Registerer.Unregister(r.metrics)
	}
	r.cfg.Raft.WhileLeader(ctx, func(ctx context.Context, term uint64) {
		l := newLeading(r, term)
		r.set(l)
		defer r.set(nil)
		l.run(ctx)
	})
}

func (r *Reconciler) set(l *leading) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leading = l
}

func (r *Reconciler) current() *leading {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.leading
}

// Source is what is known of Nomad or Consul.
type Source struct {
	// Known: what it last said is up to date.
	Known bool
	// Heard is when it last said something new, zero where it never did since this
	// server leads.
	Heard time.Time
	// Error is why it is not known, LostAt since when.
	Error  string
	LostAt time.Time
}

// Waiting is an action that failed and is tried again.
type Waiting struct {
	Replica, Kind, Pool string
	Failures            int
	Error               string
	Retry               time.Time
}

// Status is how the reconciling goes. Only the leader has one.
type Status struct {
	Leading bool
	Term    uint64
	// Nodes and Jobs are of the controller's own Nomad, Engines of Consul.
	Nodes, Jobs, Engines Source
	// Pools are all Nomads, the own one first.
	Pools []PoolStatus
	// Paused: an operator has set the switch.
	Paused bool
	// Looked is when it was last looked whether something is to be done.
	Looked time.Time
	// Error is why the last write to the state failed, empty where it did not; it is
	// tried again.
	Error string
	// Running is how many actions are being done, Waiting those that failed, by
	// replica.
	Running int
	Waiting []Waiting
}

// Status returns how it goes now.
func (r *Reconciler) Status() Status {
	l := r.current()
	if l == nil {
		return Status{}
	}
	return l.status()
}
