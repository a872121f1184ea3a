package gateway_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/gateway"
)

func TestEngineThatSendsGarbage(t *testing.T) {
	t.Parallel()
	const head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
	const sseHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
	cases := []struct {
		name, reply string
		body        string
		code        string
		kind        string
	}{
		{"random bytes", "\x00\xff\x13\x37 garbage\r\n\r\n", "", "engine_protocol_error", "protocol"},
		{"another protocol", "SSH-2.0-OpenSSH_9.2\r\n", "", "engine_protocol_error", "protocol"},
		{"bad status line", "HTTP/1.1 abc OK\r\n\r\n", "", "engine_protocol_error", "protocol"},
		{"bad header", "HTTP/1.1 200 OK\r\nno colon here\r\n\r\n", "", "engine_protocol_error", "protocol"},
		{"bad length", "HTTP/1.1 200 OK\r\nContent-Length: -4\r\n\r\n", "", "engine_protocol_error", "protocol"},
		{"two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", "", "engine_protocol_error", "protocol"},
		{"endless header", "HTTP/1.1 200 OK\r\n" + strings.Repeat("X-A: "+strings.Repeat("a", 1000)+"\r\n", 100), "", "engine_protocol_error", "protocol"},
		{"nothing", "", "", "engine_gone", "reset"},
		{"half a header", "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n", "", "engine_gone", "reset"},
		{"switching protocols", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n", "", "engine_bad_content", "content"},
		{"header only", head + "Content-Length: 10\r\n\r\n", "", "engine_gone", "reset"},
		{"half a short body", head + "Content-Length: 10\r\n\r\n{\"a\"", "", "engine_cut_off", "cut"},
		{"half a chunk", head + "Transfer-Encoding: chunked\r\n\r\n10\r\n{\"a\"", "", "engine_cut_off", "cut"},
		{"no last chunk", head + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n", "", "engine_cut_off", "cut"},
		{"bad chunk size", head + "Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n", "", "engine_protocol_error", "protocol"},
		{"stream: header only", sseHead, streamBody, "engine_gone", "reset"},
		{"stream: no event", sseHead + "0\r\n\r\n", streamBody, "engine_bad_content", "content"},
		{"stream: bad chunk size", sseHead + "zz\r\n", streamBody, "engine_protocol_error", "protocol"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			f := newGateway(t)
			f.engines(newRawEngine(t, "a", func(conn net.Conn) { _, _ = io.WriteString(conn, c.reply) }))
			if c.body == "" {
				c.body = `{"model":"m"}`
			}
			f.post(c.body).requireError(t, http.StatusBadGateway, c.code)
			require.Equal(t, 1.0, f.metric("remuda_gateway_upstream_errors_total", "model", "m", "replica", "m:v:a", "kind", c.kind))
			require.Equal(t, 1.0, f.metric("remuda_gateway_upstream_errors_total"))
			require.Zero(t, f.metric("remuda_gateway_in_flight", "model", "m"))
		})
	}
	t.Run("a long body that is cut", func(t *testing.T) {
		f := newGateway(t)
		f.engines(newRawEngine(t, "a", func(conn net.Conn) {
			_, _ = io.WriteString(conn, head+"Content-Length: 1000000\r\n\r\n{"+strings.Repeat("x", 200<<10))
		}))
		a := f.post(`{"model":"m"}`)
		require.Equal(t, http.StatusOK, a.status)
		require.Error(t, a.err, "a cut answer must not look whole")
		require.Equal(t, 1.0, f.metric("remuda_gateway_upstream_errors_total", "kind", "cut"))
	})
	t.Run("garbage in the middle of a stream", func(t *testing.T) {
		f := newGateway(t)
		f.engines(newRawEngine(t, "a", func(conn net.Conn) {
			_, _ = io.WriteString(conn, sseHead+"a\r\ndata: {}\n\n\r\nzzz\r\n")
		}))
		requireBroken(t, f.post(streamBody), "data: {}\n\n", "engine_cut_off")
	})
}

// TestEngineThatAnswersEarly answers and closes before it has read the body.
func TestEngineThatAnswersEarly(t *testing.T) {
	t.Parallel()
	f := newGateway(t)
	f.engines(newEngine(t, "a", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, `{"error":{}}`)
	}))
	body := `{"model":"m","prompt":"` + strings.Repeat("x", 4<<20) + `"}`
	for range 10 {
		// Go's transport may see the closed connection before the answer.
		a := f.post(body)
		require.Contains(t, []int{http.StatusUnauthorized, http.StatusBadGateway}, a.status, a.body)
		require.NoError(t, a.err)
	}
	eventually(t, "memory comes back", func() bool { return f.metric("remuda_gateway_buffered_bytes") == 0 })
}

