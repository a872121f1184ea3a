package server_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
)

// TestContinuation is on its way from a model file to the gateways.
func TestContinuation(t *testing.T) {
	t.Parallel()
	m := one(t)
	c := m.client
	for _, want := range []bool{true, false} {
		line := fmt.Sprintf("continuation = %t\n  max ", want)
		applied, err := c.ApplyModels(t.Context(), api.ApplyRequest{Files: modelFile(file("m", "max ", line))})
		require.NoError(t, err)
		require.False(t, applied.Models[0].Unchanged)
		status, _, err := c.Model(t.Context(), "m", api.QueryOptions{})
		require.NoError(t, err)
		require.Equal(t, want, status.Model.Continuation)
		g, _, err := c.GatewayState(t.Context(), api.QueryOptions{})
		require.NoError(t, err)
		require.Equal(t, want, g.Models[0].Continuation)
		text, _, err := c.ModelFile(t.Context(), "m", 0, "", api.QueryOptions{})
		require.NoError(t, err)
		again, err := c.ApplyModels(t.Context(), api.ApplyRequest{Files: modelFile(text)})
		require.NoError(t, err)
		require.True(t, again.Models[0].Unchanged, "the file that is shown says so as well")
	}
}
