package balance

import (
	"slices"
	"strings"
	"time"
)

// SetShares limits how many requests this table sends to each replica at a time, by the replica's name;
// other gateways send to the same ones. A replica without an entry gets none, or while the controller is away as
// many as it has slots. Without a call to SetShares every replica gets as many as it has slots.
func (t *Table) SetShares(shares map[string]int) {
	t.shares = shares
	t.share()
}

// Suspend has the table send nothing to replicas for which SetShares is in force, or ends that. It has no effect
// while the controller is away.
func (t *Table) Suspend(on bool) {
	t.suspended = on
	t.share()
}

// share applies the shares to the replicas.
func (t *Table) share() {
	for name, r := range t.tops {
		r.share = t.shareOf(name)
	}
}

// Unshared reports whether there is a replica with engines that gets nothing for lack of a share.
func (t *Table) Unshared() bool {
	for _, r := range t.tops {
		if r.share == 0 && r.engines > 0 {
			return true
		}
	}
	return false
}

func (t *Table) shareOf(replica string) int {
	n, ok := t.shares[replica]
	switch {
	case t.shares == nil || !ok && t.orders.Away:
		return -1
	case t.suspended && !t.orders.Away:
		return 0
	}
	return n
}

// Capacity is what a replica can take.
type Capacity struct {
	Replica, Model string
	// Slots are those of its engine, InFlight how many requests are there.
	Slots, InFlight int
	// Share is how many may be there, at most Slots.
	Share int
}

// Capacities returns those of the replicas that serve, sorted by name.
func (t *Table) Capacities(now time.Time) []Capacity {
	seen := map[string]int{}
	var out []Capacity
	for name, m := range t.models {
		for _, e := range m.engines {
			if !t.usable(e, now) {
				continue
			}
			i, ok := seen[e.Replica]
			if !ok {
				i = len(out)
				seen[e.Replica] = i
				out = append(out, Capacity{Replica: e.Replica, Model: name, InFlight: e.top.inFlight})
			}
			c := &out[i]
			if c.Slots = max(c.Slots, e.Slots); e.top.share >= 0 {
				c.Share = min(e.top.share, c.Slots)
			} else {
				c.Share = c.Slots
			}
		}
	}
	slices.SortFunc(out, func(a, b Capacity) int { return strings.Compare(a.Replica, b.Replica) })
	return out
}
