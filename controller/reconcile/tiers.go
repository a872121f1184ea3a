package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"remuda/controller/nomad"
	"remuda/controller/planner"
	"remuda/controller/shimclient"
	"remuda/controller/state"
	"remuda/internal/replica"
)

// sleepSlack is how long an engine may take, after its last request, to copy its weights to
// host memory. The largest take some ten seconds.
const sleepSlack = 2 * time.Minute

// drainSlack is how long a shim may take to answer beyond the drain timeout.
const drainSlack = 10 * time.Second

// freshEnough is how long a verification of leadership is valid: less than an election takes.
const freshEnough = 200 * time.Millisecond

// tierError is the error of a Drain, Sleep or Wake that failed.
type tierError struct {
	class planner.OutcomeClass
	text  string
}

func (e *tierError) Error() string { return e.text }

// changeTier drains a replica's engine, puts it to sleep or wakes it, and commits the outcome.
// It is idempotent, so a new leader may repeat it: an engine that is idle, asleep or serving
// already answers at once.
func (l *loop) changeTier(ctx context.Context, o assignment) error {
	r := l.cfg.Raft.Store().View().Replica(nil, o.Replica)
	if r == nil || r.ModifyIndex != o.replica || !tierActionValid(r, o.Kind) {
		return errSuperseded
	}
	t := &tierChange{l: l, o: o, r: r, began: l.cfg.Now()}
	out := planner.Outcome{Kind: o.Kind, Replica: o.Replica}
	var err error
	switch o.Kind {
	case planner.Drain:
		err = t.drain(ctx, &out)
	case planner.Sleep:
		err = t.sleep(ctx, &out)
	default:
		err = t.wake(ctx, &out)
	}
	if err == nil {
		err = ctx.Err() // a cancelled change has no outcome
	}
	if err != nil {
		return err
	}
	return l.commitOutcome(ctx, t, out)
}

// commitOutcome commits the outcome of a Drain, Sleep or Wake.
func (l *loop) commitOutcome(ctx context.Context, t *tierChange, out planner.Outcome) error {
	var err error
	committed := false
	for range 10 { // if the replica keeps changing, the next run decides again
		view, now := l.cfg.Raft.Store().View(), l.cfg.Now()
		if r := view.Replica(nil, out.Replica); r != nil && r.Status == t.r.Status && !r.Since.Equal(t.r.Since) {
			return errSuperseded // the replica has left the status and come back: that is another sleep or wake
		}
		plan := l.cfg.After(view, out, now, l.cfg.Planner)
		if plan == nil {
			break
		}
		plan.ID, plan.Index, plan.Time = fmt.Sprintf("%d-%s-%d", l.term, out.Kind, t.o.replica), view.Index(), now
		if _, err = l.cfg.Raft.Apply(ctx, plan); err == nil {
			committed = true
			l.logDecisions(plan)
			break
		}
		if !errors.Is(err, state.ErrConflict) {
			return err
		}
	}
	switch {
	case err != nil && !committed:
		return err
	case out.Class != planner.Done:
		return &tierError{out.Class, out.Error}
	}
	l.metrics.observeTierChange(t, l.cfg.Now())
	return nil
}

// tierChange is one Drain, Sleep or Wake.
type tierChange struct {
	l     *loop
	o     assignment
	r     *state.Replica // as of the decision
	began time.Time
	// engine is how long the shim took.
	engine time.Duration
}

func conclude(out *planner.Outcome, class planner.OutcomeClass, format string, args ...any) {
	out.Class, out.Error = class, fmt.Sprintf(format, args...)
}

// shimReply is a shim and its reply.
type shimReply struct {
	nomad.Shim
	state shimclient.State
	err   error
}

