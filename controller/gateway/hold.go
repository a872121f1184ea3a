package gateway

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"remuda/controller/api"
	"remuda/controller/gateway/balance"
	"remuda/controller/gateway/compose"
	"remuda/controller/gateway/tracing"
)

// startWait bounds how long a request waits for the first list of engines: a gateway that
// starts has one within moments, or something is wrong.
const startWait = 5 * time.Second

// Causes of the end of a request's context.
var (
	// errStopping: the drain is over.
	errStopping error = &ended{text: "the gateway is stopping; retry the request", code: "gateway_stopping"}
	// errKilled: an operator ended the request.
	errKilled error = &ended{text: "an operator ended the request; do not retry it", code: "request_killed"}
)

// ended is why a request's context was ended, for a client that is still there.
type ended struct{ text, code string }

var _ compose.Ended = (*ended)(nil)

// Error is the reason.
func (e *ended) Error() string { return e.text }

// Ended implements compose.Ended.
func (e *ended) Ended() (status int, code string) { return http.StatusServiceUnavailable, e.code }

// acquire waits for an engine.
func (x *exchange) acquire(again bool) (*lease, *apiError) {
	began := time.Now()
	if x.asking.IsZero() {
		x.asking = began
	}
	if e := x.awaitList(began); e != nil {
		return nil, e
	}
	l, err := x.g.roster.ask(&x.ticket, again)
	if errors.Is(err, balance.ErrUnknownModel) && x.g.follower != nil {
		// The controller may know it.
		unheard := x.awaitSignal(x.g.follower.first, began)
		if unheard != nil && unheard.final {
			return nil, unheard
		}
		if l, err = x.g.roster.ask(&x.ticket, again); unheard != nil && errors.Is(err, balance.ErrUnknownModel) {
			return nil, errNoState(x.head.Model, x.g.cfg.RetryAfter)
		}
	}
	if err != nil {
		return nil, x.refused(err)
	}
	if l != nil {
		return l, nil
	}
	defer func() {
		now := time.Now()
		x.queued += now.Sub(began)
		x.span.Child(tracing.SpanQueue, began).End(now)
	}()
	x.label, x.waiting = x.head.Model, true
	return x.await(x.asking)
}

// await waits until the ticket has an outcome. began is since when the request waits in all.
func (x *exchange) await(began time.Time) (*lease, *apiError) {
	limit := time.NewTimer(time.Until(x.until(began)))
	defer limit.Stop()
	comments := x.comments()
	defer comments.Stop()
	var look <-chan time.Time // never, if the client streams
	if !x.streams() {
		every := time.NewTicker(time.Second)
		defer every.Stop()
		look = every.C
	}
	for {
		select {
		case <-comments.C:
			x.comment(began)
			comments.Reset(x.g.cfg.Queue.CommentEvery)
		case <-look:
			if e := x.hopeless(began); e != nil {
				x.waiting = false
				x.g.roster.abandon(&x.ticket, false)
				return nil, e
			}
		case o := <-x.ticket.got:
			x.waiting = false
			return x.outcome(o)
		case <-x.ctx.Done():
			x.waiting = false
			x.g.roster.abandon(&x.ticket, true)
			return nil, x.left()
		case <-limit.C:
			// Engines may have come or gone since, and with them the limit.
			if rest := time.Until(x.until(began)); rest > 0 {
				limit.Reset(rest)
				continue
			}
			return x.waitedEnough(began)
		}
	}
}

func (x *exchange) outcome(o outcome) (*lease, *apiError) {
	if o.err != nil {
		return nil, x.refused(o.err)
	}
	return o.lease, nil
}

// streams tells whether the client can be told in a stream that it has to wait.
func (x *exchange) streams() bool {
	return x.head.Stream && x.route != routeEmbeddings && x.r.ProtoAtLeast(1, 1)
}

// comments ticks when the client is to be told again where it stands, however often it has
// been offered to engines meanwhile; never, unless it streams.
func (x *exchange) comments() *time.Timer {
	if !x.streams() {
		never := time.NewTimer(time.Hour)
		never.Stop()
		return never
	}
	since, every := x.asking, x.g.cfg.Queue.CommentEvery
	switch {
	case x.told.After(since):
		since = x.told
	case !x.held && !x.committed:
		every = x.g.cfg.Queue.CommentAfter
	}
	return time.NewTimer(time.Until(since.Add(every)))
}

