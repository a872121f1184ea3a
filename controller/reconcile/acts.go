package reconcile

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"remuda/controller/nomad"
	"remuda/controller/planner"
	"remuda/controller/raft"
	"remuda/controller/state"
)

// errSuperseded: the replica is another one than when the action was decided. That is
// no failure; the next look decides anew.
var errSuperseded = errors.New("the replica has changed in the meantime")

// acts does the actions, one for each replica at a time and only so many at once in each
// lane. What has no place now is not kept: the next look asks for it again.
type acts struct {
	l *leading

	mu      sync.Mutex // guards what follows
	tasks   map[string]*task
	running map[lane]int
	// written has the writes that a list of jobs has not shown yet, by replica; see inFlight.
	written map[string]write
}

// lane is what shares places: the writes to one Nomad, the drains of one pool, its sleeps,
// its wakes.
type lane struct {
	pool string
	kind planner.Kind // Drain, Sleep, Wake, or empty for all that is done in Nomad
}

func laneOf(a planner.Action) lane {
	if ofShim(a.Kind) {
		return lane{a.Pool, a.Kind}
	}
	return lane{pool: a.Pool}
}

// ofShim tells whether an action is done at a shim, and not in Nomad.
func ofShim(k planner.Kind) bool {
	return k == planner.Drain || k == planner.Sleep || k == planner.Wake
}

// task is what is known of a replica's action beyond the state: for this time of
// leading only, so that a new leader tries at once.
type task struct {
	kind planner.Kind
	pool string
	busy bool
	// cancel ends what is being done.
	cancel   context.CancelFunc
	failures int // in a row
	err      error
	// ended is when it was last tried, until when it is not tried again.
	ended, until time.Time
	// did is what was last done without an error, repeats how often in a row.
	did     situation
	repeats int
}

// situation is what an action was decided on. The same action in the same situation again
// had no visible effect, as the registration of a job that Nomad finds unchanged, and is
// repeated with a growing wait.
type situation struct {
	kind                planner.Kind
	replica, job, index uint64
}

// attemptOf is the attempt of a job that is written over j: the same, unless j's allocation
// failed. Of one version it is always the same one, so that what was written without our
// hearing of it is recognised.
func attemptOf(j nomad.Job) string {
	if current, ok := currentOf(j.Allocations); ok && current.Client == "failed" {
		return strconv.FormatUint(j.Index, 10)
	}
	return j.Attempt
}

func (o order) situation() situation { return situation{o.Kind, o.replica, o.job, o.Index} }

func newActs(l *leading) *acts {
	return &acts{l: l, tasks: map[string]*task{}, running: map[lane]int{}, written: map[string]write{}}
}

// giveUp ends what is being done at the shims of replicas that are not to drain, to sleep or
// to be woken any more.
func (a *acts) giveUp(view *state.View) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, t := range a.tasks {
		if t.busy && ofShim(t.kind) && !wantsTier(view.Replica(nil, name), t.kind) {
			t.cancel()
		}
	}
}

// wantsTier tells whether a replica may still be meant by a Drain, a Sleep or a Wake.
func wantsTier(r *state.Replica, kind planner.Kind) bool {
	switch {
	case r == nil:
		return false
	case kind == planner.Drain:
		return r.Status == state.StatusDraining && r.Leaving()
	case kind == planner.Sleep:
		return r.Status == state.StatusSleeping
	}
	return r.Status == state.StatusWaking || r.Status.Request() == state.RequestKeep
}

// status returns how many actions run by pool, and those that wait.
func (a *acts) status() (running map[string]int, waiting []Waiting) {
	a.mu.Lock()
	defer a.mu.Unlock()
	running = map[string]int{}
	for l, n := range a.running {
		running[l.pool] += n
	}
	for name, t := range a.tasks {
		if t.failures > 0 && t.err != nil {
			waiting = append(waiting, Waiting{Replica: name, Kind: string(t.kind), Pool: t.pool, Failures: t.failures, Error: t.err.Error(), Retry: t.until})
		}
	}
	return running, waiting
}

// order is an action with what was known when it was decided.
type order struct {
	planner.Action
	// replica is the replica's ModifyIndex, 0: the state has none of that name.
	replica uint64
	// job is the JobModifyIndex of its job, 0: none was seen.
	job uint64
	// shims are those of the job's allocation that counts, allocated whether there is one.
	shims     []nomad.Shim
	allocated bool
	// attempt is the nomad.Request's of a Register.
	attempt string
}

// start begins those actions that may be done now. What was decided for replicas that are in
// flight may be old.
func (a *acts) start(ctx context.Context, view *state.View, seen sighted, jobs map[string]job, inFlight map[string]bool, actions []planner.Action, now time.Time, next *schedule) {
	a.mu.Lock()
	defer a.mu.Unlock()
	wanted := map[string]bool{}
	for _, action := range actions {
		wanted[action.Replica] = true
		t := a.tasks[action.Replica]
		switch {
		case inFlight[action.Replica], t != nil && t.busy:
			continue
		case t == nil || t.kind != action.Kind || t.pool != action.Pool:
			t = &task{kind: action.Kind, pool: action.Pool}
			a.tasks[action.Replica] = t
		case errors.Is(t.err, nomad.ErrUnreachable) && t.ended.Before(seen.pools[action.Pool].returned):
			t.until = time.Time{} // Nomad is back
		}
		j := jobs[action.Replica]
		o := order{Action: action, job: j.Index}
		if current, ok := currentOf(j.Allocations); ok {
			o.shims, o.allocated = j.Shims(current), true
		}
		o.attempt = attemptOf(j.Job)
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
		places := a.l.cfg.Workers
		if ofShim(action.Kind) {
			places = a.l.cfg.Tiers
		}
		if a.running[laneOf(action)] >= places {
			continue // one that ends has the loop look again
		}
		t.busy = true
		a.running[laneOf(action)]++
		ctx, cancel := context.WithCancel(ctx)
		t.cancel = cancel
		a.l.wg.Go(func() {
			defer cancel()
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
	log := a.l.cfg.Logger.With("action", o.Kind, "replica", o.Replica, "pool", o.Pool, "reason", o.Reason)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.running[laneOf(o.Action)]--; a.running[laneOf(o.Action)] == 0 {
		delete(a.running, laneOf(o.Action))
	}
	t.busy = false
	switch result {
	case "done":
		if t.did != o.situation() {
			t.did, t.repeats = o.situation(), 0
		}
		t.repeats++
		t.failures, t.err, t.ended, t.until = 0, nil, a.l.cfg.Now(), time.Time{}
		log.Info("action done", "repeats", t.repeats-1)
		return
	case "superseded", "stopped":
		t.err, t.until = nil, time.Time{}
		log.Debug("action cancelled", "error", err)
		return
	}
	t.failures++
	t.err, t.ended = err, a.l.cfg.Now()
	longest := a.l.cfg.RetryMax
	if ofShim(o.Kind) && result != string(planner.Failed) {
		longest = a.l.cfg.ShimRetryMax
	}
	wait := spread(planner.Backoff(a.l.cfg.Retry, longest, t.failures))
	t.until = t.ended.Add(wait)
	log.Warn("action failed", "error", err, "failures", t.failures, "retry", wait)
}

// resultOf says in a word how an action went.
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
