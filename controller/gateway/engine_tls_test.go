package gateway_test

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/gateway"
	"remuda/internal/replica"
	"remuda/internal/testkit/certs"
	"remuda/internal/testkit/proclog"
)

// forEngines makes a certificate one of engines.
func forEngines(c *x509.Certificate) { c.DNSNames, c.IPAddresses = []string{"engine.remuda"}, nil }

// securedEngine is an engine that is served over TLS with a certificate. opened counts its connections.
func securedEngine(t *testing.T, cert, key []byte, h http.HandlerFunc) (e replica.Engine, opened *atomic.Int64) {
	t.Helper()
	pair, err := tls.X509KeyPair(cert, key)
	require.NoError(t, err)
	opened = &atomic.Int64{}
	s := httptest.NewUnstartedServer(h)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true}
	var seen sync.Map
	s.Config.ConnState = func(c net.Conn, state http.ConnState) {
		if _, known := seen.LoadOrStore(c, true); !known {
			opened.Add(1)
		}
	}
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // handshakes that fail
	s.StartTLS()
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	e = engineAt("a", s.Listener.Addr().String())
	e.TLSPort, e.Port = e.Port, 1
	return e, opened
}

// trusting is a gateway that trusts a CA for engines, with its log.
func trusting(t *testing.T, ca []byte) (*fixture, *proclog.Buffer) {
	t.Helper()
	file, log := filepath.Join(t.TempDir(), "ca.pem"), &proclog.Buffer{}
	require.NoError(t, os.WriteFile(file, ca, 0o600))
	return newGateway(t, func(c *gateway.Config) {
		c.EngineTLS.CACert, c.Logger, c.Queue.Wait = file, log.Logger(), 50*time.Millisecond
	}), log
}

func TestTLSToEngines(t *testing.T) {
	t.Parallel()
	cert, key := certs.With(t, 1, forEngines)
	f, _ := trusting(t, cert)
	e, opened := securedEngine(t, cert, key, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if strings.Contains(string(b), `"stream":true`) {
			sse(w, tokenPiece, tokenTotals, tokenEnd)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"length":`+jsonNumber(len(b))+`}`)
	})
	f.engines(e)
	for _, n := range []int{1, 1 << 10, 100 << 10, 3 << 20} {
		body := `{"model":"m","prompt":"` + strings.Repeat("x", n) + `"}`
		a := f.post(body)
		require.Equal(t, http.StatusOK, a.status, a.body)
		require.JSONEq(t, `{"length":`+jsonNumber(len(body))+`}`, a.body)
	}
	a := f.post(streamBody)
	require.Equal(t, http.StatusOK, a.status, a.body)
	require.Contains(t, a.body, "[DONE]")
	require.Equal(t, int64(1), opened.Load(), "the connection is kept")
}

// An engine whose certificate is not one of an engine, of another CA or expired, and one without TLS, gets no
// request, and the log says why.
func TestUntrustedEngines(t *testing.T) {
	t.Parallel()
	right, rightKey := certs.With(t, 1, forEngines)
	for name, tc := range map[string]struct {
		change func(*x509.Certificate) // nil: the engine has no TLS
		ca     []byte                  // nil: its own
		want   string
	}{
		"another CA":         {forEngines, right, "certificate signed by unknown authority"},
		"expired":            {func(c *x509.Certificate) { forEngines(c); c.NotAfter = time.Now().Add(-time.Minute) }, nil, "certificate has expired"},
		"not of an engine":   {func(c *x509.Certificate) { c.DNSNames = []string{"server.remuda"} }, nil, "not engine.remuda"},
		"no TLS at the port": {nil, right, "TLS handshake"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int64
			answer := func(w http.ResponseWriter, r *http.Request) { asked.Add(1); says("a")(w, r) }
			cert, key, ca := right, rightKey, tc.ca
			if tc.change != nil {
				if cert, key = certs.With(t, 2, tc.change); ca == nil {
					ca = cert
				}
			}
			e, _ := securedEngine(t, cert, key, answer)
			if tc.change == nil {
				e = newEngine(t, "a", answer)
				e.TLSPort, e.Port = e.Port, 1
			}
			f, log := trusting(t, ca)
			f.engines(e)
			f.post(unaryBody).requireError(t, http.StatusServiceUnavailable, "engine_unreachable")
			require.Contains(t, log.String(), tc.want)
			require.Zero(t, asked.Load())
		})
	}

	f, log := trusting(t, right)
	f.engines(newEngine(t, "a", says("a")))
	require.NotEqual(t, http.StatusOK, f.post(unaryBody).status)
	require.Contains(t, log.String(), "its shim serves no TLS, and engine_tls is set")
	require.Equal(t, float64(1), f.metric("remuda_gateway_registrations_refused"))
}

func TestEngineTLSConfig(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(file, []byte("nothing"), 0o600))
	for ca, want := range map[string]string{file: "must have a certificate in PEM", file + ".none": "no such file"} {
		cfg := gateway.DefaultConfig()
		cfg.Watcher, cfg.EngineTLS.CACert = &feed{}, ca
		_, err := gateway.New(cfg)
		require.ErrorContains(t, err, want)
	}
}

// together writes what it is given in one piece once it is flushed.
type together struct {
	net.Conn
	held []byte
}

func (c *together) Write(p []byte) (int, error) {
	c.held = append(c.held, p...)
	return len(p), nil
}

func (c *together) Read(p []byte) (int, error) {
	if len(c.held) > 0 { // what was written before is sent
		_, _ = c.Conn.Write(c.held)
		c.held = nil
	}
	return c.Conn.Read(p)
}

// Bytes that an engine sends behind an answer are not the answer of the next request, also if TLS has read them
// with it.
func TestTLSBytesBehindAnAnswer(t *testing.T) {
	t.Parallel()
	cert, key := certs.With(t, 1, forEngines)
	pair, err := tls.X509KeyPair(cert, key)
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var serving sync.WaitGroup
	t.Cleanup(func() { l.Close(); serving.Wait() })
	serving.Go(func() {
		for {
			raw, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer raw.Close()
				c := tls.Server(&together{Conn: raw}, &tls.Config{Certificates: []tls.Certificate{pair}, SessionTicketsDisabled: true})
				br := newReader(c)
				for {
					req, err := http.ReadRequest(br)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, req.Body)
					for _, said := range []string{"right", "wrong"} {
						_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 16\r\n\r\n{\"said\":\""+said+"\"}")
					}
				}
			})
		}
	})
	f, _ := trusting(t, cert)
	e := engineAt("a", l.Addr().String())
	e.TLSPort, e.Port = e.Port, 1
	f.engines(e)
	for range 3 {
		a := f.post(unaryBody)
		require.Equal(t, http.StatusOK, a.status, a.body)
		require.JSONEq(t, `{"said":"right"}`, a.body)
	}
}
