package modelscan

import (
	"bytes"
	"strconv"
)

// wanted is a set of keys that Scan looks for.
type wanted uint16

const (
	keyModel wanted = 1 << iota
	keyStream
	keyMaxTokens
	keyMaxCompletionTokens
	keyN
	keyMessages
	keyPrompt
	keyInput
	keyTools
	keyFunctions
	keyResponseFormat
	keyLogprobs
)

// maxKey is the length of the longest wanted key, maxEscaped what it can be when every
// character is written as \uXXXX.
const (
	maxKey     = len("max_completion_tokens")
	maxEscaped = 6 * maxKey
)

// keyOf returns which of the wanted keys this one is, or 0.
func keyOf(key string) wanted {
	switch key {
	case "model":
		return keyModel
	case "stream":
		return keyStream
	case "max_tokens":
		return keyMaxTokens
	case "max_completion_tokens":
		return keyMaxCompletionTokens
	case "n":
		return keyN
	case "messages":
		return keyMessages
	case "prompt":
		return keyPrompt
	case "input":
		return keyInput
	case "tools":
		return keyTools
	case "functions":
		return keyFunctions
	case "response_format":
		return keyResponseFormat
	case "logprobs":
		return keyLogprobs
	}
	return 0
}

// rawKey returns which of the wanted keys a key is that may have escapes, or 0.
func rawKey(raw []byte) wanted {
	if len(raw) <= maxKey { // so short a string is made without allocating
		if k := keyOf(string(raw)); k != 0 {
			return k
		}
	}
	if len(raw) > maxEscaped || bytes.IndexByte(raw, '\\') < 0 {
		return 0
	}
	key, ok := text(append(append([]byte{'"'}, raw...), '"'))
	if !ok {
		return 0
	}
	return keyOf(key)
}

// member reads the value of one top-level key and keeps what matters.
func (s *scanner) member(key []byte) error {
	start := s.i
	if err := s.value(); err != nil {
		return err
	}
	raw := s.b[start:s.i]
	switch k := rawKey(key); k {
	case keyModel:
		s.head.Model, s.badModel = "", false
		if raw[0] != '"' {
			s.badModel = true
			return nil
		}
		model, ok := text(raw)
		if !ok {
			s.i = start
			return s.fail(`"model" has an invalid escape or a control character`)
		}
		s.head.Model = model
	case keyStream:
		s.head.Stream = raw[0] == 't'
	case keyMaxTokens:
		s.limit = number(raw)
	case keyMaxCompletionTokens:
		s.newLimit = number(raw)
	case keyN:
		s.head.N = number(raw)
	case keyMessages, keyPrompt, keyInput:
		if raw[0] != 'n' {
			s.head.Prompt = [2]int{start, s.i}
		}
	case keyTools, keyFunctions, keyResponseFormat, keyLogprobs:
		s.tools &^= k
		if raw[0] != 'n' && raw[0] != 'f' {
			s.tools |= k
		}
	}
	return nil
}

// finish completes the head after the last member.
func (s *scanner) finish() {
	s.head.Tools = s.tools != 0
	if s.head.MaxTokens = s.newLimit; s.newLimit == 0 {
		s.head.MaxTokens = s.limit
	}
}

// number returns a JSON value as a number for a Head, 0 for what is no number.
func number(raw []byte) int {
	if c := raw[0]; c != '-' && (c < '0' || c > '9') {
		return 0
	}
	if n, ok := small(raw); ok {
		return n
	}
	// Out of range is infinite: the error tells nothing else, the grammar was checked.
	f, _ := strconv.ParseFloat(string(raw), 64)
	return int(min(max(f, 0), maxNumber))
}

// small returns a number of at most nine digits and nothing else, which most are.
func small(raw []byte) (n int, ok bool) {
	if len(raw) > 9 {
		return 0, false
	}
	for _, c := range raw {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int(c-'0')
	}
	return n, true
}
