package continuation

import (
	"bytes"
	"errors"
	"fmt"

	"remuda/controller/gateway/openai"
)

// DefaultLimit is how many bytes of text are kept at most, unless SetLimit says otherwise.
// It is about 200,000 tokens, more than most models can answer.
const DefaultLimit = 1 << 20

// Errors of Request.
var (
	// ErrComplete: nothing is left to ask an engine for. Tail is what the client misses.
	ErrComplete = errors.New("the response is complete")
	// ErrHalfLine: the client has half a line, behind which nothing can go on.
	ErrHalfLine = errors.New("the client has already received part of a line")
	// ErrMemory: there was no memory for the text.
	ErrMemory = errors.New("the gateway has no memory for the response")
)

// Recorder keeps what one answer needs to go on at another engine. It is not safe for
// concurrent use.
type Recorder struct {
	request *request
	limit   int
	err     error
	// take asks for memory for the text; nil: there is enough.
	take func(bytes int) bool

	// text is what the client has, as the inner part of a JSON string; tokens is how
	// many that is, base of them from engines before the current one.
	text         []byte
	tokens, base int
	// made is how many tokens the current engine has generated, of which the last may be
	// without text yet.
	made int

	// id, created and model are raw, of the first event that had them.
	id, created, model []byte
	// prompt is how many tokens the prompt has, -1 while nobody has said.
	prompt int

	opened     bool // the client has the role
	finished   bool // the client has the finish reason
	usageShown bool // the client has the final usage
	done       bool // the client has [DONE]
	openEvent  bool // the client has lines of an event without its end
	halfLine   bool // the client has a part of a line

	// part is the beginning of a line whose end has not come.
	part []byte
	// counting: the current engine is asked only for the prompt's tokens.
	counting bool
	// atSeam: nothing of the stream after the last break was passed on yet.
	atSeam bool
	// dropEnd: the blank line that comes belongs to an event that was dropped.
	dropEnd bool
	out     []byte
}

// NewRecorder begins the record of the answer to a request, a chat's or a text
// completion's. It keeps body, which must not change from then on. The error wraps ErrNot and
// says why such an answer cannot go on elsewhere.
func NewRecorder(chat bool, body []byte) (*Recorder, error) {
	r, err := newRequest(chat, body)
	if err != nil {
		return nil, err
	}
	return &Recorder{request: r, limit: DefaultLimit, prompt: -1}, nil
}

// Bound has the recorder ask for memory before its text grows. Where there is none the record ends
// with ErrMemory, and needs none of what it took any more.
func (r *Recorder) Bound(take func(bytes int) bool) { r.take = take }

// leastText is how much memory a text has at first.
const leastText = 1 << 10

// keepText adds to the text that the client has.
func (r *Recorder) keepText(p []byte) {
	size := len(r.text) + len(p)
	switch {
	case r.err != nil || len(p) == 0:
	case size > r.limit:
		r.drop(fmt.Errorf("the response is longer than the %d bytes that the gateway keeps", r.limit))
	case size <= cap(r.text):
		r.text = append(r.text, p...)
	default:
		room := max(size, min(2*cap(r.text), r.limit), leastText)
		if r.take != nil && !r.take(room-cap(r.text)) {
			r.drop(ErrMemory)
			return
		}
		r.text = append(append(make([]byte, 0, room), r.text...), p...)
	}
}

// drop ends the record of the text.
func (r *Recorder) drop(err error) {
	r.fail(err)
	r.text = nil
}

// Err tells why the answer cannot go on at another engine; nil: it can.
func (r *Recorder) Err() error { return r.err }

// Tokens is how many tokens the text has that the client was sent.
func (r *Recorder) Tokens() int { return r.tokens }

// Feed reads what the client is sent of the first engine's stream, in whole lines. What does
// not end with a line's end is taken for the beginning of a line that comes in parts.
func (r *Recorder) Feed(p []byte) {
	for len(p) > 0 {
		i := bytes.IndexByte(p, '\n') + 1
		if i == 0 {
			r.keepPart(p)
			r.halfLine = true
			return
		}
		line := p[:i]
		if r.halfLine {
			r.keepPart(line)
			line, r.halfLine = r.part, false
		}
		r.line(line)
		r.part = r.part[:0]
		p = p[i:]
	}
}

