package gateway_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/gateway"
	"remuda/internal/replica"
)

func TestFailuresBeforeTheFirstByteAreRetriedElsewhere(t *testing.T) {
	t.Parallel()
	const head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
	const sseHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
	sends := func(text string) func(net.Conn) { return func(c net.Conn) { _, _ = io.WriteString(c, text) } }
	whole5xx := func(code int, kind, body string) func(net.Conn) {
		return sends(fmt.Sprintf("HTTP/1.1 %d x\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", code, kind, len(body), body))
	}
	const own = `{"error":{"message":"no","type":"x","param":null,"code":null}}`
	cases := []struct {
		name   string
		answer func(net.Conn)
		kind   string // empty: as it comes
	}{
		{"reset before the header", resets, "reset"},
		{"reset in the header", func(c net.Conn) { sends("HTTP/1.1 200 OK\r\nContent-")(c); resets(c) }, ""},
		{"reset after the header", func(c net.Conn) { sends(head + "Content-Length: 10\r\n\r\n")(c); resets(c) }, "reset"},
		{"closed without a word", func(net.Conn) {}, "reset"},
		{"closed in the header", sends(head), "reset"},
		{"closed after the header", sends(head + "Content-Length: 10\r\n\r\n"), "reset"},
		{"cut short body", sends(head + "Content-Length: 10\r\n\r\n{\"a\""), "cut"},
		{"cut chunked body", sends(head + "Transfer-Encoding: chunked\r\n\r\n10\r\n{\"a\""), "cut"},
		{"no last chunk", sends(head + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"), "cut"},
		{"body that ends with the connection, too early", sends(head + "\r\n{\"a\":"), "cut"},
		{"stream that ends before an event", sends(sseHead + "0\r\n\r\n"), "content"},
		{"stream that is cut before an event", sends(sseHead), "reset"},
		{"stream that is cut in its first line", sends(sseHead + "6\r\ndata: \r\n"), "cut"},
		{"garbage", sends("\x00\xff\x13\x37 garbage\r\n\r\n"), "protocol"},
		{"another protocol", sends("SSH-2.0-OpenSSH_9.2\r\n"), "protocol"},
		{"garbage in a chunk's head", sends(head + "Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n"), "protocol"},
		{"wrong content type", whole5xx(200, "text/html", "<html>"), "content"},
		{"JSON that is none", whole5xx(200, "application/json", "<html>"), "content"},
		{"compressed", sends(head + "Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}"), "content"},
		{"redirect", sends("HTTP/1.1 307 x\r\nLocation: /\r\nContent-Length: 0\r\n\r\n"), "content"},
		{"nothing to say", sends("HTTP/1.1 204 x\r\n\r\n"), "content"},
		{"500", whole5xx(500, "application/json", own), "status"},
		{"502", whole5xx(502, "application/json", own), "status"},
		{"503", whole5xx(503, "application/json", own), "status"},
		{"504", whole5xx(504, "application/json", own), "status"},
		{"500 that is text", whole5xx(500, "text/plain", "Internal Server Error"), "status"},
		{"503 without a body", whole5xx(503, "text/plain", ""), "status"},
		{"502 whose body is cut", sends("HTTP/1.1 502 x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"), "status"},
		{"503 whose body does not come", func(c net.Conn) {
			sends("HTTP/1.1 503 x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n")(c)
			saysNothing(c)
		}, "timeout"},
		{"no first byte in time", saysNothing, "timeout"},
		{"a header and no first byte in time", func(c net.Conn) { sends(head + "Content-Length: 10\r\n\r\n")(c); saysNothing(c) }, "timeout"},
		{"a stream's header and no first byte in time", func(c net.Conn) { sends(sseHead)(c); saysNothing(c) }, "timeout"},
	}
	for _, c := range cases {
		for _, body := range []string{`{"model":"m"}`, streamBody} {
			t.Run(c.name+" "+body, func(t *testing.T) {
				t.Parallel()
				f := newGateway(t, retrying, func(cfg *gateway.Config) {
					if c.kind == "timeout" {
						cfg.Timeouts.FirstByte, cfg.Timeouts.StreamIdle = 5*time.Second, 5*time.Second
					}
				})
				var bad, good hitMeter
				f.engines(
					newRawEngine(t, "a", func(conn net.Conn) { bad.hit(); c.answer(conn) }),
					newEngine(t, "b", func(w http.ResponseWriter, r *http.Request) { good.hit(); answersWhole("b")(w, r) }))
				for sent := 1; bad.hits() == 0; sent++ {
					require.LessOrEqual(t, sent, 2, "both engines are idle, each gets its turn")
					a := f.post(body)
					require.NoError(t, a.err)
					require.Equal(t, http.StatusOK, a.status, a.body)
					if body == streamBody {
						require.Equal(t, wholeStream, a.body, "one whole answer and nothing else")
					} else {
						require.JSONEq(t, `{"said":"b"}`, a.body)
					}
					require.Equal(t, strconv.Itoa(1+bad.hits()), a.header.Get("X-Remuda-Attempts"))
					require.Equal(t, "m:v:b", a.header.Get("X-Remuda-Replica"))
					require.Equal(t, sent, good.hits())
				}
				require.Equal(t, 1, bad.hits())
				if c.kind != "" {
					require.Equal(t, 1.0, f.metric("remuda_gateway_upstream_errors_total", "replica", "m:v:a", "kind", c.kind))
				}
				require.Equal(t, 1.0, f.metric("remuda_gateway_upstream_errors_total"))
				require.Equal(t, 1.0, f.metric("remuda_gateway_retries_total", "model", "m"))
				require.Zero(t, f.metric("remuda_gateway_requests_total", "code", "502"))
			})
		}
	}
}

func TestRefusedConnectionIsRetriedElsewhere(t *testing.T) {
	t.Parallel()
	f := newGateway(t, retrying, leftAlone, func(c *gateway.Config) { c.Retries.BudgetRatio, c.Retries.BudgetFloor = 0, 0 })
	f.engines(deadEngine(t, "a"), newEngine(t, "b", says("b")))
	for range 4 {
		a := f.post(`{"model":"m"}`)
		require.Equal(t, http.StatusOK, a.status, a.body)
		require.Equal(t, "1", a.header.Get("X-Remuda-Attempts"), "an engine that was not there has taken nothing")
		require.Equal(t, "m:v:b", a.header.Get("X-Remuda-Replica"))
	}
	require.Equal(t, 1.0, f.metric("remuda_gateway_upstream_errors_total", "replica", "m:v:a", "kind", "dial"))
	require.Equal(t, 1.0, f.metric("remuda_gateway_upstream_errors_total"))
}

// TestRetryGoesToABusierEngine rather than to the one that has failed the request.
func TestRetryGoesToABusierEngine(t *testing.T) {
	t.Parallel()
	f := newGateway(t, retrying)
	entered, release := make(chan struct{}, 1), make(chan struct{})
	free := sync.OnceFunc(func() { close(release) })
	b := newEngine(t, "b", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Request-Id") == "long" {
			entered <- struct{}{}
			select {
			case <-release:
			case <-r.Context().Done():
			}
		}
		says("b")(w, r)
	})
	t.Cleanup(free)
	f.engines(b)
	long := make(chan answer, 1)
	go func() { long <- f.post(`{"model":"m"}`, "X-Request-Id", "long") }()
	select {
	case <-entered:
	case <-time.After(patience):
		t.Fatal("the engine has no request")
	}
	var m hitMeter
	f.engines(newEngine(t, "a", m.of(failsWith(http.StatusInternalServerError, "application/json", `{}`))), b)
	for i := range 3 {
		a := f.post(`{"model":"m"}`)
		require.JSONEq(t, `{"said":"b"}`, a.body)
		require.Equal(t, "2", a.header.Get("X-Remuda-Attempts"))
		require.Equal(t, i+1, m.hits(), "the idle engine is asked first, and once")
	}
	free()
	require.Equal(t, http.StatusOK, (<-long).status)
}

