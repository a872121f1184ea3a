package sim

import (
	"context"
	"crypto/subtle"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"remuda/internal/sim/batch"
	"remuda/internal/sim/fault"
	"remuda/internal/sim/openai"
)

// route is one method of one path.
type route struct {
	method string
	// path may hold {id} for one part of it.
	path string
	// infer answers a request of an inference route, which is counted and meets the
	// faults; handle one of any other route.
	infer  func(*call)
	handle http.HandlerFunc
	// body is the media type that the request's body must have; empty where the route
	// reads none.
	body string
	// early routes answer before the engine is ready and after it has died.
	early bool
	// immune routes answer even while everything hangs.
	immune bool
	// shape writes an error in the shape of the route's API; nil for OpenAI's.
	shape func(http.ResponseWriter, *openai.Error)
}

// Media types of bodies.
const (
	jsonBody = "application/json"
	formBody = "multipart/form-data"
)

func (s *Server) table() []route {
	const get, post, del = http.MethodGet, http.MethodPost, http.MethodDelete
	return []route{
		{method: get, path: "/health", handle: s.handleHealth, early: true},
		{method: get, path: "/ping", handle: s.handleHealth, early: true},
		{method: post, path: "/ping", handle: s.handleHealth, early: true},
		{method: get, path: "/version", handle: s.handleVersion, early: true},
		{method: get, path: "/metrics", handle: s.metrics.Handler().ServeHTTP, early: true},
		{method: get, path: "/v1/models", handle: s.handleModels},
		{method: get, path: "/is_sleeping", handle: s.handleIsSleeping},
		{method: post, path: "/sleep", handle: s.handleSleep},
		{method: post, path: "/wake_up", handle: s.handleWake},

		{method: post, path: "/v1/chat/completions", infer: handleChat, body: jsonBody},
		{method: post, path: "/v1/completions", infer: handleCompletion, body: jsonBody},
		{method: post, path: "/v1/embeddings", infer: handleEmbedding, body: jsonBody},
		{method: post, path: "/tokenize", infer: handleTokenize, body: jsonBody},
		{method: post, path: "/detokenize", infer: handleDetokenize, body: jsonBody},

		{method: post, path: "/v1/responses", infer: handleResponse, body: jsonBody},
		{method: get, path: "/v1/responses/{id}", infer: handleGetResponse},
		{method: del, path: "/v1/responses/{id}", infer: handleDeleteResponse},
		{method: post, path: "/v1/responses/{id}/cancel", infer: handleCancelResponse},
		{method: post, path: "/v1/messages", infer: handleMessage, body: jsonBody, shape: refuseMessage},
		{method: post, path: "/v1/messages/count_tokens", infer: handleCountTokens, body: jsonBody, shape: refuseMessage},

		{method: post, path: "/rerank", infer: handleRerank, body: jsonBody},
		{method: post, path: "/v1/rerank", infer: handleRerank, body: jsonBody},
		{method: post, path: "/v2/rerank", infer: handleRerank, body: jsonBody},
		{method: post, path: "/score", infer: handleScore, body: jsonBody},
		{method: post, path: "/v1/score", infer: handleScore, body: jsonBody},
		{method: post, path: "/classify", infer: handleClassify, body: jsonBody},
		{method: post, path: "/pooling", infer: handlePooling, body: jsonBody},
		{method: post, path: "/v1/moderations", infer: handleModeration, body: jsonBody},

		{method: post, path: "/v1/audio/transcriptions", infer: handleTranscription, body: formBody},
		{method: post, path: "/v1/audio/translations", infer: handleTranslation, body: formBody},
		{method: post, path: "/v1/audio/speech", infer: handleSpeech, body: jsonBody},
		{method: post, path: "/v1/images/generations", infer: handleImage, body: jsonBody},

		{method: get, path: "/sim/gpus", handle: s.handleGPUs},
		{method: post, path: "/sim/gpus", handle: s.handleMove, body: jsonBody},
		{method: get, path: "/sim/counters", handle: s.handleCounters, early: true, immune: true},
		{method: del, path: "/sim/counters", handle: s.handleCounters, early: true, immune: true},
		{method: get, path: "/sim/faults", handle: s.handleFaults, early: true, immune: true},
		{method: post, path: "/sim/faults", handle: s.handleFaults, body: jsonBody, early: true, immune: true},
		{method: del, path: "/sim/faults", handle: s.handleFaults, early: true, immune: true},
	}
}

