package sim

import (
	"time"

	"remuda/internal/sim/openai"
	"remuda/internal/sim/pooling"
	"remuda/internal/sim/sse"
)

// pairs computes the prompts of pairs that are scored.
func (c *call) pairs(pairs []pooling.Pair) (openai.Usage, bool) {
	prompts := make([]int, len(pairs))
	for i, p := range pairs {
		prompts[i] = p.Tokens()
	}
	return c.compute("input", prompts)
}

// list delivers the answer of a route whose ids begin with prefix.
func (c *call) list(prefix string, data []any, u openai.Usage) {
	c.deliver(jsonBody, sse.JSON(pooling.List{
		ID: prefix + c.id(), Object: "list", Created: time.Now().Unix(), Model: c.cfg.Model, Data: data, Usage: u,
	}), u)
}

func handleRerank(c *call) {
	req, e := pooling.DecodeRerank(c.body)
	if e == nil {
		e = c.checkModel(req.Model)
	}
	if e != nil {
		c.fail(e)
		return
	}
	if u, ok := c.pairs(req.Pairs()); ok {
		c.deliver(jsonBody, sse.JSON(req.Answer(c.id(), c.cfg.Model, u)), u)
	}
}

func handleScore(c *call) {
	req, e := pooling.DecodeScore(c.body)
	if e == nil {
		e = c.checkModel(req.Model)
	}
	if e != nil {
		c.fail(e)
		return
	}
	if u, ok := c.pairs(req.Pairs()); ok {
		c.list("score-", req.Scores(c.cfg.Model), u)
	}
}

// inputs reads the body of a route with inputs and computes them.
func (c *call) inputs() (*pooling.Inputs, openai.Usage, bool) {
	req, e := pooling.DecodeInputs(c.body)
	if e == nil {
		e = c.checkModel(req.Model)
	}
	if e != nil {
		c.fail(e)
		return nil, openai.Usage{}, false
	}
	u, ok := c.compute("input", lengths(req.Input.Tokens()))
	return req, u, ok
}

func handleClassify(c *call) {
	if req, u, ok := c.inputs(); ok {
		c.list("classify-", req.Classes(c.cfg.Model), u)
	}
}

func handlePooling(c *call) {
	if req, u, ok := c.inputs(); ok {
		c.list("pool-", req.Pooled(c.cfg.Model), u)
	}
}

func handleModeration(c *call) {
	if req, u, ok := c.inputs(); ok {
		c.deliver(jsonBody, sse.JSON(req.Moderation(c.id(), c.cfg.Model)), u)
	}
}
