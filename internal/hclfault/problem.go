package hclfault

import (
	"errors"
	"fmt"
	"strings"
)

// Problem is one bad setting of a config, wherever the config came from.
type Problem struct {
	// Field is the setting's name in a config file, such as "timeouts.body".
	Field string
	// Text is the rest of a sentence that begins with Field.
	Text string
	// Blame are the settings to point at if Field is not in the file.
	Blame []string
}

// Problems are all bad settings of a config.
type Problems []Problem

// Add adds a problem of a field.
func (p *Problems) Add(field, format string, args ...any) {
	*p = append(*p, Problem{Field: field, Text: fmt.Sprintf(format, args...)})
}

// Blame says which settings are to blame for the last problem if its field is not in the file.
func (p *Problems) Blame(fields ...string) {
	last := &(*p)[len(*p)-1]
	last.Blame = append(last.Blame, fields...)
}

// Within adds the problems of a part of the config, whose names follow prefix.
func (p *Problems) Within(prefix string, part Problems, blame ...string) {
	for _, one := range part {
		one.Field = prefix + one.Field
		for i, field := range one.Blame {
			one.Blame[i] = prefix + field
		}
		*p = append(*p, one)
		p.Blame(blame...)
	}
}

// Err returns one error that names every bad setting, and nil without a problem.
func (p Problems) Err(what string) error {
	if len(p) == 0 {
		return nil
	}
	texts := make([]string, len(p))
	for i, one := range p {
		texts[i] = one.Field + " " + one.Text
	}
	return errors.New(what + ": " + strings.Join(texts, "; "))
}
