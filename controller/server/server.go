package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"remuda/controller/api"
	"remuda/controller/ui"
)

// Bounds of connections that no route changes.
const (
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	maxHeader     = 64 << 10
	// writeSlack is what an answer may take to be sent once it is known.
	writeSlack = 30 * time.Second
)

// Server is the HTTP API of one server of the cluster.
type Server struct {
	cfg      Config
	log      hclog.Logger
	mux      *http.ServeMux
	metrics  *metrics
	peers    *peers
	started  time.Time
	gateways gatewayBody
	reports  sync.Mutex // see takeReport
	history  history
	// autoscalers are those that asked this server while it led.
	autoscalers autoscalers
	uses        lastUses
	// held is how many bytes of request bodies are in memory, at most Config.MaxHeld.
	held atomic.Int64
	// planning is full while a plan is made.
	planning chan struct{}
	// stopping is closed when no request may wait any more.
	stopping chan struct{}
	stopOnce sync.Once
}

// New checks cfg. Nothing is started.
func New(cfg Config) (*Server, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, log: cfg.Logger.Named("api"), started: time.Now(), planning: make(chan struct{}, 1), stopping: make(chan struct{})}
	s.mux = s.newMux()
	s.peers = newPeers(cfg)
	s.metrics = newMetrics()
	if cfg.Registerer != nil {
		if err := s.metrics.register(cfg.Registerer); err != nil {
			return nil, fmt.Errorf("server: metrics: %w", err)
		}
	}
	return s, nil
}

// Run serves on the listeners, which it closes, until ctx ends or one of them fails.
// Then blocking queries are answered with what there is, and other requests have
// Config.Drain to end.
func (s *Server) Run(ctx context.Context, listeners ...net.Listener) error {
	hs := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          s.log.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
	}
	failed := make(chan error, len(listeners))
	var wg sync.WaitGroup
	for _, l := range listeners {
		wg.Go(func() {
			if err := hs.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				failed <- err
			}
		})
	}
	sampling, endSampling := context.WithCancel(ctx)
	wg.Go(func() { s.keepHistory(sampling) })
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
		err = fmt.Errorf("server: %w", err)
	}
	endSampling()
	s.Stop()
	drain, cancel := context.WithTimeout(context.Background(), s.cfg.Drain)
	defer cancel()
	if down := hs.Shutdown(drain); down != nil {
		s.log.Warn("requests cut off at shutdown", "after", s.cfg.Drain, "error", down)
		err = errors.Join(err, hs.Close())
	}
	wg.Wait()
	s.peers.close()
	return err
}

// Stop answers all blocking queries at once, and lets no other wait. Run calls it; it
// is for those who serve the handler themselves.
func (s *Server) Stop() { s.stopOnce.Do(func() { close(s.stopping) }) }

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	rec := &recorder{ResponseWriter: w, unread: r.ContentLength != 0, label: "none"}
	defer func() { s.metrics.request(rec.label, r.Method, rec.status, time.Since(start)) }()
	if isClean(r.URL) || strings.HasPrefix(r.URL.Path, ui.Path+"/") {
		s.mux.ServeHTTP(rec, r)
	} else {
		s.serve(rec, r, nil)
	}
}

