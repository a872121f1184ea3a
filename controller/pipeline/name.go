package pipeline

import (
	"fmt"
	"regexp"
)

// Longest names, in bytes.
const (
	MaxName     = 128 // as a model's: clients use both in the same place
	MaxStepName = 63  // it is a part of request IDs
)

var (
	// A pipeline's name follows the rule of a model's (package modelfile), because clients
	// cannot tell the two apart.
	nameRule = regexp.MustCompile(`^[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?(?:[/:][A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)*$`)
	// A step's name is an identifier of expressions.
	stepRule = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]*$`)
)

// CheckName says what is wrong with the name of a pipeline or of a model, or nil.
func CheckName(s string) error {
	switch {
	case s == "":
		return fmt.Errorf("is empty: want what clients name in their requests, as \"support\"")
	case len(s) > MaxName:
		return fmt.Errorf("has %d bytes: want at most %d", len(s), MaxName)
	case !nameRule.MatchString(s):
		return fmt.Errorf("is %q: want letters, digits, '.', '_' and '-', in parts that '/' or ':' separate and that begin and end with a letter or digit", clip(s))
	}
	return nil
}

func checkStepName(s string) error {
	switch {
	case s == "":
		return fmt.Errorf("is empty: want a word, as \"classify\"")
	case len(s) > MaxStepName:
		return fmt.Errorf("has %d bytes: want at most %d", len(s), MaxStepName)
	case !stepRule.MatchString(s):
		return fmt.Errorf("is %q: want a letter and then letters, digits, '_' and '-', as \"classify\"", clip(s))
	}
	return nil
}

// clip keeps a value that a message quotes short.
func clip(s string) string {
	const longest = 80
	if r := []rune(s); len(r) > longest {
		return string(r[:longest]) + "…"
	}
	return s
}
