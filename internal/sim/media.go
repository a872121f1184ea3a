package sim

import (
	"time"

	"remuda/internal/sim/media"
	"remuda/internal/sim/openai"
	"remuda/internal/sim/text"
)

func handleTranscription(c *call) { c.transcribe("transcribe") }

func handleTranslation(c *call) { c.transcribe("translate") }

func (c *call) transcribe(task string) {
	req, e := media.DecodeTranscription(c.r.Header.Get("Content-Type"), c.body)
	if e != nil {
		c.fail(e)
		return
	}
	frames := req.Frames()
	p := prompt{text: req.Text(task), tokens: append(make([]int, frames), text.Encode(req.Prompt)...), uncached: true}
	spoken := min(req.Spoken(), max(c.cfg.MaxModelLen-len(p.tokens), 1))
	c.generate(&req.Model, job{
		prompts: []prompt{p}, n: 1, maxTokens: &spoken, stream: req.Stream,
		out: &media.Transcript{Request: req, Task: task},
	})
}

func handleSpeech(c *call) {
	req, e := media.DecodeSpeech(c.body)
	if e != nil {
		c.fail(e)
		return
	}
	p := newPrompt(req.Input)
	length := len(p.tokens)
	c.generate(req.Model, job{
		prompts: []prompt{p}, n: 1, maxTokens: &length, stream: true, params: text.Params{IgnoreEOS: true},
		out: &media.Sound{Request: req, Tokens: length},
	})
}

func handleImage(c *call) {
	req, e := media.DecodeImage(c.body)
	if e != nil {
		c.fail(e)
		return
	}
	length := media.ImageTokens
	c.generate(req.Model, job{
		prompts: []prompt{newPrompt(req.Prompt)}, n: openai.Or(req.N, 1), maxTokens: &length,
		params: text.Params{IgnoreEOS: true}, out: &media.Picture{Request: req, Created: time.Now().Unix()},
	})
}
