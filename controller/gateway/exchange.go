package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"remuda/controller/gateway/balance"
	"remuda/controller/gateway/modelscan"
)

// Kinds of upstream_errors_total.
const (
	kindDial     = "dial"     // no connection
	kindTimeout  = "timeout"  // no first byte, or no next one, in time
	kindReset    = "reset"    // the connection ended before the first byte
	kindProtocol = "protocol" // not HTTP
	kindContent  = "content"  // HTTP, but not what an OpenAI engine answers
	kindStatus   = "status"   // a 5xx
	kindCut      = "cut"      // the answer ended before it was complete
)

// errSilent is the cause of an exchange's context when the engine let a
// timeout pass.
var errSilent = errors.New("the engine was silent for too long")

// dialError is a connection that could not be made: nothing was sent.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// newTransport returns the transport to the engines.
//
// Keep-alive connections go stale when an engine closes them while a request
// is on its way. The transport repeats such a request on a new connection if
// no byte of an answer was seen, the request has GetBody and is marked
// idempotent; the exchange does both. A completion changes nothing in an
// engine, so running one twice is harmless.
func newTransport(cfg Config) *http.Transport {
	dialer := &net.Dialer{Timeout: cfg.Timeouts.Connect}
	return &http.Transport{
		Proxy: nil, // engines are never behind a proxy, whatever the environment says
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := dialer.DialContext(ctx, network, addr)
			if err != nil {
				return nil, &dialError{err}
			}
			return c, nil
		},
		DisableCompression:     true,
		MaxIdleConns:           0, // unlimited: IdleConnTimeout is short
		MaxIdleConnsPerHost:    4096,
		IdleConnTimeout:        cfg.Timeouts.EngineIdle,
		MaxResponseHeaderBytes: 64 << 10,
		// One write for the header and a usual body.
		WriteBufferSize: 16 << 10,
		ReadBufferSize:  8 << 10,
	}
}

// exchange is one request on its way through the gateway.
type exchange struct {
	g     *Gateway
	w     http.ResponseWriter
	r     *http.Request
	route *route
	id    string
	head  modelscan.Head
	body  *body
	began time.Time

	// label is the model's label in metrics.
	label string
	// status is what the client got; 0 until then.
	status int
	// engine serves the request now, under lease.
	engine *balance.Endpoint
	lease  Lease
	// cancel ends the request to the engine, with a cause.
	cancel context.CancelCauseFunc
	// watch cancels with errSilent when the engine is silent for too long.
	watch *time.Timer
	// firstByte is when the first byte of the answer's body came.
	firstByte time.Time
	sent      int64
}

