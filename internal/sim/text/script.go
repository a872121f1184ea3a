package text

import "unicode/utf8"

// Script is an answer that is fixed beforehand: JSON, or calls of functions.
type Script []Part

// Part is one part of a Script.
type Part struct {
	// Call is the name of the function that the part calls, empty for text.
	Call string
	// Text is the text, or the arguments of the call as JSON.
	Text string
}

// Calls reports whether the script calls a function.
func (s Script) Calls() bool {
	for _, p := range s {
		if p.Call != "" {
			return true
		}
	}
	return false
}

// After is the script without the text that another engine has written of it; the
// script unchanged if it does not begin with that text. A script with calls is not
// continued.
func (s Script) After(begun string) Script {
	if len(s) != 1 || s.Calls() || len(begun) > len(s[0].Text) || s[0].Text[:len(begun)] != begun {
		return s
	}
	return Script{{Text: s[0].Text[len(begun):]}}
}

// scripted is one token of a script.
type scripted struct {
	part int
	text string
}

// tokens cuts a script into tokens. A call begins with a token of its own without text,
// which stands for the mark and the name of the function.
func (s Script) tokens() []scripted {
	var out []scripted
	for i, p := range s {
		if p.Call != "" {
			out = append(out, scripted{part: i})
		}
		for _, t := range Pieces(p.Text) {
			out = append(out, scripted{i, t})
		}
	}
	return out
}

// Pieces cuts a text into as many tokens as Count counts, whole characters each. A token
// that ends inside a character is empty, and the next one has the whole of it.
func Pieces(s string) []string {
	var out []string
	carry := ""
	pieces(s, func(p string) {
		if _, ok := vocabID[p]; ok {
			out = append(out, carry+p)
			carry = ""
			return
		}
		for len(p) > 0 {
			n := min(3, len(p))
			t := carry + p[:n]
			p = p[n:]
			whole := len(t)
			if len(p) > 0 && !utf8.RuneStart(p[0]) {
				for whole > 0 && !utf8.RuneStart(t[whole-1]) {
					whole--
				}
				whole = max(whole-1, 0)
			}
			carry = t[whole:]
			out = append(out, t[:whole])
		}
	})
	return out
}
