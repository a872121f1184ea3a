package reconcile

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"remuda/controller/nomad"
	"remuda/controller/planner"
	"remuda/controller/state"
)

// maxError is how much of an error the state keeps, in bytes.
const maxError = 2048

// perform does an action to its end.
func (l *leading) perform(ctx context.Context, o order) error {
	n, err := l.nomads[o.Pool], error(nil)
	switch {
	case n == nil:
		return fmt.Errorf("%s %s: this server's config has no %s", o.Kind, o.Replica, poolText(o.Pool))
	case ofShim(o.Kind):
		return l.changeTier(ctx, o) // what comes of it is written with its outcome
	}
	switch o.Kind {
	case planner.Register:
		err = l.register(ctx, n, o)
	case planner.Stop, planner.Purge:
		err = l.stop(ctx, n, o)
	default:
		return fmt.Errorf("unknown action %q of replica %s", o.Kind, o.Replica)
	}
	// What Nomad refuses and what cannot even be asked belongs to the replica, and
	// people find it there. Conflicts are looked into, and that Nomad does not answer,
	// or Raft does not, says nothing of the replica.
	switch resultOf(ctx, err) {
	case "refused", "denied", "failed":
		return errors.Join(err, l.note(ctx, o, err))
	}
	return err
}

// allowed is asked right before each write to Nomad, and each order to a shim: this server still leads, and the
// replica is the one for which the action was decided.
func (l *leading) allowed(ctx context.Context, o order) error {
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

// register writes the replica's job and says so in the state.
func (l *leading) register(ctx context.Context, n Nomad, o order) error {
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
	job, err := n.Render(ctx, nomad.Request{
		Name: r.Name, Variant: *v, Node: *node, Placement: r.Placement,
		// As it was placed: the model may say something else by now.
		Failover: len(r.Placement.Seats) == 2*seatedOn(r.Placement.Seats),
		Attempt:  o.attempt,
	})
	if err != nil {
		return err
	}
	if err := l.allowed(ctx, o); err != nil {
		return err
	}
	reg, err := n.Register(ctx, job, o.Index)
	if err != nil {
		return err
	}
	if reg.Warnings != "" {
		l.cfg.Logger.Debug("Nomad warns of a job", "replica", o.Replica, "warnings", reg.Warnings)
	}
	l.acts.wrote(o, reg.Index)
	return l.registered(ctx, o, reg)
}

// seatedOn counts the GPUs of some seats.
func seatedOn(seats []string) int {
	gpus := map[string]bool{}
	for _, s := range seats {
		uuid, _, _ := strings.Cut(s, "#")
		gpus[uuid] = true
	}
	return len(gpus)
}

// registered moves the replica whose job was written. The replica may have changed
// meanwhile, which changes nothing of what was written: then it keeps its status.
func (l *leading) registered(ctx context.Context, o order, reg nomad.Registration) error {
	var err error
	for range 10 { // somebody who changes it all the time is met by the next look
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
			return nil // it is known
		}
		if _, err = l.cfg.Raft.Apply(ctx, move); !errors.Is(err, state.ErrConflict) {
			return err
		}
	}
	return err
}

// stop tells a job to stop, or has Nomad forget it.
func (l *leading) stop(ctx context.Context, n Nomad, o order) error {
	if err := l.allowed(ctx, o); err != nil {
		return err
	}
	index, err := n.Stop(ctx, o.Name, o.job, o.Kind == planner.Purge)
	if err != nil {
		return err
	}
	l.acts.wrote(o, index)
	return nil
}

// note writes why an action failed into the state, unless it is there already. A
// replica whose job Nomad refuses, and of which nothing runs yet, has failed: no
// retry will help before somebody changes something, and a rollout has to know.
func (l *leading) note(ctx context.Context, o order, why error) error {
	r := l.cfg.Raft.Store().View().Replica(nil, o.Replica)
	if r == nil || r.ModifyIndex != o.replica {
		return nil // it is another one now
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
		l.decided(plan)
	}
	if errors.Is(err, state.ErrConflict) {
		return nil
	}
	return err
}