// drip sends text a byte at a time until the connection is closed, and returns
// what came back.
func drip(t *testing.T, addr, start, dripped string) string {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	_, err = io.WriteString(c, start)
	require.NoError(t, err)
	stop := make(chan struct{})
	dripping := make(chan struct{})
	go func() {
		defer close(dripping)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-tick.C:
				if _, err := io.WriteString(c, dripped[i%len(dripped):i%len(dripped)+1]); err != nil {
					return
				}
			case <-stop:
				return
			}
		}
	}()
	var got bytes.Buffer
	_, err = io.Copy(&got, c)
	var timeout net.Error
	if ok := errorsAs(err, &timeout); ok && timeout.Timeout() {
		t.Fatal("the connection stays open")
	}
	close(stop)
	<-dripping
	return got.String()
}

func TestSlowLoris(t *testing.T) {
	t.Parallel()
	f := newGateway(t, func(c *gateway.Config) {
		c.Timeouts.Header, c.Timeouts.Body = 3*time.Second, 500*time.Millisecond
	})
	f.engines(newEngine(t, "a", says("x")))
	t.Run("in the header", func(t *testing.T) {
		got := drip(t, f.addr, "POST "+chat+" HTTP/1.1\r\nHost: x\r\nX-A: ", "a")
		require.NotContains(t, got, " 200 ")
	})
	for name, start := range map[string]string{
		"in the body":       "Content-Length: 1000\r\n\r\n{",
		"in a chunked body": "Transfer-Encoding: chunked\r\n\r\n3e8\r\n{",
		"in a chunk header": "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			got := drip(t, f.addr, "POST "+chat+" HTTP/1.1\r\nHost: x\r\n"+start, "0")
			require.Contains(t, got, "HTTP/1.1 408 ")
			require.Contains(t, got, "Connection: close")
			_, body, _ := strings.Cut(got, "\r\n\r\n")
			requireErrorBody(t, body, "request_timeout")
		})
	}
	f.t = t
	require.Equal(t, http.StatusOK, f.post(`{"model":"m"}`).status)
	eventually(t, "memory comes back", func() bool { return f.metric("remuda_gateway_buffered_bytes") == 0 })
}

// TestBodyThatNobodyReads: net/http reads on what a handler leaves, which must
// not take for ever either.
func TestBodyThatNobodyReads(t *testing.T) {
	t.Parallel()
	f := newGateway(t, func(c *gateway.Config) {
		c.Timeouts.Header, c.Timeouts.Body, c.Timeouts.KeepAlive = 3*time.Second, 500*time.Millisecond, 500*time.Millisecond
	})
	f.engines(newEngine(t, "a", says("x")))
	for _, start := range []string{
		"POST /v1/models HTTP/1.1\r\n", "GET /v1/models HTTP/1.1\r\n", "GET /ready HTTP/1.1\r\n", "GET /metrics HTTP/1.1\r\n",
		"POST /nothing HTTP/1.1\r\n", "PUT " + chat + " HTTP/1.1\r\n", "POST " + chat + " HTTP/1.1\r\nContent-Encoding: gzip\r\n",
	} {
		for _, length := range []string{"Content-Length: 1000", "Transfer-Encoding: chunked"} {
			t.Run(start[:len(start)-2]+" "+length, func(t *testing.T) {
				t.Parallel()
				c, err := net.Dial("tcp", f.addr)
				require.NoError(t, err)
				defer c.Close()
				_, err = fmt.Fprintf(c, "%sHost: x\r\n%s\r\n\r\n", start, length)
				require.NoError(t, err)
				require.NoError(t, c.SetReadDeadline(time.Now().Add(patience)))
				got, err := io.ReadAll(c) // ends when the gateway closes the connection
				require.NoError(t, err)
				require.Contains(t, string(got), "HTTP/1.1 ")
			})
		}
	}
}

func TestBodyTimeoutIsNotLeftOnTheConnection(t *testing.T) {
	t.Parallel()
	f := newGateway(t, func(c *gateway.Config) { c.Timeouts.Body = 500 * time.Millisecond })
	f.engines(newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		timer := time.NewTimer(time.Second) // an engine that thinks for longer than a body may take
		defer timer.Stop()
		select {
		case <-timer.C:
			says("x")(w, r)
		case <-r.Context().Done():
		}
	}))
	for range 2 {
		require.Equal(t, http.StatusOK, f.post(`{"model":"m"}`).status)
	}
}

func TestHeaderTooLarge(t *testing.T) {
	t.Parallel()
	f := newGateway(t, func(c *gateway.Config) { c.Limits.Header = 8 << 10 })
	f.engines()
	a := f.do(http.MethodGet, "/v1/models", "", "X-A", strings.Repeat("a", 20<<10))
	require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, a.status)
}

func TestClientThatVanishesInItsBody(t *testing.T) {
	t.Parallel()
	f := newGateway(t)
	f.engines(newEngine(t, "a", says("x")))
	c, err := net.Dial("tcp", f.addr)
	require.NoError(t, err)
	_, err = fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{", chat)
	require.NoError(t, err)
	c.Close()
	eventually(t, "memory comes back", func() bool {
		return f.metric("remuda_gateway_requests_total", "route", "chat", "code", "499") == 1 && f.metric("remuda_gateway_buffered_bytes") == 0
	})
}
