package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
)

// Errors of Scan about a body whose top level is well formed.
var (
	// ErrNoModel means that there is no "model", or an empty one.
	ErrNoModel = errors.New(`"model" is missing`)
	// ErrModelType means that "model" is not a string.
	ErrModelType = errors.New(`"model" is not a string`)
	// ErrModelCase means that a key is "model" but for its case. Some engines would take it for
	// the model, others not.
	ErrModelCase = errors.New(`"model" is written in another case`)
)

// Head is what the gateway needs to know of a request.
type Head struct {
	// Model is the value of "model". It does not alias the body.
	Model string
	// Stream reports whether "stream" is true.
	Stream bool
	// MaxTokens is the value of "max_completion_tokens" or "max_output_tokens" or, where
	// that is 0 or not a number, of "max_tokens", the older name of the same. It is 0 where
	// none says more.
	MaxTokens int
	// N is the value of "n", how many answers are wanted. It is 0 where there is no number.
	N int
	// Prompt is the value of "messages", "prompt" or "input" in the body. Of several the last
	// one counts, null does not.
	Prompt Span
	// Options is the value of "stream_options", empty where there is none.
	Options Span
	// Previous is the value of "previous_response_id", empty where there is none.
	Previous string
	// End is where the body's last bracket is.
	End int
}

// wanted is a key that Scan looks for.
type wanted uint8

const (
	keyNone wanted = iota
	keyModel
	keyModelCase
	keyStream
	keyMaxTokens
	keyNewMaxTokens
	keyN
	keyPrompt
	keyOptions
	keyPrevious
)

// maxKey is the length of the longest wanted key, maxEscaped what it can be when every
// character is written as \uXXXX.
const (
	maxKey     = len("max_completion_tokens")
	maxEscaped = 6 * maxKey
)

// keyOf returns which of the wanted keys this one is.
func keyOf(key string) wanted {
	switch key {
	case "model":
		return keyModel
	case "stream":
		return keyStream
	case "max_tokens":
		return keyMaxTokens
	case "max_completion_tokens", "max_output_tokens":
		return keyNewMaxTokens
	case "n":
		return keyN
	case "messages", "prompt", "input":
		return keyPrompt
	case "stream_options":
		return keyOptions
	case "previous_response_id":
		return keyPrevious
	}
	if len(key) == len("model") && key[0]|0x20 == 'm' && key[1]|0x20 == 'o' && key[2]|0x20 == 'd' && key[3]|0x20 == 'e' && key[4]|0x20 == 'l' {
		return keyModelCase
	}
	return keyNone
}

// rawKey returns which of the wanted keys a key is that may have escapes.
func rawKey(raw []byte) wanted {
	if len(raw) <= maxKey { // so short a string is made without allocating
		if k := keyOf(string(raw)); k != keyNone {
			return k
		}
	}
	if len(raw) > maxEscaped || bytes.IndexByte(raw, '\\') < 0 {
		return keyNone
	}
	key, ok := text(append(append([]byte{'"'}, raw...), '"'))
	if !ok {
		return keyNone
	}
	return keyOf(key)
}

// text decodes a JSON string with its quotes.
func text(raw []byte) (string, bool) {
	inner := raw[1 : len(raw)-1]
	plain := utf8.Valid(inner)
	for _, c := range inner {
		if c < ' ' {
			return "", false
		}
		plain = plain && c != '\\'
	}
	if plain {
		return string(inner), true
	}
	var out string
	if json.Unmarshal(raw, &out) != nil {
		return "", false
	}
	return out, true
}

// Scan returns the head of the request in body. The error is a *SyntaxError, ErrNoModel,
// ErrModelType or ErrModelCase.
func Scan(body []byte) (Head, error) {
	var h Head
	var limit int // the value of max_tokens
	badType, badCase := false, false
	w := Walk(body, 0, '{')
	for {
		key, v, ok := w.Next()
		if !ok {
			break
		}
		raw := v.Of(body)
		switch rawKey(Inner(key).Of(body)) {
		case keyModel:
			h.Model, badType = "", raw[0] != '"'
			if badType {
				continue
			}
			model, ok := text(raw)
			if !ok {
				return Head{}, &SyntaxError{Offset: v.From, Problem: `"model" has an invalid escape or a control character`}
			}
			h.Model = model
		case keyModelCase:
			badCase = true
		case keyStream:
			h.Stream = raw[0] == 't'
		case keyMaxTokens:
			limit = number(raw)
		case keyNewMaxTokens:
			h.MaxTokens = number(raw)
		case keyN:
			h.N = number(raw)
		case keyPrompt:
			if raw[0] != 'n' {
				h.Prompt = v
			}
		case keyOptions:
			h.Options = v
		case keyPrevious:
			if h.Previous = ""; raw[0] == '"' {
				h.Previous, _ = text(raw)
			}
		case keyNone:
		}
	}
	if err := w.Rest(); err != nil {
		return Head{}, err
	}
	h.End = w.End()
	if h.MaxTokens == 0 {
		h.MaxTokens = limit
	}
	switch {
	case badCase:
		return Head{}, ErrModelCase
	case badType:
		return Head{}, ErrModelType
	case h.Model == "":
		return Head{}, ErrNoModel
	}
	return h, nil
}

