package openai

import (
	"encoding/json"
	"slices"
)

// maxN is the largest `n`, OpenAI's limit; maxLogprobs is how many alternatives of a
// token there are at most, vLLM's max_logprobs.
const maxN, maxLogprobs = 128, 20

// Sampling holds what chat and text completions have in common.
type Sampling struct {
	Model             *string        `json:"model"`
	N                 *int           `json:"n"`
	MaxTokens         *int           `json:"max_tokens"`
	MinTokens         *int           `json:"min_tokens"`
	Stop              Texts          `json:"stop"`
	IncludeStop       *bool          `json:"include_stop_str_in_output"`
	IgnoreEOS         *bool          `json:"ignore_eos"`
	Stream            *bool          `json:"stream"`
	StreamOptions     *StreamOptions `json:"stream_options"`
	Temperature       *float64       `json:"temperature"`
	TopP              *float64       `json:"top_p"`
	TopK              *int           `json:"top_k"`
	MinP              *float64       `json:"min_p"`
	PresencePenalty   *float64       `json:"presence_penalty"`
	FrequencyPenalty  *float64       `json:"frequency_penalty"`
	RepetitionPenalty *float64       `json:"repetition_penalty"`
	Seed              *int64         `json:"seed"`
	User              *string        `json:"user"`
	UseBeamSearch     *bool          `json:"use_beam_search"`
	// Logprobs is a boolean in a chat and a number in a completion.
	Logprobs    json.RawMessage `json:"logprobs"`
	TopLogprobs *int            `json:"top_logprobs"`
	// Top is how many alternatives of each token the answer lists; nil where it has no
	// log probabilities at all.
	Top *int `json:"-"`
}

// StreamOptions says what a stream reports besides the text.
type StreamOptions struct {
	IncludeUsage         *bool `json:"include_usage"`
	ContinuousUsageStats *bool `json:"continuous_usage_stats"`
}

// Texts is a string or a list of strings.
type Texts []string

// UnmarshalJSON reads either form.
func (t *Texts) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		var one string
		if err := json.Unmarshal(b, &one); err != nil {
			return err
		}
		*t = Texts{one}
		return nil
	}
	var many []string
	if err := json.Unmarshal(b, &many); err != nil {
		return err
	}
	*t = many
	return nil
}

// Or is *p, or def where p is nil.
func Or[T any](p *T, def T) T {
	if p == nil {
		return def
	}
	return *p
}

// Streaming tells whether the client wants events.
func (s *Sampling) Streaming() bool { return Or(s.Stream, false) }

// Usage tells whether a stream ends with a usage event, and whether every
// event carries the usage so far.
func (s *Sampling) Usage() (final, continuous bool) {
	if s.StreamOptions == nil {
		return false, false
	}
	// As in vLLM, stream_options without include_usage mean true.
	final = Or(s.StreamOptions.IncludeUsage, true)
	return final, final && Or(s.StreamOptions.ContinuousUsageStats, false)
}

// Check reports the first parameter with a bad value.
func (s *Sampling) Check() *Error {
	if n := Or(s.N, 1); n < 1 || n > maxN {
		return BadRequest("n", "n must be at least 1 and at most %d, got %d.", maxN, n)
	}
	if m := Or(s.MinTokens, 0); m < 0 {
		return BadRequest("min_tokens", "min_tokens must be greater than or equal to 0, got %d.", m)
	} else if s.MaxTokens != nil && m > max(*s.MaxTokens, 0) {
		return BadRequest("min_tokens", "min_tokens must be less than or equal to max_tokens=%d, got %d.", *s.MaxTokens, m)
	}
	if slices.Contains(s.Stop, "") {
		return BadRequest("stop", "stop cannot contain an empty string.")
	}
	if s.StreamOptions != nil && !s.Streaming() {
		return BadRequest("stream_options", "Stream options can only be defined when `stream=True`.")
	}
	if Or(s.UseBeamSearch, false) {
		return BadRequest("use_beam_search", "beam search is not supported by this engine.")
	}
	// As vLLM's SamplingParams have it: greedy answers would all be the same.
	if n := Or(s.N, 1); n > 1 && Or(s.Temperature, 1) < 1e-5 && Or(s.Temperature, 1) >= 0 {
		return BadRequest("n", "n must be 1 when using greedy sampling, got %d.", n)
	}
	if s.TopK != nil && *s.TopK < -1 {
		return BadRequest("top_k", "top_k must be 0 (disable), or at least 1, got %d.", *s.TopK)
	}
	for _, r := range []struct {
		name     string
		value    *float64
		min, max float64
		openMin  bool
		want     string
	}{
		{"temperature", s.Temperature, 0, 1e9, false, "non-negative"},
		{"top_p", s.TopP, 0, 1, true, "in (0, 1]"},
		{"min_p", s.MinP, 0, 1, false, "in [0, 1]"},
		{"presence_penalty", s.PresencePenalty, -2, 2, false, "in [-2, 2]"},
		{"frequency_penalty", s.FrequencyPenalty, -2, 2, false, "in [-2, 2]"},
		{"repetition_penalty", s.RepetitionPenalty, 0, 1e9, true, "greater than zero"},
	} {
		if r.value != nil && (*r.value < r.min || *r.value > r.max || r.openMin && *r.value == r.min) {
			return BadRequest(r.name, "%s must be %s, got %v.", r.name, r.want, *r.value)
		}
	}
	return nil
}
