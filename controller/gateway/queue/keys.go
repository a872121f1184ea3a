package queue

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"
)

// Errors of Keys.Admit.
var (
	// ErrRate means that the key sent as many requests lately as it may.
	ErrRate = errors.New("rate limit exceeded")
	// ErrTokens means that the key's requests took more tokens lately than they may.
	ErrTokens = errors.New("token limit exceeded")
	// ErrConcurrency means that the key has as many requests at once as it may.
	ErrConcurrency = errors.New("concurrency limit exceeded")
)

// KeyLimit is what one API key may do.
type KeyLimit struct {
	// Weight is the size of its fair share, MinWeight to MaxWeight. 0 means 1.
	Weight float64 `hcl:"weight"`
	// Priority is that of its requests that ask for none, 0 to MaxPriority.
	Priority int `hcl:"priority"`
	// MaxPriority is the highest that its requests may ask for, Priority to 9.
	MaxPriority int `hcl:"max_priority"`
	// Concurrency is how many requests it may have at once, those that wait
	// included. 0 is no limit. It also bounds how much of a queue one key can
	// take.
	Concurrency int `hcl:"concurrency"`
	// Rate is how many requests per second it may send. 0 is no limit.
	Rate float64 `hcl:"rate"`
	// Burst is how many it may send at once after a rest. 0 is as many as in a
	// second, at least 1.
	Burst int `hcl:"burst"`
	// TokensPerMinute is how many tokens its requests may take in a minute, prompts and answers
	// together. 0 is no limit. Requests that were let in may go beyond it; others wait until that
	// is made up for.
	TokensPerMinute int64 `hcl:"tokens_per_minute"`
}

// normal fills in what is left to defaults.
func (l KeyLimit) normal() KeyLimit {
	if l.Weight == 0 {
		l.Weight = 1
	}
	if l.Rate > 0 && l.Burst == 0 {
		l.Burst = int(max(1, math.Ceil(min(l.Rate, maxBurst))))
	}
	return l
}

// maxBurst keeps a default burst in range.
const maxBurst = 1 << 30

// Limited tells whether requests must be let in by Admit.
func (l KeyLimit) Limited() bool { return l.Concurrency > 0 || l.Rate > 0 || l.TokensPerMinute > 0 }

func (l KeyLimit) validate() (bad []string) {
	if l.Weight != 0 && !(l.Weight >= MinWeight && l.Weight <= MaxWeight) {
		bad = append(bad, fmt.Sprintf("Weight is %v: must be %v to %v", l.Weight, MinWeight, MaxWeight))
	}
	if l.Priority < 0 || l.Priority > MaxPriority {
		bad = append(bad, fmt.Sprintf("Priority is %d: must be 0 to %d", l.Priority, MaxPriority))
	}
	if l.MaxPriority < l.Priority || l.MaxPriority > MaxPriority {
		bad = append(bad, fmt.Sprintf("MaxPriority is %d: must be Priority (%d) to %d", l.MaxPriority, l.Priority, MaxPriority))
	}
	if l.Concurrency < 0 {
		bad = append(bad, fmt.Sprintf("Concurrency is %d: must be 0 (no limit) or more", l.Concurrency))
	}
	if !(l.Rate >= 0) || math.IsInf(l.Rate, 1) {
		bad = append(bad, fmt.Sprintf("Rate is %v: must be 0 (no limit) or more per second", l.Rate))
	}
	if l.Burst < 0 {
		bad = append(bad, fmt.Sprintf("Burst is %d: must be 0 (as many as in a second) or more", l.Burst))
	}
	if l.TokensPerMinute < 0 {
		bad = append(bad, fmt.Sprintf("TokensPerMinute is %d: must be 0 (no limit) or more", l.TokensPerMinute))
	}
	return bad
}

