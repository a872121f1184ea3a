package gatewayreport

import (
	"errors"
	"maps"
	"slices"
	"time"

	"remuda/controller/api"
)

const (
	// OrderTTL is how long an order is repeated at most. A gateway reports every two
	// seconds, and one that is not heard for that long is forgotten.
	OrderTTL = 30 * time.Second
	// MaxKills is how many requests there may be an order to kill for, at most.
	MaxKills = 1000
	// surely is in how many answers a gateway was given an order at least before what it
	// reports counts as carried out: one answer may be lost.
	surely = 2
)

// Errors of Kill.
var (
	// ErrTooManyOrders means that MaxKills orders are on their way.
	ErrTooManyOrders = errors.New("too many pending orders")
	// ErrNoGateway means that no gateway lives to carry the order out.
	ErrNoGateway = errors.New("no gateway reports to the controller")
)

// order is one order. It is in memory only: lost with the leader, which whoever gave it
// sees from what does not happen.
type order struct {
	until time.Time
	// told is in how many answers each gateway was given it, and done which ones have
	// carried it out.
	told map[string]int
	done map[string]bool
}

func newOrder(until time.Time) *order {
	return &order{until: until, told: map[string]int{}, done: map[string]bool{}}
}

// Kill orders all gateways to end the requests with this ID. Gateways name only some of
// their requests, so those that do not name this one get the order, too. A gateway gets it
// at least twice, until it reports no such request or OrderTTL is over. Kill fails with
// ErrNoGateway or ErrTooManyOrders.
func (s *Store) Kill(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	s.prune(now)
	if len(s.gateways) == 0 {
		return ErrNoGateway
	}
	if _, again := s.kills[id]; !again && len(s.kills) >= MaxKills {
		return ErrTooManyOrders
	}
	s.kills[id] = newOrder(now.Add(OrderTTL))
	return nil
}

// Killed tells whether there was an order to kill requests of this ID within OrderTTL.
func (s *Store) Killed(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prune(s.now())
	return s.kills[id] != nil
}

// Drain orders a gateway to take no new requests and to end, and tells whether it lives.
// It is told until it reports that it drains, or until OrderTTL is over.
func (s *Store) Drain(gateway string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	s.prune(now)
	if s.gateways[gateway] == nil {
		return false
	}
	s.drains[gateway] = now.Add(OrderTTL)
	return true
}

// Orders returns what a gateway has to do, for the answer to the report that was just put.
func (s *Store) Orders(gateway string) api.GatewayOrders {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prune(s.now())
	var out api.GatewayOrders
	e := s.gateways[gateway]
	if e == nil {
		return out
	}
	_, out.Drain = s.drains[gateway]
	out.Drain = out.Drain && !e.report.Draining
	if len(s.kills) == 0 {
		return out
	}
	named := map[string]bool{}
	e.places(gateway, func(_ string, r api.Request) bool {
		named[r.ID] = true
		return false
	})
	for _, id := range slices.Sorted(maps.Keys(s.kills)) {
		o := s.kills[id]
		if o.done[gateway] || o.told[gateway] >= surely && !named[id] {
			o.done[gateway] = true // and stays so: a later request may have the same ID
			continue
		}
		o.told[gateway]++
		out.Kill = append(out.Kill, id)
	}
	return out
}

// forgetOrders drops the orders whose time is over. It needs the lock.
func (s *Store) forgetOrders(now time.Time) {
	maps.DeleteFunc(s.kills, func(_ string, o *order) bool { return !now.Before(o.until) })
	maps.DeleteFunc(s.drains, func(_ string, until time.Time) bool { return !now.Before(until) })
}
