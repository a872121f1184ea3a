package responses

import (
	"strconv"

	"remuda/internal/sim/openai"
	"remuda/internal/sim/sse"
	"remuda/internal/sim/text"
)

// Writer writes one response from the tokens of its answer.
type Writer struct {
	// Response is the object so far.
	Response Response
	// RequestID names the items.
	RequestID string
	// Script is what the answer follows, nil for prose.
	Script text.Script
	// Keep gets the finished response.
	Keep func(Response)

	sequence int
	part     int    // of the item that is being written
	writing  bool   // an item is
	text     string // of the item so far
	finish   string
}

// ContentType is the answer's.
func (w *Writer) ContentType(stream bool) string { return openai.ContentType(stream) }

// fields are those of one event.
type fields map[string]any

// event appends an event with the next sequence number.
func (w *Writer) event(b []byte, name string, f fields) []byte {
	f["type"], f["sequence_number"] = name, w.sequence
	w.sequence++
	return sse.Append(b, name, f)
}

// Open appends the events that come before the first item.
func (w *Writer) Open(b []byte, _ []openai.Usage) []byte {
	b = w.event(b, "response.created", fields{"response": w.Response})
	return w.event(b, "response.in_progress", fields{"response": w.Response})
}

// Token appends the events of one token.
func (w *Writer) Token(b []byte, _ int, p text.Piece, _ openai.Usage) []byte {
	if w.writing && p.Part != w.part {
		b = w.endItem(b, Completed)
	}
	if !w.writing {
		b = w.beginItem(b, p.Part)
	}
	w.text += p.Text
	if p.Text != "" {
		at := fields{"item_id": w.itemID(), "output_index": w.part, "delta": p.Text}
		if w.call() != "" {
			b = w.event(b, "response.function_call_arguments.delta", at)
		} else {
			at["content_index"], at["logprobs"] = 0, []any{}
			b = w.event(b, "response.output_text.delta", at)
		}
	}
	if p.Finish != "" {
		w.finish = p.Finish
		b = w.endItem(b, status(p.Finish))
	}
	return b
}

// status is an item's after the token that ends the answer.
func status(finish string) string {
	if finish == text.FinishStop {
		return Completed
	}
	return Incomplete
}

// call is the function that the item calls, empty for text.
func (w *Writer) call() string {
	if w.part < len(w.Script) {
		return w.Script[w.part].Call
	}
	return ""
}

func (w *Writer) itemID() string {
	prefix := "msg_"
	if w.call() != "" {
		prefix = "fc_"
	}
	return prefix + w.RequestID + "_" + strconv.Itoa(w.part)
}

// item is the item so far.
func (w *Writer) item(status string) any {
	if name := w.call(); name != "" {
		return call{
			ID: w.itemID(), Type: "function_call", Status: status, CallID: "call_" + w.RequestID + "_" + strconv.Itoa(w.part),
			Name: name, Arguments: w.text,
		}
	}
	m := message{ID: w.itemID(), Type: "message", Status: status, Role: "assistant", Content: []outputText{}}
	if status != InProgress {
		m.Content = append(m.Content, w.content())
	}
	return m
}

func (w *Writer) content() outputText {
	return outputText{Type: "output_text", Text: w.text, Annotations: []any{}, Logprobs: []any{}}
}

func (w *Writer) beginItem(b []byte, part int) []byte {
	w.part, w.writing, w.text = part, true, ""
	b = w.event(b, "response.output_item.added", fields{"output_index": part, "item": w.item(InProgress)})
	if w.call() != "" {
		return b
	}
	return w.event(b, "response.content_part.added", fields{
		"item_id": w.itemID(), "output_index": part, "content_index": 0, "part": w.content(),
	})
}

func (w *Writer) endItem(b []byte, status string) []byte {
	at := func() fields { return fields{"item_id": w.itemID(), "output_index": w.part} }
	if name := w.call(); name != "" {
		f := at()
		f["name"], f["arguments"] = name, w.text
		b = w.event(b, "response.function_call_arguments.done", f)
	} else {
		f := at()
		f["content_index"], f["text"], f["logprobs"] = 0, w.text, []any{}
		b = w.event(b, "response.output_text.done", f)
		f = at()
		f["content_index"], f["part"] = 0, w.content()
		b = w.event(b, "response.content_part.done", f)
	}
	done := w.item(status)
	w.Response.Output = append(w.Response.Output, done)
	w.writing = false
	return w.event(b, "response.output_item.done", fields{"output_index": w.part, "item": done})
}

// Garbage appends an event that is not part of the answer.
func (w *Writer) Garbage(b []byte) []byte {
	return w.event(b, "response.output_text.delta", fields{"delta": "garbage"})
}

// Close appends the last event.
func (w *Writer) Close(b []byte, total openai.Usage) []byte {
	w.Response.finish(w.finish, total)
	w.Keep(w.Response)
	return w.event(b, "response."+w.Response.Status, fields{"response": w.Response})
}

// Whole is the answer that is not streamed.
func (w *Writer) Whole(tokens [][]text.Piece, total openai.Usage) []byte {
	for _, p := range tokens[0] {
		w.Token(nil, 0, p, total)
	}
	w.Close(nil, total)
	return sse.JSON(w.Response)
}
