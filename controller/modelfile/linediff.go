package modelfile

import (
	"fmt"
	"strings"

	"github.com/pmezard/go-difflib/difflib"
)

const (
	// context is how many unchanged lines are shown around a change.
	context = 2
	// maxCompared bounds the work for two texts that share little: it is the product of
	// their numbers of lines.
	maxCompared = 16 << 20
)

// lineDiff shows the lines that differ between two texts, with some context.
func lineDiff(old, new string) []string {
	a, b := lines(old), lines(new)
	if len(a)*len(b) > maxCompared {
		return []string{fmt.Sprintf("- %d lines", len(a)), fmt.Sprintf("+ %d lines, too many to compare", len(b))}
	}
	var out []string
	add := func(mark string, lines []string) {
		for _, l := range lines {
			out = append(out, mark+l)
		}
	}
	shown := 0 // lines of a
	skip := func(to int) {
		if to > shown {
			out = append(out, fmt.Sprintf("  … %d lines", to-shown))
		}
	}
	for _, group := range difflib.NewMatcher(a, b).GetGroupedOpCodes(context) {
		skip(group[0].I1)
		for _, op := range group {
			if op.Tag == 'e' {
				add("  ", a[op.I1:op.I2])
			} else {
				add("- ", a[op.I1:op.I2])
				add("+ ", b[op.J1:op.J2])
			}
			shown = op.I2
		}
	}
	skip(len(a))
	return out
}

func lines(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(s, "\n"), "\n")
}