// until is when the request has waited for long enough.
func (x *exchange) until(began time.Time) time.Time {
	s := x.g.roster.standing(&x.ticket, false)
	wait := x.settings.wait
	if !s.managed && !s.usable {
		wait = min(wait, x.g.cfg.Queue.Restart)
	}
	at := began.Add(wait)
	if !x.deadline.IsZero() && !x.committed && x.deadline.Before(at) {
		at = x.deadline
	}
	return at
}

// waitedEnough gives a waiting request up.
func (x *exchange) waitedEnough(began time.Time) (*lease, *apiError) {
	s := x.g.roster.standing(&x.ticket, false)
	retry := x.g.roster.retryAfter(x.head.Model, x.g.cfg.RetryAfter)
	x.waiting = false
	x.g.roster.abandon(&x.ticket, false)
	x.g.metrics.queueTimeouts.WithLabelValues(x.label).Inc()
	waited := time.Since(began).Round(time.Millisecond)
	if s.usable {
		why := "were busy for " + waited.String()
		if s.failing {
			why = fmt.Sprintf("failed requests recently and are being avoided; the request waited for %s", waited)
		}
		return nil, &apiError{status: http.StatusServiceUnavailable, typ: typeServer, code: "queue_timeout", param: "model", retryAfter: retry,
			message: fmt.Sprintf("all engines of model %s %s; retry after the time in the Retry-After header", shorten(x.head.Model), why)}
	}
	if s.problem.State != "" {
		return nil, errProblem(x.head.Model, s.problem, retry)
	}
	return nil, errNoEngine(x.head.Model, s.state, waited, retry)
}

// hopelessAfter is for how long a model must have been without a place before requests that
// could be told nothing meanwhile are not held for it: nodes and other models come and go.
const hopelessAfter = 30 * time.Second

// hopeless returns the answer to a request that cannot be served within its wait, nil where
// it may be. One that streams waits all the same: its comments say why.
func (x *exchange) hopeless(began time.Time) *apiError {
	p := x.g.roster.standing(&x.ticket, false).problem
	now := time.Now()
	switch {
	case p.State == api.QueueLoadFailed && p.RetryAt.After(x.until(began)):
		return errProblem(x.head.Model, p, min(p.RetryAt.Sub(now), maxRetryAfter))
	case p.State == api.QueueCantPlace && now.Sub(p.Since) > hopelessAfter:
		return errProblem(x.head.Model, p, x.g.cfg.RetryAfter)
	}
	return nil
}

// comment tells a streaming client where it stands.
func (x *exchange) comment(began time.Time) {
	x.told = time.Now()
	s := x.g.roster.standing(&x.ticket, true)
	if !x.held && !x.committed {
		x.held = true
		h := x.w.Header()
		h["Content-Type"] = []string{contentSSE}
		h["Cache-Control"] = []string{"no-cache"}
		h["X-Accel-Buffering"] = []string{"no"} // for an nginx in front
		h[headerVia] = []string{viaRemuda}
		x.status = http.StatusOK
		x.w.WriteHeader(x.status)
	}
	line := fmt.Appendf(nil, ": remuda state=%s position=%d waited=%s", s.state, s.position, time.Since(began).Round(time.Second))
	if s.problem.Message != "" {
		line = fmt.Appendf(line, " reason=%q", s.problem.Message)
	}
	line = append(line, '\n')
	if !x.committed { // else an event may be open, which a blank line would end
		line = append(line, '\n')
	}
	x.send(line)
	x.flush()
}

// awaitList waits for the first list of engines.
func (x *exchange) awaitList(began time.Time) *apiError {
	return x.awaitSignal(x.g.roster.known, began)
}

