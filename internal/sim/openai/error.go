package openai

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// Error is an error as a client sees it.
type Error struct {
	// Status is the HTTP status, which is also the body's code.
	Status int
	// Type is vLLM's name for the error.
	Type string
	// Param is the request field at fault, if one is.
	Param   string
	Message string
}

// JSON is the response body:
// {"error":{"message":…,"type":…,"param":…,"code":…}}.
func (e *Error) JSON() []byte {
	var param *string
	if e.Param != "" {
		param = &e.Param
	}
	body, err := json.Marshal(map[string]any{"error": struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    int     `json:"code"`
	}{e.Message, e.Type, param, e.Status}})
	if err != nil {
		panic(err) // cannot happen: all fields are text and numbers
	}
	return body
}

// BadRequest is a 400 about one field, or none.
func BadRequest(param, format string, args ...any) *Error {
	return &Error{Status: http.StatusBadRequest, Type: "BadRequestError", Param: param, Message: fmt.Sprintf(format, args...)}
}

// NotFound is the 404 for a model that is not served.
func NotFound(model string) *Error {
	return &Error{
		Status: http.StatusNotFound, Type: "NotFoundError", Param: "model",
		Message: fmt.Sprintf("The model `%s` does not exist.", model),
	}
}

// HTTPError is the answer to what never reached a route's own checks: vLLM
// uses the status text as type and message.
func HTTPError(status int, message string) *Error {
	if message == "" {
		message = http.StatusText(status)
	}
	return &Error{Status: status, Type: http.StatusText(status), Message: message}
}

// Unavailable is a 503.
func Unavailable(format string, args ...any) *Error {
	return &Error{Status: http.StatusServiceUnavailable, Type: "ServiceUnavailableError", Message: fmt.Sprintf(format, args...)}
}

// Internal is a 500.
func Internal(format string, args ...any) *Error {
	return &Error{Status: http.StatusInternalServerError, Type: "InternalServerError", Message: fmt.Sprintf(format, args...)}
}
