package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"remuda/controller/gateway/accesslog"
	"remuda/controller/gateway/balance"
	"remuda/controller/gateway/continuation"
	"remuda/controller/gateway/openai"
	"remuda/controller/gateway/queue"
	"remuda/controller/gateway/tracing"
)

// Request headers with which a client says what it wants of the gateway.
const (
	// headerTimeout is how long the client waits for the first byte of the answer.
	headerTimeout = "X-Remuda-Timeout"
	// headerPriority is 0 to 9; higher is sooner.
	headerPriority = "X-Remuda-Priority"
)

// Response headers that say what became of the request.
const (
	headerReplica  = "X-Remuda-Replica"  // the replica that answered
	headerAttempts = "X-Remuda-Attempts" // how many engines the request was sent to
)

// exchange is one request on its way through the gateway.
type exchange struct {
	g     *Gateway
	w     http.ResponseWriter
	r     *http.Request
	route *route
	id    string
	head  openai.Head
	body  *body
	began time.Time
	span  *tracing.Span
	// ctx ends when the client leaves, the gateway stops or an operator kills the request.
	ctx  context.Context //nolint:containedctx // it lives as long as the request
	kill context.CancelCauseFunc

	// label is the model's label in metrics.
	label string
	// key is the name of the API key, empty until it is known.
	key string
	// ours: the key is one of the gateway's, and stays here.
	ours bool
	// status is what the client got; 0 until then.
	status int
	// code is the error's, empty where there is none.
	code string
	// deadline is when the client waits no more for the first byte, zero if it does not
	// say.
	deadline time.Time

	// settings are the model's.
	settings settings
	ticket   ticket
	// limited: the key's limits count the request.
	limited bool
	// asking is since when the request wants an engine, without one having taken it since;
	// zero while one has it.
	asking time.Time
	// length is the body's, in bytes.
	length int
	// queued is how long the request has waited for engines.
	queued time.Duration
	// waiting: the ticket is in the queue, or has an outcome that nobody took.
	waiting bool
	// attempts is how many engines took the request, failures how many in a row failed it
	// without an answer or a part of one.
	attempts, failures int64
	// progress: the client got more of the text in this attempt.
	progress bool
	// engine serves the request now, under lease.
	engine *balance.Endpoint
	lease  *lease
	// cancel ends the request to the engine, with a cause.
	cancel context.CancelCauseFunc
	// watch cancels with errSilent when the engine is silent for too long, or with
	// errDeadline where the client waits no longer: then hurried is set.
	watch   *time.Timer
	hurried atomic.Bool
	// fresh tells that the engine has sent no byte of a body in this attempt.
	fresh bool
	// firstByte is when the first byte of the answer's body came.
	firstByte time.Time
	// told is when the client was last told that it has to wait.
	told time.Time
	// held: the client was told that it has to wait, in a stream that has begun.
	held bool
	// committed: a part of an engine's answer was sent.
	committed bool
	// recorder has what a continuation needs, nil where there can be none.
	recorder *continuation.Recorder
	// continued is how often the stream went on at another engine.
	continued int
	// payload replaces the body in a continuation.
	payload []byte
	sent    int64
}

// toEngine serves a request for one of the engines' routes.
func (g *Gateway) toEngine(w http.ResponseWriter, r *http.Request, rt *route) {
	x := &exchange{g: g, w: w, r: r, route: rt, id: requestID(r), began: time.Now(), label: unknownModel}
	x.ctx, x.kill = context.WithCancelCause(r.Context())
	x.span = g.tracer.Start(r, rt.spanName)
	w.Header().Set(headerID, x.id)
	g.live.add(x)
	defer x.end()
	e := x.run()
	switch {
	case e == nil:
	case e.status == statusClientGone:
		x.code = "client_gone"
		x.abort(statusClientGone)
	case x.committed:
		// The blank line ends the event that is open, if one is.
		x.code = e.code
		x.send([]byte("\n\ndata: " + string(e.body()) + "\n\n"))
		x.flush()
		x.abort(x.status)
	case x.held:
		// The stream is the gateway's own, so it can end properly.
		x.code, x.status = e.code, e.status
		x.send([]byte("data: " + string(e.body()) + "\n\ndata: [DONE]\n\n"))
		x.flush()
	default:
		x.code, x.status = e.code, e.status
		x.describe()
		e.write(w, r)
	}
}