// awaitSignal waits for something that comes within moments of a gateway's start.
func (x *exchange) awaitSignal(ready <-chan struct{}, began time.Time) *apiError {
	select {
	case <-ready:
		return nil
	default:
	}
	wait := startWait - time.Since(began)
	if !x.deadline.IsZero() {
		wait = min(wait, time.Until(x.deadline))
	}
	limit := time.NewTimer(wait)
	defer limit.Stop()
	select {
	case <-ready:
		return nil
	case <-x.ctx.Done():
		e := x.left()
		e.final = true
		return e
	case <-limit.C:
		x.queued += time.Since(began)
		return errNoList(x.g.cfg.RetryAfter)
	}
}

// refused turns an error of the roster into an answer.
func (x *exchange) refused(err error) *apiError {
	x.label = x.head.Model
	if errors.Is(err, balance.ErrUnknownModel) || errors.Is(err, balance.ErrNoList) {
		x.label = unknownModel // also of one that was known until now
	}
	if isFull(err) {
		x.g.metrics.refused.WithLabelValues(x.label).Inc()
		return &apiError{status: http.StatusTooManyRequests, typ: typeLimit, code: "queue_full", param: "model",
			retryAfter: x.g.roster.retryAfter(x.head.Model, x.g.cfg.RetryAfter),
			message:    fmt.Sprintf("the queue of model %s is full; retry after the time in the Retry-After header", shorten(x.head.Model))}
	}
	return x.g.noEngine(err, x.head.Model)
}

// retryPause is the pause before a request that two engines have failed is tried again,
// a quarter more or less; it doubles each time. Engines that die together, as on a node
// that goes down, are found dead after it, and a dead engine is waited for. Until the
// kernel has torn a killed process down it takes connections: on a busy machine some had
// not died 0.4 s after the first one.
const retryPause = time.Second

// mayRetry waits until the request may be tried again: the first time at once, later after
// a pause, and when the model's budget has one more attempt.
func (x *exchange) mayRetry() *apiError {
	if x.asking.IsZero() {
		x.asking = time.Now()
	}
	began := x.asking
	if x.failures > 1 {
		pause := retryPause << min(x.failures-2, 3)
		if e := x.rest(pause*3/4+rand.N(pause/2), began); e != nil {
			return e
		}
	}
	for {
		ok, at := x.g.roster.retry(x.head.Model)
		if ok {
			x.g.metrics.retries.WithLabelValues(x.label).Inc()
			return nil
		}
		end := x.until(began)
		if at.After(end) {
			x.g.metrics.budgetSpent.WithLabelValues(x.label).Inc()
			return &apiError{status: http.StatusServiceUnavailable, typ: typeServer, code: "retry_budget_spent", param: "model", retryAfter: x.g.cfg.RetryAfter,
				message: fmt.Sprintf("the engines of model %s fail too many requests, so the gateway does not retry this one; retry after the time in the Retry-After header", shorten(x.head.Model))}
		}
		if e := x.rest(time.Until(at), began); e != nil {
			return e
		}
	}
}

// rest waits for d, as long as somebody waits for the answer.
func (x *exchange) rest(d time.Duration, began time.Time) *apiError {
	rest := time.NewTimer(min(d, time.Until(x.until(began))))
	defer rest.Stop()
	comments := x.comments()
	defer comments.Stop()
	for {
		select {
		case <-comments.C:
			x.comment(began)
			comments.Reset(x.g.cfg.Queue.CommentEvery)
		case <-rest.C:
			return nil
		case <-x.ctx.Done():
			return x.left()
		}
	}
}

// left is the "error" of a request whose context has ended.
func (x *exchange) left() *apiError {
	switch cause := context.Cause(x.ctx); {
	case errors.Is(cause, errStopping):
		return &apiError{status: http.StatusServiceUnavailable, typ: typeServer, code: "gateway_stopping", close: true, final: true, retryAfter: x.g.cfg.RetryAfter,
			message: "the gateway is stopping; retry after the time in the Retry-After header"}
	case errors.Is(cause, errKilled):
		return &apiError{status: http.StatusServiceUnavailable, typ: typeServer, code: "request_killed", final: true, noRetry: true,
			message: "an operator ended the request; do not retry it"}
	default:
		return errClientGone()
	}
}
