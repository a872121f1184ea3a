package gateway_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/gateway"
	"remuda/controller/gatewayreport"
)

// boss is a controller that gives orders, and takes no report that the real one would not.
type boss struct {
	*controller

	mu     sync.Mutex
	orders api.GatewayOrders
	// before, if not nil, is called with each report before it is answered.
	before func(api.GatewayReport)
	// states, if not nil, holds the answers to queries of the state until it is closed.
	states chan struct{}
}

func newBoss(t *testing.T) *boss {
	b := &boss{controller: newController(t, 0)}
	s := httptest.NewServer(http.HandlerFunc(b.serve))
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	b.servers = append(b.servers, s)
	return b
}

// newBossOf has models, and is at index 2.
func newBossOf(t *testing.T, models ...api.GatewayModel) *boss {
	b := newBoss(t)
	b.change(func() { b.index, b.state.Models = 2, models })
	return b
}

func (b *boss) serve(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPut {
		b.mu.Lock()
		states := b.states
		b.mu.Unlock()
		if states != nil {
			select {
			case <-states:
			case <-r.Context().Done():
			}
		}
		b.controller.serve(0, w, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the gateway is gone
	}
	var report api.GatewayReport
	if err := json.Unmarshal(body, &report); err != nil {
		b.t.Errorf("report: %v", err)
	}
	if err := gatewayreport.Validate(report); err != nil {
		b.t.Errorf("the controller would not take the report: %v\n%s", err, body)
	}
	b.mu.Lock()
	before, orders := b.before, b.orders
	b.mu.Unlock()
	if before != nil {
		before(report)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	rec := httptest.NewRecorder()
	b.controller.serve(0, rec, r)
	w.WriteHeader(rec.Code)
	if rec.Code == http.StatusOK {
		orders.Shares = sharesOf(report)
		_ = json.NewEncoder(w).Encode(orders)
	}
}

func (b *boss) order(o api.GatewayOrders) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.orders = o
}

func (b *boss) watch(f func(api.GatewayReport)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.before = f
}

// wanted is how many reports wanted each model.
func (b *boss) wanted() map[string]int {
	b.controller.mu.Lock()
	defer b.controller.mu.Unlock()
	out := map[string]int{}
	for _, r := range b.reports {
		for m := range r.Demand {
			out[m]++
		}
	}
	return out
}

// named tells whether the last report names a request, and where: "queue" or a replica.
func (b *boss) named(id string) string {
	b.controller.mu.Lock()
	defer b.controller.mu.Unlock()
	if len(b.reports) == 0 {
		return ""
	}
	last := b.reports[len(b.reports)-1]
	is := func(r api.Request) bool { return r.ID == id }
	for _, q := range last.Queues {
		if slices.ContainsFunc(q.Requests, is) {
			return "queue"
		}
	}
	for _, l := range last.Replicas {
		if slices.ContainsFunc(l.Requests, is) {
			return l.Name
		}
	}
	return ""
}

// next waits for a report that names a request which is not among the known ones, and returns its ID.
func (b *boss) next(known ...string) (id string) {
	b.t.Helper()
	eventually(b.t, "another request is named", func() bool {
		b.controller.mu.Lock()
		defer b.controller.mu.Unlock()
		if len(b.reports) == 0 {
			return false
		}
		last := b.reports[len(b.reports)-1]
		var all []api.Request
		for _, q := range last.Queues {
			all = append(all, q.Requests...)
		}
		for _, l := range last.Replicas {
			all = append(all, l.Requests...)
		}
		at := slices.IndexFunc(all, func(r api.Request) bool { return !slices.Contains(known, r.ID) })
		if at >= 0 {
			id = all[at].ID
		}
		return at >= 0
	})
	return id
}

func TestKillOfRequestsThatWait(t *testing.T) {
	t.Parallel()
	c := newBossOf(t, api.GatewayModel{Name: "m"})
	f := newGateway(t, patient, c.config, commentsEvery(20*time.Millisecond))
	f.engines()
	f.follows(2)
	unary := f.later("victim", unaryBody)
	f.waiting("m", 1)
	first := c.next()
	stream := f.listen("victim", streamBody)
	stream.comment()
	second := c.next(first)
	require.Equal(t, second, stream.header.Get("X-Request-Id"))
	other := f.later("other", unaryBody)
	f.waiting("m", 3)
	third := c.next(first, second)

	c.order(api.GatewayOrders{Kill: []string{"nobody's", "other"}}) // IDs that clients send do not count
	c.order(api.GatewayOrders{Kill: []string{"other", first, second}})
	a := <-unary
	e := a.requireError(t, http.StatusForbidden, "request_killed")
	require.Contains(t, e.Message, "operator")
	require.Empty(t, a.header.Get("Retry-After"), "it is not to be sent again")
	stream.requireErrorEvent(chat, "request_killed")
	eventually(t, "it is gone from the reports", func() bool { return c.named(first) == "" && c.named(second) == "" && c.named(third) == "queue" })
	f.waiting("m", 1)

	// The order is repeated until its time is over, and does no harm to others.
	c.order(api.GatewayOrders{Kill: []string{first}})
	f.engines(newEngine(t, "a", says("x")))
	(<-other).requireWhole(t, "x")
	f.requireRest()
}

func TestKillOfRequestsInFlight(t *testing.T) {
	t.Parallel()
	c := newBossOf(t, api.GatewayModel{Name: "m"})
	f := newGateway(t, patient, c.config)
	var told sync.WaitGroup
	told.Add(3)
	entered := make(chan struct{}, 3)
	f.engines(newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		switch r.Header.Get("X-Request-Id") {
		case "unary":
		case "stream":
			sse(w, "data: {}\n\n")
		case "long":
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"a":"`+strings.Repeat("x", 100<<10))
			_ = http.NewResponseController(w).Flush()
		default:
			says("y")(w, r)
			return
		}
		entered <- struct{}{}
		<-r.Context().Done()
		told.Done()
	}))
	f.follows(2)
	unary, stream, long := f.later("unary", unaryBody), f.later("stream", streamBody), f.later("long", unaryBody)
	var ids []string
	for range 3 {
		<-entered
		ids = append(ids, c.next(ids...))
	}
	for _, id := range ids {
		require.Equal(t, "m:v:a", c.named(id))
	}
	c.order(api.GatewayOrders{Kill: ids})
	(<-unary).requireError(t, http.StatusForbidden, "request_killed")
	requireBroken(t, <-stream, "data: {}\n\n", "request_killed")
	require.Error(t, (<-long).err, "it is cut, not ended")
	told.Wait() // the engine was told
	f.requireRest()
	require.Zero(t, f.metric("remuda_gateway_upstream_errors_total"), "the engine is not to blame")
	require.Zero(t, f.metric("remuda_gateway_retries_total"))
	require.Equal(t, 1.0, f.metric("remuda_gateway_requests_total", "code", "403"))
	require.Equal(t, map[string]int{wholeOf("y"): 8}, f.who(8), "all slots are free, the engine is in use")
}

