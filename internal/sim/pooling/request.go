package pooling

import (
	"encoding/json"
	"errors"

	"remuda/internal/sim/openai"
	"remuda/internal/sim/text"
)

// Rerank is the body of /rerank.
type Rerank struct {
	Model     *string `json:"model"`
	Query     *string `json:"query"`
	Documents []Text  `json:"documents"`
	TopN      *int    `json:"top_n"`
}

// Text is a string, or an object with one.
type Text string

// UnmarshalJSON reads either form.
func (t *Text) UnmarshalJSON(b []byte) error {
	var s string
	if json.Unmarshal(b, &s) == nil {
		*t = Text(s)
		return nil
	}
	var o struct{ Text *string }
	if json.Unmarshal(b, &o) != nil || o.Text == nil {
		return errors.New(`a text must be a string or an object like {"text": "…"}`)
	}
	*t = Text(*o.Text)
	return nil
}

// DecodeRerank reads and checks a request.
func DecodeRerank(body []byte) (*Rerank, *openai.Error) {
	var r Rerank
	if err := openai.Decode(body, &r); err != nil {
		return nil, err
	}
	switch {
	case openai.Or(r.Query, "") == "":
		return nil, openai.BadRequest("query", "query is missing.")
	case len(r.Documents) == 0:
		return nil, openai.BadRequest("documents", "documents: at least one document is required.")
	case openai.Or(r.TopN, 0) < 0:
		return nil, openai.BadRequest("top_n", "top_n must be at least 0, got %d.", *r.TopN)
	}
	return &r, nil
}

// Pairs are what is scored.
func (r *Rerank) Pairs() []Pair {
	out := make([]Pair, len(r.Documents))
	for i, d := range r.Documents {
		out[i] = Pair{*r.Query, string(d)}
	}
	return out
}

// Pair is two texts whose likeness is scored.
type Pair struct{ One, Two string }

// Tokens is the length of the pair as one prompt, with a mark between the texts.
func (p Pair) Tokens() int { return text.Count(p.One) + 1 + text.Count(p.Two) }

// Score is the likeness, from 0 to 1.
func (p Pair) Score(model string) float64 {
	one, two := text.Embed(model, p.One, text.EmbeddingDim), text.Embed(model, p.Two, text.EmbeddingDim)
	var dot float64
	for i := range one {
		dot += float64(one[i]) * float64(two[i])
	}
	return min(max((dot+1)/2, 0), 1)
}

// Score is the body of /score.
type Score struct {
	Model     *string `json:"model"`
	Text1     texts   `json:"text_1"`
	Text2     texts   `json:"text_2"`
	Queries   texts   `json:"queries"`
	Documents texts   `json:"documents"`
}

// texts is a Text or a list of them.
type texts []Text

// UnmarshalJSON reads either form.
func (t *texts) UnmarshalJSON(b []byte) error {
	var one Text
	if one.UnmarshalJSON(b) == nil {
		*t = texts{one}
		return nil
	}
	var many []Text
	if err := json.Unmarshal(b, &many); err != nil {
		return errors.New("texts to score must be a string or a list of strings")
	}
	*t = many
	return nil
}

// DecodeScore reads and checks a request.
func DecodeScore(body []byte) (*Score, *openai.Error) {
	var r Score
	if err := openai.Decode(body, &r); err != nil {
		return nil, err
	}
	if r.Text1 == nil {
		r.Text1, r.Text2 = r.Queries, r.Documents
	}
	switch one, two := len(r.Text1), len(r.Text2); {
	case one == 0:
		return nil, openai.BadRequest("text_1", "text_1 is missing.")
	case two == 0:
		return nil, openai.BadRequest("text_2", "text_2 is missing.")
	case one != 1 && one != two:
		return nil, openai.BadRequest("text_1", "Input lengths must be either 1:1, 1:N or N:N, got %d:%d.", one, two)
	}
	return &r, nil
}

// Pairs are what is scored.
func (r *Score) Pairs() []Pair {
	out := make([]Pair, len(r.Text2))
	for i, two := range r.Text2 {
		out[i] = Pair{string(r.Text1[min(i, len(r.Text1)-1)]), string(two)}
	}
	return out
}

// Inputs is the body of /classify, /pooling and /v1/moderations.
type Inputs struct {
	Model          *string      `json:"model"`
	Input          openai.Input `json:"input"`
	EncodingFormat *string      `json:"encoding_format"`
}

// DecodeInputs reads and checks a request.
func DecodeInputs(body []byte) (*Inputs, *openai.Error) {
	var r Inputs
	if err := openai.Decode(body, &r); err != nil {
		return nil, err
	}
	if f := openai.Or(r.EncodingFormat, "float"); f != "float" && f != "base64" {
		return nil, openai.BadRequest("encoding_format", "encoding_format must be \"float\" or \"base64\", got %q.", f)
	}
	if err := r.Input.Check("input"); err != nil {
		return nil, err
	}
	return &r, nil
}
