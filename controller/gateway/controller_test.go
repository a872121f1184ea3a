package gateway_test

import (
	"encoding/json"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/gateway"
	"remuda/internal/replica"
)

// step is by how much two indexes of a test differ for the gateway: placing engines moves the index
// in between.
const step = 1000

// controller is a little controller: one or more servers with one state and one
// memory of reports. It places the engines of the
// feed, so that they may be used.
type controller struct {
	t       *testing.T
	servers []*httptest.Server

	mu      sync.Mutex
	index   uint64
	state   api.GatewayState
	lag     map[int]uint64 // by server: the index that it is stuck at
	down    map[int]bool   // by server: it answers 500
	cut     map[int]bool   // by server: it knows no leader
	changed chan struct{}
	reports []api.GatewayReport
	refused int         // reports that a server that is down was sent
	asked   map[int]int // by server: queries of the state
	after   uint64      // the index of the last query
	token   string
	shares  func(api.GatewayReport) api.GatewayOrders // the shares in the answer to a report; nil: all that it claims
	deaf    map[string]bool                           // ports of gateways whose reports are not heard
	orders  func(api.GatewayReport) api.GatewayOrders // the answer to a report; nil: none
	denied  bool                                      // a query had another token
	// placed are the engines by replica, and placements how often one was added.
	placed     map[string][]replica.Engine
	placements uint64
}

func newController(t *testing.T, servers int) *controller {
	c := &controller{t: t, index: 1, changed: make(chan struct{}), lag: map[int]uint64{}, down: map[int]bool{}, cut: map[int]bool{}, asked: map[int]int{}, placed: map[string][]replica.Engine{}}
	for i := range servers {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { c.serve(i, w, r) }))
		t.Cleanup(func() {
			s.CloseClientConnections()
			s.Close()
		})
		c.servers = append(c.servers, s)
	}
	return c
}

func (c *controller) config(cfg *gateway.Config) {
	for _, s := range c.servers {
		cfg.Controller.Addresses = append(cfg.Controller.Addresses, s.URL)
	}
	if f, ok := cfg.Watcher.(*feed); ok {
		f.place = c.place
	}
}

// place places engines, and waits until a gateway knows.
func (c *controller) place(engines ...replica.Engine) {
	known := true
	c.change(func() {
		for _, e := range engines {
			name := e.Name.String()
			if slices.ContainsFunc(c.placed[name], func(o replica.Engine) bool { return o.HostPort() == e.HostPort() && o.Token == e.Token }) {
				continue
			}
			c.placed[name] = append(c.placed[name], e)
			c.placements++
			known = false
		}
	})
	for began := time.Now(); !known; time.Sleep(time.Millisecond) {
		c.mu.Lock()
		known = c.after == c.wire(c.index) || len(c.asked) == 0 || c.denied // no gateway has a state
		c.mu.Unlock()
		if time.Since(began) > patience {
			panic(c.t.Name() + ": the gateway does not hear where its engines are placed")
		}
	}
}

// wire is an index as gateways see it.
func (c *controller) wire(index uint64) uint64 { return index*step + c.placements }

// answer is the state with the placed engines; mu is held.
func (c *controller) answer() api.GatewayState {
	s := c.state
	s.Replicas = slices.Clone(s.Replicas)
	for _, name := range slices.Sorted(maps.Keys(c.placed)) {
		at := slices.IndexFunc(s.Replicas, func(r api.GatewayReplica) bool { return r.Name == name })
		if at < 0 {
			at = len(s.Replicas)
			of := c.placed[name][0].Name
			s.Replicas = append(s.Replicas, api.GatewayReplica{Name: name, Model: of.Model, Variant: of.Variant, Status: "serving"})
		}
		r := &s.Replicas[at]
		r.MaxSlots = replica.MaxSlots
		for _, e := range c.placed[name] {
			r.Addresses = append(r.Addresses, e.HostPort())
			r.Generation = max(r.Generation, e.Token.Generation)
		}
	}
	return s
}

// sharesOf are the shares of a gateway that is alone: all that it claims.
func sharesOf(r api.GatewayReport) []api.GatewayShare {
	var out []api.GatewayShare
	for _, c := range r.Shares {
		out = append(out, api.GatewayShare{Kind: c.Kind, Name: c.Name, Units: c.Of})
	}
	return out
}

