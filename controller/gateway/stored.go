package gateway

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"remuda/controller/gateway/balance"
	"remuda/controller/gateway/openai"
	"remuda/controller/gateway/upstream"
)

const (
	// maxVisits is how many requests about responses may be on their way at once, and maxVisitsEach how
	// many of one client: they wait in no queue.
	maxVisits, maxVisitsEach = 512, 64
	// visitTimeout bounds how long an engine may take until it answers one.
	visitTimeout = 30 * time.Second
	// searchAtOnce is how many engines one request is looked for at at once, probeTimeout how long one
	// of them may take, and searchTimeout all.
	searchAtOnce                = 8
	probeTimeout, searchTimeout = 5 * time.Second, 15 * time.Second
	// probeBody is how much of an answer to a probe is read.
	probeBody = 64 << 10
)

// storedRoutes are the routes about a response that an engine keeps, by the method and what follows
// the response's ID.
var storedRoutes = map[string]map[string]*route{
	"": {
		http.MethodGet: {label: "response_get", streams: true,
			about: "Answers with a response. It comes from the replica that made it, which keeps it in memory. With `stream=true` the events of a response in the background."},
		http.MethodDelete: {label: "response_delete", about: "Deletes a response.", dialects: []string{dialectSim}},
	},
	"/cancel": {
		http.MethodPost: {label: "response_cancel", about: "Cancels a response that is made in the background."},
	},
}

func init() {
	for rest, methods := range storedRoutes {
		for method, r := range methods {
			r.method, r.path, r.api, r.stored = method, routeResponses.path+"/{id}"+rest, openai.Responses, true
			r.spanName = method + " " + r.path
			if r.dialects == nil {
				r.dialects = []string{dialectVLLM, dialectSGLang, dialectSim}
			}
		}
	}
}

// toStored serves a request about a response. rest is its path behind that of responses.
func (g *Gateway) toStored(w http.ResponseWriter, r *http.Request, rest string) {
	id, action, _ := strings.Cut(rest, "/")
	if action != "" || strings.HasSuffix(rest, "/") {
		action = "/" + action
	}
	methods := storedRoutes[action]
	if methods == nil || strings.Trim(id, ".") == "" {
		g.models(w, r) // which answers what does not exist
		return
	}
	run := func(x *exchange) *apiError { return x.visit(id) }
	rt := methods[r.Method]
	if rt == nil {
		allow := slices.Sorted(maps.Keys(methods))
		rt = methods[allow[0]]
		run = func(*exchange) *apiError { return errMethod(r.Method, rt.path, strings.Join(allow, ", ")) }
	}
	g.exchange(w, r, rt, routeResponses.path+"/"+url.PathEscape(id)+action, run)
}

// visit sends a request to the engine that keeps a response.
func (x *exchange) visit(id string) *apiError {
	if e := x.header(); e != nil {
		return e
	}
	client := bodyClient(x.key, x.ours, x.http.RemoteAddr)
	body, e := x.g.readBody(x.client.w, x.http, true, client)
	if e != nil {
		return e
	}
	x.length = len(body.data)
	body.release() // the routes have none
	if e := x.awaitSignal(x.g.dispatcher.Known(), x.began); e != nil {
		return e
	}
	if !x.g.visits.enter(client) {
		return x.errVisits()
	}
	defer x.g.visits.leave(client)
	engine, e := x.keeper(id, x.candidates)
	switch {
	case e != nil:
		return e
	case x.ctx.Err() != nil:
		return x.left()
	case engine == nil:
		return errNoResponse(id)
	}
	x.head.Model, x.label = engine.Name.Model, engine.Name.Model
	x.settings = x.g.of(x.head.Model)
	if !x.route.has(x.settings.engines) {
		return errNoSuchRoute(x.route.path, x.head.Model)
	}
	x.settings.firstByte = min(x.settings.firstByte, visitTimeout)
	for tries := 1; ; tries++ {
		a := &attempt{exchange: x, grant: visit{engine}, fresh: true}
		v, e := a.run()
		switch {
		case x.client.status == http.StatusOK && x.route.method == http.MethodDelete:
			x.g.responses.forget(id)
		case v == finished, x.route.method != http.MethodGet, tries == 2, x.client.committed:
		default:
			continue
		}
		return e
	}
}

// visit is the lease of a request that takes no slot. How it goes says little of how the engine makes
// answers, so that it does not count for the breaker.
type visit struct{ engine *balance.Endpoint }

var _ lease = visit{}

// Engine is the engine.
func (v visit) Engine() *balance.Endpoint { return v.engine }

// Failed does nothing.
func (v visit) Failed(balance.Fault) bool { return false }

// GivenUp does nothing.
func (v visit) GivenUp(time.Duration) bool { return false }

// Answered does nothing.
func (v visit) Answered() {}

// Release does nothing.
func (v visit) Release() {}

// candidates are the engines that may keep a response which the key may reach.
func (x *exchange) candidates() (out []*balance.Endpoint) {
	ring := x.g.keyring.Load()
	for _, m := range x.g.dispatcher.Models() {
		if ring.may(x.key, m.Name) && x.route.has(x.g.of(m.Name).engines) {
			out = append(out, x.g.dispatcher.Endpoints(m.Name)...)
		}
	}
	return out
}

