package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"remuda/controller/api"
	"remuda/controller/nomad"
	"remuda/controller/planner"
	"remuda/controller/raft"
	"remuda/controller/shimclient"
	"remuda/controller/state"
)

const (
	// takeoverPoll is how often the standby is asked whether it serves.
	takeoverPoll = 20 * time.Millisecond
	// takeoverGrace is how long an engine that serves may take to report its take-over, which it
	// writes to its record first. One without a record never reports it.
	takeoverGrace = time.Second
)

// Failover has the engine of a pair that serves hand over to its standby, and returns once that
// serves. by names who ordered it. The error is a *state.Error if the pair cannot do that now,
// and wraps raft.ErrUnknownOutcome if it may have happened. The engine serves on if ctx ends
// before it is drained. It may be called from several goroutines at once, on any server.
func (r *Reconciler) Failover(ctx context.Context, name string, order api.FailoverRequest, by string) (api.Failover, error) {
	l := r.current()
	if l == nil {
		return api.Failover{}, &raft.NotLeaderError{}
	}
	p, err := l.findPair(ctx, name)
	if err != nil {
		return api.Failover{}, err
	}
	if err := l.cfg.Raft.Verify(ctx); err != nil {
		return api.Failover{}, err
	}
	timeout := time.Duration(order.Timeout)
	bounded, cancel := context.WithTimeout(ctx, timeout+drainSlack)
	defer cancel()
	began := l.cfg.Now()
	err = l.cfg.Shims.Failover(bounded, p.target(p.leader), p.leader.state.Since, timeout, order.Drill)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return api.Failover{}, ctx.Err()
	case errors.Is(err, shimclient.ErrNotDrained):
		return api.Failover{}, p.refuse("requests of the %s still ran after %s, and it serves on: allow more time", p.leader.Role, timeout)
	case errors.Is(err, shimclient.ErrRefused), errors.Is(err, shimclient.ErrChanged), errors.Is(err, shimclient.ErrUnauthorized):
		return api.Failover{}, p.refuse("the %s: %v", p.leader.Role, err)
	default:
		return api.Failover{}, fmt.Errorf("%w: %w", raft.ErrUnknownOutcome, err)
	}
	ended := l.cfg.Now()
	out := api.Failover{Replica: name, From: p.leader.Role, To: p.standby.Role, Drill: order.Drill}
	if !order.Drill {
		out.Drained = api.Duration(ended.Sub(began))
	}
	took, err := p.awaitTakeover(ctx, ended)
	if err != nil {
		return api.Failover{}, err
	}
	out.TookOver = api.Duration(took)
	l.recordFailover(ctx, p.r, out, by)
	return out, nil
}

// pair is a failover pair that can hand over: the leader serves, and the standby waits for the lock.
type pair struct {
	*tierChange
	leader, standby shimReply
}

// refuse returns why the pair cannot hand over.
func (p *pair) refuse(format string, args ...any) *state.Error {
	return refuseFailover(p.o.Replica, format, args...)
}

func refuseFailover(name, format string, args ...any) *state.Error {
	return &state.Error{Code: state.CodeConflict, Subject: name, Message: "replica " + name + ": " + fmt.Sprintf(format, args...)}
}

