package share

import (
	"remuda/controller/api"
	"remuda/internal/replica"
)

// Report is what a gateway reports of what it shares with others.
type Report struct {
	Gateway string
	// Sequence grows with each report of the gateway.
	Sequence uint64
	// Draining: the gateway takes no new requests.
	Draining bool
	// Claims are valid and have no duplicates. The Ledger does not keep the slice.
	Claims []api.ShareClaim
	// Keys are valid and have no duplicates. The Ledger keeps the slice.
	Keys []api.KeyDemand
}

// Ledger has the claims of the live gateways. It is not safe for concurrent use.
type Ledger struct {
	pools    map[poolKey]*pool
	gateways map[string]*gateway
	demands  demands
	// reports counts the reports, to find claims that a report left out.
	reports uint64
	scratch scratch
}

type poolKey struct{ kind, name string }

type gateway struct {
	sequence uint64
	// pools are those with a claim of this gateway, in the order of its last report.
	pools []*pool
	// keys are those of its last report.
	keys []api.KeyDemand
}

// New returns an empty ledger.
func New() *Ledger {
	return &Ledger{pools: map[poolKey]*pool{}, gateways: map[string]*gateway{}, demands: demands{}}
}

// Report replaces the claims and keys of a gateway and returns its shares, one for each claim, and its
// parts of the keys' needs, one for each key, in the same order. No share is above what the gateway holds unless
// grow returns true for its kind: it must not as long as gateways may be live that have not reported.
//
// If the report is not newer than the last one, Report changes nothing and returns false: the
// gateway does not get the answer any more.
//
// A gateway that drains and has nothing in use gives everything back at once.
func (l *Ledger) Report(r Report, grow func(api.ShareKind) bool) (shares []api.GatewayShare, parts []float64, newer bool) {
	g := l.gateways[r.Gateway]
	switch {
	case g != nil && r.Sequence <= g.sequence:
		return nil, nil, false
	case g == nil && len(r.Claims) == 0:
		return nil, l.demands.parts(r.Gateway, r.Keys), true
	case g == nil:
		g = &gateway{}
		l.gateways[r.Gateway] = g
	}
	g.sequence = r.Sequence
	l.demands.replace(r.Gateway, g.keys, r.Keys)
	g.keys = r.Keys
	weights := l.weights(r)
	shares = make([]api.GatewayShare, len(r.Claims))
	claims := r.Claims
	if r.Draining && unused(claims) {
		for i, c := range claims {
			shares[i] = api.GatewayShare{Kind: c.Kind, Name: c.Name}
		}
		claims = nil
	}
	l.reports++
	last := g.pools
	pools, same := make([]*pool, len(claims)), len(claims) == len(last)
	for i, c := range claims {
		// A gateway claims the same resources in the same order most of the time.
		var p *pool
		if i < len(last) && last[i].kind == c.Kind && last[i].name == c.Name {
			p = last[i]
		} else {
			p, same = l.pool(c), false
		}
		pools[i] = p
		shares[i] = api.GatewayShare{Kind: c.Kind, Name: c.Name, Units: p.report(r.Gateway, c, weights[modelOf(c)], r.Draining, l.reports, grow(c.Kind))}
	}
	g.pools = pools
	if !same {
		l.release(r.Gateway, last)
	}
	return shares, l.demands.parts(r.Gateway, r.Keys), true
}

// modelOf returns the model of the replica whose slots are claimed, empty for other claims.
func modelOf(c api.ShareClaim) string {
	if c.Kind != api.ShareSlots {
		return ""
	}
	name, err := replica.ParseName(c.Name)
	if err != nil {
		return ""
	}
	return name.Model
}

// weights returns how many slots of each model are for the keys of a gateway.
func (l *Ledger) weights(r Report) map[string]float64 {
	if len(r.Keys) == 0 || len(l.gateways) == 1 {
		return nil
	}
	has := map[string]int{}
	for _, c := range r.Claims {
		if model := modelOf(c); model != "" {
			has[model] += c.Of
		}
	}
	return l.demands.slots(r.Gateway, r.Keys, has)
}

// unused reports whether a gateway has nothing in use and needs nothing.
func unused(claims []api.ShareClaim) bool {
	for _, c := range claims {
		if c.Used > 0 || c.Need > 0 {
			return false
		}
	}
	return true
}

// pool returns the pool of a claim.
func (l *Ledger) pool(c api.ShareClaim) *pool {
	key := poolKey{c.Kind, c.Name}
	p := l.pools[key]
	if p == nil {
		p = &pool{kind: c.Kind, name: c.Name, scratch: &l.scratch}
		l.pools[key] = p
	}
	return p
}

// release removes from pools those claims of a gateway that its last report does not have.
func (l *Ledger) release(gateway string, pools []*pool) {
	for _, p := range pools {
		if i, ok := p.find(gateway); ok && p.claims[i].report != l.reports {
			p.remove(i)
		}
		if len(p.claims) == 0 {
			delete(l.pools, poolKey{p.kind, p.name})
		}
	}
}

// Drop forgets a gateway: its shares are free.
func (l *Ledger) Drop(gateway string) {
	g := l.gateways[gateway]
	if g == nil {
		return
	}
	delete(l.gateways, gateway)
	l.demands.replace(gateway, g.keys, nil)
	l.reports++
	l.release(gateway, g.pools)
}
