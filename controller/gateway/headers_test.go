package gateway_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWithheldHeaders: engines do not speak for the gateway's name, and do not get its cookies.
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
		a := f.post(streamBody, append(more, "Cookie", "session=1", "Origin", "https://example.com", "X-Custom", "client")...)
		require.Equal(t, http.StatusOK, a.status, a.body)
		for _, name := range withheld {
			require.Empty(t, a.header.Values(name), name)
		}
		require.Equal(t, "engine", a.header.Get("X-Custom"))
		require.NotEmpty(t, a.header.Get("X-Remuda-Replica"), "the gateway's own")
		h := <-seen
		require.Empty(t, h.Get("Cookie"))
		require.Empty(t, h.Get("Origin"))
		require.Equal(t, "client", h.Get("X-Custom"))
	}
}
