package continuation

import (
	"bytes"
	"errors"
)

// kind is what a line of a stream is.
type kind int

const (
	lineBlank   kind = iota // ends an event
	lineComment             // a keep-alive
	lineData                // an event's JSON
	lineDone                // data: [DONE]
	lineOther               // another field of an event
)

var doneMark = []byte("[DONE]")

// classify tells what a line is and, of data, where its payload is. The line may have its
// end.
func classify(line []byte) (kind, span) {
	end := len(line)
	for end > 0 && (line[end-1] == '\n' || line[end-1] == '\r') {
		end--
	}
	switch {
	case end == 0:
		return lineBlank, span{}
	case line[0] == ':':
		return lineComment, span{}
	case !bytes.HasPrefix(line[:end], []byte("data:")):
		return lineOther, span{}
	}
	at := span{len("data:"), end}
	for at.from < at.to && line[at.from] == ' ' {
		at.from++
	}
	for at.from < at.to && line[at.to-1] == ' ' {
		at.to--
	}
	if bytes.Equal(at.of(line), doneMark) {
		return lineDone, at
	}
	return lineData, at
}

// event is what matters in the JSON of one event. Its spans are of the line; what is not
// there is empty.
type event struct {
	id, created, model span
	// usage is an object, the three below its numbers.
	usage, promptTokens, completionTokens, totalTokens span
	// choices: there is a list of them, choice: with one in it.
	choices, choice bool
	// text is what is added, without its quotes.
	text span
	// role: the delta names the role.
	role bool
	// finish is why the answer ends, without its quotes.
	finish span
	// failed: it is an error and no answer.
	failed bool
	// state is what the answer has beside its text, which cannot go on.
	state string
}

// token tells whether the event is of a token: all are but those that only open the
// answer or close it in a chat where each event names the role.
func (e *event) token() bool { return e.choice && (!e.text.empty() || !e.role) }

// opens tells whether the event is the role of a chat and nothing else.
func (e *event) opens() bool { return e.choice && e.role && e.text.empty() && e.finish.empty() }

var errEvent = errors.New("an event is not the JSON of one response")

// parse reads an event's JSON at that place of a line.
func parse(line []byte, at span) (event, error) {
	var e event
	b := line[:at.to]
	w := walk(b, at.from, '{')
	for {
		key, v, ok := w.next()
		if !ok {
			break
		}
		switch string(key.of(b)) {
		case `"id"`:
			e.id = v
		case `"created"`:
			e.created = v
		case `"model"`:
			e.model = v
		case `"usage"`:
			e.readUsage(b, v)
		case `"error"`:
			e.failed = e.failed || !null(v.of(b))
		case `"choices"`:
			if !e.readChoices(b, v) {
				return e, errEvent
			}
		}
	}
	if w.bad {
		return e, errEvent
	}
	e.failed = e.failed || !e.choices
	return e, nil
}

func (e *event) readUsage(b []byte, at span) {
	if b[at.from] != '{' {
		return
	}
	e.usage = at
	w := walk(b[:at.to], at.from, '{')
	for {
		key, v, ok := w.next()
		if !ok {
			return
		}
		switch string(key.of(b)) {
		case `"prompt_tokens"`:
			e.promptTokens = v
		case `"completion_tokens"`:
			e.completionTokens = v
		case `"total_tokens"`:
			e.totalTokens = v
		}
	}
}

func (e *event) readChoices(b []byte, at span) bool {
	e.choices = true
	w := walk(b[:at.to], at.from, '[')
	for {
		_, v, ok := w.next()
		if !ok {
			return !w.bad
		}
		if e.choice {
			return false
		}
		e.choice = true
		if !e.readChoice(b, v) {
			return false
		}
	}
}

func (e *event) readChoice(b []byte, at span) bool {
	w := walk(b[:at.to], at.from, '{')
	for {
		key, v, ok := w.next()
		if !ok {
			return !w.bad
		}
		switch string(key.of(b)) {
		case `"index"`:
			if b[v.from] != '0' {
				return false
			}
		case `"finish_reason"`:
			if isString(b, v) {
				e.finish = inner(v)
			}
		case `"text"`:
			if isString(b, v) {
				e.text = inner(v)
			}
		case `"delta"`:
			if !e.readDelta(b, v) {
				return false
			}
		}
	}
}

func (e *event) readDelta(b []byte, at span) bool {
	w := walk(b[:at.to], at.from, '{')
	for {
		key, v, ok := w.next()
		if !ok {
			return !w.bad
		}
		raw := v.of(b)
		switch string(key.of(b)) {
		case `"role"`:
			e.role = !null(raw)
		case `"content"`:
			if isString(b, v) {
				e.text = inner(v)
			}
		case `"reasoning_content"`, `"reasoning"`, `"refusal"`, `"tool_calls"`, `"function_call"`, `"audio"`:
			if !null(raw) && string(raw) != `""` && string(raw) != "[]" {
				e.state = name(key.of(b))
			}
		}
	}
}
