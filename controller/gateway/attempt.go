package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"remuda/controller/gateway/balance"
	"remuda/controller/gateway/dispatch"
	"remuda/controller/gateway/upstream"
)

// verdict is what became of an attempt.
type verdict int

const (
	// finished: the client has its answer, or the error is for it.
	finished verdict = iota
	// failedThere: the engine took the request and failed it; another may do better.
	failedThere
	// notTaken: no engine got the request.
	notTaken
)

var (
	// errSilent is the cause of an attempt's context when the engine let a timeout pass.
	errSilent = errors.New("the engine exceeded a timeout")
	// errDeadline is the cause when the client waits no more for the first byte.
	errDeadline = errors.New("the client's deadline has passed")
)

// lease is the right to send a request to an engine.
type lease interface {
	Engine() *balance.Endpoint
	Failed(f balance.Fault) (news bool)
	GivenUp(patience time.Duration) (news bool)
	Answered()
	Release()
}

var _ lease = (*dispatch.Grant)(nil)

// attempt is one request on its way to one engine and back.
type attempt struct {
	*exchange
	grant lease
	// cancel ends the request to the engine, with a cause.
	cancel context.CancelCauseFunc
	// watch cancels with errSilent when the engine is silent for too long, or with
	// errDeadline where the client waits no longer: then hurried is set.
	watch   *time.Timer
	hurried atomic.Bool
	// fresh tells that the engine has sent no byte of a body, progress that the client got more of
	// the text.
	fresh, progress bool
}

// run sends the request to the engine and its answer to the client. The error is what to send where
// no engine does better.
func (x *attempt) run() (v verdict, e *apiError) {
	defer x.grant.Release()
	x.engine = x.grant.Engine()
	began := time.Now()
	ctx, cancel := context.WithCancelCause(x.ctx)
	defer cancel(nil)
	x.cancel = cancel
	silent := x.settings.firstByte
	if !x.deadline.IsZero() && !x.client.committed {
		if left := x.deadline.Sub(began); left < silent {
			silent = left
			x.hurried.Store(true)
		}
	}
	x.watch = time.AfterFunc(silent, func() {
		if x.hurried.Load() {
			cancel(errDeadline)
			return
		}
		cancel(errSilent)
	})
	defer x.watch.Stop()

	c := x.trace(began)
	defer func() { c.end(e) }()
	resp, err := x.g.transport.Do(ctx, x.outbound(c))
	c.answered(err)
	if err == nil {
		defer resp.Body.Close()
		x.attempts++
		if !x.repeatable() {
			// It cannot be sent again from here on; a stream may go on for long.
			x.freeBody()
		}
		return x.relay(ctx, resp)
	}
	var failed *upstream.Error
	switch {
	case ctx.Err() != nil || !errors.As(err, &failed):
	case failed.Stage == upstream.NotConnected:
		if x.countFault(kindDial, err) {
			x.g.log.Warn("cannot connect to the engine", "model", x.head.Model, "engine", x.engine.ServiceID, "address", x.engine.Addr, "error", err)
		}
		return notTaken, x.unreachable()
	case failed.Stage == upstream.NotWritten && failed.Kept:
		return notTaken, x.unreachable() // the engine had closed a connection that was idle
	}
	x.attempts++
	return x.fault(ctx, err)
}

func (x *attempt) unreachable() *apiError {
	return &apiError{status: http.StatusServiceUnavailable, typ: typeServer, code: "engine_unreachable", retryAfter: x.g.cfg.RetryAfter,
		message: fmt.Sprintf("no engine of model %s is reachable; retry after the time in the Retry-After header", shorten(x.head.Model))}
}

// allow gives an engine that has begun to answer so long from now: its silence is its own
// fault then, whatever time the client had.
func (x *attempt) allow(d time.Duration) {
	x.hurried.Store(false)
	x.watch.Reset(d)
}

// repeatable tells whether the request may be sent again although an answer has begun.
func (x *attempt) repeatable() bool {
	return x.g.cfg.Retries.Attempts > 1 && (x.recorder != nil && !x.dropped || x.failures+1 < x.g.cfg.Retries.Attempts)
}

// headerFor is the header that an engine with this API key, of a model with these settings, gets. An
// engine with a key takes that alone for a credential.
func (x *exchange) headerFor(s settings, key string) http.Header {
	h := make(http.Header, len(x.http.Header)+8)
	copyRequestHeader(h, x.http)
	if x.ours || !s.passAuthorization || key != "" {
		delete(h, "Authorization")
		delete(h, headerAPIKey)
	}
	if key != "" {
		h["Authorization"] = []string{"Bearer " + key}
	}
	h["Accept-Encoding"] = []string{"identity"} // answers are looked into
	delete(h, "Expect")                         // the body is here already
	h[headerID] = []string{cmp.Or(x.clientID, x.id)}
	h[headerVia] = append(h[headerVia][:len(h[headerVia]):len(h[headerVia])], viaRemuda)
	return h
}

