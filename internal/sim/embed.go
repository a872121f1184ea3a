package sim

import (
	"time"

	"remuda/internal/sim/openai"
	"remuda/internal/sim/text"
)

func handleEmbedding(c *call) {
	req, e := openai.DecodeEmbedding(c.body)
	if e == nil {
		e = c.checkModel(req.Model)
	}
	if e != nil {
		c.fail(e)
		return
	}
	usage, ok := c.compute("input", lengths(req.Input.Tokens()))
	if !ok {
		return
	}
	dim := openai.Or(req.Dimensions, text.EmbeddingDim)
	var vectors [][]float32
	for _, in := range req.Input.Texts() {
		vectors = append(vectors, text.Embed(c.cfg.Model, in, dim))
	}
	c.deliver(jsonBody, openai.Embeddings("embd-"+c.id(), c.cfg.Model, time.Now().Unix(), vectors,
		openai.Or(req.EncodingFormat, "float") == "base64", usage), usage)
}

func lengths(prompts [][]int) []int {
	out := make([]int, len(prompts))
	for i, p := range prompts {
		out[i] = len(p)
	}
	return out
}

func handleTokenize(c *call) {
	req, e := openai.DecodeTokenize(c.body)
	if e == nil {
		e = c.checkModel(req.Model)
	}
	if e != nil {
		c.fail(e)
		return
	}
	ids := text.Encode(req.Text())
	c.answer(struct {
		Count       int      `json:"count"`
		MaxModelLen int      `json:"max_model_len"`
		Tokens      []int    `json:"tokens"`
		TokenStrs   []string `json:"token_strs"`
	}{len(ids), c.cfg.MaxModelLen, ids, nil})
}

func handleDetokenize(c *call) {
	req, e := openai.DecodeDetokenize(c.body)
	if e == nil {
		e = c.checkModel(req.Model)
	}
	var prompt string
	if e == nil {
		var err error
		if prompt, err = text.Decode(req.Tokens); err != nil {
			e = openai.BadRequest("tokens", "%v", err)
		}
	}
	if e != nil {
		c.fail(e)
		return
	}
	c.answer(map[string]string{"prompt": prompt})
}
