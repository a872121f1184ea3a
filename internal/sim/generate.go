package sim

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/google/uuid"

	"remuda/internal/sim/batch"
	"remuda/internal/sim/dialog"
	"remuda/internal/sim/engine"
	"remuda/internal/sim/fault"
	"remuda/internal/sim/openai"
	"remuda/internal/sim/text"
)

// maxSequences is how many answers one request may ask for (prompts times n).
const maxSequences = 2048

// job is one generation request, whichever route it came by.
type job struct {
	prompts []prompt
	// n is how many answers each prompt gets.
	n int
	// maxTokens is the length of an answer that the client asked for, nil for any.
	maxTokens *int
	// params are those of every answer but for its limit and its choice.
	params text.Params
	stream bool
	out    writer
}

// prompt is a text and its tokens.
type prompt struct {
	text   string
	tokens []int
	// uncached keeps the prompt out of the prefix cache.
	uncached bool
}

func newPrompt(s string) prompt { return prompt{text: s, tokens: text.Encode(s)} }

// writer writes an answer as the route's API has it.
type writer interface {
	// ContentType is the answer's, streamed or not.
	ContentType(stream bool) string
	// Open appends what a stream has before the first token. The usages are those of
	// each sequence before its first token.
	Open(b []byte, usages []openai.Usage) []byte
	// Token appends the event of one token; u is its sequence's usage so far.
	Token(b []byte, index int, p text.Piece, u openai.Usage) []byte
	// Garbage appends an event that is not part of the answer.
	Garbage(b []byte) []byte
	// Close appends what comes after the last token.
	Close(b []byte, total openai.Usage) []byte
	// Whole is the answer that is not streamed: the tokens of each sequence.
	Whole(tokens [][]text.Piece, total openai.Usage) []byte
}

// newJob is a job with the sampling parameters of a request.
func newJob(p *openai.Sampling, prompts ...prompt) job {
	return job{
		prompts: prompts, n: openai.Or(p.N, 1), maxTokens: p.MaxTokens, stream: p.Streaming(),
		params: text.Params{
			MinTokens: openai.Or(p.MinTokens, 0), IgnoreEOS: openai.Or(p.IgnoreEOS, false),
			Stop: p.Stop, IncludeStop: openai.Or(p.IncludeStop, false),
		},
	}
}

func handleChat(c *call) {
	req, e := openai.DecodeChat(c.body)
	if e != nil {
		c.fail(e)
		return
	}
	conversation, e := req.Conversation()
	var script text.Script
	if e == nil {
		script, e = c.script(&conversation, "response_format")
	}
	if e != nil {
		c.fail(e)
		return
	}
	j := newJob(&req.Sampling, newPrompt(conversation.Prompt()))
	j.params.Script = script
	j.out = c.openAI(openai.Chat, &req.Sampling, script, nil)
	c.generate(req.Model, j)
}

// script is a conversation's; schema is the field that an error about a schema names.
func (c *call) script(conversation *dialog.Conversation, schema string) (text.Script, *openai.Error) {
	script, err := conversation.Script(c.cfg.Model)
	if err == nil {
		return script, nil
	}
	field := err.Field
	if field == "schema" {
		field = schema
	}
	return nil, openai.BadRequest(field, "%v", err)
}

// openAI writes the answer of a chat or a completion.
func (c *call) openAI(kind openai.Kind, p *openai.Sampling, script text.Script, echo []string) *openai.Answer {
	id := c.id()
	return &openai.Answer{
		Writer:    openai.NewWriter(kind, kind.IDPrefix()+id, c.cfg.Model, time.Now().Unix(), c.cfg.Stamp),
		RequestID: id, Script: script, Echo: echo, Sampling: p,
	}
}

func handleCompletion(c *call) {
	req, e := openai.DecodeCompletion(c.body)
	if e != nil {
		c.fail(e)
		return
	}
	var prompts []prompt
	var echo []string
	tokens := req.Prompt.Tokens()
	for i, t := range req.Prompt.Texts() {
		prompts = append(prompts, prompt{text: t, tokens: tokens[i]})
		for range openai.Or(req.N, 1) {
			if openai.Or(req.Echo, false) {
				echo = append(echo, t)
			}
		}
	}
	j := newJob(&req.Sampling, prompts...)
	j.out = c.openAI(openai.Completion, &req.Sampling, nil, echo)
	c.generate(req.Model, j)
}

// generate answers a generation request.
func (c *call) generate(model *string, j job) {
	if a := c.submit(model, j); a != nil {
		defer a.stream.Close()
		a.send()
	}
}

// submit accepts a generation request and hands it to the engine. It returns nil when
// the request is answered.
func (c *call) submit(model *string, j job) *answer {
	if e := c.checkModel(model); e != nil {
		c.fail(e)
		return nil
	}
	request, e := c.sequences(j)
	if e != nil {
		c.fail(e)
		return nil
	}
	if !c.accept() {
		return nil
	}
	stream, err := c.engine.Submit(request)
	if err != nil {
		c.fail(submitError(err))
		return nil
	}
	return newAnswer(c, j, stream)
}

// id is the client's X-Request-Id or a new one, as in vLLM.
func (c *call) id() string {
	if id := c.r.Header.Get("X-Request-Id"); id != "" {
		return id
	}
	id := uuid.New()
	return strings.ReplaceAll(id.String(), "-", "")
}

// sequences checks the lengths and sets up one generator per answer.
func (s *Server) sequences(j job) (engine.Request, *openai.Error) {
	if total := j.n * len(j.prompts); total > maxSequences {
		return engine.Request{}, openai.BadRequest("n", "the request asks for %d answers: must be at most %d.", total, maxSequences)
	}
	out := engine.Request{Quiet: !j.stream}
	for _, prompt := range j.prompts {
		length := len(prompt.tokens)
		limit, e := s.budget(length, j.maxTokens)
		if e != nil {
			return engine.Request{}, e
		}
		state := text.NewState(s.cfg.Model).Append(prompt.text)
		var prefix []uint64
		if !prompt.uncached {
			prefix = s.cfg.batch().Prefix(prompt.tokens)
		}
		for choice := range j.n {
			seq := engine.Sequence{PromptTokens: length, MaxTokens: max(limit, 1), Prefix: prefix}
			if limit > 0 { // 0 only where nothing but the prompt is echoed
				p := j.params
				p.MaxTokens, p.Choice = limit, choice
				seq.Generator = text.NewGenerator(state, p)
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