// outbound is the request as the engine gets it.
func (x *attempt) outbound(c *call) *upstream.Request {
	out := &upstream.Request{Method: x.route.method, Addr: x.engine.Addr, Target: x.path, Header: x.headerFor(x.settings, x.engine.Key)}
	if c != nil {
		c.span.Inject(out.Header)
	}
	if query := x.http.URL.RawQuery; query != "" {
		out.Target += "?" + query
	}
	switch {
	case x.payload != nil:
		out.Body = x.payload
	case x.body != nil:
		out.Body, out.Release = x.body.lend()
	}
	if c != nil {
		out.Connected = c.connect
	}
	return out
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

// fault judges an error of the exchange with the engine, counts it and returns
// what to tell the client if no engine does better.
func (x *attempt) fault(ctx context.Context, err error) (verdict, *apiError) {
	if x.ctx.Err() != nil {
		e := x.left()
		if e.status == statusClientGone {
			x.givenUp()
		}
		return finished, e
	}
	model := x.head.Model
	cause := context.Cause(ctx)
	if cause == errDeadline && !x.client.committed { //nolint:errorlint // a cause is never wrapped
		x.givenUp()
		return finished, &apiError{status: http.StatusGatewayTimeout, typ: typeServer, code: "deadline_exceeded", retryAfter: x.g.cfg.RetryAfter,
			message: fmt.Sprintf("an engine of model %s did not respond within the time in the header %s; allow more time", shorten(model), headerTimeout)}
	}
	kind := kindProtocol
	var e *apiError
	switch {
	case cause == errSilent && x.fresh: //nolint:errorlint // a cause is never wrapped
		kind = kindTimeout
		e = errEngine(http.StatusGatewayTimeout, "engine_timeout", model, fmt.Sprintf("sent no response within %s", x.settings.firstByte))
	case cause == errSilent: //nolint:errorlint // a cause is never wrapped
		kind = kindTimeout
		e = errEngine(http.StatusGatewayTimeout, "engine_timeout", model, fmt.Sprintf("sent nothing for %s in the middle of its response", x.g.cfg.Timeouts.StreamIdle))
	case !x.fresh:
		kind = kindCut
		e = errEngine(http.StatusBadGateway, "engine_cut_off", model, "did not finish its response")
	case isReset(err):
		kind = kindReset
		x.countEnd(err)
		e = errEngine(http.StatusBadGateway, "engine_gone", model, "closed the connection before it responded")
	default:
		e = errEngine(http.StatusBadGateway, "engine_protocol_error", model, "sent a response that is not valid HTTP")
	}
	x.blame(kind, err)
	return failedThere, e
}

// faultOf is what an error of that kind says of the engine. It may have closed a kept connection
// because it was idle, so that one such end is not yet a reason to avoid it: an engine that has
// died refuses the next connection.
func faultOf(kind string, err error) balance.Fault {
	var failed *upstream.Error
	if kind == kindReset && errors.As(err, &failed) && failed.Kept {
		return balance.Cut
	}
	return faults[kind]
}

func isReset(err error) bool {
	var op *net.OpError // also a host that was switched off: ETIMEDOUT, EHOSTUNREACH
	return errors.As(err, &op) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// closed tells whether the engine's end closed the connection. A host that is gone closes none.
func closed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// countEnd counts an end that may be the request's fault: the engine closed the connection after it got a
// part of the request. A kept connection may have been closed because it was idle, so it counts only if the
// engine turns out not to run.
func (x *attempt) countEnd(err error) {
	var failed *upstream.Error
	sent := errors.As(err, &failed)
	if !closed(err) || sent && failed.Stage == upstream.NotWritten {
		return
	}
	x.ended++
	if sent && failed.Kept {
		x.doubtful = append(x.doubtful, x.engine.Addr)
	}
}

// endsEngines tells whether every attempt ended its engine. A doubtful end counts if the engine refuses
// connections now.
func (x *exchange) endsEngines() bool {
	if most := x.g.cfg.Retries.Attempts; most == 1 || x.ended < most || x.ended != x.attempts {
		return false
	}
	ctx, cancel := context.WithTimeout(x.ctx, x.g.cfg.Timeouts.Connect)
	defer cancel()
	for _, addr := range x.doubtful {
		var d net.Dialer
		c, err := d.DialContext(ctx, "tcp", addr)
		if err == nil {
			c.Close()
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return false
		}
	}
	return true
}

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

var faults = map[string]balance.Fault{
	kindDial: balance.Dial, kindTimeout: balance.Timeout, kindReset: balance.Reset, kindProtocol: balance.Protocol,
	kindContent: balance.Content, kindStatus: balance.Status, kindCut: balance.Cut,
}

// countFault counts a fault of the engine, and tells whether the engine is avoided from
// now on and was not before.
func (x *attempt) countFault(kind string, err error) (news bool) {
	x.g.metrics.upstreamErrors.WithLabelValues(x.label, x.engine.Replica, kind).Inc()
	return x.grant.Failed(faultOf(kind, err))
}

// givenUp notes that the client waited no longer, which is the engine's fault where it
// answers nobody at all.
func (x *attempt) givenUp() {
	patience := x.settings.firstByte
	if x.fresh && x.grant.GivenUp(patience) {
		x.g.metrics.upstreamErrors.WithLabelValues(x.label, x.engine.Replica, kindTimeout).Inc()
		x.g.log.Warn("engine is unresponsive: every recent client timed out before the first byte", "model", x.head.Model, "engine", x.engine.ServiceID,
			"address", x.engine.Addr, "for_at_least", patience)
	}
}

// blame counts and logs a fault of the engine.
func (x *attempt) blame(kind string, err error) {
	x.countFault(kind, err)
	x.g.log.Warn("engine failed a request", "id", x.id, "model", x.head.Model, "engine", x.engine.ServiceID,
		"address", x.engine.Addr, "kind", kind, "after", time.Since(x.began), "sent", x.client.sent, "error", err)
}
