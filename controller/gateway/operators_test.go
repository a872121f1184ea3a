package gateway_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOperatorsPort: what operators read has a port of its own.
func TestOperatorsPort(t *testing.T) {
	t.Parallel()
	f := newGateway(t)
	f.do(http.MethodGet, "/metrics", "").requireError(t, http.StatusNotFound, "unknown_url")
	for _, port := range []string{f.url, f.operators} {
		require.Equal(t, http.StatusOK, f.ask(port, http.MethodGet, "/live", "").status)
		require.Equal(t, http.StatusServiceUnavailable, f.ask(port, http.MethodGet, "/ready", "").status)
	}
	f.engines()
	require.Equal(t, http.StatusOK, f.ask(f.operators, http.MethodGet, "/ready", "").status)
	require.Contains(t, f.ask(f.operators, http.MethodGet, "/metrics", "").body, "remuda_gateway_ready 1\n")
	require.Equal(t, http.StatusMethodNotAllowed, f.ask(f.operators, http.MethodPost, "/metrics", "").status)
	for _, path := range []string{"/v1/models", chat, "/"} {
		a := f.ask(f.operators, http.MethodGet, path, "")
		require.Equal(t, http.StatusNotFound, a.status, path)
		requireErrorBody(t, a.body, "unknown_url")
	}
}
