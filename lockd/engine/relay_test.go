package engine_test

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/internal/testkit/certs"
	"remuda/internal/testkit/consultest"
	"remuda/internal/testkit/loopback"
	"remuda/lockd/engine"
)

// TestEngineOverTLS: the shim serves the engine over TLS, at the port that it registers, with the certificate that
// is in the files now, and passes on when one side leaves.
func TestEngineOverTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	pools := map[int64]*x509.CertPool{}
	replace := func(serial int64) {
		cert, key := certs.With(t, serial, func(c *x509.Certificate) { c.DNSNames = []string{"engine.remuda"} })
		require.NoError(t, os.WriteFile(keyFile, key, 0o600))
		require.NoError(t, os.WriteFile(certFile, cert, 0o600))
		pools[serial] = x509.NewCertPool()
		require.True(t, pools[serial].AppendCertsFromPEM(cert))
	}
	replace(1)
	a, address := consultest.New(t), loopback.Free(t)
	s := startShim(t, settings{consul: a.Addr(), tune: func(c *engine.Config) {
		c.TLSListen, c.TLSCert, c.TLSKey = address, certFile, keyFile
	}})
	dial := func(serial int64) (*tls.Conn, error) {
		return tls.Dial("tcp", address, &tls.Config{RootCAs: pools[serial], ServerName: "engine.remuda"})
	}
	s.awaitState(engine.Active)
	a.Await(t, "the registration", registered)
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	require.Equal(t, port, a.Services()[0].Meta["tls_port"])

	c, err := dial(1)
	require.NoError(t, err)
	br := bufio.NewReader(c)
	get := func(path string) string {
		_, err := io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: e\r\n\r\n")
		require.NoError(t, err)
		resp, err := http.ReadResponse(br, nil)
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, resp.StatusCode)
		return string(body)
	}
	require.Contains(t, get("/v1/models"), `"m"`)
	require.Contains(t, get("/v1/models"), `"m"`)

	replace(2)
	s.await("the new certificate", func() bool {
		c, err := dial(2)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	require.Contains(t, get("/v1/models"), `"m"`, "the connection goes on")

	require.NoError(t, s.cmd.Process.Signal(os.Interrupt))
	_, err = io.ReadAll(br)
	require.NoError(t, err, "the end of the engine is the end of the connection")
	require.NoError(t, s.exited())
}

// TestTLSFiles: the shim does not start without them.
func TestTLSFiles(t *testing.T) {
	t.Parallel()
	for want, tune := range map[string]func(*engine.Config){
		"tls-listen, tls-cert and tls-key must be set together": func(c *engine.Config) { c.TLSListen = "127.0.0.1:1" },
		`tls-listen is "127.0.0.1"`:                             func(c *engine.Config) { c.TLSListen, c.TLSCert, c.TLSKey = "127.0.0.1", "c", "k" },
		"no such file":                                          func(c *engine.Config) { c.TLSListen, c.TLSCert, c.TLSKey = loopback.Free(t), "/none", "/none" },
	} {
		s := startShim(t, settings{tune: tune})
		require.Error(t, s.exited())
		require.Contains(t, s.log.String(), want)
	}
}
