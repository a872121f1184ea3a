package state_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/controller/state"
)

// limits returns limits that bound nothing.
func limits(edit ...func(*state.KeyLimits)) state.KeyLimits {
	l := state.KeyLimits{Weight: 1, Priority: 5, MaxPriority: 5}
	for _, e := range edit {
		e(&l)
	}
	return l
}

func secretOf(text string, at time.Time) state.KeySecret {
	return state.KeySecret{Hash: state.HashSecret(text), Prefix: "sk-remuda-" + text, CreatedAt: at}
}

func (l *log) key(name string) *state.Key {
	k := l.store.View().Key(nil, name)
	require.NotNil(l.t, k, name)
	return k
}

func TestKeyIsCreatedAndChanged(t *testing.T) {
	l := newLog(t)
	create := &state.UpsertKey{Name: "team-a", Limits: limits(), Secret: secretOf("a", epoch), ModifyIndex: ptr(uint64(0)), Time: epoch}
	l.must(create)
	k := l.key("team-a")
	require.Equal(t, []state.KeySecret{secretOf("a", epoch)}, k.Secrets)
	require.Equal(t, epoch, k.CreatedAt)
	require.Equal(t, l.index, k.CreateIndex)
	require.ErrorIs(t, l.apply(create).Err, state.ErrConflict, "it exists")

	// Its limits change, and its secrets do not.
	more := limits(func(l *state.KeyLimits) { l.Models, l.TokensPerDay = []string{"llama*", "small"}, 1000 })
	l.must(&state.UpsertKey{Name: "team-a", Limits: more, Secret: secretOf("b", epoch), ModifyIndex: &k.ModifyIndex, Time: epoch.Add(time.Hour)})
	changed := l.key("team-a")
	require.Equal(t, more, changed.KeyLimits)
	require.Equal(t, k.Secrets, changed.Secrets)
	require.Equal(t, k.CreatedAt, changed.CreatedAt)
	require.Equal(t, k.CreateIndex, changed.CreateIndex)
	require.Greater(t, changed.ModifyIndex, k.ModifyIndex)
	require.ErrorIs(t, l.apply(&state.UpsertKey{Name: "team-a", Limits: limits(), ModifyIndex: &k.ModifyIndex}).Err, state.ErrConflict, "stale")
	require.ErrorIs(t, l.apply(&state.UpsertKey{Name: "team-b", Limits: limits(), ModifyIndex: ptr(uint64(7))}).Err, state.ErrNotFound)

	same := l.apply(&state.UpsertKey{Name: "team-a", Limits: more, Time: epoch.Add(2 * time.Hour)})
	require.Nil(t, same.Err)
	require.False(t, same.Changed)
	require.Equal(t, changed, l.key("team-a"))

	l.must(&state.DeleteKey{Name: "team-a", ModifyIndex: &changed.ModifyIndex})
	require.Empty(t, l.store.View().Keys(nil))
	require.ErrorIs(t, l.apply(&state.DeleteKey{Name: "team-a"}).Err, state.ErrNotFound)
}

func TestAnonymousKeyHasNoSecret(t *testing.T) {
	l := newLog(t)
	l.must(&state.UpsertKey{Name: state.KeyAnonymous, Limits: limits(), Secret: secretOf("a", epoch), Time: epoch})
	require.Empty(t, l.key(state.KeyAnonymous).Secrets)
	require.ErrorContains(t, l.apply(&state.RotateKey{Name: state.KeyAnonymous, Secret: secretOf("b", epoch), Time: epoch}).Err, "it has no secret")
	k := *l.key(state.KeyAnonymous)
	k.Secrets = []state.KeySecret{secretOf("a", epoch)}
	require.ErrorContains(t, l.apply(&state.SetKey{Name: state.KeyAnonymous, Key: &k, ModifyIndex: k.ModifyIndex}).Err, "it cannot have a secret")
	require.ErrorContains(t, l.apply(&state.SetKey{Name: "k", Key: &state.Key{Name: "k", KeyLimits: limits()}}).Err, "it has no secret")
}

