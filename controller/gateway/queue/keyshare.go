package queue

import (
	"maps"
	"math"
	"slices"
	"time"
)

// KeyShare is what one of several gateways has of the limits of a key.
type KeyShare struct {
	// Concurrency is how many requests it may have at once, -1 for as many as the key.
	Concurrency int
	// Rate and Tokens are its parts of the key's rate of requests and of tokens, 0 to 1.
	Rate, Tokens float64
}

// WholeKey is the share of a gateway that is alone.
func WholeKey() KeyShare { return KeyShare{Concurrency: -1, Rate: 1, Tokens: 1} }

// concurrency is how many requests of a key with a limit this gateway may have at once.
func (s KeyShare) concurrency(l KeyLimit) int {
	if s.Concurrency < 0 {
		return l.Concurrency
	}
	return min(s.Concurrency, l.Concurrency)
}

func (k *Keys) share(key string) KeyShare { return shareIn(k.shares, key) }

// SetShares replaces what this gateway has of the limits of keys; it has all of those of a key that is
// not among them.
func (k *Keys) SetShares(now time.Time, shares map[string]KeyShare) {
	now = k.see(now)
	was := k.shares
	k.shares = shares
	for key, s := range k.states {
		if is := k.share(key); is != shareIn(was, key) {
			k.limit(now, key, s)
		}
	}
}

func shareIn(shares map[string]KeyShare, key string) KeyShare {
	if s, ok := shares[key]; ok {
		return s
	}
	return WholeKey()
}

// demandTime is over how long the demand of a key is measured.
const demandTime = 3 * time.Second

// demand is what was asked of a key lately, let in or not. It fades.
type demand struct {
	requests, tokens float64
	// refused are requests that were one too many at once.
	refused float64
	at      time.Time
}

func (d *demand) fade(now time.Time) {
	f := math.Exp(-now.Sub(d.at).Seconds() / demandTime.Seconds())
	d.requests, d.tokens, d.refused, d.at = d.requests*f, d.tokens*f, d.refused*f, now
}

func (d *demand) add(now time.Time, requests, tokens float64) {
	d.fade(now)
	d.requests += requests
	d.tokens += tokens
}

// KeyNeed is what a gateway needs of a key with limits.
type KeyNeed struct {
	Key   string
	Limit KeyLimit
	Share KeyShare
	// AtOnce is how many requests it has, Wanted how many it would have without a limit.
	AtOnce, Wanted int
	// Rate and Tokens are the parts of the key's limits that it would use, from 0; they may be more
	// than 1.
	Rate, Tokens float64
}

// Needs returns what this gateway needs of the keys that have a limit, sorted by name; anonymous is
// the name of all requests without a known key.
func (k *Keys) Needs(now time.Time, anonymous string) []KeyNeed {
	now = k.see(now)
	names := slices.Sorted(maps.Keys(k.named))
	if _, named := k.named[anonymous]; !named {
		names = append(names, anonymous)
	}
	var out []KeyNeed
	for _, key := range names {
		l := k.Limit(key)
		if !l.Limited() {
			continue
		}
		n := KeyNeed{Key: key, Limit: l, Share: k.share(key)}
		if s := k.states[key]; s != nil {
			s.demand.fade(now)
			n.AtOnce, n.Wanted = s.atOnce, s.atOnce+int(math.Ceil(s.demand.refused))
			if l.Rate > 0 {
				n.Rate = s.demand.requests / demandTime.Seconds() / l.Rate
			}
			if l.TokensPerMinute > 0 {
				n.Tokens = max(s.demand.tokens, 0) / demandTime.Seconds() * 60 / float64(l.TokensPerMinute)
			}
		}
		out = append(out, n)
	}
	return out
}
