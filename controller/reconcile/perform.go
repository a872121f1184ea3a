package reconcile

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"strings"

	"remuda/controller/nomad"
	"remuda/controller/planner"
	"remuda/controller/state"
	"remuda/internal/replica"
)

// maxError is the longest error that the state keeps, in bytes.
const maxError = 2048

// perform runs an action to its end.
func (l *loop) perform(ctx context.Context, o assignment) error {
	n, err := l.nomads[o.Pool], error(nil)
	switch {
	case n == nil:
		return fmt.Errorf("%s %s: this server's config has no %s", o.Kind, o.Replica, poolText(o.Pool))
	case isShimAction(o.Kind):
		return l.changeTier(ctx, o) // it commits its outcome itself
	}
	switch o.Kind {
	case planner.Register:
		err = l.register(ctx, n, o)
	case planner.Stop, planner.Purge:
		err = l.stop(ctx, n, o)
	default:
		return fmt.Errorf("unknown action %q of replica %s", o.Kind, o.Replica)
	}
	// An error of Nomad's or of the job file is the replica's: record it there for operators. A
	// conflict resolves itself in the next run. An unreachable Nomad or Raft is not the
	// replica's failure.
	switch resultOf(ctx, err) {
	case "refused", "denied", "failed":
		return errors.Join(err, l.recordFailure(ctx, o, err))
	}
	return err
}

// verifyStillLeader returns an error unless this server still leads and the replica is unchanged
// since the action was decided. It is called right before each write to Nomad and each command
// to a shim.
func (l *loop) verifyStillLeader(ctx context.Context, o assignment) error {
	if err := l.cfg.Raft.Verify(ctx); err != nil {
		return fmt.Errorf("%s %s: %w", o.Kind, o.Replica, err)
	}
	view := l.cfg.Raft.Store().View()
	var index uint64
	if r := view.Replica(nil, o.Replica); r != nil {
		index = r.ModifyIndex
	}
	if index != o.replica || view.Switch(nil, state.SwitchPauseReconcile) != "" {
		return errSuperseded
	}
	return ctx.Err()
}

// register registers the replica's job with Nomad and records it in the state.
func (l *loop) register(ctx context.Context, n Nomad, o assignment) error {
	view := l.cfg.Raft.Store().View()
	r := view.Replica(nil, o.Replica)
	if r == nil || r.ModifyIndex != o.replica {
		return errSuperseded
	}
	if r.Tier() == state.Warm || r.Status == state.StatusSleeping {
		return errSuperseded // its weights would be lost
	}
	m, node := view.Model(nil, r.Name.Model), view.Node(nil, r.Placement.Node)
	if m == nil || node == nil {
		return fmt.Errorf("register %s: its model %q or its node %s does not exist", o.Replica, r.Name.Model, r.Placement.Node)
	}
	v := view.VariantOf(nil, r)
	if v == nil {
		return fmt.Errorf("register %s: version %d of its model is not known", o.Replica, r.Version)
	}
	key, err := l.shimKey(ctx)
	if err != nil {
		return err
	}
	gatewayKey := replica.GatewayPublicKey(key)
	if m.PassAuthorization { // the engine is to judge the credentials of clients
		gatewayKey = ""
	}
	job, err := n.Render(ctx, nomad.Request{
		Name: r.Name, Variant: *v, Version: r.Version, Node: *node, Placement: r.Placement,
		// As of the placement: the model may have changed since.
		Failover:      len(r.Placement.Seats) == 2*seatedOn(r.Placement.Seats),
		Generation:    o.nextGeneration(),
		ControllerKey: replica.PublicKey(key),
		GatewayKey:    gatewayKey,
	})
	if err != nil {
		return err
	}
	if err := l.verifyStillLeader(ctx, o); err != nil {
		return err
	}
	reg, err := n.Register(ctx, job, o.Index)
	if err != nil {
		return err
	}
	if reg.Warnings != "" {
		l.cfg.Logger.Debug("Nomad warns of a job", "replica", o.Replica, "warnings", reg.Warnings)
	}
	l.executor.recordWrite(o, reg.Index)
	return l.commitRegistration(ctx, o, reg)
}

// shimKey returns the key by which the shims know the controller, and makes it if it is the first
// that needs one.
func (l *loop) shimKey(ctx context.Context) (ed25519.PrivateKey, error) {
	if key := l.cfg.Raft.Store().View().ShimKey(nil); key != nil {
		return key, nil
	}
	if _, err := l.cfg.Raft.Apply(ctx, state.NewShimKey()); err != nil {
		return nil, fmt.Errorf("make the shims' key: %w", err)
	}
	if key := l.cfg.Raft.Store().View().ShimKey(nil); key != nil {
		return key, nil
	}
	return nil, errors.New("make the shims' key: it is not in the state yet")
}

