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

// errSuperseded means that the replica has changed since the action was decided. It does
// not count as a failure: the next run decides again.
var errSuperseded = errors.New("the replica has changed in the meantime")

// executor runs actions: at most one per replica, and a limited number per limitKey. It
// does not queue actions over the limit: the next run of the loop starts them.
type executor struct {
	l *loop

	mu      sync.Mutex // guards the fields below
	actions map[string]*actionState
	running map[limitKey]int
	// written holds the writes that are not visible in a list of jobs yet, by replica; see inFlight.
	written map[string]write
}

// limitKey identifies a concurrency limit. The writes to one Nomad share a limit; so do the
// drains of one pool, its sleeps, and its wakes.
type limitKey struct {
	pool string
	kind planner.Kind // Drain, Sleep or Wake; empty for writes to Nomad
}

func limitOf(a planner.Action) limitKey {
	if isShimAction(a.Kind) {
		return limitKey{a.Pool, a.Kind}
	}
	return limitKey{pool: a.Pool}
}

// isShimAction reports whether an action calls a shim rather than Nomad.
func isShimAction(k planner.Kind) bool {
	return k == planner.Drain || k == planner.Sleep || k == planner.Wake
}

// actionState tracks a replica's action: whether it runs, and when it is tried again. It is
// not replicated, so a new leader tries at once.
type actionState struct {
	kind planner.Kind
	pool string
	busy bool
	// cancel cancels the running action.
	cancel   context.CancelFunc
	failures int // in a row
	err      error
	// endedAt is when the last try ended. The action is not tried again before retryAt.
	endedAt, retryAt time.Time
	// lastDone is the precondition of the last success; repeats counts successes in a row with
	// that precondition.
	lastDone precondition
	repeats  int
}

// precondition is what an action was decided on. If an action is decided again with the same
// precondition, it had no visible effect, for example because Nomad found the job unchanged.
// It is then repeated with a growing delay.
type precondition struct {
	kind                planner.Kind
	replica, job, index uint64
}

func (o assignment) precondition() precondition {
	return precondition{o.Kind, o.replica, o.job, o.Index}
}

func newExecutor(l *loop) *executor {
	return &executor{l: l, actions: map[string]*actionState{}, running: map[limitKey]int{}, written: map[string]write{}}
}

// cancelStale cancels drains, sleeps and wakes that the state no longer asks for.
func (e *executor) cancelStale(view *state.View) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for name, s := range e.actions {
		if s.busy && isShimAction(s.kind) && !tierActionValid(view.Replica(nil, name), s.kind) {
			s.cancel()
		}
	}
}

// tierActionValid reports whether a Drain, Sleep or Wake still fits the replica's status.
func tierActionValid(r *state.Replica, kind planner.Kind) bool {
	switch {
	case r == nil:
		return false
	case kind == planner.Drain:
		return r.Status == state.StatusDraining && r.Leaving()
	case kind == planner.Sleep:
		return r.Status == state.StatusSleeping || r.Status == state.StatusStarting && r.Loads()
	}
	return r.Status == state.StatusWaking || r.Status.Request() == state.RequestKeep
}

// status returns the number of running actions by pool, and the actions that failed and are
// tried again.
func (e *executor) status() (running map[string]int, waiting []Waiting) {
	e.mu.Lock()
	defer e.mu.Unlock()
	running = map[string]int{}
	for l, n := range e.running {
		running[l.pool] += n
	}
	for name, s := range e.actions {
		if s.failures > 0 && s.err != nil {
			waiting = append(waiting, Waiting{Replica: name, Kind: string(s.kind), Pool: s.pool, Failures: s.failures, Error: s.err.Error(), RetryAt: s.retryAt})
		}
	}
	return running, waiting
}

// assignment is an action with what was known when it was decided.
type assignment struct {
	planner.Action
	// replica is the ModifyIndex of the replica, 0 if the state does not have it.
	replica uint64
	// job is the JobModifyIndex of the replica's job, 0 if Nomad lists none.
	job uint64
	// shims are those of the job's current allocation; allocated reports whether there is one.
	shims     []nomad.Shim
	allocated bool
	// generation is that of the replica's job, 0 if Nomad lists none.
	generation uint64
}

