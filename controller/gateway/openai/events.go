package openai

import (
	"bytes"
	"fmt"
	"unicode/utf8"
)

// Events reads the event stream of an answer, of any API: what it says that the answer took, whether
// it has said its end, and whether it is an event stream at all.
type Events struct {
	// Hide takes out the event that has a usage and nothing else.
	Hide bool

	// Usage is what the stream has said so far; Counted: it has.
	Usage   Usage
	Counted bool
	// Pieces is how many events had a piece of the answer, which is mostly a token.
	Pieces int64
	// Begun: a piece had content. The first event of a chat often has the role and nothing else.
	Begun bool
	// Response is the ID of the response that the stream is of, in the Responses API; empty until then.
	Response string
	// Ended: the stream has said that it is complete. Failed: it has said that it is not.
	Ended, Failed bool
	// Open: the last event has not come to its end, a blank line.
	Open bool

	out []byte
	// drop: the blank line that comes belongs to an event that was taken out.
	drop bool
}

// Take reads whole lines and returns those that the client gets, which alias p or are valid until
// the next call. The error says what is no line of an event stream; what is before it is returned.
func (e *Events) Take(p []byte) ([]byte, error) {
	rest, kept, edited := p, 0, false
	keep := func(to int) {
		if edited {
			e.out = append(e.out, p[kept:to]...)
		}
	}
	at := 0
	for len(rest) > 0 {
		n := len(rest)
		if i := bytes.IndexByte(rest, '\n'); i >= 0 {
			n = i + 1
		}
		hidden, err := e.line(rest[:n])
		if err != nil {
			keep(at)
			if edited {
				return e.out, err
			}
			return p[:at], err
		}
		if hidden {
			if !edited {
				e.out, edited = e.out[:0], true
			}
			e.out = append(e.out, p[kept:at]...)
			kept = at + n
		}
		at += n
		rest = rest[n:]
	}
	if !edited {
		return p, nil
	}
	keep(len(p))
	return e.out, nil
}

// line reads one line and tells whether it is taken out.
func (e *Events) line(line []byte) (hidden bool, err error) {
	what, at := Classify(line)
	e.Open = e.Open || what != LineComment
	switch what {
	case LineBlank:
		e.Open = false
		hidden, e.drop = e.drop, false
	case LineDone:
		e.Ended = true
	case LineData:
		if at.Empty() {
			break
		}
		var ok bool
		if hidden, ok = e.event(line[:at.To], at); !ok {
			return false, fmt.Errorf("the engine sent an event that is not a JSON object: %.100q", at.Of(line))
		}
		e.drop = hidden
	case LineOther:
		return false, CheckField(line)
	case LineComment:
	}
	return hidden, nil
}

// event reads an event's JSON; ok tells whether it is a JSON object.
func (e *Events) event(b []byte, at Span) (hidden, ok bool) {
	w := Walk(b, at.From, '{')
	choices, empty, counted, content, typed := false, false, false, false, []byte(nil)
	for {
		key, v, more := w.Next()
		if !more {
			break
		}
		switch string(key.Of(b)) {
		case `"choices"`:
			choices, empty = true, b[v.From] == '[' && len(bytes.TrimSpace(b[v.From+1:v.To-1])) == 0
			content = !e.Begun && hasContent(b, v)
		case `"usage"`:
			counted = e.count(b, v)
		case `"response"`, `"message"`:
			if e.Response == "" && string(key.Of(b)) == `"response"` {
				e.Response = ResponseID(v.Of(b))
			}
			e.inner(b, v)
		case `"error"`:
			e.Failed = e.Failed || !Null(v.Of(b))
		case `"type"`:
			if IsString(b, v) {
				typed = Inner(v).Of(b)
			}
		}
	}
	if w.Rest() != nil || !utf8.Valid(at.Of(b)) {
		return false, false
	}
	e.typed(typed)
	e.Begun = e.Begun || content
	if choices && !empty {
		e.Pieces++
	}
	return e.Hide && choices && empty && counted, true
}

// inner reads the usage of the object that an event is about.
func (e *Events) inner(b []byte, at Span) {
	if b[at.From] != '{' {
		return
	}
	w := Walk(b[:at.To], at.From, '{')
	for {
		key, v, ok := w.Next()
		if !ok {
			return
		}
		if string(key.Of(b)) == `"usage"` {
			e.count(b, v)
		}
	}
}

// count takes a usage. Anthropic's stream says the prompt at its beginning, and the answer at its end.
func (e *Events) count(b []byte, at Span) bool {
	u, ok := ReadUsage(b, at)
	if ok {
		e.Counted = true
		e.Usage = Usage{Prompt: max(u.Prompt, e.Usage.Prompt), Cached: max(u.Cached, e.Usage.Cached), Completion: u.Completion}
	}
	return ok
}

// typed reads the type of an event of the APIs that have one.
func (e *Events) typed(name []byte) {
	switch string(name) {
	case "response.completed", "response.incomplete", "message_stop", "transcript.text.done",
		"speech.audio.done", "image_generation.completed", "image_edit.completed":
		e.Ended = true
	case "response.failed":
		e.Ended, e.Failed = true, true
	case "error":
		e.Failed = true
	default:
		if bytes.HasSuffix(name, []byte("delta")) && !bytes.Equal(name, []byte("message_delta")) {
			e.Pieces++
			e.Begun = true
		}
	}
}

// hasContent reports whether one of an event's choices adds text, reasoning, a refusal, audio or a tool call to the answer.
func hasContent(b []byte, choices Span) bool {
	w := Walk(b[:choices.To], choices.From, '[')
	for {
		_, choice, ok := w.Next()
		if !ok {
			return false
		}
		some, delta := content(b, choice)
		if !some && !delta.Empty() {
			some, _ = content(b, delta)
		}
		if some {
			return true
		}
	}
}

// content reports whether a choice, or a delta, has a member with content that is not empty. delta is the choice's.
func content(b []byte, at Span) (some bool, delta Span) {
	w := Walk(b[:at.To], at.From, '{')
	for {
		key, v, ok := w.Next()
		if !ok {
			return some, delta
		}
		switch string(key.Of(b)) {
		case `"delta"`:
			delta = v
		case `"text"`, `"content"`, `"reasoning_content"`, `"reasoning"`, `"refusal"`, `"tool_calls"`, `"function_call"`, `"audio"`:
			raw := v.Of(b)
			some = some || !Null(raw) && string(raw) != `""` && string(raw) != "[]"
		}
	}
}

// CheckField returns an error where a line of the kind LineOther is no field of a server-sent event.
func CheckField(line []byte) error {
	field, _, _ := bytes.Cut(bytes.TrimRight(line, "\r\n"), []byte(":"))
	switch string(field) {
	case "id", "retry", "data", "event":
		return nil
	}
	return fmt.Errorf("the engine sent a line that is not a server-sent event: %.100q", line)
}