func TestSecretsAreRotated(t *testing.T) {
	at := func(h int) time.Time { return epoch.Add(time.Duration(h) * time.Hour) }
	l := newLog(t)
	l.must(&state.UpsertKey{Name: "k", Limits: limits(), Secret: secretOf("a", at(0)), Time: at(0)})
	l.must(&state.RotateKey{Name: "k", Secret: secretOf("b", at(1)), Grace: 10 * time.Hour, Time: at(1)})
	expiring := func(s state.KeySecret, at time.Time) state.KeySecret { s.ExpiresAt = at; return s }
	require.Equal(t, []state.KeySecret{secretOf("b", at(1)), expiring(secretOf("a", at(0)), at(11))}, l.key("k").Secrets)

	// The first one is not valid for longer because of the second grace time.
	l.must(&state.RotateKey{Name: "k", Secret: secretOf("c", at(2)), Grace: 24 * time.Hour, Time: at(2)})
	require.Equal(t, []state.KeySecret{secretOf("c", at(2)), expiring(secretOf("b", at(1)), at(26)), expiring(secretOf("a", at(0)), at(11))}, l.key("k").Secrets)
	require.False(t, l.key("k").Secrets[2].Expired(at(11).Add(-1)))
	require.True(t, l.key("k").Secrets[2].Expired(at(11)))

	// What has expired goes with the next rotation, and all without a grace time.
	l.must(&state.RotateKey{Name: "k", Secret: secretOf("d", at(12)), Grace: time.Hour, Time: at(12)})
	require.Equal(t, []state.KeySecret{secretOf("d", at(12)), expiring(secretOf("c", at(2)), at(13)), expiring(secretOf("b", at(1)), at(13))}, l.key("k").Secrets)
	l.must(&state.RotateKey{Name: "k", Secret: secretOf("e", at(12)), Time: at(12)})
	require.Equal(t, []state.KeySecret{secretOf("e", at(12))}, l.key("k").Secrets)

	require.ErrorIs(t, l.apply(&state.RotateKey{Name: "x", Secret: secretOf("f", at(13)), Time: at(13)}).Err, state.ErrNotFound)
	require.ErrorIs(t, l.apply(&state.RotateKey{Name: "k", Secret: secretOf("f", at(13)), ModifyIndex: ptr(uint64(1)), Time: at(13)}).Err, state.ErrConflict)
	for _, grace := range []time.Duration{-1, state.MaxKeyGrace + 1} {
		require.ErrorContains(t, l.apply(&state.RotateKey{Name: "k", Secret: secretOf("f", at(13)), Grace: grace, Time: at(13)}).Err, "grace is "+grace.String()+": must be 0s to 2160h0m0s")
	}
	for i := range state.MaxKeySecrets - 1 {
		l.must(&state.RotateKey{Name: "k", Secret: secretOf(fmt.Sprint(i), at(14)), Grace: time.Hour, Time: at(14)})
	}
	require.ErrorContains(t, l.apply(&state.RotateKey{Name: "k", Secret: secretOf("z", at(14)), Grace: time.Hour, Time: at(14)}).Err, "has 10 valid secrets")
}

func TestBadKeysNameEveryFault(t *testing.T) {
	tokens := int64(math.MaxInt64)
	for _, tt := range []struct {
		name string
		key  string
		edit func(*state.KeyLimits)
		want []string
	}{
		{"name", "a b", func(*state.KeyLimits) {}, []string{`key "a b": key name "a b": spaces`}},
		{"no name", "", func(*state.KeyLimits) {}, []string{"key name is empty"}},
		{"other", state.KeyOther, func(*state.KeyLimits) {}, []string{`key name "other" is reserved`}},
		{"everything", "k", func(l *state.KeyLimits) {
			*l = state.KeyLimits{Models: []string{"a*b", "c", "c", ""}, Weight: 2000, Priority: 10, MaxPriority: -1, RequestsPerMinute: -1, TokensPerMinute: -2, Concurrency: -3, TokensPerDay: -4, TokensPerMonth: tokens}
		}, []string{
			`model "a*b": a '*' is allowed at the end only`, `duplicate model "c"`, "model is empty", "weight is 2000: must be 0.001 to 1000", "max priority is -1: must be 0 to 9", "priority is 10: must be 0 to 9",
			"requests per minute is -1", "tokens per minute is -2", "concurrency is -3", "tokens per day is -4", fmt.Sprintf("tokens per month is %d: must be 0 (no limit) to 9007199254740991", tokens),
		}},
		{"priority above the highest", "k", func(l *state.KeyLimits) { l.Priority, l.MaxPriority = 4, 3 }, []string{"priority is 4: must be at most the max priority, which is 3"}},
		{"no weight", "k", func(l *state.KeyLimits) { l.Weight = 0 }, []string{"weight is 0"}},
		{"not a weight", "k", func(l *state.KeyLimits) { l.Weight = math.NaN() }, []string{"weight is NaN"}},
		{"too many models", "k", func(l *state.KeyLimits) { l.Models = strings.Split(strings.Repeat("m ", 1001), " ") }, []string{"1002 models: must be at most 1000"}},
		{"a year without JSON", "k", func(l *state.KeyLimits) { l.ExpiresAt = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) }, []string{"expires at is in the year 10000"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLog(t)
			res := l.apply(&state.UpsertKey{Name: tt.key, Limits: limits(tt.edit), Secret: secretOf("a", epoch), Time: epoch})
			require.ErrorIs(t, res.Err, state.ErrBadRequest)
			for _, want := range tt.want {
				require.ErrorContains(t, res.Err, want)
			}
			require.Empty(t, l.store.View().Keys(nil))
		})
	}
}

