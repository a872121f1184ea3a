package planner

import (
	"fmt"
	"maps"
	"strconv"
	"strings"

	"remuda/controller/placement"
	"remuda/controller/state"
)

// standIn wakes WARM replicas where members that have served do not serve now: an engine has died and
// loads again, or a node is lost. Nothing is evicted for them. What they stand in for is surplus once they
// serve; if the model keeps WARM replicas, it goes on, and is one of these when it has loaded.
func (b *planBuilder) standIn(g *group) {
	absent := g.count(b.absent)
	for len(g.members)+len(g.canaries)+len(g.awaited)-absent < g.target && !b.full() && b.hasWarm(g) && b.open("") {
		o, wakes := b.best(g, b.free)
		if !wakes {
			return
		}
		b.record(KindStandIn, g.Name, o.c.Wake, fmt.Sprintf("%d of %d replicas serve: it stands in", g.count(b.serves), g.target),
			inputs{"serving": strconv.Itoa(g.count(b.serves)), "target": strconv.Itoa(g.target)})
		g.members = append(g.members, b.taken(g, o).replica)
	}
}

// absent reports whether a member has served, is expected to serve again where it is, and has not served
// for StandInAfter. Consul shows the engine of a replica that woke a moment after the state says that it serves.
func (b *planBuilder) absent(r *member) bool {
	if !r.Served || b.serves(r) || r.next.Status != state.StatusServing && r.next.Status != state.StatusStarting {
		return false
	}
	since, seen := b.obs.PassedAt[r.name]
	if !seen {
		since = b.obs.EnginesSince
	}
	if r.next.Status == state.StatusServing && r.Since.After(since) {
		since = r.Since
	}
	return b.due(since.Add(b.conf.StandInAfter))
}

// beside is how many members that do not serve the group may have beyond its target: those that will be
// kept WARM once they have loaded, and absent ones until what stands in for them serves.
func (b *planBuilder) beside(g *group) int {
	absent := g.count(b.absent)
	loading := g.count(func(r *member) bool { return !b.serves(r) && r.next.Status != state.StatusFailed })
	return max(min(b.short(g.model), loading), min(absent, loading-absent))
}

// short returns how many WARM replicas the model should have and has not.
func (b *planBuilder) short(m *model) int {
	if m.KeepWarm == 0 || m.frozen || m.Stopped {
		return 0
	}
	return max(m.KeepWarm-m.resting(), 0)
}

// resting is how many replicas of the model are WARM, or on their way there.
func (m *model) resting() int {
	n := 0
	for _, r := range m.members {
		n += btoi(r.resting())
	}
	return n
}

// reserves starts the replicas that models are to keep WARM and have not, where there is room, on other
// nodes than those of the model's other replicas if possible, or else on other GPUs. They are surplus as soon as they serve, and
// go WARM then.
func (b *planBuilder) reserves() {
	for m := range b.moving(reserving) {
		if b.mayReserve(m) {
			b.reserve(m)
		}
	}
}

// mayReserve reports whether a model is short of WARM replicas and nothing else is to be done for it. The
// last time must be ThrashWindow ago: what ended one that slept may end the next one, too.
func (b *planBuilder) mayReserve(m *model) bool {
	if b.short(m) == 0 || m.rolledBack || m.scaled || !m.Displaced.IsZero() || b.evictedFrom[m.Name] || !b.open("") {
		return false
	}
	for _, r := range m.Rollouts {
		if r.Ongoing() {
			return false
		}
	}
	for _, g := range m.groups() {
		if len(g.members) != g.target || g.count(b.serves) != g.target || b.allowance(g) != 0 {
			return false
		}
	}
	for _, d := range b.decisionsOf(m.Name) {
		if d.Kind == KindReserve && !b.due(d.Time.Add(b.conf.ThrashWindow)) {
			return false
		}
	}
	return true
}

// reserve starts what the model is short of.
func (b *planBuilder) reserve(m *model) {
	b.markDirty() // room comes from others
	used := map[string]bool{}
	for _, r := range m.members {
		if r.counts() || r.resting() {
			used[r.Placement.Node] = true
		}
	}
	for short := b.short(m); short > 0 && !b.full(); short-- {
		r := b.placeReserve(m, used)
		if r == nil {
			return
		}
		used[r.Placement.Node] = true
		b.record(KindReserve, m.Name, r.name, fmt.Sprintf("loads to be kept WARM: %d of %d are", m.KeepWarm-short, m.KeepWarm),
			inputs{"keep_warm": strconv.Itoa(m.KeepWarm), "node": nodeName(r)})
	}
}

// placeReserve places a replica that can sleep. It tries other nodes than the used ones first, then other GPUs
// than those of the model's replicas, then any place. It returns nil if there is no room.
func (b *planBuilder) placeReserve(m *model, used map[string]bool) *member {
	if v, c := b.roomToRest(m, used); v != nil {
		return b.take(m, v, *c, nil)
	}
	// The GPUs of the others count as full for once.
	var full []string
	for _, r := range m.members {
		if !r.counts() && !r.resting() || r.node == nil {
			continue
		}
		t := placement.Tenant{Name: "beside " + r.name, Node: r.node.ID, Model: m.Name, Holds: state.Holding{Memory: map[string]int64{}}}
		for _, seat := range r.next.Placement.Seats {
			gpu, _, _ := strings.Cut(seat, "#")
			if g := r.node.GPU(gpu); g != nil {
				t.Holds.Memory[gpu] = g.Memory
			}
		}
		b.ledger().Put(t)
		full = append(full, t.Name)
	}
	v, c := b.roomToRest(m, nil)
	for _, name := range full {
		b.ledger().Drop(name)
	}
	if v == nil {
		v, c = b.roomToRest(m, nil)
	}
	if v == nil {
		return nil
	}
	return b.take(m, v, *c, nil)
}

// roomToRest finds a place for a replica that can sleep, not on those nodes; nil where there is none.
func (b *planBuilder) roomToRest(m *model, exclude map[string]bool) (*state.Variant, *placement.Choice) {
	for _, g := range m.groups() {
		for _, v := range g.definitions() {
			if m.Sleeps[v.Hash].None {
				continue
			}
			req := b.request(m, v, ask{exclude: b.tooFull(v, exclude)})
			req.Warm = nil // they are kept
			if c, no := b.ledger().Place(req); no == nil {
				return v, &c
			}
		}
	}
	return nil, nil
}

// tooFull returns those nodes and the ones whose host memory has no room for another WARM replica.
func (b *planBuilder) tooFull(v *state.Variant, nodes map[string]bool) map[string]bool {
	out := maps.Clone(nodes)
	for _, n := range b.nodes {
		if b.ledger().Usage(n.ID).HostMemory+v.HostMemory > int64(b.conf.WarmShare*float64(n.HostMemory)) {
			if out == nil {
				out = map[string]bool{}
			}
			out[n.ID] = true
		}
	}
	return out
}
