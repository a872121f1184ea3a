package dispatch

import (
	"maps"
	"math"
	"slices"
	"time"

	"remuda/controller/api"
	"remuda/controller/gateway/queue"
)

// shares are what this gateway has of what all gateways share, by the controller's last word. Without
// a controller, or before its first word while it is away, it has all.
type shares struct {
	slots, queue map[string]int
	keys         map[string]queue.KeyShare
}

// keyAnonymous is the name of requests without a known key.
const keyAnonymous = api.KeyAnonymous

// Claims returns what this gateway holds and needs, at most so many.
func (d *Dispatcher) Claims(most int) []api.ShareClaim {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	d.claimed = nil
	var out []api.ShareClaim
	for _, c := range d.table.Capacities(now) {
		waiting := 0
		if m := d.models[c.Model]; m != nil {
			waiting = m.queue.Len()
		}
		d.claimed = append(d.claimed, c.Replica)
		out = append(out, api.ShareClaim{Kind: api.ShareSlots, Name: c.Replica, Of: c.Slots, Held: c.Share, Used: c.InFlight, Need: c.InFlight + waiting})
	}
	for _, name := range slices.Sorted(maps.Keys(d.models)) {
		m := d.models[name]
		refused := int(m.counts.Refused - m.refusedBefore)
		m.refusedBefore = m.counts.Refused
		waiting := m.queue.Len()
		out = append(out, api.ShareClaim{Kind: api.ShareQueue, Name: name, Of: d.wholeLength(name), Held: d.length(name), Used: waiting, Need: waiting + refused})
	}
	part := func(kind api.ShareKind, key string, held, need float64) {
		out = append(out, api.ShareClaim{Kind: kind, Name: key, Of: api.ShareWhole, Held: int(held * api.ShareWhole), Need: int(min(math.Ceil(need*api.ShareWhole), api.MaxShareUnits))})
	}
	for _, n := range d.keys.Needs(now, keyAnonymous) {
		if of := n.Limit.Concurrency; of > 0 {
			held := of
			if n.Share.Concurrency >= 0 {
				held = min(n.Share.Concurrency, of)
			}
			out = append(out, api.ShareClaim{Kind: api.ShareConcurrency, Name: n.Key, Of: of, Held: held, Used: n.AtOnce, Need: n.Wanted})
		}
		if n.Limit.Rate > 0 {
			part(api.ShareRate, n.Key, n.Share.Rate, n.Rate)
		}
		if n.Limit.TokensPerMinute > 0 {
			part(api.ShareTokens, n.Key, n.Share.Tokens, n.Tokens)
		}
	}
	for i := range out {
		c := &out[i]
		c.Of, c.Held, c.Used, c.Need = min(c.Of, api.MaxShareUnits), min(c.Held, api.MaxShareUnits), min(c.Used, api.MaxShareUnits), min(c.Need, api.MaxShareUnits)
	}
	return out[:min(len(out), most)]
}

// Share takes the shares that the controller gives in answer to the last Claims. They hold until it gives others.
func (d *Dispatcher) Share(all []api.GatewayShare) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	was := d.shares.slots
	d.shares = shares{slots: map[string]int{}, queue: map[string]int{}, keys: map[string]queue.KeyShare{}}
	for _, s := range all {
		if s.Kind == api.ShareBudget {
			continue // not admitted here
		}
		key, ok := d.shares.keys[s.Name]
		if !ok {
			key = queue.WholeKey()
		}
		switch s.Kind {
		case api.ShareSlots:
			d.shares.slots[s.Name] = s.Units
			continue
		case api.ShareQueue:
			d.shares.queue[s.Name] = s.Units
			continue
		case api.ShareConcurrency:
			key.Concurrency = s.Units
		case api.ShareRate:
			key.Rate = float64(s.Units) / api.ShareWhole
		case api.ShareTokens:
			key.Tokens = float64(s.Units) / api.ShareWhole
		}
		d.shares.keys[s.Name] = key
	}
	for _, name := range d.claimed {
		_, had := was[name]
		if _, has := d.shares.slots[name]; had && !has {
			d.shares.slots[name] = 0 // a new leader does not know yet who has it, but this gateway has not
		}
	}
	d.table.SetShares(d.shares.slots)
	d.keys.SetShares(now, d.shares.keys)
	d.pumpAll(now)
}
