package gateway_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWithheldHeaders: engines do not speak for the gateway's name, and do not get its cookies. Clients do
// not speak for the gateway to engines.
func TestWithheldHeaders(t *testing.T) {
	t.Parallel()
	withheld := []string{"Set-Cookie", "Server", "Strict-Transport-Security", "Access-Control-Allow-Origin", "Access-Control-Expose-Headers", "Alt-Svc", "Clear-Site-Data", "X-Powered-By", "X-Remuda-Made-Up"}
	f := newGateway(t)
	seen := make(chan http.Header, 2)
	f.engines(newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
		seen <- r.Header
		for _, name := range withheld {
			w.Header().Set(name, "engine")
		}
		w.Header().Set("X-Custom", "engine")
		if r.Header.Get("X-Stream") != "" {
			sse(w, "data: [DONE]\n\n")
			return
		}
		says("x")(w, r)
	}))
	for _, more := range [][]string{nil, {"X-Stream", "1"}} {
		sent := append(more, "Cookie", "session=1", "Origin", "https://example.com", "X-Custom", "client",
			"X-Remuda-Timeout", "1m", "X-Remuda-Priority", "1", "X-Remuda-Made-Up", "1", "X-Real-Ip", "203.0.113.9", "Forwarded", "for=203.0.113.9",
			"X-Forwarded-For", "203.0.113.9", "X-Forwarded-Host", "example.com", "X-Forwarded-Proto", "gopher", "X-Forwarded-Prefix", "/x")
		a := f.post(streamBody, sent...)
		require.Equal(t, http.StatusOK, a.status, a.body)
		for _, name := range withheld {
			require.Empty(t, a.header.Values(name), name)
		}
		require.Equal(t, "engine", a.header.Get("X-Custom"))
		require.NotEmpty(t, a.header.Get("X-Remuda-Replica"), "the gateway's own")
		h := <-seen
		for _, name := range []string{"Cookie", "Origin", "X-Remuda-Timeout", "X-Remuda-Priority", "X-Remuda-Made-Up", "X-Real-Ip", "Forwarded", "X-Forwarded-Prefix"} {
			require.Empty(t, h.Values(name), name)
		}
		require.Equal(t, []string{"203.0.113.9, 127.0.0.1"}, h.Values("X-Forwarded-For"), "the last address is the gateway's word")
		require.Equal(t, []string{f.addr}, h.Values("X-Forwarded-Host"))
		require.Equal(t, []string{"http"}, h.Values("X-Forwarded-Proto"))
		require.Equal(t, "client", h.Get("X-Custom"))
	}
}
