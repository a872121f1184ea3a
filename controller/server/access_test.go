package server_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/raft"
	"remuda/controller/server"
	"remuda/controller/state"
	"remuda/internal/testkit/loopback"
)

// rules say who may call each route, apart from the server's own table: "*" is anyone,
// otherwise o(perator), g(ateway), a(utoscaler) and r(ead-only).
var rules = map[string]string{
	"GET /v1/models":                        "ogar",
	"GET /v1/policies":                      "oar",
	"GET /v1/autoscalers":                   "oar",
	"PUT /v1/models":                        "o",
	"GET /v1/model/{model}":                 "ogar",
	"GET /v1/model/{model}/file":            "oar",
	"GET /v1/model/{model}/versions":        "oar",
	"PUT /v1/model/{model}/revert":          "o",
	"DELETE /v1/model/{model}":              "o",
	"PUT /v1/model/{model}/stop":            "o",
	"PUT /v1/model/{model}/start":           "o",
	"PUT /v1/model/{model}/scale":           "oa",
	"PUT /v1/model/{model}/pool/{pool}":     "o",
	"PUT /v1/plan":                          "oar",
	"GET /v1/pools":                         "oar",
	"GET /v1/pipelines":                     "ogar",
	"GET /v1/pipeline/{pipeline}":           "ogar",
	"PUT /v1/pipeline/{pipeline}":           "o",
	"DELETE /v1/pipeline/{pipeline}":        "o",
	"GET /v1/keys":                          "oar",
	"GET /v1/key/{key}":                     "oar",
	"PUT /v1/key/{key}":                     "o",
	"POST /v1/key/{key}/rotate":             "o",
	"DELETE /v1/key/{key}":                  "o",
	"GET /v1/usage":                         "oar",
	"GET /v1/dedicated":                     "oar",
	"PUT /v1/dedicated":                     "o",
	"DELETE /v1/dedicated":                  "o",
	"GET /v1/dedicated/schedule":            "oar",
	"PUT /v1/dedicated/schedule":            "o",
	"DELETE /v1/dedicated/schedule":         "o",
	"PUT /v1/evict":                         "o",
	"GET /v1/replicas":                      "ogar",
	"GET /v1/replica/{replica}":             "ogar",
	"GET /v1/nodes":                         "oar",
	"GET /v1/node/{node}":                   "oar",
	"PUT /v1/node/{node}/cordon":            "o",
	"GET /v1/switches":                      "oar",
	"PUT /v1/switch/{switch}":               "o",
	"DELETE /v1/switch/{switch}":            "o",
	"GET /v1/decisions":                     "oar",
	"GET /v1/gateway/state":                 "og",
	"PUT /v1/gateway/report":                "og",
	"GET /v1/queues":                        "oar",
	"GET /v1/overview":                      "oar",
	"GET /v1/queue/{model}":                 "oar",
	"GET /v1/request/{id}":                  "oar",
	"POST /v1/request/{id}/kill":            "o",
	"GET /v1/gateways":                      "oar",
	"POST /v1/gateway/{gateway}/drain":      "o",
	"POST /v1/replica/{replica}/failover":   "o",
	"PUT /v1/acl/bootstrap":                 "*",
	"GET /v1/acl/tokens":                    "o",
	"PUT /v1/acl/token":                     "o",
	"DELETE /v1/acl/token/{accessor}":       "o",
	"GET /v1/acl/token/self":                "ogar",
	"GET /v1/operator/raft/configuration":   "oar",
	"DELETE /v1/operator/raft/peer/{id}":    "o",
	"PUT /v1/operator/raft/promote/{id}":    "o",
	"PUT /v1/operator/raft/transfer-leader": "o",
	"GET /v1/operator/snapshot":             "o",
	"PUT /v1/operator/snapshot":             "o",
	"GET /v1/status/leader":                 "*",
	"GET /v1/agent/self":                    "oar",
	"GET /v1/agent/health":                  "oar",
	"GET /v1/openapi.json":                  "*",
	"GET /metrics":                          "oar",
	"GET /live":                             "*",
	"GET /ready":                            "*",
}

// path is a pattern with parameters that name nothing.
func path(pattern string) string {
	segments := strings.Split(pattern, "/")
	for i, s := range segments {
		if strings.HasPrefix(s, "{") {
			segments[i] = "nothing"
		}
	}
	return strings.Join(segments, "/")
}