// describe says in headers what became of the request.
func (x *exchange) describe() {
	h := x.w.Header()
	if x.attempts > 0 {
		h[headerAttempts] = []string{strconv.FormatInt(x.attempts, 10)}
	}
	if x.engine != nil {
		h[headerReplica] = []string{x.engine.Replica}
	}
}

// abort cuts the client's connection, so that nobody takes what was sent for
// a whole answer.
func (x *exchange) abort(status int) {
	x.status = status
	panic(http.ErrAbortHandler)
}

// end runs when the answer is complete or the connection is about to be cut.
func (x *exchange) end() {
	x.kill(nil)
	if x.waiting { // the client left while it was told that it waits
		x.g.roster.abandon(&x.ticket, true)
	}
	x.g.live.remove(x)
	if x.limited {
		x.g.roster.leave(x.key)
	}
	x.freeBody()
	now := time.Now()
	m := x.g.metrics
	took := now.Sub(x.began)
	m.requests.WithLabelValues(x.label, x.route.label, codeText(x.status)).Inc()
	m.duration.WithLabelValues(x.label, x.route.label).Observe(took.Seconds())
	if !x.firstByte.IsZero() {
		m.firstByte.WithLabelValues(x.label, x.route.label).Observe(x.firstByte.Sub(x.began).Seconds())
		m.responseBytes.WithLabelValues(x.label).Add(float64(x.sent))
	}
	if x.ticket.waiter != nil {
		m.queueSeconds.WithLabelValues(x.label).Observe(x.queued.Seconds())
	}
	x.endTrace(now)
	if x.g.access != nil {
		x.g.access.Log(x.record(now))
	}
	if x.g.log.IsDebug() {
		x.g.log.Debug("request", "id", x.id, "model", x.head.Model, "route", x.route.label, "status", x.status, "took", took, "bytes", x.sent)
	}
}

// freeBody gives the body's memory back: it is not sent again.
func (x *exchange) freeBody() {
	if x.body != nil {
		x.body.release()
		x.body = nil
	}
}

// traceID is that of the trace that the request belongs to, empty where there is none.
func (x *exchange) traceID() string {
	if id := x.span.TraceID(); id != "" {
		return id
	}
	return tracing.TraceID(x.r.Header)
}

// record is the request's line in the access log.
func (x *exchange) record(now time.Time) accesslog.Record {
	r := accesslog.Record{
		Time: x.began, ID: x.id, TraceID: x.traceID(), Client: x.r.RemoteAddr, Key: x.ticket.entry.Key, Method: x.r.Method, Path: x.route.path,
		Model: x.head.Model, Status: x.status, Code: x.code, Queue: x.queued, Duration: now.Sub(x.began), Attempts: int(x.attempts),
		RequestBytes: int64(x.length), ResponseBytes: x.sent, Stream: x.head.Stream, Continued: x.continued > 0, UserAgent: x.r.UserAgent(),
	}
	if x.engine != nil {
		r.Replica = x.engine.Replica
	}
	if !x.firstByte.IsZero() {
		r.FirstByte = x.firstByte.Sub(x.began)
	}
	return r
}

// run serves the request. The error it returns has not been sent yet.
func (x *exchange) run() *apiError {
	if x.r.Method != http.MethodPost {
		return errMethod(x.r.Method, x.route.path, http.MethodPost)
	}
	if e := x.wishes(); e != nil {
		return e
	}
	if e := x.readRequest(); e != nil {
		return e
	}
	if !x.internal() { // a pipeline is one request of its key, whatever its steps do
		if e := x.admit(); e != nil {
			return e
		}
	}
	if !x.g.keyring.Load().may(x.ticket.entry.Key, x.head.Model) && !x.internal() {
		return errForbiddenModel(x.ticket.entry.Key, x.head.Model)
	}
	if x.g.composer.Has(x.head.Model) && x.pipeline() {
		return nil
	}
	return x.serve()
}

// pipeline has the request answered by a pipeline, false where there is none.
func (x *exchange) pipeline() (handled bool) {
	w := &statusWriter{ResponseWriter: x.w}
	x.label = x.head.Model
	aborted := true
	defer func() {
		x.sent, x.status = w.sent, w.status
		if aborted && (w.status == 0 || context.Cause(x.ctx) == context.Canceled) { //nolint:errorlint // a cause is never wrapped
			x.status, x.code = statusClientGone, "client_gone"
		}
	}()
	if !x.deadline.IsZero() { // in one form, and counted from the request's header
		x.r.Header[headerTimeout] = []string{max(time.Until(x.deadline), time.Millisecond).String()}
	}
	r := x.r.WithContext(x.ctx)
	if x.span != nil { // the steps are parts of this request
		r.Header = r.Header.Clone()
		x.span.Inject(r.Header)
	}
	if handled = x.g.composer.Serve(w, r, x.head.Model, x.body.data); !handled {
		x.label = unknownModel // it was taken away a moment ago
	}
	aborted = false
	return handled
}

