package nomad_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/nomad"
	"remuda/internal/testkit/nomadtest"
)

func TestGPUMemory(t *testing.T) {
	c, s := newClient(t)
	at := time.Date(2026, 1, 2, 3, 4, 5, 678, time.UTC)
	s.SetMemory("node-1", func() []nomadtest.GPU {
		return []nomadtest.GPU{{UUID: "GPU-1", UsedMiB: 1536, At: at}, {UUID: "GPU-2", UsedMiB: 0, At: at.Add(time.Second)}, {UUID: "GPU-3", UsedMiB: -1, At: at}}
	})
	got, err := c.GPUMemory(t.Context(), "node-1")
	require.NoError(t, err)
	require.Equal(t, map[string]nomad.Sample{"GPU-1": {Used: 1536 << 20, At: at}, "GPU-2": {At: at.Add(time.Second)}, "GPU-3": {Used: -1, At: at}}, got)
	_, err = c.GPUMemory(t.Context(), "node-2")
	require.ErrorIs(t, err, nomad.ErrNotFound)
	for what, broken := range faultyAnswers {
		if what == "wrong JSON" || what == "other JSON" {
			continue // of these the api package makes what it can
		}
		c, s := newFaultyClient(t, what, 200*time.Millisecond)
		s.Break(broken)
		_, err := c.GPUMemory(t.Context(), "node-1")
		require.ErrorIs(t, err, nomad.ErrUnreachable, what)
	}
}

// Samples do not take the places of the writes.
func TestStatisticsHaveALimitOfTheirOwn(t *testing.T) {
	s := nomadtest.New(t)
	cfg := config(s)
	cfg.Rate, cfg.Burst = 0.001, 1
	c := clientOf(t, cfg)
	s.SetMemory("node-1", func() []nomadtest.GPU { return nil })
	_, err := c.GPUMemory(t.Context(), "node-1")
	require.NoError(t, err)
	_, err = c.Inventory(t.Context())
	require.NoError(t, err)
}

func TestNodePool(t *testing.T) {
	s := nomadtest.New(t)
	cfg := config(s)
	cfg.NodePool = "gpu"
	c := clientOf(t, cfg)
	s.SetNode(node("1", group("H100", "", "GPU-1"))) // of pool "gpu"
	other := node("2", group("H100", "", "GPU-2"))
	other.NodePool = "other"
	s.SetNode(other)
	nodes, err := c.Inventory(t.Context(), "2")
	require.NoError(t, err)
	require.Len(t, nodes, 1)
	require.Equal(t, "1", nodes[0].ID)
}

// A pool's Nomad is never shown the token that is meant for the own one.
func TestIsolated(t *testing.T) {
	t.Setenv("NOMAD_TOKEN", "secret")
	t.Setenv("NOMAD_NAMESPACE", "mine")
	t.Setenv("NOMAD_ADDR", "http://127.0.0.1:1")
	s := nomadtest.New(t)
	cfg := config(s)
	cfg.Isolated = true
	c := clientOf(t, cfg)
	require.Equal(t, "default", c.Namespace())
	_, err := c.Inventory(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{""}, s.Tokens())
	_, err = clientOf(t, config(s)).Inventory(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"", "secret"}, s.Tokens())
	cfg.Address = ""
	_, err = nomad.New(cfg)
	require.ErrorContains(t, err, "address must be set")
}
