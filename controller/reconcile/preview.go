package reconcile

import (
	"fmt"

	"remuda/controller/nomad"
	"remuda/controller/planner"
	"remuda/controller/raft"
	"remuda/controller/state"
)

// Preview makes a private copy of the store, calls change with it, and plans on the copy
// with what is observed now. Nothing is committed, and nothing is done. The error is
// change's own, or wraps raft.ErrNotLeader or nomad.ErrUnreachable where nothing is
// observed here. It may be called from several goroutines at once.
func (r *Reconciler) Preview(change func(*state.Store) error) (planner.Preview, error) {
	l := r.current()
	if l == nil {
		return planner.Preview{}, &raft.NotLeaderError{}
	}
	now := l.cfg.Now()
	writes := l.acts.writes() // before the view, see inFlight
	out := planner.Preview{Store: l.cfg.Raft.Store().Fork()}
	seen := l.seen.take(&schedule{})
	if !seen.begun {
		return planner.Preview{}, fmt.Errorf("the running jobs are not known yet: %w", nomad.ErrUnreachable)
	}
	if err := change(out.Store); err != nil {
		return planner.Preview{}, err
	}
	look := func() (*state.View, planner.Observation) {
		view := out.Store.View()
		return view, l.observe(view, seen, seen.jobs(view), l.inFlight(writes, view, seen), now)
	}
	view, o := look()
	out.Plan, _ = l.cfg.NewPlanner(l.cfg.Planner).Plan(view, o)
	if p := out.Plan; p != nil {
		p.ID, p.Index, p.Time = "preview", view.Index(), now
		data, err := state.Encode(p)
		if err != nil {
			return planner.Preview{}, fmt.Errorf("preview: %w", err)
		}
		if res := out.Store.Apply(view.Index()+1, data); res.Err != nil {
			return planner.Preview{}, fmt.Errorf("preview: the plan would be rejected: %w", res.Err)
		}
		view, o = look()
	}
	out.Actions = l.cfg.Actions(view, o, l.cfg.Planner)
	return out, nil
}
