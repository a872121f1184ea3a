package continuation

import (
	"bytes"
	"encoding/json"
)

// span is b[from:to] of some text.
type span struct{ from, to int }

func (s span) of(b []byte) []byte { return b[s.from:s.to] }

func (s span) empty() bool { return s.from == s.to }

// walker goes through the members of one JSON object or the elements of one array. It
// checks only what it needs to find them: values are skipped by their quotes and
// brackets, at the speed of a memory scan.
type walker struct {
	b []byte
	i int
	// close is '}' or ']', end where that is once all was read.
	close byte
	end   int
	begun bool
	// bad: the text is no such value.
	bad bool
}

// walk begins at the opening bracket.
func walk(b []byte, from int, open byte) walker {
	w := walker{b: b, i: from, close: open + 2, end: -1} // '{' and '[' are two before their ends
	if w.space(); w.i >= len(b) || b[w.i] != open {
		w.bad = true
		return w
	}
	w.i++
	return w
}

func (w *walker) space() {
	for w.i < len(w.b) {
		switch w.b[w.i] {
		case ' ', '\t', '\n', '\r':
			w.i++
		default:
			return
		}
	}
}

// next finds the next value, and its key in an object, with its quotes.
func (w *walker) next() (key, value span, ok bool) {
	if w.bad || w.end >= 0 {
		return key, value, false
	}
	w.space()
	if w.i < len(w.b) && w.b[w.i] == w.close {
		w.end = w.i
		w.i++
		return key, value, false
	}
	if w.begun {
		if w.i >= len(w.b) || w.b[w.i] != ',' {
			w.bad = true
			return key, value, false
		}
		w.i++
		w.space()
	}
	w.begun = true
	if w.close == '}' {
		if w.i >= len(w.b) || w.b[w.i] != '"' {
			w.bad = true
			return key, value, false
		}
		if key = w.value(); w.bad {
			return key, value, false
		}
		if w.space(); w.i >= len(w.b) || w.b[w.i] != ':' {
			w.bad = true
			return key, value, false
		}
		w.i++
		w.space()
	}
	value = w.value()
	return key, value, !w.bad
}

// value skips one value.
func (w *walker) value() span {
	s := span{from: w.i}
	if w.i >= len(w.b) {
		w.bad = true
		return s
	}
	switch w.b[w.i] {
	case '"':
		w.str()
	case '{', '[':
		w.nested()
	default:
		for w.i < len(w.b) && !ends[w.b[w.i]] {
			w.i++
		}
		w.bad = w.i == s.from
	}
	s.to = w.i
	return s
}

// ends are the bytes that end a number or a word; brackets are the ones that matter
// in a nested value.
var (
	ends     = [256]bool{',': true, ']': true, '}': true, ' ': true, '\t': true, '\n': true, '\r': true, '"': true, ':': true}
	brackets = [256]bool{'"': true, '{': true, '}': true, '[': true, ']': true}
)

func (w *walker) str() {
	start := w.i + 1
	for j := start; ; j++ {
		k := bytes.IndexByte(w.b[j:], '"')
		if k < 0 {
			w.bad, w.i = true, len(w.b)
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

func (w *walker) nested() {
	depth := 0
	for w.i < len(w.b) {
		c := w.b[w.i]
		if !brackets[c] {
			w.i++
			continue
		}
		switch c {
		case '"':
			if w.str(); w.bad {
				return
			}
			continue
		case '{', '[':
			depth++
		default:
			depth--
		}
		w.i++
		if depth == 0 {
			return
		}
	}
	w.bad = true
}

// name is the text of a key, with its quotes taken off and its escapes resolved.
func name(key []byte) string {
	if bytes.IndexByte(key, '\\') < 0 {
		return string(key[1 : len(key)-1])
	}
	var s string
	if json.Unmarshal(key, &s) != nil {
		return ""
	}
	return s
}

// isString tells whether a value is a string, and inner where its text is.
func isString(b []byte, s span) bool { return s.to-s.from >= 2 && b[s.from] == '"' }

func inner(s span) span { return span{s.from + 1, s.to - 1} }

// null tells whether a value is null or was not there.
func null(raw []byte) bool { return len(raw) == 0 || raw[0] == 'n' }

// whole reads a whole number of at most 15 digits that is not negative.
func whole(raw []byte) (int, bool) {
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

// edit puts with in the place of at.
type edit struct {
	at   span
	with []byte
}

// edited appends b with its edits, which are in order and do not overlap.
func edited(to, b []byte, edits []edit) []byte {
	at := 0
	for _, e := range edits {
		to = append(append(to, b[at:e.at.from]...), e.with...)
		at = e.at.to
	}
	return append(to, b[at:]...)
}