// toEngine serves a request for one of the engines' routes.
func (g *Gateway) toEngine(w http.ResponseWriter, r *http.Request, rt *route) {
	x := &exchange{g: g, w: w, r: r, route: rt, id: requestID(r), began: time.Now(), label: unknownModel}
	w.Header().Set(headerID, x.id)
	defer x.end()
	e := x.run()
	switch {
	case e == nil:
	case e.status == statusClientGone:
		x.abort(statusClientGone)
	default:
		x.status = e.status
		e.write(w, r)
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
	if x.body != nil {
		x.body.release()
	}
	m := x.g.metrics
	took := time.Since(x.began)
	m.requests.WithLabelValues(x.label, x.route.label, codeText(x.status)).Inc()
	m.duration.WithLabelValues(x.label, x.route.label).Observe(took.Seconds())
	if !x.firstByte.IsZero() {
		m.firstByte.WithLabelValues(x.label, x.route.label).Observe(x.firstByte.Sub(x.began).Seconds())
		m.responseBytes.WithLabelValues(x.label).Add(float64(x.sent))
	}
	if x.g.log.IsDebug() {
		x.g.log.Debug("request", "id", x.id, "model", x.head.Model, "route", x.route.label, "status", x.status, "took", took, "bytes", x.sent)
	}
}

// run serves the request. The error it returns has not been sent yet; nothing
// else has been sent then either.
func (x *exchange) run() *apiError {
	if x.r.Method != http.MethodPost {
		return errMethod(x.r.Method, x.route.path, http.MethodPost)
	}
	if e := x.readRequest(); e != nil {
		return e
	}
	var failed *apiError
	var tried []string
	for range x.g.cfg.Limits.Attempts {
		lease, err := x.g.dispatch.Acquire(x.r.Context(), balance.Request{ID: x.id, Model: x.head.Model, Tried: tried})
		if err != nil {
			if x.r.Context().Err() != nil {
				return x.left()
			}
			if failed != nil {
				return failed
			}
			if !errors.Is(err, balance.ErrUnknownModel) && !errors.Is(err, balance.ErrNoList) {
				x.label = x.head.Model
			}
			return x.g.noEngine(err, x.head.Model)
		}
		if failed == nil {
			x.label = x.head.Model
			x.g.metrics.requestBytes.WithLabelValues(x.label).Add(float64(len(x.body.data)))
		}
		x.engine = lease.Endpoint()
		tried = append(tried, x.engine.ServiceID)
		again, e := x.attempt(lease)
		if !again {
			return e
		}
		failed = e
	}
	return failed
}

// readRequest reads the body and finds the model in it.
func (x *exchange) readRequest() *apiError {
	if enc := x.r.Header.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		return &apiError{status: http.StatusUnsupportedMediaType, typ: typeRequest, code: "unsupported_content_encoding", close: true,
			message: fmt.Sprintf("the request body has Content-Encoding %s; send it plain", shorten(enc))}
	}
	var e *apiError
	if x.body, e = x.g.readBody(x.w, x.r); e != nil {
		return e
	}
	head, err := modelscan.Scan(x.body.data)
	var syntax *modelscan.SyntaxError
	switch {
	case errors.As(err, &syntax):
		return &apiError{status: http.StatusBadRequest, typ: typeRequest, code: "invalid_json",
			message: "the request body is not valid JSON: " + syntax.Error()}
	case errors.Is(err, modelscan.ErrModelType):
		return &apiError{status: http.StatusBadRequest, typ: typeRequest, code: "invalid_type", param: "model",
			message: `"model" is not a string; name a model that GET /v1/models lists`}
	case err != nil:
		return &apiError{status: http.StatusBadRequest, typ: typeRequest, code: "missing_required_parameter", param: "model",
			message: `"model" is missing; name a model that GET /v1/models lists`}
	}
	x.head = head
	return nil
}

// attempt sends the request to the leased engine and its answer to the client.
// It returns true where another engine may be tried, with the error to send if
// there is none.
func (x *exchange) attempt(lease Lease) (again bool, e *apiError) {
	defer lease.Release()
	x.lease = lease
	ctx, cancel := context.WithCancelCause(x.r.Context())
	defer cancel(nil)
	x.cancel = cancel
	x.watch = time.AfterFunc(x.g.cfg.Timeouts.FirstByte, func() { cancel(errSilent) })
	defer x.watch.Stop()

	resp, err := x.g.transport.RoundTrip(x.outbound(ctx))
	if err == nil {
		defer resp.Body.Close()
		// It cannot be sent again from here on; a stream may go on for long.
		x.body.release()
		x.body = nil
		return false, x.relay(ctx, resp)
	}
	var dial *dialError
	if !errors.As(err, &dial) || ctx.Err() != nil {
		return false, x.fault(ctx, err)
	}
	x.countFault(kindDial)
	if lease.DialFailed() {
		x.g.log.Warn("engine cannot be reached", "model", x.head.Model, "engine", x.engine.ServiceID, "address", x.engine.Addr, "error", dial.err)
	}
	return true, &apiError{status: http.StatusServiceUnavailable, typ: typeServer, code: "engine_unreachable", retryAfter: x.g.cfg.RetryAfter,
		message: fmt.Sprintf("no engine of the model %s could be reached; retry after the time in Retry-After", shorten(x.head.Model))}
}

