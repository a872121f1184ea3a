package openai

import (
	"encoding/json"
	"errors"

	"remuda/internal/sim/text"
)

// maxInputs is how many prompts or texts one request may hold, OpenAI's limit
// for embeddings.
const maxInputs = 2048

// Input is a prompt in any of its forms: a string, a list of strings, a list
// of token ids, or a list of such lists.
type Input struct {
	given  bool
	texts  []string
	tokens [][]int
}

// UnmarshalJSON reads any of the forms.
func (in *Input) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}
	in.given = true
	var texts Texts
	if json.Unmarshal(b, &texts) == nil {
		in.texts = texts
		return nil
	}
	var one []int
	if json.Unmarshal(b, &one) == nil {
		in.tokens = [][]int{one}
		return nil
	}
	if json.Unmarshal(b, &in.tokens) == nil {
		return nil
	}
	return errors.New("prompt or input: must be a string, a list of strings, a list of token ids or a list of such lists")
}

// Check reports an input that is missing, empty or too large. It must come first.
func (in *Input) Check(param string) *Error {
	switch n := max(len(in.texts), len(in.tokens)); {
	case !in.given:
		return BadRequest(param, "%s is missing.", param)
	case n == 0:
		return BadRequest(param, "%s must not be an empty list.", param)
	case n > maxInputs:
		return BadRequest(param, "%s has %d entries: must be at most %d.", param, n, maxInputs)
	}
	for _, ids := range in.tokens {
		s, err := text.Decode(ids)
		if err != nil {
			return BadRequest(param, "%s: %v.", param, err)
		}
		in.texts = append(in.texts, s)
	}
	for _, s := range in.texts {
		if s == "" {
			return BadRequest(param, "%s must not be empty.", param)
		}
	}
	return nil
}

// Texts is every prompt as text.
func (in *Input) Texts() []string { return in.texts }

// Tokens are the tokens of each prompt; where the client sent token ids, those.
func (in *Input) Tokens() [][]int {
	if in.tokens != nil {
		return in.tokens
	}
	out := make([][]int, len(in.texts))
	for i, s := range in.texts {
		out[i] = text.Encode(s)
	}
	return out
}