// change changes something and wakes whoever waits.
func (c *controller) change(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *controller) serve(server int, w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.down[server] {
		if r.Method == http.MethodPut {
			c.refused++
		}
		http.Error(w, `{"error":"broken","code":"internal"}`, http.StatusInternalServerError)
		return
	}
	if c.token != "" && r.Header.Get(api.HeaderToken) != c.token {
		c.denied = true
		http.Error(w, `{"error":"a token is wanted","code":"no_token"}`, http.StatusUnauthorized)
		return
	}
	switch r.Method + " " + r.URL.Path {
	case "PUT /v1/gateway/report":
		var report api.GatewayReport
		if err := json.NewDecoder(r.Body).Decode(&report); err != nil {
			c.t.Errorf("report: %v", err)
		}
		report.Index /= step
		c.reports = append(c.reports, report)
		var orders api.GatewayOrders
		if c.orders != nil {
			orders = c.orders(report)
		}
		if name := strings.Split(report.Gateway, ":"); len(name) > 1 && c.deaf[name[len(name)-2]] {
			http.Error(w, `{"error":"broken","code":"internal"}`, http.StatusInternalServerError)
			return
		}
		orders.Shares = sharesOf(report)
		if c.shares != nil {
			given := c.shares(report)
			orders.Shares, orders.KeyParts = given.Shares, given.KeyParts
		}
		if err := json.NewEncoder(w).Encode(orders); err != nil {
			c.t.Errorf("answer a report: %v", err)
		}
	case "GET /v1/gateway/state":
		c.asked[server]++
		stale := r.URL.Query().Has("stale")
		want, _ := strconv.ParseUint(r.URL.Query().Get("index"), 10, 64)
		wait, _ := time.ParseDuration(r.URL.Query().Get("wait"))
		deadline := time.After(wait)
		c.after = want
		began := c.index // a state that is restored may have a lower one, which is told at once
		for have := c.at(server, stale); want > 0 && have <= want && c.index >= began && r.Context().Err() == nil; have = c.at(server, stale) {
			changed := c.changed
			c.mu.Unlock()
			over := false
			select {
			case <-changed:
			case <-deadline:
				over = true
			case <-r.Context().Done():
			}
			c.mu.Lock()
			if over {
				break
			}
		}
		w.Header().Set(api.HeaderIndex, strconv.FormatUint(c.at(server, stale), 10))
		w.Header().Set(api.HeaderKnownLeader, strconv.FormatBool(!c.cut[server]))
		state := c.answer()
		if stale && c.lag[server] > 0 {
			state = api.GatewayState{}
		}
		_ = json.NewEncoder(w).Encode(state)
	default:
		http.Error(w, `{"error":"no route","code":"no_route"}`, http.StatusNotFound)
	}
}

// at is the index that a server answers with.
func (c *controller) at(server int, stale bool) uint64 {
	if lag := c.lag[server]; stale && lag > 0 {
		return lag * step
	}
	return c.wire(c.index)
}

// reported waits for a report that is right.
func (c *controller) reported(what string, right func(api.GatewayReport) bool) api.GatewayReport {
	c.t.Helper()
	var found api.GatewayReport
	eventually(c.t, what, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		if n := len(c.reports); n > 0 {
			found = c.reports[n-1]
			return right(found)
		}
		return false
	})
	return found
}

func (c *controller) count(of func() int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return of()
}

func drain(names ...string) api.GatewayState {
	s := api.GatewayState{Models: []api.GatewayModel{{Name: "m"}}}
	for _, name := range names {
		s.Replicas = append(s.Replicas, api.GatewayReplica{Name: name, Model: "m", Variant: "v", Status: "draining", Draining: true})
	}
	return s
}

// index is that of the controller's state that is in force.
func (f *fixture) index() float64 {
	return math.Floor(f.metric("remuda_gateway_controller_index") / step)
}

func (f *fixture) follows(index float64) {
	f.t.Helper()
	eventually(f.t, "the gateway follows the state", func() bool { return f.index() == index })
}

func (f *fixture) up(want float64) {
	f.t.Helper()
	eventually(f.t, "the gateway knows whether the controller is there", func() bool { return f.metric("remuda_gateway_controller_up") == want })
}

