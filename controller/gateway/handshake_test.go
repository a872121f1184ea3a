package gateway_test

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/gateway"
	"remuda/internal/testkit/proclog"
)

// TestUploadsReuseTheirConnection: a client that uploads in chunks over TLS needs one handshake.
func TestUploadsReuseTheirConnection(t *testing.T) {
	t.Parallel()
	f := newTLSFiles(t).gateway(false)
	f.engines(newEngine(t, "a", says("x")))
	for i := range 3 {
		var reused bool
		trace := &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) { reused = c.Reused }}
		body := struct{ io.Reader }{strings.NewReader(plain)} // of no known length
		req, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), http.MethodPost, f.url+chat, body)
		require.NoError(t, err)
		resp, err := f.client.Do(req)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, resp.StatusCode)
		_, err = io.Copy(io.Discard, resp.Body)
		require.NoError(t, err)
		resp.Body.Close()
		require.Equal(t, i > 0, reused)
	}
}

// TestProtocolOfALPN: a client gets no answer in a protocol that its handshake has not chosen.
func TestProtocolOfALPN(t *testing.T) {
	t.Parallel()
	f := newTLSFiles(t).gateway(false, calm(t))
	for _, c := range []struct {
		name   string
		offers []string
		http2  bool // is spoken
		ok     bool
	}{
		{"HTTP/2 after h2", []string{"h2", "http/1.1"}, true, true},
		{"HTTP/2 after http/1.1", []string{"http/1.1"}, true, false},
		{"HTTP/2 after nothing", nil, true, false},
		{"HTTP/1.1 after http/1.1", []string{"http/1.1"}, false, true},
		{"HTTP/1.1 after nothing", nil, false, true},
		{"HTTP/1.1 after h2", []string{"h2"}, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			dial := func(network, addr string) (net.Conn, error) {
				secure, err := tls.Dial(network, addr, &tls.Config{InsecureSkipVerify: true, NextProtos: c.offers})
				return struct{ net.Conn }{secure}, err // without *tls.Conn, http.Transport uses Protocols and not ALPN
			}
			var protocols http.Protocols
			protocols.SetHTTP1(!c.http2)
			protocols.SetUnencryptedHTTP2(c.http2)
			transport := &http.Transport{Dial: dial, Protocols: &protocols}
			defer transport.CloseIdleConnections()
			resp, err := (&http.Client{Transport: transport}).Get("http://" + f.addr + "/live")
			if !c.ok {
				require.Error(t, err)
				return
			}
			require.NoError(t, err)
			defer resp.Body.Close()
			require.Equal(t, http.StatusOK, resp.StatusCode)
		})
	}
}

// TestWithoutHTTP2: the switch of net/http holds for what is offered, too.
func TestWithoutHTTP2(t *testing.T) {
	t.Setenv("GODEBUG", "http2server=0")
	f := newTLSFiles(t).gateway(false)
	f.engines(newEngine(t, "a", says("x")))
	require.Equal(t, http.StatusOK, f.post(plain).status)
	secure, err := tls.Dial("tcp", f.addr, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}})
	require.NoError(t, err)
	defer secure.Close()
	require.Equal(t, "http/1.1", secure.ConnectionState().NegotiatedProtocol)
}

// TestBadHandshakes are ended and logged once each, and leave nothing behind.
func TestBadHandshakes(t *testing.T) {
	t.Parallel()
	log := &proclog.Buffer{}
	f := newTLSFiles(t).gateway(false, func(c *gateway.Config) { c.Logger, c.Timeouts.Header = log.Logger(), time.Second })
	for _, c := range []struct{ name, sent, answer, logged string }{
		{"silence", "", "", "i/o timeout"},
		{"half a hello", "\x16\x03\x01\x02\x00\x01", "", "i/o timeout"},
		{"HTTP without TLS", "GET /live HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n", "client sent an HTTP request to an HTTPS server"},
		{"a post without TLS", start, "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n", "client sent an HTTP request to an HTTPS server"},
		{"another protocol", "SSH-2.0-OpenSSH_9.9\r\n", "", "first record does not look like a TLS handshake"},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn, err := net.Dial("tcp", f.addr)
			require.NoError(t, err)
			defer conn.Close()
			require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
			_, err = io.WriteString(conn, c.sent)
			require.NoError(t, err)
			answer, _ := io.ReadAll(conn) // the gateway may reset what it has not read
			if c.answer != "" {
				require.Equal(t, c.answer, string(answer))
			} else {
				require.NotContains(t, string(answer), "HTTP")
			}
			line := "http: TLS handshake error from " + conn.LocalAddr().String() + ": "
			eventually(t, "it is logged", func() bool { return strings.Contains(log.String(), line) })
			require.Equal(t, 1, strings.Count(log.String(), line), log.String())
			_, rest, _ := strings.Cut(log.String(), line)
			rest, _, _ = strings.Cut(rest, "\n")
			require.Contains(t, rest, c.logged)
		})
	}
}

// TestClientsOverTLSLeaveNothing, wherever in a connection they leave.
func TestClientsOverTLSLeaveNothing(t *testing.T) {
	f := newTLSFiles(t).gateway(false)
	f.engines(newEngine(t, "a", says("x")))
	require.Equal(t, http.StatusOK, f.post(plain).status)
	f.client.CloseIdleConnections()
	before := runtime.NumGoroutine()
	for i := range 200 {
		c, err := net.Dial("tcp", f.addr)
		require.NoError(t, err)
		require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
		if i%4 == 1 {
			_, err = io.WriteString(c, "\x16\x03\x01\x02\x00\x01")
			require.NoError(t, err)
		}
		if i%4 > 1 {
			secure := tls.Client(c, &tls.Config{InsecureSkipVerify: true})
			require.NoError(t, secure.Handshake())
			if i%4 == 3 {
				_, err = io.WriteString(secure, start+"Transfer-Encoding: chunked\r\n\r\n"+chunks)
				require.NoError(t, err)
				_, err = http.ReadResponse(bufio.NewReader(secure), nil)
				require.NoError(t, err)
			}
		}
		require.NoError(t, c.Close())
	}
	eventually(t, "their goroutines are gone", func() bool { return runtime.NumGoroutine() <= before+4 })
}
