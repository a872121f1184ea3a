package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"remuda/internal/sim/text"
)

// ChatRequest is the body of /v1/chat/completions.
type ChatRequest struct {
	Sampling
	Messages             []Message `json:"messages"`
	MaxCompletionTokens  *int      `json:"max_completion_tokens"`
	AddGenerationPrompt  *bool     `json:"add_generation_prompt"`
	ContinueFinalMessage *bool     `json:"continue_final_message"`
}

// Message is one chat message.
type Message struct {
	Role    string  `json:"role"`
	Content Content `json:"content"`
}

// Content is a string, null, or a list of text parts, which are joined by line
// breaks as vLLM's string content format does.
type Content string

// UnmarshalJSON reads any of the forms.
func (c *Content) UnmarshalJSON(b []byte) error {
	switch {
	case string(b) == "null":
		*c = ""
		return nil
	case b[0] == '"':
		var s string
		if err := json.Unmarshal(b, &s); err != nil {
			return err
		}
		*c = Content(s)
		return nil
	}
	var parts []json.RawMessage
	if err := json.Unmarshal(b, &parts); err != nil {
		return errors.New("message content must be a string or a list of parts")
	}
	var texts []string
	for _, raw := range parts {
		var part struct {
			Type string  `json:"type"`
			Text *string `json:"text"`
		}
		if raw[0] == '"' {
			if err := json.Unmarshal(raw, &part.Text); err != nil {
				return err
			}
		} else if err := json.Unmarshal(raw, &part); err != nil {
			return fmt.Errorf("message content part: %w", err)
		} else if part.Type != "text" {
			return fmt.Errorf("message content part of type %q: this model takes text parts only", part.Type)
		}
		if part.Text == nil {
			return errors.New(`message content part: "text" is missing`)
		}
		texts = append(texts, *part.Text)
	}
	*c = Content(strings.Join(texts, "\n"))
	return nil
}

// DecodeChat reads and checks a chat request.
func DecodeChat(body []byte) (*ChatRequest, *Error) {
	var r ChatRequest
	if err := decode(body, &r); err != nil {
		return nil, err
	}
	if r.MaxCompletionTokens != nil {
		r.MaxTokens = r.MaxCompletionTokens // as in vLLM, the newer name wins
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	if r.MaxTokens != nil && *r.MaxTokens < 1 {
		return nil, BadRequest("max_tokens", "max_tokens must be at least 1, got %d.", *r.MaxTokens)
	}
	if len(r.Messages) == 0 {
		return nil, BadRequest("messages", "messages: at least one message is required.")
	}
	for i, m := range r.Messages {
		if m.Role == "" {
			return nil, BadRequest("messages", "messages[%d]: role is missing.", i)
		}
	}
	if Or(r.ContinueFinalMessage, false) && Or(r.AddGenerationPrompt, true) {
		return nil, BadRequest("continue_final_message",
			"Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
	}
	return &r, nil
}

// Prompt is the chat in the model's template.
func (r *ChatRequest) Prompt() string {
	return renderChat(r.Messages, r.AddGenerationPrompt, r.ContinueFinalMessage)
}

func renderChat(messages []Message, addPrompt, continueFinal *bool) string {
	out := make([]text.Message, len(messages))
	for i, m := range messages {
		out[i] = text.Message{Role: m.Role, Content: string(m.Content)}
	}
	return text.Render(out, Or(addPrompt, true), Or(continueFinal, false))
}

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
	if err := decode(body, &r); err != nil {
		return nil, err
	}
	if r.MaxTokens == nil {
		sixteen := 16 // OpenAI's default
		r.MaxTokens = &sixteen
	}
	if err := r.check(); err != nil {
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
	if err := r.Prompt.check("prompt"); err != nil {
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
	if err := decode(body, &r); err != nil {
		return nil, err
	}
	if f := Or(r.EncodingFormat, "float"); f != "float" && f != "base64" {
		return nil, BadRequest("encoding_format", "encoding_format must be \"float\" or \"base64\", got %q.", f)
	}
	if d := Or(r.Dimensions, text.EmbeddingDim); d < 1 || d > text.EmbeddingDim {
		return nil, BadRequest("dimensions", "dimensions must be at least 1 and at most %d, got %d.", text.EmbeddingDim, d)
	}
	if err := r.Input.check("input"); err != nil {
		return nil, err
	}
	return &r, nil
}

// TokenizeRequest is the body of /tokenize: a prompt or a chat.
type TokenizeRequest struct {
	Model                *string   `json:"model"`
	Prompt               *string   `json:"prompt"`
	Messages             []Message `json:"messages"`
	AddGenerationPrompt  *bool     `json:"add_generation_prompt"`
	ContinueFinalMessage *bool     `json:"continue_final_message"`
}

// DecodeTokenize reads and checks a tokenize request.
func DecodeTokenize(body []byte) (*TokenizeRequest, *Error) {
	var r TokenizeRequest
	if err := decode(body, &r); err != nil {
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
	return renderChat(r.Messages, r.AddGenerationPrompt, r.ContinueFinalMessage)
}

// DetokenizeRequest is the body of /detokenize.
type DetokenizeRequest struct {
	Model  *string `json:"model"`
	Tokens []int   `json:"tokens"`
}

// DecodeDetokenize reads and checks a detokenize request.
func DecodeDetokenize(body []byte) (*DetokenizeRequest, *Error) {
	var r DetokenizeRequest
	if err := decode(body, &r); err != nil {
		return nil, err
	}
	if r.Tokens == nil {
		return nil, BadRequest("tokens", "tokens is missing.")
	}
	return &r, nil
}

// decode reads one JSON object and nothing behind it.
func decode(body []byte, into any) *Error {
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
		return BadRequest(name, "%s: must be %s, got %s", strings.TrimPrefix(typ.Field, "Sampling."), typeName(typ.Type.String()), typ.Value)
	case errors.As(err, &typ):
		return BadRequest("", "the body must be %s, got %s", typeName(typ.Type.String()), typ.Value)
	case err != nil:
		return BadRequest("", "%v", err)
	case trimmed[0] != '{':
		return BadRequest("", "the body must be a JSON object")
	}
	return nil
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