func TestEveryRouteAsksForItsToken(t *testing.T) {
	m, secrets := bootstrapped(t)
	deleted := token(t, m.client, "operator")
	require.NoError(t, m.client.DeleteToken(t.Context(), deleted.Accessor))
	before := m.store.View().Index()

	require.Len(t, rules, len(server.Routes()), "a rule for each route, and no more")
	for _, r := range server.Routes() {
		key := r.Method + " " + r.Pattern
		rule, ok := rules[key]
		require.True(t, ok, "%s has no rule", key)
		for _, shown := range []struct{ what, secret string }{{"no token", ""}, {"a wrong token", "00000000-0000-0000-0000-000000000000"}, {"a deleted token", deleted.SecretID}} {
			resp, body := m.raw(r.Method, path(r.Pattern), shown.secret, "")
			if rule == "*" {
				require.NotContains(t, []int{http.StatusUnauthorized, http.StatusForbidden}, resp.StatusCode, "%s with %s: %s", key, shown.what, body)
				continue
			}
			require.Equal(t, http.StatusUnauthorized, resp.StatusCode, "%s with %s: %s", key, shown.what, body)
			require.Equal(t, api.CodeNoToken, refused(t, body).Code)
			require.Equal(t, "Bearer", resp.Header.Get("WWW-Authenticate"))
			require.Empty(t, resp.Header.Get(api.HeaderIndex), "nothing is told")
		}
		for role, secret := range secrets {
			resp, body := m.raw(r.Method, path(r.Pattern), secret, "")
			may := rule == "*" || strings.ContainsRune(rule, rune(role[0]))
			switch {
			case !may:
				require.Equal(t, http.StatusForbidden, resp.StatusCode, "%s as %s: %s", key, role, body)
				require.Equal(t, api.CodeForbidden, refused(t, body).Code, "%s as %s", key, role)
				require.Contains(t, refused(t, body).Message, "role "+role)
			case r.Pattern == "/v1/operator/snapshot" && r.Method == http.MethodPut:
				require.Equal(t, http.StatusBadRequest, resp.StatusCode, "an empty snapshot")
			default:
				require.NotContains(t, []int{http.StatusUnauthorized, http.StatusForbidden}, resp.StatusCode, "%s as %s: %s", key, role, body)
			}
		}
	}
	require.Equal(t, before, m.store.View().TableIndex(), "none of it has changed anything")
}

func TestBeforeTheFirstToken(t *testing.T) {
	t.Parallel()
	m := cluster(t, 1, settings{acl: true})[0]
	for _, r := range server.Routes() {
		key := r.Method + " " + r.Pattern
		if rules[key] == "*" {
			continue
		}
		resp, body := m.raw(r.Method, path(r.Pattern), "", "")
		require.Equal(t, http.StatusUnauthorized, resp.StatusCode, key)
		require.Contains(t, refused(t, body).Message, "/v1/acl/bootstrap", key)
	}
	first, err := m.client.BootstrapACL(t.Context())
	require.NoError(t, err)
	require.Equal(t, "operator", first.Role)
	_, err = m.client.BootstrapACL(t.Context())
	requireError(t, err, http.StatusConflict, api.CodeConflict, "an operator token already exists")

	c := m.as(first.SecretID)
	self, _, err := c.SelfToken(t.Context(), api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, first.Accessor, self.Accessor)
	require.Empty(t, self.SecretID)
	tokens, _, err := c.Tokens(t.Context(), api.QueryOptions{})
	require.NoError(t, err)
	require.Len(t, tokens, 1)
	require.Empty(t, tokens[0].SecretID, "a secret is told once")

	// The last operator's token stays, or anybody could make the first one again.
	requireError(t, c.DeleteToken(t.Context(), first.Accessor), http.StatusConflict, api.CodeConflict, "is the only operator token")
	second := token(t, c, "operator")
	require.NoError(t, c.DeleteToken(t.Context(), first.Accessor))
	_, _, err = c.SelfToken(t.Context(), api.QueryOptions{})
	requireError(t, err, http.StatusUnauthorized, api.CodeNoToken, "unknown ACL token")
	requireError(t, m.as(second.SecretID).DeleteToken(t.Context(), second.Accessor), http.StatusConflict, api.CodeConflict, "is the only operator token")
}

// TestAServerThatHasJustStarted: its state is empty until it hears from the leader. It says that there is none, and not
// that the token is unknown or that ACLs are not set up.
func TestAServerThatHasJustStarted(t *testing.T) {
	t.Parallel()
	addresses := []string{loopback.Free(t), loopback.Free(t), loopback.Free(t)}
	dirs := []string{t.TempDir(), t.TempDir(), t.TempDir()}
	start := func(i int) *member {
		return startMember(t, addresses, i, settings{acl: true,
			raft: func(c *raft.Config) { c.DataDir = dirs[i] }, server: func(c *server.Config) { c.LeaderWait = 200 * time.Millisecond }})
	}
	ms := []*member{start(0), start(1), start(2)}
	leaderOf(t, ms)
	first, err := ms[0].client.BootstrapACL(t.Context())
	require.NoError(t, err)
	for _, m := range ms {
		eventually(t, "the server has the token", func() bool { return m.store.View().TokenBySecret(first.SecretID) != nil })
	}
	for _, m := range ms {
		m.close()
	}

	ms[0] = start(0)
	for _, secret := range []string{first.SecretID, ""} {
		_, err = ms[0].as(secret).AgentSelf(t.Context())
		requireError(t, err, http.StatusServiceUnavailable, api.CodeNoLeader, "no leader")
		_, _, err = ms[0].as(secret).Models(t.Context(), api.QueryOptions{Stale: true})
		requireError(t, err, http.StatusServiceUnavailable, api.CodeNoLeader, "no leader")
	}
	ms[1] = start(1)
	leaderOf(t, ms[:2])
	for _, m := range ms[:2] {
		self, err := m.as(first.SecretID).AgentSelf(t.Context())
		require.NoError(t, err)
		require.Equal(t, m.node.ID(), self.ID)
		_, _, err = m.as(first.SecretID).Models(t.Context(), api.QueryOptions{Stale: true})
		require.NoError(t, err)
		_, err = m.client.AgentSelf(t.Context())
		requireError(t, err, http.StatusUnauthorized, api.CodeNoToken, "missing ACL token")
	}
}

