package responses

import (
	"remuda/internal/sim/dialog"
	"remuda/internal/sim/openai"
	"remuda/internal/sim/text"
)

// States of a response and of its items.
const (
	Queued     = "queued"
	InProgress = "in_progress"
	Completed  = "completed"
	Incomplete = "incomplete"
	Failed     = "failed"
	Cancelled  = "cancelled"
)

// Response is the object of a response.
type Response struct {
	ID         string            `json:"id"`
	Object     string            `json:"object"`
	CreatedAt  int64             `json:"created_at"`
	Status     string            `json:"status"`
	Background bool              `json:"background"`
	Error      *failure          `json:"error"`
	Incomplete *reason           `json:"incomplete_details"`
	Asked      *string           `json:"instructions"`
	MaxTokens  *int              `json:"max_output_tokens"`
	Model      string            `json:"model"`
	Output     []any             `json:"output"`
	Parallel   bool              `json:"parallel_tool_calls"`
	Previous   *string           `json:"previous_response_id"`
	Store      bool              `json:"store"`
	Temp       float64           `json:"temperature"`
	Text       textConfig        `json:"text"`
	ToolChoice any               `json:"tool_choice"`
	Tools      []Tool            `json:"tools"`
	TopP       float64           `json:"top_p"`
	Truncation string            `json:"truncation"`
	Usage      *usage            `json:"usage"`
	User       *string           `json:"user"`
	Metadata   map[string]string `json:"metadata"`
}

type failure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

type reason struct {
	Reason string `json:"reason"`
}

type textConfig struct {
	Format Format `json:"format"`
}

type usage struct {
	Input        int `json:"input_tokens"`
	InputDetails struct {
		Cached int `json:"cached_tokens"`
	} `json:"input_tokens_details"`
	Output        int `json:"output_tokens"`
	OutputDetails struct {
		Reasoning int `json:"reasoning_tokens"`
	} `json:"output_tokens_details"`
	Total int `json:"total_tokens"`
}

// message is an output item with text.
type message struct {
	ID      string       `json:"id"`
	Type    string       `json:"type"`
	Status  string       `json:"status"`
	Role    string       `json:"role"`
	Content []outputText `json:"content"`
}

type outputText struct {
	Type        string `json:"type"`
	Text        string `json:"text"`
	Annotations []any  `json:"annotations"`
	Logprobs    []any  `json:"logprobs"`
}

// call is an output item that calls a function.
type call struct {
	ID        string `json:"id"`
	Type      string `json:"type"`
	Status    string `json:"status"`
	CallID    string `json:"call_id"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// New is the response to a request before its first token.
func New(r *Request, id, model string, created int64) Response {
	out := Response{
		ID: "resp_" + id, Object: "response", CreatedAt: created, Status: InProgress,
		Background: openai.Or(r.Background, false), Asked: r.Instructions, MaxTokens: r.MaxOutputTokens, Model: model,
		Output: []any{}, Parallel: openai.Or(r.Parallel, true), Previous: r.Previous, Store: openai.Or(r.Store, true),
		Temp: openai.Or(r.Temperature, 1), TopP: openai.Or(r.TopP, 1), Text: textConfig{Format{Type: "text"}},
		Tools: r.Tools, Truncation: "disabled", User: r.User, Metadata: r.Metadata,
	}
	if out.Tools == nil {
		out.Tools = []Tool{}
	}
	if out.Metadata == nil {
		out.Metadata = map[string]string{}
	}
	if r.Text.Format != nil {
		out.Text.Format = *r.Text.Format
	}
	switch c := r.ToolChoice.Choice; c.Mode {
	case dialog.None:
		out.ToolChoice = "none"
	case dialog.Required:
		out.ToolChoice = "required"
	case dialog.Named:
		out.ToolChoice = map[string]string{"type": "function", "name": c.Name}
	default:
		out.ToolChoice = "auto"
	}
	return out
}

// finish sets what the last token of the answer brings.
func (r *Response) finish(how string, u openai.Usage) {
	switch how {
	case text.FinishStop:
		r.Status = Completed
	case text.FinishLength:
		r.Status, r.Incomplete = Incomplete, &reason{"max_output_tokens"}
	default:
		r.Status, r.Error = Failed, &failure{"server_error", "the engine gave the request up"}
	}
	r.Usage = &usage{Input: u.Prompt, Output: u.Completion, Total: u.Prompt + u.Completion}
	r.Usage.InputDetails.Cached = u.Cached
}

// Cancel is the response after it was cancelled.
func (r Response) Cancel() Response {
	r.Status = Cancelled
	return r
}

// Messages are the output as messages of a conversation.
func (r *Response) Messages() []text.Message {
	var out []text.Message
	for _, it := range r.Output {
		switch it := it.(type) {
		case message:
			out = append(out, text.Message{Role: dialog.Assistant, Content: it.Content[0].Text})
		case call:
			out = append(out, text.Message{Role: dialog.Assistant, Content: dialog.CallText(it.Name, it.Arguments)})
		}
	}
	return out
}
