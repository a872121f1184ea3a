package state

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-memdb"
)

// Key is an API key of clients: what its requests may do at the gateways. It opens nothing at the
// controller, as a Token does.
type Key struct {
	Name string
	// Secrets are what clients send, the newest first; any of them that has not expired is valid.
	// KeyAnonymous has none.
	Secrets []KeySecret `json:",omitempty"`
	KeyLimits
	CreatedAt time.Time

	CreateIndex, ModifyIndex uint64
}

// KeySecret is a secret of a key. The secret itself is never stored.
type KeySecret struct {
	// Hash is HashSecret of the secret, and Prefix are its first characters.
	Hash, Prefix string
	CreatedAt    time.Time
	// ExpiresAt is from when on it is not valid, zero for never.
	ExpiresAt time.Time `json:",omitzero"`
}

// Expired reports whether it is not valid any more.
func (s KeySecret) Expired(now time.Time) bool {
	return !s.ExpiresAt.IsZero() && !now.Before(s.ExpiresAt)
}

// KeyLimits are what the requests of a key may do. In numbers of requests and tokens 0 is no limit.
type KeyLimits struct {
	// Models are those that it may call, by name, or by the beginning of the name and a "*"; empty:
	// all.
	Models []string `json:",omitempty"`
	// Weight is its share of a model beside other keys.
	Weight float64
	// Priority is that of a request that asks for none, MaxPriority the highest that one may ask for.
	Priority, MaxPriority int
	RequestsPerMinute     int64 `json:",omitempty"`
	TokensPerMinute       int64 `json:",omitempty"`
	// Concurrency is how many requests it may have at a time.
	Concurrency int64 `json:",omitempty"`
	// TokensPerDay and TokensPerMonth are of a day and a calendar month in UTC.
	TokensPerDay   int64 `json:",omitempty"`
	TokensPerMonth int64 `json:",omitempty"`
	// ExpiresAt is from when on the key is not valid, zero for never.
	ExpiresAt time.Time `json:",omitzero"`
}

// HasBudget reports whether the tokens of a day or a month are limited.
func (l KeyLimits) HasBudget() bool { return l.TokensPerDay > 0 || l.TokensPerMonth > 0 }

// Reserved names of keys.
const (
	// KeyAnonymous is all requests without a known key, together.
	KeyAnonymous = "anonymous"
	// KeyOther is the usage of keys for which a day has no room left. There is no key of this name.
	KeyOther = "other"
)

// Bounds of keys.
const (
	// MaxKeys is how many keys there are at most.
	MaxKeys = 10_000
	// MaxKeySecrets is how many secrets of a key are valid at a time.
	MaxKeySecrets = 10
	// MaxKeyGrace is how long an old secret may stay valid.
	MaxKeyGrace = 90 * 24 * time.Hour

	maxKeyModels   = 1000
	maxKeyPriority = 9
	minKeyWeight   = 0.001
	maxKeyWeight   = 1000
	// maxKeyLimit is the highest limit of requests and tokens: sums of it do not overflow.
	maxKeyLimit = math.MaxInt64 >> 10
)

// problems returns what is wrong with the limits. Some may be nil.
func (l *KeyLimits) problems() []error {
	errs := []error{checkTime("expires at", &l.ExpiresAt)}
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if n := len(l.Models); n > maxKeyModels {
		bad("%d models: must be at most %d", n, maxKeyModels)
	}
	seen := map[string]bool{}
	for _, m := range l.Models {
		switch err := checkName("model", m); {
		case err != nil:
			errs = append(errs, err)
		case strings.Contains(strings.TrimSuffix(m, "*"), "*"):
			bad("model %q: a '*' is allowed at the end only", m)
		case seen[m]:
			bad("duplicate model %q", m)
		}
		seen[m] = true
	}
	if !(l.Weight >= minKeyWeight && l.Weight <= maxKeyWeight) {
		bad("weight is %g: must be %g to %d", l.Weight, minKeyWeight, maxKeyWeight)
	}
	if l.MaxPriority < 0 || l.MaxPriority > maxKeyPriority {
		bad("max priority is %d: must be 0 to %d", l.MaxPriority, maxKeyPriority)
	}
	if l.Priority < 0 || l.Priority > maxKeyPriority {
		bad("priority is %d: must be 0 to %d", l.Priority, maxKeyPriority)
	} else if l.MaxPriority >= 0 && l.Priority > l.MaxPriority {
		bad("priority is %d: must be at most the max priority, which is %d", l.Priority, l.MaxPriority)
	}
	for _, limit := range []struct {
		name string
		is   int64
	}{
		{"requests per minute", l.RequestsPerMinute},
		{"tokens per minute", l.TokensPerMinute},
		{"concurrency", l.Concurrency},
		{"tokens per day", l.TokensPerDay},
		{"tokens per month", l.TokensPerMonth},
	} {
		if limit.is < 0 || limit.is > maxKeyLimit {
			bad("%s is %d: must be 0 (no limit) to %d", limit.name, limit.is, int64(maxKeyLimit))
		}
	}
	return errs
}

