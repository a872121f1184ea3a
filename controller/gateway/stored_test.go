package gateway_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/gateway"
	"remuda/internal/replica"
	"remuda/internal/sim"
	"remuda/internal/sim/engine"
)

const responsesPath = "/v1/responses"

// simEngine runs a simulated engine, which keeps responses, and counts what it is asked for.
type simEngine struct {
	replica.Engine
	server *sim.Server
	asked  sync.Map // "GET /path" -> *atomic.Int64
}

func newSim(t *testing.T, id string, change ...func(*sim.Config)) *simEngine {
	t.Helper()
	cfg := sim.DefaultConfig()
	cfg.Model, cfg.Version, cfg.Logger = "m", "1", hclog.NewNullLogger()
	cfg.Rates = engine.Rates{}
	cfg.Exit = func(int) {}
	for _, c := range change {
		c(&cfg)
	}
	server, err := sim.New(cfg)
	require.NoError(t, err)
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx, inner) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
	e := &simEngine{server: server}
	e.Engine = newEngine(t, id, func(w http.ResponseWriter, r *http.Request) {
		n, _ := e.asked.LoadOrStore(r.Method+" "+r.URL.Path, new(atomic.Int64))
		n.(*atomic.Int64).Add(1)
		server.ServeHTTP(w, r)
	})
	e.Name.Model = cfg.Model
	eventually(t, "the simulator is ready", func() bool {
		resp, err := http.Get("http://" + e.HostPort() + "/health")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	e.asked.Clear()
	return e
}

// total is how often the engine was asked with a method.
func (e *simEngine) total(method string) (n int64) {
	e.asked.Range(func(k, v any) bool {
		if strings.HasPrefix(k.(string), method+" ") {
			n += v.(*atomic.Int64).Load()
		}
		return true
	})
	return n
}

type response struct {
	ID, Status string
	Previous   *string `json:"previous_response_id"`
}

func (a answer) response(t *testing.T) (r response) {
	t.Helper()
	require.Equal(t, http.StatusOK, a.status, a.body)
	require.NoError(t, json.Unmarshal([]byte(a.body), &r), a.body)
	return r
}

func (f *fixture) respond(body string, header ...string) answer {
	f.t.Helper()
	return f.do(http.MethodPost, responsesPath, body, append(header, "Content-Type", "application/json")...)
}

// TestStoredResponses asks for responses that one of three engines keeps.
func TestStoredResponses(t *testing.T) {
	t.Parallel()
	f := newGateway(t)
	sims := map[string]*simEngine{}
	var engines []replica.Engine
	for _, id := range []string{"a", "b", "c"} {
		e := newSim(t, id)
		sims[e.Name.String()] = e
		engines = append(engines, e.Engine)
	}
	f.engines(engines...)
	at := map[string]int{}
	for range 9 {
		made := f.respond(`{"model":"m","input":"Hello","max_output_tokens":4}`)
		r, home := made.response(t), made.header.Get("X-Remuda-Replica")
		at[home]++

		got := f.do(http.MethodGet, responsesPath+"/"+r.ID, "")
		require.JSONEq(t, made.body, got.body)
		require.Equal(t, home, got.header.Get("X-Remuda-Replica"))

		next := f.respond(fmt.Sprintf(`{"model":"m","input":"And?","max_output_tokens":4,"previous_response_id":%q}`, r.ID))
		require.Equal(t, r.ID, *next.response(t).Previous)
		require.Equal(t, home, next.header.Get("X-Remuda-Replica"))

		refused := f.do(http.MethodPost, responsesPath+"/"+r.ID+"/cancel", "")
		require.Equal(t, http.StatusBadRequest, refused.status, refused.body)
		require.Contains(t, refused.body, "Cannot cancel a synchronous response")

		require.JSONEq(t, fmt.Sprintf(`{"id":%q,"object":"response","deleted":true}`, r.ID), f.do(http.MethodDelete, responsesPath+"/"+r.ID, "").body)
		f.do(http.MethodGet, responsesPath+"/"+r.ID, "").requireError(t, http.StatusNotFound, "response_not_found")
	}
	require.Len(t, at, 3, "the test asks all engines")
	require.Equal(t, 9.0, f.metric("remuda_gateway_requests_total", "model", "m", "route", "response_get", "code", "200"))
	require.Equal(t, 9.0, f.metric("remuda_gateway_requests_total", "model", "m", "route", "response_delete", "code", "200"))
	require.Equal(t, 9.0, f.metric("remuda_gateway_requests_total", "model", "m", "route", "response_cancel", "code", "400"))
	require.Zero(t, f.metric("remuda_gateway_in_flight"))
}

// TestStoredResponseOfAStream asks for a response that came as a stream.
func TestStoredResponseOfAStream(t *testing.T) {
	t.Parallel()
	f := newGateway(t)
	a, b := newSim(t, "a"), newSim(t, "b")
	f.engines(a.Engine, b.Engine)
	for range 4 {
		stream := f.respond(`{"model":"m","input":"Hello","max_output_tokens":4,"stream":true}`)
		require.Equal(t, http.StatusOK, stream.status)
		_, id, _ := strings.Cut(stream.body, `"id":"`)
		id, _, _ = strings.Cut(id, `"`)
		require.Contains(t, id, "resp_")
		require.Equal(t, id, f.do(http.MethodGet, responsesPath+"/"+id, "").response(t).ID)
	}
	require.Equal(t, int64(4), a.total(http.MethodGet)+b.total(http.MethodGet), "the gateway knows where they are")
}

// TestStoredResponseOfAnotherGateway asks a gateway for a response that it has not seen.
func TestStoredResponseOfAnotherGateway(t *testing.T) {
	t.Parallel()
	one, two := newGateway(t), newGateway(t)
	var sims []*simEngine
	var engines []replica.Engine
	for i := range 12 { // more than are asked at once
		e := newSim(t, fmt.Sprintf("e%02d", i))
		sims, engines = append(sims, e), append(engines, e.Engine)
	}
	engines = append(engines, deadEngine(t, "dead"))
	one.engines(engines[:12]...)
	two.engines(engines...)
	made := one.respond(`{"model":"m","input":"Hello","max_output_tokens":4}`)
	r := made.response(t)
	got := two.do(http.MethodGet, responsesPath+"/"+r.ID, "")
	require.JSONEq(t, made.body, got.body)
	require.Equal(t, made.header.Get("X-Remuda-Replica"), got.header.Get("X-Remuda-Replica"))
	asked := func() (n int64) {
		for _, s := range sims {
			n += s.total(http.MethodGet)
		}
		return n
	}
	before := asked()
	require.Equal(t, http.StatusOK, two.do(http.MethodGet, responsesPath+"/"+r.ID, "").status)
	require.Equal(t, before+1, asked(), "it knows now")

	other := one.respond(`{"model":"m","input":"Hello","max_output_tokens":4}`)
	next := two.respond(fmt.Sprintf(`{"model":"m","input":"And?","max_output_tokens":4,"previous_response_id":%q}`, other.response(t).ID))
	require.Equal(t, http.StatusOK, next.status, next.body)
	require.Equal(t, other.header.Get("X-Remuda-Replica"), next.header.Get("X-Remuda-Replica"))

	two.engines(engines[:12]...)
	two.do(http.MethodGet, responsesPath+"/resp_none", "").requireError(t, http.StatusNotFound, "response_not_found")
	two.engines(engines...)
	two.do(http.MethodGet, responsesPath+"/resp_none", "").requireError(t, http.StatusServiceUnavailable, "engine_unreachable")
}

// TestStoredResponseInTheBackground makes a response while nobody waits for it.
func TestStoredResponseInTheBackground(t *testing.T) {
	t.Parallel()
	f := newGateway(t, func(c *gateway.Config) { c.Timeouts.StreamIdle = 2 * time.Second })
	slow := func(c *sim.Config) { c.Rates.Decode = 5 } // 20 tokens take longer than StreamIdle
	a, b := newSim(t, "a", slow), newSim(t, "b", slow)
	f.engines(a.Engine, b.Engine)
	get := func(id string) response { return f.do(http.MethodGet, responsesPath+"/"+id, "").response(t) }

	first := f.respond(`{"model":"m","input":"Hello, at length","background":true,"max_output_tokens":20}`).response(t)
	require.Equal(t, "queued", first.Status)
	second := f.respond(`{"model":"m","input":"Hello, at length","background":true,"max_output_tokens":4000}`).response(t)
	require.Equal(t, "in_progress", get(second.ID).Status)
	require.Equal(t, "cancelled", f.do(http.MethodPost, responsesPath+"/"+second.ID+"/cancel", "").response(t).Status)
	require.Equal(t, "cancelled", get(second.ID).Status)
	eventually(t, "the first one is finished", func() bool { s := get(first.ID).Status; return s == "completed" || s == "incomplete" })
}

// TestStoredStreamThatIsSilentAtFirst is not cut while the engine has the response wait.
func TestStoredStreamThatIsSilentAtFirst(t *testing.T) {
	t.Parallel()
	f := newGateway(t, func(c *gateway.Config) { c.Timeouts.StreamIdle = 2 * time.Second })
	const queued = "event: response.queued\ndata: {\"type\":\"response.queued\",\"response\":{\"id\":\"resp_1\"}}\n\n"
	const rest = "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"x\"}\n\n" +
		"event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"resp_1\",\"usage\":{\"input_tokens\":3,\"output_tokens\":4}}}\n\n"
	asked := make(chan string, 2)
	f.engines(newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Method + " " + r.RequestURI
		sse(w, queued)
		time.Sleep(5 * time.Second)
		sse(w, rest)
	}))
	for _, a := range []answer{
		f.respond(`{"model":"m","input":"x","stream":true,"background":true}`),
		f.do(http.MethodGet, responsesPath+"/resp_1?stream=true&starting_after=0", ""),
	} {
		require.Equal(t, http.StatusOK, a.status)
		require.NoError(t, a.err)
		require.Equal(t, queued+rest, a.body)
	}
	require.Equal(t, "POST /v1/responses", <-asked)
	require.Equal(t, "GET /v1/responses/resp_1?stream=true&starting_after=0", <-asked)
	require.Equal(t, 7.0, f.metric("remuda_gateway_tokens_total", "model", "m"), "they count once")
}