// Keys limits what single API keys may do. Keys without a limit of their own
// have the default one, each for itself.
//
// Keys that are limited in nothing cost no memory. Of others some is kept while
// they have requests and until Sweep finds them at rest: let only names in that
// were looked up, not what a client sent.
type Keys struct {
	def    KeyLimit
	named  map[string]KeyLimit
	states map[string]*keyState
	latest time.Time
	// shares are what this gateway has of the limits of keys; one without has all.
	shares map[string]KeyShare
}

type keyState struct {
	atOnce  int
	limiter *rate.Limiter // nil without a rate
	tokens  tokenBucket
	demand  demand
}

// tokenBucket has what a key may take of tokens. It may be overdrawn.
type tokenBucket struct {
	perSecond, most, level float64
	at                     time.Time
}

// limit sets how many tokens a minute gives. What ten seconds give is kept at most.
func (b *tokenBucket) limit(now time.Time, perMinute float64) {
	fresh := b.most == 0
	b.move(now)
	b.perSecond, b.most = perMinute/60, perMinute/6
	if b.level = min(b.level, b.most); fresh {
		b.level = b.most
	}
}

func (b *tokenBucket) move(now time.Time) {
	b.level = min(b.most, b.level+b.perSecond*now.Sub(b.at).Seconds())
	b.at = now
}

// take takes tokens, or gives them back. Of a key without a limit nobody counts.
func (b *tokenBucket) take(n float64) {
	if b.most > 0 {
		b.level = min(b.level-n, b.most)
	}
}

// wait is how long it takes until there is a token, if this gateway gets all of the key's limit.
func (b *tokenBucket) wait(l KeyLimit) time.Duration {
	return seconds((1 - b.level) / (float64(l.TokensPerMinute) / 60))
}

// NewKeys returns limits by key name and for all other keys.
func NewKeys(def KeyLimit, named map[string]KeyLimit) (*Keys, error) {
	var bad []string
	for _, b := range def.validate() {
		bad = append(bad, "default: "+b)
	}
	k := &Keys{def: def.normal(), named: make(map[string]KeyLimit, len(named)), states: map[string]*keyState{}}
	for _, name := range slices.Sorted(maps.Keys(named)) {
		for _, b := range named[name].validate() {
			bad = append(bad, fmt.Sprintf("key %q: %s", name, b))
		}
		k.named[name] = named[name].normal()
	}
	if bad != nil {
		return nil, fmt.Errorf("invalid key limits: %s", strings.Join(bad, "; "))
	}
	return k, nil
}

// Set replaces the limits. Requests that were admitted go on counting, and a key whose rate
// changes keeps what it has of its burst. Invalid limits change nothing.
func (k *Keys) Set(now time.Time, def KeyLimit, named map[string]KeyLimit) error {
	next, err := NewKeys(def, named)
	if err != nil {
		return err
	}
	now = k.see(now)
	k.def, k.named = next.def, next.named
	for key, s := range k.states {
		k.limit(now, key, s)
	}
	return nil
}

// limit makes a key's state that of its limits, as far as this gateway has a share of them.
func (k *Keys) limit(now time.Time, key string, s *keyState) {
	l, part := k.Limit(key), k.share(key)
	perSecond, burst := rate.Limit(l.Rate*part.Rate), int(math.Ceil(float64(l.Burst)*part.Rate))
	switch {
	case l.Rate <= 0:
		s.limiter = nil
	case s.limiter == nil:
		s.limiter = rate.NewLimiter(perSecond, burst)
	default:
		s.limiter.SetLimitAt(now, perSecond)
		s.limiter.SetBurstAt(now, burst)
	}
	s.tokens.limit(now, float64(l.TokensPerMinute)*part.Tokens)
}

// Limit is what a key may do, with defaults filled in.
func (k *Keys) Limit(key string) KeyLimit {
	if l, ok := k.named[key]; ok {
		return l
	}
	return k.def
}