func TestDrainedReplica(t *testing.T) {
	t.Parallel()
	c := newController(t, 1)
	f := newGateway(t, c.config, patient)
	entered, release := make(chan struct{}), make(chan struct{})
	a := newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Request-Id") == "long" {
			entered <- struct{}{}
			<-release
		}
		says("a")(w, r)
	})
	b := newEngine(t, "b", says("b"))
	f.engines(a)
	f.follows(1)
	f.up(1)

	long := make(chan answer, 1)
	go func() { long <- f.do(http.MethodPost, chat, `{"model":"m"}`, "X-Request-Id", "long") }()
	<-entered
	began := time.Now()
	f.engines(a, b)
	c.change(func() { c.index, c.state = 2, drain("m:v:a") })
	f.follows(2)
	require.Equal(t, map[string]int{`{"said":"b"}`: 5}, f.who(5))
	require.Equal(t, 1.0, f.metric("remuda_gateway_engines", "model", "m", "state", "draining"))

	busy := c.reported("the request that runs", func(r api.GatewayReport) bool {
		return r.Index == 2 && len(r.Replicas) == 2 && r.Replicas[0].InFlight == 1 && r.Replicas[1].InFlight == 0
	})
	one := busy.Replicas[0]
	require.Equal(t, "m:v:a", one.Name)
	require.Len(t, one.Requests, 1)
	id := one.Requests[0].ID
	require.True(t, one.OldestAt.Equal(one.Requests[0].Started))
	require.True(t, one.LastRequest.Equal(one.OldestAt))
	require.WithinDuration(t, began, one.OldestAt, patience)
	require.Equal(t, "m:v:b", busy.Replicas[1].Name)
	require.True(t, busy.Replicas[1].LastRequest.After(one.OldestAt))

	close(release)
	served := <-long
	require.Equal(t, `{"said":"a"}`, served.body)
	require.Equal(t, id, served.header.Get("X-Request-Id"))
	idle := c.reported("that it is drained", func(r api.GatewayReport) bool {
		return r.Index == 2 && len(r.Replicas) == 2 && r.Replicas[0].InFlight == 0
	})
	require.Empty(t, idle.Replicas[0].Requests)
	require.Equal(t, busy.Gateway, idle.Gateway)
	require.NotEmpty(t, idle.Gateway)

	// It gets nothing new although it is the last one: the controller knows what it
	// does. While the controller is away nobody does, and it serves.
	f.engines(a)
	f.post(`{"model":"m"}`, "X-Remuda-Timeout", "1s").requireError(t, http.StatusServiceUnavailable, "model_unavailable")
	c.change(func() { c.down[0] = true })
	c.servers[0].CloseClientConnections()
	f.up(0)
	require.Equal(t, map[string]int{`{"said":"a"}`: 3}, f.who(3))
}

func TestModelOfTheController(t *testing.T) {
	t.Parallel()
	c := newController(t, 1)
	f := newGateway(t, c.config)
	f.engines()
	f.follows(1)
	f.post(`{"model":"m"}`).requireError(t, http.StatusNotFound, "model_not_found")
	c.change(func() {
		c.index = 2
		c.state.Models = []api.GatewayModel{{Name: "m"}, {Name: "off", Stopped: true}}
	})
	f.follows(2)
	a := f.post(`{"model":"m"}`)
	a.requireError(t, http.StatusServiceUnavailable, "model_unavailable")
	require.Equal(t, "5", a.header.Get("Retry-After"))
	a = f.post(`{"model":"off"}`)
	a.requireError(t, http.StatusNotFound, "model_stopped")
	require.Empty(t, a.header.Get("Retry-After"), "it is not to be sent again")
	list := f.do(http.MethodGet, "/v1/models", "").body
	require.Contains(t, list, `"id":"m"`)
	require.Contains(t, list, `"id":"off"`)
	require.Equal(t, http.StatusOK, f.do(http.MethodGet, "/v1/models/m", "").status)
	f.post(`{"model":"none"}`).requireError(t, http.StatusNotFound, "model_not_found")
	require.Equal(t, 1.0, f.metric("remuda_gateway_requests_total", "model", "m", "code", "503"))

	c.change(func() { c.index, c.state = 3, api.GatewayState{} })
	f.follows(3)
	f.post(`{"model":"m"}`).requireError(t, http.StatusNotFound, "model_not_found")
	require.Zero(t, f.metric("remuda_gateway_requests_total", "model", "m"), "its series are gone")
}

func TestControllerThatIsAway(t *testing.T) {
	t.Parallel()
	c := newController(t, 2)
	f := newGateway(t, c.config, patient)
	a, b := newEngine(t, "a", says("a")), newEngine(t, "b", says("b"))
	f.engines(a, b)
	c.change(func() { c.index, c.state = 5, drain("m:v:a") })
	f.follows(5)

	c.change(func() { c.down[0], c.down[1] = true, true })
	for _, s := range c.servers {
		s.CloseClientConnections()
	}
	f.up(0)
	require.Equal(t, map[string]int{`{"said":"b"}`: 5}, f.who(5), "the last state is in force")
	require.Equal(t, 5.0, f.index())

	// One of them is enough, and the reports find it too.
	c.change(func() { c.down[1], c.index, c.state, c.reports = false, 6, drain("m:v:b"), nil })
	f.follows(6)
	f.up(1)
	require.Equal(t, map[string]int{`{"said":"a"}`: 5}, f.who(5))
	c.reported("the new index", func(r api.GatewayReport) bool { return r.Index == 6 })
}