// matches reports whether the route has this path, and the value of {id} in it.
func (rt *route) matches(path string) (id string, ok bool) {
	before, after, patterned := strings.Cut(rt.path, "{id}")
	if !patterned {
		return "", path == rt.path
	}
	rest, ok := strings.CutPrefix(path, before)
	if !ok {
		return "", false
	}
	id, ok = strings.CutSuffix(rest, after)
	return id, ok && id != "" && !strings.Contains(id, "/")
}

// find returns the route of a request, or nil and the methods that its path has.
func (s *Server) find(r *http.Request) (found *route, allowed []string) {
	for i := range s.routes {
		rt := &s.routes[i]
		id, ok := rt.matches(r.URL.Path)
		if !ok {
			continue
		}
		if rt.method == r.Method {
			r.SetPathValue("id", id)
			return rt, nil
		}
		allowed = append(allowed, rt.method)
	}
	return nil, allowed
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.handlers.Add(1)
	defer s.handlers.Done()
	rt, allowed := s.find(r)
	if rt == nil {
		if allowed == nil {
			writeError(w, openai.HTTPError(http.StatusNotFound, ""))
			return
		}
		slices.Sort(allowed)
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		writeError(w, openai.HTTPError(http.StatusMethodNotAllowed, ""))
		return
	}
	if !s.authorized(r) {
		writeError(w, openai.HTTPError(http.StatusUnauthorized, "missing or wrong API key"))
		return
	}
	fail := refuse(w)
	var c *call
	if rt.infer != nil {
		c = &call{Server: s, w: w, r: r, route: rt, tally: s.counters.enter(r.Header.Get(tagHeader))}
		defer func() { c.tally.leave() }()
		fail = c.fail
	}
	if r.Body == http.NoBody {
		s.noDeadline(w)
	}
	// Where a body is read the hang comes after that: only then does the HTTP
	// server notice a client that leaves.
	if rt.body == "" && !rt.immune {
		_, _ = io.Copy(io.Discard, io.LimitReader(r.Body, 64<<10))
		s.noDeadline(w)
		s.hangAll(r.Context())
	}
	if e := s.serving(); e != nil && !rt.early {
		fail(e)
		return
	}
	if c != nil {
		c.serve()
	} else {
		rt.handle(w, r)
	}
}

// authorized reports whether the request has the API key where one is asked for: as vLLM at the routes
// under /v1, as SGLang at all but those for health and metrics. The routes of the simulator alone ask
// for none.
func (s *Server) authorized(r *http.Request) bool {
	path := r.URL.Path
	guarded := strings.HasPrefix(path, "/v1")
	if s.cfg.API == APISGLang {
		guarded = !strings.HasPrefix(path, "/health") && !strings.HasPrefix(path, "/metrics") && !strings.HasPrefix(path, "/sim/")
	}
	if s.cfg.APIKey == "" || !guarded {
		return true
	}
	return subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte("Bearer "+s.cfg.APIKey)) == 1
}

// serving is the error of an engine that cannot be used, nil while it can.
func (s *Server) serving() *openai.Error {
	switch {
	case s.dead.Load():
		return openai.Unavailable("the engine is dead")
	case !s.ready.Load():
		return openai.Unavailable("the engine is starting")
	default:
		return nil
	}
}

// hangAll carries out the fault of that name; see waitOut.
func (s *Server) hangAll(ctx context.Context) {
	s.waitOut(ctx, func(f fault.Set) bool { return f.Hang == fault.HangAll })
}

// noDeadline lifts the deadline for reading the request, which would otherwise
// end a long answer.
func (s *Server) noDeadline(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // never fails on a server's connection
}

// waitOut blocks while the fault switches satisfy hangs. A request that ends
// meanwhile is cut off.
func (s *Server) waitOut(ctx context.Context, hangs func(fault.Set) bool) {
	for {
		set, changed := s.faults.Watch()
		if !hangs(set) {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			cutOff()
		}
	}
}

func (s *Server) handleHealth(w http.ResponseWriter, _ *http.Request) {
	status := http.StatusOK
	if s.dead.Load() || !s.ready.Load() || s.faults.Get().FailHealth {
		status = http.StatusServiceUnavailable
	}
	w.WriteHeader(status)
}

func (s *Server) handleVersion(w http.ResponseWriter, _ *http.Request) {
	writeValue(w, map[string]string{"version": s.cfg.Version})
}

func (s *Server) handleModels(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, openai.Models(s.cfg.Model, s.created, s.cfg.MaxModelLen))
}

func (s *Server) batchStats() batch.Stats { return s.engine.Stats() }

func (s *Server) memoryUsage() (device, host int64) {
	if bank := s.bank.Load(); bank != nil {
		return bank.Usage()
	}
	return 0, 0
}
