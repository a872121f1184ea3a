package sim

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"remuda/internal/sim/batch"
	"remuda/internal/sim/fault"
	"remuda/internal/sim/openai"
)

// route is what one path answers.
type route struct {
	methods map[string]http.HandlerFunc
	// early routes answer before the engine is ready and after it has died.
	early bool
	// reads tells that the route reads a body, by input.
	reads bool
	// immune routes answer even while everything hangs.
	immune bool
}

func (s *Server) table() map[string]route {
	get := func(h http.HandlerFunc) map[string]http.HandlerFunc {
		return map[string]http.HandlerFunc{http.MethodGet: h}
	}
	post := func(h http.HandlerFunc) map[string]http.HandlerFunc {
		return map[string]http.HandlerFunc{http.MethodPost: h}
	}
	health := map[string]http.HandlerFunc{http.MethodGet: s.handleHealth, http.MethodPost: s.handleHealth}
	return map[string]route{
		"/health":              {methods: get(s.handleHealth), early: true},
		"/ping":                {methods: health, early: true},
		"/version":             {methods: get(s.handleVersion), early: true},
		"/metrics":             {methods: get(s.metrics.Handler().ServeHTTP), early: true},
		"/v1/models":           {methods: get(s.handleModels)},
		"/is_sleeping":         {methods: get(s.handleIsSleeping)},
		"/sleep":               {methods: post(s.handleSleep)},
		"/wake_up":             {methods: post(s.handleWake)},
		"/v1/chat/completions": {methods: post(s.handleChat), reads: true},
		"/v1/completions":      {methods: post(s.handleCompletion), reads: true},
		"/v1/embeddings":       {methods: post(s.handleEmbedding), reads: true},
		"/tokenize":            {methods: post(s.handleTokenize), reads: true},
		"/detokenize":          {methods: post(s.handleDetokenize), reads: true},
		"/sim/gpus":            {methods: map[string]http.HandlerFunc{http.MethodGet: s.handleGPUs, http.MethodPost: s.handleMove}, reads: true},
		"/sim/faults": {methods: map[string]http.HandlerFunc{
			http.MethodGet: s.handleFaults, http.MethodPost: s.handleFaults, http.MethodDelete: s.handleFaults,
		}, early: true, immune: true},
	}
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.handlers.Add(1)
	defer s.handlers.Done()
	rt, ok := s.routes[r.URL.Path]
	if !ok {
		writeError(w, openai.HTTPError(http.StatusNotFound, ""))
		return
	}
	h, ok := rt.methods[r.Method]
	if !ok {
		var allowed []string
		for m := range rt.methods {
			allowed = append(allowed, m)
		}
		slices.Sort(allowed)
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		writeError(w, openai.HTTPError(http.StatusMethodNotAllowed, ""))
		return
	}
	if r.Body == http.NoBody {
		s.noDeadline(w)
	}
	// Where a body is read the hang comes after that: only then does the HTTP
	// server notice a client that leaves.
	if !rt.reads && !rt.immune {
		_, _ = io.Copy(io.Discard, io.LimitReader(r.Body, 64<<10))
		s.noDeadline(w)
		s.hangAll(r.Context())
	}
	if !rt.early && !s.serving(w) {
		return
	}
	h(w, r)
}

// serving answers 503 and reports false while the engine cannot be used.
func (s *Server) serving(w http.ResponseWriter) bool {
	switch {
	case s.dead.Load():
		writeError(w, openai.Unavailable("the engine is dead"))
	case !s.ready.Load():
		writeError(w, openai.Unavailable("the engine is starting"))
	default:
		return true
	}
	return false
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

// input reads a JSON body for any route but the fault switches' own.
func (s *Server) input(w http.ResponseWriter, r *http.Request) ([]byte, bool) {
	body, ok := s.readBody(w, r)
	if ok {
		s.hangAll(r.Context())
	}
	return body, ok
}

// readBody reads a JSON body. It answers the request and reports false when
// there is none to be had.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request) ([]byte, bool) {
	media, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	if !strings.EqualFold(strings.TrimSpace(media), "application/json") {
		// vLLM answers 400 here, not 415.
		writeError(w, openai.BadRequest("", "Unsupported Media Type: only 'application/json' is allowed, got %q", media))
		return nil, false
	}
	tooLarge := func() {
		writeError(w, openai.HTTPError(http.StatusRequestEntityTooLarge, "the body is larger than the limit of "+itoa(s.cfg.MaxBody)+" bytes"))
	}
	if r.ContentLength > s.cfg.MaxBody {
		w.Header().Set("Connection", "close")
		tooLarge()
		return nil, false
	}
	body, err := readAll(http.MaxBytesReader(w, r.Body, s.cfg.MaxBody), r.ContentLength)
	var limit *http.MaxBytesError
	var timeout interface{ Timeout() bool }
	switch {
	case err == nil:
		s.noDeadline(w)
		return body, true
	case errors.As(err, &limit):
		tooLarge()
	case errors.As(err, &timeout) && timeout.Timeout():
		w.Header().Set("Connection", "close")
		writeError(w, openai.HTTPError(http.StatusRequestTimeout, "the body did not arrive within "+s.cfg.BodyTimeout.String()))
	default:
		writeError(w, openai.BadRequest("", "the body could not be read: %v", err))
	}
	return nil, false
}

// readAll is io.ReadAll with room for the announced length, within reason.
func readAll(r io.Reader, announced int64) ([]byte, error) {
	const most = 4 << 20
	buf := make([]byte, 0, min(max(announced, 0), most)+512)
	for {
		n, err := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if errors.Is(err, io.EOF) {
			return buf, nil
		}
		if err != nil {
			return nil, err
		}
		if len(buf) == cap(buf) {
			buf = slices.Grow(buf, len(buf))
		}
	}
}