// findPair finds the engines of a replica, or returns why they cannot hand over.
func (l *loop) findPair(ctx context.Context, name string) (*pair, error) {
	view := l.cfg.Raft.Store().View()
	r := view.Replica(nil, name)
	switch {
	case r == nil:
		return nil, &state.Error{Code: state.CodeNotFound, Subject: name, Message: fmt.Sprintf("replica %q does not exist: see \"remuda replica list\"", name)}
	case len(r.Placement.Seats) != 2*seatedOn(r.Placement.Seats):
		return nil, refuseFailover(name, "it is a single engine: a failover needs a pair: set failover = true in the model file, and use a job file with a primary and a shadow")
	case r.Status != state.StatusServing:
		return nil, refuseFailover(name, "it is %s (%s): must be %s: see \"remuda replica status\"", r.Status, r.Tier(), state.StatusServing)
	}
	p := &pair{tierChange: &tierChange{l: l, r: r, o: assignment{Action: planner.Action{Replica: name, Name: r.Name}}}}
	var shims []nomad.Shim
	if j, ok := l.cache.snapshot(&schedule{}).jobs(view)[name]; ok {
		if a, ok := currentOf(j.Allocations); ok {
			shims = j.Shims(a)
		}
	}
	if p.o.shims = shims; len(shims) != 2 {
		return nil, refuseFailover(name, "its allocation in Nomad has %d ports of shims: must be 2, labelled \"primary_shim\" and \"shadow_shim\"", len(shims))
	}
	var others []string
	p.queryShims(ctx, func(m shimReply) bool {
		switch {
		case m.err != nil:
			others = append(others, fmt.Sprintf("the %s: %v", m.Role, m.err))
		case m.state.Lock != nil && m.state.Lock.Held:
			p.leader = m
		case m.state.CanTakeOver():
			p.standby = m
		default:
			others = append(others, fmt.Sprintf("the %s: %s", m.Role, m.state.NotServing()))
		}
		return false
	})
	slices.Sort(others)
	why := strings.Join(others, "; ")
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case p.leader.Address == "":
		return nil, p.refuse("no engine of the pair holds its lock: wait until one serves: %s", why)
	case p.leader.state.Phase == shimclient.Draining:
		return nil, p.refuse("the %s is draining: a failover, a sleep or a stop is under way: wait until it has ended", p.leader.Role)
	case p.leader.state.Phase != shimclient.Active:
		return nil, p.refuse("the %s is %s: must be %s: wait until it serves", p.leader.Role, p.leader.state.Phase, shimclient.Active)
	case p.standby.Address == "":
		return nil, p.refuse("it has no standby: wait until the pair's other engine has started: %s", why)
	}
	return p, nil
}

// awaitTakeover waits until the standby serves. It returns for how long no engine served: as the
// shim reports it or, if that has no record, since ended.
func (p *pair) awaitTakeover(ctx context.Context, ended time.Time) (time.Duration, error) {
	limit := p.l.cfg.Planner.WakeTimeout
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var activeAt time.Time
	last := "no answer"
	for {
		s, err := p.l.cfg.Shims.State(bounded, p.standby.Address)
		switch {
		case bounded.Err() != nil:
		case err != nil:
			last = err.Error()
		case s.Phase != shimclient.Active:
			last = s.NotServing()
		case s.Takeover != nil:
			return time.Duration(s.Takeover.Seconds * float64(time.Second)), nil
		case activeAt.IsZero():
			activeAt = p.l.cfg.Now()
		case p.l.cfg.Now().Sub(activeAt) >= takeoverGrace:
			return activeAt.Sub(ended), nil
		}
		if !sleep(bounded, takeoverPoll) {
			return 0, fmt.Errorf("%w: the %s of %s has ended, and the %s does not serve after %s: %s", raft.ErrUnknownOutcome,
				p.leader.Role, p.o.Replica, p.standby.Role, p.l.cfg.Now().Sub(ended).Round(time.Millisecond), last)
		}
	}
}

// recordFailover records the order as a decision, beside that of the failover itself: see planner.KindFailover. It has happened: an error is logged.
func (l *loop) recordFailover(ctx context.Context, r *state.Replica, f api.Failover, by string) {
	what := "ordered a failover"
	if f.Drill {
		what = "ordered a drill"
	}
	now, name := l.cfg.Now(), r.Name.String()
	plan := &state.Plan{ID: fmt.Sprintf("%d-failover-%d", l.term, now.UnixNano()), Time: now, Decisions: []state.Decision{{
		Time: now, Model: r.Name.Model, Replica: name, Kind: planner.KindFailoverOrdered,
		Reason:  fmt.Sprintf("%s %s of %s: the %s serves, %s after the end of the %s", by, what, name, f.To, time.Duration(f.TookOver).Round(time.Millisecond), f.From),
		Details: map[string]string{"from": f.From, "to": f.To, "drained": time.Duration(f.Drained).String(), "took_over": time.Duration(f.TookOver).String()},
	}}}
	if _, err := l.cfg.Raft.Apply(ctx, plan); err != nil {
		l.cfg.Logger.Warn("cannot record a failover", "replica", name, "from", f.From, "to", f.To, "error", err)
		return
	}
	l.logDecisions(plan)
}
