// Package modelscan reads the few fields of an OpenAI request that decide
// where it goes, without decoding the request.
//
// Scan walks the top level of the JSON object once. Strings, where prompts
// live, are skipped at the speed of a memory scan, so a prompt costs about as
// much as copying it; nested values are skipped by matching their brackets.
//
// What it promises: for every body that is a valid JSON object, Scan finds
// what encoding/json would find in a map (of a repeated key the last one counts, as in
// encoding/json and in Python's json, which engines use; "Model" is another key,
// as in Python). It refuses only what
// is no valid JSON object. The reverse does not hold: a fault inside a nested
// value or inside a string (a bad escape, a raw control character) passes, and
// the engine, which decodes the body anyway, reports it.
package modelscan

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

// Errors of Scan about a body whose top level is well formed.
var (
	// ErrNoModel means that there is no "model", or an empty one.
	ErrNoModel = errors.New(`"model" is missing`)
	// ErrModelType means that "model" is not a string.
	ErrModelType = errors.New(`"model" is not a string`)
)

// SyntaxError means that the body is not a JSON object.
type SyntaxError struct {
	// Offset is the byte at which the fault was noticed.
	Offset int
	// Problem says what was found and what was expected.
	Problem string
}

// Error returns the problem and where it is.
func (e *SyntaxError) Error() string { return fmt.Sprintf("at byte %d: %s", e.Offset, e.Problem) }

// maxDepth is how deep values may nest below the top level. With the top
// level it makes 10,000, the limit of encoding/json.
const maxDepth = 9999

// Scan returns the head of the request in body. The error is a *SyntaxError,
// ErrNoModel or ErrModelType.
func Scan(body []byte) (Head, error) {
	s := scanner{b: body}
	s.space()
	if s.i == len(s.b) {
		return Head{}, s.fail("the body is empty, expected a JSON object")
	}
	if s.b[s.i] != '{' {
		return Head{}, s.fail(fmt.Sprintf("found %q, expected a JSON object", s.b[s.i]))
	}
	s.i++
	if err := s.members(); err != nil {
		return Head{}, err
	}
	s.finish()
	s.space()
	if s.i != len(s.b) {
		return Head{}, s.fail(fmt.Sprintf("found %q after the JSON object, expected the end of the body", s.b[s.i]))
	}
	switch {
	case s.badModel:
		return Head{}, ErrModelType
	case s.head.Model == "":
		return Head{}, ErrNoModel
	}
	return s.head, nil
}

type scanner struct {
	b        []byte
	i        int
	head     Head
	badModel bool
	// limit is the value of max_tokens, newLimit that of max_completion_tokens.
	limit, newLimit int
	// tools are the keys of Head.Tools that ask for something.
	tools wanted
	// open holds one bit for each open nested bracket: 1 for '{', 0 for '['.
	open [maxDepth/64 + 1]uint64
}

func (s *scanner) fail(problem string) *SyntaxError {
	return &SyntaxError{Offset: s.i, Problem: problem}
}

func (s *scanner) end(want string) *SyntaxError {
	s.i = len(s.b)
	return s.fail("the body ends early, expected " + want)
}

func (s *scanner) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\t', '\n', '\r':
			s.i++
		default:
			return
		}
	}
}