// checkKeyName returns why a key cannot have a name, nil if it can.
func checkKeyName(name string) error {
	if name == KeyOther {
		return fmt.Errorf("key name %q is reserved for the usage of keys for which a day has no room left: use another name", name)
	}
	return checkName("key name", name)
}

// SetKey writes the row of a key, or deletes it. What becomes of a request is decided before; see
// UpsertKey, RotateKey and DeleteKey.
type SetKey struct {
	Name string
	// Key is the row as it is to be, without its indexes; nil: the key is deleted.
	Key *Key `json:",omitempty"`
	// ModifyIndex is that of the row that it was made from, 0: there was none.
	ModifyIndex uint64
}

// Type implements Command.
func (*SetKey) Type() Type { return TypeSetKey }

// Level implements the method that package raft asks for; see Level.
func (*SetKey) Level() int { return levelKeys }

func (c *SetKey) check() *Error {
	if c.Key == nil {
		return nil
	}
	errs := append(c.Key.problems(), checkKeyName(c.Name))
	if n := len(c.Key.Secrets); n > MaxKeySecrets {
		errs = append(errs, fmt.Errorf("%d secrets: must be at most %d", n, MaxKeySecrets))
	}
	switch none := len(c.Key.Secrets) == 0; {
	case c.Name == KeyAnonymous && !none:
		errs = append(errs, errors.New("it is of requests without a known key: it cannot have a secret"))
	case c.Name != KeyAnonymous && none:
		errs = append(errs, errors.New("it has no secret"))
	}
	return invalidKey(c.Name, errs...)
}

func (c *SetKey) apply(t *txn) *Error {
	old := first[Key](t.Txn, TableKeys, byID, c.Name)
	if err := checkIndex("key", c.Name, keyIndex(old), c.ModifyIndex); err != nil {
		return err
	}
	if c.Key == nil {
		if old == nil {
			return noKey(c.Name)
		}
		t.remove(TableKeys, old)
		return nil
	}
	k := *c.Key
	k.Secrets = slices.Clone(k.Secrets)
	errs := []error{checkName("key name", c.Name), checkTime("created at", &k.CreatedAt), checkTime("expires at", &k.ExpiresAt)}
	if k.Name != c.Name {
		errs = append(errs, fmt.Errorf("the row is of key %q", k.Name))
	}
	for i := range k.Secrets {
		s := &k.Secrets[i]
		errs = append(errs, checkTime("created at", &s.CreatedAt), checkTime("expires at", &s.ExpiresAt))
		if b, err := hex.DecodeString(s.Hash); err != nil || len(b) != sha256.Size || strings.ToLower(s.Hash) != s.Hash {
			errs = append(errs, errors.New("the hash of a secret is not a SHA-256 in lower-case hexadecimal"))
		}
	}
	if err := invalidKey(c.Name, errs...); err != nil {
		return err
	}
	k.CreateIndex, k.ModifyIndex = t.index, t.index
	if old != nil {
		k.CreateIndex = old.CreateIndex
		same := *old
		same.ModifyIndex = k.ModifyIndex
		if reflect.DeepEqual(same, k) {
			return nil
		}
	}
	t.put(TableKeys, &k)
	return nil
}

func keyIndex(k *Key) uint64 {
	if k == nil {
		return 0
	}
	return k.ModifyIndex
}

func noKey(name string) *Error { return notFound(name, "key %q does not exist", name) }

// invalidKey joins the errors of a key, each with its name.
func invalidKey(name string, errs ...error) *Error {
	var named []error
	for _, err := range errs {
		if err != nil {
			named = append(named, fmt.Errorf("key %q: %w", name, err))
		}
	}
	return invalid(name, named...)
}

