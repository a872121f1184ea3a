package server_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/server"
	"remuda/controller/state"
)

// limits are those that bound nothing.
func limits(edit ...func(*api.KeyLimits)) api.KeyLimits {
	l := api.KeyLimits{Weight: 1, Priority: 5, MaxPriority: 5}
	for _, e := range edit {
		e(&l)
	}
	return l
}

func TestConstantsOfTheStateAndTheAPI(t *testing.T) {
	require.Equal(t, state.KeyAnonymous, api.KeyAnonymous)
	require.Equal(t, state.KeyOther, api.KeyOther)
	require.Equal(t, state.MaxKeyGrace, api.MaxKeyGrace)
	require.Equal(t, state.UsageDays, api.UsageDays)
	require.Equal(t, state.UsageReportDays, api.UsageReportDays)
}

func TestKeys(t *testing.T) {
	t.Parallel()
	now := epoch
	m := cluster(t, 1, settings{server: func(c *server.Config) { c.Now = func() time.Time { return now } }})[0]
	c := m.client
	list, meta, err := c.Keys(t.Context(), api.QueryOptions{})
	require.NoError(t, err)
	require.Empty(t, list)

	// A gateway that waits gets the key with the hash of its secret.
	_, gateway, err := c.GatewayState(t.Context(), api.QueryOptions{})
	require.NoError(t, err)
	type result struct {
		state api.GatewayState
		err   error
	}
	waiting := make(chan result, 1)
	go func() {
		s, _, err := c.GatewayState(t.Context(), api.QueryOptions{Index: gateway.Index, Wait: patience})
		waiting <- result{s, err}
	}()
	l := limits(func(l *api.KeyLimits) {
		*l = api.KeyLimits{Models: []string{"llama*", "meta/small"}, Weight: 2.5, Priority: 3, MaxPriority: 7, RequestsPerMinute: 60, TokensPerMinute: 1000, Concurrency: 4, TokensPerDay: 10_000, TokensPerMonth: 100_000, ExpiresAt: epoch.Add(720 * time.Hour)}
	})
	made, err := c.SetKey(t.Context(), "team/a", api.KeyRequest{KeyLimits: l, CAS: new(uint64)})
	require.NoError(t, err)
	require.True(t, made.New)
	require.True(t, made.Changed)
	require.Regexp(t, `^sk-remuda-[A-Za-z0-9_-]{43}$`, made.Secret)
	require.Equal(t, l, made.Key.KeyLimits)
	require.Equal(t, []api.KeySecret{{Prefix: made.Secret[:14], CreatedAt: epoch}}, made.Key.Secrets)
	got := <-waiting
	require.NoError(t, got.err)
	require.Equal(t, []api.GatewayKey{{Name: "team/a", KeyLimits: l, Secrets: []api.GatewaySecret{{SHA256: state.HashSecret(made.Secret)}}, Used: api.TokensUsed{Day: "2026-01-02"}}}, got.state.Keys)

	_, err = c.SetKey(t.Context(), "team/a", api.KeyRequest{KeyLimits: l, CAS: new(uint64)})
	requireError(t, err, http.StatusConflict, api.CodeConflict, `key "team/a" already exists`)
	same, err := c.SetKey(t.Context(), "team/a", api.KeyRequest{KeyLimits: l})
	require.NoError(t, err)
	require.Equal(t, api.KeyResponse{Key: made.Key}, same)

	// Its limits change and its secret does not.
	l.Weight, l.Models = 1, nil
	now = epoch.Add(time.Hour)
	changed, err := c.SetKey(t.Context(), "team/a", api.KeyRequest{KeyLimits: l, CAS: &made.Key.ModifyIndex})
	require.NoError(t, err)
	require.False(t, changed.New)
	require.True(t, changed.Changed)
	require.Empty(t, changed.Secret)
	require.Equal(t, made.Key.Secrets, changed.Key.Secrets)
	_, err = c.SetKey(t.Context(), "team/a", api.KeyRequest{KeyLimits: l, CAS: &made.Key.ModifyIndex})
	requireError(t, err, http.StatusConflict, api.CodeConflict, "has changed since it was read")

	// Another secret; the first one is valid for the grace time.
	rotated, err := c.RotateKey(t.Context(), "team/a", api.RotateKeyRequest{Grace: api.Duration(24 * time.Hour), CAS: &changed.Key.ModifyIndex})
	require.NoError(t, err)
	require.NotEqual(t, made.Secret, rotated.Secret)
	require.Equal(t, []api.KeySecret{{Prefix: rotated.Secret[:14], CreatedAt: now}, {Prefix: made.Secret[:14], CreatedAt: epoch, ExpiresAt: now.Add(24 * time.Hour)}}, rotated.Key.Secrets)
	g, _, err := c.GatewayState(t.Context(), api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, []api.GatewaySecret{{SHA256: state.HashSecret(rotated.Secret)}, {SHA256: state.HashSecret(made.Secret), ExpiresAt: now.Add(24 * time.Hour)}}, g.Keys[0].Secrets)
	_, err = c.RotateKey(t.Context(), "team/a", api.RotateKeyRequest{Grace: api.Duration(api.MaxKeyGrace + 1)})
	requireError(t, err, http.StatusBadRequest, api.CodeBadRequest, "must be 0s to 2160h0m0s")
	_, err = c.RotateKey(t.Context(), "team/a", api.RotateKeyRequest{CAS: &changed.Key.ModifyIndex})
	requireError(t, err, http.StatusConflict, api.CodeConflict, "has changed since it was read")
	now = now.Add(24 * time.Hour)
	status, _, err := c.Key(t.Context(), "team/a", api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, rotated.Key.Secrets[:1], status.Secrets, "the first one has expired")

	list, after, err := c.Keys(t.Context(), api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, []api.Key{status.Key}, list)
	require.Greater(t, after.Index, meta.Index)

	// The requests without a known key.
	anonymous, err := c.SetKey(t.Context(), api.KeyAnonymous, api.KeyRequest{KeyLimits: limits()})
	require.NoError(t, err)
	require.True(t, anonymous.New)
	require.Empty(t, anonymous.Secret)
	require.Empty(t, anonymous.Key.Secrets)
	_, err = c.RotateKey(t.Context(), api.KeyAnonymous, api.RotateKeyRequest{})
	requireError(t, err, http.StatusBadRequest, api.CodeBadRequest, "it has no secret")

	requireError(t, c.DeleteKey(t.Context(), "team/a", &changed.Key.ModifyIndex), http.StatusConflict, api.CodeConflict, "has changed")
	require.NoError(t, c.DeleteKey(t.Context(), "team/a", &status.ModifyIndex))
	requireError(t, c.DeleteKey(t.Context(), "team/a", nil), http.StatusNotFound, api.CodeNotFound, `key "team/a" does not exist: see "remuda key list"`)

	// Each change is a decision, none of which has a secret.
	decisions, _, err := c.Decisions(t.Context(), api.DecisionFilter{}, api.QueryOptions{})
	require.NoError(t, err)
	var reasons []string
	for _, d := range decisions {
		require.Equal(t, "key", d.Kind)
		reasons = append(reasons, d.Reason)
	}
	text := strings.Join(reasons, "\n")
	for _, want := range []string{
		`anonymous (no ACL token) created key "team/a": weight 2.5, priority 3 of 7, 60 requests a minute, 1000 tokens a minute, 4 requests at a time, 10000 tokens a day, 100000 tokens a month, expires at 2026-02-01T03:04:05Z, models llama*, meta/small`,
		`changed key "team/a": weight 1, priority 3 of 7`, `rotated key "team/a": the secrets before are valid for 24h0m0s`, `created key "anonymous"`, `deleted key "team/a"`,
	} {
		require.Contains(t, text, want)
	}
	require.Len(t, reasons, 5)
	require.NotContains(t, text, "sk-remuda-")
}