// keeper returns the engine that keeps a response, nil where there is none. One that this gateway does
// not know of, because another gateway's answer named it, is searched for at the candidates.
func (x *exchange) keeper(id string, candidates func() []*balance.Endpoint) (*balance.Endpoint, *apiError) {
	k, known := x.g.responses.get(id)
	if !known {
		return x.search(id, candidates()), nil
	}
	if k.key != "" && k.key != keyAnonymous && k.key != x.key || !x.g.keyring.Load().may(x.key, k.model) {
		return nil, errNoResponse(id)
	}
	for _, e := range x.g.dispatcher.Endpoints(k.model) {
		if e.Replica == k.replica {
			return e, nil
		}
	}
	return nil, nil //nolint:nilnil // the replica is gone, and the response with it
}

// search asks engines for a response, a few at once. It returns the one that has it, or else one that
// said neither that it has nor that it has not: what is wrong is what the client is told.
func (x *exchange) search(id string, engines []*balance.Endpoint) *balance.Endpoint {
	if len(engines) <= 1 {
		if len(engines) == 1 {
			return engines[0]
		}
		return nil
	}
	ctx, cancel := context.WithTimeout(x.ctx, searchTimeout)
	defer cancel()
	var (
		next          atomic.Int64
		mu            sync.Mutex // guards what follows
		found, unsure *balance.Endpoint
		wg            sync.WaitGroup
	)
	look := func(e *balance.Endpoint) {
		status := x.probe(ctx, e, id)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case status >= 200 && status < 300:
			found = e
			cancel()
		case status != http.StatusNotFound && status != http.StatusMethodNotAllowed && unsure == nil:
			unsure = e
		}
	}
	for range min(len(engines), searchAtOnce) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(engines) && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				look(engines[i])
			}
		})
	}
	wg.Wait()
	if found == nil {
		return unsure
	}
	x.g.responses.put(id, kept{replica: found.Replica, model: found.Name.Model})
	return found
}

// probe asks an engine for a response, and returns the status of its answer, 0 where there is none.
func (x *exchange) probe(ctx context.Context, e *balance.Endpoint, id string) int {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	h := x.headerFor(x.g.of(e.Name.Model), e.Key)
	resp, err := x.g.transport.Do(ctx, &upstream.Request{Method: http.MethodGet, Addr: e.Addr, Target: routeResponses.path + "/" + url.PathEscape(id), Header: h})
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, probeBody) // a connection that was read to its end is kept
	return resp.StatusCode
}

// previous returns the replica that keeps the response from which the request goes on, empty where
// there is none.
func (x *exchange) previous() (replica string, e *apiError) {
	id := x.head.Previous
	if x.route != routeResponses || id == "" || len(id) > maxResponseID || strings.Trim(id, ".") == "" {
		return "", nil
	}
	if e := x.awaitSignal(x.g.dispatcher.Known(), x.began); e != nil {
		return "", e
	}
	client := bodyClient(x.key, x.ours, x.http.RemoteAddr)
	if !x.g.visits.enter(client) {
		return "", x.errVisits()
	}
	defer x.g.visits.leave(client)
	engine, e := x.keeper(id, func() []*balance.Endpoint { return x.g.dispatcher.Endpoints(x.head.Model) })
	if e != nil || engine == nil {
		return "", e // an engine says that it does not have it
	}
	return engine.Replica, nil
}

// learn remembers which replica made the response that the answer is.
func (x *attempt) learn(id string) {
	if x.route == routeResponses && id != "" && id != x.learned {
		x.learned = id
		x.g.responses.put(id, kept{replica: x.engine.Replica, model: x.head.Model, key: x.key})
	}
}

// learnWhole is learn of a whole answer, or of its beginning.
func (x *attempt) learnWhole(answer []byte) {
	if x.route == routeResponses {
		x.learn(openai.ResponseID(answer))
	}
}

// notStored is the answer to a request about a response where the engine does not have it, or not the
// route.
func (x *attempt) notStored(status int) *apiError {
	if status == http.StatusMethodNotAllowed {
		return errNoSuchRoute(x.route.path, x.head.Model)
	}
	id, _, _ := strings.Cut(strings.TrimPrefix(x.http.URL.Path, routeResponses.path+"/"), "/")
	x.g.responses.forget(id)
	return errNoResponse(id)
}

func errNoResponse(id string) *apiError {
	return &apiError{status: http.StatusNotFound, typ: typeRequest, code: "response_not_found", param: "response_id",
		message: fmt.Sprintf("response %s does not exist: an engine keeps its responses in memory while it runs; make a new one", shorten(id))}
}

func (x *exchange) errVisits() *apiError {
	return &apiError{status: http.StatusServiceUnavailable, typ: typeServer, code: "gateway_busy", retryAfter: x.g.cfg.RetryAfter,
		message: "too many requests about responses are on their way; retry after the time in the Retry-After header"}
}

// visits counts the requests about responses that are on their way.
type visits struct {
	mu  sync.Mutex
	all int            // guarded by mu, as is of
	of  map[string]int // by client
}

// enter counts a request of a client, false where there are too many.
func (v *visits) enter(client string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.all >= maxVisits || v.of[client] >= maxVisitsEach {
		return false
	}
	if v.of == nil {
		v.of = map[string]int{}
	}
	v.all++
	v.of[client]++
	return true
}

// leave ends what enter began.
func (v *visits) leave(client string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.all--
	if v.of[client]--; v.of[client] == 0 {
		delete(v.of, client)
	}
}