// mortalEngine serves until it dies: then its listener is closed, and each connection with
// its next request.
type mortalEngine struct {
	replica.Engine
	hitMeter
	listener net.Listener
	dead     atomic.Bool
}

// newMortalEngine starts an engine on keep-alive connections. fail, where it is not nil, is
// how it treats the request at which it dies.
func newMortalEngine(t *testing.T, id string, fail func(net.Conn)) *mortalEngine {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	e := &mortalEngine{Engine: engineAt(id, l.Addr().String()), listener: l}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer c.Close()
				defer context.AfterFunc(ctx, func() { c.Close() })()
				in := newReader(c)
				for {
					req, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, req.Body)
					if e.dead.Load() {
						e.listener.Close()
						if fail != nil {
							fail(c)
						}
						return
					}
					e.hit()
					_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 12\r\n\r\n{\"said\":\"a\"}")
				}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		stop()
		running.Wait()
	})
	return e
}

// TestStaleKeepAliveOfADeadEngine: a dead engine costs the end of its kept connection and one
// that it refuses, and is avoided from then on.
func TestStaleKeepAliveOfADeadEngine(t *testing.T) {
	t.Parallel()
	f := newGateway(t, retrying, leftAlone)
	a := newMortalEngine(t, "a", nil)
	f.engines(a.Engine)
	require.JSONEq(t, `{"said":"a"}`, f.post(`{"model":"m"}`).body)
	b := newEngine(t, "b", says("b"))
	f.engines(a.Engine, b)
	a.dead.Store(true)
	for range 4 {
		got := f.post(`{"model":"m"}`)
		require.Equal(t, http.StatusOK, got.status, got.body)
		require.JSONEq(t, `{"said":"b"}`, got.body)
	}
	require.LessOrEqual(t, f.metric("remuda_gateway_upstream_errors_total", "replica", "m:v:a"), 2.0)
}

