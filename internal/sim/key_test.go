package sim_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/internal/sim"
)

// TestAPIKey: it is asked for where the real engines ask for it.
func TestAPIKey(t *testing.T) {
	t.Parallel()
	status := func(s *sim1, path, header string) int {
		req := s.request(t.Context(), http.MethodGet, path, "")
		if header != "" {
			req.Header.Set("Authorization", header)
		}
		resp, err := s.http.Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		return resp.StatusCode
	}
	for api, open := range map[string][]string{
		sim.APIVLLM:   {"/health", "/metrics", "/version", "/is_sleeping", "/sim/counters"},
		sim.APISGLang: {"/health", "/sim/counters"},
	} {
		s := start(t, func(c *sim.Config) { c.API, c.APIKey = api, "k" })
		for _, header := range []string{"", "Bearer", "Bearer ", "Bearer other", "Basic k", "k"} {
			require.Equal(t, http.StatusUnauthorized, status(s, "/v1/models", header), "%s: %q", api, header)
		}
		require.Equal(t, http.StatusOK, status(s, "/v1/models", "Bearer k"), api)
		for _, path := range open {
			require.Equal(t, http.StatusOK, status(s, path, ""), "%s: %s", api, path)
		}
		if api == sim.APISGLang {
			require.Equal(t, http.StatusUnauthorized, status(s, "/server_info", ""))
			require.Equal(t, http.StatusOK, status(s, "/server_info", "Bearer k"))
		}
	}
}
