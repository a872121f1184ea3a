package sim

import (
	"net/http"
	"time"

	"remuda/internal/sim/engine"
	"remuda/internal/sim/openai"
	"remuda/internal/sim/text"
)

func (s *Server) handleEmbedding(w http.ResponseWriter, r *http.Request) {
	body, ok := s.input(w, r)
	if !ok {
		return
	}
	req, e := openai.DecodeEmbedding(body)
	if e == nil {
		e = s.checkModel(req.Model)
	}
	if e != nil {
		writeError(w, e)
		return
	}
	var usage openai.Usage
	// An embedding costs the engine the computation of its input.
	request := engine.Request{Quiet: true}
	for _, n := range req.Input.Counts() {
		if n > s.cfg.MaxModelLen {
			writeError(w, openai.BadRequest("input",
				"This model's maximum context length is %d tokens. However, an input contains %d tokens. Please reduce its length.",
				s.cfg.MaxModelLen, n))
			return
		}
		usage.Prompt += n
		request.Sequences = append(request.Sequences, engine.Sequence{PromptTokens: n, MaxTokens: 1})
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
	events, err := stream.Next(r.Context(), nil)
	if err != nil {
		cutOff()
	}
	for _, ev := range events {
		if ev.Finish == engine.FinishAbort {
			writeError(w, openai.Unavailable("the engine gave the request up"))
			return
		}
	}
	dim := openai.Or(req.Dimensions, text.EmbeddingDim)
	var vectors [][]float32
	for _, in := range req.Input.Texts() {
		vectors = append(vectors, text.Embed(s.cfg.Model, in, dim))
	}
	s.deliver(w, r, openai.Embeddings("embd-"+requestID(r), s.cfg.Model, time.Now().Unix(), vectors,
		openai.Or(req.EncodingFormat, "float") == "base64", usage))
}

func (s *Server) handleTokenize(w http.ResponseWriter, r *http.Request) {
	body, ok := s.input(w, r)
	if !ok {
		return
	}
	req, e := openai.DecodeTokenize(body)
	if e == nil {
		e = s.checkModel(req.Model)
	}
	if e != nil {
		writeError(w, e)
		return
	}
	ids := text.Encode(req.Text())
	writeValue(w, struct {
		Count       int      `json:"count"`
		MaxModelLen int      `json:"max_model_len"`
		Tokens      []int    `json:"tokens"`
		TokenStrs   []string `json:"token_strs"`
	}{len(ids), s.cfg.MaxModelLen, ids, nil})
}

func (s *Server) handleDetokenize(w http.ResponseWriter, r *http.Request) {
	body, ok := s.input(w, r)
	if !ok {
		return
	}
	req, e := openai.DecodeDetokenize(body)
	if e == nil {
		e = s.checkModel(req.Model)
	}
	var prompt string
	if e == nil {
		var err error
		if prompt, err = text.Decode(req.Tokens); err != nil {
			e = openai.BadRequest("tokens", "%v", err)
		}
	}
	if e != nil {
		writeError(w, e)
		return
	}
	writeValue(w, map[string]string{"prompt": prompt})
}
