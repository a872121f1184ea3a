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
	"remuda/controller/gateway/dispatch"
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
func (x *exchange) acquire() (*dispatch.Grant, *apiError) {
	began := time.Now()
	if x.asking.IsZero() {
		x.asking = began
	}
	if e := x.awaitSignal(x.g.dispatcher.Known(), began); e != nil {
		return nil, e
	}
	queued := x.want.Queued
	grant, err := x.g.dispatcher.Acquire(x.ctx, &x.want, x)
	if x.want.Queued > queued {
		x.label = x.head.Model
		x.span.Child(tracing.SpanQueue, began).End(time.Now())
	}
	if err != nil {
		return nil, x.refused(err)
	}
	return grant, nil
}

var _ dispatch.Patience = (*exchange)(nil)

// Until is when the request has waited for long enough.
func (x *exchange) Until(s dispatch.Standing) time.Time {
	wait := x.settings.wait
	if !s.Managed && !s.Usable {
		wait = min(wait, x.g.cfg.Queue.Restart)
	}
	at := x.asking.Add(wait)
	if !x.deadline.IsZero() && !x.client.committed && x.deadline.Before(at) {
		at = x.deadline
	}
	return at
}

// Next is when a client that streams is to be told where it stands, however often the request has
// been offered to engines meanwhile; of another one it is looked each second whether there is hope.
func (x *exchange) Next() time.Time {
	if !x.streams() {
		return time.Now().Add(time.Second)
	}
	since, every := x.asking, x.g.cfg.Queue.CommentEvery
	switch {
	case x.client.told.After(since):
		since = x.client.told
	case !x.client.held && !x.client.committed:
		every = x.g.cfg.Queue.CommentAfter
	}
	return since.Add(every)
}

// Look tells a client that streams where it stands, and ends the waiting of one that cannot be told
// where there is no hope.
func (x *exchange) Look(s dispatch.Standing) error {
	var e *apiError
	if x.streams() {
		e = x.comment(s)
	} else {
		e = x.hopeless(s)
	}
	if e == nil {
		return nil
	}
	return e
}

// hopelessAfter is for how long a model must have been without a place before requests that
// could be told nothing meanwhile are not held for it: nodes and other models come and go.
const hopelessAfter = 30 * time.Second

// hopeless returns the answer to a request that cannot be served within its wait, nil where
// it may be.
func (x *exchange) hopeless(s dispatch.Standing) *apiError {
	p, now := s.Problem, time.Now()
	switch {
	case p.State == api.QueueLoadFailed && p.RetryAt.After(x.Until(s)):
		return errProblem(x.head.Model, p, min(p.RetryAt.Sub(now), dispatch.MaxRetryAfter))
	case p.State == api.QueueCantPlace && now.Sub(p.Since) > hopelessAfter:
		return errProblem(x.head.Model, p, x.g.cfg.RetryAfter)
	}
	return nil
}

// comment tells a streaming client where it stands.
func (x *exchange) comment(s dispatch.Standing) *apiError {
	x.client.told = time.Now()
	x.client.hold()
	line := fmt.Appendf(nil, ": remuda state=%s position=%d waited=%s", s.State, s.Position, time.Since(x.asking).Round(time.Second))
	if s.Problem.Message != "" {
		line = fmt.Appendf(line, " reason=%q", s.Problem.Message)
	}
	line = append(line, '\n')
	if !x.client.committed { // else an event may be open, which a blank line would end
		line = append(line, '\n')
	}
	return x.client.event(line)
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
		x.want.Queued += time.Since(began)
		return errStarting(x.g.missing(), x.g.cfg.RetryAfter)
	}
}

