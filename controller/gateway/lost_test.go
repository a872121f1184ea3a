package gateway_test

import (
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/gateway"
	"remuda/internal/replica"
	"remuda/internal/testkit/certs"
	"remuda/internal/testkit/deadhost"
	"remuda/internal/testkit/proclog"
)

// lostHost is the reason in the log. What keep-alive notices has another one.
const lostHost = "the engine is not passing any more, and its host does not answer"

// logging gives a gateway a log.
func logging(log *proclog.Buffer) func(*gateway.Config) {
	return func(c *gateway.Config) { c.Logger = log.Logger() }
}

// mortalHost starts a raw engine that sends the beginning of an answer and no more. take has its connections.
func mortalHost(t *testing.T, beginning string) (e replica.Engine, take func() *net.TCPConn) {
	t.Helper()
	conns := make(chan *net.TCPConn, 1)
	var mu sync.Mutex
	var all []net.Conn
	e = newRawEngine(t, "a", func(c net.Conn) {
		_, _ = io.WriteString(c, beginning)
		mu.Lock()
		all = append(all, c)
		mu.Unlock()
		conns <- c.(*net.TCPConn)
		saysNothing(c)
	})
	t.Cleanup(func() {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range all {
			c.Close()
		}
	})
	return e, func() *net.TCPConn { return firstOf(t, conns) }
}

// TestLostHosts: what Consul says of an engine whose host goes silent, and what becomes of a request at it.
func TestLostHosts(t *testing.T) {
	t.Parallel()
	const begun = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
	news := map[string]func(replica.Engine) []replica.Engine{
		"its registration leaves": func(replica.Engine) []replica.Engine { return nil },
		"its node is down": func(e replica.Engine) []replica.Engine {
			e.Passing, e.NodeDown = false, true
			return []replica.Engine{e}
		},
		"its check is critical": func(e replica.Engine) []replica.Engine {
			e.Passing = false
			return []replica.Engine{e}
		},
	}
	for name, list := range news {
		for _, tc := range []struct {
			name, body, beginning string
			check                 func(*testing.T, answer)
		}{
			{"nothing was answered", `{"model":"m"}`, "", func(t *testing.T, a answer) {
				t.Helper()
				require.Equal(t, http.StatusOK, a.status, a.body)
				require.JSONEq(t, `{"said":"b"}`, a.body)
				require.Equal(t, "2", a.header.Get("X-Remuda-Attempts"))
			}},
			{"a stream without an event", streamBody, begun, func(t *testing.T, a answer) {
				t.Helper()
				require.Equal(t, http.StatusOK, a.status, a.body)
				require.Equal(t, wholeStream, a.body)
			}},
			{"a stream", streamBody, begun + "A\r\ndata: {}\n\n\r\n", func(t *testing.T, a answer) {
				t.Helper()
				requireBroken(t, a, "data: {}\n\n", "engine_cut_off")
			}},
		} {
			t.Run(name+", "+tc.name, func(t *testing.T) {
				t.Parallel()
				var log proclog.Buffer
				f := newGateway(t, retrying, logging(&log))
				a, take := mortalHost(t, tc.beginning)
				f.engines(a)
				got := make(chan answer, 1)
				go func() { got <- f.post(tc.body) }()
				host := take()
				deadhost.Silence(t, host)
				f.engines(append(list(a), newEngine(t, "b", answersWhole("b")))...)
				tc.check(t, <-got)
				require.Contains(t, log.String(), lostHost)
				require.Equal(t, 1.0, f.metric("remuda_gateway_upstream_errors_total"))
			})
		}
	}
}

// taken returns a handler that takes a request's connection and answers nothing more. take waits for the first connection.
func taken(t *testing.T) (h http.HandlerFunc, take func() net.Conn) {
	t.Helper()
	hosts := make(chan net.Conn, 1)
	ended := make(chan struct{})
	t.Cleanup(func() { close(ended) })
	h = func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		host, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer host.Close()
		hosts <- host
		<-ended
	}
	return h, func() net.Conn { return firstOf(t, hosts) }
}

// firstOf waits for a connection with a request.
func firstOf[C net.Conn](t *testing.T, conns <-chan C) (c C) {
	t.Helper()
	select {
	case c = <-conns:
	case <-time.After(patience):
		t.Fatal("the engine has no request")
	}
	return c
}

// TestStreamsOfLostHostsGoOnElsewhere: a stream that may go on at another engine does.
func TestStreamsOfLostHostsGoOnElsewhere(t *testing.T) {
	t.Parallel()
	s := newSimulated(t)
	c := continued[0]
	stream := s.stream(t, c.path, c.body)
	var log proclog.Buffer
	f := goesOn(t, logging(&log))
	stops, host := taken(t)
	a := newBreaking(t, s, "a", once(len(stream)/2), stops)
	f.engines(a.Engine)
	got := make(chan answer, 1)
	go func() { got <- f.do(http.MethodPost, c.path, c.body) }()
	deadhost.Silence(t, host().(*net.TCPConn))
	f.engines(newBreaking(t, s, "b", all, nil).Engine)
	requireSame(t, understand(t, stream), <-got)
	require.Contains(t, log.String(), lostHost)
}

// TestLostHostsBehindTLS: the connection is to the engine's TLS port.
func TestLostHostsBehindTLS(t *testing.T) {
	t.Parallel()
	cert, key := certs.With(t, 1, forEngines)
	f, log := trusting(t, cert)
	silent, host := taken(t)
	e, _ := securedEngine(t, cert, key, silent)
	f.engines(e)
	got := make(chan answer, 1)
	go func() { got <- f.post(`{"model":"m"}`) }()
	deadhost.Silence(t, host().(interface{ NetConn() net.Conn }).NetConn().(*net.TCPConn))
	f.engines()
	(<-got).requireError(t, http.StatusBadGateway, "engine_gone")
	require.Contains(t, log.String(), lostHost)
}

// TestDrainingEnginesKeepTheirRequests: an engine deregisters, closes its port, and finishes what it has.
func TestDrainingEnginesKeepTheirRequests(t *testing.T) {
	t.Parallel()
	f := newGateway(t, retrying)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	f.engines(engineAt("a", l.Addr().String()))
	got := make(chan answer, 1)
	go func() { got <- f.post(`{"model":"m"}`) }()
	c, err := l.Accept()
	require.NoError(t, err)
	defer c.Close()
	req, err := http.ReadRequest(newReader(c))
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, req.Body)
	require.NoError(t, err)
	l.Close()
	f.engines(newEngine(t, "b", says("b")))
	select {
	case a := <-got:
		t.Fatalf("the request ended: %d %s", a.status, a.body)
	case <-time.After(8 * time.Second): // twice as long as a lost host may take
	}
	_, err = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 12\r\n\r\n{\"said\":\"a\"}")
	require.NoError(t, err)
	a := <-got
	require.Equal(t, http.StatusOK, a.status, a.body)
	require.JSONEq(t, `{"said":"a"}`, a.body)
	require.Equal(t, "1", a.header.Get("X-Remuda-Attempts"))
	require.Zero(t, f.metric("remuda_gateway_upstream_errors_total"))
}
