package state

import (
	"maps"
	"slices"

	"github.com/hashicorp/go-memdb"
)

// FreeSeats returns the seats of g that nobody holds, in the order of the node's.
func (u *NodeUsage) FreeSeats(g *GPU) []string {
	var free []string
	for _, s := range g.Seats {
		if _, held := u.Seats[s]; !held {
			free = append(free, s)
		}
	}
	return free
}

// RestingOf returns the replicas of a model that are WARM or on their way there.
func (v *View) RestingOf(ws memdb.WatchSet, model string) []*Replica {
	return slices.DeleteFunc(v.ReplicasOf(ws, model), func(r *Replica) bool { return !r.Resting() })
}

// Ledger returns what the replicas hold of every node that has any, by its ID.
func (v *View) Ledger(ws memdb.WatchSet) map[string]*NodeUsage {
	ledger := map[string]*NodeUsage{}
	for _, r := range v.Replicas(ws) {
		u := ledger[r.Placement.Node]
		if u == nil {
			u = NewUsage(r.Placement.Node)
			ledger[r.Placement.Node] = u
		}
		h := r.Holds()
		u.Add(r.Name.String(), &h)
	}
	return ledger
}

// Types returns the types of all commands.
func Types() []Type { return slices.Sorted(maps.Keys(commands)) }

// Tables returns all tables, in the order of snapshots.
func Tables() []Table {
	var names []Table
	for _, t := range tables {
		names = append(names, t.name)
	}
	return names
}
