package sim

import (
	"net/http"
	"strings"

	"remuda/internal/sim/engine"
	"remuda/internal/sim/fault"
	"remuda/internal/sim/openai"
	"remuda/internal/sim/text"
)

// garbageBytes are neither HTTP nor UTF-8 nor an event.
const garbageBytes = "\x16\x03\x01\xff\xfe\x00garbage\xc3\x28\r\n\x00\x00"

// answer is one response in the making.
type answer struct {
	server *Server
	job    job
	stream *engine.Stream
	out    *openai.Writer
}

// cutOff closes the connection without an end, for a client that is gone and
// for an answer that must not look complete. It does not return.
func cutOff() { panic(http.ErrAbortHandler) }

// whole answers a request that is not streamed.
func (a *answer) whole(w http.ResponseWriter, r *http.Request) {
	n := openai.Or(a.job.sampling.N, 1)
	texts := make([]strings.Builder, len(a.job.prompts)*n)
	choices := make([]openai.Choice, len(texts))
	var usage openai.Usage
	for {
		events, err := a.stream.Next(r.Context(), nil)
		if err != nil {
			cutOff()
		}
		if len(events) == 0 {
			break
		}
		for _, e := range events {
			texts[e.Index].WriteString(e.Text)
			if e.Finish != "" {
				choices[e.Index].Finish, choices[e.Index].StopReason = a.finish(e), e.StopReason
			}
			if e.Finish != engine.FinishAbort && a.generates() {
				usage.Completion++
			}
		}
	}
	for i := range choices {
		choices[i].Text = texts[i].String()
		if a.job.echo {
			choices[i].Text = a.job.prompts[i/n] + choices[i].Text
		}
	}
	for _, c := range a.job.counts {
		usage.Prompt += c
	}
	a.server.deliver(w, r, a.out.Answer(choices, usage))
}

// deliver sends a whole answer, as far as the fault switches let it.
func (s *Server) deliver(w http.ResponseWriter, r *http.Request, body []byte) {
	f := s.faults.Get()
	if !pause(r.Context(), f.FirstTokenDelay) || f.DropAfterTokens > 0 {
		cutOff()
	}
	switch f.Garbage {
	case fault.GarbageSSE:
		body = []byte(garbageBytes)
	case fault.GarbageJSON:
		body = body[:len(body)/2]
	}
	writeJSON(w, http.StatusOK, body)
}

// generates is false where only the prompt is echoed.
func (a *answer) generates() bool { return openai.Or(a.job.sampling.MaxTokens, 1) > 0 }

// finish is an event's finish reason as the client gets it.
func (a *answer) finish(e engine.Event) string {
	if e.Finish == text.FinishStop && !a.generates() {
		return text.FinishLength
	}
	return e.Finish
}

// events streams the answer, one event per token.
func (a *answer) events(w http.ResponseWriter, r *http.Request) {
	rc := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.WriteHeader(http.StatusOK)
	// As in vLLM, the header is out before the first token is.
	if rc.Flush() != nil || !pause(r.Context(), a.server.faults.Get().FirstTokenDelay) {
		cutOff()
	}
	n := openai.Or(a.job.sampling.N, 1)
	final, continuous := a.job.sampling.Usage()
	usages := make([]openai.Usage, len(a.job.prompts)*n)
	for i := range usages {
		usages[i].Prompt = a.job.counts[i/n]
	}
	var (
		buf    []byte
		events []engine.Event
		tokens int
		begun  bool
	)
	for {
		var err error
		if events, err = a.stream.Next(r.Context(), events); err != nil {
			cutOff()
		}
		if len(events) == 0 {
			break
		}
		buf = buf[:0]
		if !begun {
			begun = true
			buf = a.open(buf, usages, continuous)
		}
		faults := a.server.faults.Get()
		for _, e := range events {
			if stop := a.spoil(w, rc, buf, faults, tokens); stop {
				return
			}
			u := &usages[e.Index]
			if e.Finish != engine.FinishAbort && a.generates() {
				u.Completion++
				tokens++
			}
			shown := u
			if !continuous {
				shown = nil
			}
			c := openai.Choice{Text: e.Text, Finish: a.finish(e), StopReason: e.StopReason}
			buf = a.out.Token(buf, e.Index, c, shown, !final)
		}
		if _, err := w.Write(buf); err != nil || rc.Flush() != nil {
			cutOff()
		}
	}
	// An answer may be just as long as the fault lets it be.
	if a.spoil(w, rc, nil, a.server.faults.Get(), tokens) {
		return
	}
	buf = buf[:0]
	if final {
		var total openai.Usage
		for i, u := range usages {
			total.Completion += u.Completion
			if i%n == 0 {
				total.Prompt += u.Prompt
			}
		}
		buf = a.out.FinalUsage(buf, total)
	}
	_, _ = w.Write(openai.Done(buf))
}

// open writes what comes before the first token: the role of every choice of a
// chat, the prompt of an echoed completion.
func (a *answer) open(buf []byte, usages []openai.Usage, continuous bool) []byte {
	n := openai.Or(a.job.sampling.N, 1)
	for i := range usages {
		u := &usages[i]
		if !continuous {
			u = nil
		}
		switch {
		case a.job.kind == openai.Chat:
			buf = a.out.Role(buf, i, u)
		case a.job.echo:
			buf = a.out.Token(buf, i, openai.Choice{Text: a.job.prompts[i/n]}, u, false)
		}
	}
	return buf
}

// spoil carries out the faults that break a stream after so many tokens; sent
// is what comes before them.
func (a *answer) spoil(w http.ResponseWriter, rc *http.ResponseController, sent []byte, f fault.Set, tokens int) (stop bool) {
	switch {
	case f.DropAfterTokens > 0 && tokens >= f.DropAfterTokens:
		_, _ = w.Write(sent)
		_ = rc.Flush()
		cutOff()
	case f.Garbage == fault.GarbageSSE && tokens >= f.GarbageAfterTokens:
		_, _ = w.Write(append(sent, garbageBytes...))
		return true
	case f.Garbage == fault.GarbageJSON && tokens >= f.GarbageAfterTokens:
		event := a.out.Token(nil, 0, openai.Choice{Text: "garbage"}, nil, false)
		_, _ = w.Write(append(append(sent, event[:len(event)/2]...), "\n\n"...))
		return true
	}
	return false
}