// queryShims requests the state of all shims of the replica concurrently. It calls answer with
// each reply until answer returns true, so it does not wait for a shim that hangs.
func (t *tierChange) queryShims(ctx context.Context, answer func(shimReply) bool) bool {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	answers := make(chan shimReply, len(t.o.shims))
	for _, s := range t.o.shims {
		wg.Go(func() {
			m := shimReply{Shim: s}
			if m.state, m.err = t.l.cfg.Shims.State(ctx, s.Address); m.err == nil && m.state.Replica != t.o.Replica {
				// The port belongs to another replica by now.
				m.err = fmt.Errorf("%w: the shim at %s belongs to replica %s", shimclient.ErrNotListening, s.Address, m.state.Replica)
			}
			answers <- m
		})
	}
	for range t.o.shims {
		if answer(<-answers) {
			return true
		}
	}
	return false
}

// idle reports whether an engine has no requests and takes none: it loads, is in standby, or its
// process has ended.
func (m shimReply) idle() bool {
	if m.err != nil {
		return errors.Is(m.err, shimclient.ErrNotListening)
	}
	return m.state.Phase == shimclient.Init || m.state.Phase == shimclient.Standby
}

// findShim returns the shim of the engine to change: the engine is in one of phases and holds
// the failover lock, if there is one. If there is no such shim, findShim sets the outcome and
// returns false. For a drain of engines that are all idle it returns an empty reply and true.
func (t *tierChange) findShim(ctx context.Context, out *planner.Outcome, phases ...shimclient.Phase) (shimReply, bool) {
	switch {
	case !t.o.allocated:
		conclude(out, planner.Unreachable, "the job has no allocation in Nomad")
		return shimReply{}, false
	case len(t.o.shims) == 0 && t.o.Kind == planner.Sleep:
		conclude(out, planner.CannotSleep, "the job has no port for a shim: label it \"shim\", or \"primary_shim\" and \"shadow_shim\", or set meta %s in the task", nomad.MetaShim)
		return shimReply{}, false
	case len(t.o.shims) == 0 && t.o.Kind == planner.Drain:
		conclude(out, planner.Failed, "the job has no port for a shim, which counts the requests in flight: it is stopped at the drain timeout")
		return shimReply{}, false
	case len(t.o.shims) == 0:
		conclude(out, planner.Failed, "the job has no port for a shim")
		return shimReply{}, false
	}
	var found shimReply
	var problems []string
	busy := false
	if t.queryShims(ctx, func(m shimReply) bool {
		busy = busy || !m.idle()
		switch {
		case m.err != nil:
			problems = append(problems, fmt.Sprintf("the %s: %v", m.Role, m.err))
		case m.state.Leads() && slices.Contains(phases, m.state.Phase):
			found = m
			return true
		case m.state.Leads():
			problems = append(problems, fmt.Sprintf("the %s is %s", m.Role, m.state.Phase))
		default:
			problems = append(problems, fmt.Sprintf("the %s is %s and waits for the lock", m.Role, m.state.Phase))
		}
		return false
	}) {
		return found, true
	}
	if t.o.Kind == planner.Drain && !busy {
		return shimReply{}, true
	}
	slices.Sort(problems)
	conclude(out, planner.Unreachable, "cannot %s now: %s", t.o.Kind, strings.Join(problems, "; "))
	return shimReply{}, false
}

// target returns where the orders for a shim go.
func (t *tierChange) target(m shimReply) shimclient.Target { return t.l.target(t.o.Replica, m.Address) }

// target returns the shim of a replica at an address, with its secret.
func (l *loop) target(name, address string) shimclient.Target {
	to := shimclient.Target{Address: address}
	if key := l.cfg.Raft.Store().View().ShimKey(nil); key != nil {
		to.Secret = replica.Secret(key, name)
	}
	return to
}

// drain waits until the engine has no request. The shim deregisters it from Consul first, so
// gateways without a connection to the controller stop sending requests to it, too.
func (t *tierChange) drain(ctx context.Context, out *planner.Outcome) error {
	m, ok := t.findShim(ctx, out, shimclient.Active, shimclient.Draining)
	if !ok {
		return nil
	}
	if m.Address == "" {
		out.Class = planner.Done
		return nil
	}
	if err := t.l.verifyStillLeader(ctx, t.o); err != nil {
		return err
	}
	rest := max(t.l.cfg.Planner.DrainTimeout-t.l.cfg.Now().Sub(t.r.Since), time.Second)
	bounded, cancel := context.WithTimeout(ctx, rest+drainSlack)
	defer cancel()
	err := t.l.cfg.Shims.Drain(bounded, t.target(m), rest)
	switch {
	case err == nil, errors.Is(err, shimclient.ErrUnauthorized):
		// A shim whose job another controller has registered, as before this one lost its state,
		// takes no orders of this one. It drains its engine itself when its job is stopped.
		out.Class = planner.Done
	default:
		conclude(out, planner.Unreachable, "%v", err)
	}
	return nil
}