func TestStateThatWasReplaced(t *testing.T) {
	t.Parallel()
	c := newController(t, 1)
	f := newGateway(t, c.config, patient)
	a, b := newEngine(t, "a", says("a")), newEngine(t, "b", says("b"))
	f.engines(a, b)
	c.change(func() { c.index, c.state = 50, drain("m:v:a") })
	f.follows(50)
	eventually(t, "the next query waits", func() bool { return c.count(func() int { return int(c.after) / step }) == 50 })
	// A snapshot is restored: the server begins again with a lower index.
	c.change(func() { c.index, c.state = 4, drain("m:v:b") })
	f.follows(4)
	require.Equal(t, map[string]int{`{"said":"a"}`: 5}, f.who(5))
	c.reported("the lower index", func(r api.GatewayReport) bool { return r.Index == 4 })
	c.change(func() { c.index, c.state = 5, drain("m:v:a") })
	f.follows(5)
}

// TestStateOfANewController: a controller that lost its data counts from the beginning,
// and may be where the old one was.
func TestStateOfANewController(t *testing.T) {
	t.Parallel()
	c := newController(t, 1)
	f := newGateway(t, c.config, patient)
	f.engines(newEngine(t, "a", says("a")), newEngine(t, "b", says("b")))
	c.change(func() { c.index, c.state = 5, drain("m:v:a") })
	f.follows(5)
	c.change(func() { c.down[0] = true })
	c.servers[0].CloseClientConnections()
	f.up(0)
	c.change(func() { c.down[0], c.state = false, drain("m:v:b") })
	f.up(1)
	require.Equal(t, map[string]int{`{"said":"a"}`: 5}, f.who(5))
}

func TestServerThatLags(t *testing.T) {
	t.Parallel()
	c := newController(t, 2)
	f := newGateway(t, c.config, patient)
	a, b := newEngine(t, "a", says("a")), newEngine(t, "b", says("b"))
	f.engines(a, b)
	c.change(func() { c.index, c.state = 9, drain("m:v:a") })
	f.follows(9)
	// The server that it asked is gone; the other has not heard of the drain yet.
	c.change(func() { c.down[0], c.lag[1] = true, 3 })
	asked := c.count(func() int { return c.asked[1] })
	c.servers[0].CloseClientConnections()
	eventually(t, "the other server is asked", func() bool { return c.count(func() int { return c.asked[1] }) > asked })
	require.Equal(t, map[string]int{`{"said":"b"}`: 5}, f.who(5), "nothing is taken back")
	require.Equal(t, 9.0, f.index())
	f.up(1)
	c.change(func() { c.lag[1], c.index, c.state = 0, 10, drain("m:v:b") })
	f.follows(10)
	require.Equal(t, map[string]int{`{"said":"a"}`: 5}, f.who(5))
}

func TestServerWithoutALeaderIsLeft(t *testing.T) {
	t.Parallel()
	c := newController(t, 2)
	c.cut[0], c.lag[0] = true, 1
	f := newGateway(t, c.config, patient)
	f.engines(newEngine(t, "a", says("a")), newEngine(t, "b", says("b")))
	c.change(func() { c.index, c.state = 3, drain("m:v:a") })
	f.follows(3)
	f.up(1)
	require.Equal(t, map[string]int{`{"said":"b"}`: 5}, f.who(5))
}

func TestReportsAtRestAndTheLast(t *testing.T) {
	t.Parallel()
	c := newController(t, 1)
	c.token = "secret"
	f := newGateway(t, c.config, func(cfg *gateway.Config) { cfg.Controller.Token = "secret" })
	f.engines(newEngine(t, "a", says("a")))
	f.follows(1)
	eventually(t, "reports though nothing happens", func() bool { return c.count(func() int { return len(c.reports) }) >= 3 })
	f.wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.reports {
		require.Empty(t, r.Replicas)
	}
	require.EqualValues(t, 1, c.reports[len(c.reports)-1].Index)
}

// TestControllerThatRefuses: no engine is known to be placed.
func TestControllerThatRefuses(t *testing.T) {
	t.Parallel()
	c := newController(t, 1)
	c.token = "secret"
	f := newGateway(t, c.config, func(cfg *gateway.Config) { cfg.Controller.Token = "wrong" })
	f.engines(newEngine(t, "a", says("a")))
	f.up(0)
	f.post(`{"model":"m"}`, "X-Remuda-Timeout", "100ms").requireError(t, http.StatusServiceUnavailable, "gateway_starting")
	require.Zero(t, f.metric("remuda_gateway_controller_index"))
	ready := f.do(http.MethodGet, "/ready", "")
	require.Equal(t, http.StatusServiceUnavailable, ready.status)
	require.Equal(t, "starting: waiting for the first state of the controller\n", ready.body)
}

func TestNoControllerNoMetrics(t *testing.T) {
	t.Parallel()
	f := newGateway(t)
	f.engines()
	require.NotContains(t, f.ask(f.operators, http.MethodGet, "/metrics", "").body, "remuda_gateway_controller")
}
