package openai

import (
	"bytes"
	"errors"
)

// LineKind is what a line of a stream is.
type LineKind int

const (
	LineBlank   LineKind = iota // ends an event
	LineComment                 // a keep-alive
	LineData                    // an event's JSON
	LineDone                    // data: [DONE]
	LineOther                   // another field of an event
)

var doneMark = []byte("[DONE]")

// Classify returns what a line is and, of data, where its payload is. The line may have its
// end.
func Classify(line []byte) (LineKind, Span) {
	end := len(line)
	for end > 0 && (line[end-1] == '\n' || line[end-1] == '\r') {
		end--
	}
	switch {
	case end == 0:
		return LineBlank, Span{}
	case line[0] == ':':
		return LineComment, Span{}
	case !bytes.HasPrefix(line[:end], []byte("data:")):
		return LineOther, Span{}
	}
	at := Span{len("data:"), end}
	for at.From < at.To && line[at.From] == ' ' {
		at.From++
	}
	for at.From < at.To && line[at.To-1] == ' ' {
		at.To--
	}
	if bytes.Equal(at.Of(line), doneMark) {
		return LineDone, at
	}
	return LineData, at
}

// Chunk is what matters in the JSON of one event of a chat or text completion. Its spans are of the line; what is not
// there is empty.
type Chunk struct {
	ID, Created, Model Span
	// Usage is an object, the three below its numbers.
	Usage, PromptTokens, CompletionTokens, TotalTokens Span
	// Choices: there is a list of them, Choice: with one in it.
	Choices, Choice bool
	// Text is what is added, without its quotes.
	Text Span
	// Role: the delta names the role.
	Role bool
	// Finish is why the answer ends, without its quotes.
	Finish Span
	// Failed: it is an error, not an answer.
	Failed bool
	// State is what the answer has beside its text, which cannot go on at another engine.
	State string
}

// Token reports whether the event is of a token: all are but those that only open the
// answer or close it in a chat where each event names the role.
func (e *Chunk) Token() bool { return e.Choice && (!e.Text.Empty() || !e.Role) }

// Opens reports whether the event is the role of a chat and nothing else.
func (e *Chunk) Opens() bool { return e.Choice && e.Role && e.Text.Empty() && e.Finish.Empty() }

var errEvent = errors.New("an event is not the JSON of one response")

// ParseChunk reads an event's JSON at that place of a line.
func ParseChunk(line []byte, at Span) (Chunk, error) {
	var e Chunk
	b := line[:at.To]
	w := Walk(b, at.From, '{')
	for {
		key, v, ok := w.Next()
		if !ok {
			break
		}
		switch string(key.Of(b)) {
		case `"id"`:
			e.ID = v
		case `"created"`:
			e.Created = v
		case `"model"`:
			e.Model = v
		case `"usage"`:
			e.readUsage(b, v)
		case `"error"`:
			e.Failed = e.Failed || !Null(v.Of(b))
		case `"choices"`:
			if !e.readChoices(b, v) {
				return e, errEvent
			}
		}
	}
	if w.Err() != nil {
		return e, errEvent
	}
	e.Failed = e.Failed || !e.Choices
	return e, nil
}

func (e *Chunk) readUsage(b []byte, at Span) {
	if b[at.From] != '{' {
		return
	}
	e.Usage = at
	w := Walk(b[:at.To], at.From, '{')
	for {
		key, v, ok := w.Next()
		if !ok {
			return
		}
		switch string(key.Of(b)) {
		case `"prompt_tokens"`:
			e.PromptTokens = v
		case `"completion_tokens"`:
			e.CompletionTokens = v
		case `"total_tokens"`:
			e.TotalTokens = v
		}
	}
}

func (e *Chunk) readChoices(b []byte, at Span) bool {
	e.Choices = true
	w := Walk(b[:at.To], at.From, '[')
	for {
		_, v, ok := w.Next()
		if !ok {
			return w.Err() == nil
		}
		if e.Choice {
			return false
		}
		e.Choice = true
		if !e.readChoice(b, v) {
			return false
		}
	}
}

func (e *Chunk) readChoice(b []byte, at Span) bool {
	w := Walk(b[:at.To], at.From, '{')
	for {
		key, v, ok := w.Next()
		if !ok {
			return w.Err() == nil
		}
		switch string(key.Of(b)) {
		case `"index"`:
			if b[v.From] != '0' {
				return false
			}
		case `"finish_reason"`:
			if IsString(b, v) {
				e.Finish = Inner(v)
			}
		case `"text"`:
			if IsString(b, v) {
				e.Text = Inner(v)
			}
		case `"delta"`:
			if !e.readDelta(b, v) {
				return false
			}
		}
	}
}

func (e *Chunk) readDelta(b []byte, at Span) bool {
	w := Walk(b[:at.To], at.From, '{')
	for {
		key, v, ok := w.Next()
		if !ok {
			return w.Err() == nil
		}
		raw := v.Of(b)
		switch string(key.Of(b)) {
		case `"role"`:
			e.Role = !Null(raw)
		case `"content"`:
			if IsString(b, v) {
				e.Text = Inner(v)
			}
		case `"reasoning_content"`, `"reasoning"`, `"refusal"`, `"tool_calls"`, `"function_call"`, `"audio"`:
			if !Null(raw) && string(raw) != `""` && string(raw) != "[]" {
				e.State = Text(key.Of(b))
			}
		}
	}
}
