package balance

import (
	"slices"
	"strings"
	"time"
)

// Flight is a request that is at an engine.
type Flight struct {
	ID, Key string
	Started time.Time
}

// ReplicaLoad is what is in flight at the engines of one replica.
type ReplicaLoad struct {
	Replica  string
	InFlight int
	// Oldest is when the oldest request in flight began, zero where there is none;
	// Last when the newest of all did.
	Oldest, Last time.Time
	// Flights are some of those in flight, oldest first.
	Flights []Flight
	Outcomes
}

// flight is a link in the list of a replica's requests, in the order in which they
// began.
type flight struct {
	Flight
	prev, next *flight
	// cost is in tokens.
	cost int64
	// opening is the engine's breaker.openings when the request was sent.
	opening uint32
	// answered and failed are what the breaker knows of how it goes. faulted: the engine
	// failed it, be it news for the breaker or not.
	answered, failed, faulted bool
}

// flights is such a list.
type flights struct{ first, last *flight }

func (l *flights) add(f *flight) {
	if f.prev = l.last; f.prev == nil {
		l.first = f
	} else {
		f.prev.next = f
	}
	l.last = f
}

func (l *flights) remove(f *flight) {
	if f.prev == nil {
		l.first = f.next
	} else {
		f.prev.next = f.next
	}
	if f.next == nil {
		l.last = f.prev
	} else {
		f.next.prev = f.prev
	}
}

// Flights returns the load of every replica that ever had a request, sorted by name,
// and the index of the orders that Pick follows. No replica has more than each of its
// flights in it, and all together no more than total; each with requests has one at
// least.
func (t *Table) Flights(each, total int) (index uint64, out []ReplicaLoad) {
	busy := 0
	for _, r := range t.tops {
		if r.inFlight > 0 {
			busy++
		}
	}
	if busy > 0 {
		each = max(1, min(each, total/busy))
	}
	for name, r := range t.tops {
		if r.lastPick.IsZero() {
			continue
		}
		l := ReplicaLoad{Replica: name, InFlight: r.inFlight, Last: r.lastPick, Outcomes: r.outcomes}
		for f := r.flights.first; f != nil && len(l.Flights) < each; f = f.next {
			l.Flights = append(l.Flights, f.Flight)
		}
		if r.flights.first != nil {
			l.Oldest = r.flights.first.Started
		}
		out = append(out, l)
	}
	slices.SortFunc(out, func(a, b ReplicaLoad) int { return strings.Compare(a.Replica, b.Replica) })
	return t.orders.Index, out
}
