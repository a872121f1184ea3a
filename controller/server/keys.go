package server

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-memdb"

	"remuda/controller/api"
	"remuda/controller/state"
)

const (
	// secretPrefix begins each secret, so that people and scanners for leaked secrets know it.
	secretPrefix = "sk-remuda-"
	// secretShown is how many characters of a secret are kept to tell secrets apart.
	secretShown = len(secretPrefix) + 4
)

// newKeySecret returns a secret of 256 random bits, and what is stored of it.
func newKeySecret(now time.Time) (string, state.KeySecret) {
	random := make([]byte, 32)
	_, _ = rand.Read(random) // never fails
	secret := secretPrefix + base64.RawURLEncoding.EncodeToString(random)
	return secret, state.KeySecret{Hash: state.HashSecret(secret), Prefix: secret[:secretShown], CreatedAt: now}
}

// keyOf returns a key with the secrets that are valid.
func keyOf(k *state.Key, now time.Time) api.Key {
	out := api.Key{Name: k.Name, KeyLimits: api.KeyLimits(k.KeyLimits), CreatedAt: k.CreatedAt, CreateIndex: k.CreateIndex, ModifyIndex: k.ModifyIndex}
	for _, s := range k.Secrets {
		if !s.Expired(now) {
			out.Secrets = append(out.Secrets, api.KeySecret{Prefix: s.Prefix, CreatedAt: s.CreatedAt, ExpiresAt: s.ExpiresAt})
		}
	}
	return out
}

func noKey(name string) *api.Error {
	return notFound("key %q does not exist: see \"remuda key list\"", name)
}

func (s *Server) listKeys(_ *request, v *state.View, ws memdb.WatchSet) (answer, error) {
	now := s.cfg.Now()
	return answer{value: list(v.Keys(ws), func(k *state.Key) api.Key { return keyOf(k, now) }), index: v.TableIndex(state.TableKeys)}, nil
}

func (s *Server) getKey(rq *request, v *state.View, ws memdb.WatchSet) (answer, error) {
	index, now := v.TableIndex(state.TableKeys, state.TableUsage), s.cfg.Now()
	k := v.Key(ws, rq.PathValue("key"))
	if k == nil {
		return answer{index: index}, noKey(rq.PathValue("key"))
	}
	day := state.UsageDay(now)
	return answer{value: api.KeyStatus{Key: keyOf(k, now), Used: usedOf(v.TokensUsed(ws, day)[k.Name], day)}, index: index}, nil
}

func usedOf(u state.TokensUsed, day string) api.TokensUsed {
	return api.TokensUsed{Day: day, Today: u.Today, ThisMonth: u.ThisMonth}
}

func (s *Server) setKey(rq *request, v *state.View) (answer, error) {
	var body api.KeyRequest
	if err := rq.decode(&body); err != nil {
		return answer{}, err
	}
	name, now := rq.PathValue("key"), s.cfg.Now()
	secret, stored := newKeySecret(now)
	what := "changed key"
	if v.Key(nil, name) == nil {
		what = "created key"
	}
	limits := state.KeyLimits(body.KeyLimits)
	res, err := s.propose(rq, &state.UpsertKey{Name: name, Limits: limits, Secret: stored, ModifyIndex: body.CAS, Time: now},
		state.Decision{Kind: "key", Reason: fmt.Sprintf("%s %s %q: %s", by(rq.token), what, name, limitsText(limits)), Details: map[string]string{"key": name}})
	if err != nil {
		return answer{}, err
	}
	out, err := s.writtenKey(name)
	if err != nil {
		return answer{}, err
	}
	out.Changed = res.Changed
	if out.New = res.Changed && out.Key.CreateIndex == res.Index; out.New && name != state.KeyAnonymous {
		out.Secret = secret
	}
	return answer{value: out}, nil
}

func (s *Server) rotateKey(rq *request, v *state.View) (answer, error) {
	var body api.RotateKeyRequest
	if err := rq.decode(&body); err != nil {
		return answer{}, err
	}
	name, now := rq.PathValue("key"), s.cfg.Now()
	if v.Key(nil, name) == nil {
		return answer{}, noKey(name)
	}
	secret, stored := newKeySecret(now)
	_, err := s.propose(rq, &state.RotateKey{Name: name, Secret: stored, Grace: time.Duration(body.Grace), ModifyIndex: body.CAS, Time: now},
		state.Decision{Kind: "key", Reason: fmt.Sprintf("%s rotated key %q: the secrets before are valid for %s", by(rq.token), name, body.Grace), Details: map[string]string{"key": name}})
	if err != nil {
		return answer{}, err
	}
	out, err := s.writtenKey(name)
	if err != nil {
		return answer{}, err
	}
	out.Secret, out.Changed = secret, true
	return answer{value: out}, nil
}

// writtenKey returns a key that was just written.
func (s *Server) writtenKey(name string) (api.KeyResponse, error) {
	k := s.cfg.Raft.Store().View().Key(nil, name)
	if k == nil {
		return api.KeyResponse{}, conflict("key %q was deleted in the meantime", name)
	}
	return api.KeyResponse{Key: keyOf(k, s.cfg.Now())}, nil
}

func (s *Server) deleteKey(rq *request, v *state.View) (answer, error) {
	name := rq.PathValue("key")
	if v.Key(nil, name) == nil {
		return answer{}, noKey(name)
	}
	_, err := s.propose(rq, &state.DeleteKey{Name: name, ModifyIndex: rq.cas()},
		state.Decision{Kind: "key", Reason: fmt.Sprintf("%s deleted key %q", by(rq.token), name), Details: map[string]string{"key": name}})
	return answer{}, err
}

// limitsText writes limits as "weight 2, priority 5 of 5, 100 requests a minute, models a, b*".
func limitsText(l state.KeyLimits) string {
	parts := []string{"weight " + strconv.FormatFloat(l.Weight, 'g', -1, 64), fmt.Sprintf("priority %d of %d", l.Priority, l.MaxPriority)}
	for _, limit := range []struct {
		n    int64
		what string
	}{
		{l.RequestsPerMinute, "requests a minute"},
		{l.TokensPerMinute, "tokens a minute"},
		{l.Concurrency, "requests at a time"},
		{l.TokensPerDay, "tokens a day"},
		{l.TokensPerMonth, "tokens a month"},
	} {
		if limit.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", limit.n, limit.what))
		}
	}
	if !l.ExpiresAt.IsZero() {
		parts = append(parts, "expires at "+l.ExpiresAt.UTC().Format(time.RFC3339))
	}
	if len(l.Models) > 0 {
		parts = append(parts, shorten("models "+strings.Join(l.Models, ", ")))
	}
	return strings.Join(parts, ", ")
}
