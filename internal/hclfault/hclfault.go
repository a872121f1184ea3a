// Package hclfault collects what is wrong in a file in HCL, so that who wrote it learns
// everything at once, each fault with its place. Parsers differ in what they accept, not
// in how they tell.
package hclfault

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
)

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

// Faults are all faults of a file. They are an error.
type Faults []Fault

// Error has one line for each fault.
func (f Faults) Error() string {
	lines := make([]string, len(f))
	for i, one := range f {
		lines[i] = one.String()
	}
	return strings.Join(lines, "\n")
}

// Wrap returns an error that wraps kind, the caller's sentinel, and the faults; its message is theirs.
func (f Faults) Wrap(kind error) error { return invalid{f, kind} }

// Collector gathers faults while a file is read. It is for one goroutine.
type Collector struct {
	// File is the name of the file. Faults of other files, which it names, come after its
	// own.
	File   string
	faults Faults
}

// Add notes a fault. A range without a name of a file is one of the Collector's File.
func (c *Collector) Add(at hcl.Range, format string, args ...any) {
	c.faults = append(c.faults, Fault{
		File: cmp.Or(at.Filename, c.File), Line: max(at.Start.Line, 1), Column: max(at.Start.Column, 1), Text: fmt.Sprintf(format, args...),
	})
}

// Diagnostics adds what HCL itself found, without its warnings; where begins each text.
func (c *Collector) Diagnostics(where string, diags hcl.Diagnostics) {
	for _, d := range diags {
		if d.Severity != hcl.DiagError {
			continue
		}
		var at hcl.Range
		if d.Subject != nil {
			at = *d.Subject
		}
		c.Add(at, "%s%s: %s", where, lowerFirst(d.Summary), strings.ReplaceAll(d.Detail, "\n", " "))
	}
}

// Err is nil without a fault. Else it wraps kind, the caller's sentinel, and the Faults in
// the order in which they stand in the file; its message is theirs.
func (c *Collector) Err(kind error) error {
	if len(c.faults) == 0 {
		return nil
	}
	slices.SortStableFunc(c.faults, func(a, b Fault) int {
		return cmp.Or(
			cmp.Compare(c.rank(a.File), c.rank(b.File)), strings.Compare(a.File, b.File),
			cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column),
		)
	})
	// A file may be named twice: its faults are told once.
	return slices.Compact(c.faults).Wrap(kind)
}

func (c *Collector) rank(file string) int {
	if file == c.File {
		return 0
	}
	return 1
}

type invalid struct {
	Faults
	kind error
}

func (e invalid) Unwrap() []error { return []error{e.Faults, e.kind} }

func lowerFirst(s string) string {
	if s == "" {
		return s
	}
	return strings.ToLower(s[:1]) + s[1:]
}
