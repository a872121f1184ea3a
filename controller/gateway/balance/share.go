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

// Lend has a share of 0 count as 1, or ends that. Capacities returns the share without it.
func (t *Table) Lend(on bool) {
	t.lends = on
	t.share()
}

// share applies the shares to the replicas.
func (t *Table) share() {
	for name, r := range t.tops {
		r.share = t.limitOf(name)
	}
}

// Unshared reports whether there is a replica with engines that gets nothing because SetShares had no entry for it.
func (t *Table) Unshared() bool {
	if t.shares == nil || t.orders.Away {
		return false
	}
	for name, r := range t.tops {
		if _, ok := t.shares[name]; !ok && r.engines > 0 {
			return true
		}
	}
	return false
}

// shareOf returns the share of a replica, -1 for all of its slots.
func (t *Table) shareOf(replica string) int {
	n, ok := t.shares[replica]
	if t.shares == nil || !ok && t.orders.Away {
		return -1
	}
	return n
}

// limitOf returns how many requests the table may have at a replica, -1 for as many as it has slots.
func (t *Table) limitOf(replica string) int {
	n := t.shareOf(replica)
	if _, ok := t.shares[replica]; ok && n == 0 && t.lends {
		return 1
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
			c.Slots = max(c.Slots, e.Slots)
			if c.Share = t.shareOf(e.Replica); c.Share < 0 || c.Share > c.Slots {
				c.Share = c.Slots
			}
		}
	}
	slices.SortFunc(out, func(a, b Capacity) int { return strings.Compare(a.Replica, b.Replica) })
	return out
}