// TestDrainByOrder: no new connection is taken, who waits is still served while there is
// time, and Run ends by itself.
func TestDrainByOrder(t *testing.T) {
	t.Parallel()
	c := newBossOf(t, api.GatewayModel{Name: "m"})
	f := newGateway(t, patient, c.config, func(cfg *gateway.Config) { cfg.Advertise = "https://llm.example.com" })
	s := newTurnstile(t, "a", 1)
	f.engines(s.Engine)
	f.follows(2)
	stream := f.later("stream", streamBody)
	s.next()
	waits := f.later("waits", unaryBody)
	f.waiting("m", 1)
	serving := c.reported("it serves", func(r api.GatewayReport) bool { return r.Index == 2 })
	require.False(t, serving.Draining)
	require.Equal(t, "https://llm.example.com", serving.Address)

	c.order(api.GatewayOrders{Drain: true})
	c.reported("it says that it drains, and what it still has", func(r api.GatewayReport) bool {
		return r.Draining && len(r.Queues) == 1 && r.Queues[0].Waiting == 1 && len(r.Replicas) == 1 && r.Replicas[0].InFlight == 1
	})
	f.requireClosed()
	s.leave <- struct{}{}
	require.Equal(t, streamOf("stream"), (<-stream).body)
	require.Equal(t, "waits", s.next())
	s.leave <- struct{}{}
	(<-waits).requireWhole(t, "waits")
	f.requireEnded()
	last := c.reported("the last word", func(r api.GatewayReport) bool { return len(r.Replicas) == 1 && r.Replicas[0].InFlight == 0 })
	require.True(t, last.Draining)
}

