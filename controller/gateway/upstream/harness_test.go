package upstream_test

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"remuda/controller/gateway/upstream"
)

func TestMain(m *testing.M) {
	if os.Getenv(benchServer) != "" {
		serveBench()
	}
	goleak.VerifyTestMain(m)
}

// patience bounds every wait of these tests; none is expected to come near it.
const patience = time.Minute

// soon waits until something is so.
func soon(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(200 * time.Microsecond) {
		if time.Now().After(end) {
			require.FailNow(t, "it never came", what)
		}
	}
}

// engine is a server that does with each connection what a test says.
type engine struct {
	addr     string
	listener net.Listener
	accepted atomic.Int64
	open     atomic.Int64
	running  sync.WaitGroup

	mu    sync.Mutex
	ended bool
	conns map[net.Conn]bool
}

// peer is the engine's side of a connection.
type peer struct {
	*net.TCPConn
	br *bufio.Reader
	// nth is which connection it is, from 1.
	nth int64
}

// newEngine starts an engine. handle has a connection until it returns.
func newEngine(t testing.TB, handle func(*peer)) *engine {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	e := &engine{addr: l.Addr().String(), listener: l, conns: map[net.Conn]bool{}}
	e.running.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			if !e.took(nc) {
				nc.Close()
				return
			}
			p := &peer{TCPConn: nc.(*net.TCPConn), br: bufio.NewReader(nc), nth: e.accepted.Add(1)}
			e.running.Go(func() {
				defer e.leave(nc)
				handle(p)
			})
		}
	})
	t.Cleanup(e.close)
	return e
}

func (e *engine) took(nc net.Conn) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.conns[nc] = true
	e.open.Add(1)
	return !e.ended
}

func (e *engine) leave(nc net.Conn) {
	nc.Close()
	e.open.Add(-1)
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.conns, nc)
}

func (e *engine) close() {
	e.listener.Close()
	e.mu.Lock()
	e.ended = true
	for nc := range e.conns {
		nc.Close()
	}
	e.mu.Unlock()
	e.running.Wait()
}

// request reads a request with its body; ok is false where the connection ended.
func (p *peer) request() (r *http.Request, body []byte, ok bool) {
	r, err := http.ReadRequest(p.br)
	if err != nil {
		return nil, nil, false
	}
	body, err = io.ReadAll(r.Body)
	return r, body, err == nil
}

// say writes; a client that is gone is not the engine's concern.
func (p *peer) say(s string) { _, _ = io.WriteString(p, s) }

// gone waits until the client has closed the connection.
func (p *peer) gone() { _, _ = io.Copy(io.Discard, p.br) }

// fine is an answer.
const fine = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine"

// always answers every request with the same.
func always(answer string) func(*peer) {
	return func(p *peer) {
		for {
			if _, _, ok := p.request(); !ok {
				return
			}
			p.say(answer)
		}
	}
}

// question is a request whose releases are counted. Its body is spoilt once it is released,
// as a buffer is that serves another request then.
type question struct {
	upstream.Request
	released  atomic.Int32
	connected atomic.Int32
}

func newQuestion(addr string, body []byte) *question {
	q := &question{Request: upstream.Request{Addr: addr, Target: "/v1/completions", Header: http.Header{}, Body: body}}
	q.Release = func() {
		q.released.Add(1)
		clear(body)
	}
	q.Connected = func() { q.connected.Add(1) }
	return q
}

// free requires that the request is released once.
func (q *question) free(t testing.TB) {
	t.Helper()
	soon(t, "the release of the request", func() bool { return q.released.Load() > 0 })
	require.EqualValues(t, 1, q.released.Load(), "releases")
}

// newTransport returns a transport that keeps connections for longer than tests last,
// unless a test changes it.
func newTransport(t testing.TB, change ...func(*upstream.Config)) *upstream.Transport {
	t.Helper()
	cfg := upstream.Config{Connect: patience, Idle: time.Minute, MaxIdle: 1000}
	for _, f := range change {
		f(&cfg)
	}
	tr := upstream.New(cfg)
	t.Cleanup(tr.CloseIdle)
	return tr
}

// ask sends a request and reads its answer to the end.
func ask(t testing.TB, tr *upstream.Transport, q *question) (*http.Response, string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	resp, err := tr.Do(ctx, &q.Request)
	if err != nil {
		require.NoError(t, ctx.Err())
		require.EqualValues(t, 1, q.released.Load(), "releases when Do has failed")
		return nil, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, ctx.Err())
	return resp, string(text), err
}

// works requires that a request is answered with fine.
func works(t testing.TB, tr *upstream.Transport, addr string) {
	t.Helper()
	q := newQuestion(addr, []byte("again"))
	resp, text, err := ask(t, tr, q)
	require.NoError(t, err)
	require.Equal(t, 200, resp.StatusCode)
	require.Equal(t, "fine", text)
	q.free(t)
}

// kept requires so many kept connections.
func kept(t testing.TB, tr *upstream.Transport, n int) {
	t.Helper()
	all, _ := upstream.Kept(tr)
	require.Equal(t, n, all, "kept connections")
}

// descriptors counts the open descriptors of this process.
func descriptors(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(list)
}

// filled returns n bytes that are not all alike.
func filled(n int) []byte { return bytes.Repeat([]byte("0123456789abcde\n"), n/16+1)[:n] }

// lines returns header lines of n bytes in all.
func lines(n int) string {
	var s strings.Builder
	for n > 1000 {
		s.WriteString("X-A: " + strings.Repeat("a", 493) + "\r\n")
		n -= 500
	}
	s.WriteString("X-B: " + strings.Repeat("b", n-7) + "\r\n")
	return s.String()
}
