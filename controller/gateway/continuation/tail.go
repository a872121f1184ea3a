package continuation

import "strconv"

// Tail is what a client that has the whole text still misses: the end of an open event,
// the finish reason, which is "length" since no engine had said another, the usage if
// it asked for one and the prompt's tokens are known, and [DONE]. It is to be sent after
// ErrComplete, once; it is empty if the client misses nothing, and nil if it misses text.
func (r *Recorder) Tail() []byte {
	if !r.complete() {
		return nil
	}
	to := r.closeEvent([]byte{})
	if r.done {
		return to
	}
	if !r.finished {
		to = r.appendFinish(to)
	}
	if r.request.usage && !r.usageShown && r.prompt >= 0 {
		to = r.appendHead(to)
		to = append(to, `],"usage":`...)
		to = append(r.appendUsage(to), "}\n\n"...)
		r.usageShown = true
	}
	r.done = true
	return append(to, "data: [DONE]\n\n"...)
}

// appendFinish appends the event that says that max_tokens is reached.
func (r *Recorder) appendFinish(to []byte) []byte {
	r.finished = true
	to = r.appendHead(to)
	to = append(to, `{"index":0,`...)
	if r.request.chat {
		to = append(to, `"delta":{"content":""}`...)
	} else {
		to = append(to, `"text":""`...)
	}
	to = append(to, `,"logprobs":null,"finish_reason":"length","stop_reason":null}]`...)
	if r.request.continuous && r.prompt >= 0 {
		to = r.appendUsage(append(to, `,"usage":`...))
	}
	return append(to, "}\n\n"...)
}

// appendHead appends an event up to its choices.
func (r *Recorder) appendHead(to []byte) []byte {
	to = append(to, "data: {"...)
	for _, f := range []struct {
		name  string
		value []byte
	}{{`"id":`, r.id}, {`"created":`, r.created}, {`"model":`, r.model}} {
		if len(f.value) > 0 {
			to = append(append(append(to, f.name...), f.value...), ',')
		}
	}
	if r.request.chat {
		to = append(to, `"object":"chat.completion.chunk"`...)
	} else {
		to = append(to, `"object":"text_completion"`...)
	}
	return append(to, `,"choices":[`...)
}

func (r *Recorder) appendUsage(to []byte) []byte {
	to = strconv.AppendInt(append(to, `{"prompt_tokens":`...), int64(r.prompt), 10)
	to = strconv.AppendInt(append(to, `,"total_tokens":`...), int64(r.prompt+r.tokens), 10)
	to = strconv.AppendInt(append(to, `,"completion_tokens":`...), int64(r.tokens), 10)
	return append(to, '}')
}