// statusWriter notes what a pipeline answers.
type statusWriter struct {
	http.ResponseWriter
	status int
	sent   int64
}

// WriteHeader notes the status.
func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Write counts the bytes.
func (w *statusWriter) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	w.sent += int64(n)
	return n, err
}

// Unwrap is for http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// serve offers the request to engines until one has answered it.
func (x *exchange) serve() *apiError {
	if e := x.enqueueable(); e != nil {
		return e
	}
	var failed *apiError
	taken := false // an engine has failed it; a refused connection costs nobody anything
	for again := false; ; again = true {
		if taken {
			if e := x.mayRetry(); e != nil {
				return cmpError(e, failed)
			}
		}
		if again && !x.committed && !x.deadline.IsZero() && time.Until(x.deadline) <= 0 {
			return failed
		}
		lease, e := x.acquire(again)
		if e != nil {
			return cmpError(e, failed)
		}
		if x.label = x.head.Model; !again {
			x.g.metrics.requestBytes.WithLabelValues(x.label).Add(float64(x.length))
		}
		verdict, e := x.attempt(lease)
		if verdict == finished {
			return e
		}
		failed, taken = e, verdict == failedThere
		if taken {
			x.asking = time.Time{}
		}
		switch {
		case !taken:
		case x.progress: // it is not the request that fells engines
			x.failures, x.ticket.request.Tried = 1, nil
		default:
			x.failures++
		}
		if !slices.Contains(x.ticket.request.Tried, x.engine.ServiceID) {
			x.ticket.request.Tried = append(x.ticket.request.Tried, x.engine.ServiceID)
		}
		if x.g.cfg.Retries.Attempts == 1 || x.failures >= x.g.cfg.Retries.Attempts {
			return failed
		}
		if x.committed {
			if e, done := x.resume(); e != nil || done {
				return cmpError(e, failed)
			}
		}
	}
}

// cmpError returns what to tell a client that could not be served again: why the engine
// failed, unless the end has another reason.
func cmpError(e, failed *apiError) *apiError {
	if e == nil || failed == nil || e.final {
		return e
	}
	if failed.retryAfter == 0 {
		failed.retryAfter = e.retryAfter
	}
	return failed
}

// wishes reads what the client wants of the gateway.
func (x *exchange) wishes() *apiError {
	name, ours, e := x.g.identify(x.r)
	if e != nil {
		return e
	}
	bad := func(header, value, want string) *apiError {
		return &apiError{status: http.StatusBadRequest, typ: typeRequest, code: "bad_header", param: header, close: true,
			message: fmt.Sprintf("the header %s is %s: must be %s", header, shorten(value), want)}
	}
	if v := x.r.Header.Get(headerTimeout); v != "" {
		d, ok := parseTimeout(v)
		if !ok {
			return bad(headerTimeout, v, `a time such as "30s" or a number of seconds`)
		}
		x.deadline = x.began.Add(d)
	}
	limit := x.g.roster.limit(name)
	priority := limit.Priority
	if v := x.r.Header.Get(headerPriority); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 0 || n > 9 {
			return bad(headerPriority, v, "a whole number from 0 to 9")
		}
		priority = min(n, limit.MaxPriority)
	}
	x.ours = ours
	x.ticket.entry = queue.Entry[*ticket]{ID: x.id, Key: name, Weight: limit.Weight, Priority: priority, Arrived: x.began, Value: &x.ticket}
	return nil
}

// admit counts the request among its key's.
func (x *exchange) admit() *apiError {
	name := x.ticket.entry.Key
	if l := x.g.roster.limit(name); l.Concurrency > 0 || l.Rate > 0 {
		wait, err := x.g.roster.admit(name)
		if err != nil {
			return errLimited(name, err, wait)
		}
		x.limited = true
	}
	x.key = name
	return nil
}

// parseTimeout reads "30s" or "30".
func parseTimeout(s string) (time.Duration, bool) {
	d, err := time.ParseDuration(s)
	if err != nil {
		if d, err = time.ParseDuration(s + "s"); err != nil {
			return 0, false
		}
	}
	return d, d > 0
}

