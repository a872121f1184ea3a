package sim

import (
	"context"
	"time"

	"remuda/internal/sim/openai"
	"remuda/internal/sim/responses"
	"remuda/internal/sim/sse"
	"remuda/internal/sim/text"
)

func handleResponse(c *call) {
	req, e := responses.Decode(c.body)
	var before []text.Message
	if e == nil && req.Previous != nil {
		before, e = c.responses.Conversation(*req.Previous)
	}
	if e != nil {
		c.fail(e)
		return
	}
	conversation := req.Conversation(before)
	script, e := c.script(&conversation, "text")
	if e != nil {
		c.fail(e)
		return
	}
	id := c.id()
	out := &responses.Writer{
		Response: responses.New(req, id, c.cfg.Model, time.Now().Unix()), RequestID: id, Script: script,
	}
	input := append(before, *req.Input...)
	out.Keep = func(r responses.Response) {
		if r.Store {
			c.responses.Put(r, input, nil)
		}
	}
	j := newJob(req.Sampling(), newPrompt(conversation.Prompt()))
	j.params.Script, j.out = script, out
	if openai.Or(req.Background, false) {
		c.background(req, j, out, input)
		return
	}
	c.generate(req.Model, j)
}

// background answers at once and computes the response afterwards.
func (c *call) background(req *responses.Request, j job, out *responses.Writer, input []text.Message) {
	a := c.submit(req.Model, j)
	if a == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.r.Context()))
	queued := out.Response
	queued.Status = responses.Queued
	c.responses.Put(out.Response, input, cancel)
	later := *c
	later.r, later.tally = c.r.WithContext(ctx), c.tally.handOver()
	a.call = &later
	c.handlers.Go(func() {
		defer cancel()
		defer a.stream.Close()
		tokens, total, err := a.collect()
		if err == nil {
			later.tally.tokens(total)
		}
		later.tally.leave()
		if err == nil {
			out.Whole(tokens, total)
		}
	})
	c.deliver(jsonBody, sse.JSON(queued), openai.Usage{})
}

func handleGetResponse(c *call) {
	r, e := c.responses.Get(c.r.PathValue("id"))
	c.stored(r, e)
}

func handleCancelResponse(c *call) {
	r, e := c.responses.Cancel(c.r.PathValue("id"))
	c.stored(r, e)
}

func handleDeleteResponse(c *call) {
	id := c.r.PathValue("id")
	c.stored(struct {
		ID      string `json:"id"`
		Object  string `json:"object"`
		Deleted bool   `json:"deleted"`
	}{id, "response", true}, c.responses.Delete(id))
}

// stored answers a request about a response that is kept.
func (c *call) stored(v any, e *openai.Error) {
	if e != nil {
		c.fail(e)
		return
	}
	c.answer(v)
}
