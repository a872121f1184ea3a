package responses

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"remuda/internal/sim/dialog"
	"remuda/internal/sim/openai"
	"remuda/internal/sim/text"
)

// Request is the body of POST /v1/responses.
type Request struct {
	Model           *string           `json:"model"`
	Input           *Input            `json:"input"`
	Instructions    *string           `json:"instructions"`
	Previous        *string           `json:"previous_response_id"`
	MaxOutputTokens *int              `json:"max_output_tokens"`
	Temperature     *float64          `json:"temperature"`
	TopP            *float64          `json:"top_p"`
	Stream          *bool             `json:"stream"`
	Store           *bool             `json:"store"`
	Background      *bool             `json:"background"`
	Tools           []Tool            `json:"tools"`
	ToolChoice      openai.ToolChoice `json:"tool_choice"`
	Parallel        *bool             `json:"parallel_tool_calls"`
	Text            struct {
		Format *Format `json:"format"`
	} `json:"text"`
	User     *string           `json:"user"`
	Metadata map[string]string `json:"metadata"`
}

// Tool is a function that the model may call.
type Tool struct {
	Type string `json:"type"`
	dialog.Tool
}

// Format says what the answer must look like.
type Format struct {
	Type   string          `json:"type"`
	Name   string          `json:"name,omitempty"`
	Schema json.RawMessage `json:"schema,omitempty"`
}

// Input is a text or a list of items.
type Input []text.Message

// UnmarshalJSON reads either form.
func (in *Input) UnmarshalJSON(b []byte) error {
	var s string
	if json.Unmarshal(b, &s) == nil {
		*in = Input{{Role: dialog.User, Content: s}}
		return nil
	}
	var items []item
	if err := json.Unmarshal(b, &items); err != nil {
		return fmt.Errorf("input: must be a string or a list of items: %w", err)
	}
	for i, it := range items {
		m, err := it.message()
		if err != nil {
			return fmt.Errorf("input[%d]: %w", i, err)
		}
		*in = append(*in, m)
	}
	return nil
}

type item struct {
	Type      string `json:"type"`
	Role      string `json:"role"`
	Content   parts  `json:"content"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
	Output    parts  `json:"output"`
}

func (it *item) message() (text.Message, error) {
	switch it.Type {
	case "", "message":
		if it.Role == "" {
			return text.Message{}, errors.New("role is missing")
		}
		return text.Message{Role: it.Role, Content: string(it.Content)}, nil
	case "function_call":
		return text.Message{Role: dialog.Assistant, Content: dialog.CallText(it.Name, it.Arguments)}, nil
	case "function_call_output":
		return text.Message{Role: dialog.ToolRole, Content: string(it.Output)}, nil
	default:
		return text.Message{}, fmt.Errorf("type is %q: this model takes message, function_call and function_call_output", it.Type)
	}
}

// parts is a text or a list of parts with text, which are joined.
type parts string

// UnmarshalJSON reads either form.
func (p *parts) UnmarshalJSON(b []byte) error {
	var s string
	if json.Unmarshal(b, &s) == nil {
		*p = parts(s)
		return nil
	}
	var list []struct{ Type, Text string }
	if err := json.Unmarshal(b, &list); err != nil {
		return errors.New("content must be a string or a list of parts")
	}
	var texts []string
	for _, one := range list {
		if one.Type != "input_text" && one.Type != "output_text" && one.Type != "text" {
			return fmt.Errorf("content part of type %q: this model takes text only", one.Type)
		}
		texts = append(texts, one.Text)
	}
	*p = parts(strings.Join(texts, "\n"))
	return nil
}

// Decode reads and checks a request.
func Decode(body []byte) (*Request, *openai.Error) {
	var r Request
	if err := openai.Decode(body, &r); err != nil {
		return nil, err
	}
	if err := r.Sampling().Check(); err != nil {
		return nil, err
	}
	switch {
	case r.Input == nil || len(*r.Input) == 0:
		return nil, openai.BadRequest("input", "input is missing.")
	case r.MaxOutputTokens != nil && *r.MaxOutputTokens < 1:
		return nil, openai.BadRequest("max_output_tokens", "max_output_tokens must be at least 1, got %d.", *r.MaxOutputTokens)
	case openai.Or(r.Background, false) && !openai.Or(r.Store, true):
		return nil, openai.BadRequest("background", "background can only be used when `store` is true")
	case openai.Or(r.Background, false) && openai.Or(r.Stream, false):
		return nil, openai.BadRequest("background", "a background response cannot be streamed by this engine.")
	}
	for i, t := range r.Tools {
		if t.Type != "function" {
			return nil, openai.BadRequest("tools", "tools[%d].type is %q: this model calls functions only.", i, t.Type)
		}
	}
	if err := r.ToolChoice.Check(); err != nil {
		return nil, err
	}
	if f := r.Text.Format; f != nil {
		if f.Type != "text" && f.Type != "json_object" && f.Type != "json_schema" {
			return nil, openai.BadRequest("text", `text.format.type must be "text", "json_object" or "json_schema", got %q.`, f.Type)
		}
		if f.Type == "json_schema" && f.Schema == nil {
			return nil, openai.BadRequest("text", "text.format.schema is missing.")
		}
	}
	return &r, nil
}

// Sampling is the request's parameters by the names of the other routes.
func (r *Request) Sampling() *openai.Sampling {
	return &openai.Sampling{
		Model: r.Model, MaxTokens: r.MaxOutputTokens, Temperature: r.Temperature, TopP: r.TopP, Stream: r.Stream,
	}
}

// Conversation is what the request asks, after the messages of the response that it goes
// on from.
func (r *Request) Conversation(before []text.Message) dialog.Conversation {
	d := dialog.Conversation{Choice: r.ToolChoice.Choice, OneCall: !openai.Or(r.Parallel, true)}
	if s := openai.Or(r.Instructions, ""); s != "" {
		d.Messages = append(d.Messages, text.Message{Role: dialog.System, Content: s})
	}
	d.Messages = append(append(d.Messages, before...), *r.Input...)
	for _, t := range r.Tools {
		d.Tools = append(d.Tools, t.Tool)
	}
	if f := r.Text.Format; f != nil && f.Type != "text" {
		d.JSON, d.Schema = true, f.Schema
	}
	return d
}
