package sim

import (
	"net/http"
	"strconv"

	"remuda/internal/sim/engine"
	"remuda/internal/sim/fault"
	"remuda/internal/sim/openai"
	"remuda/internal/sim/sse"
)

// call is one request of an inference route.
type call struct {
	*Server
	w     http.ResponseWriter
	r     *http.Request
	route *route
	body  []byte
	tally *tally
}

// serve reads the body and answers the request.
func (c *call) serve() {
	if c.route.body != "" {
		var ok bool
		if c.body, ok = c.input(c.w, c.r, c.route.body, c.fail); !ok {
			return
		}
	}
	c.route.infer(c)
}

// fail answers with an error in the shape of the route's API.
func (c *call) fail(e *openai.Error) {
	c.tally.leave()
	if c.route.shape != nil {
		c.route.shape(c.w, e)
		return
	}
	writeError(c.w, e)
}

// checkModel reports a model that is not served.
func (c *call) checkModel(model *string) *openai.Error {
	// As in vLLM, an empty name is none.
	if m := openai.Or(model, ""); m != "" && m != c.cfg.Model {
		return openai.NotFound(m)
	}
	return nil
}

// accept counts a request whose parameters are valid and carries out the faults that
// come before any answer. It reports false when the request is answered.
func (c *call) accept() bool {
	c.tally.begin(c.cfg.Model)
	f := c.faults.Get()
	if f.Error500 || f.Error500Every > 0 && c.generations.Add(1)%int64(f.Error500Every) == 0 {
		c.fail(openai.Internal("the fault switch says so"))
		return false
	}
	if f.Garbage == fault.GarbageHTTP {
		conn, _, err := http.NewResponseController(c.w).Hijack()
		if err != nil {
			cutOff()
		}
		_, _ = conn.Write([]byte(garbageBytes))
		_ = conn.Close()
		return false
	}
	return true
}

// answer accepts a request whose answer needs no computation, and sends it.
func (c *call) answer(v any) {
	if c.accept() {
		c.deliver(jsonBody, sse.JSON(v), openai.Usage{})
	}
}

// compute accepts a request and lets the engine compute some prompts, given by their
// lengths, without an answer. It reports false when the request is answered.
func (c *call) compute(param string, prompts []int) (openai.Usage, bool) {
	var usage openai.Usage
	request := engine.Request{Quiet: true}
	for _, n := range prompts {
		if n > c.cfg.MaxModelLen {
			c.fail(openai.BadRequest(param,
				"This model's maximum context length is %d tokens. However, an input contains %d tokens. Please reduce its length.",
				c.cfg.MaxModelLen, n))
			return usage, false
		}
		usage.Prompt += n
		request.Sequences = append(request.Sequences, engine.Sequence{PromptTokens: n, MaxTokens: 1})
	}
	if !c.accept() {
		return usage, false
	}
	stream, err := c.engine.Submit(request)
	if err != nil {
		c.fail(submitError(err))
		return usage, false
	}
	defer stream.Close()
	events, err := stream.Next(c.r.Context(), nil)
	if err != nil {
		cutOff()
	}
	for _, ev := range events {
		if ev.Finish == engine.FinishAbort {
			c.fail(openai.Unavailable("the engine gave the request up"))
			return usage, false
		}
	}
	return usage, true
}

// deliver sends a whole answer, as far as the fault switches let it.
func (c *call) deliver(contentType string, body []byte, u openai.Usage) {
	f := c.faults.Get()
	if !pause(c.r.Context(), f.FirstTokenDelay) || f.DropAfterTokens > 0 {
		cutOff()
	}
	switch f.Garbage {
	case fault.GarbageSSE:
		body = []byte(garbageBytes)
	case fault.GarbageJSON:
		body = body[:len(body)/2]
	}
	c.tally.tokens(u)
	c.tally.answered()
	h := c.w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	c.w.WriteHeader(http.StatusOK)
	_, _ = c.w.Write(body)
}
