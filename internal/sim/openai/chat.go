package openai

import (
	"encoding/json"

	"remuda/internal/sim/dialog"
	"remuda/internal/sim/text"
)

// ChatRequest is the body of /v1/chat/completions.
type ChatRequest struct {
	Sampling
	ChatPrompt
	MaxCompletionTokens *int            `json:"max_completion_tokens"`
	ToolChoice          ToolChoice      `json:"tool_choice"`
	ParallelToolCalls   *bool           `json:"parallel_tool_calls"`
	ResponseFormat      *ResponseFormat `json:"response_format"`
}

// ChatPrompt is what a chat's prompt is made of.
type ChatPrompt struct {
	Messages             []Message `json:"messages"`
	Tools                []Tool    `json:"tools"`
	AddGenerationPrompt  *bool     `json:"add_generation_prompt"`
	ContinueFinalMessage *bool     `json:"continue_final_message"`
}

// Message is one chat message.
type Message struct {
	Role      string     `json:"role"`
	Content   Content    `json:"content"`
	ToolCalls []ToolCall `json:"tool_calls"`
}

// ToolCall is a call that an earlier answer made.
type ToolCall struct {
	ID       string `json:"id"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

// Tool is a function that the model may call.
type Tool struct {
	Type     string      `json:"type"`
	Function dialog.Tool `json:"function"`
}

// ToolChoice is "none", "auto", "required", or names a function.
type ToolChoice struct {
	dialog.Choice
	bad string // what was given instead
}

// UnmarshalJSON reads any of the forms.
func (c *ToolChoice) UnmarshalJSON(b []byte) error {
	var named struct {
		Type     string `json:"type"`
		Name     string `json:"name"`
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
	}
	var word string
	switch {
	case string(b) == "null":
	case json.Unmarshal(b, &word) == nil:
		mode, ok := map[string]dialog.Mode{"auto": dialog.Auto, "none": dialog.None, "required": dialog.Required}[word]
		if c.Mode = mode; !ok {
			c.bad = string(b)
		}
	case json.Unmarshal(b, &named) == nil && named.Type == "function" && named.Function.Name+named.Name != "":
		c.Mode, c.Name = dialog.Named, named.Function.Name+named.Name
	default:
		c.bad = string(b)
	}
	return nil
}

// Check reports a choice that was none of its forms.
func (c *ToolChoice) Check() *Error {
	if c.bad != "" {
		return BadRequest("tool_choice", `tool_choice must be "none", "auto", "required" or name a function, got %s.`, c.bad)
	}
	return nil
}

// ResponseFormat says what an answer must look like.
type ResponseFormat struct {
	Type       string `json:"type"`
	JSONSchema *struct {
		Name   string          `json:"name"`
		Schema json.RawMessage `json:"schema"`
	} `json:"json_schema"`
}

// apply sets the format in a conversation.
func (f *ResponseFormat) apply(c *dialog.Conversation) *Error {
	switch {
	case f == nil || f.Type == "text":
	case f.Type == "json_object":
		c.JSON = true
	case f.Type != "json_schema":
		return BadRequest("response_format", `response_format.type must be "text", "json_object" or "json_schema", got %q.`, f.Type)
	case f.JSONSchema == nil || f.JSONSchema.Schema == nil:
		return BadRequest("response_format", "response_format.json_schema.schema is missing.")
	default:
		c.JSON, c.Schema = true, f.JSONSchema.Schema
	}
	return nil
}

// DecodeChat reads and checks a chat request.
func DecodeChat(body []byte) (*ChatRequest, *Error) {
	var r ChatRequest
	if err := Decode(body, &r); err != nil {
		return nil, err
	}
	if r.MaxCompletionTokens != nil {
		r.MaxTokens = r.MaxCompletionTokens // as in vLLM, the newer name wins
	}
	if err := r.Check(); err != nil {
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
	if err := r.logprobs(); err != nil {
		return nil, err
	}
	if err := r.ToolChoice.Check(); err != nil {
		return nil, err
	}
	return &r, nil
}

// logprobs checks the two fields that ask for log probabilities.
func (r *ChatRequest) logprobs() *Error {
	asked := false
	if r.Logprobs != nil && json.Unmarshal(r.Logprobs, &asked) != nil {
		return BadRequest("logprobs", "logprobs: must be true or false, got %s", r.Logprobs)
	}
	top := Or(r.TopLogprobs, 0)
	switch {
	case top < 0 || top > maxLogprobs:
		return BadRequest("top_logprobs", "top_logprobs must be at least 0 and at most %d, got %d.", maxLogprobs, top)
	case top > 0 && !asked:
		return BadRequest("top_logprobs", "when using `top_logprobs`, `logprobs` must be set to true.")
	case asked:
		r.Top = &top
	}
	return nil
}

// Dialog is the chat without what only its answer depends on.
func (c *ChatPrompt) Dialog() dialog.Conversation {
	d := dialog.Conversation{Continue: Or(c.ContinueFinalMessage, false), NoPrompt: !Or(c.AddGenerationPrompt, true)}
	for _, m := range c.Messages {
		t := text.Message{Role: m.Role, Content: string(m.Content)}
		for _, call := range m.ToolCalls {
			if call.Function.Name != "" {
				t.Content += dialog.CallText(call.Function.Name, call.Function.Arguments)
			}
		}
		d.Messages = append(d.Messages, t)
	}
	for _, t := range c.Tools {
		d.Tools = append(d.Tools, t.Function)
	}
	return d
}

// Conversation is the whole chat.
func (r *ChatRequest) Conversation() (dialog.Conversation, *Error) {
	d := r.Dialog()
	d.Choice, d.OneCall = r.ToolChoice.Choice, !Or(r.ParallelToolCalls, true)
	return d, r.ResponseFormat.apply(&d)
}
