package pipeline

import (
	"fmt"
	"regexp"
)

// MaxStepName is the longest name of a step, in bytes: it is a part of request IDs.
const MaxStepName = 63

// A step's name is an identifier of expressions.
var stepRule = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]*$`)

func checkStepName(s string) error {
	switch {
	case s == "":
		return fmt.Errorf("is empty: want a word, as \"classify\"")
	case len(s) > MaxStepName:
		return fmt.Errorf("has %d bytes: want at most %d", len(s), MaxStepName)
	case !stepRule.MatchString(s):
		return fmt.Errorf("is %q: want a letter and then letters, digits, '_' and '-', as \"classify\"", s)
	}
	return nil
}
