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
		return fmt.Errorf("is empty: must be a word, such as \"classify\"")
	case len(s) > MaxStepName:
		return fmt.Errorf("is %d bytes: must be at most %d bytes", len(s), MaxStepName)
	case !stepRule.MatchString(s):
		return fmt.Errorf("is %q: must be a letter followed by letters, digits, '_' and '-', such as \"classify\"", s)
	}
	return nil
}