// Admit counts one more request of the key, which is expected to take so many tokens, until Done.
// The error wraps ErrConcurrency, with 0 since nobody knows when a request will end, or ErrRate or
// ErrTokens, with the time after which one more is allowed. A request that is refused counts for
// nothing.
func (k *Keys) Admit(now time.Time, key string, tokens int64) (retryAfter time.Duration, err error) {
	l := k.Limit(key)
	if !l.Limited() {
		return 0, nil
	}
	now = k.see(now)
	s := k.state(now, key)
	s.demand.add(now, 1, float64(tokens))
	if l.Concurrency > 0 && s.atOnce >= k.share(key).concurrency(l) {
		s.demand.refused++
		return 0, fmt.Errorf("%w: %d", ErrConcurrency, l.Concurrency)
	}
	least := min(1, s.tokens.most)
	if s.tokens.move(now); l.TokensPerMinute > 0 && (least == 0 || s.tokens.level < least) {
		return s.tokens.wait(l), fmt.Errorf("%w: %d per minute", ErrTokens, l.TokensPerMinute)
	}
	if s.limiter != nil && !s.limiter.AllowN(now, 1) {
		return untilOne(s.limiter, now, l), fmt.Errorf("%w: %v per second, %d at once", ErrRate, l.Rate, l.Burst)
	}
	s.atOnce++
	s.tokens.take(float64(tokens))
	return 0, nil
}

// state returns a key's, which is made where there is none.
func (k *Keys) state(now time.Time, key string) *keyState {
	s := k.states[key]
	if s == nil {
		s = &keyState{}
		k.limit(now, key, s)
		k.states[key] = s
	}
	return s
}

// Room is what a key has left of its limits: how many requests and tokens it may use at once, and
// after which time that is all that it ever has.
type Room struct {
	Requests, Tokens           int64
	ResetRequests, ResetTokens time.Duration
}

// Room returns what a key with limits has left of them.
func (k *Keys) Room(now time.Time, key string) Room {
	now = k.see(now)
	l := k.Limit(key)
	s := k.state(now, key)
	var r Room
	if s.limiter != nil {
		have := s.limiter.TokensAt(now)
		r.Requests = int64(max(have, 0))
		r.ResetRequests = seconds((float64(l.Burst) - have) / l.Rate)
	}
	if s.tokens.move(now); l.TokensPerMinute > 0 {
		r.Tokens = int64(max(s.tokens.level, 0))
		r.ResetTokens = seconds((s.tokens.most - s.tokens.level) / max(s.tokens.perSecond, 1e-9))
	}
	return r
}

func seconds(s float64) time.Duration {
	return time.Duration(min(max(s, 0)*float64(time.Second), float64(longest)))
}

// untilOne is the time until a limiter has a token again, if this gateway gets all of the key's limit.
func untilOne(l *rate.Limiter, now time.Time, limit KeyLimit) time.Duration {
	return time.Duration(min(max(math.Ceil((1-l.TokensAt(now))/limit.Rate*float64(time.Second)), 1), float64(longest)))
}

// longest keeps a very low rate's waiting time in range.
const longest = 100 * 365 * 24 * time.Hour

// see keeps time from going back, which would give tokens twice.
func (k *Keys) see(now time.Time) time.Time {
	if now.Before(k.latest) {
		return k.latest
	}
	k.latest = now
	return now
}

// Done tells that a request of the key has ended that was admitted, and how many more tokens it took
// than were expected.
func (k *Keys) Done(now time.Time, key string, more int64) {
	if s := k.states[key]; s != nil && s.atOnce > 0 {
		s.atOnce--
		s.tokens.move(k.see(now))
		s.tokens.take(float64(more))
		s.demand.add(now, 0, float64(more))
	}
}

// Sweep forgets the keys that are at rest: without requests, and with all of
// their burst. Call it every now and then.
func (k *Keys) Sweep(now time.Time) {
	now = k.see(now)
	for key, s := range k.states {
		if s.tokens.move(now); s.atOnce == 0 && s.tokens.level >= s.tokens.most && (s.limiter == nil || s.limiter.TokensAt(now) >= float64(s.limiter.Burst())) {
			delete(k.states, key)
		}
	}
}
