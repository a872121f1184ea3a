package openai

import "encoding/json"

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
	case 503:
		return "overloaded_error"
	}
	if status < 500 {
		return "invalid_request_error"
	}
	return "api_error"
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
