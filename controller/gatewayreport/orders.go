package gatewayreport

import (
	"errors"
	"maps"
	"slices"
	"time"

	"remuda/controller/api"
)

const (
	// OrderTTL is how long an order is repeated at most. A gateway reports every two seconds,
	// so one that is silent for that long has expired.
	OrderTTL = 30 * time.Second
	// MaxKills is the maximum number of pending orders to kill a request.
	MaxKills = 1000
	// minDeliveries is how often an order must be sent to a gateway before the gateway's report
	// can show that it was carried out: one response may be lost.
	minDeliveries = 2
)

// Errors of Kill.
var (
	// ErrTooManyOrders means that MaxKills orders are pending.
	ErrTooManyOrders = errors.New("too many pending orders")
	// ErrNoGateway means that there is no live gateway.
	ErrNoGateway = errors.New("no gateway reports to the controller")
)

// order is an order to kill requests. It is in memory only, and lost with the leader.
type order struct {
	until time.Time
	// deliveries counts how often each gateway was sent the order; done has the gateways that
	// have carried it out.
	deliveries map[string]int
	done       map[string]bool
}

func newOrder(until time.Time) *order {
	return &order{until: until, deliveries: map[string]int{}, done: map[string]bool{}}
}

// Kill orders all gateways to end the requests with this ID. A gateway reports only some of its
// requests, so gateways that do not report this one get the order, too. Each gateway gets it at
// least twice, and until it reports no such request or OrderTTL is over. The error is
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

// Killed reports whether there was an order to kill requests of this ID within OrderTTL.
func (s *Store) Killed(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prune(s.now())
	return s.kills[id] != nil
}

// Drain orders a gateway to take no new requests and to exit, and reports whether the gateway is
// live. The order is repeated until the gateway reports that it drains, or OrderTTL is over.
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

// Orders returns a gateway's orders and shares, for the response to the report that was just put.
func (s *Store) Orders(gateway string) api.GatewayOrders {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prune(s.now())
	var out api.GatewayOrders
	e := s.gateways[gateway]
	if e == nil {
		return out
	}
	out.Shares, out.KeyParts = e.shares, e.parts
	_, out.Drain = s.drains[gateway]
	out.Drain = out.Drain && !e.report.Draining
	if len(s.kills) == 0 {
		return out
	}
	named := map[string]bool{}
	e.requests(gateway, func(_ string, r api.Request) bool {
		named[r.ID] = true
		return false
	})
	for _, id := range slices.Sorted(maps.Keys(s.kills)) {
		o := s.kills[id]
		if o.done[gateway] || o.deliveries[gateway] >= minDeliveries && !named[id] {
			o.done[gateway] = true // for good: a later request may have the same ID
			continue
		}
		o.deliveries[gateway]++
		out.Kill = append(out.Kill, id)
	}
	return out
}

// forgetOrders drops the expired orders. The caller holds the lock.
func (s *Store) forgetOrders(now time.Time) {
	maps.DeleteFunc(s.kills, func(_ string, o *order) bool { return !now.Before(o.until) })
	maps.DeleteFunc(s.drains, func(_ string, until time.Time) bool { return !now.Before(until) })
}
