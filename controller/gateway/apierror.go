package gateway

import (
	"cmp"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"remuda/controller/gateway/balance"
	"remuda/controller/gateway/openai"
	"remuda/internal/closest"
)

// Types of errors in OpenAI's shape.
const (
	typeRequest = "invalid_request_error"
	typeServer  = "server_error"
	typeLimit   = "rate_limit_error"
)

// apiError is an error in the shape that OpenAI's clients understand.
type apiError struct {
	status  int
	typ     string
	code    string
	param   string
	message string
	// logCode stands for code in the access log and the span if code is empty.
	logCode string
	// retryAfter asks the client to come back; 0 says nothing about it.
	retryAfter time.Duration
	// noRetry tells client libraries that retry by themselves not to.
	noRetry bool
	// close ends the client's connection: its request was not read to the end.
	close bool
	// allow is the Allow header of a 405.
	allow string
	// final: an earlier failure of an engine is not worth telling instead.
	final bool
}

// Error returns the message, for logs.
func (e *apiError) Error() string { return e.message }

// logged returns the code for the access log and the span, which shorten it.
func (e *apiError) logged() string { return cmp.Or(e.code, e.logCode) }

// object returns the error as JSON without a line break, in the form of an API.
func (e *apiError) object(api openai.API) []byte {
	return (&openai.Error{Type: e.typ, Code: e.code, Param: e.param, Message: e.message}).Object(api, e.status)
}

// event returns the error as an event of a stream, which has no Retry-After header any more: the
// message has the time.
func (e *apiError) event(api openai.API) []byte {
	told := *e
	told.message = strings.Replace(e.message, "the time in the Retry-After header", fmt.Sprintf("%d s", e.retrySeconds()), 1)
	return openai.ErrorEvent(api, told.object(api))
}

// retrySeconds is retryAfter in whole seconds.
func (e *apiError) retrySeconds() int { return int(math.Ceil(e.retryAfter.Seconds())) }

// write sends the error as the whole answer, in the form of an API.
func (e *apiError) write(w http.ResponseWriter, r *http.Request, api openai.API) {
	h := w.Header()
	b := e.object(api)
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(b)))
	if e.retryAfter > 0 {
		h.Set(headerRetryAfter, strconv.Itoa(e.retrySeconds()))
	}
	if e.noRetry {
		h.Set(headerShouldRetry, "false") // the libraries of OpenAI and Anthropic read it
	}
	if e.close {
		h.Set("Connection", "close")
	}
	if e.allow != "" {
		h.Set("Allow", e.allow)
	}
	if e.status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Bearer") // RFC 9110 section 15.5.2
	}
	w.WriteHeader(e.status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(b) // a client that is gone needs no error
	}
}

// shorten makes a client's string fit for a message.
func shorten(s string) string {
	const limit = 200
	if len(s) > limit {
		return fmt.Sprintf("%q… (%d bytes)", s[:limit], len(s))
	}
	return strconv.Quote(s)
}

func errNoRoute(path string) *apiError {
	return &apiError{status: http.StatusNotFound, typ: typeRequest, code: "unknown_url",
		message: fmt.Sprintf("unknown path %s; GET /v1/models lists the models, and POST /v1/chat/completions answers a chat", shorten(path))}
}

// errNoSuchRoute is of a route that no engine of the model has.
func errNoSuchRoute(path, model string) *apiError {
	return &apiError{status: http.StatusNotFound, typ: typeRequest, code: "route_not_supported", param: "model",
		message: fmt.Sprintf("the engines of model %s do not have %s; use another model or another route", shorten(model), path)}
}

func errMethod(method, path, allow string) *apiError {
	return &apiError{status: http.StatusMethodNotAllowed, typ: typeRequest, code: "method_not_allowed", allow: allow,
		message: fmt.Sprintf("%s does not support the method %s; use %s", path, shorten(method), allow)}
}

func errManyFields(fields int) *apiError {
	return &apiError{status: http.StatusRequestHeaderFieldsTooLarge, typ: typeRequest, code: "too_many_headers", close: true,
		message: fmt.Sprintf("the request has %d header fields; send at most %d", fields, maxFields)}
}

// errUnknownModel suggests the one of the names that the model's may have been mistyped for.
func errUnknownModel(model string, names []string) *apiError {
	hint := ""
	if near := closest.Word(model, names); near != "" {
		hint = fmt.Sprintf(" (did you mean %s?)", shorten(near))
	}
	return &apiError{status: http.StatusNotFound, typ: typeRequest, code: "model_not_found", param: "model",
		message: fmt.Sprintf("model %s does not exist%s; GET /v1/models lists the models", shorten(model), hint)}
}

// errNoEngine is for a request that has waited for so long.
func errNoEngine(model, state string, waited, wait time.Duration) *apiError {
	return &apiError{status: http.StatusServiceUnavailable, typ: typeServer, code: "model_unavailable", param: "model", retryAfter: wait,
		message: fmt.Sprintf("model %s had no engine that can serve for %s (state: %s); retry after the time in the Retry-After header", shorten(model), waited, state)}
}

// errProblem says why a model has no engine; its code is the state that waiting clients see.
func errProblem(model string, p balance.Problem, wait time.Duration) *apiError {
	return &apiError{status: http.StatusServiceUnavailable, typ: typeServer, code: p.State, param: "model", retryAfter: wait,
		message: fmt.Sprintf("model %s has no engine that can serve: %s; retry after the time in the Retry-After header", shorten(model), p.Message)}
}

// errStopped has a status that client libraries do not retry, unlike 503.
func errStopped(model string) *apiError {
	return &apiError{status: http.StatusNotFound, typ: typeRequest, code: "model_stopped", param: "model",
		message: fmt.Sprintf("model %s is stopped; ask its operator to start it", shorten(model))}
}

// errStarting is of a gateway that has not got what it needs to serve.
func errStarting(missing string, wait time.Duration) *apiError {
	return &apiError{status: http.StatusServiceUnavailable, typ: typeServer, code: "gateway_starting", retryAfter: wait,
		message: fmt.Sprintf("the gateway is starting and waits for %s; retry after the time in the Retry-After header", missing)}
}

// errClientGone is the error of a request whose client has disconnected.
func errClientGone() *apiError {
	return &apiError{status: statusClientGone, message: "the client disconnected", final: true}
}

// errEngine is an engine's fault before anything was sent to the client.
func errEngine(status int, code, model, what string) *apiError {
	return &apiError{status: status, typ: typeServer, code: code,
		message: fmt.Sprintf("an engine of model %s %s; retry the request", shorten(model), what)}
}

// errEndsEngines is of a request on which engines closed the connection each time: sent again, it may end
// more of them.
func errEndsEngines(model string, times int64) *apiError {
	return &apiError{status: http.StatusBadGateway, typ: typeServer, code: "request_ends_engines", noRetry: true,
		message: fmt.Sprintf("engines of model %s closed the connection %d times when they had this request; change the request, or ask the gateway's operator", shorten(model), times)}
}
