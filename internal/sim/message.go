package sim

import (
	"net/http"

	"remuda/internal/sim/anthropic"
	"remuda/internal/sim/openai"
	"remuda/internal/sim/text"
)

// refuseMessage writes an error as Anthropic's API does.
func refuseMessage(w http.ResponseWriter, e *openai.Error) {
	writeJSON(w, e.Status, anthropic.ErrorJSON(e))
}

func handleMessage(c *call) {
	req, e := anthropic.Decode(c.body)
	if e != nil {
		c.fail(e)
		return
	}
	conversation := req.Conversation()
	script, e := c.script(&conversation, "tools")
	if e != nil {
		c.fail(e)
		return
	}
	j := newJob(req.Sampling(), newPrompt(conversation.Prompt()))
	j.params.Script = script
	j.out = &anthropic.Writer{ID: c.id(), Model: c.cfg.Model, Script: script}
	c.generate(req.Model, j)
}

func handleCountTokens(c *call) {
	req, e := anthropic.DecodeCount(c.body)
	if e == nil {
		e = c.checkModel(req.Model)
	}
	if e != nil {
		c.fail(e)
		return
	}
	conversation := req.Conversation()
	c.answer(struct {
		InputTokens int `json:"input_tokens"`
	}{text.Count(conversation.Prompt())})
}
