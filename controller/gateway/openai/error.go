package openai

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
)

// API is a family of routes whose errors and streams have one form.
type API uint8

const (
	// OpenAI is of all routes but those below.
	OpenAI API = iota
	// Responses is /v1/responses, whose events have types.
	Responses
	// Messages is Anthropic's /v1/messages.
	Messages
)

// Error is an error for clients.
type Error struct {
	// Type is of OpenAI's errors, as "invalid_request_error"; Anthropic's follow from the status.
	Type string
	// Code and Param are empty where there is none.
	Code, Param string
	Message     string
}

// Object returns the error as a JSON object without a line break, in the form that the libraries of
// an API take for their own.
func (e *Error) Object(api API, status int) []byte {
	type object struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    *string `json:"code"`
	}
	o := object{Message: e.Message, Type: e.Type}
	if e.Param != "" {
		o.Param = &e.Param
	}
	if e.Code != "" {
		o.Code = &e.Code
	}
	var v any
	switch api {
	case Messages:
		o.Type = anthropicType(status)
		v = struct {
			Type  string `json:"type"`
			Error object `json:"error"`
		}{"error", o}
	case OpenAI, Responses:
		v = struct {
			Error object `json:"error"`
		}{o}
	}
	b, err := json.Marshal(v)
	if err != nil { // strings always marshal
		panic(err)
	}
	return b
}

// anthropicType is Anthropic's type of the errors with a status.
func anthropicType(status int) string {
	switch status {
	case 401:
		return "authentication_error"
	case 403:
		return "permission_error"
	case 404:
		return "not_found_error"
	case 413:
		return "request_too_large"
	case 429:
		return "rate_limit_error"
	case 503, 529:
		return "overloaded_error"
	}
	if status < 500 {
		return "invalid_request_error"
	}
	return "api_error"
}

// ReadError reads an engine's error: of OpenAI's and Anthropic's form the member "error", of FastAPI's
// the member "detail", or the flat form of vLLM and SGLang. What the engine does not say is empty. ok is
// false if the text is not an error, or one of another form.
func ReadError(text []byte) (e Error, ok bool) {
	var v struct{ Error, Detail json.RawMessage }
	if json.Unmarshal(text, &v) != nil {
		return Error{}, false
	}
	inner := v.Error
	if Null(inner) {
		inner = v.Detail
	}
	if Null(inner) {
		e, ok = errorOf(text)
		return e, ok && e.Message != ""
	}
	if message := cmp.Or(stringOf(inner), invalidFields(inner)); message != "" {
		return Error{Message: message}, true
	}
	e, ok = errorOf(inner)
	return e, ok && e != Error{}
}

// errorOf reads the members of an error. A code that is a number, as vLLM's, becomes a string.
func errorOf(object []byte) (Error, bool) {
	var v struct{ Message, Type, Param, Code json.RawMessage }
	if json.Unmarshal(object, &v) != nil {
		return Error{}, false
	}
	var number json.Number
	if json.Unmarshal(v.Code, &number) != nil {
		number = ""
	}
	return Error{Message: stringOf(v.Message), Type: stringOf(v.Type), Param: stringOf(v.Param), Code: cmp.Or(stringOf(v.Code), number.String())}, true
}

// stringOf is a JSON string's text, empty of anything else.
func stringOf(raw json.RawMessage) (s string) {
	if json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return s
}

// invalidFields is what FastAPI says of the fields of a request, empty if it is anything else.
func invalidFields(raw json.RawMessage) string {
	var fields []struct {
		Loc []any
		Msg string
	}
	if json.Unmarshal(raw, &fields) != nil {
		return ""
	}
	var said []string
	for _, f := range fields {
		if f.Msg == "" {
			continue
		}
		path := make([]string, len(f.Loc))
		for i, part := range f.Loc {
			path[i] = fmt.Sprint(part)
		}
		said = append(said, strings.Join(path, ".")+": "+f.Msg)
	}
	return strings.Join(said, "; ")
}

// ErrorEvent makes an event of a stream of an error object. Libraries of the Responses API make an
// exception of the member "error".
func ErrorEvent(api API, object []byte) []byte {
	name := ""
	switch api {
	case Messages:
		name = "event: error\n"
	case Responses:
		name = "event: error\n"
		object = append([]byte(`{"type":"error",`), object[1:]...)
	case OpenAI:
	}
	return append(append([]byte(name+"data: "), object...), "\n\n"...)
}

// StreamEnd is what ends a stream of an API behind an error, empty where the error does.
func StreamEnd(api API) []byte {
	if api == OpenAI {
		return []byte("data: [DONE]\n\n")
	}
	return nil
}
