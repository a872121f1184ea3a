package sim_test

import (
	"net/http"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/internal/sim"
)

const helloBody = `{"model":"` + modelName + `","prompt":"Hello","max_tokens":8}`

func TestSleepAndWakeCheckTheWeights(t *testing.T) {
	for _, level := range []string{"1", "2"} {
		t.Run("level "+level, func(t *testing.T) {
			s := start(t, func(c *sim.Config) { c.Weights = weightsFile(t) })
			require.Equal(t, http.StatusOK, s.status(http.MethodPost, "/sleep?level="+level))
			_, answer := s.do(http.MethodGet, "/is_sleeping", "")
			require.JSONEq(t, `{"is_sleeping":true}`, answer)
			s.refused(http.MethodPost, "/v1/completions", helloBody, http.StatusServiceUnavailable)
			require.Equal(t, http.StatusOK, s.status(http.MethodPost, "/wake_up"))
			var r response
			s.ok("/v1/completions", helloBody, &r)
			require.Len(t, r.Choices, 1)
		})
	}
}

func TestDamagedWeightsFailTheWake(t *testing.T) {
	path := weightsFile(t)
	s := start(t, func(c *sim.Config) { c.Weights = path })
	require.Equal(t, http.StatusOK, s.status(http.MethodPost, "/sleep?level=2"))
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	raw[len(raw)-1] ^= 1
	require.NoError(t, os.WriteFile(path, raw, 0o600))
	require.Equal(t, http.StatusInternalServerError, s.status(http.MethodPost, "/wake_up"))
	require.Error(t, s.result(), "an engine whose weights are damaged must end")
}

func TestFaultsAreSwitchedAtRunTime(t *testing.T) {
	s := start(t, nil)
	s.fault(`{"error500":true}`)
	s.refused(http.MethodPost, "/v1/completions", helloBody, http.StatusInternalServerError)
	require.Equal(t, http.StatusOK, s.status(http.MethodDelete, "/sim/faults"))
	var r response
	s.ok("/v1/completions", helloBody, &r)
	s.refused(http.MethodPost, "/sim/faults", `{"no_such_fault":1}`, http.StatusBadRequest)
}

func TestRefusals(t *testing.T) {
	s := start(t, nil)
	for name, tc := range map[string]struct {
		method, path, body string
		status             int
	}{
		"not JSON":       {http.MethodPost, "/v1/completions", "hello", http.StatusBadRequest},
		"unknown model":  {http.MethodPost, "/v1/completions", `{"model":"x","prompt":"y"}`, http.StatusNotFound},
		"bad max_tokens": {http.MethodPost, "/v1/completions", `{"model":"` + modelName + `","prompt":"y","max_tokens":-1}`, http.StatusBadRequest},
	} {
		t.Run(name, func(*testing.T) { s.refused(tc.method, tc.path, tc.body, tc.status) })
	}
}
