package gateway_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/gateway"
	"remuda/internal/testkit/certs"
	"remuda/internal/testkit/proclog"
)

// tlsFiles are the files of a gateway's certificate.
type tlsFiles struct {
	t     *testing.T
	files gateway.TLS
	// pool trusts the last certificate that was written.
	pool *x509.CertPool
}

func newTLSFiles(t *testing.T) *tlsFiles {
	t.Helper()
	dir := t.TempDir()
	c := &tlsFiles{t: t, files: gateway.TLS{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}}
	c.replace(1)
	return c
}

func (c *tlsFiles) replace(serial int64) {
	c.t.Helper()
	cert, key := certs.New(c.t, serial)
	require.NoError(c.t, os.WriteFile(c.files.Key, key, 0o600))
	require.NoError(c.t, os.WriteFile(c.files.Cert, cert, 0o600))
	c.pool = x509.NewCertPool()
	require.True(c.t, c.pool.AppendCertsFromPEM(cert))
}

// secure is a gateway with TLS, whose client speaks HTTP/2 or HTTP/1.1.
func (c *tlsFiles) gateway(http2 bool, change ...func(*gateway.Config)) *fixture {
	c.t.Helper()
	f := newGateway(c.t, append(change, func(cfg *gateway.Config) { cfg.TLS = c.files })...)
	f.url = "https://" + f.addr
	var protocols http.Protocols
	protocols.SetHTTP1(!http2)
	protocols.SetHTTP2(http2)
	transport := &http.Transport{DisableCompression: true, TLSClientConfig: &tls.Config{RootCAs: c.pool}, Protocols: &protocols}
	c.t.Cleanup(transport.CloseIdleConnections)
	plain := f.client
	f.client = &http.Client{Transport: routed{operators: f.operators, plain: plain.Transport, secure: transport}}
	return f
}

// routed sends what is for operators in the clear.
type routed struct {
	operators     string
	plain, secure http.RoundTripper
}

func (r routed) RoundTrip(req *http.Request) (*http.Response, error) {
	if strings.HasPrefix(req.URL.String(), r.operators) {
		return r.plain.RoundTrip(req)
	}
	return r.secure.RoundTrip(req)
}

func TestTLS(t *testing.T) {
	t.Parallel()
	for proto, http2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2.0": true} {
		t.Run(proto, func(t *testing.T) {
			f := newTLSFiles(t).gateway(http2)
			f.engines(newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				b, _ := io.ReadAll(r.Body)
				_, _ = io.WriteString(w, `{"proto":"`+r.Header.Get("X-Forwarded-Proto")+`","length":`+jsonNumber(len(b))+`}`)
			}))
			resp, err := f.client.Get(f.url + "/ready")
			require.NoError(t, err)
			resp.Body.Close()
			require.Equal(t, proto, resp.Proto)
			require.Equal(t, http.StatusOK, resp.StatusCode)

			body := `{"model":"m","prompt":"` + strings.Repeat("x", 3<<20) + `"}`
			a := f.post(body)
			require.Equal(t, http.StatusOK, a.status, a.body)
			require.JSONEq(t, `{"proto":"https","length":`+jsonNumber(len(body))+`}`, a.body)

			_, err = tls.Dial("tcp", f.addr, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11})
			require.ErrorContains(t, err, "protocol version")
			require.Zero(t, f.metric("remuda_gateway_buffered_bytes"))
		})
	}
}

func jsonNumber(n int) string { return strconv.Itoa(n) }

// TestHTTP2Errors: an error that would close a connection of HTTP/1.1 leaves the other streams alone.
func TestHTTP2Errors(t *testing.T) {
	t.Parallel()
	f := newTLSFiles(t).gateway(true, func(c *gateway.Config) { c.Limits.Body = 1000 })
	goOn := make(chan struct{})
	f.engines(newEngine(t, "a", func(w http.ResponseWriter, _ *http.Request) {
		sse(w, "data: {}\n\n")
		<-goOn
		sse(w, "data: [DONE]\n\n")
	}))
	resp := f.open(t.Context(), streamBody)
	defer resp.Body.Close()
	a := f.post(`{"model":"` + strings.Repeat("x", 2000) + `"}`)
	a.requireError(t, http.StatusRequestEntityTooLarge, "request_too_large")
	require.Empty(t, a.header.Get("Connection"))
	f.post(`{"model":"none"}`).requireError(t, http.StatusNotFound, "model_not_found")
	close(goOn)
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, "data: {}\n\ndata: [DONE]\n\n", string(b))
}

