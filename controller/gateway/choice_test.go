package gateway_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/gateway"
	"remuda/internal/replica"
)

// who returns which engine answers n requests, sent one after the other.
func (f *fixture) who(n int) map[string]int {
	f.t.Helper()
	count := map[string]int{}
	for range n {
		a := f.post(`{"model":"m"}`)
		require.Equal(f.t, http.StatusOK, a.status, a.body)
		count[a.body]++
	}
	return count
}

func TestHighestTokenOfAReplicaServes(t *testing.T) {
	f := newGateway(t)
	old, young := newEngine(t, "a", says("old")), newEngine(t, "a", says("young"))
	old.Token, young.Token = 41, 42
	young.Role = replica.RoleShadow
	f.engines(old)
	require.Equal(t, map[string]int{`{"said":"old"}`: 3}, f.who(3))
	f.engines(old, young)
	require.Equal(t, map[string]int{`{"said":"young"}`: 3}, f.who(3))
	young.Passing = false
	f.engines(old, young)
	f.post(`{"model":"m"}`).requireError(t, http.StatusServiceUnavailable, "model_unavailable")
}

func TestLeastBusyEngineServes(t *testing.T) {
	f := newGateway(t)
	entered, release := make(chan struct{}, 8), make(chan struct{})
	slow := func(name string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			entered <- struct{}{}
			<-release
			says(name)(w, r)
		}
	}
	a, b := newEngine(t, "a", slow("a")), newEngine(t, "b", slow("b"))
	a.Slots, b.Slots = 1, 3
	f.engines(a, b)
	answers := make(chan answer, 8)
	for range 8 {
		go func() { answers <- f.post(`{"model":"m"}`) }()
	}
	for range 8 {
		<-entered
	}
	require.Equal(t, 8.0, f.metric("remuda_gateway_in_flight", "model", "m"))
	close(release)
	count := map[string]int{}
	for range 8 {
		count[(<-answers).body]++
	}
	require.Equal(t, map[string]int{`{"said":"a"}`: 2, `{"said":"b"}`: 6}, count)
}

func TestDeregisteredEngineGetsNoNewRequest(t *testing.T) {
	f := newGateway(t)
	entered, release := make(chan struct{}), make(chan struct{})
	a := newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
		entered <- struct{}{}
		<-release
		says("a")(w, r)
	})
	b := newEngine(t, "b", says("b"))
	f.engines(a)
	running := make(chan answer, 1)
	go func() { running <- f.post(`{"model":"m"}`) }()
	<-entered
	f.engines(b)
	require.Equal(t, map[string]int{`{"said":"b"}`: 5}, f.who(5))
	close(release)
	require.Equal(t, `{"said":"a"}`, (<-running).body, "the running request is left alone")
}

func TestUnreachableEngineIsSkipped(t *testing.T) {
	f := newGateway(t, func(c *gateway.Config) { c.Routing.Suspect = time.Hour })
	f.engines(deadEngine(t, "a"), deadEngine(t, "b"), newEngine(t, "c", says("c")))
	require.Equal(t, map[string]int{`{"said":"c"}`: 10}, f.who(10))
	require.Equal(t, 2.0, f.metric("remuda_gateway_upstream_errors_total", "model", "m", "kind", "dial"), "each dead engine is tried once")
	require.Equal(t, 2.0, f.metric("remuda_gateway_engines", "state", "suspect"))
	f.engines(newEngine(t, "c", says("c")))
	require.Zero(t, f.metric("remuda_gateway_upstream_errors_total"), "the series of gone replicas are gone")
}

func TestNoReachableEngine(t *testing.T) {
	f := newGateway(t)
	f.engines(deadEngine(t, "a"))
	a := f.post(`{"model":"m"}`)
	e := a.requireError(t, http.StatusServiceUnavailable, "engine_unreachable")
	require.Contains(t, e.Message, `"m"`)
	require.NotEmpty(t, a.header.Get("Retry-After"))
	f.engines(deadEngine(t, "a"), deadEngine(t, "b"), deadEngine(t, "c"), deadEngine(t, "d"))
	f.post(`{"model":"m"}`).requireError(t, http.StatusServiceUnavailable, "engine_unreachable")
	require.Equal(t, 1.0+3.0, f.metric("remuda_gateway_upstream_errors_total", "kind", "dial"), "three attempts at most")
}

func TestSuspectIsTriedWhenItIsTheOnlyOne(t *testing.T) {
	f := newGateway(t, func(c *gateway.Config) { c.Routing.Suspect = time.Hour })
	dead := deadEngine(t, "a")
	f.engines(dead)
	f.post(`{"model":"m"}`).requireError(t, http.StatusServiceUnavailable, "engine_unreachable")
	f.engines(dead)
	f.post(`{"model":"m"}`).requireError(t, http.StatusServiceUnavailable, "engine_unreachable")
	require.Equal(t, 2.0, f.metric("remuda_gateway_upstream_errors_total", "kind", "dial"))
}

func TestConsulOutageKeepsEngines(t *testing.T) {
	f := newGateway(t, func(c *gateway.Config) { c.Routing.Grace = time.Hour })
	a := newEngine(t, "a", says("a"))
	dead := deadEngine(t, "dead")
	f.engines(a, dead)
	f.tell(true)
	require.Equal(t, map[string]int{`{"said":"a"}`: 4}, f.who(4))
	require.Equal(t, 1.0, f.metric("remuda_gateway_engines", "state", "kept"), "the dead one was dropped at its first failure")
	a.Passing = false
	f.engines(a)
	require.Equal(t, map[string]int{`{"said":"a"}`: 2}, f.who(2))
	a.Passing = true
	f.engines(a)
	f.engines()
	f.post(`{"model":"m"}`).requireError(t, http.StatusServiceUnavailable, "model_unavailable")
}

func TestConsulOutageGraceEnds(t *testing.T) {
	f := newGateway(t, func(c *gateway.Config) { c.Routing.Grace = 200 * time.Millisecond })
	f.engines(newEngine(t, "a", says("a")))
	f.tell(true)
	require.Equal(t, http.StatusOK, f.post(`{"model":"m"}`).status)
	eventually(t, "the grace ends", func() bool { return f.post(`{"model":"m"}`).status == http.StatusServiceUnavailable })
}
