package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"remuda/controller/gateway/balance"
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
	// retryAfter asks the client to come back; 0 says nothing about it.
	retryAfter time.Duration
	// noRetry tells client libraries that retry a 503 by themselves not to.
	noRetry bool
	// close ends the client's connection: its request was not read to the end.
	close bool
	// allow is the Allow header of a 405.
	allow string
	// final: an earlier failure of an engine is not worth telling instead.
	final bool
	// raw is an engine's own error, which is sent as it is.
	raw []byte
}

// Error returns the message, for logs.
func (e *apiError) Error() string { return e.message }

// body returns the error as JSON, without a line break.
func (e *apiError) body() []byte {
	if e.raw != nil {
		var line bytes.Buffer
		if json.Compact(&line, e.raw) == nil { // it may become an event of a stream
			return line.Bytes()
		}
	}
	var v struct {
		Error struct {
			Message string  `json:"message"`
			Type    string  `json:"type"`
			Param   *string `json:"param"`
			Code    *string `json:"code"`
		} `json:"error"`
	}
	v.Error.Message, v.Error.Type = e.message, e.typ
	if e.param != "" {
		v.Error.Param = &e.param
	}
	if e.code != "" {
		v.Error.Code = &e.code
	}
	b, err := json.Marshal(v)
	if err != nil { // strings always marshal
		panic(err)
	}
	return b
}

// write sends the error as the whole answer.
func (e *apiError) write(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	b := e.raw
	if b == nil {
		b = e.body()
	}
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(b)))
	if e.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(e.retryAfter.Seconds()))))
	}
	if e.noRetry {
		h.Set("X-Should-Retry", "false") // the libraries of OpenAI and Anthropic read it
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
		message: fmt.Sprintf("unknown path %s; use /v1/models, /v1/chat/completions, /v1/completions or /v1/embeddings", shorten(path))}
}

func errMethod(method, path, allow string) *apiError {
	return &apiError{status: http.StatusMethodNotAllowed, typ: typeRequest, code: "method_not_allowed", allow: allow,
		message: fmt.Sprintf("%s does not support the method %s; use %s", path, shorten(method), allow)}
}

func errManyFields(fields int) *apiError {
	return &apiError{status: http.StatusRequestHeaderFieldsTooLarge, typ: typeRequest, code: "too_many_headers", close: true,
		message: fmt.Sprintf("the request has %d header fields; send at most %d", fields, maxFields)}
}

func errUnknownModel(model string) *apiError {
	return &apiError{status: http.StatusNotFound, typ: typeRequest, code: "model_not_found", param: "model",
		message: fmt.Sprintf("model %s does not exist; GET /v1/models lists the models", shorten(model))}
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

func errStopped(model string, wait time.Duration) *apiError {
	return &apiError{status: http.StatusServiceUnavailable, typ: typeServer, code: "model_stopped", param: "model", retryAfter: wait, noRetry: true,
		message: fmt.Sprintf("model %s is stopped; ask its operator to start it", shorten(model))}
}

func errNoList(wait time.Duration) *apiError {
	return &apiError{status: http.StatusServiceUnavailable, typ: typeServer, code: "gateway_starting", retryAfter: wait,
		message: "the gateway is starting and has not received the list of engines from Consul, or the state of the controller, yet; retry after the time in the Retry-After header"}
}

func errNoState(model string, wait time.Duration) *apiError {
	return &apiError{status: http.StatusServiceUnavailable, typ: typeServer, code: "gateway_starting", retryAfter: wait,
		message: fmt.Sprintf("the gateway is starting and has not received the list of models from the controller yet, and Consul lists no engine of model %s; retry after the time in the Retry-After header", shorten(model))}
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
