package anthropic

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"remuda/internal/sim/dialog"
	"remuda/internal/sim/openai"
	"remuda/internal/sim/text"
)

// Request is the body of /v1/messages, and of /v1/messages/count_tokens, which has less.
type Request struct {
	Model         *string    `json:"model"`
	MaxTokens     *int       `json:"max_tokens"`
	System        Content    `json:"system"`
	Messages      []Message  `json:"messages"`
	StopSequences []string   `json:"stop_sequences"`
	Stream        *bool      `json:"stream"`
	Temperature   *float64   `json:"temperature"`
	TopP          *float64   `json:"top_p"`
	TopK          *int       `json:"top_k"`
	Tools         []Tool     `json:"tools"`
	ToolChoice    toolChoice `json:"tool_choice"`
}

// Message is one turn.
type Message struct {
	Role    string  `json:"role"`
	Content Content `json:"content"`
}

// Content is a text or a list of blocks.
type Content []block

type block struct {
	Type    string          `json:"type"`
	Text    string          `json:"text"`
	Name    string          `json:"name"`
	Input   json.RawMessage `json:"input"`
	Content Content         `json:"content"`
}

// UnmarshalJSON reads either form.
func (c *Content) UnmarshalJSON(b []byte) error {
	var s string
	if json.Unmarshal(b, &s) == nil {
		*c = Content{{Type: "text", Text: s}}
		return nil
	}
	var blocks []block
	if err := json.Unmarshal(b, &blocks); err != nil {
		return errors.New("content must be a string or a list of blocks")
	}
	for _, one := range blocks {
		switch one.Type {
		case "text", "tool_use", "tool_result", "thinking":
		default:
			return fmt.Errorf("content block of type %q: this model takes text, tool_use and tool_result", one.Type)
		}
	}
	*c = blocks
	return nil
}

// text joins the texts of the blocks.
func (c Content) text() string {
	var texts []string
	for _, one := range c {
		if one.Type == "text" {
			texts = append(texts, one.Text)
		}
	}
	return strings.Join(texts, "\n")
}

// Tool is a tool that the model may use.
type Tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	InputSchema json.RawMessage `json:"input_schema"`
}

type toolChoice struct {
	Type    string `json:"type"`
	Name    string `json:"name"`
	OneCall bool   `json:"disable_parallel_tool_use"`
}

// Decode reads and checks a request for an answer.
func Decode(body []byte) (*Request, *openai.Error) {
	r, err := DecodeCount(body)
	switch {
	case err != nil:
		return nil, err
	case r.MaxTokens == nil:
		return nil, openai.BadRequest("max_tokens", "max_tokens: Field required")
	case *r.MaxTokens < 1:
		return nil, openai.BadRequest("max_tokens", "max_tokens: must be at least 1, got %d", *r.MaxTokens)
	}
	return r, r.Sampling().Check()
}

// DecodeCount reads and checks a request to count tokens.
func DecodeCount(body []byte) (*Request, *openai.Error) {
	var r Request
	if err := openai.Decode(body, &r); err != nil {
		return nil, err
	}
	if len(r.Messages) == 0 {
		return nil, openai.BadRequest("messages", "messages: at least one message is required")
	}
	for i, m := range r.Messages {
		if m.Role != dialog.User && m.Role != dialog.Assistant {
			return nil, openai.BadRequest("messages", "messages.%d.role: must be \"user\" or \"assistant\", got %q", i, m.Role)
		}
		if len(m.Content) == 0 {
			return nil, openai.BadRequest("messages", "messages.%d.content: must not be empty", i)
		}
	}
	if _, ok := modes[r.ToolChoice.Type]; !ok {
		return nil, openai.BadRequest("tool_choice", "tool_choice.type: must be \"auto\", \"any\", \"tool\" or \"none\", got %q", r.ToolChoice.Type)
	}
	return &r, nil
}

var modes = map[string]dialog.Mode{
	"": dialog.Auto, "auto": dialog.Auto, "any": dialog.Required, "tool": dialog.Named, "none": dialog.None,
}

// Sampling is the request's parameters by the names of the other routes.
func (r *Request) Sampling() *openai.Sampling {
	return &openai.Sampling{
		Model: r.Model, MaxTokens: r.MaxTokens, Stop: r.StopSequences, Stream: r.Stream,
		Temperature: r.Temperature, TopP: r.TopP, TopK: r.TopK,
	}
}

// Conversation is what the request asks. A last message of the assistant is the beginning
// of the answer.
func (r *Request) Conversation() dialog.Conversation {
	d := dialog.Conversation{
		Choice:  dialog.Choice{Mode: modes[r.ToolChoice.Type], Name: r.ToolChoice.Name},
		OneCall: r.ToolChoice.OneCall,
	}
	if s := r.System.text(); s != "" {
		d.Messages = append(d.Messages, text.Message{Role: dialog.System, Content: s})
	}
	for _, m := range r.Messages {
		d.Messages = append(d.Messages, m.turns()...)
	}
	d.Continue = r.Messages[len(r.Messages)-1].Role == dialog.Assistant
	for _, t := range r.Tools {
		d.Tools = append(d.Tools, dialog.Tool{Name: t.Name, Description: t.Description, Parameters: t.InputSchema})
	}
	return d
}

// turns are the message's results of tools, each a message of its own, and the rest.
func (m *Message) turns() []text.Message {
	var out []text.Message
	rest := text.Message{Role: m.Role, Content: m.Content.text()}
	for _, one := range m.Content {
		switch one.Type {
		case "tool_use":
			rest.Content += dialog.CallText(one.Name, string(one.Input))
		case "tool_result":
			out = append(out, text.Message{Role: dialog.ToolRole, Content: one.Content.text()})
		}
	}
	if rest.Content != "" || len(out) == 0 {
		out = append(out, rest)
	}
	return out
}
