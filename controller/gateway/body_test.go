package gateway_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/gateway"
	"remuda/internal/testkit/long"
)

// TestAnnouncedBodiesTakeNoMemory: a connection that announces a large body and sends a little of it
// takes as much memory as has arrived, rounded up to the first buffer.
func TestAnnouncedBodiesTakeNoMemory(t *testing.T) {
	const limit = 32 << 20
	connections := long.Pick(400, 4200)
	f := newGateway(t, func(c *gateway.Config) { c.Limits.Body, c.Limits.Buffered = 1<<20, limit })
	f.engines(newEngine(t, "a", says("x")))
	conns := make([]net.Conn, 0, connections)
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for range connections {
		c, err := net.Dial("tcp", f.addr)
		require.NoError(t, err)
		conns = append(conns, c)
		_, err = fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", chat, 512<<10, strings.Repeat("x", 72))
		require.NoError(t, err)
	}
	var held float64
	eventually(t, "all bodies have begun, or were refused", func() bool {
		held = f.metric("remuda_gateway_buffered_bytes")
		return held+4096*f.metric("remuda_gateway_requests_total", "code", "429") >= float64(min(connections*4096, limit/4))
	})
	require.LessOrEqual(t, held, float64(limit/4), "one address")
	elsewhere := f.from("127.0.0.2")
	require.Equal(t, http.StatusOK, elsewhere.post(`{"model":"m","prompt":"`+strings.Repeat("x", 500<<10)+`"}`).status)
}

// from is the same gateway for a client at another address.
func (f *fixture) from(ip string) *fixture {
	other := *f
	transport := &http.Transport{DisableCompression: true, DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}).DialContext}
	f.t.Cleanup(transport.CloseIdleConnections)
	other.client = &http.Client{Transport: transport}
	return &other
}

// fromEverywhere is a client each of whose connections comes from another address.
func (f *fixture) fromEverywhere() *http.Client {
	var last atomic.Uint32
	transport := &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 256, DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		n := last.Add(1)
		return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 1, byte(n>>8), byte(n))}}).DialContext(ctx, network, addr)
	}}
	f.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// TestShareOfTheBuffer: a client that holds its share is refused, and no other one.
func TestShareOfTheBuffer(t *testing.T) {
	t.Parallel()
	entered, release := make(chan struct{}, 100), make(chan struct{})
	f := newGateway(t, patient, func(c *gateway.Config) {
		c.Limits.Body, c.Limits.Buffered = 64<<10, 1<<20 // a share of 256 KiB: three bodies, and no room to grow a fourth
		c.NamedKeys = []gateway.Key{{Name: "team", Token: "secret", KeyLimit: gateway.DefaultKeyLimit()}}
	})
	e := newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
		entered <- struct{}{}
		<-release
		says("x")(w, r)
	})
	e.Slots = 100
	f.engines(e)
	big := `{"model":"m","prompt":"` + strings.Repeat("x", 60<<10) + `"}`
	known := []string{"Authorization", "Bearer secret"}
	answers := make(chan answer, 5)
	hold := func(f *fixture, header ...string) {
		go func() { answers <- f.post(big, header...) }()
		<-entered
	}
	hold(f)
	hold(f)
	hold(f)
	a := f.post(big)
	e429 := a.requireError(t, http.StatusTooManyRequests, "too_much_buffered")
	require.Equal(t, "rate_limit_error", e429.Type)
	require.Equal(t, "5", a.header.Get("Retry-After"))
	f.post(big, "Authorization", "Bearer invented").requireError(t, http.StatusTooManyRequests, "too_much_buffered")
	hold(f.from("127.0.0.2"))
	hold(f, known...)
	close(release)
	for range cap(answers) {
		require.Equal(t, http.StatusOK, (<-answers).status)
	}
	require.Equal(t, http.StatusOK, f.post(big).status)
	eventually(t, "memory comes back", func() bool { return f.metric("remuda_gateway_buffered_bytes") == 0 })
}

// TestSlowBodyOfALargeRequest grows with what has arrived, and is whole.
func TestSlowBodyOfALargeRequest(t *testing.T) {
	t.Parallel()
	wire, engine := newWire(t, "a")
	f := newGateway(t)
	f.engines(engine)
	body := `{"model":"m","prompt":"` + strings.Repeat("x", 100_000) + `"}`
	k := f.talk()
	k.say("%sContent-Length: %d\r\n\r\n", start, len(body))
	for sent := 0; sent < len(body); {
		n := min(20_000, len(body)-sent)
		k.say("%s", body[sent:sent+n])
		sent += n
		if sent < len(body) {
			eventually(t, "it has arrived", func() bool { return f.metric("remuda_gateway_buffered_bytes") >= float64(sent) })
			require.LessOrEqual(t, f.metric("remuda_gateway_buffered_bytes"), float64(4*sent+4096))
		}
	}
	require.Equal(t, http.StatusOK, k.hear().status)
	require.Equal(t, body, wire.take(t)[0].body)
	require.NoError(t, k.c.SetDeadline(time.Time{}))
}
