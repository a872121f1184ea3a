package pipeline

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
)

// ErrInvalid is wrapped by every error that says that a pipeline file is wrong.
var ErrInvalid = errors.New("invalid pipeline file")

// Fault is one thing that is wrong in a file.
type Fault struct {
	// File, Line and Column say where; both numbers count from 1.
	File         string
	Line, Column int
	// Text names the field, its value and what was expected.
	Text string
}

// String is "file:line:column: text", which editors can jump to.
func (f Fault) String() string { return fmt.Sprintf("%s:%d:%d: %s", f.File, f.Line, f.Column, f.Text) }

// Faults are all faults of a file, in the order in which they stand in it. It is the error
// of Parse.
type Faults []Fault

// Error has one line for each fault.
func (f Faults) Error() string {
	lines := make([]string, len(f))
	for i, one := range f {
		lines[i] = one.String()
	}
	return strings.Join(lines, "\n")
}

// Unwrap makes errors.Is find ErrInvalid.
func (f Faults) Unwrap() error { return ErrInvalid }

// collector gathers faults while a file is read.
type collector struct {
	faults Faults
	file   string
}

func (c *collector) add(at hcl.Range, format string, args ...any) {
	c.faults = append(c.faults, Fault{File: c.file, Line: max(at.Start.Line, 1), Column: max(at.Start.Column, 1), Text: fmt.Sprintf(format, args...)})
}

// diagnostics adds what HCL itself found, without its warnings.
func (c *collector) diagnostics(where string, diags hcl.Diagnostics) {
	for _, d := range diags {
		if d.Severity != hcl.DiagError {
			continue
		}
		var at hcl.Range
		if d.Subject != nil {
			at = *d.Subject
		}
		c.add(at, "%s%s", where, sentence(d))
	}
}

// sentence is what a diagnostic says, in one line.
func sentence(d *hcl.Diagnostic) string {
	text := d.Summary
	if text != "" {
		text = strings.ToLower(text[:1]) + text[1:]
	}
	return strings.Join(strings.Fields(text+": "+d.Detail), " ")
}

func (c *collector) err() error {
	if len(c.faults) == 0 {
		return nil
	}
	slices.SortStableFunc(c.faults, func(a, b Fault) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return slices.Compact(c.faults)
}
