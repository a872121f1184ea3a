package planner

import (
	"fmt"
	"slices"
	"strings"

	"remuda/controller/state"
)

// A replica leaves its place if its node is being emptied, and also if a GPU on which it has
// a seat is out of use: cordoned, unhealthy, or not offered by its node any more.
//
//   - A running replica is replaced as in a rollout: another one is placed where there is room,
//     without evicting anything, and takes over before this one is drained. The model's surge, at
//     least one, is replaced at a time, so that many GPUs that go out of use together do not move
//     a whole model at once. A replica that fits nowhere else stays, unless it is outdated and makes
//     way for its successor.
//   - A replica of which nothing runs on an unhealthy or missing GPU, and one that has failed, is
//     ended at once. It cannot start again where it is. Like any missing replica, it is placed anew.
//   - A replica that is WARM, or on its way to WARM, goes COLD if the GPU is cordoned: a process
//     that has the GPU open keeps an operator from resetting it. An unhealthy GPU may recover in a
//     minute; until then the replica is not woken there.
//
// A COLD replica holds no GPU. A failover pair is one replica, and moves as one.

// leavesNode reports whether the member's node is being emptied.
func (r *member) leavesNode() bool { return r.node != nil && r.node.Draining && !r.node.WrittenOff }

// outOfUse returns which GPU of the member is out of use and why, empty if none is. An
// external pool that is disabled is left as it is.
func (b *planBuilder) outOfUse(r *member) string {
	why := r.next.OutOfUse(r.node)
	if pool := b.poolOf(r); why != "" && pool != "" {
		if p, known := b.pools[pool]; !known || p.Management == state.ManagementDisabled {
			return ""
		}
	}
	return why
}

// mustMove reports whether the member has to leave its place.
func (b *planBuilder) mustMove(r *member) bool { return r.leavesNode() || b.outOfUse(r) != "" }

// whyMove returns why the member has to leave its place, empty if it does not.
func (b *planBuilder) whyMove(r *member) string {
	if r.leavesNode() {
		return fmt.Sprintf("node %s is draining", nodeName(r))
	}
	return b.outOfUse(r)
}

// cordoned reports whether the member has a seat on a cordoned GPU.
func (r *member) cordoned() bool {
	return r.seated(func(g *state.GPU) bool { return g != nil && g.Cordoned })
}

// faulty reports whether the member has a seat on a GPU that is unhealthy or not offered any
// more: nothing can start there.
func (r *member) faulty() bool {
	return r.seated(func(g *state.GPU) bool { return g == nil || !g.Healthy })
}

// seated reports whether the member has a seat on a GPU that is so; nil stands for one that
// its node does not offer.
func (r *member) seated(so func(*state.GPU) bool) bool {
	return slices.ContainsFunc(r.next.Placement.Seats, func(seat string) bool {
		gpu, _, _ := strings.Cut(seat, "#")
		return so(r.node.GPU(gpu))
	})
}

// abandon ends a member of which nothing runs and which cannot start again where it is, and reports
// whether it did. On a GPU that is only cordoned Nomad may still restart the task, unless the
// replica has failed.
func (b *planBuilder) abandon(m *model, r *member) bool {
	failed := r.next.Status == state.StatusFailed
	if !r.counts() || !r.jobKnown || b.serves(r) || !failed && (!r.faulty() || r.allocRuns()) {
		return false
	}
	why := b.outOfUse(r)
	if why == "" {
		return false
	}
	b.record(KindMoveAway, m.Name, r.name, fmt.Sprintf("%s: replica given up while %s", why, r.next.Status), inputs{"node": nodeName(r), "status": string(r.next.Status)})
	b.end(r)
	return true
}
