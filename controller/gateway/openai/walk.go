package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// SyntaxError means that a text is not the JSON value that was expected.
type SyntaxError struct {
	// Offset is the byte at which the error was noticed.
	Offset int
	// Problem says what was found and what was expected.
	Problem string
}

// Error returns the problem and where it is.
func (e *SyntaxError) Error() string { return fmt.Sprintf("at byte %d: %s", e.Offset, e.Problem) }

// Span is b[From:To] of some text.
type Span struct{ From, To int }

// Of returns the text of the span.
func (s Span) Of(b []byte) []byte { return b[s.From:s.To] }

// Len is the number of bytes.
func (s Span) Len() int { return s.To - s.From }

// Empty reports whether the span has no bytes.
func (s Span) Empty() bool { return s.From == s.To }

// Walker goes through the members of one JSON object or the elements of one array. Strings and
// nested values are skipped by their quotes and brackets; what is inside them is not checked.
type Walker struct {
	b     []byte
	i     int
	close byte
	end   int
	begun bool
	err   *SyntaxError
}

// maxDepth is how deep values may nest inside the value that is walked. With it they make
// 10,000, the limit of encoding/json.
const maxDepth = 9999

// Walk begins at the opening bracket, '{' or '[', which is at from or behind spaces.
func Walk(b []byte, from int, open byte) Walker {
	w := Walker{b: b, i: from, close: open + 2, end: -1} // '{' and '[' are two before their ends
	what := "a JSON object"
	if open == '[' {
		what = "a JSON array"
	}
	w.space()
	switch {
	case w.i >= len(b):
		w.i = len(b)
		w.fail("the text is empty, expected " + what)
	case b[w.i] != open:
		w.fail(fmt.Sprintf("found %q, expected %s", b[w.i], what))
	default:
		w.i++
	}
	return w
}

// Err returns what is wrong with the value, as far as it was read; it is nil or a *SyntaxError.
func (w *Walker) Err() error {
	if w.err == nil {
		return nil
	}
	return w.err
}

// End is where the closing bracket is, -1 until Next has returned false without an error.
func (w *Walker) End() int { return w.end }

// Begun reports whether there was a member or an element.
func (w *Walker) Begun() bool { return w.begun }

// Rest checks that nothing but spaces follows the value.
func (w *Walker) Rest() error {
	if w.err == nil {
		if w.space(); w.i != len(w.b) {
			w.fail(fmt.Sprintf("found %q after the JSON value, expected the end", w.b[w.i]))
		}
	}
	return w.Err()
}

func (w *Walker) fail(problem string) {
	if w.err == nil {
		w.err = &SyntaxError{Offset: w.i, Problem: problem}
	}
}

func (w *Walker) ends(want string) {
	w.i = len(w.b)
	w.fail("the text ends early, expected " + want)
}

func (w *Walker) space() {
	for w.i < len(w.b) {
		switch w.b[w.i] {
		case ' ', '\t', '\n', '\r':
			w.i++
		default:
			return
		}
	}
}

// Next finds the next value, and in an object its key, with its quotes. ok is false at the end
// of the value and at an error.
func (w *Walker) Next() (key, value Span, ok bool) {
	if w.err != nil || w.end >= 0 {
		return key, value, false
	}
	w.space()
	if w.begun {
		switch {
		case w.i == len(w.b):
			w.ends(fmt.Sprintf("',' or '%c'", w.close))
			return key, value, false
		case w.b[w.i] == w.close:
			w.end = w.i
			w.i++
			return key, value, false
		case w.b[w.i] != ',':
			w.fail(fmt.Sprintf("found %q, expected ',' or '%c'", w.b[w.i], w.close))
			return key, value, false
		}
		w.i++
		w.space()
	} else if w.i < len(w.b) && w.b[w.i] == w.close {
		w.end = w.i
		w.i++
		return key, value, false
	}
	w.begun = true
	if w.close == '}' {
		if key = w.key(); w.err != nil {
			return key, value, false
		}
	}
	value.From = w.i
	w.value()
	value.To = w.i
	return key, value, w.err == nil
}

// key reads a key, its colon and the spaces behind it.
func (w *Walker) key() (key Span) {
	switch {
	case w.i == len(w.b):
		w.ends("a key")
		return key
	case w.b[w.i] != '"':
		w.fail(fmt.Sprintf("found %q, expected a key in double quotes", w.b[w.i]))
		return key
	}
	key.From = w.i
	w.str()
	key.To = w.i
	if w.err != nil {
		return key
	}
	w.space()
	switch {
	case w.i == len(w.b):
		w.ends("':' after a key")
	case w.b[w.i] != ':':
		w.fail(fmt.Sprintf("found %q, expected ':' after a key", w.b[w.i]))
	default:
		w.i++
		w.space()
	}
	return key
}