// TestSecretsOfKeysAreHidden: only those who write keys or are gateways see hashes, and nobody reads
// a secret.
func TestSecretsOfKeysAreHidden(t *testing.T) {
	m, secrets := bootstrapped(t)
	made, err := m.client.SetKey(t.Context(), "k", api.KeyRequest{KeyLimits: limits()})
	require.NoError(t, err)
	hash := state.HashSecret(made.Secret)
	for role, secret := range secrets {
		for _, path := range []string{"/v1/keys", "/v1/key/k", "/v1/gateway/state", "/v1/decisions", "/v1/usage"} {
			_, body := m.raw(http.MethodGet, path, secret, "")
			require.NotContains(t, body, made.Secret, "%s as %s", path, role)
			shows := path == "/v1/gateway/state" && (role == "operator" || role == "gateway")
			require.Equal(t, shows, strings.Contains(body, hash), "%s as %s", path, role)
		}
	}
	// A key is no token of the API.
	resp, _ := m.raw(http.MethodGet, "/v1/keys", made.Secret, "")
	require.Equal(t, http.StatusUnauthorized, resp.StatusCode)
}

// TestLimitsOfAModel are on their way from a model file to the gateways.
func TestLimitsOfAModel(t *testing.T) {
	t.Parallel()
	m := one(t)
	c := m.client
	for _, tt := range []struct {
		lines string
		want  api.GatewayModel
	}{
		{"max ", api.GatewayModel{Name: "m", Engines: []string{"vllm"}}},
		{"pass_authorization = true\n  queue {\n    length = 7\n    wait = \"90s\"\n    first_byte = \"20m\"\n  }\n  slo {\n    ttft_p95 = \"2s\"\n  }\n  max ",
			api.GatewayModel{Name: "m", Engines: []string{"vllm"}, PassAuthorization: true, QueueLength: 7, QueueWait: api.Duration(90 * time.Second), FirstByte: api.Duration(20 * time.Minute), TTFTP95: api.Duration(2 * time.Second)}},
		{"queue {\n    wait = \"1m\"\n  }\n  max ", api.GatewayModel{Name: "m", Engines: []string{"vllm"}, QueueWait: api.Duration(time.Minute)}},
	} {
		applied, err := c.ApplyModels(t.Context(), api.ApplyRequest{Files: modelFile(file("m", "max ", tt.lines))})
		require.NoError(t, err)
		require.False(t, applied.Models[0].Unchanged)
		status, _, err := c.Model(t.Context(), "m", api.QueryOptions{})
		require.NoError(t, err)
		is := status.Model
		require.Equal(t, tt.want, api.GatewayModel{Name: "m", Engines: tt.want.Engines, PassAuthorization: is.PassAuthorization, QueueLength: is.QueueLength, QueueWait: is.QueueWait, FirstByte: is.FirstByte, TTFTP95: is.TTFTP95})
		g, _, err := c.GatewayState(t.Context(), api.QueryOptions{})
		require.NoError(t, err)
		require.Equal(t, tt.want, g.Models[0])
		text, _, err := c.ModelFile(t.Context(), "m", 0, "", api.QueryOptions{})
		require.NoError(t, err)
		again, err := c.ApplyModels(t.Context(), api.ApplyRequest{Files: modelFile(text)})
		require.NoError(t, err)
		require.True(t, again.Models[0].Unchanged, "the file that is shown says so as well")
	}
	engines := file("m", "cost   = 3\n", "cost   = 3\n    engine = \"ollama\"\n")
	_, err := c.ApplyModels(t.Context(), api.ApplyRequest{Files: modelFile(engines)})
	require.NoError(t, err)
	g, _, err := c.GatewayState(t.Context(), api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, []string{"ollama", "vllm"}, g.Models[0].Engines)
}
