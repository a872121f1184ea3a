package openai

import "bytes"

// Usage is what an engine says that an answer took, in tokens.
type Usage struct {
	// Prompt are the tokens of the prompt, Cached those of them that the engine had in its
	// prefix cache, and Completion those of the answer.
	Prompt, Cached, Completion int64
}

// ReadUsage reads a usage object of any of the APIs at that place of b. Anthropic's says what came
// from the cache beside the input and not as a part of it. ok tells whether there is any number
// that counts.
func ReadUsage(b []byte, at Span) (u Usage, ok bool) {
	if at.Empty() || b[at.From] != '{' {
		return u, false
	}
	beside := int64(0)
	w := Walk(b[:at.To], at.From, '{')
	for {
		key, v, more := w.Next()
		if !more {
			break
		}
		raw := v.Of(b)
		switch string(key.Of(b)) {
		case `"prompt_tokens"`, `"input_tokens"`:
			u.Prompt, ok = count(raw), true
		case `"completion_tokens"`, `"output_tokens"`:
			u.Completion, ok = count(raw), true
		case `"prompt_tokens_details"`, `"input_tokens_details"`:
			u.Cached = max(u.Cached, member(b, v, `"cached_tokens"`))
		case `"cache_read_input_tokens"`:
			u.Cached = count(raw)
			beside += u.Cached
		case `"cache_creation_input_tokens"`:
			beside += count(raw)
		}
	}
	u.Prompt += beside
	u.Cached = min(u.Cached, u.Prompt)
	return u, ok
}

// count is a number of tokens, 0 for what is none.
func count(raw []byte) int64 { return int64(number(raw)) }

// member is a number in an object, 0 where there is none.
func member(b []byte, at Span, name string) (n int64) {
	if b[at.From] != '{' {
		return 0
	}
	w := Walk(b[:at.To], at.From, '{')
	for {
		key, v, ok := w.Next()
		if !ok {
			return n
		}
		if string(key.Of(b)) == name {
			n = count(v.Of(b))
		}
	}
}

// UsageOf reads the usage of a whole answer that is one JSON object.
func UsageOf(answer []byte) (u Usage, ok bool) {
	w := Walk(answer, 0, '{')
	for {
		key, v, more := w.Next()
		if !more {
			return u, ok
		}
		if string(key.Of(answer)) == `"usage"` {
			u, ok = ReadUsage(answer, v)
		}
	}
}

var usageKey = []byte(`"usage":`)

// UsageIn reads the usage from the end of an answer whose beginning is gone. In a text a quote is
// escaped, so that the key cannot be a part of one.
func UsageIn(end []byte) (Usage, bool) {
	i := bytes.LastIndex(end, usageKey)
	for ; i >= 0; i = bytes.LastIndex(end[:i], usageKey) {
		if i > 0 && end[i-1] == '\\' {
			continue
		}
		at := i + len(usageKey)
		for at < len(end) && (end[at] == ' ' || end[at] == '\n') {
			at++
		}
		if at == len(end) || end[at] != '{' {
			continue
		}
		w := Walk(end, at, '{')
		for ok := true; ok; {
			_, _, ok = w.Next()
		}
		if w.Err() != nil {
			continue
		}
		return ReadUsage(end, Span{at, w.End() + 1})
	}
	return Usage{}, false
}