// TestWhatNoRowOfAKeyHolds: a command that was not made by a proposal of this version leaves the
// state as it was.
func TestWhatNoRowOfAKeyHolds(t *testing.T) {
	for _, tt := range []struct {
		text string
		edit func(*state.SetKey)
	}{
		{"has changed since", func(c *state.SetKey) { c.ModifyIndex = 99 }},
		{"already exists", func(c *state.SetKey) { c.ModifyIndex = 0 }},
		{`the row is of key "x"`, func(c *state.SetKey) { c.Key.Name = "x" }},
		{"not a SHA-256", func(c *state.SetKey) { c.Key.Secrets[0].Hash = "00" }},
		{"not a SHA-256", func(c *state.SetKey) { c.Key.Secrets[0].Hash = strings.ToUpper(state.HashSecret("x")) }},
	} {
		l := newLog(t)
		l.must(&state.UpsertKey{Name: "k", Limits: limits(), Secret: secretOf("a", epoch), Time: epoch})
		k := *l.key("k")
		k.Weight, k.Secrets = 2, slices.Clone(k.Secrets)
		c := &state.SetKey{Name: "k", Key: &k, ModifyIndex: k.ModifyIndex}
		before := rowsOf(t, l.store.View())
		tt.edit(c)
		require.ErrorContains(t, l.apply(c).Err, tt.text)
		require.Equal(t, before, rowsOf(t, l.store.View()), tt.text)
	}
	l := newLog(t)
	require.ErrorIs(t, l.apply(&state.SetKey{Name: "k"}).Err, state.ErrNotFound)
}

// TestKeysNeedTheirFeatureLevel: an older server would stop at such a command.
func TestKeysNeedTheirFeatureLevel(t *testing.T) {
	l := newLog(t)
	upsert := &state.UpsertKey{Name: "k", Limits: limits(), Secret: secretOf("a", epoch), Time: epoch}
	key, refused := upsert.Resolve(l.store.View())
	require.Nil(t, refused)
	decided, err := state.Decide(key, state.Decision{Kind: "key", Time: epoch})
	require.NoError(t, err)
	writeModel := func(edit func(*state.Model)) state.Command {
		c, refused := (&state.UpsertModel{Model: model("m", edit), Time: epoch}).Resolve(l.store.View())
		require.Nil(t, refused)
		return c
	}
	for _, tt := range []struct {
		name    string
		command state.Command
		want    int
	}{
		{"key", key, 2},
		{"key with a decision", decided, 2},
		{"usage", &state.CountUsage{}, 2},
		{"model", writeModel(func(*state.Model) {}), 1},
		{"model with a queue", writeModel(func(m *state.Model) { m.Queue.Wait = time.Second }), 2},
		{"model with a goal", writeModel(func(m *state.Model) { m.SLO.ITL = time.Second }), 2},
		{"model that passes credentials on", writeModel(func(m *state.Model) { m.PassAuthorization = true }), 2},
	} {
		require.Equal(t, tt.want, state.Level(tt.command), tt.name)
	}
}

