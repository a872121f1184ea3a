package gateway_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/gateway"
)

// TestCORS: pages of the configured origins may call the gateway, and preflights need no key.
func TestCORS(t *testing.T) {
	t.Parallel()
	const page = "https://chat.example.com"
	start := func(origins ...string) *fixture {
		f := newGateway(t, func(c *gateway.Config) {
			c.CORS.Origins = origins
			c.Keys.Required = true
			c.NamedKeys = []gateway.Key{{Name: "team", Token: "secret", KeyLimit: gateway.DefaultKeyLimit()}}
		})
		f.engines(newEngine(t, "a", says("x")))
		return f
	}
	preflight := func(f *fixture, origin string) answer {
		return f.do(http.MethodOptions, chat, "", "Origin", origin, "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "authorization,content-type")
	}
	f := start(page)
	a := preflight(f, page)
	require.Equal(t, http.StatusNoContent, a.status)
	require.Equal(t, page, a.header.Get("Access-Control-Allow-Origin"))
	require.Equal(t, "authorization,content-type", a.header.Get("Access-Control-Allow-Headers"))
	require.Contains(t, a.header.Get("Access-Control-Allow-Methods"), "POST")
	require.Empty(t, a.header.Get("Access-Control-Allow-Credentials"))
	require.Equal(t, "Origin", a.header.Get("Vary"))
	for key, status := range map[string]int{"secret": http.StatusOK, "wrong": http.StatusUnauthorized} {
		a = f.post(plain, "Origin", page, "Authorization", "Bearer "+key)
		require.Equal(t, status, a.status)
		require.Equal(t, page, a.header.Get("Access-Control-Allow-Origin"), "also of errors")
		require.Contains(t, a.header.Get("Access-Control-Expose-Headers"), "X-Request-Id")
	}
	a = preflight(f, "https://evil.example.com")
	require.Equal(t, http.StatusMethodNotAllowed, a.status)
	require.Empty(t, a.header.Get("Access-Control-Allow-Origin"))

	require.Equal(t, http.StatusNoContent, preflight(start("*"), page).status)
	a = preflight(start(), page)
	require.Equal(t, http.StatusMethodNotAllowed, a.status)
	require.Empty(t, a.header.Get("Access-Control-Allow-Origin"))
	require.Empty(t, a.header.Get("Vary"))

	_, err := gateway.Parse("g.hcl", []byte(`cors { origins = ["chat.example.com"] }`), gateway.DefaultConfig())
	require.ErrorContains(t, err, `cors.origins contains "chat.example.com"`)
}
