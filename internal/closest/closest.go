// Package closest finds the word that somebody who mistyped one may have meant.
package closest

import "github.com/agext/levenshtein"

// Word returns the first of the words that are nearest to given, empty if none of them
// differs from it by less than three letters.
func Word(given string, words []string) string {
	best, least := "", 3
	for _, w := range words {
		if d := levenshtein.Distance(given, w, nil); d < least {
			best, least = w, d
		}
	}
	return best
}