// refused turns an error of the dispatcher into an answer.
func (x *exchange) refused(err error) *apiError {
	x.label = x.head.Model
	var own *apiError
	switch {
	case errors.As(err, &own): // of Look
		return own
	case errors.Is(err, dispatch.ErrWaited):
		return x.waitedEnough()
	case x.ctx.Err() != nil:
		return x.left()
	case errors.Is(err, dispatch.ErrFull):
		x.g.metrics.refused.WithLabelValues(x.label).Inc()
		return &apiError{status: http.StatusTooManyRequests, typ: typeLimit, code: "queue_full", param: "model",
			retryAfter: x.g.dispatcher.RetryAfter(x.head.Model, x.g.cfg.RetryAfter),
			message:    fmt.Sprintf("the queue of model %s is full; retry after the time in the Retry-After header", shorten(x.head.Model))}
	case errors.Is(err, balance.ErrUnknownModel), errors.Is(err, balance.ErrNoList):
		x.label = unknownModel // also of one that was known until now
	}
	return x.g.noEngine(err, x.key, x.head.Model)
}

// waitedEnough is the answer to a request that has waited for as long as it may.
func (x *exchange) waitedEnough() *apiError {
	s := x.g.dispatcher.Standing(&x.want, false)
	retry := x.g.dispatcher.RetryAfter(x.head.Model, x.g.cfg.RetryAfter)
	x.g.metrics.queueTimeouts.WithLabelValues(x.label).Inc()
	waited := time.Since(x.asking).Round(time.Millisecond)
	if s.Usable {
		why := "were busy for " + waited.String()
		if s.Failing {
			why = fmt.Sprintf("failed requests recently and are being avoided; the request waited for %s", waited)
		}
		return &apiError{status: http.StatusServiceUnavailable, typ: typeServer, code: "queue_timeout", param: "model", retryAfter: retry,
			message: fmt.Sprintf("all engines of model %s %s; retry after the time in the Retry-After header", shorten(x.head.Model), why)}
	}
	if s.Problem.State != "" {
		return errProblem(x.head.Model, s.Problem, retry)
	}
	return errNoEngine(x.head.Model, s.State, waited, retry)
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
	if x.failures > 1 {
		pause := retryPause << min(x.failures-2, 3)
		if e := x.rest(pause*3/4 + rand.N(pause/2)); e != nil {
			return e
		}
	}
	for {
		ok, at := x.g.dispatcher.Retry(x.head.Model)
		if ok {
			x.g.metrics.retries.WithLabelValues(x.label).Inc()
			return nil
		}
		if at.After(x.Until(x.g.dispatcher.Standing(&x.want, false))) {
			x.g.metrics.budgetSpent.WithLabelValues(x.label).Inc()
			return &apiError{status: http.StatusServiceUnavailable, typ: typeServer, code: "retry_budget_spent", param: "model", retryAfter: x.g.cfg.RetryAfter,
				message: fmt.Sprintf("the engines of model %s fail too many requests, so the gateway does not retry this one; retry after the time in the Retry-After header", shorten(x.head.Model))}
		}
		if e := x.rest(time.Until(at)); e != nil {
			return e
		}
	}
}

// rest waits for d, as long as somebody waits for the answer.
func (x *exchange) rest(d time.Duration) *apiError {
	err := x.g.dispatcher.Rest(x.ctx, &x.want, x, d)
	var own *apiError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &own):
		return own
	default:
		return x.left()
	}
}

// left is the "error" of a request whose context has ended.
func (x *exchange) left() *apiError {
	switch cause := context.Cause(x.ctx); {
	case errors.Is(cause, errStopping):
		return &apiError{status: http.StatusServiceUnavailable, typ: typeServer, code: "gateway_stopping", close: true, final: true, retryAfter: x.g.cfg.RetryAfter,
			message: "the gateway is stopping; retry after the time in the Retry-After header"}
	case errors.Is(cause, errKilled):
		return &apiError{status: http.StatusForbidden, typ: typeRequest, code: "request_killed", final: true,
			message: "an operator ended the request; do not retry it"}
	default:
		return errClientGone()
	}
}