// TestDrainByOrderAnswersEverybody when the drain's time is over.
func TestDrainByOrderAnswersEverybody(t *testing.T) {
	t.Parallel()
	c := newBossOf(t, api.GatewayModel{Name: "m"})
	f := newGateway(t, patient, c.config, commentsEvery(20*time.Millisecond), func(cfg *gateway.Config) { cfg.Timeouts.Drain = 200 * time.Millisecond })
	f.engines()
	f.follows(2)
	unary, stream := f.later("unary", unaryBody), f.listen("stream", streamBody)
	f.waiting("m", 2)
	stream.comment()
	c.order(api.GatewayOrders{Drain: true})
	f.requireEnded()
	a := <-unary
	a.requireError(t, http.StatusServiceUnavailable, "gateway_stopping")
	require.Equal(t, 5, a.retryAfter(t))
	stream.requireErrorEvent(chat, "gateway_stopping")
}

// TestStoppingGatewayAnswersWhoWaits: nobody's request is lost silently with a restart.
func TestStoppingGatewayAnswersWhoWaits(t *testing.T) {
	t.Parallel()
	c := newBossOf(t, api.GatewayModel{Name: "m"})
	f := newGateway(t, patient, c.config, commentsEvery(20*time.Millisecond), func(cfg *gateway.Config) { cfg.Timeouts.Drain = 100 * time.Millisecond })
	busy := newTurnstile(t, "b", 1)
	busy.Name.Model = "busy"
	f.engines(busy.Engine)
	f.follows(2)
	const n = 30
	var cold, behind []<-chan answer
	var told []*listener
	first := f.later("first", `{"model":"busy"}`)
	busy.next()
	for i := range n {
		cold = append(cold, f.later(fmt.Sprintf("cold%d", i), unaryBody))
		behind = append(behind, f.later(fmt.Sprintf("behind%d", i), `{"model":"busy"}`))
		told = append(told, f.listen(fmt.Sprintf("told%d", i), streamBody))
	}
	f.waiting("m", 2*n)
	f.waiting("busy", n)
	for _, l := range told {
		l.comment()
	}
	f.wait()
	for _, answers := range [][]<-chan answer{{first}, cold, behind} {
		for _, a := range answers {
			a := <-a
			a.requireError(t, http.StatusServiceUnavailable, "gateway_stopping")
			require.Equal(t, 5, a.retryAfter(t))
		}
	}
	for _, l := range told {
		l.requireErrorEvent(chat, "gateway_stopping")
	}
}

// TestStoppingGatewayWithoutAList answers those that came before the first list.
func TestStoppingGatewayWithoutAList(t *testing.T) {
	t.Parallel()
	f := newGateway(t, patient, func(cfg *gateway.Config) { cfg.Timeouts.Drain = 50 * time.Millisecond })
	early := f.later("early", unaryBody)
	eventually(t, "the request is held", func() bool { return f.metric("remuda_gateway_buffered_bytes") > 0 })
	f.wait()
	(<-early).requireError(t, http.StatusServiceUnavailable, "gateway_stopping")
}

// requireClosed waits until no new connection is taken.
func (f *fixture) requireClosed() {
	f.t.Helper()
	eventually(f.t, "no new connection is taken", func() bool {
		c, err := net.Dial("tcp", f.addr)
		if err == nil {
			c.Close()
		}
		return err != nil
	})
}

// requireEnded waits until Run has ended by itself.
func (f *fixture) requireEnded() {
	f.t.Helper()
	select {
	case err := <-f.done:
		require.NoError(f.t, err)
		f.done <- nil
	case <-time.After(patience):
		f.t.Fatal("the gateway does not end")
	}
}

