package openai

import "strconv"

// Usage counts tokens.
type Usage struct {
	Prompt, Completion int
	// Cached is how many tokens of the prompt the prefix cache had.
	Cached int
}

// Add adds the tokens of another sequence.
func (u *Usage) Add(v Usage) {
	u.Prompt += v.Prompt
	u.Completion += v.Completion
	u.Cached += v.Cached
}

func (u Usage) append(b []byte) []byte {
	b = append(b, `{"prompt_tokens":`...)
	b = strconv.AppendInt(b, int64(u.Prompt), 10)
	b = append(b, `,"total_tokens":`...)
	b = strconv.AppendInt(b, int64(u.Prompt+u.Completion), 10)
	b = append(b, `,"completion_tokens":`...)
	b = strconv.AppendInt(b, int64(u.Completion), 10)
	if u.Cached == 0 { // vLLM leaves the details out, too
		return append(b, `,"prompt_tokens_details":null}`...)
	}
	b = strconv.AppendInt(append(b, `,"prompt_tokens_details":{"cached_tokens":`...), int64(u.Cached), 10)
	return append(b, "}}"...)
}

// MarshalJSON writes the usage as vLLM does.
func (u Usage) MarshalJSON() ([]byte, error) { return u.append(nil), nil }
