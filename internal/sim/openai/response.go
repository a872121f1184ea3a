package openai

import (
	"encoding/json"
	"strconv"
)

// Fingerprint is the system_fingerprint of every answer, or begins it.
const Fingerprint = "remuda-sim"

// Kind is one of the two shapes of an answer.
type Kind int

// The kinds of answers.
const (
	Chat Kind = iota
	Completion
)

func (k Kind) object(stream bool) string {
	switch {
	case k == Completion:
		return "text_completion" // the same for both
	case stream:
		return "chat.completion.chunk"
	default:
		return "chat.completion"
	}
}

// IDPrefix begins the answers' ids.
func (k Kind) IDPrefix() string {
	if k == Chat {
		return "chatcmpl-"
	}
	return "cmpl-"
}

// Choice is one finished answer.
type Choice struct {
	Text       string
	Finish     string
	StopReason string
	// Calls are the calls of a whole answer, or the part of one that an event brings.
	Calls []Call
	// Logprobs is JSON; nil where the client asked for none.
	Logprobs []byte
}

// Call is a call of a function.
type Call struct {
	Index int
	// ID and Name are empty except in the first event of the call.
	ID, Name  string
	Arguments string
}

// append appends the call; in an event it has its index.
func (c *Call) append(b []byte, event bool) []byte {
	b = append(b, '{')
	if event {
		b = append(strconv.AppendInt(append(b, `"index":`...), int64(c.Index), 10), ',')
	}
	if c.ID != "" {
		b = append(appendString(append(b, `"id":`...), c.ID), `,"type":"function",`...)
	}
	b = append(b, `"function":{`...)
	if c.Name != "" {
		b = append(appendString(append(b, `"name":`...), c.Name), ',')
	}
	return append(appendString(append(b, `"arguments":`...), c.Arguments), "}}"...)
}

func appendCalls(b []byte, calls []Call, event bool) []byte {
	b = append(b, `"tool_calls":[`...)
	for i := range calls {
		if i > 0 {
			b = append(b, ',')
		}
		b = calls[i].append(b, event)
	}
	return append(b, ']')
}

// Writer writes the answers to one request. Its output is appended by hand: a
// stream writes one object per token.
type Writer struct {
	kind   Kind
	prefix []byte // of every event, up to the choices
	head   []byte // of a whole answer, likewise
	// fingerprint is of a whole answer and of the last event of a stream, of each event with stamped.
	fingerprint string
	stamped     bool
}

// NewWriter fixes what all parts of an answer share. Created is in Unix
// seconds. A stamp, unless empty, is a part of the fingerprint, which each event has then.
func NewWriter(kind Kind, id, model string, created int64, stamp string) *Writer {
	begin := func(stream bool) []byte {
		b := appendString([]byte(`{"id":`), id)
		b = appendString(append(b, `,"object":`...), kind.object(stream))
		b = strconv.AppendInt(append(b, `,"created":`...), created, 10)
		b = appendString(append(b, `,"model":`...), model)
		return append(b, `,"choices":[`...)
	}
	w := &Writer{kind: kind, prefix: append([]byte("data: "), begin(true)...), head: begin(false), fingerprint: Fingerprint}
	if stamp != "" {
		w.fingerprint, w.stamped = Fingerprint+"-"+stamp, true
	}
	return w
}

// Role appends the event that opens one choice of a chat stream.
func (w *Writer) Role(b []byte, index int, usage *Usage) []byte {
	b = append(b, w.prefix...)
	b = strconv.AppendInt(append(b, `{"index":`...), int64(index), 10)
	b = append(b, `,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]`...)
	return w.endEvent(b, usage, false)
}

// Token appends the event of one token. Usage is nil unless every event
// carries it; last asks for the fingerprint.
func (w *Writer) Token(b []byte, index int, c Choice, usage *Usage, last bool) []byte {
	b = append(b, w.prefix...)
	b = strconv.AppendInt(append(b, `{"index":`...), int64(index), 10)
	switch {
	case w.kind == Completion:
		b = appendString(append(b, `,"text":`...), c.Text)
	case c.Calls != nil:
		b = append(appendCalls(append(b, `,"delta":{`...), c.Calls, true), '}')
	default:
		b = append(appendString(append(b, `,"delta":{"content":`...), c.Text), '}')
	}
	b = append(appendLogprobs(b, c.Logprobs), `,"finish_reason":`...)
	b = appendFinish(b, c)
	b = append(b, `}]`...)
	return w.endEvent(b, usage, last && c.Finish != "")
}

// FinalUsage appends the event with the usage of the whole request.
func (w *Writer) FinalUsage(b []byte, u Usage) []byte {
	b = append(append(b, w.prefix...), ']')
	return w.endEvent(b, &u, true)
}

// Done appends the stream's last event.
func Done(b []byte) []byte { return append(b, "data: [DONE]\n\n"...) }

// Answer is the whole answer to a request that is not streamed.
func (w *Writer) Answer(choices []Choice, u Usage) []byte {
	b := append([]byte(nil), w.head...)
	for i, c := range choices {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(append(b, `{"index":`...), int64(i), 10)
		if w.kind == Chat {
			b = append(b, `,"message":{"role":"assistant","content":`...)
			if c.Calls == nil {
				b = appendString(b, c.Text)
			} else {
				b = append(b, "null"...)
			}
			b = append(appendCalls(append(b, `,"refusal":null,`...), c.Calls, false), '}')
		} else {
			b = appendString(append(b, `,"text":`...), c.Text)
		}
		b = append(appendLogprobs(b, c.Logprobs), `,"finish_reason":`...)
		b = append(appendFinish(b, c), '}')
	}
	b = append(b, `],"service_tier":null,"system_fingerprint":`...)
	b = append(appendString(b, w.fingerprint), `,"usage":`...)
	return append(u.append(b), '}')
}

func appendLogprobs(b, logprobs []byte) []byte {
	b = append(b, `,"logprobs":`...)
	if logprobs == nil {
		return append(b, "null"...)
	}
	return append(b, logprobs...)
}

func appendFinish(b []byte, c Choice) []byte {
	if c.Finish == "" {
		return append(b, "null"...)
	}
	b = append(appendString(b, c.Finish), `,"stop_reason":`...)
	if c.StopReason == "" {
		return append(b, "null"...)
	}
	return appendString(b, c.StopReason)
}

func (w *Writer) endEvent(b []byte, usage *Usage, fingerprint bool) []byte {
	if fingerprint || w.stamped {
		b = appendString(append(b, `,"system_fingerprint":`...), w.fingerprint)
	}
	if usage != nil {
		b = usage.append(append(b, `,"usage":`...))
	}
	return append(b, "}\n\n"...)
}

// appendString appends s as a JSON string.
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= 0x7f {
			quoted, err := json.Marshal(s)
			if err != nil {
				panic(err) // cannot happen: invalid UTF-8 is replaced
			}
			return append(b, quoted...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}
