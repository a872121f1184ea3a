package balance

import (
	"slices"
	"strings"
	"time"
)

// SetShares limits how many requests this table sends to each replica at a time, by the replica's name;
// other gateways send to the same ones. A replica without an entry gets as many as it has slots if
// whole is set, and none if not. Without a call to SetShares every replica gets as many as it has slots.
func (t *Table) SetShares(shares map[string]int, whole bool) {
	t.shares, t.whole = shares, whole
	for name, r := range t.tops {
		r.share = t.shareOf(name)
	}
}

// Unshared reports whether there is a replica that SetShares has said nothing of, and that gets
// nothing for that.
func (t *Table) Unshared() bool {
	if t.shares == nil || t.whole {
		return false
	}
	for name, r := range t.tops {
		if _, ok := t.shares[name]; !ok && r.engines > 0 {
			return true
		}
	}
	return false
}

func (t *Table) shareOf(replica string) int {
	n, ok := t.shares[replica]
	switch {
	case ok:
		return n
	case t.shares == nil || t.whole:
		return -1
	}
	return 0
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
