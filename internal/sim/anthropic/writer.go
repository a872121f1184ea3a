package anthropic

import (
	"encoding/json"
	"net/http"
	"strconv"

	"remuda/internal/sim/openai"
	"remuda/internal/sim/sse"
	"remuda/internal/sim/text"
)

// Writer writes one message from the tokens of its answer.
type Writer struct {
	// ID names the message and its uses of tools.
	ID string
	// Model is the message's.
	Model string
	// Script is what the answer follows, nil for prose.
	Script text.Script

	part    int  // of the block that is being written
	writing bool // a block is
	last    text.Piece
}

// ContentType is the answer's.
func (w *Writer) ContentType(stream bool) string { return openai.ContentType(stream) }

type message struct {
	ID           string  `json:"id"`
	Type         string  `json:"type"`
	Role         string  `json:"role"`
	Model        string  `json:"model"`
	Content      []any   `json:"content"`
	StopReason   *string `json:"stop_reason"`
	StopSequence *string `json:"stop_sequence"`
	Usage        usage   `json:"usage"`
}

type usage struct {
	Input         int `json:"input_tokens"`
	CacheCreation int `json:"cache_creation_input_tokens"`
	CacheRead     int `json:"cache_read_input_tokens"`
	Output        int `json:"output_tokens"`
}

type textBlock struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

type toolBlock struct {
	Type  string          `json:"type"`
	ID    string          `json:"id"`
	Name  string          `json:"name"`
	Input json.RawMessage `json:"input"`
}

// fields are those of one event.
type fields map[string]any

func event(b []byte, name string, f fields) []byte {
	f["type"] = name
	return sse.Append(b, name, f)
}

func (w *Writer) message(u openai.Usage) message {
	return message{
		ID: "msg_" + w.ID, Type: "message", Role: "assistant", Model: w.Model, Content: []any{},
		Usage: usage{Input: u.Prompt - u.Cached, CacheRead: u.Cached, Output: u.Completion},
	}
}

// block is a block of the answer with its whole text.
func (w *Writer) block(part int, s string) any {
	name := w.call(part)
	if name == "" {
		return textBlock{"text", s}
	}
	input := json.RawMessage(s)
	if !json.Valid(input) { // cut off, or just begun
		input = json.RawMessage("{}")
	}
	return toolBlock{"tool_use", "toolu_" + w.ID + "_" + strconv.Itoa(part), name, input}
}

// call is the function that a part of the script calls, empty for text.
func (w *Writer) call(part int) string {
	if part < len(w.Script) {
		return w.Script[part].Call
	}
	return ""
}

// stop is why the answer ended, nothing for one that the engine gave up.
func (w *Writer) stop() (why, sequence *string) {
	if w.aborted() {
		return nil, nil
	}
	reason := "end_turn"
	switch p := w.last; {
	case p.Finish == text.FinishLength:
		reason = "max_tokens"
	case p.StopReason != "":
		reason, sequence = "stop_sequence", &p.StopReason
	case w.Script.Calls():
		reason = "tool_use"
	}
	return &reason, sequence
}

// Open appends the event that comes before the first block.
func (w *Writer) Open(b []byte, usages []openai.Usage) []byte {
	return event(b, "message_start", fields{"message": w.message(usages[0])})
}

// Token appends the events of one token.
func (w *Writer) Token(b []byte, _ int, p text.Piece, _ openai.Usage) []byte {
	if w.writing && p.Part != w.part {
		b = w.endBlock(b)
	}
	if !w.writing {
		w.part, w.writing = p.Part, true
		b = event(b, "content_block_start", fields{"index": p.Part, "content_block": w.block(p.Part, "")})
		if p.Part == 0 {
			b = event(b, "ping", fields{})
		}
	}
	if p.Text != "" {
		delta := map[string]string{"type": "text_delta", "text": p.Text}
		if w.call(p.Part) != "" {
			delta = map[string]string{"type": "input_json_delta", "partial_json": p.Text}
		}
		b = event(b, "content_block_delta", fields{"index": p.Part, "delta": delta})
	}
	w.last = p
	if p.Finish != "" {
		b = w.endBlock(b)
	}
	return b
}

func (w *Writer) endBlock(b []byte) []byte {
	w.writing = false
	return event(b, "content_block_stop", fields{"index": w.part})
}

// Garbage appends an event that is not part of the answer.
func (w *Writer) Garbage(b []byte) []byte {
	return event(b, "content_block_delta", fields{"delta": "garbage"})
}

// Close appends the events after the last block.
func (w *Writer) Close(b []byte, total openai.Usage) []byte {
	if w.aborted() {
		return sse.Append(b, "error", errorBody(openai.Unavailable("the engine gave the request up")))
	}
	why, sequence := w.stop()
	b = event(b, "message_delta", fields{
		"delta": map[string]any{"stop_reason": why, "stop_sequence": sequence}, "usage": w.message(total).Usage,
	})
	return event(b, "message_stop", fields{})
}

// aborted reports an answer that the engine gave up.
func (w *Writer) aborted() bool {
	return w.last.Finish != text.FinishStop && w.last.Finish != text.FinishLength
}

// Whole is the answer that is not streamed.
func (w *Writer) Whole(tokens [][]text.Piece, total openai.Usage) []byte {
	m := w.message(total)
	var texts []string
	for _, p := range tokens[0] {
		for len(texts) <= p.Part {
			texts = append(texts, "")
		}
		texts[p.Part] += p.Text
		w.last = p
	}
	for part, s := range texts {
		m.Content = append(m.Content, w.block(part, s))
	}
	m.StopReason, m.StopSequence = w.stop()
	return sse.JSON(m)
}

// names are Anthropic's names of errors by their status.
var names = map[int]string{
	http.StatusNotFound: "not_found_error", http.StatusRequestEntityTooLarge: "request_too_large",
	http.StatusInternalServerError: "api_error", http.StatusServiceUnavailable: "overloaded_error",
}

func errorBody(e *openai.Error) any {
	name, ok := names[e.Status]
	if !ok {
		name = "invalid_request_error"
	}
	return map[string]any{"type": "error", "error": map[string]string{"type": name, "message": e.Message}}
}

// ErrorJSON is the body of an error.
func ErrorJSON(e *openai.Error) []byte { return sse.JSON(errorBody(e)) }
