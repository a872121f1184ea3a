package gateway_test

import (
	"io"
	"net"
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
	t.Parallel()
	f := newGateway(t)
	old, young := newEngine(t, "a", says("old")), newEngine(t, "a", says("young"))
	old.Token, young.Token = replica.Token{Counter: 41}, replica.Token{Counter: 42}
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
	t.Parallel()
	f := newGateway(t, patient)
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
	for range 4 {
		<-entered
	}
	require.Equal(t, 4.0, f.metric("remuda_gateway_in_flight", "model", "m"))
	eventually(t, "the others wait", func() bool { return f.metric("remuda_gateway_queue_length", "model", "m") == 4 })
	require.Empty(t, entered, "no engine has more requests than slots")
	close(release)
	count := map[string]int{}
	for range 8 {
		count[(<-answers).body]++
	}
	require.Equal(t, 8, count[`{"said":"a"}`]+count[`{"said":"b"}`], count)
	require.GreaterOrEqual(t, count[`{"said":"b"}`], 3)
	require.GreaterOrEqual(t, count[`{"said":"a"}`], 1)
}

func TestDeregisteredEngineGetsNoNewRequest(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
	f := newGateway(t, patient, func(c *gateway.Config) {
		c.Routing.Suspect, c.Routing.SuspectMax, c.Routing.Remember = time.Hour, time.Hour, 8*time.Second
	})
	f.engines(deadEngine(t, "a"), deadEngine(t, "b"), newEngine(t, "c", says("c")))
	require.Equal(t, map[string]int{`{"said":"c"}`: 10}, f.who(10))
	require.Equal(t, 2.0, f.metric("remuda_gateway_upstream_errors_total", "model", "m", "kind", "dial"), "each dead engine is tried once")
	require.Equal(t, 2.0, f.metric("remuda_gateway_engines", "state", "open"))
	f.engines(newEngine(t, "c", says("c")))
	require.Equal(t, 2.0, f.metric("remuda_gateway_upstream_errors_total"), "a scrape after the engines are gone still sees why")
	eventually(t, "the series of gone replicas go", func() bool { return f.metric("remuda_gateway_upstream_errors_total") == 0 })
}

func TestNoReachableEngine(t *testing.T) {
	t.Parallel()
	f := newGateway(t)
	f.engines(deadEngine(t, "a"))
	a := f.post(`{"model":"m"}`)
	e := a.requireError(t, http.StatusServiceUnavailable, "engine_unreachable")
	require.Contains(t, e.Message, `"m"`)
	require.NotEmpty(t, a.header.Get("Retry-After"))
	require.Equal(t, 1.0, f.metric("remuda_gateway_upstream_errors_total", "kind", "dial"))
}

// TestUnreachableEnginesAreTriedAgain: an engine that is restarted refuses connections
// for a while.
func TestUnreachableEnginesAreTriedAgain(t *testing.T) {
	t.Parallel()
	f := newGateway(t, patient)
	dead := deadEngine(t, "a")
	f.engines(dead, deadEngine(t, "b"))
	began := time.Now()
	a := f.post(`{"model":"m"}`, "X-Remuda-Timeout", "6s")
	a.requireError(t, http.StatusServiceUnavailable, "engine_unreachable")
	require.GreaterOrEqual(t, time.Since(began), 6*time.Second)
	require.GreaterOrEqual(t, f.metric("remuda_gateway_upstream_errors_total", "kind", "dial"), 3.0)

	answers := make(chan answer, 1)
	go func() { answers <- f.post(`{"model":"m"}`) }()
	eventually(t, "it waits", func() bool { return f.metric("remuda_gateway_queue_length", "model", "m") == 1 })
	f.engines(newEngine(t, "c", says("c")))
	got := <-answers
	require.Equal(t, http.StatusOK, got.status, got.body)
	require.Equal(t, "m:v:c", got.header.Get("X-Remuda-Replica"))
}

func TestConsulOutageKeepsEngines(t *testing.T) {
	t.Parallel()
	f := newGateway(t, func(c *gateway.Config) { c.Routing.Grace, c.Retries.Attempts = time.Hour, 3 })
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
	t.Parallel()
	f := newGateway(t, func(c *gateway.Config) { c.Routing.Grace = 6 * time.Second })
	f.engines(newEngine(t, "a", says("a")))
	f.tell(true)
	require.Equal(t, http.StatusOK, f.post(`{"model":"m"}`).status)
	eventually(t, "the grace ends", func() bool { return f.post(`{"model":"m"}`).status == http.StatusServiceUnavailable })
}

