package planner

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"remuda/controller/state"
	"remuda/internal/bytesize"
)

// Outcome is what became of a Drain, a Sleep or a Wake.
type Outcome struct {
	// Kind is Drain, Sleep or Wake.
	Kind    Kind
	Replica string
	Class   OutcomeClass
	// Error is a sentence; empty where it is done.
	Error string
	// Kept has, by GPU, the bytes that the sleeping replica keeps; of Done and MemoryHeld.
	Kept map[string]int64
}

// OutcomeClass is how a Drain, a Sleep or a Wake ended.
type OutcomeClass string

// The classes.
const (
	// Done: the engine has no request, or sleeps and its memory came back, or serves.
	Done OutcomeClass = "done"
	// CannotSleep: the engine has no sleep.
	CannotSleep OutcomeClass = "cannot-sleep"
	// NotDrained: a request was on the engine for too long, and it serves as before.
	NotDrained OutcomeClass = "not-drained"
	// Failed: the engine returned an error or crashed, or the job has no port for a shim.
	Failed OutcomeClass = "failed"
	// MemoryHeld: the engine sleeps, and keeps more than half of its GPU memory.
	MemoryHeld OutcomeClass = "memory-held"
	// MemoryUnknown: the engine sleeps, and its GPU does not report its memory in use.
	MemoryUnknown OutcomeClass = "memory-unknown"
	// Loading: the engine that is to sleep still loads, and the action is retried.
	Loading OutcomeClass = "loading"
	// Unreachable: the result is unknown, and the action is retried.
	Unreachable OutcomeClass = "unreachable"
)

// After returns what to commit after a Drain, a Sleep or a Wake, nil if that is nothing because the
// replica has another status by now, or the action is retried. The plan is made from this view, and
// is not rejected while the view is the newest. Plan, not After, limits how long a shim may be
// unreachable.
func After(v *state.View, out Outcome, now time.Time, _ Config) *state.Plan {
	r := v.Replica(nil, out.Replica)
	if r == nil || out.Class == Unreachable || out.Class == Loading {
		return nil
	}
	e := &ending{
		view: v, replica: r, out: out,
		plan: &state.Plan{Index: v.Index(), Time: now, ID: fmt.Sprintf("%d-%s", v.Index(), hash("after", string(out.Kind), out.Replica, now)[:8])},
	}
	switch {
	case out.Kind == Drain && r.Status == state.StatusDraining && r.Leaving() && out.Class == Done:
		e.record(KindDrained, "drained: no requests in flight")
		e.happens(state.EventStop, r.Goal)
	case out.Kind == Sleep && r.Status == state.StatusSleeping:
		e.asleep()
	case out.Kind == Sleep && r.Status == state.StatusStarting && r.Loads():
		e.loaded()
	case out.Kind == Wake && r.Status == state.StatusWaking:
		e.awake()
	default:
		return nil
	}
	return e.plan
}

// ending is the plan that ends a sleep or a wake.
type ending struct {
	view    *state.View
	replica *state.Replica
	out     Outcome
	plan    *state.Plan
}

