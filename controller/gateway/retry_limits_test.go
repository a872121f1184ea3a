package gateway_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/gateway"
)

// TestEngineThatNobodyReaches: a request does not wait for an engine that refuses each
// probe for longer than any other waits.
func TestEngineThatNobodyReaches(t *testing.T) {
	t.Parallel()
	f := newGateway(t, patient, func(c *gateway.Config) {
		c.Queue.Wait, c.Routing.Suspect = 700*time.Millisecond, 50*time.Millisecond
	})
	f.engines(deadEngine(t, "a"))
	began := time.Now()
	got := f.post(`{"model":"m"}`)
	require.Equal(t, http.StatusServiceUnavailable, got.status, got.body)
	require.GreaterOrEqual(t, time.Since(began), 600*time.Millisecond)
	require.Less(t, time.Since(began), patience/2)
}

// TestFullQueueTakesWhoWasServed: a request that an engine has failed is not refused
// because others wait.
func TestFullQueueTakesWhoWasServed(t *testing.T) {
	t.Parallel()
	f := newGateway(t, patient, func(c *gateway.Config) { c.Queue.Length = 1 })
	var asked atomic.Int32
	fail := make(chan struct{})
	e := newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) == 1 {
			_, _ = io.Copy(io.Discard, r.Body)
			<-fail
			panic(http.ErrAbortHandler) // its breaker opens: who waits goes on waiting
		}
		says("a")(w, r)
	})
	e.Slots = 1
	f.engines(e)
	first, second := make(chan answer, 1), make(chan answer, 1)
	go func() { first <- f.post(`{"model":"m"}`) }()
	eventually(t, "a request at the engine", func() bool { return asked.Load() == 1 })
	go func() { second <- f.post(`{"model":"m"}`) }()
	eventually(t, "a request that waits", func() bool { return f.metric("remuda_gateway_queue_length") == 1 })
	f.post(`{"model":"m"}`).requireError(t, http.StatusTooManyRequests, "queue_full")
	close(fail)
	got := <-first
	require.Equal(t, http.StatusOK, got.status, got.body)
	require.Equal(t, "2", got.header.Get("X-Remuda-Attempts"))
	require.Equal(t, http.StatusOK, (<-second).status)
}

// TestClientThatLeavesAfterAFailure counts as one that left, not as the failure.
func TestClientThatLeavesAfterAFailure(t *testing.T) {
	t.Parallel()
	f := newGateway(t, patient, func(c *gateway.Config) { c.Routing.Suspect, c.Routing.SuspectMax = patience, patience })
	// An engine that talks nonsense is not asked again soon, not even the only one.
	f.engines(newRawEngine(t, "a", func(c net.Conn) { _, _ = io.WriteString(c, "garbage\r\n\r\n") }))
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url+chat, strings.NewReader(`{"model":"m"}`))
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() {
		resp, err := f.client.Do(req)
		if err == nil {
			resp.Body.Close()
		}
		done <- err
	}()
	eventually(t, "a request that failed and waits", func() bool {
		return f.metric("remuda_gateway_upstream_errors_total") > 0 && f.metric("remuda_gateway_queue_length") == 1
	})
	leave()
	require.Error(t, <-done)
	f.counted(1, "model", "m")
	require.Equal(t, 1.0, f.metric("remuda_gateway_requests_total", "model", "m", "code", "499"))
}

// continuing has a gateway whose model m continues broken streams.
func continuing(t *testing.T) *fixture {
	t.Helper()
	c := newController(t, 1)
	f := newGateway(t, c.config, patient)
	c.change(func() { c.index, c.state.Models = 2, []api.GatewayModel{{Name: "m", Continuation: true}} })
	f.follows(2)
	return f
}

const chatStream = `{"model":"m","stream":true,"messages":[{"role":"user","content":"x"}]}`

// TestRefusedContinuationIsNoFaultOfTheEngine: that engines do not take what the gateway
// makes of one request must not cost the model its engines.
func TestRefusedContinuationIsNoFaultOfTheEngine(t *testing.T) {
	t.Parallel()
	f := continuing(t)
	handler := func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if strings.Contains(string(b), "continue_final_message") {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"error":{"message":"no"}}`)
			return
		}
		sse(w, `data: {"id":"1","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"a"}}]}`+"\n\n")
		panic(http.ErrAbortHandler)
	}
	f.engines(newEngine(t, "a", handler), newEngine(t, "b", handler), newEngine(t, "c", handler))
	got := f.do(http.MethodPost, chat, chatStream)
	require.Equal(t, http.StatusOK, got.status, got.body)
	require.Contains(t, got.body, "engine_cut_off")
	require.Equal(t, 3.0, f.metric("remuda_gateway_engines", "model", "m", "state", "active"))
	require.Zero(t, f.metric("remuda_gateway_continuations_total"))
}

// TestStreamThatFellsEngines: a continuation without a new token is no progress, so that a
// request which fells its engines does not go through all that there are.
func TestStreamThatFellsEngines(t *testing.T) {
	t.Parallel()
	f := continuing(t)
	var asked atomic.Int32
	handler := func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		b, _ := io.ReadAll(r.Body)
		sse(w, `data: {"id":"1","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}`+"\n\n")
		if !strings.Contains(string(b), "continue_final_message") {
			sse(w, `data: {"id":"1","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"a"}}]}`+"\n\n")
		}
		panic(http.ErrAbortHandler)
	}
	f.engines(newEngine(t, "a", handler), newEngine(t, "b", handler), newEngine(t, "c", handler), newEngine(t, "d", handler))
	got := f.do(http.MethodPost, chat, chatStream)
	require.Contains(t, got.body, "engine_cut_off")
	require.Equal(t, int32(3), asked.Load())
}
