package pooling

import (
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"math"
	"slices"

	"remuda/internal/sim/openai"
	"remuda/internal/sim/text"
)

// List is the answer of score, classify and pooling.
type List struct {
	ID      string       `json:"id"`
	Object  string       `json:"object"`
	Created int64        `json:"created"`
	Model   string       `json:"model"`
	Data    []any        `json:"data"`
	Usage   openai.Usage `json:"usage"`
}

type document struct {
	Text       string `json:"text"`
	MultiModal *any   `json:"multi_modal"`
}

type ranked struct {
	Index    int      `json:"index"`
	Document document `json:"document"`
	Score    float64  `json:"relevance_score"`
}

// Answer is the answer to a rerank: the documents from the best on.
func (r *Rerank) Answer(id, model string, u openai.Usage) any {
	results := make([]ranked, len(r.Documents))
	for i, p := range r.Pairs() {
		results[i] = ranked{i, document{Text: p.Two}, p.Score(model)}
	}
	slices.SortStableFunc(results, func(a, b ranked) int { return cmp.Compare(b.Score, a.Score) })
	if n := openai.Or(r.TopN, 0); n > 0 && n < len(results) {
		results = results[:n]
	}
	return map[string]any{
		"id": "rerank-" + id, "model": model, "results": results,
		"usage": map[string]int{"prompt_tokens": u.Prompt, "total_tokens": u.Prompt},
	}
}

// Scores are the data of a score's answer.
func (r *Score) Scores(model string) []any {
	var out []any
	for i, p := range r.Pairs() {
		out = append(out, struct {
			Index  int     `json:"index"`
			Object string  `json:"object"`
			Score  float64 `json:"score"`
		}{i, "score", p.Score(model)})
	}
	return out
}

// labels are the classes that texts belong to.
var labels = []string{"LABEL_0", "LABEL_1"}

// Classes are the data of a classification's answer.
func (r *Inputs) Classes(model string) []any {
	var out []any
	for i, s := range r.Input.Texts() {
		p := Pair{labels[0], s}.Score(model)
		class := 0
		if p < 0.5 {
			class = 1
		}
		out = append(out, struct {
			Index   int       `json:"index"`
			Label   string    `json:"label"`
			Probs   []float64 `json:"probs"`
			Classes int       `json:"num_classes"`
		}{i, labels[class], []float64{p, 1 - p}, len(labels)})
	}
	return out
}

// pooledDim is the length of the vector that each token gets.
const pooledDim = 8

// Pooled are the data of a pooling's answer: a vector for each token.
func (r *Inputs) Pooled(model string) []any {
	var out []any
	for i, ids := range r.Input.Tokens() {
		vectors := make([][]float32, len(ids))
		var raw []byte
		for j, id := range ids {
			token, err := text.Decode([]int{id})
			if err != nil {
				panic(err) // cannot happen: the input was checked
			}
			vectors[j] = text.Embed(model, token, pooledDim)
			for _, x := range vectors[j] {
				raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(x))
			}
		}
		var data any = vectors
		if openai.Or(r.EncodingFormat, "float") == "base64" {
			data = base64.StdEncoding.EncodeToString(raw)
		}
		out = append(out, struct {
			Index  int    `json:"index"`
			Object string `json:"object"`
			Data   any    `json:"data"`
		}{i, "pooling", data})
	}
	return out
}

// categories are those of OpenAI's moderation.
var categories = []string{
	"harassment", "harassment/threatening", "hate", "hate/threatening", "illicit", "illicit/violent", "self-harm",
	"self-harm/instructions", "self-harm/intent", "sexual", "sexual/minors", "violence", "violence/graphic",
}

// Moderation is the answer of /v1/moderations. A text is flagged for each category whose
// name it contains as a word.
func (r *Inputs) Moderation(id, model string) any {
	var results []any
	for _, s := range r.Input.Texts() {
		flags, scores := map[string]bool{}, map[string]float64{}
		flagged := false
		for _, c := range categories {
			flags[c] = containsWord(s, c)
			scores[c] = math.Round(Pair{c, s}.Score(model)*1e5) / 1e7
			if flags[c] {
				flagged, scores[c] = true, 0.99
			}
		}
		results = append(results, map[string]any{"flagged": flagged, "categories": flags, "category_scores": scores})
	}
	return map[string]any{"id": "modr-" + id, "model": model, "results": results}
}
