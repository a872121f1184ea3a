// Package hclconfig reads a daemon's HCL config file into its Config: attributes
// at the top level and in blocks, of which some may stand once and others once for each
// label.
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
	// Block is the block it stands in, with those around it, as "a.b"; empty for the top
	// level.
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

// Labelled is a kind of block at the top level that stands once for each label, as
// pool "x" { … }.
type Labelled[C any] struct {
	Type string
	// Open adds what the block is about to the config.
	Open func(c *C, label string)
	// Settings are those that the block of this label may have. Their Block is what
	// stands inside of it.
	Settings func(label string) []Setting[C]
}

// LabelledField is the name of a setting in a labelled block, as `pool "x".nomad.address`.
func LabelledField(kind, label, field string) string {
	return fmt.Sprintf("%s %q.%s", kind, label, field)
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
func Parse[C any](filename string, src []byte, base C, settings []Setting[C], check func(C) []Problem, labelled ...Labelled[C]) (C, error) {
	p := parser[C]{cfg: base, labelled: labelled, ranges: map[string]hcl.Range{}}
	file, diags := hclparse.NewParser().ParseHCL(src, filename)
	p.diags(diags)
	if file != nil && !diags.HasErrors() {
		p.body(level[C]{settings: settings}, file.Body)
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
	labelled []Labelled[C]
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

// level is one body: that of the file, or of a block.
type level[C any] struct {
	// prefix is of the fields' names: empty outside of labelled blocks.
	prefix string
	// settings are all of the file's, or all of the labelled block's.
	settings []Setting[C]
	// block is which of them stand here.
	block string
}

// field is the whole name of a setting.
func (l level[C]) field(s Setting[C]) string { return l.prefix + s.field() }

// child returns the block directly inside of this level in which s stands, with those
// around it, and its own name; empty where there is none.
func (l level[C]) child(s Setting[C]) (path, name string) {
	rest := s.Block
	if l.block != "" {
		var inside bool
		if rest, inside = strings.CutPrefix(s.Block, l.block+"."); !inside {
			return "", ""
		}
	}
	name, _, _ = strings.Cut(rest, ".")
	return s.Block[:len(s.Block)-len(rest)+len(name)], name
}

func (p *parser[C]) body(l level[C], body hcl.Body) {
	schema := &hcl.BodySchema{}
	inside := map[string]string{} // blocks by type, with those around them
	for _, s := range l.settings {
		if s.Block == l.block {
			schema.Attributes = append(schema.Attributes, hcl.AttributeSchema{Name: s.Name})
			continue
		}
		if path, name := l.child(s); name != "" && inside[name] == "" {
			inside[name] = path
			schema.Blocks = append(schema.Blocks, hcl.BlockHeaderSchema{Type: name})
		}
	}
	labelled := map[string]Labelled[C]{}
	if l.prefix == "" && l.block == "" {
		for _, kind := range p.labelled {
			labelled[kind.Type] = kind
			schema.Blocks = append(schema.Blocks, hcl.BlockHeaderSchema{Type: kind.Type, LabelNames: []string{"name"}})
		}
	}
	content, diags := body.Content(schema)
	p.diags(diags)
	p.attributes(l, content.Attributes)
	first := map[string]hcl.Range{}
	for _, b := range content.Blocks {
		kind, named := labelled[b.Type]
		title := b.Type
		if named {
			title = fmt.Sprintf("%s %q", b.Type, b.Labels[0])
		}
		if at, dup := first[title]; dup {
			p.fault(b.DefRange, fmt.Sprintf("a second %s block, the first is on line %d: join them", title, at.Start.Line))
			continue
		}
		first[title] = b.DefRange
		if !named {
			p.body(level[C]{l.prefix, l.settings, inside[b.Type]}, b.Body)
			continue
		}
		label := b.Labels[0]
		kind.Open(&p.cfg, label)
		p.ranges[title] = b.DefRange
		p.body(level[C]{prefix: LabelledField(kind.Type, label, ""), settings: kind.Settings(label)}, b.Body)
	}
}

func (p *parser[C]) attributes(l level[C], attrs hcl.Attributes) {
	for _, s := range l.settings {
		attr := attrs[s.Name]
		if s.Block != l.block || attr == nil {
			continue
		}
		field := l.field(s)
		p.ranges[field] = attr.Range
		v, diags := attr.Expr.Value(nil)
		p.diags(diags)
		if diags.HasErrors() {
			p.fail(field)
			continue
		}
		if err := s.Set(&p.cfg, v); err != nil {
			p.fail(field)
			p.fault(attr.Range, fmt.Sprintf("%s %v", field, err))
		}
	}
}

func (p *parser[C]) fail(field string) {
	if p.failed == nil {
		p.failed = map[string]bool{}
	}
	p.failed[field] = true
}