// TestStoredResponsesOfKeys keeps keys apart.
func TestStoredResponsesOfKeys(t *testing.T) {
	t.Parallel()
	c := newController(t, 1)
	key := func(name string, models ...string) api.GatewayKey {
		k, _ := controllerKey(name, api.KeyLimits{Weight: 1, Models: models})
		return k
	}
	c.state.Models = []api.GatewayModel{{Name: "m", Engines: []string{"sim"}}, {Name: "n", Engines: []string{"sim"}}}
	c.state.Keys = []api.GatewayKey{key("one"), key("two"), key("three", "n")}
	f, other := newGateway(t, c.config, patient), newGateway(t, c.config, patient)
	a, b := newSim(t, "a"), newSim(t, "b")
	n := newSim(t, "n", func(c *sim.Config) { c.Model = "n" })
	f.engines(a.Engine, b.Engine, n.Engine)
	other.engines(a.Engine, b.Engine, n.Engine)

	r := f.respond(`{"model":"m","input":"Hello","max_output_tokens":4}`, as("one")...).response(t)
	path := responsesPath + "/" + r.ID
	f.do(http.MethodGet, path, "").requireError(t, http.StatusUnauthorized, "missing_api_key")
	for _, name := range []string{"two", "three"} {
		f.do(http.MethodGet, path, "", as(name)...).requireError(t, http.StatusNotFound, "response_not_found")
		f.do(http.MethodDelete, path, "", as(name)...).requireError(t, http.StatusNotFound, "response_not_found")
		f.do(http.MethodPost, path+"/cancel", "", as(name)...).requireError(t, http.StatusNotFound, "response_not_found")
	}
	f.respond(fmt.Sprintf(`{"model":"m","input":"And?","previous_response_id":%q}`, r.ID), as("two")...).requireError(t, http.StatusNotFound, "response_not_found")
	require.Equal(t, r.ID, f.do(http.MethodGet, path, "", as("one")...).response(t).ID)

	asked := a.total(http.MethodGet) + b.total(http.MethodGet)
	other.do(http.MethodGet, path, "", as("three")...).requireError(t, http.StatusNotFound, "response_not_found")
	require.Equal(t, asked, a.total(http.MethodGet)+b.total(http.MethodGet), "a key reaches no engine of a model that it may not call")
	require.Equal(t, r.ID, other.do(http.MethodGet, path, "", as("one")...).response(t).ID)
	require.Zero(t, f.metric("remuda_gateway_key_tokens_total", "key", "two"))
}

