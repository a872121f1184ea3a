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
	"remuda/controller/shim"
	"remuda/controller/state"
)

// sleepSlack is what an engine may take, after its last request, to copy its weights to
// host memory: some ten seconds for the largest.
const sleepSlack = 2 * time.Minute

// drainSlack is what a shim may take to answer beyond the time of the drain itself.
const drainSlack = 10 * time.Second

// freshEnough is for how long a server that was found to lead is taken to lead on: less
// than an election takes.
const freshEnough = 200 * time.Millisecond

// tierError is a Drain, a Sleep or a Wake that was not done.
type tierError struct {
	class planner.OutcomeClass
	text  string
}

func (e *tierError) Error() string { return e.text }

// changeTier drains a replica's engine, puts it to sleep or wakes it, and commits what became
// of it. A new leader does the same again: what is idle, sleeps or serves already says so at
// once.
func (l *leading) changeTier(ctx context.Context, o order) error {
	r := l.cfg.Raft.Store().View().Replica(nil, o.Replica)
	if r == nil || r.ModifyIndex != o.replica || !wantsTier(r, o.Kind) {
		return errSuperseded
	}
	t := &tiering{l: l, o: o, r: r, began: l.cfg.Now()}
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
		err = ctx.Err() // half of an answer is none
	}
	if err != nil {
		return err
	}
	return l.concluded(ctx, t, out)
}

