package reconcile

import (
	"reflect"
	"time"

	"remuda/controller/state"
)

// nodeChanges are what the state has to be told of the nodes.
type nodeChanges struct {
	// write are the nodes that differ from their rows.
	write []state.Node
	// forget are the IDs of those that Nomad has forgotten and that hold nothing.
	forget []string
	// notes say what happened to which node, by its ID, where that matters to people.
	notes map[string]string
	// again is when a node that is lost will be written off.
	again time.Time
}

// compareNodes finds what has changed. A node that this server has seen lost for the grace
// without a break is written off. Lost has since when it has, by node ID, and is kept by
// compareNodes: a time from another server's clock decides nothing, so that the grace
// begins anew under a new leader. One that Nomad has forgotten is lost as
// well; once it is written off and nothing is on it any more, so is its row.
//
// A Nomad that cannot be asked says nothing: its nodes stay as they are. So do those of
// a pool that this server's config does not have, as long as something is on them. A node that
// could not be read stays as it is as well, so that replicas are placed there if they were
// before: that read has failed on our side, and says nothing of the node. One that was lost
// gets the whole grace again once it can be read.
func compareNodes(rows []*state.Node, seen listing, now time.Time, grace time.Duration, lost map[string]time.Time, used func(id string) bool) nodeChanges {
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
	listed := make(map[string]bool, len(seen.nodes))
	for _, n := range seen.nodes {
		listed[n.ID] = true
		consider(n, had[n.ID], !n.DownSince.IsZero())
	}
	for _, row := range rows {
		switch {
		case listed[row.ID]:
		case seen.unread[row.ID]:
			delete(lost, row.ID)
		case !seen.configured[row.CapacityPool]:
			if !used(row.ID) {
				out.forget = append(out.forget, row.ID)
			}
		case !seen.known[row.CapacityPool]:
		case row.WrittenOff && !used(row.ID):
			out.forget = append(out.forget, row.ID)
		default:
			consider(*row, row, true)
		}
	}
	out.again = next.at
	return out
}

// sameNode tells whether n would change nothing in its row. What is the state's own
// is left out.
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