// asleep ends a sleep.
func (e *ending) asleep() {
	r := e.replica
	switch e.out.Class {
	case Done:
		// Kept is what is in use on the GPU less what the other replicas are charged. It is too small
		// while one of these has not taken all of its memory yet, or has lost a standby.
		kept := r.Placement.SleepMemory
		for _, bytes := range e.out.Kept {
			kept = max(kept, bytes)
		}
		reason := "asleep, GPU memory freed: now WARM"
		if kept > 0 {
			reason = fmt.Sprintf("asleep: now WARM, and keeps %s of each GPU", bytesize.Text(kept))
		}
		e.record(KindAsleep, reason)
		e.happens(state.EventSlept, "")
		e.plan.Move[len(e.plan.Move)-1].SleepMemory = &kept
		e.learn(state.Sleep{Memory: kept})
	case CannotSleep:
		e.record(KindCannotSleep, "engine does not support sleep: going COLD, as will all replicas of this definition: "+e.out.Error)
		e.learn(state.Sleep{None: true})
		e.happens(state.EventStop, state.GoalCold)
	case NotDrained:
		e.record(KindCalledOff, "requests did not finish in time: staying HOT: "+e.out.Error)
		if m := e.view.Model(nil, r.Name.Model); m != nil {
			own := &model{Model: m, limits: e.view.Limits(nil)(m.Name)}
			own.target, own.active = m.Target(own.limits), m.Active()
			if regainsReplica(m, own.target.Replicas, r, e.view.StayingOf(nil, m.Name)) {
				own.more(own.target.Replicas+1, r.Name.Variant, recallOrder(r)...)
			}
			if own.scaled {
				e.plan.Scales = append(e.plan.Scales, *state.ScaleOf(own.Model))
			}
		}
		e.happens(state.EventServing, "")
		e.plan.Move[len(e.plan.Move)-1].Kept = true
	case MemoryHeld:
		held := slices.Sorted(maps.Keys(e.out.Kept))
		if len(held) == 0 {
			held = slices.Sorted(maps.Keys(r.Placement.Memory))
		}
		e.record(KindMemoryHeld, "asleep, but GPU memory was not freed: GPUs cordoned, going COLD: "+e.out.Error)
		n := e.view.Node(nil, r.Placement.Node)
		for _, gpu := range held {
			if n.GPU(gpu) == nil {
				continue // it is gone, with its memory
			}
			why := fmt.Sprintf("memory was "+state.NotFreed+" %s went to sleep", r.Name)
			if bytes, known := e.out.Kept[gpu]; known {
				why = fmt.Sprintf("%d bytes were "+state.NotFreed+" %s went to sleep", bytes, r.Name)
			}
			e.plan.Cordons = append(e.plan.Cordons, state.Cordon{Node: n.ID, GPU: gpu, On: true, Reason: why})
		}
		e.failCold()
	default:
		e.record(KindSleepFailed, "sleep failed, going COLD: "+cmp.Or(e.out.Error, string(e.out.Class)))
		e.failCold()
	}
}

// loaded ends the load of a replica that becomes WARM before it serves. One that cannot sleep, or keeps
// more than there is room for, ends. If the memory that it keeps is not known, because the GPU does not report
// it or the replica beside it may be the one that uses it, the replica ends as well. Its definition counts as one
// that cannot sleep, so that no other replica of it loads this way. Other failures roll the definition back.
func (e *ending) loaded() {
	r := e.replica
	kept := r.Placement.SleepMemory
	for _, bytes := range e.out.Kept {
		kept = max(kept, bytes)
	}
	short := false
	used, n := e.view.UsageWithout(nil, r.Placement.Node, e.out.Replica), e.view.Node(nil, r.Placement.Node)
	for gpu := range r.Placement.Memory {
		g := n.GPU(gpu)
		short = short || g == nil || kept > max(used.FreeMemory(g), r.Placement.LoadMemory)
	}
	switch {
	case e.out.Class == Done && short:
		e.record(KindCannotSleep, fmt.Sprintf("loaded and asleep, but it keeps %s of each GPU, for which there is no room: stopped", bytesize.Text(kept)))
		e.learn(state.Sleep{Memory: kept})
		e.happens(state.EventStop, state.GoalGone)
	case e.out.Class == Done || e.out.Class == CannotSleep:
		e.asleep()
	case e.out.Class == MemoryUnknown || e.out.Class == MemoryHeld:
		e.record(KindCannotSleep, "loaded and put to sleep, but what it keeps is not known: stopped, and the replicas of this definition count as ones that cannot sleep: "+e.out.Error)
		e.learn(state.Sleep{None: true})
		e.happens(state.EventStop, state.GoalGone)
	default:
		why := "could not be put to sleep after its load: " + cmp.Or(e.out.Error, string(e.out.Class))
		if !e.rollBack(why) {
			e.record(KindSleepFailed, why)
		}
		e.happens(state.EventStop, state.GoalGone)
		e.failed(why)
	}
}

