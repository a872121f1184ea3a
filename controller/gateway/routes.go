package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"remuda/controller/api"
	"remuda/controller/gateway/balance"
	"remuda/controller/gateway/openai"
)

const (
	pathModels   = "/v1/models"
	labelModels  = "models"
	labelOther   = "other"
	headerID     = "X-Request-Id" // in answers: the request's ID, which the gateway makes; from clients: an ID of their own, which goes to the engine and into the access log
	headerVia    = "Via"          // says that the request went through the gateway
	viaRemuda    = "1.1 remuda"
	allowGet     = "GET, HEAD"
	contentJSON  = "application/json"
	contentSSE   = "text/event-stream"
	contentBytes = "application/octet-stream"
)

// maxFields is how many fields a request's header may have. Each takes some 200 bytes
// beside its text, so that the size of the header says little of the memory that a request
// holds while it waits: a megabyte for 64 KiB of them. Others allow 100.
const maxFields = 128

func countFields(h http.Header) int {
	n := 0
	for _, values := range h {
		n += len(values)
	}
	return n
}

// serve is the handler of every request.
func (g *Gateway) serve(w http.ResponseWriter, r *http.Request) {
	g.handlers.Add(1)
	defer g.handlers.Done()
	g.unasked.asked(r)
	useTLS(r)
	if r.Method == "PRI" { // the beginning of HTTP/2 as a request of HTTP/1, which net/http hands on
		w.Header().Set("Connection", "close")
	} else if r.ProtoMajor == 2 {
		stream := &streamWriter{ResponseWriter: w, timeout: g.cfg.Timeouts.Write}
		defer stream.finish()
		w = stream
	} else if ambiguous(r) {
		w.Header().Set("Connection", "close")
	}
	if r.ContentLength != 0 {
		// net/http itself reads on what a handler leaves of a body.
		if err := http.NewResponseController(w).SetReadDeadline(time.Now().Add(g.cfg.Timeouts.Body)); err != nil {
			panic(http.ErrAbortHandler)
		}
	}
	if fields := countFields(r.Header); fields > maxFields {
		w.Header().Set(headerID, newRequestID())
		e := errManyFields(fields)
		g.metrics.requests.WithLabelValues("", labelOther, codeText(e.status)).Inc()
		e.write(w, r, apiOf(r.URL.Path))
		return
	}
	if g.cors(w, r) {
		return
	}
	if rt := engineRoutes[r.URL.Path]; rt != nil {
		g.toEngine(w, r, rt)
		return
	}
	if rest, ok := strings.CutPrefix(r.URL.Path, routeResponses.path+"/"); ok && rest != "" {
		g.toStored(w, r, rest)
		return
	}
	switch r.URL.Path {
	// Answers 200 while the gateway runs.
	case "/live":
		g.text(w, r, http.StatusOK, "alive\n")
	// Answers 200 while the gateway takes requests, and 503 before the first list of engines or the first state of the controller, and while it stops.
	case "/ready":
		g.ready(w, r)
	// Lists the models and the pipelines; with /ID at the end, answers with one of them.
	default: // pathModels, and what does not exist
		g.models(w, r)
	}
}

// step serves a request that is a step of a pipeline.
func (g *Gateway) step(w http.ResponseWriter, r *http.Request) {
	r = r.WithContext(context.WithValue(r.Context(), stepKey{}, true))
	switch r.URL.Path {
	case routeChat.path:
		g.toEngine(w, r, routeChat)
	case routeCompletions.path:
		g.toEngine(w, r, routeCompletions)
	default:
		errNoRoute(r.URL.Path).write(w, r, openai.OpenAI)
	}
}

// text answers one of the gateway's own routes.
func (g *Gateway) text(w http.ResponseWriter, r *http.Request, status int, text string) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		errMethod(r.Method, r.URL.Path, allowGet).write(w, r, openai.OpenAI)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text) // a client that is gone needs no answer
}

func (g *Gateway) ready(w http.ResponseWriter, r *http.Request) {
	switch {
	case g.draining.Load():
		g.text(w, r, http.StatusServiceUnavailable, "stopping\n")
	case !g.dispatcher.Ready():
		g.text(w, r, http.StatusServiceUnavailable, "starting: waiting for "+g.missing()+"\n")
	default:
		g.text(w, r, http.StatusOK, "ready\n")
	}
}

// missing is what the gateway has not got yet while it starts.
func (g *Gateway) missing() string {
	if g.follower != nil && g.follower.index.Load() == 0 {
		return "the first state of the controller"
	}
	return "the list of engines from Consul"
}

