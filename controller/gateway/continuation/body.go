package continuation

import (
	"slices"
	"strconv"
)

// place tells where the text so far is put: before and after are written around it. In at
// is what they take the place of.
type place struct {
	at            span
	before, after string
}

func (r *request) place() (place, error) {
	if !r.chat {
		return r.prompt()
	}
	generation, final := string(r.generation.of(r.body)), string(r.final.of(r.body))
	r.isFinal = final == "true"
	if !r.isFinal && generation == "false" {
		return place{}, not("add_generation_prompt is false: the response is not an assistant's turn")
	}
	w := walk(r.body, r.input.from, '[')
	if r.input.empty() || w.bad {
		return place{}, not("messages is not a list")
	}
	var last span
	if r.isFinal {
		for {
			_, v, ok := w.next()
			if !ok {
				break
			}
			last = v
		}
		if w.bad || last.empty() {
			return place{}, not("messages has no message to continue")
		}
		return r.inMessage(last)
	}
	if w.space(); r.body[w.i] == ']' {
		return place{}, not("messages is empty")
	}
	// The list is not read: its end is known.
	return place{span{r.input.to - 1, r.input.to - 1}, `,{"role":"assistant","content":"`, `"}`}, nil
}

// prompt finds the one text of a prompt.
func (r *request) prompt() (place, error) {
	at := r.input
	if !at.empty() && r.body[at.from] == '[' {
		w := walk(r.body, at.from, '[')
		_, first, one := w.next()
		_, _, more := w.next()
		if !one || more || w.bad {
			return place{}, not("prompt is a list of several strings or of token IDs")
		}
		at = first
	}
	if !isString(r.body, at) {
		return place{}, not("prompt is not a string")
	}
	return place{at: span{at.to - 1, at.to - 1}}, nil
}

// inMessage finds the end of a message's content.
func (r *request) inMessage(at span) (place, error) {
	w := walk(r.body[:at.to], at.from, '{')
	var content span
	for {
		key, v, ok := w.next()
		if !ok {
			break
		}
		if name(key.of(r.body)) == "content" {
			content = v
		}
	}
	switch {
	case w.bad || !w.begun:
		return place{}, not("the message to continue is not an object with a role")
	case content.empty():
		return place{span{w.end, w.end}, `,"content":"`, `"`}, nil
	case null(content.of(r.body)):
		return place{content, `"`, `"`}, nil
	case isString(r.body, content):
		return place{at: span{content.to - 1, content.to - 1}}, nil
	}
	part, ok := lastPart(r.body, content)
	if !ok {
		return place{}, not("the message to continue does not end with text")
	}
	return place{at: span{part.to - 1, part.to - 1}}, nil
}

// lastPart finds the text of the last of a content's parts.
func lastPart(b []byte, content span) (span, bool) {
	var last, text span
	for w := walk(b[:content.to], content.from, '['); ; {
		_, v, ok := w.next()
		if !ok {
			break
		}
		last = v
	}
	if isString(b, last) {
		return last, true
	}
	if last.empty() {
		return text, false
	}
	for w := walk(b[:last.to], last.from, '{'); ; {
		key, v, ok := w.next()
		if !ok {
			break
		}
		if name(key.of(b)) == "text" {
			text = v
		}
	}
	return text, isString(b, text)
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
	edits := []edit{{p.at, said}}
	var tail []byte
	set := func(name string, at span, value string) {
		if !at.empty() {
			edits = append(edits, edit{at, []byte(value)})
			return
		}
		tail = append(append(append(append(tail, `,"`...), name...), `":`...), value...)
	}
	less := func(at span, least int) string {
		n, _ := whole(at.of(r.body))
		return strconv.Itoa(max(n-tokens, least))
	}
	if r.chat {
		set("continue_final_message", r.final, "true")
		set("add_generation_prompt", r.generation, "false")
	}
	switch {
	case !r.max.empty():
		set("max_tokens", r.max, less(r.max, 1))
	case !r.chat:
		set("max_tokens", r.max, strconv.Itoa(defaultMaxTokens-tokens))
	}
	if !r.newMax.empty() {
		set("max_completion_tokens", r.newMax, less(r.newMax, 1))
	}
	if !r.min.empty() {
		set("min_tokens", r.min, less(r.min, 0))
	}
	return r.edited(edits, tail), nil
}

// once is the body that asks for one token, to learn how many the prompt has.
func (r *request) once() []byte {
	var edits []edit
	tail := []byte(nil)
	for _, at := range []span{r.max, r.newMax} {
		if !at.empty() {
			edits = append(edits, edit{at, []byte("1")})
		}
	}
	if len(edits) == 0 {
		tail = []byte(`,"max_tokens":1`)
	}
	if !r.min.empty() {
		edits = append(edits, edit{r.min, []byte("0")})
	}
	return r.edited(edits, tail)
}

// edited is the body with its edits and with tail before its last bracket.
func (r *request) edited(edits []edit, tail []byte) []byte {
	edits = append(edits, edit{span{r.end, r.end}, tail})
	slices.SortFunc(edits, func(a, b edit) int { return a.at.from - b.at.from })
	size := len(r.body)
	for _, e := range edits {
		size += len(e.with)
	}
	return edited(make([]byte, 0, size), r.body, edits)
}