// sleep puts the engine to sleep and verifies that its GPU memory is freed. It returns an error
// only for failures that are not the replica's.
func (t *tierChange) sleep(ctx context.Context, out *planner.Outcome) error {
	if t.r.Loads() && !t.loaded(ctx, out) {
		return nil
	}
	m, ok := t.findShim(ctx, out, shimclient.Active, shimclient.Draining, shimclient.Standby)
	if !ok {
		return nil
	}
	if !m.state.CanSleep {
		conclude(out, planner.CannotSleep, "the engine of the %s has no sleep mode", m.Role)
		return nil
	}
	if err := t.l.verifyStillLeader(ctx, t.o); err != nil {
		return err
	}
	cfg := t.l.cfg.Planner
	drain := max(cfg.DrainTimeout-t.l.cfg.Now().Sub(t.r.Since), time.Second)
	bounded, cancel := context.WithTimeout(ctx, drain+sleepSlack)
	defer cancel()
	began := t.l.cfg.Now()
	s, err := t.l.cfg.Shims.Sleep(bounded, t.target(m), m.state.Since, drain)
	t.engine = t.l.cfg.Now().Sub(began)
	var refusal *shimclient.Error
	errors.As(err, &refusal)
	switch {
	case err == nil:
	case errors.Is(err, shimclient.ErrChanged):
		return errSuperseded
	case errors.Is(err, shimclient.ErrNotDrained), errors.Is(err, shimclient.ErrRefused) && (refusal.State == shimclient.Active || refusal.State == shimclient.Draining):
		return t.abortSleep(ctx, m, err, out)
	case errors.Is(err, shimclient.ErrFailed):
		conclude(out, planner.Failed, "%v", err)
		return nil
	case errors.Is(err, shimclient.ErrUnauthorized):
		conclude(out, planner.CannotSleep, "%v", err)
		return nil
	default:
		conclude(out, planner.Unreachable, "%v", err)
		return nil
	}
	since, asleep := s.Asleep()
	if !asleep {
		conclude(out, planner.Unreachable, "the shim of the %s was asked to sleep and is %s", m.Role, s.Phase)
		return nil
	}
	return t.verify(ctx, since, out)
}

// loaded reports whether all engines of a replica that loads to become WARM stand by. If not, it sets the outcome:
// an engine that still loads would load again once the replica is woken.
func (t *tierChange) loaded(ctx context.Context, out *planner.Outcome) bool {
	var loading, problems []string
	t.queryShims(ctx, func(m shimReply) bool {
		switch {
		case m.err != nil:
			problems = append(problems, fmt.Sprintf("the %s: %v", m.Role, m.err))
		case m.state.Phase == shimclient.Init:
			loading = append(loading, fmt.Sprintf("the %s is %s", m.Role, m.state.Phase))
		}
		return false
	})
	slices.Sort(problems)
	slices.Sort(loading)
	switch {
	case len(problems) > 0:
		conclude(out, planner.Unreachable, "cannot sleep now: %s", strings.Join(append(problems, loading...), "; "))
		return false
	case len(loading) == 0:
		return true
	}
	conclude(out, planner.Loading, "the engines load: %s", strings.Join(loading, "; "))
	return false
}

