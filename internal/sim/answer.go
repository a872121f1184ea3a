package sim

import (
	"net/http"

	"remuda/internal/sim/engine"
	"remuda/internal/sim/fault"
	"remuda/internal/sim/openai"
	"remuda/internal/sim/text"
)

// garbageBytes are neither HTTP nor UTF-8 nor an event.
const garbageBytes = "\x16\x03\x01\xff\xfe\x00garbage\xc3\x28\r\n\x00\x00"

// answer is one response in the making.
type answer struct {
	*call
	job    job
	stream *engine.Stream
	usages []openai.Usage // by sequence
	begun  []bool         // by sequence, whether its prompt was counted
	tokens int            // so far, of all sequences
}

func newAnswer(c *call, j job, stream *engine.Stream) *answer {
	n := j.n * len(j.prompts)
	a := &answer{call: c, job: j, stream: stream, usages: make([]openai.Usage, n), begun: make([]bool, n)}
	for i := range a.usages {
		a.usages[i].Prompt = len(j.prompts[i/j.n].tokens)
	}
	return a
}

// cutOff closes the connection without an end, for a client that is gone and
// for an answer that must not look complete. It does not return.
func cutOff() { panic(http.ErrAbortHandler) }

func (a *answer) send() {
	if a.job.stream {
		a.events()
		return
	}
	tokens, total, err := a.collect()
	if err != nil {
		cutOff()
	}
	a.deliver(a.job.out.ContentType(false), a.job.out.Whole(tokens, total), total)
}

// collect waits for all tokens of every sequence.
func (a *answer) collect() ([][]text.Piece, openai.Usage, error) {
	tokens := make([][]text.Piece, len(a.usages))
	for {
		events, err := a.stream.Next(a.r.Context(), nil)
		if err != nil {
			return nil, openai.Usage{}, err
		}
		if len(events) == 0 {
			return tokens, a.total(), nil
		}
		for _, e := range events {
			a.count(e)
			tokens[e.Index] = append(tokens[e.Index], a.shown(e))
		}
	}
}

// count adds a token to its sequence's usage. The result is what the request's usage
// grows by.
func (a *answer) count(e engine.Event) (grown openai.Usage) {
	u := &a.usages[e.Index]
	if !a.begun[e.Index] {
		a.begun[e.Index] = true
		u.Cached = e.Cached
		if e.Index%a.job.n == 0 {
			grown = *u
		}
	}
	if e.Finish != engine.FinishAbort && a.generates() {
		u.Completion++
		grown.Completion++
		a.tokens++
	}
	return grown
}

// total is the usage of the request: each prompt counts once, with what the cache had of
// it for the first of its answers.
func (a *answer) total() (total openai.Usage) {
	for i, u := range a.usages {
		if i%a.job.n > 0 {
			u.Prompt, u.Cached = 0, 0
		}
		total.Add(u)
	}
	return total
}

// generates is false where only the prompt is echoed.
func (a *answer) generates() bool { return openai.Or(a.job.maxTokens, 1) > 0 }

// shown is a token as the client gets it.
func (a *answer) shown(e engine.Event) text.Piece {
	p := e.Piece
	if p.Finish == text.FinishStop && !a.generates() {
		p.Finish = text.FinishLength
	}
	return p
}

// events streams the answer, one event per token.
func (a *answer) events() {
	rc := http.NewResponseController(a.w)
	a.w.Header().Set("Content-Type", a.job.out.ContentType(true))
	a.w.WriteHeader(http.StatusOK)
	// As in vLLM, the header is out before the first token is.
	if rc.Flush() != nil || !pause(a.r.Context(), a.faults.Get().FirstTokenDelay) {
		cutOff()
	}
	var (
		buf    []byte
		events []engine.Event
		opened bool
	)
	for {
		var err error
		if events, err = a.stream.Next(a.r.Context(), events); err != nil {
			cutOff()
		}
		if len(events) == 0 {
			break
		}
		buf = buf[:0]
		if !opened {
			opened = true
			buf = a.open(buf, events)
		}
		faults := a.faults.Get()
		var sent openai.Usage
		for _, e := range events {
			if stop := a.spoil(rc, buf, faults, sent); stop {
				return
			}
			sent.Add(a.count(e))
			buf = a.job.out.Token(buf, e.Index, a.shown(e), a.usages[e.Index])
		}
		a.tally.tokens(sent)
		if _, err := a.w.Write(buf); err != nil || rc.Flush() != nil {
			cutOff()
		}
	}
	// An answer may be just as long as the fault lets it be.
	if a.spoil(rc, nil, a.faults.Get(), openai.Usage{}) {
		return
	}
	buf = a.job.out.Close(buf[:0], a.total())
	a.tally.answered()
	_, _ = a.w.Write(buf)
}

// open appends what comes before the first of these events.
func (a *answer) open(buf []byte, events []engine.Event) []byte {
	usages := append([]openai.Usage(nil), a.usages...)
	for _, e := range events {
		usages[e.Index].Cached = e.Cached
	}
	return a.job.out.Open(buf, usages)
}

// spoil carries out the faults that break a stream after so many tokens; buf is what
// comes before them and sent its tokens.
func (a *answer) spoil(rc *http.ResponseController, buf []byte, f fault.Set, sent openai.Usage) (stop bool) {
	switch {
	case f.DropAfterTokens > 0 && a.tokens >= f.DropAfterTokens:
		a.tally.tokens(sent)
		_, _ = a.w.Write(buf)
		_ = rc.Flush()
		cutOff()
	case f.Garbage == fault.GarbageSSE && a.tokens >= f.GarbageAfterTokens:
		a.tally.tokens(sent)
		_, _ = a.w.Write(append(buf, garbageBytes...))
		return true
	case f.Garbage == fault.GarbageJSON && a.tokens >= f.GarbageAfterTokens:
		a.tally.tokens(sent)
		event := a.job.out.Garbage(nil)
		_, _ = a.w.Write(append(append(buf, event[:len(event)/2]...), "\n\n"...))
		return true
	}
	return false
}
