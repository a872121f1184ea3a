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

// previewTime is how long a preview takes at most: on a large fleet one plan takes a core for a
// second.
const previewTime = 10 * time.Second

// Preview makes a private copy of the store, calls change with it, and foresees on the copy
// what follows, with what is observed now; see planner.Foresee. Nothing is committed, and
// nothing is done. It ends early, with the steps until then, once ctx is done. The error is
// change's own, or wraps raft.ErrNotLeader or nomad.ErrUnreachable where nothing is observed
// here. It may be called from several goroutines at once.
func (r *Reconciler) Preview(ctx context.Context, change func(*state.Store) error) (planner.Foresight, error) {
	l := r.current()
	if l == nil {
		return planner.Foresight{}, &raft.NotLeaderError{}
	}
	now := l.cfg.Now()
	writes := l.acts.writes() // before the view, see inFlight
	fork := l.cfg.Raft.Store().Fork()
	seen := l.seen.take(&schedule{})
	if !seen.begun {
		return planner.Foresight{}, fmt.Errorf("the running jobs are not known yet: %w", nomad.ErrUnreachable)
	}
	if err := change(fork); err != nil {
		return planner.Foresight{}, err
	}
	view := fork.View()
	o := l.observe(view, seen, seen.jobs(view), l.inFlight(writes, view, seen), now)
	bounds := planner.DefaultBounds()
	end := time.Now().Add(previewTime)
	bounds.Stop = func() bool { return ctx.Err() != nil || time.Now().After(end) }
	// A planner of its own for each plan: Foresee changes what is observed in place.
	plan := func(v *state.View, o planner.Observation, c planner.Config) (*state.Plan, time.Time) {
		return l.cfg.NewPlanner(c).Plan(v, o)
	}
	return planner.Foresee(fork, o, l.cfg.Planner, planner.Rules{Plan: plan, Actions: l.cfg.Actions, After: l.cfg.After}, bounds)
}