// TestOnlyEngineFailsOver: the request waits for the shadow, which is the same replica
// under a higher token, at another address.
func TestOnlyEngineFailsOver(t *testing.T) {
	t.Parallel()
	cases := map[string]func(net.Conn){
		"killed before it answers": nil,
		"reset":                    resets,
		"cut short": func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 12\r\n\r\n{\"sa")
		},
		"503 with its last breath": func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 503 x\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
		},
	}
	for name, fail := range cases {
		t.Run(name, func(t *testing.T) {
			f := newGateway(t, retrying)
			primary := newMortalEngine(t, "a", fail)
			primary.Token = replica.Token{Counter: 7}
			f.engines(primary.Engine)
			require.Equal(t, http.StatusOK, f.post(`{"model":"m"}`).status)
			primary.dead.Store(true)

			const clients = 8
			answers := make(chan answer, clients)
			for range clients {
				go func() { answers <- f.post(`{"model":"m"}`) }()
			}
			eventually(t, "all wait", func() bool { return f.metric("remuda_gateway_queue_length", "model", "m") == clients })
			require.Empty(t, answers, "nobody was told of the failure")

			shadow := newEngine(t, "a", says("shadow"))
			shadow.Role, shadow.Token = replica.RoleShadow, replica.Token{Counter: 8}
			f.engines(primary.Engine, shadow)
			for range clients {
				a := <-answers
				require.Equal(t, http.StatusOK, a.status, a.body)
				require.JSONEq(t, `{"said":"shadow"}`, a.body)
				require.NotEmpty(t, a.header.Get("X-Remuda-Attempts"))
			}
			require.Equal(t, 1, primary.hits())
			require.Zero(t, f.metric("remuda_gateway_in_flight", "model", "m"))
		})
	}
}
