package calendar

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
)

// ErrInvalid is wrapped by every error that says that a calendar is wrong.
var ErrInvalid = errors.New("invalid calendar")

// Fault is one thing that is wrong in a calendar.
type Fault struct {
	// File, Line and Column say where; both numbers count from 1.
	File         string
	Line, Column int
	// Text names the field, its value and what was expected.
	Text string
}

// String is "file:line:column: text", which editors can jump to.
func (f Fault) String() string { return fmt.Sprintf("%s:%d:%d: %s", f.File, f.Line, f.Column, f.Text) }

// Faults are all faults of a calendar, in the order in which they stand in it. It is the
// error of Parse.
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

func (p *parser) fault(at hcl.Range, format string, args ...any) {
	p.faults = append(p.faults, Fault{
		File: p.name, Line: max(at.Start.Line, 1), Column: max(at.Start.Column, 1), Text: fmt.Sprintf(format, args...),
	})
}

// diagnostics adds what HCL itself found.
func (p *parser) diagnostics(where string, diags hcl.Diagnostics) {
	for _, d := range diags {
		if d.Severity != hcl.DiagError {
			continue
		}
		var at hcl.Range
		if d.Subject != nil {
			at = *d.Subject
		}
		text := d.Summary
		if text != "" {
			text = strings.ToLower(text[:1]) + text[1:]
		}
		p.fault(at, "%s%s: %s", where, text, strings.ReplaceAll(d.Detail, "\n", " "))
	}
}

func (p *parser) err() error {
	if len(p.faults) == 0 {
		return nil
	}
	slices.SortStableFunc(p.faults, func(a, b Fault) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
	return p.faults
}
