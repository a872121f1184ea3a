package compose

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"remuda/controller/pipeline"
)

// Types of errors in OpenAI's form.
const (
	typeRequest = "invalid_request_error"
	typeServer  = "server_error"
)

// failure is an error in OpenAI's form, with its HTTP status.
type failure struct {
	status  int
	typ     string
	code    string
	message string
	// retryAfter is the header's value, empty for none.
	retryAfter string
	// noRetry tells client libraries that retry by themselves not to.
	noRetry bool
}

func (f *failure) Error() string { return f.message }

// errorObject is OpenAI's error.
type errorObject struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

// body is the failure as JSON, in one line.
func (f *failure) body() []byte {
	var v struct {
		Error errorObject `json:"error"`
	}
	v.Error = errorObject{Message: f.message, Type: f.typ}
	if f.code != "" {
		v.Error.Code = &f.code
	}
	return mustJSON(v)
}

func badRequest(format string, args ...any) *failure {
	return &failure{status: http.StatusBadRequest, typ: typeRequest, code: "invalid_request", message: fmt.Sprintf(format, args...)}
}

// errClientGone: there is nobody to answer to.
var errClientGone = errors.New("the client disconnected")

// errTooSlow: the client's own time for the first byte is over.
var errTooSlow = errors.New("no response within the client's X-Remuda-Timeout")

// Ended is a cause of the end of a request's context that is no fault of a step: it says
// itself what the client is told.
type Ended interface {
	error
	Ended() (status int, code string)
}

// failed makes an answer of what Run says, nil where the client is gone.
func failed(name string, err error) *failure {
	f := &failure{status: http.StatusInternalServerError, typ: typeServer, code: "pipeline_failed"}
	var of *failure
	var end Ended
	switch {
	case errors.As(err, &end):
		f.status, f.code = end.Ended()
	case errors.Is(err, errClientGone), errors.Is(err, context.Canceled):
		return nil
	case errors.As(err, &of):
		*f = *of
	case errors.Is(err, errTooSlow):
		f.status, f.code = http.StatusServiceUnavailable, "pipeline_timeout"
	case errors.Is(err, pipeline.ErrDeadline), errors.Is(err, context.DeadlineExceeded):
		f.status, f.code = http.StatusGatewayTimeout, "pipeline_timeout"
	case errors.Is(err, pipeline.ErrInput):
		f.status, f.typ, f.code = http.StatusBadRequest, typeRequest, "invalid_request"
	case errors.Is(err, pipeline.ErrExpression), errors.Is(err, pipeline.ErrNoOutput):
		f.code = "pipeline_expression"
	}
	f.message = fmt.Sprintf("pipeline %q: %v", name, err)
	return f
}

// stepStatus is the status of the whole answer where a step's is this one: what a client can
// do something about stays what it is. A model that a step calls and that does not exist is
// no fault of the client's.
func stepStatus(status int) int {
	switch status {
	case http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestEntityTooLarge,
		http.StatusUnprocessableEntity, http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return status
	}
	return http.StatusBadGateway
}

// stepFailure is a step's answer that is an error.
func stepFailure(status int, h http.Header, body []byte) *failure {
	f := &failure{status: stepStatus(status), typ: typeServer, code: "step_failed", retryAfter: h.Get(headerRetry), noRetry: h.Get(headerShouldRetry) == "false"}
	f.message = fmt.Sprintf("the response has status %d", status)
	var v struct {
		Error json.RawMessage `json:"error"`
	}
	if json.Unmarshal(body, &v) == nil {
		f.take(v.Error)
	}
	return f
}

// take fills in what an engine or the gateway says of an error.
func (f *failure) take(raw json.RawMessage) {
	var e struct {
		Message string          `json:"message"`
		Type    string          `json:"type"`
		Code    json.RawMessage `json:"code"`
	}
	if json.Unmarshal(raw, &e) != nil {
		var text string
		if json.Unmarshal(raw, &text) == nil && text != "" {
			f.message = text
		}
		return
	}
	if e.Message != "" {
		f.message = e.Message
	}
	if e.Type != "" {
		f.typ = e.Type
	}
	var code string
	if json.Unmarshal(e.Code, &code) == nil && code != "" {
		f.code = code
	}
}

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // texts, numbers and JSON that was read are always JSON
	}
	return b
}
