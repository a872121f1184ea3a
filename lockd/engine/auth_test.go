package engine

import (
	"bytes"
	"crypto/ed25519"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"remuda/internal/replica"
)

// TestWhoMayChangeTheState: for each route, with and without a secret.
func TestWhoMayChangeTheState(t *testing.T) {
	t.Parallel()
	private := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, ed25519.SeedSize))
	other := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{2}, ed25519.SeedSize))
	public, ok := private.Public().(ed25519.PublicKey)
	require.True(t, ok)
	const local, remote = "127.0.0.1:1234", "10.0.0.7:1234"
	const admitted = http.StatusConflict // the engine has not been started
	for name, tc := range map[string]struct {
		secret string
		key    ed25519.PublicKey
		peer   string
		host   string
		header string
		origin string
		want   int
	}{
		"no secret, this machine":            {peer: local, host: "127.0.0.1:80", want: admitted},
		"no secret, this machine by name":    {peer: local, host: "localhost:80", want: admitted},
		"no secret, this machine by IPv6":    {peer: "[::1]:1234", host: "[::1]:80", want: admitted},
		"no secret, another machine":         {peer: remote, host: "127.0.0.1:80", want: http.StatusForbidden},
		"no secret, a page in a browser":     {peer: local, host: "127.0.0.1:80", origin: "http://evil.example", want: http.StatusForbidden},
		"no secret, a page of a sandbox":     {peer: local, host: "127.0.0.1:80", origin: "null", want: http.StatusForbidden},
		"no secret, a name that points here": {peer: local, host: "evil.example:80", want: http.StatusForbidden},
		"no secret, a secret is sent":        {peer: remote, host: "127.0.0.1:80", header: "Bearer s", want: http.StatusForbidden},
		"secret":                             {secret: "s", peer: remote, host: "10.0.0.1:80", header: "Bearer s", want: admitted},
		"secret, none is sent":               {secret: "s", peer: local, host: "127.0.0.1:80", want: http.StatusUnauthorized},
		"secret, a wrong one is sent":        {secret: "s", peer: local, host: "127.0.0.1:80", header: "Bearer t", want: http.StatusUnauthorized},
		"secret, an empty one is sent":       {secret: "s", peer: local, host: "127.0.0.1:80", header: "Bearer ", want: http.StatusUnauthorized},
		"secret, another scheme":             {secret: "s", peer: local, host: "127.0.0.1:80", header: "Basic s", want: http.StatusUnauthorized},
		"key":                                {key: public, peer: remote, host: "10.0.0.1:80", header: "Bearer " + replica.Secret(private, "m:v:r1"), want: admitted},
		"key, another replica's secret":      {key: public, peer: remote, host: "10.0.0.1:80", header: "Bearer " + replica.Secret(private, "m:v:r2"), want: http.StatusUnauthorized},
		"key, another controller's secret":   {key: public, peer: remote, host: "10.0.0.1:80", header: "Bearer " + replica.Secret(other, "m:v:r1"), want: http.StatusUnauthorized},
		"key, none is sent":                  {key: public, peer: local, host: "127.0.0.1:80", want: http.StatusUnauthorized},
		"both, the secret":                   {secret: "s", key: public, peer: remote, host: "10.0.0.1:80", header: "Bearer s", want: admitted},
		"both, the replica's secret":         {secret: "s", key: public, peer: remote, host: "10.0.0.1:80", header: "Bearer " + replica.Secret(private, "m:v:r1"), want: admitted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := DefaultConfig()
			cfg.Command, cfg.EngineURL, cfg.Logger = []string{"true"}, "http://127.0.0.1:1", hclog.NewNullLogger()
			cfg.Name = replica.Name{Model: "m", Variant: "v", ID: "r1"}
			cfg.Secret, cfg.ControllerKey = tc.secret, tc.key
			s, err := New(cfg)
			require.NoError(t, err)
			s.run = t.Context()
			ask := func(method, path string) *httptest.ResponseRecorder {
				r := httptest.NewRequest(method, path, nil)
				r.RemoteAddr, r.Host = tc.peer, tc.host
				if tc.header != "" {
					r.Header.Set("Authorization", tc.header)
				}
				if tc.origin != "" {
					r.Header.Set("Origin", tc.origin)
				}
				w := httptest.NewRecorder()
				s.handler().ServeHTTP(w, r)
				return w
			}
			for _, path := range []string{"/v1/drain", "/v1/sleep", "/v1/wake"} {
				w := ask(http.MethodPost, path)
				require.Equal(t, tc.want, w.Code, "%s: %s", path, w.Body)
			}
			for _, path := range []string{"/state", "/metrics"} {
				require.Equal(t, http.StatusOK, ask(http.MethodGet, path).Code, path)
			}
		})
	}
}
