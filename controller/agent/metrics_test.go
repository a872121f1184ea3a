package agent_test

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"remuda/controller/api"
	"remuda/internal/testkit/agenttest"
)

// metric returns a sample of the agent's metrics, by its name.
func metric(t *testing.T, client *api.Client, name string) (value float64, exported bool) {
	t.Helper()
	page, err := client.Metrics(t.Context())
	require.NoError(t, err)
	for line := range strings.Lines(string(page)) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			value, err = strconv.ParseFloat(strings.TrimSpace(rest), 64)
			require.NoError(t, err)
			return value, true
		}
	}
	return 0, false
}

// TestServerMetrics: the disk of the data directory, and when the certificate expires.
func TestServerMetrics(t *testing.T) {
	dir := t.TempDir()
	client, _, _ := run(t, devConfig(t, dir))
	var fs unix.Statfs_t
	require.NoError(t, unix.Statfs(dir, &fs))
	size, _ := metric(t, client, "remuda_controller_disk_size_bytes")
	require.InEpsilon(t, float64(fs.Blocks)*float64(fs.Bsize), size, 1e-9)
	free, _ := metric(t, client, "remuda_controller_disk_free_bytes")
	require.Positive(t, free)
	require.LessOrEqual(t, free, size)
	_, exported := metric(t, client, "remuda_controller_tls_certificate_expires_seconds")
	require.False(t, exported, "there is no certificate")

	ca := agenttest.NewCA(t)
	cfg := devConfig(t, t.TempDir())
	cfg.TLS.CAFile, cfg.TLS.HTTP = ca.File, false
	cfg.TLS.CertFile, cfg.TLS.KeyFile = ca.Issue("server.remuda")
	client, _, _ = run(t, cfg)
	raw, err := os.ReadFile(cfg.TLS.CertFile)
	require.NoError(t, err)
	block, _ := pem.Decode(raw)
	cert, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	expires, _ := metric(t, client, "remuda_controller_tls_certificate_expires_seconds")
	require.InDelta(t, cert.NotAfter.Unix(), expires, 0)
}