func TestBearerToken(t *testing.T) {
	m, secrets := bootstrapped(t)
	for header, want := range map[string]int{
		"Bearer " + secrets["read-only"]: http.StatusOK,
		"bearer " + secrets["read-only"]: http.StatusOK,
		"Basic " + secrets["read-only"]:  http.StatusUnauthorized,
		secrets["read-only"]:             http.StatusUnauthorized,
		"Bearer ":                        http.StatusUnauthorized,
	} {
		resp, body := m.raw(http.MethodGet, "/v1/models", "", "", "Authorization", header)
		require.Equal(t, want, resp.StatusCode, "%q: %s", header, body)
	}
}

func TestTheAutoscalerScalesAsItselfOnly(t *testing.T) {
	m, secrets := bootstrapped(t)
	m.applied("m")
	c := m.as(secrets["autoscaler"])
	_, err := c.Scale(t.Context(), "m", api.ScaleRequest{Replicas: 3, Origin: "operator"})
	requireError(t, err, http.StatusForbidden, api.CodeForbidden, `a token of the role autoscaler can scale as "autoscaler" only, not as "operator"`)
	r, err := c.Scale(t.Context(), "m", api.ScaleRequest{Replicas: 3})
	require.NoError(t, err)
	require.True(t, r.Changed)
	require.Equal(t, 3, r.Target)

	// The model's management holds for it, and not for an operator.
	_, err = m.client.ApplyModels(t.Context(), api.ApplyRequest{Files: modelFile(file("m", `"full"`, `"upscaling"`))})
	require.NoError(t, err)
	_, err = c.Scale(t.Context(), "m", api.ScaleRequest{Replicas: 1})
	requireError(t, err, http.StatusForbidden, api.CodeForbidden, "upscaling")
	_, err = m.client.Scale(t.Context(), "m", api.ScaleRequest{Replicas: 1, Origin: "autoscaler"})
	requireError(t, err, http.StatusForbidden, api.CodeForbidden, "upscaling")
	_, err = m.client.Scale(t.Context(), "m", api.ScaleRequest{Replicas: 1})
	require.NoError(t, err)
}

func TestWithoutTokens(t *testing.T) {
	t.Parallel()
	m := one(t)
	m.applied("m")
	_, err := m.client.BootstrapACL(t.Context())
	requireError(t, err, http.StatusBadRequest, api.CodeBadRequest, "ACLs are disabled")
	_, _, err = m.client.SelfToken(t.Context(), api.QueryOptions{})
	requireError(t, err, http.StatusNotFound, api.CodeNotFound, "ACLs are disabled")
	_, err = m.client.CreateToken(t.Context(), api.TokenRequest{Role: "gateway"})
	requireError(t, err, http.StatusBadRequest, api.CodeBadRequest, "ACLs are disabled")
	ds, _, err := m.client.Decisions(t.Context(), api.DecisionFilter{Model: "m"}, api.QueryOptions{})
	require.NoError(t, err)
	require.True(t, slices.ContainsFunc(ds, func(d api.Decision) bool { return strings.Contains(d.Reason, "anonymous (no ACL token)") }))
}

// lateDelete is a server whose first token is deleted later than anybody is told.
type lateDelete struct {
	server.Raft
	held state.Command
}

func (l *lateDelete) Apply(ctx context.Context, c state.Command) (state.Result, error) {
	if _, ok := c.(*state.DeleteToken); ok && l.held == nil {
		l.held = c
		return state.Result{}, raft.ErrUnknownOutcome
	}
	return l.Raft.Apply(ctx, c)
}

// TestAnOperatorRemainsWhateverIsLate: who takes one operator's token away, hears
// nothing, and takes the other away, still has one of them when both have happened.
func TestAnOperatorRemainsWhateverIsLate(t *testing.T) {
	t.Parallel()
	late := &lateDelete{}
	m := cluster(t, 1, settings{acl: true, server: func(c *server.Config) { late.Raft, c.Raft = c.Raft, late }})[0]
	first, err := m.client.BootstrapACL(t.Context())
	require.NoError(t, err)
	c := m.as(first.SecretID)
	second := token(t, c, "operator")
	requireError(t, c.DeleteToken(t.Context(), second.Accessor), http.StatusGatewayTimeout, api.CodeUnknownOutcome, "check the state before retrying (the outcome is unknown)")
	require.NoError(t, c.DeleteToken(t.Context(), first.Accessor))
	_, err = m.node.Apply(t.Context(), late.held)
	require.ErrorIs(t, err, state.ErrConflict)
	_, err = m.client.BootstrapACL(t.Context())
	requireError(t, err, http.StatusConflict, api.CodeConflict, "an operator token already exists")
}
