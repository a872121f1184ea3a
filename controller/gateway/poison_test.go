package gateway_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/gateway"
	"remuda/internal/replica"
)

// fleet are engines whose process dies of a prompt with "poison" in it: its port and all its
// connections are gone at once. One with "cut" in it ends its connection only. A prompt with "warm" or "neighbour" in it is answered when its gate is
// open.
type fleet struct {
	engines []replica.Engine
	fallen  atomic.Int32
	gates   map[string]*gate
}

// gate is where requests wait at their engines.
type gate struct {
	arrived atomic.Int32
	opened  chan struct{}
	open    func()
}

func newGate() *gate {
	g := &gate{opened: make(chan struct{})}
	g.open = sync.OnceFunc(func() { close(g.opened) })
	return g
}

func newFleet(t *testing.T, n int) *fleet {
	f := &fleet{gates: map[string]*gate{"warm": newGate(), "neighbour": newGate()}}
	for i := range n {
		id := fmt.Sprintf("e%d", i)
		var fell sync.Once
		var s *httptest.Server
		s = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			if strings.Contains(string(b), "poison") {
				fell.Do(func() { f.fallen.Add(1) })
				s.Listener.Close()
				s.CloseClientConnections()
				panic(http.ErrAbortHandler)
			}
			if strings.Contains(string(b), "cut") {
				panic(http.ErrAbortHandler)
			}
			for name, g := range f.gates {
				if strings.Contains(string(b), name) {
					g.arrived.Add(1)
					<-g.opened
				}
			}
			says(id)(w, r)
		}))
		t.Cleanup(s.Close)
		e := engineAt(id, s.Listener.Addr().(*net.TCPAddr).String())
		e.Slots = 3
		f.engines = append(f.engines, e)
	}
	for _, g := range f.gates {
		t.Cleanup(g.open)
	}
	return f
}

func saying(word string) string {
	return fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":%q}]}`, word)
}

// crowd sends so many requests that wait at a gate, and returns their answers once all have arrived.
func (f *fleet) crowd(x *fixture, n int, name string) <-chan answer {
	answers := make(chan answer, n)
	for range n {
		go func() { answers <- x.post(saying(name)) }()
	}
	eventually(x.t, "all requests are at engines", func() bool { return f.gates[name].arrived.Load() == int32(n) })
	return answers
}

// warm leaves so many kept connections to each engine.
func (f *fleet) warm(x *fixture, each int) {
	n := each * len(f.engines)
	answers := f.crowd(x, n, "warm")
	f.gates["warm"].open()
	at := map[string]int{}
	for range n {
		at[(<-answers).body]++
	}
	require.Len(x.t, at, len(f.engines))
	for engine, requests := range at {
		require.Equal(x.t, each, requests, engine)
	}
}

// TestKeptConnectionsThatClose: engines that close kept connections and still run were not ended by the
// request, so its client may send it again. On new connections the request is the cause.
func TestKeptConnectionsThatClose(t *testing.T) {
	t.Parallel()
	f, fleet := newGateway(t, patient), newFleet(t, 3)
	f.engines(fleet.engines...)
	fleet.warm(f, 1)
	got := f.post(saying("cut"))
	got.requireError(t, http.StatusBadGateway, "engine_gone")
	require.Empty(t, got.header.Get("X-Should-Retry"))
	require.Equal(t, "3", got.header.Get("X-Remuda-Attempts"))
	f.post(saying("cut")).requireError(t, http.StatusBadGateway, "request_ends_engines")
}

// TestPoisonedRequest: a request that ends its engine is given to no more engines than
// retries.attempts says, over kept connections as over new ones. Its client gets an error of its own,
// which libraries do not retry. What other clients asked for is answered, also by the engines that fell.
func TestPoisonedRequest(t *testing.T) {
	t.Parallel()
	for name, warm := range map[string]bool{"new connections": false, "kept connections": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const n = 8
			f, fleet := newGateway(t, patient), newFleet(t, n)
			f = f.in(t)
			f.engines(fleet.engines...)
			if warm { // a neighbour leaves a kept connection
				fleet.warm(f, 2)
			}
			neighbours := fleet.crowd(f, n, "neighbour")
			got := f.post(saying("poison"))
			e := got.requireError(t, http.StatusBadGateway, "request_ends_engines")
			require.NotContains(t, e.Message, "retry")
			require.Equal(t, "false", got.header.Get("X-Should-Retry"))
			require.Empty(t, got.header.Get("Retry-After"))
			require.Equal(t, "3", got.header.Get("X-Remuda-Attempts"))
			require.Equal(t, int32(3), fleet.fallen.Load(), "retries.attempts is 3")
			fleet.gates["neighbour"].open()
			for range n {
				a := <-neighbours
				require.Equal(t, http.StatusOK, a.status, a.body)
				require.Contains(t, a.body, "said")
			}
			for range 2 * n {
				require.Equal(t, http.StatusOK, f.post(`{"model":"m","messages":[]}`).status)
			}
		})
	}
}

// TestEngineDiesIdle: an engine that closes a kept connection as it is used costs its clients
// nothing.
func TestEngineDiesIdle(t *testing.T) {
	t.Parallel()
	f := newGateway(t, patient, func(c *gateway.Config) { c.Timeouts.EngineIdle = patience })
	s := httptest.NewServer(says("a"))
	t.Cleanup(s.Close)
	f.engines(engineAt("a", s.Listener.Addr().(*net.TCPAddr).String()))
	for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); {
		require.Equal(t, http.StatusOK, f.post(`{"model":"m"}`).status)
		s.CloseClientConnections()
	}
}