// TestHTTP2Streams pass on each event as it comes, free the engine when the client leaves, and are
// reset when the gateway breaks off.
func TestHTTP2Streams(t *testing.T) {
	t.Parallel()
	f := newTLSFiles(t).gateway(true)
	next, left := make(chan string), make(chan struct{}, 2)
	f.engines(newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
		for {
			select {
			case event := <-next:
				if event == "" {
					panic(http.ErrAbortHandler)
				}
				sse(w, event)
			case <-r.Context().Done():
				left <- struct{}{}
				return
			}
		}
	}))
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	begin := func() (*http.Response, *bufio.Reader) {
		answered := make(chan *http.Response, 1)
		go func() { answered <- f.open(ctx, streamBody) }()
		next <- "data: {\"n\":1}\n\n"
		resp := <-answered
		require.Equal(t, 2, resp.ProtoMajor)
		return resp, bufio.NewReader(resp.Body)
	}
	resp, in := begin()
	for _, want := range []string{"data: {\"n\":1}\n", "data: {\"n\":2}\n", "data: {\"n\":3}\n"} {
		line, err := in.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, want, line)
		_, err = in.ReadString('\n')
		require.NoError(t, err)
		if n := want[len(`data: {"n":`)]; n < '3' {
			next <- strings.Replace(want, string(n), string(n+1), 1) + "\n"
		}
	}
	leave()
	<-left
	resp.Body.Close()
	f.counted(1, "model", "m", "code", "499")

	ctx, leave = context.WithCancel(t.Context())
	defer leave()
	resp, in = begin()
	next <- ""
	rest, err := io.ReadAll(in)
	require.ErrorContains(t, err, "INTERNAL_ERROR")
	require.Contains(t, string(rest), "engine_cut_off")
	resp.Body.Close()
}

// TestHTTP2ClientThatStopsReading holds up its own stream, and that not for ever.
func TestHTTP2ClientThatStopsReading(t *testing.T) {
	t.Parallel()
	f := newTLSFiles(t).gateway(true, func(c *gateway.Config) { c.Timeouts.Write = 3 * time.Second })
	left := make(chan struct{}, 1)
	f.engines(newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		event := []byte(`data: {"x":"` + strings.Repeat("x", 8<<10) + "\"}\n\n")
		for r.Context().Err() == nil {
			if _, err := w.Write(event); err != nil {
				break
			}
		}
		left <- struct{}{}
	}))
	resp := f.open(t.Context(), streamBody)
	defer resp.Body.Close()
	quick := f.do(http.MethodGet, "/v1/models", "")
	require.Equal(t, http.StatusOK, quick.status, "another stream of the connection")
	<-left
	_, err := io.Copy(io.Discard, resp.Body)
	require.Error(t, err)
	f.counted(1, "model", "m", "code", "499")
}

// TestHTTP2SlowStream: a stream in which nothing is written for longer than the write time-out goes on.
func TestHTTP2SlowStream(t *testing.T) {
	t.Parallel()
	f := newTLSFiles(t).gateway(true, func(c *gateway.Config) { c.Timeouts.Write = 2 * time.Second })
	f.engines(newEngine(t, "a", func(w http.ResponseWriter, _ *http.Request) {
		sse(w, "data: {\"n\":1}\n\n")
		time.Sleep(5 * time.Second) // it is the silence that is tested
		sse(w, "data: [DONE]\n\n")
	}))
	resp := f.open(t.Context(), streamBody)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, "data: {\"n\":1}\n\ndata: [DONE]\n\n", string(b))
}

// TestCertificateIsReadAgain when its files change; a bad one is not used, logged and counted once.
func TestCertificateIsReadAgain(t *testing.T) {
	t.Parallel()
	files, log := newTLSFiles(t), &proclog.Buffer{}
	f := files.gateway(false, func(c *gateway.Config) { c.Logger = log.Logger() })
	serial := func() int64 {
		c, err := tls.Dial("tcp", f.addr, &tls.Config{InsecureSkipVerify: true}) // any is fine, it is looked at
		require.NoError(t, err)
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	}
	require.EqualValues(t, 1, serial())
	require.InDelta(t, time.Now().Add(24*time.Hour).Unix(), f.metric("remuda_gateway_tls_certificate_expires_seconds"), 300)
	files.replace(2)
	eventually(t, "the new certificate is used", func() bool { return serial() == 2 })
	require.Zero(t, f.metric("remuda_gateway_tls_reload_failures_total"))

	require.NoError(t, os.WriteFile(files.files.Cert, []byte("garbage"), 0o600))
	eventually(t, "the bad file is counted", func() bool { return f.metric("remuda_gateway_tls_reload_failures_total") == 1 })
	require.EqualValues(t, 2, serial())
	require.NoError(t, os.Remove(files.files.Cert))
	eventually(t, "the missing file is counted", func() bool { return f.metric("remuda_gateway_tls_reload_failures_total") == 2 })
	require.EqualValues(t, 2, serial())
	require.Equal(t, 2, strings.Count(log.String(), "cannot use the new certificate: the last one stays in use"), log.String())
	files.replace(3)
	eventually(t, "the next certificate is used", func() bool { return serial() == 3 })
}

func TestTLSFilesThatAreBad(t *testing.T) {
	t.Parallel()
	files := newTLSFiles(t)
	run := func(change func(*gateway.TLS)) error {
		cfg := gateway.DefaultConfig()
		cfg.Watcher, cfg.Listen, cfg.OperatorListen, cfg.TLS = &feed{}, "127.0.0.1:0", "127.0.0.1:0", files.files
		change(&cfg.TLS)
		g, err := gateway.New(cfg)
		if err != nil {
			return err
		}
		return g.Run(t.Context())
	}
	require.ErrorContains(t, run(func(c *gateway.TLS) { c.Cert += ".none" }), files.files.Cert+".none")
	require.ErrorContains(t, run(func(c *gateway.TLS) { c.Key = c.Cert }), "certificate "+files.files.Cert+" and key "+files.files.Cert)
	require.ErrorContains(t, run(func(c *gateway.TLS) { c.Key = "" }), "tls has only one of cert and key")
}
