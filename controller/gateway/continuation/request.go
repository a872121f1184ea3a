package continuation

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"

	"remuda/controller/gateway/openai"
)

// ErrNot: the answer to such a request cannot go on at another engine. What wraps it says
// why.
var ErrNot = errors.New("the response cannot be continued at another engine")

// defaultMaxTokens is OpenAI's for a text completion that has none.
const defaultMaxTokens = 16

// request is a request body and what has to change in it.
type request struct {
	chat bool
	body []byte
	// end is where the body's last bracket is.
	end int
	// input is the value of "messages" or "prompt".
	input openai.Span
	// final and generation are the values of continue_final_message and
	// add_generation_prompt, isFinal whether the client continues a message itself.
	final, generation openai.Span
	isFinal           bool
	// newMax is max_completion_tokens, which a chat prefers to max_tokens.
	max, newMax, min openai.Span
	// limit is how many tokens the answer may have, 0 where it says nothing.
	limit int
	// usage: the client gets an event with the usage, continuous: and one in each event.
	usage, continuous bool
}

// refusals are fields with which an answer is more than its text, and what may stand
// there all the same. null may stand everywhere.
var refusals = map[string][]string{
	"n":                      {"1"},
	"best_of":                {"1"},
	"echo":                   {"false"},
	"suffix":                 {`""`},
	"use_beam_search":        {"false"},
	"logprobs":               {"false"},
	"top_logprobs":           {"0"},
	"prompt_logprobs":        {},
	"tools":                  {"[]"},
	"functions":              {"[]"},
	"response_format":        {},
	"structured_outputs":     {},
	"structural_tag":         {},
	"guided_json":            {},
	"guided_regex":           {},
	"guided_choice":          {"[]"},
	"guided_grammar":         {},
	"return_token_ids":       {"false"},
	"truncate_prompt_tokens": {},
	"prompt_embeds":          {},
	"kv_transfer_params":     {},
	"audio":                  {},
}

func not(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrNot, fmt.Sprintf(format, args...))
}

// newRequest reads the top level of a request body. Of a key that is repeated the last
// one counts, as for engines.
func newRequest(chat bool, body []byte) (*request, error) {
	r := &request{chat: chat, body: body}
	var stream, stop, includeStop, options, modalities []byte
	refused := map[string]string{}
	w := openai.Walk(body, 0, '{')
	for {
		key, v, ok := w.Next()
		if !ok {
			break
		}
		raw := v.Of(body)
		switch k := openai.Text(key.Of(body)); k {
		case "stream":
			stream = raw
		case "stream_options":
			options = raw
		case "stop":
			stop = raw
		case "include_stop_str_in_output":
			includeStop = raw
		case "modalities":
			modalities = raw
		case "max_tokens":
			r.max = v
		case "max_completion_tokens":
			r.newMax = v
		case "min_tokens":
			r.min = v
		case "continue_final_message":
			r.final = v
		case "add_generation_prompt":
			r.generation = v
		case "messages":
			if chat {
				r.input = v
			}
		case "prompt":
			if !chat {
				r.input = v
			}
		default:
			if allowed, ok := refusals[k]; ok {
				delete(refused, k)
				if !openai.Null(raw) && !slices.Contains(allowed, string(raw)) && (k != "response_format" || !plain(raw)) {
					refused[k] = string(raw[:min(len(raw), 40)])
				}
			}
		}
	}
	if w.Err() != nil {
		return nil, not("the body is not a JSON object")
	}
	r.end = w.End()
	for _, k := range slices.Sorted(maps.Keys(refused)) {
		return nil, not("%s is %s", k, refused[k])
	}
	switch {
	case string(stream) != "true":
		return nil, not("stream is not true")
	case string(includeStop) == "true" && !openai.Null(stop) && string(stop) != "[]" && string(stop) != `""`:
		return nil, not("include_stop_str_in_output is true: the text may contain part of a stop string")
	case !openai.Null(modalities) && bytes.Contains(modalities, []byte("audio")):
		return nil, not("modalities contains audio")
	}
	r.readOptions(options)
	if err := r.readLimits(); err != nil {
		return nil, err
	}
	// Where the text goes is looked for now, so that what is missing is known early.
	if _, err := r.place(); err != nil {
		return nil, err
	}
	return r, nil
}

// plain tells whether a response_format is no grammar.
func plain(raw []byte) bool {
	w := openai.Walk(raw, 0, '{')
	for {
		key, v, ok := w.Next()
		if !ok {
			return false
		}
		if openai.Text(key.Of(raw)) == "type" {
			return string(v.Of(raw)) == `"text"`
		}
	}
}

func (r *request) readOptions(raw []byte) {
	if openai.Null(raw) || raw[0] != '{' {
		return
	}
	r.usage = true // as in vLLM, options without include_usage mean true
	w := openai.Walk(raw, 0, '{')
	for {
		key, v, ok := w.Next()
		if !ok {
			break
		}
		switch openai.Text(key.Of(raw)) {
		case "include_usage":
			r.usage = string(v.Of(raw)) != "false"
		case "continuous_usage_stats":
			r.continuous = string(v.Of(raw)) == "true"
		}
	}
	r.continuous = r.continuous && r.usage
}

func (r *request) readLimits() error {
	if !r.chat {
		r.limit, r.newMax = defaultMaxTokens, openai.Span{}
		if !r.max.Empty() && openai.Null(r.max.Of(r.body)) {
			return not("max_tokens is null: the limit depends on the engine")
		}
	}
	for _, l := range []struct {
		name string
		at   *openai.Span
		to   *int
	}{{"max_tokens", &r.max, &r.limit}, {"max_completion_tokens", &r.newMax, &r.limit}, {"min_tokens", &r.min, new(int)}} {
		raw := l.at.Of(r.body)
		if openai.Null(raw) {
			*l.at = openai.Span{}
			continue
		}
		n, ok := openai.Whole(raw)
		if !ok || n == 0 && l.to == &r.limit {
			return not("%s is %.40s: must be a whole number", l.name, raw)
		}
		*l.to = n
	}
	return nil
}
