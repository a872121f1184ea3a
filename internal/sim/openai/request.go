package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"

	"remuda/internal/sim/text"
)

// CompletionRequest is the body of /v1/completions.
type CompletionRequest struct {
	Sampling
	Prompt Input   `json:"prompt"`
	Echo   *bool   `json:"echo"`
	Suffix *string `json:"suffix"`
	BestOf *int    `json:"best_of"`
}

// DecodeCompletion reads and checks a completion request. Its MaxTokens is
// never nil.
func DecodeCompletion(body []byte) (*CompletionRequest, *Error) {
	var r CompletionRequest
	if err := Decode(body, &r); err != nil {
		return nil, err
	}
	if r.MaxTokens == nil {
		sixteen := 16 // OpenAI's default
		r.MaxTokens = &sixteen
	}
	if err := r.Check(); err != nil {
		return nil, err
	}
	// Zero tokens make sense only where the prompt is echoed.
	if least := 1 - toInt(Or(r.Echo, false)); *r.MaxTokens < least {
		return nil, BadRequest("max_tokens", "max_tokens must be at least %d, got %d.", least, *r.MaxTokens)
	}
	if Or(r.Suffix, "") != "" {
		return nil, BadRequest("suffix", "suffix is not currently supported")
	}
	if b := Or(r.BestOf, 1); b != 1 && b != Or(r.N, 1) {
		return nil, BadRequest("best_of", "best_of is not supported, got %d.", b)
	}
	if r.TopLogprobs != nil {
		return nil, BadRequest("top_logprobs", "top_logprobs is for chats only: set logprobs to a number.")
	}
	if r.Logprobs != nil && string(r.Logprobs) != "null" {
		n := 0
		if json.Unmarshal(r.Logprobs, &n) != nil {
			return nil, BadRequest("logprobs", "logprobs: must be an integer, got %s", r.Logprobs)
		}
		if n < 0 || n > maxLogprobs {
			return nil, BadRequest("logprobs", "logprobs must be at least 0 and at most %d, got %d.", maxLogprobs, n)
		}
		r.Top = &n
	}
	if err := r.Prompt.Check("prompt"); err != nil {
		return nil, err
	}
	return &r, nil
}

func toInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// EmbeddingRequest is the body of /v1/embeddings.
type EmbeddingRequest struct {
	Model          *string `json:"model"`
	Input          Input   `json:"input"`
	EncodingFormat *string `json:"encoding_format"`
	Dimensions     *int    `json:"dimensions"`
	User           *string `json:"user"`
}

// DecodeEmbedding reads and checks an embedding request.
func DecodeEmbedding(body []byte) (*EmbeddingRequest, *Error) {
	var r EmbeddingRequest
	if err := Decode(body, &r); err != nil {
		return nil, err
	}
	if f := Or(r.EncodingFormat, "float"); f != "float" && f != "base64" {
		return nil, BadRequest("encoding_format", "encoding_format must be \"float\" or \"base64\", got %q.", f)
	}
	if d := Or(r.Dimensions, text.EmbeddingDim); d < 1 || d > text.EmbeddingDim {
		return nil, BadRequest("dimensions", "dimensions must be at least 1 and at most %d, got %d.", text.EmbeddingDim, d)
	}
	if err := r.Input.Check("input"); err != nil {
		return nil, err
	}
	return &r, nil
}

// TokenizeRequest is the body of /tokenize: a prompt or a chat.
type TokenizeRequest struct {
	ChatPrompt
	Model  *string `json:"model"`
	Prompt *string `json:"prompt"`
}

// DecodeTokenize reads and checks a tokenize request.
func DecodeTokenize(body []byte) (*TokenizeRequest, *Error) {
	var r TokenizeRequest
	if err := Decode(body, &r); err != nil {
		return nil, err
	}
	if (r.Prompt == nil) == (len(r.Messages) == 0) {
		return nil, BadRequest("prompt", "Either prompt or messages must be given, and not both.")
	}
	return &r, nil
}

// Text is what is to be tokenized.
func (r *TokenizeRequest) Text() string {
	if r.Prompt != nil {
		return *r.Prompt
	}
	d := r.Dialog()
	return d.Prompt()
}

// DetokenizeRequest is the body of /detokenize.
type DetokenizeRequest struct {
	Model  *string `json:"model"`
	Tokens []int   `json:"tokens"`
}

// DecodeDetokenize reads and checks a detokenize request.
func DecodeDetokenize(body []byte) (*DetokenizeRequest, *Error) {
	var r DetokenizeRequest
	if err := Decode(body, &r); err != nil {
		return nil, err
	}
	if r.Tokens == nil {
		return nil, BadRequest("tokens", "tokens is missing.")
	}
	return &r, nil
}

// Decode reads one JSON object and nothing behind it.
func Decode(body []byte, into any) *Error {
	trimmed := bytes.TrimLeft(body, " \t\r\n")
	if len(trimmed) == 0 {
		return BadRequest("", "the request has no body: the body must be a JSON object")
	}
	err := json.Unmarshal(body, into)
	var (
		syntax *json.SyntaxError
		typ    *json.UnmarshalTypeError
	)
	switch {
	case errors.As(err, &syntax):
		return BadRequest("", "the body is not valid JSON: %v (at byte %d)", syntax, syntax.Offset)
	case errors.As(err, &typ) && typ.Field != "":
		name := typ.Field[strings.LastIndexByte(typ.Field, '.')+1:]
		return BadRequest(name, "%s: must be %s, got %s", trimEmbedded(typ.Field), typeName(typ.Type.String()), typ.Value)
	case errors.As(err, &typ):
		return BadRequest("", "the body must be %s, got %s", typeName(typ.Type.String()), typ.Value)
	case err != nil:
		return BadRequest("", "%v", err)
	case trimmed[0] != '{':
		return BadRequest("", "the body must be a JSON object")
	}
	return nil
}

// trimEmbedded takes the names of embedded structs off a field's path.
func trimEmbedded(path string) string {
	return strings.TrimPrefix(strings.TrimPrefix(path, "Sampling."), "ChatPrompt.")
}

// typeName says a Go type in JSON's words.
func typeName(t string) string {
	t = strings.TrimLeft(t, "*")
	switch {
	case strings.HasPrefix(t, "[]"):
		return "a list"
	case strings.HasPrefix(t, "int"):
		return "an integer"
	case strings.HasPrefix(t, "float"):
		return "a number"
	case t == "bool":
		return "true or false"
	case t == "string":
		return "a string"
	default:
		return "an object"
	}
}