// outbound is the request as the engine gets it.
func (x *exchange) outbound(ctx context.Context) *http.Request {
	in := x.r.Header
	h := make(http.Header, len(in)+8)
	copyHeader(h, in)
	h["Accept-Encoding"] = []string{"identity"} // answers are looked into
	delete(h, "Expect")                         // the body is here already
	h[headerID] = []string{x.id}
	h[headerVia] = append(h[headerVia][:len(h[headerVia]):len(h[headerVia])], viaRemuda)
	if host, _, err := net.SplitHostPort(x.r.RemoteAddr); err == nil {
		if prior := h["X-Forwarded-For"]; len(prior) > 0 {
			host = strings.Join(prior, ", ") + ", " + host
		}
		h["X-Forwarded-For"] = []string{host}
	}
	if h["X-Forwarded-Host"] == nil {
		h["X-Forwarded-Host"] = []string{x.r.Host}
	}
	if h["X-Forwarded-Proto"] == nil {
		h["X-Forwarded-Proto"] = []string{"http"}
	}
	if h["User-Agent"] == nil {
		h["User-Agent"] = nil // keeps the transport from adding its own
	}
	if h["Idempotency-Key"] == nil && h["X-Idempotency-Key"] == nil {
		h["X-Idempotency-Key"] = nil // marks the request, is not sent; see newTransport
	}
	req := &http.Request{
		Method: http.MethodPost,
		URL:    &url.URL{Scheme: "http", Host: x.engine.Addr, Path: x.route.path, RawQuery: x.r.URL.RawQuery},
		Proto:  "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header:        h,
		Body:          x.body.reader(),
		GetBody:       func() (io.ReadCloser, error) { return x.body.reader(), nil },
		ContentLength: int64(len(x.body.data)),
	}
	return req.WithContext(ctx)
}

// copyHeader copies end-to-end headers (RFC 9110 section 7.6.1). The values
// are shared.
func copyHeader(dst, src http.Header) {
	for k, v := range src {
		switch k {
		case "Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization",
			"Te", "Trailer", "Transfer-Encoding", "Upgrade":
		default:
			dst[k] = v
		}
	}
	for _, line := range src["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			delete(dst, http.CanonicalHeaderKey(strings.TrimSpace(name)))
		}
	}
}

// left is the "error" of a request that has nobody to answer to.
func (x *exchange) left() *apiError {
	if context.Cause(x.r.Context()) == errStopping { //nolint:errorlint // a cause is never wrapped
		return &apiError{status: http.StatusServiceUnavailable, typ: typeServer, code: "gateway_stopping", close: true, retryAfter: x.g.cfg.RetryAfter,
			message: "the gateway is stopping; retry after the time in Retry-After"}
	}
	return errClientGone()
}

// fault judges an error of the exchange with the engine, counts it and returns
// what to tell the client.
func (x *exchange) fault(ctx context.Context, err error) *apiError {
	if x.r.Context().Err() != nil {
		return x.left()
	}
	model := x.head.Model
	kind := kindProtocol
	var e *apiError
	switch {
	case context.Cause(ctx) == errSilent && x.firstByte.IsZero(): //nolint:errorlint // a cause is never wrapped
		kind = kindTimeout
		e = errEngine(http.StatusGatewayTimeout, "engine_timeout", model, fmt.Sprintf("sent no byte of an answer within %s", x.g.cfg.Timeouts.FirstByte))
	case context.Cause(ctx) == errSilent: //nolint:errorlint // a cause is never wrapped
		kind = kindTimeout
		e = errEngine(http.StatusGatewayTimeout, "engine_timeout", model, fmt.Sprintf("sent nothing for %s in the middle of its answer", x.g.cfg.Timeouts.StreamIdle))
	case !x.firstByte.IsZero():
		kind = kindCut
		e = errEngine(http.StatusBadGateway, "engine_cut_off", model, "stopped in the middle of its answer")
	case isReset(err):
		kind = kindReset
		e = errEngine(http.StatusBadGateway, "engine_gone", model, "closed the connection before it answered")
	default:
		e = errEngine(http.StatusBadGateway, "engine_protocol_error", model, "answered with something that is not HTTP")
	}
	x.blame(kind, err)
	return e
}

func isReset(err error) bool {
	var op *net.OpError // also a host that was switched off: ETIMEDOUT, EHOSTUNREACH
	return errors.As(err, &op) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		strings.Contains(err.Error(), "server closed idle connection")
}

// countFault counts a fault of the engine; any but a refused connection makes it
// suspect here (DialFailed does so there).
func (x *exchange) countFault(kind string) {
	if kind != kindDial {
		x.lease.Failed()
	}
	x.g.metrics.upstreamErrors.WithLabelValues(x.label, x.engine.Replica, kind).Inc()
}

// blame counts and logs a fault of the engine.
func (x *exchange) blame(kind string, err error) {
	x.countFault(kind)
	x.g.log.Warn("engine failed a request", "id", x.id, "model", x.head.Model, "engine", x.engine.ServiceID,
		"address", x.engine.Addr, "kind", kind, "after", time.Since(x.began), "sent", x.sent, "error", err)
}
