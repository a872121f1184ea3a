package continuation

import (
	"bytes"
	"fmt"
	"strconv"

	"remuda/controller/gateway/openai"
)

// Splice turns lines of the next engine's stream, after Request, into what the
// client's stream goes on with, and takes them into the record as Feed does: what it
// returns must be sent, and must not be fed. The opening role is dropped if the client has it;
// id, created and model become the first stream's; a usage counts the whole answer. All
// else passes as it is. A line that has not ended yet is kept for the next call. The
// result is valid until then.
func (r *Recorder) Splice(p []byte) []byte {
	r.out = r.out[:0]
	for len(p) > 0 {
		i := bytes.IndexByte(p, '\n') + 1
		if i == 0 {
			r.keepPart(p)
			break
		}
		line := p[:i]
		if len(r.part) > 0 {
			r.keepPart(line)
			line = r.part
		}
		r.spliceLine(line)
		r.part = r.part[:0]
		p = p[i:]
	}
	return r.out
}

func (r *Recorder) spliceLine(line []byte) {
	if r.atSeam {
		r.atSeam = false
		r.out = r.closeEvent(r.out)
		if r.counting && !r.finished {
			r.out = r.appendFinish(r.out)
		}
	}
	what, at := openai.Classify(line)
	if what == openai.LineBlank && r.dropEnd {
		r.dropEnd = false
		return
	}
	if what != openai.LineData {
		r.line(line)
		r.out = append(r.out, line...)
		return
	}
	e, err := openai.ParseChunk(line, at)
	switch {
	case err != nil:
		r.fail(fmt.Errorf("%w: %.100q", err, at.Of(line)))
	case e.Choice && (r.counting || r.opened && e.Opens()):
		r.learnPrompt(line, &e)
		r.dropEnd = true
		return
	default:
		r.note(line, &e)
		r.openEvent = true
		r.rewrite(line, &e)
		return
	}
	r.openEvent = true
	r.out = append(r.out, line...)
}

// closeEvent ends the event that was open when the stream broke off.
func (r *Recorder) closeEvent(to []byte) []byte {
	if r.openEvent {
		to = append(to, '\n')
		r.openEvent = false
	}
	return to
}

// rewrite appends a line with the first stream's names and the whole answer's usage.
func (r *Recorder) rewrite(line []byte, e *openai.Chunk) {
	var store [6]openai.Edit
	edits := store[:0]
	add := func(at openai.Span, with []byte) {
		if at.Empty() || len(with) == 0 {
			return
		}
		// Engines write these in any order.
		i := len(edits)
		for i > 0 && edits[i-1].At.From > at.From {
			i--
		}
		edits = append(edits, openai.Edit{})
		copy(edits[i+1:], edits[i:])
		edits[i] = openai.Edit{At: at, With: with}
	}
	add(e.ID, r.id)
	add(e.Created, r.created)
	add(e.Model, r.model)
	if n, ok := openai.Whole(e.CompletionTokens.Of(line)); ok {
		n += r.base
		if r.counting {
			n = r.tokens
		}
		prompt := max(r.prompt, 0)
		add(e.PromptTokens, strconv.AppendInt(nil, int64(prompt), 10))
		add(e.CompletionTokens, strconv.AppendInt(nil, int64(n), 10))
		add(e.TotalTokens, strconv.AppendInt(nil, int64(prompt+n), 10))
	}
	r.out = openai.Edited(r.out, line, edits)
}
