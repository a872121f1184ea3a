package planner

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"remuda/controller/placement"
	"remuda/controller/state"
)

// A rollout in place takes an outdated replica out before its successor serves. So that nothing is missing
// for as long as a load takes, the successor loads beside it first, on the same GPUs, and goes WARM without
// ever having served. Then the old one makes way, and the successor wakes in its place. One that makes way for the
// canary goes WARM where there is room for that: it is woken if the canary fails, and ends as outdated otherwise.
//
// A replica that loads to become WARM is charged what that takes, and the old one keeps its memory, so
// both of its engines may serve as ever. A successor is a member that rests and has never served. All of
// it is in the rows of the state: a new leader goes on where the last one was.
//
// Without seats or memory for a load beside it, or if the engine has no sleep, the old replica makes way at once.

// successor reports whether the member loads or sleeps to take the place of an outdated one.
func (r *member) successor() bool { return r.resting() && !r.next.Served }

// succeeds reports whether the member is a successor for which there is a place: one of another definition that
// goes, or a missing one. If not, it may be kept WARM as any other replica.
func (m *model) succeeds(r *member) bool {
	if !r.successor() {
		return false
	}
	n := 0
	for _, o := range m.members {
		if !o.counts() {
			continue
		}
		if n++; o.Name.Variant != r.Name.Variant || m.hashOf(o) != m.hashOf(r) {
			return true
		}
	}
	return n < m.target.Replicas
}

// loadMemory is what a replica of a definition takes of each GPU while it loads to become WARM: its
// weights, where other memory is taken only by the engine that serves, and what it keeps asleep.
func loadMemory(v *state.Variant, pair bool, asleep int64) int64 {
	if !pair || v.SharedMemory == 0 {
		return v.Memory
	}
	return min(v.SharedMemory+asleep, v.Memory)
}

// sameGPUs reports whether two members have seats on the same GPUs.
func sameGPUs(a, b *member) bool {
	return a.Placement.Node == b.Placement.Node && slices.Equal(seatedGPUs(&a.Placement), seatedGPUs(&b.Placement))
}