// TestReportsOfQueues: the controller sees who waits, in order, and takes the reports of a
// gateway that is busy.
func TestReportsOfQueues(t *testing.T) {
	t.Parallel()
	c := newBossOf(t, api.GatewayModel{Name: "m"}, api.GatewayModel{Name: "cold"}, api.GatewayModel{Name: "idle"}, api.GatewayModel{Name: "off", Stopped: true})
	f := newGateway(t, patient, c.config)
	began := time.Now()
	s := newTurnstile(t, "a", 2)
	f.engines(s.Engine)
	f.follows(2)
	const n = api.MaxReportRequests + 3
	answers := []<-chan answer{f.later("x", unaryBody), f.later("y", streamBody)}
	s.next()
	s.next()
	var want []string
	here := []string{c.next()}
	here = append(here, c.next(here...))
	for i := range n {
		id := fmt.Sprintf("w%02d", i)
		answers = append(answers, f.later(id, unaryBody))
		f.waiting("m", i+1)
		if i < api.MaxReportRequests {
			want = append(want, c.next(append(here, want...)...))
		}
	}
	cold := f.later("c", `{"model":"cold"}`)
	f.post(`{"model":"off"}`).requireError(t, http.StatusNotFound, "model_stopped")
	f.post(`{"model":"nobody's"}`).requireError(t, http.StatusNotFound, "model_not_found")
	report := c.reported("all queues", func(r api.GatewayReport) bool { return len(r.Queues) == 2 && r.Queues[0].Waiting == n })
	q := report.Queues[0]
	require.Equal(t, "m", q.Model)
	require.Equal(t, api.QueueBusy, q.State)
	require.Equal(t, 2, q.InFlight)
	require.Len(t, q.Requests, api.MaxReportRequests)
	for i, r := range q.Requests {
		require.Equal(t, want[i], r.ID)
		require.Equal(t, "anonymous", r.Key)
		require.WithinRange(t, r.Started, began, time.Now())
	}
	require.True(t, q.OldestAt.Equal(q.Requests[0].Started))
	require.Positive(t, report.Queues[1].WaitingTokens)
	require.Equal(t, api.QueueLoad{Model: "cold", State: api.QueueProvisioning, Waiting: 1, WaitingTokens: report.Queues[1].WaitingTokens, OldestAt: report.Queues[1].OldestAt,
		Requests: []api.Request{{ID: report.Queues[1].Requests[0].ID, Key: "anonymous", Started: report.Queues[1].OldestAt}}}, report.Queues[1])

	c.change(func() {
		c.index = 3
		c.state.Replicas = []api.GatewayReplica{{Name: "cold:v:1", Model: "cold", Variant: "v", Status: "placed"}}
	})
	c.reported("that it is on its way", func(r api.GatewayReport) bool {
		return len(r.Queues) == 2 && r.Queues[1].State == api.QueueDeploying
	})
	e := newEngine(t, "1", says("c"))
	e.Name.Model = "cold"
	f.engines(s.Engine, e)
	(<-cold).requireWhole(t, "c")
	close(s.leave)
	for _, a := range answers {
		require.Equal(t, http.StatusOK, (<-a).status)
	}
	last := c.reported("that all is served", func(r api.GatewayReport) bool {
		return !slices.ContainsFunc(r.Queues, func(q api.QueueLoad) bool { return q.Waiting+q.InFlight > 0 })
	})
	require.NotEmpty(t, last.Queues, "how many were served lately is still told")
	for _, q := range last.Queues {
		require.Equal(t, api.QueueReady, q.State)
		require.Empty(t, q.Requests)
		require.True(t, q.OldestAt.IsZero())
	}
	m := slices.IndexFunc(last.Queues, func(q api.QueueLoad) bool { return q.Model == "m" })
	require.GreaterOrEqual(t, m, 0)
	require.Positive(t, last.Queues[m].CompletedPerSecond)
}

// TestEndOfAllLeavesNothing: a gateway that had all kinds of waiters has no goroutine when it ends.
func TestEndOfAllLeavesNothing(t *testing.T) {
	before := runtime.NumGoroutine()
	c := newBossOf(t, api.GatewayModel{Name: "m"})
	f := newGateway(t, patient, c.config, commentsEvery(time.Millisecond), func(cfg *gateway.Config) { cfg.Timeouts.Drain = 0 })
	f.engines(deadEngine(t, "dead"))
	f.follows(2)
	var answers []<-chan answer
	for i := range 10 {
		answers = append(answers, f.later(fmt.Sprint(i), unaryBody))
	}
	l := f.listen("s", streamBody)
	l.comment()
	eventually(t, "all are there", func() bool { return f.metric("remuda_gateway_queue_length")+f.metric("remuda_gateway_in_flight") == 11 })
	f.wait()
	for _, a := range answers {
		require.Equal(t, http.StatusServiceUnavailable, (<-a).status)
	}
	l.end()
	for _, s := range c.servers {
		s.Close()
	}
	eventually(t, "no goroutine is left", func() bool {
		f.client.CloseIdleConnections()
		return runtime.NumGoroutine() <= before+1 // that of this poll
	})
}
