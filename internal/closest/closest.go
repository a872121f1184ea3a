// Package closest finds the word that somebody who mistyped one may have meant.
package closest

import (
	"unicode/utf8"

	"github.com/agext/levenshtein"
)

// Word returns the word that is nearest to given, empty if none differs from it by less than three
// letters, and by less than given has. Of several it is the one that begins most like given, as the
// first letters are seldom the wrong ones.
func Word(given string, words []string) string {
	best, least, common := "", min(3, len(given)), 0
	length := utf8.RuneCountInString(given)
	for _, w := range words {
		if more := utf8.RuneCountInString(w) - length; more > 2 || more < -2 {
			continue // to compare them takes time, and given may be as long as a client likes
		}
		d, c := levenshtein.Distance(given, w, nil), begins(given, w)
		if d < least || d == least && best != "" && c > common {
			best, least, common = w, d, c
		}
	}
	return best
}

// begins is how many bytes two words begin with alike.
func begins(a, b string) (n int) {
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}