// start starts the actions that may run now. It skips replicas that are in flight: their
// actions may have been decided on an outdated list of jobs.
func (e *executor) start(ctx context.Context, view *state.View, snap snapshot, jobs map[string]job, inFlight map[string]bool, actions []planner.Action, now time.Time, next *schedule) {
	e.mu.Lock()
	defer e.mu.Unlock()
	wanted := map[string]bool{}
	for _, action := range actions {
		wanted[action.Replica] = true
		s := e.actions[action.Replica]
		switch {
		case inFlight[action.Replica], s != nil && s.busy:
			continue
		case s == nil || s.kind != action.Kind || s.pool != action.Pool:
			s = &actionState{kind: action.Kind, pool: action.Pool}
			e.actions[action.Replica] = s
		case errors.Is(s.err, nomad.ErrUnreachable) && s.endedAt.Before(snap.pools[action.Pool].returnedAt):
			s.retryAt = time.Time{} // Nomad is back
		}
		j := jobs[action.Replica]
		o := assignment{Action: action, job: j.Index, generation: j.Generation}
		if current, ok := currentOf(j.Allocations); ok {
			o.shims, o.allocated = j.Shims(current), true
		}
		if r := view.Replica(nil, action.Replica); r != nil {
			o.replica = r.ModifyIndex
		}
		if s.repeats > 0 && s.lastDone == o.precondition() {
			s.retryAt = s.endedAt.Add(planner.Backoff(e.l.cfg.Retry, e.l.cfg.RetryMax, s.repeats))
		}
		if now.Before(s.retryAt) {
			next.add(s.retryAt)
			continue
		}
		limit := e.l.cfg.Workers
		if isShimAction(action.Kind) {
			limit = e.l.cfg.Tiers
		}
		if e.running[limitOf(action)] >= limit {
			continue // the next action to end wakes the loop
		}
		s.busy = true
		e.running[limitOf(action)]++
		ctx, cancel := context.WithCancel(ctx)
		s.cancel = cancel
		e.l.wg.Go(func() {
			defer cancel()
			err := e.l.perform(ctx, o)
			e.finish(ctx, o, s, err)
			e.l.wake()
		})
	}
	for name, s := range e.actions {
		if !s.busy && !wanted[name] && !now.Before(s.retryAt) {
			delete(e.actions, name)
		}
	}
}

// finish records the result of an action.
func (e *executor) finish(ctx context.Context, o assignment, s *actionState, err error) {
	result := resultOf(ctx, err)
	e.l.metrics.actions.WithLabelValues(string(o.Kind), result).Inc()
	log := e.l.cfg.Logger.With("action", o.Kind, "replica", o.Replica, "pool", o.Pool, "reason", o.Reason)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.running[limitOf(o.Action)]--; e.running[limitOf(o.Action)] == 0 {
		delete(e.running, limitOf(o.Action))
	}
	s.busy = false
	switch result {
	case "done":
		if s.lastDone != o.precondition() {
			s.lastDone, s.repeats = o.precondition(), 0
		}
		s.repeats++
		s.failures, s.err, s.endedAt, s.retryAt = 0, nil, e.l.cfg.Now(), time.Time{}
		log.Info("action done", "repeats", s.repeats-1)
		return
	case "superseded", "stopped":
		s.err, s.retryAt = nil, time.Time{}
		log.Debug("action cancelled", "error", err)
		return
	}
	s.failures++
	s.err, s.endedAt = err, e.l.cfg.Now()
	longest := e.l.cfg.RetryMax
	if isShimAction(o.Kind) && result != string(planner.Failed) {
		longest = e.l.cfg.ShimRetryMax
	}
	wait := spread(planner.Backoff(e.l.cfg.Retry, longest, s.failures))
	s.retryAt = s.endedAt.Add(wait)
	if result == string(planner.Loading) {
		s.err = nil // nothing is wrong
		log.Debug("the engine still loads", "error", err, "retry", wait)
		return
	}
	log.Warn("action failed", "error", err, "failures", s.failures, "retry", wait)
}

// resultOf classifies the result of an action, for metrics and retries.
func resultOf(ctx context.Context, err error) string {
	var refusal *state.Error
	var tier *tierError
	switch {
	case err == nil:
		return "done"
	case errors.Is(err, errSuperseded):
		return "superseded"
	case ctx.Err() != nil:
		return "stopped"
	case errors.As(err, &tier):
		return string(tier.class)
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