// TestFailingEngineDrawsNoTraffic: an engine that fails at once is always the
// least busy.
func TestFailingEngineDrawsNoTraffic(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		reply string
		most  int // a 5xx may be about the request: five in a row are about the engine
	}{
		"closes the connection": {"", 1},
		"is not HTTP":           {"SSH-2.0\r\n", 1},
		"answers HTML":          {"HTTP/1.1 500 x\r\nContent-Type: text/html\r\nContent-Length: 3\r\n\r\nbad", 5},
		"answers JSON":          {"HTTP/1.1 500 x\r\nContent-Type: application/json\r\nContent-Length: 13\r\n\r\n{\"error\":\"x\"}", 5},
	} {
		t.Run(name, func(t *testing.T) {
			f := newGateway(t, func(c *gateway.Config) { c.Routing.Suspect, c.Routing.SuspectMax = time.Hour, time.Hour })
			f.engines(newEngine(t, "good", says("good")), newRawEngine(t, "bad", func(conn net.Conn) { _, _ = io.WriteString(conn, c.reply) }))
			failed := 0
			for range 30 {
				if f.post(`{"model":"m"}`).status != http.StatusOK {
					failed++
				}
			}
			require.Equal(t, c.most, failed)
			require.Equal(t, float64(c.most), f.metric("remuda_gateway_upstream_errors_total"), "each fault counts once")
			require.Equal(t, 1.0, f.metric("remuda_gateway_engines", "state", "open"))
		})
	}
}

func TestEngineOnANodeThatConsulCannotSee(t *testing.T) {
	t.Parallel()
	f := newGateway(t)
	a, b := newEngine(t, "a", says("a")), newEngine(t, "b", says("b"))
	b.Passing, b.NodeDown = false, true
	f.engines(a, b)
	require.Equal(t, map[string]int{`{"said":"a"}`: 4}, f.who(4), "others come first")
	f.engines(b)
	require.Equal(t, map[string]int{`{"said":"b"}`: 4}, f.who(4), "its agent may be dead and it may live")
	dead := deadEngine(t, "c")
	dead.Passing, dead.NodeDown = false, true
	f.engines(dead)
	f.post(`{"model":"m"}`).requireError(t, http.StatusServiceUnavailable, "engine_unreachable")
	f.post(`{"model":"m"}`).requireError(t, http.StatusServiceUnavailable, "model_unavailable")
}

func TestKeptEnginesOutliveASecondOutage(t *testing.T) {
	t.Parallel()
	const grace = 6 * time.Second
	f := newGateway(t, func(c *gateway.Config) { c.Routing.Grace = grace })
	f.engines(newEngine(t, "a", says("a")))
	f.tell(true) // Consul is back for a moment, knows nothing, and is away again
	f.feed.say(list{lost: true})
	deadline := time.NewTimer(2 * grace)
	defer deadline.Stop()
	<-deadline.C
	require.Equal(t, http.StatusOK, f.post(`{"model":"m"}`).status)
	f.tell(true)
	require.Equal(t, http.StatusOK, f.post(`{"model":"m"}`).status)
	eventually(t, "the grace ends", func() bool { return f.post(`{"model":"m"}`).status == http.StatusServiceUnavailable })
}

func TestModelLostOverAnOutageIsForgotten(t *testing.T) {
	t.Parallel()
	f := newGateway(t, func(c *gateway.Config) {
		c.Routing.Grace, c.Routing.Remember = 50*time.Millisecond, 100*time.Millisecond
	})
	f.engines(newEngine(t, "a", says("a")))
	f.tell(true)
	eventually(t, "the model is forgotten without another list", func() bool { return f.post(`{"model":"m"}`).status == http.StatusNotFound })
}

func TestZombieIsNotServed(t *testing.T) {
	t.Parallel()
	f := newGateway(t)
	old, young := newEngine(t, "a", says("old")), newEngine(t, "a", says("young"))
	old.Token, young.Token = replica.Token{Counter: 41}, replica.Token{Counter: 42}
	f.engines(young)
	f.engines()
	f.engines(old)
	f.post(`{"model":"m"}`).requireError(t, http.StatusServiceUnavailable, "model_unavailable")
}

// TestLateFaultLeavesNoSeries: a request may fail after its engine is gone.
func TestLateFaultLeavesNoSeries(t *testing.T) {
	t.Parallel()
	f := newGateway(t, func(c *gateway.Config) { c.Routing.Remember = 100 * time.Millisecond })
	goOn := make(chan struct{})
	f.engines(newEngine(t, "a", func(w http.ResponseWriter, _ *http.Request) {
		sse(w, "data: {}\n\n")
		<-goOn
		panic(http.ErrAbortHandler)
	}))
	resp := f.open(t.Context(), streamBody)
	defer resp.Body.Close()
	f.engines()
	require.NotEqual(t, http.StatusNotFound, f.post(`{"model":"m"}`).status, "a model with a running request is known")
	close(goOn)
	_, _ = io.Copy(io.Discard, resp.Body)
	eventually(t, "all series go", func() bool {
		return f.metric("remuda_gateway_upstream_errors_total") == 0 && f.metric("remuda_gateway_requests_total", "model", "m") == 0
	})
}
