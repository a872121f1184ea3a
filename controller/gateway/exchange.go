package gateway

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"remuda/controller/gateway/accesslog"
	"remuda/controller/gateway/balance"
	"remuda/controller/gateway/continuation"
	"remuda/controller/gateway/dispatch"
	"remuda/controller/gateway/tracing"
)

// exchange is one request on its way through the gateway.
type exchange struct {
	g *Gateway
	request
	client client
	span   *tracing.Span
	// ctx ends when the client leaves, the gateway stops or an operator kills the request.
	ctx  context.Context //nolint:containedctx // it lives as long as the request
	kill context.CancelCauseFunc
	// label is the model's label in metrics, code the error's, empty where there is none.
	label, code string
	// limited: the key's limits count the request. piped: a pipeline answers it.
	limited, piped bool
	// cut: a pipeline cut its stream.
	cut bool

	// body is what the engines get, payload what one gets in its place in a continuation. The body is
	// nil once it is not sent any more.
	body    *body
	payload []byte
	// loan is what the request holds beside its body.
	loan loan
	// want is the request at the dispatcher.
	want dispatch.Request
	// asking is since when the request wants an engine, without one having taken it since;
	// zero while one has it.
	asking time.Time
	// attempts is how many engines took the request, failures how many in a row failed it
	// without an answer or a part of one. ended is how often one closed the connection before it
	// answered. doubtful are the engines whose end may have another cause.
	attempts, failures, ended int64
	doubtful                  []string
	// engine is the last one, nil before the first.
	engine *balance.Endpoint
	// firstByte is when the first byte of the answer's body came.
	firstByte time.Time
	// firstToken is when the first token of a streamed answer came.
	firstToken time.Time
	// recorder has what a continuation needs, nil where there can be none; continued is how often
	// the stream went on at another engine.
	recorder  *continuation.Recorder
	continued int
	// dropped: the recorder had no memory for the text.
	dropped bool
	// learned is the ID of the response that the answer is, once it is known.
	learned string
	// tokens is what the answer took.
	tokens tokens
}

// toEngine serves a request for one of the engines' routes.
func (g *Gateway) toEngine(w http.ResponseWriter, r *http.Request, rt *route) {
	g.exchange(w, r, rt, rt.path, (*exchange).run)
}

// identify gives the request its ID.
func (x *exchange) identify() {
	x.clientID = clientID(x.http)
	if x.internal && x.clientID != "" {
		x.id, x.clientID = x.clientID, ""
	} else {
		x.id = newRequestID()
	}
}

// exchange serves a request by run, whose error has not been sent yet. path is what engines are asked for.
func (g *Gateway) exchange(w http.ResponseWriter, r *http.Request, rt *route, path string, run func(*exchange) *apiError) {
	x := &exchange{g: g, label: unknownModel, client: client{w: w},
		request: request{http: r, route: rt, path: path, began: time.Now(), internal: r.Context().Value(stepKey{}) != nil}}
	x.identify()
	x.ctx, x.kill = context.WithCancelCause(r.Context())
	x.span = g.tracer.Start(r, rt.spanName)
	w.Header().Set(headerID, x.id)
	g.live.add(x)
	defer x.end()
	if x.finish(run(x)) {
		panic(http.ErrAbortHandler) // how net/http is told to cut the connection
	}
}

// finish ends the answer, and tells whether the connection has to be cut.
func (x *exchange) finish(e *apiError) (cut bool) {
	if e == nil {
		return x.cut
	}
	x.code = e.logged()
	if !x.client.committed {
		x.client.describe(x.attempts, x.replica())
	}
	cut = x.client.fail(e, &x.request, &x.tokens.events)
	if x.client.status == statusClientGone {
		x.code = "client_gone"
	}
	return cut
}

// replica is the one that answered, or was tried last; empty where there is none.
func (x *exchange) replica() string {
	if x.engine == nil {
		return ""
	}
	return x.engine.Replica
}