func errLimited(key string, err error, wait time.Duration) *apiError {
	what := "rate"
	if errors.Is(err, queue.ErrConcurrency) {
		what = "concurrency"
	}
	return &apiError{status: http.StatusTooManyRequests, typ: typeLimit, code: "rate_limit_exceeded", retryAfter: max(wait, time.Second),
		message: fmt.Sprintf("%s limit exceeded for API key %s; retry after the time in the Retry-After header", what, shorten(key))}
}

// readRequest reads the body and finds the model in it.
func (x *exchange) readRequest() *apiError {
	for _, enc := range x.r.Header["Content-Encoding"] {
		if enc == "" || strings.EqualFold(enc, "identity") {
			continue
		}
		return &apiError{status: http.StatusUnsupportedMediaType, typ: typeRequest, code: "unsupported_content_encoding", close: true,
			message: fmt.Sprintf("the request body has Content-Encoding %s; send it plain", shorten(enc))}
	}
	var e *apiError
	if x.body, e = x.g.readBody(x.w, x.r, !x.internal(), bodyClient(x.ticket.entry.Key, x.ours, x.r.RemoteAddr)); e != nil {
		return e
	}
	x.length = len(x.body.data)
	head, err := openai.Scan(x.body.data)
	var syntax *openai.SyntaxError
	switch {
	case errors.As(err, &syntax):
		return &apiError{status: http.StatusBadRequest, typ: typeRequest, code: "invalid_json",
			message: "the request body is not valid JSON: " + syntax.Error()}
	case errors.Is(err, openai.ErrModelType):
		return &apiError{status: http.StatusBadRequest, typ: typeRequest, code: "invalid_type", param: "model",
			message: `"model" is not a string; set it to a model that GET /v1/models lists`}
	case errors.Is(err, openai.ErrModelCase):
		return &apiError{status: http.StatusBadRequest, typ: typeRequest, code: "duplicate_parameter", param: "model",
			message: `"model" is written in another case, which engines read in different ways; write it in lower case, once`}
	case err != nil:
		return &apiError{status: http.StatusBadRequest, typ: typeRequest, code: "missing_required_parameter", param: "model",
			message: `"model" is missing; set it to a model that GET /v1/models lists`}
	}
	x.head = head
	return nil
}

// enqueueable fills in what the choice of an engine goes by.
func (x *exchange) enqueueable() *apiError {
	x.settings = x.g.of(x.head.Model)
	cost := x.head.Cost(x.body.data, x.route != routeEmbeddings)
	x.ticket.entry.Cost = cost
	x.ticket.request = balance.Request{ID: x.id, Model: x.head.Model, Cost: cost, Prefix: x.head.Prefix(x.body.data)}
	if x.head.Stream && x.route != routeEmbeddings && x.g.cfg.Retries.Attempts > 1 && x.settings.continuation {
		r, err := continuation.NewRecorder(x.route == routeChat, x.body.data)
		switch {
		case err == nil:
			x.recorder = r
		case !errors.Is(err, continuation.ErrNot):
			return &apiError{status: http.StatusBadRequest, typ: typeRequest, code: "invalid_json",
				message: "the request body is not valid JSON: " + err.Error()}
		}
	}
	return nil
}

// resume makes the request that goes on with a stream that broke off. done tells that
// nothing is missing: the answer has been ended.
func (x *exchange) resume() (e *apiError, done bool) {
	if x.recorder == nil || x.recorder.Err() != nil {
		return errEngine(http.StatusBadGateway, "engine_cut_off", x.head.Model, "did not finish its response"), false
	}
	payload, err := x.recorder.Request()
	switch {
	case errors.Is(err, continuation.ErrComplete):
		x.send(x.recorder.Tail())
		x.flush()
		return nil, true
	case err != nil:
		x.g.log.Warn("cannot continue a stream at another engine", "id", x.id, "model", x.head.Model, "error", err)
		return errEngine(http.StatusBadGateway, "engine_cut_off", x.head.Model, "did not finish its response"), false
	}
	if &payload[0] == &x.body.data[0] {
		payload = nil // the body itself, whose memory is watched over
	}
	x.payload = payload
	return nil, false
}

// stepKey marks the context of a request that is a step of a pipeline.
type stepKey struct{}

// internal tells whether the request is a step of a pipeline, not a client's.
func (x *exchange) internal() bool { return x.r.Context().Value(stepKey{}) != nil }

// flush sends what was written. It does not return when the client is gone.
func (x *exchange) flush() {
	if err := http.NewResponseController(x.w).Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		x.abort(statusClientGone)
	}
}