// modelObject is a model in OpenAI's list.
type modelObject struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
}

func objectOf(m balance.Model) modelObject {
	return modelObject{ID: m.Name, Object: "model", Created: m.First.Unix(), OwnedBy: "remuda"}
}

// models answers /v1/models, /v1/models/{id} and every path that is unknown.
func (g *Gateway) models(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	w.Header().Set(headerID, newRequestID())
	label, model, status := labelModels, "", http.StatusOK
	fail := func(e *apiError) {
		status = e.status
		e.write(w, r, apiOf(r.URL.Path))
	}
	defer func() {
		g.metrics.requests.WithLabelValues(model, label, codeText(status)).Inc()
		g.metrics.duration.WithLabelValues(model, label).Observe(time.Since(began).Seconds())
	}()

	id, one := strings.CutPrefix(r.URL.Path, pathModels+"/")
	if r.URL.Path != pathModels && (!one || id == "") {
		label = labelOther
		fail(errNoRoute(r.URL.Path))
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		fail(errMethod(r.Method, shorten(r.URL.Path), allowGet))
		return
	}
	if g.follower != nil && g.follower.index.Load() == 0 { // nobody knows yet which keys there are
		fail(errStarting(g.missing(), g.cfg.RetryAfter))
		return
	}
	key, _, e := g.identify(r)
	if e != nil {
		fail(e)
		return
	}
	var answer any
	if one {
		if !g.keyring.Load().may(key, id) {
			fail(g.unknownModel(key, id))
			return
		}
		m, err := g.dispatcher.Lookup(id)
		if g.composer.Has(id) {
			m, err = balance.Model{Name: id, First: g.began}, nil
		}
		if errors.Is(err, balance.ErrNoEngine) {
			fail(errNoEngine(id, api.QueueProvisioning, 0, g.cfg.RetryAfter))
			return
		}
		if err != nil {
			fail(g.noEngine(err, key, id))
			return
		}
		model, answer = id, objectOf(m)
	} else {
		if !g.dispatcher.Ready() {
			fail(errStarting(g.missing(), g.cfg.RetryAfter))
			return
		}
		list := struct {
			Object string        `json:"object"`
			Data   []modelObject `json:"data"`
		}{Object: "list", Data: []modelObject{}}
		for _, m := range g.modelsOf(key) {
			list.Data = append(list.Data, objectOf(m))
		}
		answer = list
	}
	b, err := json.Marshal(answer)
	if err != nil {
		fail(&apiError{status: http.StatusInternalServerError, typ: typeServer, message: "encode the list of models: " + err.Error()})
		return
	}
	w.Header().Set("Content-Type", contentJSON)
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	if r.Method != http.MethodHead {
		_, _ = w.Write(b) // a client that is gone needs no answer
	}
}

// modelsOf returns the models and pipelines that a key may call.
func (g *Gateway) modelsOf(key string) []balance.Model {
	all := g.dispatcher.Models()
	for _, name := range g.composer.Names() {
		all = append(all, balance.Model{Name: name, First: g.began})
	}
	ring := g.keyring.Load()
	return slices.DeleteFunc(all, func(m balance.Model) bool { return !ring.may(key, m.Name) })
}

// unknownModel is the error of a model that does not exist, or that a key may not know of.
func (g *Gateway) unknownModel(key, model string) *apiError {
	var names []string
	for _, m := range g.modelsOf(key) {
		names = append(names, m.Name)
	}
	return errUnknownModel(model, names)
}

// noEngine turns an error of the dispatcher that waiting does not heal into an answer.
func (g *Gateway) noEngine(err error, key, model string) *apiError {
	switch {
	case errors.Is(err, balance.ErrUnknownModel):
		return g.unknownModel(key, model)
	case errors.Is(err, balance.ErrNoList):
		return errStarting(g.missing(), g.cfg.RetryAfter)
	default:
		return errStopped(model)
	}
}

// clientID returns the client's own ID of a request, empty where it has none that is usable.
func clientID(r *http.Request) string {
	id := r.Header.Get(headerID)
	if len(id) > 128 {
		return ""
	}
	for i := range len(id) {
		if id[i] <= ' ' || id[i] >= 0x7f {
			return ""
		}
	}
	return id
}

// newRequestID returns 128 random bits in hex. They need to be unique, not
// secret.
func newRequestID() string {
	const digits = "0123456789abcdef"
	var b [32]byte
	for half := range 2 {
		for i, n := 0, rand.Uint64(); i < 16; i, n = i+1, n>>4 {
			b[half*16+i] = digits[n&15]
		}
	}
	return string(b[:])
}