// UpsertKey creates a key or changes its limits. A key that exists keeps its secrets.
type UpsertKey struct {
	Name   string
	Limits KeyLimits
	// Secret is that of a new key. KeyAnonymous gets none.
	Secret KeySecret
	// ModifyIndex is the key's as the caller knows it, 0: it does not exist; nil: any.
	ModifyIndex *uint64
	// Time is when a new key was created.
	Time time.Time
}

// Resolve implements Proposal: it returns a *SetKey.
func (r *UpsertKey) Resolve(v *View) (Command, *Error) {
	old := v.Key(nil, r.Name)
	if err := checkIndexIf("key", r.Name, keyIndex(old), r.ModifyIndex); err != nil {
		return nil, err
	}
	c := &SetKey{Name: r.Name, Key: &Key{Name: r.Name, KeyLimits: r.Limits, CreatedAt: r.Time}, ModifyIndex: keyIndex(old)}
	switch {
	case old != nil:
		c.Key.Secrets, c.Key.CreatedAt = old.Secrets, old.CreatedAt
	case r.Name != KeyAnonymous:
		c.Key.Secrets = []KeySecret{r.Secret}
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	if old == nil && len(v.Keys(nil)) >= MaxKeys {
		return nil, conflict(r.Name, "key %q: there are %d keys, which is the limit: delete one first", r.Name, MaxKeys)
	}
	return c, nil
}

// RotateKey gives a key another secret. Those before expire after the grace time, or when they would
// anyway.
type RotateKey struct {
	Name   string
	Secret KeySecret
	// Grace is from 0, at once, to MaxKeyGrace.
	Grace time.Duration
	// ModifyIndex is the key's as the caller knows it; nil: any.
	ModifyIndex *uint64
	// Time is now.
	Time time.Time
}

// Resolve implements Proposal: it returns a *SetKey.
func (r *RotateKey) Resolve(v *View) (Command, *Error) {
	old := v.Key(nil, r.Name)
	if old == nil {
		return nil, noKey(r.Name)
	}
	if err := checkIndexIf("key", r.Name, old.ModifyIndex, r.ModifyIndex); err != nil {
		return nil, err
	}
	if r.Name == KeyAnonymous {
		return nil, badRequest(r.Name, "key %q is of requests without a known key: it has no secret", r.Name)
	}
	if r.Grace < 0 || r.Grace > MaxKeyGrace {
		return nil, badRequest(r.Name, "key %q: grace is %s: must be 0s to %s", r.Name, r.Grace, MaxKeyGrace)
	}
	k := *old
	k.Secrets = []KeySecret{r.Secret}
	until := r.Time.Add(r.Grace)
	for _, s := range old.Secrets {
		if s.ExpiresAt.IsZero() || s.ExpiresAt.After(until) {
			s.ExpiresAt = until
		}
		if !s.Expired(r.Time) {
			k.Secrets = append(k.Secrets, s)
		}
	}
	if len(k.Secrets) > MaxKeySecrets {
		return nil, conflict(r.Name, "key %q has %d valid secrets, which is the limit: wait until one expires, or rotate with a grace of 0s", r.Name, MaxKeySecrets)
	}
	k.CreateIndex, k.ModifyIndex = 0, 0
	return &SetKey{Name: r.Name, Key: &k, ModifyIndex: old.ModifyIndex}, nil
}

// DeleteKey deletes a key. Its usage is kept.
type DeleteKey struct {
	Name string
	// ModifyIndex is the key's as the caller knows it; nil: any.
	ModifyIndex *uint64
}

// Resolve implements Proposal: it returns a *SetKey.
func (r *DeleteKey) Resolve(v *View) (Command, *Error) {
	old := v.Key(nil, r.Name)
	if old == nil {
		return nil, noKey(r.Name)
	}
	if err := checkIndexIf("key", r.Name, old.ModifyIndex, r.ModifyIndex); err != nil {
		return nil, err
	}
	return &SetKey{Name: r.Name, ModifyIndex: old.ModifyIndex}, nil
}

// Keys returns all keys.
func (v *View) Keys(ws memdb.WatchSet) []*Key { return query[Key](v, ws, TableKeys, byID) }

// Key returns a key, nil if there is none of that name.
func (v *View) Key(ws memdb.WatchSet, name string) *Key {
	return queryOne[Key](v, ws, TableKeys, byID, name)
}