// TestStoredRoutes knows which paths there are.
func TestStoredRoutes(t *testing.T) {
	t.Parallel()
	f := newGateway(t)
	f.engines(newSim(t, "a").Engine)
	for _, c := range []struct {
		method, path, allow, code string
		status                    int
	}{
		{http.MethodPut, "/resp_1", "", "method_not_allowed", 405},
		{http.MethodGet, "/resp_1/cancel", "POST", "method_not_allowed", 405},
		{http.MethodGet, "/resp_1/input_items", "", "unknown_url", 404},
		{http.MethodGet, "/resp_1/", "", "unknown_url", 404},
		{http.MethodGet, "/..", "", "unknown_url", 404},
		{http.MethodGet, "/resp_1", "", "response_not_found", 404},
		{http.MethodGet, "/resp_%0A%20HTTP%3F", "", "response_not_found", 404},
	} {
		a := f.do(c.method, responsesPath+c.path, "")
		a.requireError(t, c.status, c.code)
		if c.allow != "" {
			require.Equal(t, c.allow, a.header.Get("Allow"))
		}
	}
	require.Equal(t, "DELETE, GET", f.do(http.MethodPut, responsesPath+"/resp_1", "").header.Get("Allow"))
}

// TestVisitsAreRetriedWhereNothingHappens repeats a GET, and nothing else.
func TestVisitsAreRetriedWhereNothingHappens(t *testing.T) {
	t.Parallel()
	f := newGateway(t)
	var asked sync.Map
	f.engines(newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		n, _ := asked.LoadOrStore(r.Method, new(atomic.Int64))
		if n.(*atomic.Int64).Add(1) == 1 {
			panic(http.ErrAbortHandler)
		}
		if len(body) > 0 || r.Header.Get("Content-Length") != "" && r.Method != http.MethodPost {
			w.WriteHeader(http.StatusTeapot)
		}
		says("x")(w, r)
	}))
	require.Equal(t, http.StatusOK, f.do(http.MethodGet, responsesPath+"/resp_1", "").status)
	f.do(http.MethodDelete, responsesPath+"/resp_1", "").requireError(t, http.StatusBadGateway, "engine_gone")
	f.do(http.MethodPost, responsesPath+"/resp_1/cancel", "").requireError(t, http.StatusBadGateway, "engine_gone")
	n, _ := asked.Load(http.MethodDelete)
	require.Equal(t, int64(1), n.(*atomic.Int64).Load())
}

