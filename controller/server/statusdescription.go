package server

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-memdb"

	"remuda/controller/planner"
	"remuda/controller/state"
)

// statusDescription describes a model's status in a few sentences: the target, the replicas, what
// is in progress, and the last decision.
func statusDescription(v *state.View, ws memdb.WatchSet, m *state.Model, rs []*state.Replica, ds []*state.Decision) string {
	var out []string
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	c, limits := countsOf(rs), v.Limits(ws)(m.Name)
	target := m.Target(limits).Replicas
	switch {
	case m.Stopped && len(rs) == 0:
		say("The model is stopped.")
	case m.Stopped:
		say("The model is stopped; %s.", strings.Join(statusCounts(rs), ", "))
	case len(rs) == 0 && target > 0:
		say("%d of %d replicas serve: none is placed yet.", 0, target)
	case len(rs) == 0:
		say("The target is 0 replicas.")
	default:
		say("%d of %d replicas serve: %s.", c.Hot, target, strings.Join(statusCounts(rs), ", "))
	}
	for _, r := range rs {
		if r.Status != state.StatusFailed {
			continue
		}
		text := fmt.Sprintf("Replica %s failed %d times: %s", r.Name, r.Failures, strings.TrimSuffix(r.LastError, "."))
		if !r.RetryAt.IsZero() {
			text += "; next retry at " + r.RetryAt.UTC().Format(time.RFC3339)
		}
		say("%s.", text)
	}
	for _, r := range rs {
		if r.Loads() {
			say("Replica %s loads beside the one that it replaces, which serves until this one is WARM.", r.Name)
		}
		if gpu := outOfUse(v, r); gpu != "" {
			say("Replica %s should move: %s.", r.Name, strings.TrimSuffix(gpu, "."))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.Rollouts)) {
		r := m.Rollouts[name]
		text := fmt.Sprintf("Variant %q: ", name)
		switch r.Status {
		case state.RolloutCanary:
			text += "a canary of the new definition runs beside the old replicas"
		case state.RolloutRolling:
			text += "replicas are being replaced one by one"
		case state.RolloutRolledBack:
			text += "the new definition was rolled back"
		}
		if r.Reason != "" {
			text += ": " + strings.TrimSuffix(r.Reason, ".")
		}
		say("%s.", text)
	}
	if d := v.Dedicated(ws); d != nil && d.Models[m.Name] > 0 {
		say("Dedicated with at least %s, set by %s.", plural(d.Models[m.Name], "replica"), sourceOf(d))
	}
	if room, asked := m.Displaced.UntilRoom.Total(), m.Displaced.UntilAsked.Total(); room+asked > 0 {
		say("Desired: %s; %s.", plural(m.Desired.Total(), "replica"), displacedText(room, asked))
	}
	if m.Target(limits).Bound == state.BoundCap {
		say("Capped at %s by switch %s.", plural(target, "replica"), cappedBy(v, ws, m.Name, target))
	}
	if limits.ScalingDisabled {
		say("Switch %s is set: only operators change its scale, and nothing evicts it.", disabledBy(v, ws, m.Name))
	}
	if v.Switch(ws, state.SwitchPauseReconcile) != "" {
		say("The controller is paused: run \"remuda switch unset %s\" to resume.", state.SwitchPauseReconcile)
	}
	if d := pendingDecision(v, m, target, rs, ds); d != nil {
		say("Waiting: %s.", strings.TrimSuffix(d.Reason, "."))
	} else if len(ds) > 0 {
		say("Last decision, %s: %s.", ds[0].Kind, strings.TrimSuffix(ds[0].Reason, "."))
	}
	return strings.Join(out, " ")
}

// displacedText describes when displaced replicas come back: "1 comes back when there is room".
func displacedText(room, asked int) string {
	var parts []string
	say := func(n int, when string) {
		switch {
		case n == 1:
			parts = append(parts, "1 comes back "+when)
		case n > 1:
			parts = append(parts, fmt.Sprintf("%d come back %s", n, when))
		}
	}
	say(room, "when there is room or clients wait")
	say(asked, "when clients wait")
	return strings.Join(parts, ", ")
}

// outOfUse returns why a replica that stays should leave its GPUs, empty if it should not.
func outOfUse(v *state.View, r *state.Replica) string {
	if !r.Counts() {
		return ""
	}
	return r.OutOfUse(v.Node(nil, r.Placement.Node))
}

// cappedBy returns the name of the switch that caps a model at n replicas: the model's own, or the
// one for all models.
func cappedBy(v *state.View, ws memdb.WatchSet, model string, n int) string {
	own := state.SwitchFor(state.SwitchCapMaxReplicas, model)
	if v.Switch(ws, own) == strconv.Itoa(n) || v.Switch(ws, state.SwitchCapMaxReplicas) == "" {
		return own
	}
	return state.SwitchCapMaxReplicas
}

// disabledBy returns the name of the switch that disables a model's scaling: the model's own, or
// the one for all models.
func disabledBy(v *state.View, ws memdb.WatchSet, model string) string {
	if own := state.SwitchFor(state.SwitchDisableScaling, model); v.Switch(ws, own) != "" {
		return own
	}
	return state.SwitchDisableScaling
}

// pendingDecision returns the decision that explains what the model waits for, nil if it does not
// wait. A decision is pending if no replica was placed or woken after it.
func pendingDecision(v *state.View, m *state.Model, target int, rs []*state.Replica, ds []*state.Decision) *state.Decision {
	staying := 0
	for _, r := range rs {
		if r.Counts() {
			staying++
		}
	}
	for _, d := range ds {
		switch d.Kind {
		case planner.KindPlace, planner.KindWake:
			return nil
		case planner.KindCannotPlace, planner.KindWaitsForRoom:
			if staying < target {
				return d
			}
		case planner.KindGPUOutOfUse:
			if slices.ContainsFunc(rs, func(r *state.Replica) bool { return outOfUse(v, r) != "" }) {
				return d
			}
		case planner.KindRolloutWaits:
			for _, r := range m.Rollouts {
				if r.Status != state.RolloutRolledBack {
					return d
				}
			}
		}
	}
	return nil
}

// statusCounts returns the number of replicas in each status, the closest to serving first.
func statusCounts(rs []*state.Replica) []string {
	order := []state.Status{
		state.StatusServing, state.StatusWaking, state.StatusStarting, state.StatusPlaced, state.StatusFailed, state.StatusDraining,
		state.StatusSleeping, state.StatusWarm, state.StatusStopping, state.StatusDiscarding, state.StatusCold,
	}
	count := map[state.Status]int{}
	for _, r := range rs {
		count[r.Status]++
	}
	var out []string
	for _, s := range order {
		if n := count[s]; n > 0 {
			out = append(out, fmt.Sprintf("%d %s", n, s))
		}
	}
	return out
}