// seatedGPUs returns the GPUs on which a placement has seats, sorted.
func seatedGPUs(p *state.Placement) []string {
	var out []string
	for _, seat := range p.Seats {
		gpu, _, _ := strings.Cut(seat, "#")
		out = append(out, gpu)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// waitsForSuccessor reports whether a member that is to make way for a replica of a definition stays for now,
// because its successor, which may be the canary, loads beside it. It places the successor if there is room for the load.
func (b *planBuilder) waitsForSuccessor(g *group, v *state.Variant, r *member, canary bool) bool {
	if r.gone() || !r.next.Served || r.next.Status == state.StatusFailed || g.Sleeps[v.Hash].None || g.Sleeps[g.hashOf(r)].None {
		return false // there is nothing to bridge, or no way to do it
	}
	if s := b.successorOf(g, v, r); s != nil {
		switch {
		case s.next.Status == state.StatusWarm:
			return s.changed
		case s.job != nil && s.job.Unplaceable != "" && b.due(s.Since.Add(b.conf.SettleTime)):
			return false // Nomad has room for only one of them
		}
		return true
	}
	waiting := 0
	for _, s := range g.model.members {
		if s.successor() && s.Name.Variant == v.Name && g.hashOf(s) == v.Hash {
			if !s.changed && b.superseded(g.model, s) {
				b.record(KindRolling, g.Name, s.name, "its place was taken: stopped", inputs{"node": nodeName(s)})
				b.end(s)
			}
			waiting++
		}
		if !s.next.Served && s.next.Ending() && sameGPUs(s, r) {
			return true // another successor frees the place
		}
	}
	if waiting >= max(g.all-g.MinAvailable(g.all), 1) {
		return true // no more at a time than may be missing
	}
	c, fits := b.placeBeside(g.model, v, r)
	if !fits {
		return false
	}
	kind := KindRolling
	if canary {
		kind = KindCanary
	}
	s := b.place(g.model, v, c, func(p *state.Place) { p.Canary = canary })
	b.record(kind, g.Name, s.name, fmt.Sprintf("loads on the GPUs of %s, which serves until this one is WARM", r.name),
		inputs{"variant": v.Name, "node": nodeName(r), "beside": r.name, "seats": strings.Join(c.Placement.Seats, ",")})
	return true
}

// makesWay reports whether a member of the model is on its way out of the GPUs of a successor, which Nomad may have
// no room for until then.
func (m *model) makesWay(s *member) bool {
	return s.successor() && slices.ContainsFunc(m.members, func(o *member) bool { return o.Leaving() && sameGPUs(o, s) })
}

// placesFreed notes at successors that start that Nomad may have room for them from now on, where a member
// on their GPUs has ended. Until then they do not fail for want of a place.
func (b *planBuilder) placesFreed(m *model) {
	for _, s := range m.members {
		if s.changed || !s.successor() || s.next.Status != state.StatusStarting {
			continue
		}
		if slices.ContainsFunc(m.members, func(o *member) bool {
			return o.Ending() && (o.removed || o.next.Status == state.StatusCold) && sameGPUs(o, s)
		}) {
			b.happens(s, "", "", func(c *state.Move) { c.RetryAt = new(b.obs.Now) })
		}
	}
}

// superseded reports whether a successor has no place: none of its model's replicas has it, and it is not free.
func (b *planBuilder) superseded(m *model, s *member) bool {
	if slices.ContainsFunc(m.members, func(o *member) bool {
		return o != s && o.next.Tier() == state.Hot && m.hashOf(o) != m.hashOf(s) && sameGPUs(o, s)
	}) {
		return false
	}
	c := takesOver(m, s)
	return !b.ledger().Fits(&c, true)
}

// successorOf returns the successor of a definition that takes the place of a member: one on the same GPUs,
// or one whose place is free, or becomes free, and that no missing replica needs. It returns nil if there is none.
func (b *planBuilder) successorOf(g *group, v *state.Variant, r *member) *member {
	var free *member
	spare := len(g.members) + len(g.canaries) - g.target
	for _, s := range g.model.members {
		if !s.successor() || s.Name.Variant != v.Name || g.hashOf(s) != v.Hash {
			continue
		}
		if c := takesOver(g.model, s); !b.ledger().Fits(&c, true) {
			if sameGPUs(s, r) {
				return s
			}
			continue
		}
		spare++
		if free == nil || sameGPUs(s, r) {
			free = s
		}
	}
	if spare <= 0 {
		return nil
	}
	return free
}

// placeBeside returns the place for a replica of a definition that loads beside a member, on the same GPUs, and reports
// whether it fits: while it loads beside the member, and when it serves without it.
func (b *planBuilder) placeBeside(m *model, v *state.Variant, r *member) (placement.Choice, bool) {
	perGPU := 1
	if m.pairs(v) {
		perGPU = 2
	}
	gpus := seatedGPUs(&r.Placement)
	asleep := min(max(m.SleepMemory(v), r.next.Placement.SleepMemory), v.Memory)
	p := state.Placement{
		Node: r.Placement.Node, Memory: map[string]int64{}, HostMemory: v.HostMemory, SleepMemory: asleep, SharedMemory: v.SharedMemory,
		LoadMemory: loadMemory(v, m.pairs(v), asleep),
	}
	usage := b.ledger().Usage(r.Placement.Node)
	full := usage.HostMemory+v.HostMemory > int64(b.conf.WarmShare*float64(r.node.HostMemory))
	if full || b.poolOf(r) != "" || p.LoadMemory == 0 || len(gpus) != max(v.Reach, v.GPUs) || len(r.next.Placement.Memory) != v.GPUs {
		return placement.Choice{}, false
	}
	for _, uuid := range gpus {
		gpu := r.node.GPU(uuid)
		if gpu == nil || v.GPUModel != "" && gpu.Model != v.GPUModel || gpu.OutOfUse() != "" {
			return placement.Choice{}, false
		}
		if _, uses := r.next.Placement.Memory[uuid]; uses {
			p.Memory[uuid] = v.Memory
		}
		free := slices.DeleteFunc(slices.Clone(gpu.Seats), func(seat string) bool { _, held := usage.Seats[seat]; return held })
		if len(free) < perGPU {
			return placement.Choice{}, false
		}
		p.Seats = append(p.Seats, free[:perGPU]...)
	}
	weights := state.WeightsOf(m.Name, m.versionOf(v), v.Name)
	serves := placement.Choice{Placement: p, Weights: state.NewWeights(weights, &p)}
	loads := placement.Choice{Placement: p}
	loads.Placement.Memory = map[string]int64{}
	for uuid := range p.Memory {
		loads.Placement.Memory[uuid] = p.LoadMemory
	}
	if !b.ledger().Fits(&loads, false) || !b.ledger().Fits(&loads, true) {
		return placement.Choice{}, false
	}
	b.ledger().Drop(r.name)
	fits := b.ledger().Fits(&serves, true)
	b.put(r)
	return serves, fits
}

// sleepsBeside reports whether a member that makes way for a canary goes WARM, so that it is woken if the
// canary fails: a successor of it is WARM, and there is room for it asleep beside the one that serves.
func (b *planBuilder) sleepsBeside(g *group, v *state.Variant, r *member) bool {
	s := b.successorOf(g, v, r)
	if s == nil || s.next.Status != state.StatusWarm || !sameGPUs(s, r) || !b.serves(r) || !b.canSleep(g.model, r) || b.keptLately(r) || b.mustMove(r) {
		return false
	}
	if b.ledger().Usage(r.node.ID).HostMemory+r.next.Placement.HostMemory > int64(b.conf.WarmShare*float64(r.node.HostMemory)) {
		return false
	}
	rests := asleep(r.next)
	b.ledger().Put(placement.Tenant{Name: r.name, Node: r.node.ID, Model: g.Name, Holds: rests})
	c := takesOver(g.model, s)
	fits := b.ledger().Fits(&c, true)
	b.put(r)
	return fits
}

// takesOver returns where a successor serves.
func takesOver(m *model, r *member) placement.Choice {
	return placement.Choice{
		Placement: r.next.Placement, Wake: r.name,
		Weights: state.NewWeights(state.WeightsOf(m.Name, r.Version, r.Name.Variant), &r.next.Placement),
	}
}

// keepWakes keeps the memory with which successors wake whose place is free, or becomes free, and returns
// how many replicas are missing beside them.
func (b *planBuilder) keepWakes(m *model, missing int) int {
	for _, r := range m.members {
		if missing <= 0 || !r.successor() || r.gone() {
			continue
		}
		if c := takesOver(m, r); b.ledger().Fits(&c, true) {
			b.ledger().Reserve(c, "", m.Name)
			b.keptWakes[m.Name] = append(b.keptWakes[m.Name], r)
			missing--
		}
	}
	return missing
}

// awaitsSuccessor reports whether a successor of a definition waits for its place, which becomes free, or still
// loads although its place is free. It keeps that place.
func (b *planBuilder) awaitsSuccessor(m *model, v *state.Variant) bool {
	for _, r := range m.members {
		if !r.successor() || b.awaited[r.name] || r.Name.Variant != v.Name || m.hashOf(r) != v.Hash {
			continue
		}
		c := takesOver(m, r)
		if !b.ledger().Fits(&c, true) || r.next.Status == state.StatusWarm && !r.changed && b.ledger().Fits(&c, false) {
			continue
		}
		b.awaited[r.name] = true
		b.ledger().Reserve(c, "", m.Name)
		return true
	}
	return false
}

// retrySuccessor loads a successor again that has failed, unless that rolls its definition back. Where it cannot be
// started again it ends, and another one may load.
func (b *planBuilder) retrySuccessor(m *model, r *member) {
	if m.Rollouts[r.Name.Variant].Ongoing() && m.isNew(r) && !b.mustMove(r) || !b.due(r.RetryAt) || !b.jobOver(r) {
		return
	}
	in := inputs{"failures": strconv.Itoa(r.Failures)}
	if !usable(r) {
		b.record(KindRetry, m.Name, r.name, fmt.Sprintf("node %s cannot load it again: stopped", nodeName(r)), in)
		b.happens(r, state.EventStop, state.GoalGone, nil)
		return
	}
	b.record(KindRetry, m.Name, r.name, fmt.Sprintf("loading again on node %s", nodeName(r)), in)
	b.happens(r, state.EventRetry, "", func(c *state.Move) {
		if r.job != nil {
			c.JobIndex = &r.job.Index // that one is over; see jobOver
		}
	})
}

// failedSuccessor returns a successor that could not be started, nil if there is none.
func (b *planBuilder) failedSuccessor(m *model, v *state.Variant) *member {
	for _, r := range m.members {
		if r.successor() && r.next.Status == state.StatusFailed && !r.changed && r.Name.Variant == v.Name && m.isNew(r) && !b.mustMove(r) {
			return r
		}
	}
	return nil
}