// abortSleep returns an engine that was not drained to service, before requests are routed to
// it again.
func (t *tierChange) abortSleep(ctx context.Context, m shimReply, why error, out *planner.Outcome) error {
	s, err := t.l.cfg.Shims.State(ctx, m.Address)
	switch {
	case err != nil:
		conclude(out, planner.Unreachable, "%v; cancelling it failed: %v", why, err)
		return nil
	case s.Phase != shimclient.Draining && s.Phase != shimclient.Active:
		return errSuperseded
	}
	// The drain may have taken long: another server may lead by now.
	if err := t.l.verifyStillLeader(ctx, t.o); err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, t.l.cfg.Planner.WakeTimeout)
	defer cancel()
	_, err = t.l.cfg.Shims.Wake(bounded, t.target(m), s.Since, nil)
	switch {
	case err == nil:
		conclude(out, planner.NotDrained, "%v", why)
	case errors.Is(err, shimclient.ErrFailed):
		conclude(out, planner.Failed, "%v; cancelling it failed: %v", why, err)
	default:
		conclude(out, planner.Unreachable, "%v; cancelling it failed: %v", why, err)
	}
	return nil
}

// wake wakes the engine on the GPUs of the replica's placement.
func (t *tierChange) wake(ctx context.Context, out *planner.Outcome) error {
	// Each takes a round trip: do both at once.
	var notLeader error
	var wg sync.WaitGroup
	wg.Go(func() { notLeader = t.l.verifyStillLeader(ctx, t.o) })
	verified := t.l.cfg.Now()
	m, ok := t.findShim(ctx, out, shimclient.Standby, shimclient.Draining, shimclient.Waking, shimclient.Active)
	wg.Wait()
	if notLeader == nil && ok && t.l.cfg.Now().Sub(verified) > freshEnough {
		notLeader = t.l.verifyStillLeader(ctx, t.o) // the shim was slow to answer: verify again
	}
	if notLeader != nil {
		return notLeader
	}
	if !ok {
		return nil
	}
	within := t.l.cfg.Planner.WakeTimeout
	if t.r.Status == state.StatusWaking {
		within = max(within-t.l.cfg.Now().Sub(t.r.Since), time.Second)
	}
	bounded, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	began := t.l.cfg.Now()
	_, err := t.l.cfg.Shims.Wake(bounded, t.target(m), m.state.Since, gpusOf(t.r.Placement))
	t.engine = t.l.cfg.Now().Sub(began)
	var refusal *shimclient.Error
	errors.As(err, &refusal)
	switch {
	case errors.Is(err, shimclient.ErrChanged):
		return errSuperseded
	case err == nil:
		out.Class = planner.Done
	case errors.Is(err, shimclient.ErrFailed), errors.Is(err, shimclient.ErrUnauthorized), errors.Is(err, shimclient.ErrRefused) && refusal.State == shimclient.Standby:
		conclude(out, planner.Failed, "%v", err)
	default:
		conclude(out, planner.Unreachable, "%v", err)
	}
	return nil
}

// gpusOf returns the GPUs that a placement has memory on, in the order of its seats.
func gpusOf(p state.Placement) []string {
	var out []string
	for _, s := range p.Seats {
		uuid, _, _ := strings.Cut(s, "#")
		if _, used := p.Memory[uuid]; used && !slices.Contains(out, uuid) {
			out = append(out, uuid)
		}
	}
	return out
}

// The first and the longest interval between two reads of a node's statistics. By default
// Nomad's client samples once a second.
const (
	firstSample = 20 * time.Millisecond
	lastSample  = 250 * time.Millisecond
)

// verify waits until samples taken after since show what the sleeping replica keeps of its GPUs, and
// that it is no more than a process that sleeps may keep. Since and the samples are of the node's clock.
func (t *tierChange) verify(ctx context.Context, since time.Time, out *planner.Outcome) error {
	deadline := t.l.cfg.Now().Add(t.l.cfg.Planner.MemoryTimeout)
	for wait := firstSample; ; wait = min(wait*3/2, lastSample) {
		samples, err := t.l.nomads[t.o.Pool].GPUMemory(ctx, t.r.Placement.Node)
		found := t.checkMemory(samples, since)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil && found.freed(since.Add(t.l.cfg.Planner.MemorySettle)):
			out.Class, out.Kept = planner.Done, found.kept
			return nil
		case !t.l.cfg.Now().Before(deadline):
			found.conclude(out, err, t.l.cfg.Planner.MemoryTimeout)
			return nil
		}
		if !sleep(ctx, wait) {
			return ctx.Err()
		}
	}
}

