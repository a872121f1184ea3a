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
// connections are gone at once. To a prompt with "warm" in it they answer when gate is closed.
type fleet struct {
	engines []replica.Engine
	fallen  atomic.Int32
	arrived atomic.Int32
	gate    chan struct{}
}

func newFleet(t *testing.T, n int) *fleet {
	f := &fleet{gate: make(chan struct{})}
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
			if strings.Contains(string(b), "warm") {
				f.arrived.Add(1)
				<-f.gate
			}
			says(id)(w, r)
		}))
		t.Cleanup(s.Close)
		e := engineAt(id, s.Listener.Addr().(*net.TCPAddr).String())
		e.Slots = 1
		f.engines = append(f.engines, e)
	}
	return f
}

// TestPoisonedRequest: a request that ends its engine is given to no more engines than
// retries.attempts says, over kept connections as over new ones, and its client gets an error
// of its own. What other clients asked for is answered.
func TestPoisonedRequest(t *testing.T) {
	t.Parallel()
	for name, warm := range map[string]bool{"new connections": false, "kept connections": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const n = 8
			f, engines := newGateway(t, patient), newFleet(t, n)
			f.engines(engines.engines...)
			if warm { // one request at each engine, so that a connection to each is kept
				said := make(chan string, n)
				for range n {
					go func() { said <- f.post(`{"model":"m","messages":[{"role":"user","content":"warm"}]}`).body }()
				}
				eventually(t, "a request at each engine", func() bool { return engines.arrived.Load() == n })
				close(engines.gate)
				at := map[string]bool{}
				for range n {
					at[<-said] = true
				}
				require.Len(t, at, n)
			}
			got := f.post(`{"model":"m","messages":[{"role":"user","content":"poison"}]}`)
			got.requireError(t, http.StatusBadGateway, "engine_gone")
			require.Equal(t, "3", got.header.Get("X-Remuda-Attempts"))
			require.Equal(t, int32(3), engines.fallen.Load(), "retries.attempts is 3")
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