func TestKeysAreBounded(t *testing.T) {
	l := newLog(t)
	for i := range state.MaxKeys {
		name := fmt.Sprint("k", i)
		l.applied(&state.SetKey{Name: name, Key: &state.Key{Name: name, KeyLimits: limits(), CreatedAt: epoch, Secrets: []state.KeySecret{secretOf(name, epoch)}}})
	}
	create := &state.UpsertKey{Name: "new", Limits: limits(), Secret: secretOf("a", epoch), Time: epoch}
	require.ErrorContains(t, l.apply(create).Err, "there are 10000 keys, which is the limit")
	l.must(&state.UpsertKey{Name: "k7", Limits: limits(func(l *state.KeyLimits) { l.Weight = 2 }), Time: epoch}, &state.DeleteKey{Name: "k8"}, create)
}

// applied applies a command without the log's keeping it.
func (l *log) applied(c state.Command) {
	data, err := state.Encode(c)
	require.NoError(l.t, err)
	l.index++
	require.Nil(l.t, l.store.Apply(l.index, data).Err)
}

func TestSnapshotsOfKeys(t *testing.T) {
	l := full(t)
	l.must(&state.UpsertKey{Name: "k", Limits: limits(), Secret: secretOf("a", epoch), Time: epoch},
		&state.RotateKey{Name: "k", Secret: secretOf("b", epoch), Grace: time.Hour, Time: epoch})
	again := restored(t, snapshotOf(t, l.store))
	require.Equal(t, l.store.View().Keys(nil), again.View().Keys(nil))
	require.Equal(t, l.index, again.View().TableIndex(state.TableKeys))
}

// drawKey draws a proposal for a key.
func drawKey(t *rapid.T, v *state.View, now time.Time) state.Proposal {
	name := pick([]string{"k0", "k1", state.KeyAnonymous, state.KeyOther}).Draw(t, "key")
	var cas *uint64
	if k := v.Key(nil, name); k != nil && rapid.Bool().Draw(t, "compare") {
		cas = ptr(k.ModifyIndex - uint64(between(0, 9).Draw(t, "stale")/9))
	}
	secret := secretOf(fmt.Sprint(between(0, 99).Draw(t, "secret")), now)
	switch between(0, 5).Draw(t, "change") {
	case 0:
		return &state.DeleteKey{Name: name, ModifyIndex: cas}
	case 1, 2:
		return &state.RotateKey{Name: name, Secret: secret, Grace: time.Duration(between(-1, 100).Draw(t, "grace")) * time.Second, ModifyIndex: cas, Time: now}
	}
	return &state.UpsertKey{Name: name, Secret: secret, ModifyIndex: cas, Time: now, Limits: limits(func(l *state.KeyLimits) {
		l.Weight = float64(between(0, 3).Draw(t, "weight"))
		l.Models = []string{"m0", "m*"}[:between(0, 2).Draw(t, "models")]
		l.TokensPerDay = int64(between(-1, 5).Draw(t, "budget"))
	})}
}

// checkKeys looks at what commands that were checked leave.
func checkKeys(t require.TestingT, v *state.View) {
	for _, k := range v.Keys(nil) {
		require.Equal(t, k.Name == state.KeyAnonymous, len(k.Secrets) == 0, "key %s has %d secrets", k.Name, len(k.Secrets))
		require.NotEqual(t, state.KeyOther, k.Name)
	}
}

func checkUpsertedKey(t require.TestingT, c *state.UpsertKey, old, k *state.Key) {
	require.Equal(t, len(c.Limits.Models), len(k.Models))
	require.Equal(t, c.Limits.Weight, k.Weight)
	require.Equal(t, c.Limits.TokensPerDay, k.TokensPerDay)
	if old != nil {
		require.Equal(t, old.Secrets, k.Secrets)
	} else if k.Name != state.KeyAnonymous {
		require.Equal(t, []state.KeySecret{c.Secret}, k.Secrets)
	}
}

func checkRotatedKey(t require.TestingT, c *state.RotateKey, old, k *state.Key) {
	require.Equal(t, c.Secret, k.Secrets[0])
	require.Equal(t, old.KeyLimits, k.KeyLimits)
	for _, s := range k.Secrets[1:] {
		require.False(t, s.Expired(c.Time))
		require.False(t, s.ExpiresAt.IsZero() || s.ExpiresAt.After(c.Time.Add(c.Grace)))
	}
}