// members reads the members of the top object, up to and with its '}'.
func (s *scanner) members() error {
	s.space()
	if s.i < len(s.b) && s.b[s.i] == '}' {
		s.i++
		return nil
	}
	for {
		s.space()
		if s.i == len(s.b) {
			return s.end("a key")
		}
		if s.b[s.i] != '"' {
			return s.fail(fmt.Sprintf("found %q, expected a key in double quotes", s.b[s.i]))
		}
		key, err := s.str()
		if err != nil {
			return err
		}
		s.space()
		if s.i == len(s.b) {
			return s.end("':' after a key")
		}
		if s.b[s.i] != ':' {
			return s.fail(fmt.Sprintf("found %q, expected ':' after a key", s.b[s.i]))
		}
		s.i++
		s.space()
		if err := s.member(key); err != nil {
			return err
		}
		s.space()
		if s.i == len(s.b) {
			return s.end("',' or '}'")
		}
		switch s.b[s.i] {
		case ',':
			s.i++
		case '}':
			s.i++
			return nil
		default:
			return s.fail(fmt.Sprintf("found %q, expected ',' or '}'", s.b[s.i]))
		}
	}
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

// value reads one value of the top object.
func (s *scanner) value() error {
	if s.i == len(s.b) {
		return s.end("a value")
	}
	switch c := s.b[s.i]; c {
	case '"':
		_, err := s.str()
		return err
	case '{', '[':
		return s.nested()
	case 't':
		return s.literal("true")
	case 'f':
		return s.literal("false")
	case 'n':
		return s.literal("null")
	case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		return s.number()
	default:
		return s.fail(fmt.Sprintf("found %q, expected a value", c))
	}
}

// str reads a string, the opening quote being at s.i, and returns what is
// between the quotes, undecoded.
func (s *scanner) str() ([]byte, error) {
	start := s.i + 1
	for j := start; ; j++ {
		k := bytes.IndexByte(s.b[j:], '"')
		if k < 0 {
			return nil, s.end("the end of a string")
		}
		j += k
		// A quote behind an odd number of backslashes is an escaped one.
		n := j
		for n > start && s.b[n-1] == '\\' {
			n--
		}
		if (j-n)%2 == 0 {
			s.i = j + 1
			return s.b[start:j], nil
		}
	}
}

// structural marks the bytes that matter outside strings in a nested value.
var structural = [256]bool{'"': true, '{': true, '}': true, '[': true, ']': true}

// nested skips an object or array by its brackets.
func (s *scanner) nested() error {
	depth := 0
	for {
		for s.i < len(s.b) && !structural[s.b[s.i]] {
			s.i++
		}
		if s.i == len(s.b) {
			return s.end("the end of an object or array")
		}
		switch c := s.b[s.i]; c {
		case '"':
			if _, err := s.str(); err != nil {
				return err
			}
			continue
		case '{', '[':
			if depth == maxDepth {
				return s.fail(fmt.Sprintf("values nest deeper than %d levels", maxDepth+1))
			}
			bit := uint64(1) << (depth % 64)
			if c == '{' {
				s.open[depth/64] |= bit
			} else {
				s.open[depth/64] &^= bit
			}
			depth++
		default:
			depth--
			object := s.open[depth/64]>>(depth%64)&1 == 1
			if object != (c == '}') {
				return s.fail(fmt.Sprintf("found %q, which does not match the opening bracket", c))
			}
		}
		s.i++
		if depth == 0 {
			return nil
		}
	}
}

func (s *scanner) literal(want string) error {
	if !bytes.HasPrefix(s.b[s.i:], []byte(want)) {
		return s.fail("found an unknown value, expected " + want)
	}
	s.i += len(want)
	return nil
}

func (s *scanner) digits() bool {
	start := s.i
	for s.i < len(s.b) && s.b[s.i] >= '0' && s.b[s.i] <= '9' {
		s.i++
	}
	return s.i > start
}

func (s *scanner) at(c byte) bool { return s.i < len(s.b) && s.b[s.i] == c }

// number reads a number by the grammar of RFC 8259.
func (s *scanner) number() error {
	if s.at('-') {
		s.i++
	}
	if s.at('0') {
		s.i++
	} else if !s.digits() {
		return s.fail("found '-' without a digit, expected a number")
	}
	if s.at('.') {
		s.i++
		if !s.digits() {
			return s.fail("found '.' without a digit after it, expected a number")
		}
	}
	if s.at('e') || s.at('E') {
		s.i++
		if s.at('+') || s.at('-') {
			s.i++
		}
		if !s.digits() {
			return s.fail("found an exponent without a digit, expected a number")
		}
	}
	return nil
}