// value skips one value.
func (w *Walker) value() {
	if w.i == len(w.b) {
		w.ends("a value")
		return
	}
	switch c := w.b[w.i]; c {
	case '"':
		w.str()
	case '{', '[':
		w.nested()
	case 't':
		w.literal("true")
	case 'f':
		w.literal("false")
	case 'n':
		w.literal("null")
	case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		w.number()
	default:
		w.fail(fmt.Sprintf("found %q, expected a value", c))
	}
}

// str skips a string; its opening quote is at w.i.
func (w *Walker) str() {
	start := w.i + 1
	for j := start; ; j++ {
		k := bytes.IndexByte(w.b[j:], '"')
		if k < 0 {
			w.ends("the end of a string")
			return
		}
		j += k
		// A quote behind an odd number of backslashes is an escaped one.
		n := j
		for n > start && w.b[n-1] == '\\' {
			n--
		}
		if (j-n)%2 == 0 {
			w.i = j + 1
			return
		}
	}
}

// structural are the bytes that matter outside strings in a nested value.
var structural = [256]bool{'"': true, '{': true, '}': true, '[': true, ']': true}

// nested skips an object or array by its brackets.
func (w *Walker) nested() {
	// One bit for each open bracket: 1 for '{', 0 for '['.
	var few [2]uint64
	open := few[:]
	depth := 0
	for {
		for w.i < len(w.b) && !structural[w.b[w.i]] {
			w.i++
		}
		if w.i == len(w.b) {
			w.ends("the end of an object or array")
			return
		}
		switch c := w.b[w.i]; c {
		case '"':
			if w.str(); w.err != nil {
				return
			}
			continue
		case '{', '[':
			if depth == maxDepth {
				w.fail(fmt.Sprintf("values nest deeper than %d levels", maxDepth+1))
				return
			}
			if depth/64 == len(open) {
				open = append(open, 0)
			}
			bit := uint64(1) << (depth % 64)
			if c == '{' {
				open[depth/64] |= bit
			} else {
				open[depth/64] &^= bit
			}
			depth++
		default:
			depth--
			object := open[depth/64]>>(depth%64)&1 == 1
			if object != (c == '}') {
				w.fail(fmt.Sprintf("found %q, which does not match the opening bracket", c))
				return
			}
		}
		w.i++
		if depth == 0 {
			return
		}
	}
}

func (w *Walker) literal(want string) {
	if !bytes.HasPrefix(w.b[w.i:], []byte(want)) {
		w.fail("found an unknown value, expected " + want)
		return
	}
	w.i += len(want)
}

func (w *Walker) digits() bool {
	start := w.i
	for w.i < len(w.b) && w.b[w.i] >= '0' && w.b[w.i] <= '9' {
		w.i++
	}
	return w.i > start
}

func (w *Walker) at(c byte) bool { return w.i < len(w.b) && w.b[w.i] == c }

// number skips a number by the grammar of RFC 8259.
func (w *Walker) number() {
	if w.at('-') {
		w.i++
	}
	if w.at('0') {
		w.i++
	} else if !w.digits() {
		w.fail("found '-' without a digit, expected a number")
		return
	}
	if w.at('.') {
		w.i++
		if !w.digits() {
			w.fail("found '.' without a digit after it, expected a number")
			return
		}
	}
	if w.at('e') || w.at('E') {
		w.i++
		if w.at('+') || w.at('-') {
			w.i++
		}
		if !w.digits() {
			w.fail("found an exponent without a digit, expected a number")
		}
	}
}

// Text returns the text of a key or another string: its quotes are taken off and its escapes
// resolved. It is empty where the string is invalid.
func Text(raw []byte) string {
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw[1 : len(raw)-1])
	}
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return s
}

// IsString reports whether the value at s is a string.
func IsString(b []byte, s Span) bool { return s.Len() >= 2 && b[s.From] == '"' }

// Inner is a string without its quotes.
func Inner(s Span) Span { return Span{s.From + 1, s.To - 1} }

// Null reports whether a value is null or absent.
func Null(raw []byte) bool { return len(raw) == 0 || raw[0] == 'n' }

// Whole reads a whole number of at most 15 digits that is not negative.
func Whole(raw []byte) (int, bool) {
	if len(raw) == 0 || len(raw) > 15 {
		return 0, false
	}
	n := 0
	for _, c := range raw {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int(c-'0')
	}
	return n, true
}

// Edit puts With in the place of At.
type Edit struct {
	At   Span
	With []byte
}

// Edited appends b with its edits, which are in order and do not overlap.
func Edited(to, b []byte, edits []Edit) []byte {
	at := 0
	for _, e := range edits {
		to = append(append(to, b[at:e.At.From]...), e.With...)
		at = e.At.To
	}
	return append(to, b[at:]...)
}