// rollBack returns the model to its stable version if the replica is of a definition that is being rolled
// out, and reports whether it is. What fails on a node or a GPU that it has to leave says nothing about the version.
func (e *ending) rollBack(why string) bool {
	n := e.view.Node(nil, e.replica.Placement.Node)
	if n == nil || n.WrittenOff || n.Draining || e.replica.OutOfUse(n) != "" {
		return false
	}
	m, v := e.view.Model(nil, e.replica.Name.Model), e.view.VariantOf(nil, e.replica)
	if m == nil || v == nil {
		return false
	}
	rollout, current := m.Rollouts[v.Name], m.Variant(v.Name)
	if !rollout.Ongoing() || current == nil || current.Hash != v.Hash {
		return false
	}
	e.record(KindRolledBack, fmt.Sprintf("rolled back from version %d to version %d: %s", m.Version, m.StableVersion, why))
	e.plan.Rollouts = append(e.plan.Rollouts, state.SetRollout{Model: m.Name, Variant: v.Name, Version: rollout.Version, Status: state.RolloutRolledBack, Reason: why})
	return true
}

// learn notes what the sleep has shown of the replica's definition.
func (e *ending) learn(s state.Sleep) {
	v := e.view.VariantOf(nil, e.replica)
	m := e.view.Model(nil, e.replica.Name.Model)
	if v == nil || m == nil {
		return
	}
	if was, known := m.Sleeps[v.Hash]; !known || s.Memory > was.Memory || s.None && !was.None {
		e.plan.Sleeps = append(e.plan.Sleeps, state.SetSleep{Model: m.Name, Hash: v.Hash, Sleep: s})
	}
}

// awake ends a wake.
func (e *ending) awake() {
	if e.out.Class == Done {
		e.record(KindAwake, fmt.Sprintf("awake after %s", e.plan.Time.Sub(e.replica.Since).Round(time.Millisecond)))
		e.happens(state.EventServing, "")
		return
	}
	if why := "wake failed: " + cmp.Or(e.out.Error, string(e.out.Class)); e.rollBack(why) {
		e.happens(state.EventStop, state.GoalGone)
		e.failed(why)
		return
	}
	e.record(KindWakeFailed, "wake failed, going COLD, another replica takes over: "+cmp.Or(e.out.Error, string(e.out.Class)))
	e.failCold()
}

// failCold stops the replica with GoalCold, and records the failure.
func (e *ending) failCold() {
	e.happens(state.EventStop, state.GoalCold)
	e.failed(cmp.Or(e.out.Error, string(e.out.Class)))
}

// failed records the failure with the last event.
func (e *ending) failed(why string) {
	failures := e.replica.Failures + 1
	c := &e.plan.Move[len(e.plan.Move)-1]
	c.Failures, c.LastError = &failures, &why
}

func (e *ending) happens(event state.Event, goal state.Goal) {
	e.plan.Move = append(e.plan.Move, state.Move{Replica: e.out.Replica, ModifyIndex: e.replica.ModifyIndex, Event: event, Goal: goal})
}

func (e *ending) record(kind, reason string) {
	r := e.replica
	in := inputs{"took": e.plan.Time.Sub(r.Since).String(), "node": r.Placement.Node, "class": string(e.out.Class), "failures": strconv.Itoa(r.Failures)}
	for gpu, bytes := range e.out.Kept {
		in["kept "+gpu] = strconv.FormatInt(bytes, 10)
	}
	e.plan.Decisions = append(e.plan.Decisions, state.Decision{Time: e.plan.Time, Model: r.Name.Model, Replica: e.out.Replica, Kind: kind, Reason: reason, Details: in})
}