// memoryCheck is the result of checkMemory.
type memoryCheck struct {
	// kept has, by GPU, the bytes in use that belong to nobody else.
	kept map[string]int64
	// more: that is more than sleeping replicas of this definition have kept so far. held are the
	// GPUs of which it is more than any may keep.
	more bool
	held []string
	// stale are the GPUs without a new sample; unreported are those whose sample lacks the
	// memory in use. oldest is the time of the oldest new sample.
	stale, unreported []string
	oldest            time.Time
}

// freed reports whether what the replica keeps is known. A driver may take a while to give memory
// back, so what is more than expected counts from settled on.
func (m memoryCheck) freed(settled time.Time) bool {
	if len(m.held) > 0 || len(m.stale) > 0 || len(m.unreported) > 0 {
		return false
	}
	return !m.more || m.oldest.After(settled)
}

// checkMemory compares samples with the memory that the other replicas on the node hold. A sleep
// is of use only if it gives back at least half of the replica's memory.
func (t *tierChange) checkMemory(samples map[string]nomad.Sample, since time.Time) memoryCheck {
	var out memoryCheck
	view := t.l.cfg.Raft.Store().View()
	usage := t.l.usageWithout(view, t.r, t.o.Pool)
	expected := t.r.Placement.SleepMemory
	for _, uuid := range slices.Sorted(maps.Keys(t.r.Placement.Memory)) {
		s, there := samples[uuid]
		switch {
		case !there || !s.At.After(since):
			out.stale = append(out.stale, uuid)
			continue
		case s.Used < 0:
			out.unreported = append(out.unreported, uuid)
			continue
		}
		if out.oldest.IsZero() || s.At.Before(out.oldest) {
			out.oldest = s.At
		}
		kept := max(s.Used-usage.Memory[uuid], 0)
		if kept > 0 {
			if out.kept == nil {
				out.kept = map[string]int64{}
			}
			out.kept[uuid] = kept
		}
		out.more = out.more || kept > expected
		if kept > max(t.r.Placement.Memory[uuid]/2, expected) {
			out.held = append(out.held, uuid)
		}
	}
	return out
}

// conclude sets the outcome after the timeout.
func (m memoryCheck) conclude(out *planner.Outcome, err error, after time.Duration) {
	switch {
	case err != nil:
		conclude(out, planner.Unreachable, "asleep, but cannot check whether the GPU memory was freed: %v", err)
	case len(m.held) > 0:
		var parts []string
		out.Kept = map[string]int64{}
		for _, uuid := range m.held {
			parts = append(parts, fmt.Sprintf("%d bytes of GPU %s", m.kept[uuid], uuid))
			out.Kept[uuid] = m.kept[uuid]
		}
		conclude(out, planner.MemoryHeld, "asleep, but after %s more than half of its memory is still in use: %s", after, strings.Join(parts, ", "))
	case len(m.unreported) > 0:
		conclude(out, planner.MemoryUnknown, "asleep, but GPU %s does not report its memory in use", strings.Join(m.unreported, ", "))
	default:
		conclude(out, planner.Unreachable, "asleep, but for %s the node has reported no newer sample of GPU %s", after, strings.Join(m.stale, ", "))
	}
}

// usageWithout returns the usage of the replica's node in pool without the replica's own memory, and with
// the jobs that are not in the state.
func (l *loop) usageWithout(view *state.View, r *state.Replica, pool string) *state.NodeUsage {
	usage := view.UsageWithout(nil, r.Placement.Node, r.Name.String())
	for id, j := range l.cache.snapshot(&schedule{}).pools[pool].jobs {
		if j.Placement.Node != r.Placement.Node || j.Ended() || view.Replica(nil, id) != nil {
			continue
		}
		for uuid, bytes := range j.Placement.Memory {
			usage.Memory[uuid] += bytes
		}
	}
	return usage
}