// concluded commits the outcome.
func (l *leading) concluded(ctx context.Context, t *tiering, out planner.Outcome) error {
	var err error
	committed := false
	for range 10 { // somebody who changes it all the time is met by the next look
		view, now := l.cfg.Raft.Store().View(), l.cfg.Now()
		if r := view.Replica(nil, out.Replica); r != nil && r.Status == t.r.Status && !r.Since.Equal(t.r.Since) {
			return errSuperseded // it has left the status and come back: that is another sleep or wake
		}
		plan := l.cfg.After(view, out, now, l.cfg.Planner)
		if plan == nil {
			break
		}
		plan.ID, plan.Index, plan.Time = fmt.Sprintf("%d-%s-%d", l.term, out.Kind, t.o.replica), view.Index(), now
		if _, err = l.cfg.Raft.Apply(ctx, plan); err == nil {
			committed = true
			l.decided(plan)
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
	l.metrics.changedTier(t, l.cfg.Now())
	return nil
}

// tiering is one Drain, Sleep or Wake.
type tiering struct {
	l     *leading
	o     order
	r     *state.Replica // as it was decided for
	began time.Time
	// engine is what the shim took.
	engine time.Duration
}

func conclude(out *planner.Outcome, class planner.OutcomeClass, format string, args ...any) {
	out.Class, out.Error = class, fmt.Sprintf(format, args...)
}

// met is a shim with its answer.
type met struct {
	nomad.Shim
	state shim.State
	err   error
}

// ask asks all shims of the replica how they stand, at once, and calls answer with each
// until it returns true: one that hangs keeps the other waiting for nothing.
func (t *tiering) ask(ctx context.Context, answer func(met) bool) bool {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	answers := make(chan met, len(t.o.shims))
	for _, s := range t.o.shims {
		wg.Go(func() {
			m := met{Shim: s}
			if m.state, m.err = t.l.cfg.Shims.State(ctx, s.Address); m.err == nil && m.state.Replica != t.o.Replica {
				// The port is another's by now.
				m.err = fmt.Errorf("%w: the shim at %s belongs to replica %s", shim.ErrNotListening, s.Address, m.state.Replica)
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

// idle reports whether an engine has no requests and takes none: it loads, or stands by, or its
// process is gone.
func (m met) idle() bool {
	if m.err != nil {
		return errors.Is(m.err, shim.ErrNotListening)
	}
	return m.state.Phase == shim.Init || m.state.Phase == shim.Standby
}

// find returns the shim whose engine it is about: in one of phases, and with the lock
// where there is one. Without one the outcome is written. A drain of engines that are all idle is
// about none.
func (t *tiering) find(ctx context.Context, out *planner.Outcome, phases ...shim.Phase) (met, bool) {
	switch {
	case !t.o.allocated:
		conclude(out, planner.Unreachable, "the job has no allocation in Nomad")
		return met{}, false
	case len(t.o.shims) == 0 && t.o.Kind == planner.Sleep:
		conclude(out, planner.CannotSleep, "the job has no port for a shim: label it \"shim\", or \"primary_shim\" and \"shadow_shim\", or set meta %s in the task", nomad.MetaShim)
		return met{}, false
	case len(t.o.shims) == 0 && t.o.Kind == planner.Drain:
		conclude(out, planner.Failed, "the job has no port for a shim, which counts the requests in flight: it is stopped at the drain timeout")
		return met{}, false
	case len(t.o.shims) == 0:
		conclude(out, planner.Failed, "the job has no port for a shim")
		return met{}, false
	}
	var found met
	var said []string
	busy := false
	if t.ask(ctx, func(m met) bool {
		busy = busy || !m.idle()
		switch {
		case m.err != nil:
			said = append(said, fmt.Sprintf("the %s: %v", m.Role, m.err))
		case m.state.Leads() && slices.Contains(phases, m.state.Phase):
			found = m
			return true
		case m.state.Leads():
			said = append(said, fmt.Sprintf("the %s is %s", m.Role, m.state.Phase))
		default:
			said = append(said, fmt.Sprintf("the %s is %s and waits for the lock", m.Role, m.state.Phase))
		}
		return false
	}) {
		return found, true
	}
	if t.o.Kind == planner.Drain && !busy {
		return met{}, true
	}
	slices.Sort(said)
	conclude(out, planner.Unreachable, "cannot %s now: %s", t.o.Kind, strings.Join(said, "; "))
	return met{}, false
}

// drain waits until the engine has no request. The shim takes it out of Consul first, so that
// gateways that do not hear from the controller send it nothing more either.
func (t *tiering) drain(ctx context.Context, out *planner.Outcome) error {
	m, ok := t.find(ctx, out, shim.Active, shim.Draining)
	if !ok {
		return nil
	}
	if m.Address == "" {
		out.Class = planner.Done
		return nil
	}
	if err := t.l.allowed(ctx, t.o); err != nil {
		return err
	}
	rest := max(t.l.cfg.Planner.DrainTimeout-t.l.cfg.Now().Sub(t.r.Since), time.Second)
	bounded, cancel := context.WithTimeout(ctx, rest+drainSlack)
	defer cancel()
	if err := t.l.cfg.Shims.Drain(bounded, m.Address, rest); err != nil {
		conclude(out, planner.Unreachable, "%v", err)
		return nil
	}
	out.Class = planner.Done
	return nil
}

// sleep has the engine sleep, and looks that its memory comes back. The error is for what
// says nothing of the replica.
func (t *tiering) sleep(ctx context.Context, out *planner.Outcome) error {
	m, ok := t.find(ctx, out, shim.Active, shim.Draining, shim.Standby)
	if !ok {
		return nil
	}
	if !m.state.CanSleep {
		conclude(out, planner.CannotSleep, "the engine of the %s has no sleep mode", m.Role)
		return nil
	}
	if err := t.l.allowed(ctx, t.o); err != nil {
		return err
	}
	cfg := t.l.cfg.Planner
	drain := max(cfg.DrainTimeout-t.l.cfg.Now().Sub(t.r.Since), time.Second)
	bounded, cancel := context.WithTimeout(ctx, drain+sleepSlack)
	defer cancel()
	began := t.l.cfg.Now()
	s, err := t.l.cfg.Shims.Sleep(bounded, m.Address, m.state.Since, drain)
	t.engine = t.l.cfg.Now().Sub(began)
	var said *shim.Error
	errors.As(err, &said)
	switch {
	case err == nil:
	case errors.Is(err, shim.ErrChanged):
		return errSuperseded
	case errors.Is(err, shim.ErrNotDrained), errors.Is(err, shim.ErrRefused) && (said.State == shim.Active || said.State == shim.Draining):
		return t.callOff(ctx, m, err, out)
	case errors.Is(err, shim.ErrFailed):
		conclude(out, planner.Failed, "%v", err)
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

// callOff has an engine that was not drained serve again, before anybody is sent to it.
func (t *tiering) callOff(ctx context.Context, m met, why error, out *planner.Outcome) error {
	s, err := t.l.cfg.Shims.State(ctx, m.Address)
	switch {
	case err != nil:
		conclude(out, planner.Unreachable, "%v; cancelling it failed: %v", why, err)
		return nil
	case s.Phase != shim.Draining && s.Phase != shim.Active:
		return errSuperseded
	}
	// The drain has taken long: another server may lead by now.
	if err := t.l.allowed(ctx, t.o); err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, t.l.cfg.Planner.WakeTimeout)
	defer cancel()
	_, err = t.l.cfg.Shims.Wake(bounded, m.Address, s.Since, nil)
	switch {
	case err == nil:
		conclude(out, planner.NotDrained, "%v", why)
	case errors.Is(err, shim.ErrFailed):
		conclude(out, planner.Failed, "%v; cancelling it failed: %v", why, err)
	default:
		conclude(out, planner.Unreachable, "%v; cancelling it failed: %v", why, err)
	}
	return nil
}

// wake has the engine serve on the GPUs of the replica's placement.
func (t *tiering) wake(ctx context.Context, out *planner.Outcome) error {
	// Both take a round trip.
	var allowed error
	var wg sync.WaitGroup
	wg.Go(func() { allowed = t.l.allowed(ctx, t.o) })
	asked := t.l.cfg.Now()
	m, ok := t.find(ctx, out, shim.Standby, shim.Draining, shim.Waking, shim.Active)
	wg.Wait()
	if allowed == nil && ok && t.l.cfg.Now().Sub(asked) > freshEnough {
		allowed = t.l.allowed(ctx, t.o) // much may have happened while the shim was silent
	}
	if allowed != nil {
		return allowed
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
	_, err := t.l.cfg.Shims.Wake(bounded, m.Address, m.state.Since, gpusOf(t.r.Placement))
	t.engine = t.l.cfg.Now().Sub(began)
	var said *shim.Error
	errors.As(err, &said)
	switch {
	case errors.Is(err, shim.ErrChanged):
		return errSuperseded
	case err == nil:
		out.Class = planner.Done
	case errors.Is(err, shim.ErrFailed), errors.Is(err, shim.ErrRefused) && said.State == shim.Standby:
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

// Between two looks at a node's statistics. Nomad's client samples once a second by
// default, and at other moments than ours.
const (
	firstSample = 20 * time.Millisecond
	lastSample  = 250 * time.Millisecond
)

// verify waits until the memory of the replica's GPUs is back, on samples that were taken
// after since. Both are of the node's clock.
func (t *tiering) verify(ctx context.Context, since time.Time, out *planner.Outcome) error {
	deadline := t.l.cfg.Now().Add(t.l.cfg.Planner.MemoryTimeout)
	for wait := firstSample; ; wait = min(wait*3/2, lastSample) {
		samples, err := t.l.nomads[t.o.Pool].GPUMemory(ctx, t.r.Placement.Node)
		found := t.judge(samples, since)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil && found.back():
			out.Class = planner.Done
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

// memory is what samples say of the replica's GPUs.
type memory struct {
	// held has the bytes that are in use beyond what the ledger knows.
	held map[string]int64
	// old are the GPUs without a sample that is new enough, untold those that do not tell.
	old, untold []string
}

func (m memory) back() bool { return len(m.held) == 0 && len(m.old) == 0 && len(m.untold) == 0 }

// judge compares samples with what the others on the node hold, and what the sleeping
// replica keeps.
func (t *tiering) judge(samples map[string]nomad.Sample, since time.Time) memory {
	out := memory{held: map[string]int64{}}
	view := t.l.cfg.Raft.Store().View()
	node := view.Node(nil, t.r.Placement.Node)
	usage := t.l.without(view, t.r, t.o.Pool)
	for _, uuid := range slices.Sorted(maps.Keys(t.r.Placement.Memory)) {
		g := node.GPU(uuid)
		if g == nil {
			g = &state.GPU{UUID: uuid} // it has gone meanwhile
		}
		s, there := samples[uuid]
		switch {
		case !there || !s.At.After(since):
			out.old = append(out.old, uuid)
		case s.Used < 0:
			out.untold = append(out.untold, uuid)
		case !planner.Returned(g, usage, s.Used, t.l.cfg.Planner.MemorySlack):
			out.held[uuid] = s.Used - usage.Memory[uuid]
		}
	}
	return out
}

// conclude writes the outcome once the time is up.
func (m memory) conclude(out *planner.Outcome, err error, after time.Duration) {
	switch {
	case err != nil:
		conclude(out, planner.Unreachable, "asleep, but cannot check whether the GPU memory was freed: %v", err)
	case len(m.held) > 0:
		var parts []string
		for _, uuid := range slices.Sorted(maps.Keys(m.held)) {
			parts = append(parts, fmt.Sprintf("%d bytes of GPU %s", m.held[uuid], uuid))
		}
		conclude(out, planner.MemoryHeld, "asleep, but after %s unaccounted memory is still in use: %s", after, strings.Join(parts, ", "))
		out.HeldBytes = m.held
	case len(m.untold) > 0:
		conclude(out, planner.Failed, "asleep, but GPU %s does not report its memory in use", strings.Join(m.untold, ", "))
	default:
		conclude(out, planner.Unreachable, "asleep, but for %s the node has reported no newer sample of GPU %s", after, strings.Join(m.old, ", "))
	}
}

// without is the ledger of a replica's node, which is of that pool, without what the
// replica gives back by going WARM, and with the jobs that the state does not know.
func (l *leading) without(view *state.View, r *state.Replica, pool string) *state.NodeUsage {
	usage := view.Usage(nil, r.Placement.Node)
	// It may have moved on since; what counts is what it holds now.
	if now := view.Replica(nil, r.Name.String()); now != nil {
		for uuid, bytes := range now.Holds().Memory {
			usage.Memory[uuid] -= bytes
		}
	}
	for uuid := range r.Placement.Memory {
		usage.Memory[uuid] += r.Placement.SleepMemory
	}
	for id, j := range l.seen.take(&schedule{}).pools[pool].jobs {
		if j.Placement.Node != r.Placement.Node || j.Ended() || view.Replica(nil, id) != nil {
			continue
		}
		for uuid, bytes := range j.Placement.Memory {
			usage.Memory[uuid] += bytes
		}
	}
	return usage
}
