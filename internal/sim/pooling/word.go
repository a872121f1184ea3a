package pooling

import (
	"slices"
	"strings"
	"unicode"
)

// containsWord reports whether a text has a word, in any case.
func containsWord(s, word string) bool {
	return slices.Contains(strings.FieldsFunc(strings.ToLower(s), func(r rune) bool {
		return !unicode.IsLetter(r) && r != '-' && r != '/'
	}), word)
}