// serve answers a request of a route, nil for none. The writer is that of ServeHTTP.
func (s *Server) serve(w http.ResponseWriter, r *http.Request, rt *route) {
	rec, ok := w.(*recorder)
	if !ok {
		panic("server: ServeHTTP must pass its recorder as the writer")
	}
	err := s.bound(rec, r, rt)
	switch {
	case err != nil:
	case rt != nil:
		rec.label = rt.pattern
		err = s.handle(&request{Request: r, rec: rec, route: rt, ctx: r.Context()})
	default:
		err = s.unroutable(rec, r)
	}
	if err == nil {
		return
	}
	e := asError(err)
	if e.Status == http.StatusInternalServerError {
		s.log.Error("request failed", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	if rec.status != 0 {
		// The answer has begun: only the end of the connection says that it is not whole.
		panic(http.ErrAbortHandler)
	}
	var at *indexedError
	var index uint64
	if errors.As(err, &at) {
		index = at.index
	}
	writeError(rec, r, e, index)
}

// unroutable says why a request has no route.
func (s *Server) unroutable(rec *recorder, r *http.Request) *api.Error {
	if allow := s.methodsOf(r); len(allow) > 0 {
		rec.Header()["Allow"] = allow
		return &api.Error{Status: http.StatusMethodNotAllowed, Code: api.CodeNoMethod,
			Message: fmt.Sprintf("%s does not support %s: must be one of %v", clip(r.URL.Path), clip(r.Method), allow)}
	}
	return &api.Error{Status: http.StatusNotFound, Code: api.CodeNoRoute,
		Message: fmt.Sprintf("unknown path %s: GET /v1/openapi.json lists the paths; encode a '/' in a name as %%2F", clip(r.URL.Path))}
}

// clip keeps what a client sent short in messages.
func clip(s string) string {
	const longest = 200
	if len(s) > longest {
		return strconv.Quote(s[:longest]) + "…"
	}
	return strconv.Quote(s)
}

// recorder remembers the status that was written, 0 before.
type recorder struct {
	http.ResponseWriter
	status int
	// unread: the request has a body that was not read. The response then closes the
	// connection: net/http would wait for the body before it sends the response.
	unread bool
	// label is the pattern of the route, for metrics.
	label string
}

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
		if r.unread {
			r.Header().Set("Connection", "close")
		}
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	return r.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// bound gives a request its time on the connection. One that is rejected at once has it
// as well: net/http reads what is left of its body, and the connection still has the
// deadlines of the request before.
func (s *Server) bound(w http.ResponseWriter, r *http.Request, rt *route) error {
	limit, bodyLimit := s.limits(rt)
	control := http.NewResponseController(w)
	// A writer that knows no deadlines, as a test's, is its owner's to bound.
	if err := control.SetWriteDeadline(time.Now().Add(limit + writeSlack)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	if r.ContentLength == 0 {
		return nil
	}
	if err := control.SetReadDeadline(time.Now().Add(bodyLimit)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// limits are how long a request may take that does not wait for a change, and its body
// to come; rt may be nil.
func (s *Server) limits(rt *route) (whole, body time.Duration) {
	if rt != nil && rt.long {
		return s.cfg.SnapshotTimeout, s.cfg.SnapshotTimeout
	}
	return s.cfg.RequestTimeout, s.cfg.BodyTimeout
}

// handle answers a request that has a route.
func (s *Server) handle(rq *request) error {
	if err := rq.parseQuery(); err != nil {
		return err
	}
	if rq.route.in == nil && rq.ContentLength != 0 {
		return badRequest("%s %s takes no body", rq.route.method, rq.route.pattern)
	}
	limit, _ := s.limits(rq.route)
	if rq.index > 0 {
		limit += time.Until(rq.until)
	}
	ctx, cancel := context.WithTimeout(rq.ctx, limit)
	defer cancel()
	rq.ctx = ctx
	if rq.index > 0 {
		if err := http.NewResponseController(rq.rec).SetWriteDeadline(time.Now().Add(limit + writeSlack)); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return err
		}
	}
	defer func() { s.held.Add(-rq.held) }()
	switch {
	case rq.route.where == whereLocal:
		return s.local(rq.rec, rq)
	case rq.route.where == whereRead && rq.stale:
		if err := s.read(rq.rec, rq); !s.mayKnowToken(rq, err) {
			return err
		}
		rq.stale = false
		rq.query.Del(paramStale)
	}
	return s.onLeader(rq.rec, rq)
}

// local answers from this server alone. Only a token that it does not know is one for the leader.
func (s *Server) local(w http.ResponseWriter, rq *request) error {
	var err error
	if rq.token, err = s.authorize(rq.route, rq.Header, s.cfg.Raft.Store().View()); s.mayKnowToken(rq, err) {
		err = s.askLeader(rq)
	}
	if err != nil {
		return err
	}
	a, err := rq.route.serve(s, rq)
	if err != nil {
		return err
	}
	return a.write(w, rq.Request)
}
