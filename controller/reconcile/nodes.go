package reconcile

import (
	"reflect"
	"time"

	"remuda/controller/state"
)

// nodeChanges are the changes of nodes to write to the state.
type nodeChanges struct {
	// write are the nodes that differ from their rows.
	write []state.Node
	// forget are the IDs of nodes that Nomad no longer has and that hold no replica.
	forget []string
	// notes are log messages for changes that matter to operators, by node ID.
	notes map[string]string
	// again is when the next lost node will be written off.
	again time.Time
}

// compareNodes compares the listed nodes with their rows in the state. A node that has been lost
// for the whole grace without a break is written off. A node that Nomad no longer has is lost,
// too; its row is deleted once it is written off and holds no replica.
//
// Lost has when this server first saw each node lost, by node ID; compareNodes maintains it. It
// does not use times of another server's clock, so the grace starts again under a new leader.
//
// The nodes of an unreachable Nomad are unchanged. So are those of a pool that this server's
// config does not have, as long as they hold a replica. A node that could not be read is
// unchanged, and replicas may still be placed on it: the failed read tells nothing about the
// node. If it was lost, its grace starts again.
func compareNodes(rows []*state.Node, list listing, now time.Time, grace time.Duration, lost map[string]time.Time, used func(id string) bool) nodeChanges {
	out := nodeChanges{notes: map[string]string{}}
	var next schedule
	had := make(map[string]*state.Node, len(rows))
	for _, row := range rows {
		had[row.ID] = row
	}
	consider := func(n state.Node, row *state.Node, isLost bool) {
		n.DownSince, n.WrittenOff = time.Time{}, false
		if !isLost {
			delete(lost, n.ID)
		} else {
			if lost[n.ID].IsZero() {
				lost[n.ID] = now
			}
			n.Ready, n.DownSince = false, now.UTC()
			if row != nil && !row.DownSince.IsZero() {
				n.DownSince, n.WrittenOff = row.DownSince, row.WrittenOff
			}
			if deadline := lost[n.ID].Add(grace); now.Before(deadline) && !n.WrittenOff {
				next.add(deadline)
			} else {
				n.WrittenOff = true
			}
		}
		if row == nil || !sameNode(n, *row) {
			out.write = append(out.write, n)
			if what := noteOf(n, row); what != "" {
				out.notes[n.ID] = what
			}
		}
	}
	listed := make(map[string]bool, len(list.nodes))
	for _, n := range list.nodes {
		listed[n.ID] = true
		consider(n, had[n.ID], !n.DownSince.IsZero())
	}
	for _, row := range rows {
		switch {
		case listed[row.ID]:
		case list.unread[row.ID]:
			delete(lost, row.ID)
		case !list.configured[row.CapacityPool]:
			if !used(row.ID) {
				out.forget = append(out.forget, row.ID)
			}
		case !list.known[row.CapacityPool]:
		case row.WrittenOff && !used(row.ID):
			out.forget = append(out.forget, row.ID)
		default:
			consider(*row, row, true)
		}
	}
	out.again = next.at
	return out
}

// sameNode reports whether n equals its row. It ignores the fields that only the state sets.
func sameNode(n, row state.Node) bool {
	n = n.Keeping(&row)
	n.CreateIndex, n.ModifyIndex = row.CreateIndex, row.ModifyIndex
	if n.DownSince.Equal(row.DownSince) {
		n.DownSince = row.DownSince
	}
	if len(n.GPUs) != len(row.GPUs) {
		return false
	}
	for i := range n.GPUs { // they are a copy
		g := &n.GPUs[i]
		if was := row.GPU(g.UUID); was != nil && len(g.Seats) == 0 && len(was.Seats) == 0 {
			g.Seats = was.Seats
		}
	}
	if len(n.GPUs) == 0 {
		n.GPUs = row.GPUs
	}
	return reflect.DeepEqual(n, row)
}

func noteOf(n state.Node, row *state.Node) string {
	switch {
	case row == nil:
		return "node added"
	case n.CapacityPool != row.CapacityPool:
		return "node moved to another pool"
	case n.WrittenOff && !row.WrittenOff:
		return "node gone: down for longer than the node grace"
	case !n.DownSince.IsZero() && row.DownSince.IsZero():
		return "node down: its replicas stay until the node grace is over"
	case n.DownSince.IsZero() && !row.DownSince.IsZero():
		return "node up again"
	case n.Draining && !row.Draining:
		return "node draining"
	}
	return ""
}
