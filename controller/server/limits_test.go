package server_test

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"remuda/controller/server"
)

// limited has the smallest limits.
func limited(c *server.Config) { c.MaxBody, c.MaxSnapshot, c.MaxHeld = 1024, 1024, 8192 }

func TestTheConfigurationNamesEveryFault(t *testing.T) {
	_, err := server.New(server.Config{LeaderWait: time.Minute, RequestTimeout: time.Second})
	for _, text := range []string{
		"raft must be set", "nomad must be set", "loads must be set", "reconciler must be set", "clock must be set", "logger must be set",
		"gatherer must be set", "snapshot timeout is 0s", "body timeout is 0s", "drain is 0s", "leader wait is 1m0s", "max body is 0",
	} {
		require.ErrorContains(t, err, text)
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	m := one(t)
	m.applied("m")
	b, err := m.client.Metrics(t.Context())
	require.NoError(t, err)
	require.Contains(t, string(b), `remuda_controller_http_requests_total{method="PUT",route="/v1/models",status="200"} 1`)
	require.Contains(t, string(b), "remuda_controller_http_watches 0")
	m.raw("NONSENSE", "/nowhere", "", "")
	b, err = m.client.Metrics(t.Context())
	require.NoError(t, err)
	require.Contains(t, string(b), `remuda_controller_http_requests_total{method="other",route="none",status="404"} 1`)

	families, err := m.metrics.Gather()
	require.NoError(t, err)
	require.NotEmpty(t, families)
	var _ prometheus.Gatherer = m.metrics
}