// TestResponseGoesToABusyReplica waits for the replica that keeps the previous response.
func TestResponseGoesToABusyReplica(t *testing.T) {
	t.Parallel()
	f := newGateway(t, patient)
	release := make(chan struct{})
	var entered atomic.Int64
	keeps := func(id string) replica.Engine {
		e := newEngine(t, id, func(w http.ResponseWriter, r *http.Request) {
			if body, _ := io.ReadAll(r.Body); strings.Contains(string(body), "hold") {
				entered.Add(1)
				<-release
			}
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"object":"response","id":"resp_%s"}`, id)
		})
		e.Slots = 1
		return e
	}
	f.engines(keeps("a"), keeps("b"))
	first := f.respond(`{"model":"m","input":"x"}`)
	home := first.header.Get("X-Remuda-Replica")
	held := f.goRespond(fmt.Sprintf(`{"model":"m","input":"hold","previous_response_id":%q}`, first.response(t).ID))
	eventually(t, "the replica is busy", func() bool { return entered.Load() == 1 })
	next := f.goRespond(fmt.Sprintf(`{"model":"m","input":"x","previous_response_id":%q}`, first.response(t).ID))
	eventually(t, "the next one waits", func() bool { return f.metric("remuda_gateway_queue_length", "model", "m") == 1 })
	other := f.respond(`{"model":"m","input":"x"}`) // and does not keep others waiting
	require.NotEqual(t, home, other.header.Get("X-Remuda-Replica"))
	close(release)
	require.Equal(t, home, (<-held).header.Get("X-Remuda-Replica"))
	require.Equal(t, home, (<-next).header.Get("X-Remuda-Replica"))
}

func (f *fixture) goRespond(body string) chan answer {
	out := make(chan answer, 1)
	go func() { out <- f.respond(body) }()
	return out
}
