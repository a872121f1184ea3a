package sim

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"

	"remuda/internal/sim/batch"
	"remuda/internal/sim/engine"
	"remuda/internal/sim/fault"
	"remuda/internal/sim/openai"
	"remuda/internal/sim/text"
)

// maxSequences is how many answers one request may ask for (prompts times n).
const maxSequences = 2048

// job is one generation request, whichever route it came by.
type job struct {
	kind     openai.Kind
	sampling *openai.Sampling
	prompts  []string
	counts   []int // tokens per prompt
	echo     bool
}

func (s *Server) handleChat(w http.ResponseWriter, r *http.Request) {
	if body, ok := s.input(w, r); ok {
		req, e := openai.DecodeChat(body)
		if e != nil {
			writeError(w, e)
			return
		}
		prompt := req.Prompt()
		s.generate(w, r, job{
			kind: openai.Chat, sampling: &req.Sampling, prompts: []string{prompt}, counts: []int{text.Count(prompt)},
		})
	}
}

func (s *Server) handleCompletion(w http.ResponseWriter, r *http.Request) {
	if body, ok := s.input(w, r); ok {
		req, e := openai.DecodeCompletion(body)
		if e != nil {
			writeError(w, e)
			return
		}
		s.generate(w, r, job{
			kind: openai.Completion, sampling: &req.Sampling, prompts: req.Prompt.Texts(), counts: req.Prompt.Counts(),
			echo: openai.Or(req.Echo, false),
		})
	}
}

// generate answers a generation request.
func (s *Server) generate(w http.ResponseWriter, r *http.Request, j job) {
	if e := s.checkModel(j.sampling.Model); e != nil {
		writeError(w, e)
		return
	}
	request, e := s.sequences(j)
	if e != nil {
		writeError(w, e)
		return
	}
	if s.misbehave(w) {
		return
	}
	stream, err := s.engine.Submit(request)
	if err != nil {
		writeError(w, submitError(err))
		return
	}
	defer stream.Close()
	a := &answer{
		server: s, job: j, stream: stream,
		out: openai.NewWriter(j.kind, j.kind.IDPrefix()+requestID(r), s.cfg.Model, time.Now().Unix()),
	}
	if j.sampling.Streaming() {
		a.events(w, r)
	} else {
		a.whole(w, r)
	}
}

func (s *Server) checkModel(model *string) *openai.Error {
	// As in vLLM, an empty name is none.
	if m := openai.Or(model, ""); m != "" && m != s.cfg.Model {
		return openai.NotFound(m)
	}
	return nil
}

// requestID is the client's X-Request-Id or a new one, as in vLLM.
func requestID(r *http.Request) string {
	if id := r.Header.Get("X-Request-Id"); id != "" {
		return id
	}
	id := uuid.New()
	return strings.ReplaceAll(id.String(), "-", "")
}

// sequences checks the lengths and sets up one generator per answer.
func (s *Server) sequences(j job) (engine.Request, *openai.Error) {
	p := j.sampling
	n := openai.Or(p.N, 1)
	if total := n * len(j.prompts); total > maxSequences {
		return engine.Request{}, openai.BadRequest("n", "the request asks for %d answers: must be at most %d.", total, maxSequences)
	}
	out := engine.Request{Quiet: !p.Streaming()}
	for i, prompt := range j.prompts {
		limit, e := s.budget(j.counts[i], p.MaxTokens)
		if e != nil {
			return engine.Request{}, e
		}
		state := text.NewState(s.cfg.Model).Append(prompt)
		for choice := range n {
			seq := engine.Sequence{PromptTokens: j.counts[i], MaxTokens: max(limit, 1)}
			if limit > 0 { // 0 only where nothing but the prompt is echoed
				seq.Generator = text.NewGenerator(state, text.Params{
					MaxTokens: limit, MinTokens: openai.Or(p.MinTokens, 0), Choice: choice,
					IgnoreEOS: openai.Or(p.IgnoreEOS, false), Stop: p.Stop, IncludeStop: openai.Or(p.IncludeStop, false),
				})
			}
			out.Sequences = append(out.Sequences, seq)
		}
	}
	return out, nil
}

// budget is how many tokens may follow a prompt of that many.
func (s *Server) budget(prompt int, asked *int) (int, *openai.Error) {
	limit := s.cfg.MaxModelLen
	want := openai.Or(asked, max(limit-prompt, 1))
	if want > limit-prompt {
		return 0, openai.BadRequest("input_tokens",
			"This model's maximum context length is %d tokens. However, you requested %d output tokens and your prompt contains "+
				"%d input tokens, for a total of %d tokens. Please reduce the length of the input prompt or the number of "+
				"requested output tokens.", limit, want, prompt, uint64(prompt)+uint64(want))
	}
	return want, nil
}

// misbehave carries out the faults that come before any answer.
func (s *Server) misbehave(w http.ResponseWriter) bool {
	f := s.faults.Get()
	if f.Error500 || f.Error500Every > 0 && s.generations.Add(1)%int64(f.Error500Every) == 0 {
		writeError(w, openai.Internal("the fault switch says so"))
		return true
	}
	if f.Garbage == fault.GarbageHTTP {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			cutOff()
		}
		_, _ = conn.Write([]byte(garbageBytes))
		_ = conn.Close()
		return true
	}
	return false
}

func submitError(err error) *openai.Error {
	switch {
	case errors.Is(err, batch.ErrTooLarge):
		return openai.BadRequest("input_tokens", "%v", err)
	case errors.Is(err, engine.ErrAsleep):
		return openai.Unavailable("the engine is asleep: POST /wake_up first")
	default:
		return openai.Unavailable("%v", err)
	}
}

// pause lets d pass; it reports false when the request ended first.
func pause(ctx context.Context, d fault.Duration) bool {
	if d <= 0 {
		return true
	}
	t := time.NewTimer(time.Duration(d))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
