// Package hclconfig reads a daemon's HCL config file into its Config: attributes
// at the top level and in blocks that may stand once.
//
// It guarantees that a file is either read whole or refused with every fault that
// it has, each with its file and line; and that a setting which is not in the file
// keeps its default.
package hclconfig

import (
	"errors"
	"fmt"
	"sort"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/zclconf/go-cty/cty"
)

// Setting is one attribute that a file may have.
type Setting[C any] struct {
	// Block is the block it stands in; empty for the top level.
	Block, Name string
	// Set puts the value into the config. Its error is the rest of a sentence that
	// begins with the setting's name.
	Set func(c *C, v cty.Value) error
}

func (s Setting[C]) field() string {
	if s.Block == "" {
		return s.Name
	}
	return s.Block + "." + s.Name
}

// Problem is one bad setting of a Config.
type Problem struct {
	// Field is the setting's name, as "timeouts.body".
	Field string
	// Text is the rest of a sentence that begins with Field.
	Text string
	// Blame are other settings to point at where Field is not in the file.
	Blame []string
}

// Parse reads a file over base. check finds what is wrong with a config whose
// settings have been read; filename is for messages only.
func Parse[C any](filename string, src []byte, base C, settings []Setting[C], check func(C) []Problem) (C, error) {
	p := parser[C]{cfg: base, settings: settings, ranges: map[string]hcl.Range{}}
	file, diags := hclparse.NewParser().ParseHCL(src, filename)
	p.diags(diags)
	if file != nil && !diags.HasErrors() {
		p.body(file.Body)
		// A setting that could not be read has kept its value from base.
		for _, bad := range check(p.cfg) {
			if p.failed[bad.Field] {
				continue // said already
			}
			// Where none is in the file, something is missing in it.
			at := hcl.Range{Filename: filename, Start: hcl.Pos{Line: 1}}
			for _, field := range append([]string{bad.Field}, bad.Blame...) {
				if r, ok := p.ranges[field]; ok {
					at = r
					break
				}
			}
			p.fault(at, bad.Field+" "+bad.Text)
		}
	}
	return p.cfg, p.err()
}

type fault struct {
	at   hcl.Range
	text string
}

type parser[C any] struct {
	cfg      C
	settings []Setting[C]
	ranges   map[string]hcl.Range
	// failed are the settings that could not be read.
	failed map[string]bool
	faults []fault
}

func (p *parser[C]) fault(at hcl.Range, text string) {
	p.faults = append(p.faults, fault{at, text})
}

func (p *parser[C]) diags(diags hcl.Diagnostics) {
	for _, d := range diags {
		if d.Severity != hcl.DiagError {
			continue
		}
		var at hcl.Range
		if d.Subject != nil {
			at = *d.Subject
		}
		p.fault(at, fmt.Sprintf("%s: %s", strings.ToLower(d.Summary), d.Detail))
	}
}

func (p *parser[C]) err() error {
	if p.faults == nil {
		return nil
	}
	sort.SliceStable(p.faults, func(i, j int) bool { return p.faults[i].at.Start.Byte < p.faults[j].at.Start.Byte })
	lines := make([]string, len(p.faults))
	for i, f := range p.faults {
		lines[i] = fmt.Sprintf("%s:%d: %s", f.at.Filename, f.at.Start.Line, f.text)
	}
	return errors.New(strings.Join(lines, "\n"))
}

// schema lists the attributes of a block.
func (p *parser[C]) schema(block string) *hcl.BodySchema {
	schema := &hcl.BodySchema{}
	for _, s := range p.settings {
		if s.Block == block {
			schema.Attributes = append(schema.Attributes, hcl.AttributeSchema{Name: s.Name})
		}
	}
	return schema
}

func (p *parser[C]) body(body hcl.Body) {
	schema := p.schema("")
	seen := map[string]bool{"": true}
	for _, s := range p.settings {
		if !seen[s.Block] {
			seen[s.Block] = true
			schema.Blocks = append(schema.Blocks, hcl.BlockHeaderSchema{Type: s.Block})
		}
	}
	content, diags := body.Content(schema)
	p.diags(diags)
	p.attributes("", content.Attributes)
	first := map[string]hcl.Range{}
	for _, b := range content.Blocks {
		if at, dup := first[b.Type]; dup {
			p.fault(b.DefRange, fmt.Sprintf("a second %s block, the first is on line %d: join them", b.Type, at.Start.Line))
			continue
		}
		first[b.Type] = b.DefRange
		content, diags := b.Body.Content(p.schema(b.Type))
		p.diags(diags)
		p.attributes(b.Type, content.Attributes)
	}
}

func (p *parser[C]) attributes(block string, attrs hcl.Attributes) {
	for _, s := range p.settings {
		attr := attrs[s.Name]
		if s.Block != block || attr == nil {
			continue
		}
		p.ranges[s.field()] = attr.Range
		v, diags := attr.Expr.Value(nil)
		p.diags(diags)
		if diags.HasErrors() {
			p.fail(s)
			continue
		}
		if err := s.Set(&p.cfg, v); err != nil {
			p.fail(s)
			p.fault(attr.Range, fmt.Sprintf("%s %v", s.field(), err))
		}
	}
}

func (p *parser[C]) fail(s Setting[C]) {
	if p.failed == nil {
		p.failed = map[string]bool{}
	}
	p.failed[s.field()] = true
}
