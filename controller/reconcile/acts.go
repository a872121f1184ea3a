package reconcile

import (
	"context"
	"errors"
	"sync"
	"time"

	"remuda/controller/nomad"
	"remuda/controller/planner"
	"remuda/controller/raft"
	"remuda/controller/state"
)

// errSuperseded: the replica is another one than when the action was decided. That is
// no failure; the next look decides anew.
var errSuperseded = errors.New("the replica has changed meanwhile")

// acts does the actions, one for each replica at a time and Workers at once. What has
// no place now is not kept: the next look asks for it again.
type acts struct {
	l *leading

	mu      sync.Mutex // guards what follows
	tasks   map[string]*task
	running int
}

// task is what is known of a replica's action beyond the state: for this time of
// leading only, so that a new leader tries at once.
type task struct {
	kind     planner.Kind
	busy     bool
	failures int // in a row
	err      error
	// ended is when it was last tried, until when it is not tried again.
	ended, until time.Time
	// did is what was last done without an error, repeats how often in a row.
	did     situation
	repeats int
}

// situation is what an action was decided on. The same action in the same situation
// again has no effect that can be seen, and is no hurry.
type situation struct {
	kind                planner.Kind
	replica, job, index uint64
}

func (o order) situation() situation { return situation{o.Kind, o.replica, o.job, o.Index} }

func newActs(l *leading) *acts { return &acts{l: l, tasks: map[string]*task{}} }

// busy returns the replicas for which something is being done.
func (a *acts) busy() map[string]bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := map[string]bool{}
	for name, t := range a.tasks {
		if t.busy {
			out[name] = true
		}
	}
	return out
}

func (a *acts) status() (running int, waiting []Waiting) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, t := range a.tasks {
		if t.failures > 0 && t.err != nil {
			waiting = append(waiting, Waiting{Replica: name, Kind: string(t.kind), Failures: t.failures, Error: t.err.Error(), Retry: t.until})
		}
	}
	return a.running, waiting
}

// order is an action with what was known when it was decided.
type order struct {
	planner.Action
	// replica is the replica's ModifyIndex, 0: the state has none of that name.
	replica uint64
	// job is the JobModifyIndex of its job, 0: none was seen.
	job uint64
}

// start begins those actions that may be done now. busy are the replicas for which
// something was being done when the world was looked at: what was decided for them
// may be old.
func (a *acts) start(ctx context.Context, view *state.View, seen sighted, busy map[string]bool, actions []planner.Action, now time.Time, next *schedule) {
	a.mu.Lock()
	defer a.mu.Unlock()
	wanted := map[string]bool{}
	for _, action := range actions {
		wanted[action.Replica] = true
		t := a.tasks[action.Replica]
		switch {
		case busy[action.Replica]:
			continue
		case t == nil || t.kind != action.Kind:
			t = &task{kind: action.Kind}
			a.tasks[action.Replica] = t
		case errors.Is(t.err, nomad.ErrUnreachable) && t.ended.Before(seen.returned):
			t.until = time.Time{} // Nomad is back
		}
		o := order{Action: action, job: seen.jobs[action.Replica].Index}
		if r := view.Replica(nil, action.Replica); r != nil {
			o.replica = r.ModifyIndex
		}
		if t.repeats > 0 && t.did == o.situation() {
			t.until = t.ended.Add(planner.Backoff(a.l.cfg.Retry, a.l.cfg.RetryMax, t.repeats))
		}
		if now.Before(t.until) {
			next.add(t.until)
			continue
		}
		if a.running == a.l.cfg.Workers {
			continue // one that ends has the loop look again
		}
		t.busy = true
		a.running++
		a.l.wg.Go(func() {
			err := a.l.perform(ctx, o)
			a.end(ctx, o, t, err)
			a.l.wake()
		})
	}
	for name, t := range a.tasks {
		if !t.busy && !wanted[name] && !now.Before(t.until) {
			delete(a.tasks, name)
		}
	}
}

// end takes the result of an action.
func (a *acts) end(ctx context.Context, o order, t *task, err error) {
	result := resultOf(ctx, err)
	a.l.metrics.actions.WithLabelValues(string(o.Kind), result).Inc()
	log := a.l.cfg.Logger.With("action", o.Kind, "replica", o.Replica, "reason", o.Reason)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.running--
	t.busy = false
	switch result {
	case "done":
		if t.did != o.situation() {
			t.did, t.repeats = o.situation(), 0
		}
		t.repeats++
		t.failures, t.err, t.ended, t.until = 0, nil, a.l.cfg.Now(), time.Time{}
		log.Info("an action was done", "repeats", t.repeats-1)
		return
	case "superseded", "stopped":
		t.err, t.until = nil, time.Time{}
		log.Debug("an action was given up", "error", err)
		return
	}
	t.failures++
	t.err, t.ended = err, a.l.cfg.Now()
	wait := spread(planner.Backoff(a.l.cfg.Retry, a.l.cfg.RetryMax, t.failures))
	t.until = t.ended.Add(wait)
	log.Warn("an action has failed", "error", err, "failures", t.failures, "retry", wait)
}

// resultOf says in a word how an action went.
func resultOf(ctx context.Context, err error) string {
	var refusal *state.Error
	switch {
	case err == nil:
		return "done"
	case errors.Is(err, errSuperseded):
		return "superseded"
	case ctx.Err() != nil:
		return "stopped"
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrClosed):
		return "not_leader"
	case errors.Is(err, raft.ErrBusy), errors.Is(err, raft.ErrUnknownOutcome):
		return "not_committed"
	case errors.Is(err, nomad.ErrConflict):
		return "conflict"
	case errors.Is(err, nomad.ErrRefused):
		return "refused"
	case errors.Is(err, nomad.ErrDenied):
		return "denied"
	case errors.Is(err, nomad.ErrUnreachable):
		return "unreachable"
	case errors.As(err, &refusal):
		return "state_refused"
	}
	return "failed"
}
