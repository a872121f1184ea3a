package planner_test

import (
	"fmt"
	"maps"
	"slices"

	"github.com/stretchr/testify/require"

	"remuda/controller/placement"
	"remuda/controller/planner"
	"remuda/controller/state"
)

// physics looks at what is really on each GPU and in each node's memory: never more than
// there is.
func (w *world) physics() {
	used, host, loaded := map[string]int64{}, map[string]int64{}, map[string]bool{}
	for _, name := range sorted(w.nomad) {
		j := w.nomad[name]
		if !j.live() || j.strange {
			continue
		}
		// Engines of one version with the same place on exactly the same GPUs have one copy of their weights.
		weights := fmt.Sprint(j.Name.Model, j.version, j.Name.Variant, slices.Sorted(maps.Keys(j.using)))
		shares := !j.asleep || j.held
		for gpu, bytes := range j.using {
			if loaded[weights] && shares {
				bytes -= j.Placement.SharedMemory
			}
			used[gpu] += bytes
		}
		if shares && j.Placement.SharedMemory > 0 && len(j.using) > 0 {
			loaded[weights] = true
		}
		host[j.Placement.Node] += j.host
	}
	for _, id := range sorted(w.nodes) {
		n := w.nodes[id]
		for _, g := range n.GPUs {
			w.holds(used[g.UUID] <= g.Memory, "GPU %s has %d bytes and %d are in use", g.UUID, g.Memory, used[g.UUID])
		}
		w.holds(host[id] <= n.HostMemory, "node %s has %d bytes and %d are in use", id, n.HostMemory, host[id])
	}
}

// booked looks that nothing is held by two, or of what there is not.
func (w *world) booked(after *state.View) {
	seats := map[string]string{}
	bytes, host, counted := map[string]int64{}, map[string]int64{}, map[state.Weights]bool{}
	for _, r := range after.Replicas(nil) {
		if r.Status == state.StatusCold {
			continue
		}
		h := r.Holds()
		if counted[h.Weights] {
			for gpu := range h.Memory {
				bytes[gpu] -= h.Weights.On(gpu)
			}
		}
		counted[h.Weights] = h.Weights.Of != ""
		for _, s := range h.Seats {
			require.Empty(w.t, seats[s], "seat %s is held twice", s)
			seats[s] = r.Name.String()
		}
		for gpu, b := range h.Memory {
			bytes[gpu] += b
		}
		host[r.Placement.Node] += h.HostMemory
	}
	for _, n := range w.nodes {
		budget := int64(w.conf.WarmShare * float64(n.HostMemory))
		w.holds(host[n.ID] <= budget, "node %s has %d bytes for WARM replicas, and %d are held", n.ID, budget, host[n.ID])
		for _, g := range n.GPUs {
			require.LessOrEqual(w.t, bytes[g.UUID], g.Memory, "GPU %s", g.UUID)
		}
	}
}

// check looks at what must hold after each plan.
func (w *world) check(before, after *state.View, o planner.Observation, p *state.Plan) {
	w.booked(after)
	// Capacity goes down where somebody wants less, or where it was lost already.
	lost, evicted := map[string]int{}, map[string]int{}
	for _, m := range p.Move {
		r := before.Replica(nil, m.Replica)
		if r.Status == state.StatusDraining && m.Event == state.EventStop && o.Loads[m.Replica].InFlight > 0 {
			n := after.Node(nil, r.Placement.Node)
			timeout := !w.now.Before(r.Since.Add(w.conf.DrainTimeout))
			j, listed := o.Jobs[m.Replica]
			w.holds(timeout || n.WrittenOff || j.Ended || !listed && o.Pools[n.CapacityPool].JobsKnown, "%s is stopped with requests in flight", m.Replica)
		}
		if r.Status == (state.StatusServing) && m.Event == state.EventDrain && o.EnginesKnown && !slices.ContainsFunc(o.Engines[m.Replica], func(e planner.Engine) bool { return e.Passing }) {
			lost[group(before, r)]++ // it did not serve
		}
		if l := o.Loads[m.Replica]; r.Status == state.StatusServing && m.Event == state.EventDrain && (l.Row.Failed >= planner.FailuresLeast || l.Recent.Failed >= max(l.Recent.Answered, planner.FailuresLeast)) {
			lost[group(before, r)]++ // it failed half of its requests at least
		}
		if m.MakesRoomFor != nil && r.Status == (state.StatusServing) {
			evicted[group(before, r)]++ // somebody with a higher priority needs it, or its model may do without
		}
		if r.Status == (state.StatusServing) && (m.Event == state.EventStarted || m.Event == state.EventStop) {
			n := after.Node(nil, r.Placement.Node)
			w.holds(n.WrittenOff || !slices.ContainsFunc(o.Engines[m.Replica], func(e planner.Engine) bool { return e.Passing }), "%s serves and is not drained", m.Replica)
			lost[group(before, r)]++
		}
	}
	for _, rm := range p.Remove {
		r := before.Replica(nil, rm.Replica)
		n := after.Node(nil, r.Placement.Node)
		j := w.nomad[rm.Replica]
		w.holds(!w.lags || j == nil || !j.live() || n == nil || n.WrittenOff, "%s is removed while its job runs", rm.Replica)
	}
	w.enabled(before, after, o, p)
	had, has := capacity(before), capacity(after)
	for _, m := range after.Models(nil) {
		targets := targetsOf(after, m)
		if len(targets) == len(m.Variants)+1 {
			continue
		}
		most := after.Target(nil, m).Replicas
		capped := most < m.Active().Total()
		if capped && len(targets) > 1 { // which of its variants give way is the planner's choice
			all, sum := m.Name+" in all", 0
			for g, target := range targets { // one that is scaled down loses what it has beyond that
				sum += target
				has[all], had[all], lost[all], evicted[all] = has[all]+has[g], had[all]+min(had[g], target), lost[all]+lost[g], evicted[all]+evicted[g]
			}
			targets = map[string]int{all: sum}
		}
		if least, ok := w.leastServing(before, after, m); ok {
			all := m.Name + " in all, which rolls in place,"
			for g, target := range targets { // one that is scaled down loses what it has beyond that
				has[all], had[all], lost[all], evicted[all] = has[all]+has[g], had[all]+min(had[g], target), lost[all]+lost[g], evicted[all]+evicted[g]
			}
			targets = map[string]int{all: least}
		}
		for g, target := range targets {
			if m.Stopped {
				target = 0
			}
			if capped {
				target = min(target, most)
			}
			w.holds(has[g] >= min(target, had[g]-lost[g])-evicted[g], "capacity of %s is %d, and was %d", g, has[g], had[g])
		}
	}
}

