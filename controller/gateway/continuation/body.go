package continuation

import (
	"slices"
	"strconv"

	"remuda/controller/gateway/openai"
)

// place tells where the text so far is put: before and after are written around it. In at
// is what they take the place of.
type place struct {
	at            openai.Span
	before, after string
}

func (r *request) place() (place, error) {
	if !r.chat {
		return r.prompt()
	}
	generation, final := string(r.generation.Of(r.body)), string(r.final.Of(r.body))
	r.isFinal = final == "true"
	if !r.isFinal && generation == "false" {
		return place{}, not("add_generation_prompt is false: the response is not an assistant's turn")
	}
	w := openai.Walk(r.body, r.input.From, '[')
	if r.input.Empty() || w.Err() != nil {
		return place{}, not("messages is not a list")
	}
	var last openai.Span
	if r.isFinal {
		for {
			_, v, ok := w.Next()
			if !ok {
				break
			}
			last = v
		}
		if w.Err() != nil || last.Empty() {
			return place{}, not("messages has no message to continue")
		}
		return r.inMessage(last)
	}
	if _, _, some := w.Next(); !some {
		return place{}, not("messages is empty")
	}
	// The list is not read: its end is known.
	return place{openai.Span{From: r.input.To - 1, To: r.input.To - 1}, `,{"role":"assistant","content":"`, `"}`}, nil
}

// prompt finds the one text of a prompt.
func (r *request) prompt() (place, error) {
	at := r.input
	if !at.Empty() && r.body[at.From] == '[' {
		w := openai.Walk(r.body, at.From, '[')
		_, first, one := w.Next()
		_, _, more := w.Next()
		if !one || more || w.Err() != nil {
			return place{}, not("prompt is a list of several strings or of token IDs")
		}
		at = first
	}
	if !openai.IsString(r.body, at) {
		return place{}, not("prompt is not a string")
	}
	return place{at: openai.Span{From: at.To - 1, To: at.To - 1}}, nil
}

// inMessage finds the end of a message's content.
func (r *request) inMessage(at openai.Span) (place, error) {
	w := openai.Walk(r.body[:at.To], at.From, '{')
	var content openai.Span
	for {
		key, v, ok := w.Next()
		if !ok {
			break
		}
		if openai.Text(key.Of(r.body)) == "content" {
			content = v
		}
	}
	switch {
	case w.Err() != nil || !w.Begun():
		return place{}, not("the message to continue is not an object with a role")
	case content.Empty():
		return place{openai.Span{From: w.End(), To: w.End()}, `,"content":"`, `"`}, nil
	case openai.Null(content.Of(r.body)):
		return place{content, `"`, `"`}, nil
	case openai.IsString(r.body, content):
		return place{at: openai.Span{From: content.To - 1, To: content.To - 1}}, nil
	}
	part, ok := lastPart(r.body, content)
	if !ok {
		return place{}, not("the message to continue does not end with text")
	}
	return place{at: openai.Span{From: part.To - 1, To: part.To - 1}}, nil
}

// lastPart finds the text of the last of a content's parts.
func lastPart(b []byte, content openai.Span) (openai.Span, bool) {
	var last, text openai.Span
	for w := openai.Walk(b[:content.To], content.From, '['); ; {
		_, v, ok := w.Next()
		if !ok {
			break
		}
		last = v
	}
	if openai.IsString(b, last) {
		return last, true
	}
	if last.Empty() {
		return text, false
	}
	for w := openai.Walk(b[:last.To], last.From, '{'); ; {
		key, v, ok := w.Next()
		if !ok {
			break
		}
		if openai.Text(key.Of(b)) == "text" {
			text = v
		}
	}
	return text, openai.IsString(b, text)
}

// with is the body that asks for what follows text, a JSON string's inner part, which has
// so many tokens.
func (r *request) with(text []byte, tokens int) ([]byte, error) {
	p, err := r.place()
	if err != nil {
		return nil, err
	}
	said := make([]byte, 0, len(p.before)+len(text)+len(p.after))
	said = append(append(append(said, p.before...), text...), p.after...)
	edits := []openai.Edit{{At: p.at, With: said}}
	var tail []byte
	set := func(name string, at openai.Span, value string) {
		if !at.Empty() {
			edits = append(edits, openai.Edit{At: at, With: []byte(value)})
			return
		}
		tail = append(append(append(append(tail, `,"`...), name...), `":`...), value...)
	}
	less := func(at openai.Span, least int) string {
		n, _ := openai.Whole(at.Of(r.body))
		return strconv.Itoa(max(n-tokens, least))
	}
	if r.chat {
		set("continue_final_message", r.final, "true")
		set("add_generation_prompt", r.generation, "false")
	}
	switch {
	case !r.max.Empty():
		set("max_tokens", r.max, less(r.max, 1))
	case !r.chat:
		set("max_tokens", r.max, strconv.Itoa(defaultMaxTokens-tokens))
	}
	if !r.newMax.Empty() {
		set("max_completion_tokens", r.newMax, less(r.newMax, 1))
	}
	if !r.min.Empty() {
		set("min_tokens", r.min, less(r.min, 0))
	}
	return r.edited(edits, tail), nil
}

// once is the body that asks for one token, to learn how many the prompt has.
func (r *request) once() []byte {
	var edits []openai.Edit
	tail := []byte(nil)
	for _, at := range []openai.Span{r.max, r.newMax} {
		if !at.Empty() {
			edits = append(edits, openai.Edit{At: at, With: []byte("1")})
		}
	}
	if len(edits) == 0 {
		tail = []byte(`,"max_tokens":1`)
	}
	if !r.min.Empty() {
		edits = append(edits, openai.Edit{At: r.min, With: []byte("0")})
	}
	return r.edited(edits, tail)
}

// edited is the body with its edits and with tail before its last bracket.
func (r *request) edited(edits []openai.Edit, tail []byte) []byte {
	edits = append(edits, openai.Edit{At: openai.Span{From: r.end, To: r.end}, With: tail})
	slices.SortFunc(edits, func(a, b openai.Edit) int { return a.At.From - b.At.From })
	size := len(r.body)
	for _, e := range edits {
		size += len(e.With)
	}
	return openai.Edited(make([]byte, 0, size), r.body, edits)
}
