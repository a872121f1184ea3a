package reconcile

import (
	"context"
	"fmt"
	"time"

	"remuda/controller/nomad"
	"remuda/controller/planner"
	"remuda/controller/raft"
	"remuda/controller/state"
)

// previewTime limits a preview: on a large fleet one plan takes a second of CPU time.
const previewTime = 10 * time.Second

// Preview copies the store, applies change to the copy, and plans on the copy what follows from
// the present observation; see planner.Foresee. It commits nothing and starts no action. Once
// ctx is done it returns the steps so far. It returns the error of change, or an error that
// wraps raft.ErrNotLeader or nomad.ErrUnreachable if this server observes nothing. It may be
// called from several goroutines at once.
func (r *Reconciler) Preview(ctx context.Context, change func(*state.Store) error) (planner.Foresight, error) {
	l := r.current()
	if l == nil {
		return planner.Foresight{}, &raft.NotLeaderError{}
	}
	now := l.cfg.Now()
	writes := l.executor.writes() // before the view, see inFlight
	fork := l.cfg.Raft.Store().Fork()
	snap := l.cache.snapshot(&schedule{})
	if !snap.ready {
		return planner.Foresight{}, fmt.Errorf("the running jobs are not known yet: %w", nomad.ErrUnreachable)
	}
	if err := change(fork); err != nil {
		return planner.Foresight{}, err
	}
	view := fork.View()
	o := l.observe(view, snap, snap.jobs(view), l.inFlight(writes, view, snap), now)
	bounds := planner.DefaultBounds()
	end := time.Now().Add(previewTime)
	bounds.Stop = func() bool { return ctx.Err() != nil || time.Now().After(end) }
	// Each plan needs a new planner: Foresee modifies the observation in place.
	plan := func(v *state.View, o planner.Observation, c planner.Config) (*state.Plan, time.Time) {
		return l.cfg.NewPlanner(c).Plan(v, o)
	}
	return planner.Foresee(fork, o, l.cfg.Planner, planner.Rules{Plan: plan, Actions: l.cfg.Actions, After: l.cfg.After}, bounds)
}