// leastServing returns how many replicas of a model a rollout leaves serving, and false if that is
// its whole number.
func (w *world) leastServing(before, after *state.View, m *state.Model) (int, bool) {
	target := m.Target(after.Limits(nil)(m.Name)).Replicas
	old := before.Model(nil, m.Name)
	rolls := len(m.Rollouts) > 0 || old != nil && len(old.Rollouts) > 0 || slices.ContainsFunc(before.Replicas(nil), func(r *state.Replica) bool {
		v := m.Variant(r.Name.Variant)
		return r.Name.Model == m.Name && r.Status != state.StatusCold && (v == nil || before.VariantOf(nil, r).Hash != v.Hash)
	})
	least := m.MinAvailable(target)
	return least, rolls && least < target
}

// enabled looks that each eviction has a purpose: with it, and all else that is on its
// way, the model has a place.
func (w *world) enabled(before, after *state.View, o planner.Observation, p *state.Plan) {
	for _, mv := range p.Move {
		r := before.Replica(nil, mv.Replica)
		if mv.MakesRoomFor == nil || *mv.MakesRoomFor == "" || r.Tier() == state.Warm || r.MakesRoomFor == *mv.MakesRoomFor {
			continue
		}
		by := after.Model(nil, *mv.MakesRoomFor)
		w.holds(by != nil && by.Name != r.Name.Model, "%s is evicted for itself", mv.Replica)
		w.holds(!after.IsDedicated(nil, after.Model(nil, r.Name.Model)), "%s is dedicated and evicted", mv.Replica)
		w.holds(before.Model(nil, r.Name.Model).Priority <= by.Priority, "%s is evicted by a lower priority", mv.Replica)
		w.holds(!before.Limits(nil)(r.Name.Model).ScalingDisabled, "%s is evicted although scaling is disabled", mv.Replica)
		old := r.Status == state.StatusFailed || after.IsDedicated(nil, by) || !w.now.Before(r.Since.Add(w.conf.MinAge))
		w.holds(old, "%s is evicted and has served for %s", mv.Replica, w.now.Sub(r.Since))
		for _, other := range p.Move {
			w.holds(other.MakesRoomFor == nil || *other.MakesRoomFor == "" || before.Replica(nil, other.Replica).Name.Model != by.Name || before.Replica(nil, other.Replica).Tier() == state.Warm,
				"%s, which evicts, is evicted in the same plan", by.Name)
		}
		w.holds(slices.ContainsFunc(by.Variants, func(v state.Variant) bool {
			ask := w.usedNow(after, by, v)
			ask.Future = true
			for _, own := range after.ReplicasOf(nil, by.Name) {
				if own.Status == (state.StatusWarm) && after.VariantOf(nil, own).Hash == ask.Variant.Hash {
					ask.Warm = append(ask.Warm, placement.Warm{
						Tenant: own.Name.String(), Placement: own.Placement, Weights: state.WeightsOf(by.Name, own.Version, v.Name),
					})
				}
			}
			_, no := w.fleetOf(after, o.Jobs).Place(ask)
			return no == nil
		}), "%s is evicted for %s, which has no place then either", mv.Replica, by.Name)
	}
}

// targetsOf returns how many replicas there should be in each group of a model, where no
// ceiling keeps it from having them.
func targetsOf(v *state.View, m *state.Model) map[string]int {
	desired := m.Active()
	if more := v.Target(nil, m).Replicas - desired.Total(); more > 0 {
		floor := *m
		floor.Displaced = m.Recall(more, "", state.UntilAsked, state.UntilRoom)
		desired = floor.Active()
		desired = m.With(desired, v.Target(nil, m).Replicas-desired.Total(), "")
	}
	shared, _ := desired.Of("")
	targets := map[string]int{m.Name: shared}
	for _, v := range m.Variants {
		if n, own := desired.Of(v.Name); own {
			targets[m.Name+":"+v.Name] = n
		}
	}
	return targets
}

// group is what a replica counts for: its variant, where that has a number of its own.
func group(v *state.View, r *state.Replica) string {
	if _, own := v.Model(nil, r.Name.Model).Desired.Of(r.Name.Variant); own {
		return r.Name.Model + ":" + r.Name.Variant
	}
	return r.Name.Model
}

func capacity(v *state.View) map[string]int {
	out := map[string]int{}
	for _, r := range v.Replicas(nil) {
		if r.Status == state.StatusServing {
			out[group(v, r)]++
		}
	}
	return out
}
