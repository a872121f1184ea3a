package engine_test

import (
	"bytes"
	"crypto/ed25519"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/internal/replica"
	"remuda/internal/testkit/consultest"
	"remuda/lockd/engine"
)

// TestKeyOfTheEngine: the engine asks for a key that the gateways can derive from what the shim
// registers, over all restarts.
func TestKeyOfTheEngine(t *testing.T) {
	t.Parallel()
	controller := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, ed25519.SeedSize))
	status := func(s *shim, key string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.engine+"/v1/models", nil)
		require.NoError(t, err)
		if key != "" {
			req.Header.Set("Authorization", "Bearer "+key)
		}
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		return resp.StatusCode
	}
	start := func(t *testing.T, record string, env ...string) (s *shim, offer string) {
		a := consultest.New(t)
		s = startShim(t, settings{consul: a.Addr(), env: env, tune: func(c *engine.Config) { c.Record = record }})
		s.awaitState(engine.Active)
		a.Await(t, "the registration", registered)
		require.Len(t, a.Services(), 1)
		return s, a.Services()[0].Meta["offer"]
	}
	jobEnv := "REMUDA_GATEWAY_KEY=" + replica.GatewayPublicKey(controller)
	derive := func(offer string) string {
		key, err := replica.EngineKey(replica.GatewayKey(controller), "m:v:r1", offer)
		require.NoError(t, err)
		return key
	}

	record := filepath.Join(t.TempDir(), "record")
	s, first := start(t, record, jobEnv)
	require.Equal(t, http.StatusUnauthorized, status(s, ""))
	require.Equal(t, http.StatusUnauthorized, status(s, "client"))
	require.Equal(t, http.StatusOK, status(s, derive(first)))
	require.NotContains(t, s.log.String(), derive(first), "it is in no log")

	s.kill9("the shim")
	s, again := start(t, record, jobEnv)
	require.Equal(t, first, again, "gateways that cannot reach Consul have the right one")
	require.Equal(t, http.StatusOK, status(s, derive(first)))

	s, other := start(t, filepath.Join(t.TempDir(), "record"), jobEnv)
	require.NotEqual(t, first, other, "another allocation")
	require.Equal(t, http.StatusUnauthorized, status(s, derive(first)))
	require.Equal(t, http.StatusOK, status(s, derive(other)))

	// A record that came from another controller's job is of no use.
	renewed := "REMUDA_GATEWAY_KEY=" + replica.GatewayPublicKey(ed25519.NewKeyFromSeed(bytes.Repeat([]byte{2}, ed25519.SeedSize)))
	_, moved := start(t, record, renewed)
	require.NotEqual(t, first, moved)

	// An engine with a key of its own keeps it, and so does one of a job that nobody registered.
	s, none := start(t, "", jobEnv, "VLLM_API_KEY=own")
	require.Empty(t, none)
	require.Equal(t, http.StatusUnauthorized, status(s, ""))
	require.Equal(t, http.StatusOK, status(s, "own"))
	s, none = start(t, "")
	require.Empty(t, none)
	require.Equal(t, http.StatusOK, status(s, ""))
}