// end runs when the answer is complete or the connection is about to be cut.
func (x *exchange) end() {
	x.kill(nil)
	x.g.live.remove(x)
	x.freeBody()
	x.loan.end()
	now := time.Now()
	m := x.g.metrics
	took, status := now.Sub(x.began), x.client.status
	m.requests.WithLabelValues(x.label, x.route.label, codeText(status)).Inc()
	m.duration.WithLabelValues(x.label, x.route.label).Observe(took.Seconds())
	if !x.firstByte.IsZero() {
		m.firstByte.WithLabelValues(x.label, x.route.label).Observe(x.firstByte.Sub(x.began).Seconds())
		m.responseBytes.WithLabelValues(x.label).Add(float64(x.client.sent))
	}
	if !x.firstToken.IsZero() {
		m.firstToken.WithLabelValues(x.label, x.route.label).Observe(x.firstToken.Sub(x.began).Seconds())
	}
	if x.want.Waited {
		m.queueSeconds.WithLabelValues(x.label).Observe(x.want.Queued.Seconds())
	}
	if x.engine != nil {
		end := dispatch.End{}
		if !x.firstByte.IsZero() {
			end.FirstByte = x.firstByte.Sub(x.began)
		}
		if !x.firstToken.IsZero() {
			end.FirstToken = x.firstToken.Sub(x.began)
		}
		// A stream that is cut off has begun with 200.
		end.Failed = status >= http.StatusInternalServerError || status == http.StatusOK && x.code != ""
		x.g.dispatcher.Ended(x.want.Model, end)
	}
	x.count(now)
	x.endTrace(now)
	if x.g.access != nil {
		x.g.access.Log(x.record(now))
	}
	if x.g.log.IsDebug() {
		x.g.log.Debug("request", "id", x.id, "model", shorten(x.head.Model), "route", x.route.label, "status", status, "took", took, "bytes", x.client.sent)
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
	return tracing.TraceID(x.http.Header)
}

// record is the request's line in the access log.
func (x *exchange) record(now time.Time) accesslog.Record {
	r := accesslog.Record{
		Time: x.began, ID: x.id, ClientID: x.clientID, TraceID: x.traceID(), Client: x.http.RemoteAddr, Key: x.key, Method: x.http.Method, Path: x.path,
		Model: x.head.Model, Status: x.client.status, Code: x.code, Queue: x.want.Queued, Duration: now.Sub(x.began), Attempts: int(x.attempts),
		RequestBytes: int64(x.length), ResponseBytes: x.client.sent, Stream: x.head.Stream, Continued: x.continued > 0, UserAgent: x.http.UserAgent(),
		Replica:      x.replica(),
		PromptTokens: x.tokens.Prompt, CachedTokens: x.tokens.Cached, CompletionTokens: x.tokens.Completion, TokensEstimated: x.tokens.estimated,
	}
	if !x.firstByte.IsZero() {
		r.FirstByte = x.firstByte.Sub(x.began)
	}
	return r
}

// header reads the header. Before the controller's first state nobody knows which keys there are, so
// that a client waits for it.
func (x *exchange) header() *apiError {
	if e := x.readDeadline(); e != nil {
		return e
	}
	if x.g.follower != nil && !x.internal {
		if e := x.awaitSignal(x.g.follower.first, x.began); e != nil {
			return e
		}
	}
	return x.readHeader(x.g)
}

// run serves the request. The error it returns has not been sent yet.
func (x *exchange) run() *apiError {
	if e := x.header(); e != nil {
		return e
	}
	var e *apiError
	x.loan.store, x.loan.client = &x.g.bodies, bodyClient(x.key, x.ours, x.http.RemoteAddr)
	if x.body, e = x.g.readBody(x.client.w, x.http, !x.internal, x.loan.client); e != nil {
		return e
	}
	if e := x.readBody(x.g, x.body); e != nil {
		return e
	}
	if !x.internal { // a pipeline is one request of its key, whatever its steps do
		if e := x.admit(); e != nil {
			return e
		}
		if !x.g.keyring.Load().may(x.key, x.head.Model) {
			return errForbiddenModel(x.key, x.head.Model)
		}
	}
	if x.route.continues && x.g.composer.Has(x.head.Model) && x.pipeline() {
		return nil
	}
	return x.serve()
}

// pipeline has the request answered by a pipeline, false where there is none.
func (x *exchange) pipeline() (handled bool) {
	w := &statusWriter{ResponseWriter: x.client.w}
	x.label, x.piped = x.head.Model, true
	x.cut = true // also by a panic
	defer func() {
		x.client.sent, x.client.status = w.sent, w.status
		if x.cut && (w.status == 0 || context.Cause(x.ctx) == context.Canceled) { //nolint:errorlint // a cause is never wrapped
			x.client.status, x.code = statusClientGone, "client_gone"
		}
	}()
	if !x.deadline.IsZero() { // in one form, and counted from the request's header
		x.http.Header[headerTimeout] = []string{max(time.Until(x.deadline), time.Millisecond).String()}
	}
	r := x.http.WithContext(x.ctx)
	if x.span != nil { // the steps are parts of this request
		r.Header = r.Header.Clone()
		x.span.Inject(r.Header)
	}
	if handled, x.cut = x.g.composer.Serve(w, r, x.head.Model, x.body.data, &x.loan); !handled {
		x.label, x.piped = unknownModel, false // it was taken away a moment ago
	}
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
	if e := x.remember(); e != nil {
		return e
	}
	home, e := x.previous()
	if e != nil {
		return e
	}
	x.want = dispatch.Request{ID: x.id, Model: x.head.Model, Cost: x.cost, Prompt: x.promptTokens, Prefix: x.prefix, Replica: home,
		Key: x.key, Weight: x.limit.Weight, Priority: x.priority, Arrived: x.began}
	var failed *apiError
	taken := false // an engine has failed it; a refused connection costs nobody anything
	for again := false; ; again = true {
		if taken {
			if e := x.mayRetry(); e != nil {
				return cmpError(e, failed)
			}
		}
		if again && !x.client.committed && !x.deadline.IsZero() && time.Until(x.deadline) <= 0 {
			return failed
		}
		grant, e := x.acquire()
		if e != nil {
			return cmpError(e, failed)
		}
		if x.label = x.head.Model; !again {
			x.g.metrics.requestBytes.WithLabelValues(x.label).Add(float64(x.length))
		}
		a := &attempt{exchange: x, grant: grant, fresh: true}
		v, e := a.run()
		if v == finished {
			return e
		}
		failed, taken = e, v == failedThere
		if taken {
			x.asking = time.Time{}
		}
		switch {
		case !taken:
		case a.progress: // it is not the request that fells engines
			x.failures, x.want.Tried = 1, nil
		default:
			x.failures++
		}
		if !slices.Contains(x.want.Tried, x.engine.ServiceID) {
			x.want.Tried = append(x.want.Tried, x.engine.ServiceID)
		}
		switch most := x.g.cfg.Retries.Attempts; {
		case x.endsEngines():
			return errEndsEngines(x.head.Model, x.ended)
		case most == 1 || x.failures >= most:
			return failed
		}
		if x.client.committed {
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

// remember begins the record of a stream that may go on at another engine.
func (x *exchange) remember() *apiError {
	if !x.head.Stream || !x.route.continues || x.g.cfg.Retries.Attempts == 1 || !x.settings.continuation {
		return nil
	}
	r, err := continuation.NewRecorder(x.route == routeChat, x.body.data)
	switch {
	case err == nil:
		r.Bound(x.loan.Take)
		x.recorder = r
	case !errors.Is(err, continuation.ErrNot):
		return &apiError{status: http.StatusBadRequest, typ: typeRequest, code: "invalid_json",
			message: "the request body is not valid JSON: " + err.Error()}
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
		tail, err := x.tokens.events.Take(x.recorder.Tail())
		if err != nil {
			x.g.log.Error("the end of a continued stream is no event", "id", x.id, "error", err)
		}
		return x.client.event(tail), true
	case err != nil:
		x.g.log.Warn("cannot continue a stream at another engine", "id", x.id, "model", x.head.Model, "error", err)
		return errEngine(http.StatusBadGateway, "engine_cut_off", x.head.Model, "did not finish its response"), false
	}
	if &payload[0] == &x.body.data[0] {
		x.payload = nil // the body itself, whose memory is watched over
		return nil, false
	}
	if more := cap(payload) - cap(x.payload); more > 0 && !x.loan.Take(more) {
		x.unrecorded()
		return errEngine(http.StatusBadGateway, "engine_cut_off", x.head.Model, "did not finish its response"), false
	}
	x.payload = payload
	return nil, false
}

// unrecorded notes that there is no memory to continue the stream.
func (x *exchange) unrecorded() {
	x.g.metrics.unrecorded.WithLabelValues(x.label).Inc()
	x.g.log.Warn("a stream cannot be continued at another engine if its engine breaks off: no memory for its text; raise limits.buffered",
		"id", x.id, "model", x.head.Model)
}
