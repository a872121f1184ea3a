package server_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/server"
)

// TestHTTPS has servers that pass requests on to each other over HTTPS, and a client
// that checks them.
func TestHTTPS(t *testing.T) {
	t.Parallel()
	// Its certificate is for 127.0.0.1, and signs itself.
	sample := httptest.NewTLSServer(http.NotFoundHandler())
	defer sample.Close()
	pair, pool := sample.TLS.Certificates[0], x509.NewCertPool()
	pool.AddCert(sample.Certificate())
	ca := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: sample.Certificate().Raw}), 0o600))

	ms := cluster(t, 3, settings{
		tls:    &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}},
		server: func(c *server.Config) { quick(c); c.Peers = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13} },
	})
	f := followersOf(t, ms)[0]
	c, err := api.NewClient(api.Config{Addresses: []string{f.url}, CACert: ca})
	require.NoError(t, err)
	defer c.Close()
	_, err = c.SetSwitch(t.Context(), "pause-reconcile", api.SwitchRequest{Value: "on"})
	require.NoError(t, err)
	all, meta, err := c.Switches(t.Context(), api.QueryOptions{})
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.Positive(t, meta.Index)

	stranger, err := api.NewClient(api.Config{Addresses: []string{f.url}})
	require.NoError(t, err)
	defer stranger.Close()
	_, _, err = stranger.Switches(t.Context(), api.QueryOptions{})
	require.ErrorContains(t, err, "certificate")
}

// TestServersThatDoNotTrustEachOther cannot pass requests on; nothing is sent.
func TestServersThatDoNotTrustEachOther(t *testing.T) {
	t.Parallel()
	sample := httptest.NewTLSServer(http.NotFoundHandler())
	defer sample.Close()
	pool := x509.NewCertPool()
	pool.AddCert(sample.Certificate())
	ms := cluster(t, 3, settings{tls: &tls.Config{MinVersion: tls.VersionTLS13, Certificates: sample.TLS.Certificates}, server: quick})
	h := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13}}}
	f := followersOf(t, ms)[0]
	_, err := newClient(t, h, "", f.url).SetSwitch(t.Context(), "pause-reconcile", api.SwitchRequest{Value: "on"})
	requireError(t, err, http.StatusServiceUnavailable, api.CodeNoLeader, "certificate")
	_, err = newClient(t, h, "", leaderOf(t, ms).url).SetSwitch(t.Context(), "pause-reconcile", api.SwitchRequest{Value: "on"})
	require.NoError(t, err)
}