// maxNumber is the most that a number in a Head can be; more counts as so much, less
// than 0 as 0, and a fraction is cut off (it is read as a float64).
const maxNumber = 1<<31 - 1

// number returns a JSON value as a number for a Head, 0 for what is not a number.
func number(raw []byte) int {
	if c := raw[0]; c != '-' && (c < '0' || c > '9') {
		return 0
	}
	if len(raw) <= 9 { // most are
		if n, ok := Whole(raw); ok {
			return n
		}
	}
	if len(raw) > 400 { // the longest float64 has fewer digits that matter; more are a client's joke
		raw = raw[:400]
		for c := raw[len(raw)-1]; c == '-' || c == '+' || c == 'e' || c == 'E' || c == '.'; c = raw[len(raw)-1] {
			raw = raw[:len(raw)-1]
		}
	}
	// Out of range is infinite: the error says nothing else, the grammar was checked.
	f, _ := strconv.ParseFloat(string(raw), 64)
	return int(min(max(f, 0), maxNumber))
}

// What is hashed of a prompt: the largest of these powers of two that it has.
const (
	prefixMost  = 1024
	prefixLeast = 256
)

// Prefix returns a hash of what the prompt begins with, for requests that are likely to
// share the first blocks of an engine's prefix cache. It is 0 where there is no prompt of
// at least 256 bytes: so little (four blocks of vLLM's 16 tokens) is computed sooner than
// it is waited for. Body must be what was scanned.
//
// 1024 bytes are about 256 tokens. That is less than most system prompts and examples
// with which an application begins each request, so all of its requests get the same
// hash; and more than what different applications have in common. Of a prompt that is
// shorter the first 512 or 256 bytes count, so that a conversation that grows changes
// its engine at most twice.
//
// It is the bytes of the JSON that count: the same text escaped in another way, or with
// other spaces, has another hash. A client does not change its way between requests.
func (h Head) Prefix(body []byte) uint64 {
	n := h.Prompt.Len()
	if n < prefixLeast {
		return 0
	}
	size := prefixMost
	for size > n {
		size /= 2
	}
	// 0 means no prefix.
	return max(xxhash.Sum64(body[h.Prompt.From:h.Prompt.From+size]), 1)
}

const (
	// BytesPerToken is what English text has; JSON and code have fewer.
	BytesPerToken = 4
	// usualTokens is how long an answer is taken to be where the client does not say.
	usualTokens = 256
	// mostTokens and mostAnswers are what counts of a larger number: no engine takes
	// more, and a client must not be able to make one request look like a day of work.
	mostTokens  = 1 << 20
	mostAnswers = 128
)

// PromptTokens estimates how many tokens the prompt has. The whole body counts: no key that a
// client adds can make its prompt look short. A prompt with images in it counts by its bytes.
func (h Head) PromptTokens(body []byte) int64 { return int64(len(body)) / BytesPerToken }

// Cost estimates how much work the request is, in tokens: those of its prompt, and those of
// its answers, where generates says that there are any. It is at least 1. A list of prompts has
// an answer, or several, for each.
func (h Head) Cost(body []byte, generates bool) int64 {
	cost := h.PromptTokens(body)
	if generates {
		tokens := h.MaxTokens
		if tokens == 0 {
			tokens = usualTokens
		}
		answers := int64(min(max(h.N, 1), mostAnswers)) * int64(min(h.prompts(body), mostAnswers))
		cost += int64(min(tokens, mostTokens)) * min(answers, mostAnswers)
	}
	return max(cost, 1)
}

// prompts is how many prompts a request has: as many as a list of strings, or of lists of
// token IDs, has elements, or else 1.
func (h Head) prompts(body []byte) int {
	if h.Prompt.Empty() || body[h.Prompt.From] != '[' {
		return 1
	}
	// Messages, which can be long, are not walked again to see that they are no prompts.
	if first := bytes.TrimLeft(body[h.Prompt.From+1:h.Prompt.To], " \t\r\n"); first[0] != '"' && first[0] != '[' {
		return 1
	}
	n := 0
	for w := Walk(body[:h.Prompt.To], h.Prompt.From, '['); n < mostAnswers; n++ {
		_, v, ok := w.Next()
		if !ok {
			break
		}
		if c := body[v.From]; c != '"' && c != '[' {
			return 1
		}
	}
	return max(n, 1)
}