// nextGeneration returns the generation of the job that a Register writes: the index of the
// replica as it was decided on, so that a leader that repeats the write of another one writes
// the same job. It is larger than that of the job before it also if the state was restored from
// an older snapshot.
func (o assignment) nextGeneration() uint64 {
	if o.generation > o.replica {
		return o.generation + 1
	}
	return o.replica
}

// seatedOn returns the number of GPUs that seats are on.
func seatedOn(seats []string) int {
	gpus := map[string]bool{}
	for _, s := range seats {
		uuid, _, _ := strings.Cut(s, "#")
		gpus[uuid] = true
	}
	return len(gpus)
}

// commitRegistration records in the state that the replica's job was registered. If the replica
// has changed meanwhile, it keeps its status.
func (l *loop) commitRegistration(ctx context.Context, o assignment, reg nomad.Registration) error {
	var err error
	for range 10 { // if the replica keeps changing, the next run decides again
		r := l.cfg.Raft.Store().View().Replica(nil, o.Replica)
		if r == nil {
			return errSuperseded
		}
		move := &state.Move{Replica: o.Replica, ModifyIndex: r.ModifyIndex, Time: l.cfg.Now(),
			JobIndex: &reg.Index}
		if r.Status == state.StatusPlaced || r.Status == state.StatusServing && !reg.Already {
			move.Event = state.EventStarted
		}
		if r.Failures == 0 && r.LastError != "" {
			move.LastError = new("")
		}
		if move.Event == "" && r.JobIndex == reg.Index && move.LastError == nil {
			return nil // already recorded
		}
		if _, err = l.cfg.Raft.Apply(ctx, move); !errors.Is(err, state.ErrConflict) {
			return err
		}
	}
	return err
}

// stop stops a job, or purges it from Nomad.
func (l *loop) stop(ctx context.Context, n Nomad, o assignment) error {
	if err := l.verifyStillLeader(ctx, o); err != nil {
		return err
	}
	index, err := n.Stop(ctx, o.Name, o.job, o.Kind == planner.Purge)
	if err != nil {
		return err
	}
	l.executor.recordWrite(o, index)
	return nil
}

// recordFailure writes the error of an action into the state, unless it is there already. A
// replica that does not run yet and whose job Nomad rejects has failed: a retry does not help
// until the job file or Nomad changes, and a rollout has to stop.
func (l *loop) recordFailure(ctx context.Context, o assignment, why error) error {
	r := l.cfg.Raft.Store().View().Replica(nil, o.Replica)
	if r == nil || r.ModifyIndex != o.replica {
		return nil // the replica has changed
	}
	text := strings.ToValidUTF8(why.Error(), "?")
	if len(text) > maxError {
		text = strings.ToValidUTF8(text[:maxError], "") + "…"
	}
	now := l.cfg.Now()
	move := state.Move{Replica: o.Replica, ModifyIndex: r.ModifyIndex, LastError: &text}
	plan := &state.Plan{ID: fmt.Sprintf("%d-refused-%d", l.term, r.ModifyIndex), Time: now}
	fails := o.Kind == planner.Register && errors.Is(why, nomad.ErrRefused) && (r.Status == state.StatusPlaced || r.Status == state.StatusStarting)
	switch {
	case fails:
		failures := r.Failures + 1
		wait := planner.Backoff(l.cfg.Planner.Backoff, l.cfg.Planner.BackoffMax, failures)
		retry := now.Add(wait)
		move.Event, move.Failures, move.RetryAt = state.EventFailed, &failures, &retry
		plan.Decisions = []state.Decision{{
			Time: now, Model: r.Name.Model, Replica: o.Replica, Kind: planner.KindLoadFailed,
			Reason:  "Nomad rejects the job of " + o.Replica + ": " + text,
			Details: map[string]string{"failures": fmt.Sprint(failures), "retry_in": wait.String()},
		}}
	case r.LastError == text:
		return nil
	}
	plan.Move = []state.Move{move}
	_, err := l.cfg.Raft.Apply(ctx, plan)
	if err == nil {
		l.logDecisions(plan)
	}
	if errors.Is(err, state.ErrConflict) {
		return nil
	}
	return err
}
