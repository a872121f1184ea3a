package gateway

import (
	"remuda/controller/gateway/openai"
)

// usageTail is how much of the end of a long answer is kept for its usage.
const usageTail = 4 << 10

// tokens counts what an answer takes.
type tokens struct {
	openai.Usage
	// answered: an engine has answered, whole or in part. estimated: the engine has not said what
	// the whole answer took.
	answered, estimated bool

	// events reads a stream; tail is the end of a long whole answer, and bytes its length.
	events  openai.Events
	counted bool
	tail    []byte
	bytes   int64
}

// whole takes a whole answer.
func (t *tokens) whole(answer []byte, isJSON bool) {
	t.bytes = int64(len(answer))
	if isJSON {
		t.Usage, t.counted = openai.UsageOf(answer)
	}
}

// part takes a part of an answer that is too long to be held.
func (t *tokens) part(p []byte, isJSON bool) {
	t.bytes += int64(len(p))
	if !isJSON {
		return
	}
	if len(p) >= usageTail {
		t.tail = append(t.tail[:0], p[len(p)-usageTail:]...)
		return
	}
	if over := len(t.tail) + len(p) - usageTail; over > 0 {
		t.tail = t.tail[:copy(t.tail, t.tail[over:])]
	}
	t.tail = append(t.tail, p...)
}

// ended takes the end of such an answer.
func (t *tokens) ended(isJSON bool) {
	if isJSON {
		t.Usage, t.counted = openai.UsageIn(t.tail)
	}
	t.tail = nil
}

// settle says what the answer to a request took: what the engine says, or an estimate.
func (t *tokens) settle(q *request) {
	if !t.answered {
		return
	}
	if t.events.Counted {
		t.Usage, t.counted = t.events.Usage, true
	}
	// A stream of Anthropic's or with usage in each event has said something before its end.
	t.estimated = !t.counted || q.head.Stream && t.events.Pieces > 0 && !t.events.Ended
	if t.estimated && q.route.light {
		t.estimated = false
	}
	if !t.estimated {
		return
	}
	t.Prompt = max(t.Prompt, q.promptTokens)
	switch {
	case !q.route.generates:
	case t.events.Pieces > 0:
		t.Completion = max(t.Completion, t.events.Pieces)
	default:
		t.Completion = max(t.Completion, t.bytes/openai.BytesPerToken)
	}
}