// keepPart keeps the beginning of a line, within the limit.
func (r *Recorder) keepPart(p []byte) {
	if len(r.part)+len(p) > r.limit+maxLine {
		r.fail(fmt.Errorf("a line of the stream has more than %d bytes", r.limit+maxLine))
		r.part = r.part[:0]
		return
	}
	r.part = append(r.part, p...)
}

// maxLine is what an event has beside its text, in bytes, with much to spare.
const maxLine = 64 << 10

func (r *Recorder) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// line reads a line that the client gets.
func (r *Recorder) line(line []byte) {
	what, at := openai.Classify(line)
	switch what {
	case openai.LineBlank:
		r.openEvent = false
	case openai.LineComment:
	case openai.LineOther:
		r.openEvent = true
	case openai.LineDone:
		r.openEvent, r.done = true, true
	case openai.LineData:
		r.openEvent = true
		e, err := openai.ParseChunk(line, at)
		if err != nil {
			r.fail(fmt.Errorf("%w: %.100q", err, at.Of(line)))
			return
		}
		r.note(line, &e)
	}
}

// note takes an event into the record.
func (r *Recorder) note(line []byte, e *openai.Chunk) {
	switch {
	case e.Failed:
		r.fail(fmt.Errorf("the engine sent an error: %.100q", line))
		return
	case e.State != "":
		r.fail(fmt.Errorf("the response has %s, which another engine cannot continue", e.State))
		return
	}
	r.keepNames(line, e)
	r.learnPrompt(line, e)
	r.usageShown = r.usageShown || e.Choices && !e.Choice && !e.Usage.Empty()
	if r.counting {
		return
	}
	if n, ok := openai.Whole(e.CompletionTokens.Of(line)); ok {
		r.made = n
	} else if e.Token() {
		r.made++
	}
	r.opened = r.opened || e.Role
	r.finished = r.finished || !e.Finish.Empty()
	if !e.Text.Empty() || r.finished {
		// All that was held back before is out now.
		r.tokens = r.base + r.made
	}
	r.keepText(e.Text.Of(line))
}

// learnPrompt takes the number of the prompt's tokens from the first event that has it. The
// prompt of a continuation has the text so far as well.
func (r *Recorder) learnPrompt(line []byte, e *openai.Chunk) {
	n, ok := openai.Whole(e.PromptTokens.Of(line))
	if !ok || r.prompt >= 0 {
		return
	}
	if !r.counting {
		n = max(n-r.base, 0)
	}
	r.prompt = n
}

// keepNames keeps what all events of an answer share.
func (r *Recorder) keepNames(line []byte, e *openai.Chunk) {
	if r.id == nil && !e.ID.Empty() {
		r.id = bytes.Clone(e.ID.Of(line))
		r.created = bytes.Clone(e.Created.Of(line))
		r.model = bytes.Clone(e.Model.Of(line))
	}
}

// complete tells whether the client has the whole text.
func (r *Recorder) complete() bool {
	return r.done || r.finished || r.request.limit > 0 && r.tokens >= r.request.limit
}

// Request returns the body to send to the next engine, at the same path. Where the
// client has no text yet it is the original one. It may be called again for the same
// break, when that engine fails as well.
//
// ErrComplete: there is nothing to ask for, send Tail. Where the client has the
// whole text and waits only for a usage whose prompt tokens nobody has told, the body
// asks for one token, of which Splice passes on the usage alone; Tail may be sent
// instead, and has no usage then.
func (r *Recorder) Request() ([]byte, error) {
	switch {
	case r.err != nil:
		return nil, fmt.Errorf("continue the response: %w", r.err)
	case r.halfLine:
		return nil, ErrHalfLine
	}
	r.base, r.made = r.tokens, 0
	r.part, r.dropEnd, r.counting, r.atSeam = r.part[:0], false, false, true
	switch {
	case !r.complete() && len(r.text) == 0:
		r.base, r.tokens = 0, 0
		return r.request.body, nil
	case !r.complete():
		return r.request.with(r.text, r.tokens)
	case !r.done && r.request.usage && !r.usageShown && r.prompt < 0:
		r.counting = true
		return r.request.once(), nil
	}
	return nil, ErrComplete
}
