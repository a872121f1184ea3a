package calendar

import (
	"fmt"
	"maps"
	"math/big"
	"regexp"
	"slices"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"

	"remuda/internal/hclfault"
)

// Bounds, there to catch mistakes.
const (
	MaxFile     = 256 << 10 // bytes of a calendar
	MaxWindows  = 256
	MaxReplicas = 1000 // of a model in a set, as in a model file
)

var windowName = regexp.MustCompile(`^[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)

// Parse reads a calendar; name is the file's, for messages. It is either read whole, or
// the error wraps ErrInvalid and hclfault.Faults, with every fault that it has. Which models
// exist is not its concern: see Uses.
func Parse(file []byte, name string) (Calendar, error) {
	p := &parser{name: name, faults: hclfault.Collector{File: name}}
	p.file(file)
	if err := p.faults.Err(ErrInvalid); err != nil {
		return Calendar{}, err
	}
	return p.calendar, nil
}

type parser struct {
	name     string
	faults   hclfault.Collector
	calendar Calendar
}

func (p *parser) file(src []byte) {
	if len(src) > MaxFile {
		p.fault(hcl.Range{}, "file is %d bytes: must be at most %d bytes", len(src), MaxFile)
		return
	}
	file, diags := hclsyntax.ParseConfig(src, p.name, hcl.InitialPos)
	p.faults.Diagnostics("", diags)
	if diags.HasErrors() {
		return // what a broken file seems to say is not worth complaining about
	}
	content, diags := file.Body.Content(&hcl.BodySchema{
		Attributes: []hcl.AttributeSchema{{Name: "timezone"}},
		Blocks:     []hcl.BlockHeaderSchema{{Type: "window", LabelNames: []string{"name"}}, {Type: Default}},
	})
	p.faults.Diagnostics("", diags)
	p.zone(content.Attributes["timezone"], diags.HasErrors())
	if len(content.Blocks) == 0 && !diags.HasErrors() {
		p.fault(hcl.Range{}, "no window: at least one block is required, such as window \"office\" { … }, or a default block")
	}
	first := map[string]hcl.Range{}
	for _, b := range content.Blocks {
		if b.Type == Default {
			p.fallback(b, first)
			continue
		}
		name := b.Labels[0]
		switch at, dup := first["window "+name]; {
		case !windowName.MatchString(name):
			p.fault(b.LabelRanges[0], "window: name is %q: must be at most 63 letters, digits, '.', '_' and '-', with a letter or digit first and last, such as \"office\"", hclfault.Clip(name))
		case name == Default:
			p.fault(b.LabelRanges[0], "window: name is %q: reserved for the time outside of all windows: use another name", name)
		case dup:
			p.fault(b.LabelRanges[0], "duplicate window %q: first defined on line %d", name, at.Start.Line)
		default:
			first["window "+name] = b.LabelRanges[0]
		}
		if len(p.calendar.windows) == MaxWindows {
			p.fault(b.DefRange, "window %q: window %d of the file: must be at most %d", hclfault.Clip(name), MaxWindows+1, MaxWindows)
			return
		}
		p.calendar.windows = append(p.calendar.windows, p.window(b))
	}
}

func (p *parser) zone(attr *hcl.Attribute, broken bool) {
	const want = "must be a name from the time zone database, such as \"Europe/Berlin\" or \"UTC\""
	if attr == nil {
		if !broken {
			p.fault(hcl.Range{}, "timezone is missing: %s", want)
		}
		return
	}
	name, ok := p.text("", attr, want)
	if !ok {
		return
	}
	// "Local" and "" are the machine's own: servers of one cluster could differ.
	zone, err := time.LoadLocation(name)
	if err != nil || name == "" || name == "Local" {
		p.fault(attr.Expr.Range(), "timezone is %q: %s", hclfault.Clip(name), want)
		return
	}
	p.calendar.zone = zone
}

func (p *parser) fallback(b *hcl.Block, first map[string]hcl.Range) {
	if at, dup := first[Default]; dup {
		p.fault(b.DefRange, "duplicate default block: first defined on line %d", at.Start.Line)
	} else {
		first[Default] = b.DefRange
	}
	attrs := p.content(b, Default, "dedicated")
	p.calendar.fallback = p.dedicated(Default, Default, b, attrs)
}

func (p *parser) content(b *hcl.Block, path string, names ...string) hcl.Attributes {
	schema := &hcl.BodySchema{}
	for _, n := range names {
		schema.Attributes = append(schema.Attributes, hcl.AttributeSchema{Name: n, Required: n == "dedicated"})
	}
	content, diags := b.Body.Content(schema)
	p.faults.Diagnostics(path+": ", slices.DeleteFunc(diags, func(d *hcl.Diagnostic) bool { return d.Summary == "Missing required argument" }))
	return content.Attributes
}

func (p *parser) window(b *hcl.Block) window {
	path := fmt.Sprintf("window %q", hclfault.Clip(b.Labels[0]))
	w := window{name: b.Labels[0], to: day}
	attrs := p.content(b, path, "days", "dates", "from", "to", "dedicated")
	if a := attrs["days"]; a != nil {
		w.days = new([7]bool)
		p.list(path, a, "days of the week, such as [\"mon-fri\"]", func(s string) error { return parseDays(s, w.days) })
	}
	if a := attrs["dates"]; a != nil {
		p.list(path, a, "dates, such as [\"2026-12-24\", \"01-01\"]", func(s string) error {
			r, err := parseDates(s)
			w.dates = append(w.dates, r)
			return err
		})
	}
	fromOK, toOK := p.clock(path, attrs["from"], &w.from), p.clock(path, attrs["to"], &w.to)
	switch {
	case !fromOK || !toOK:
	case w.from == day:
		p.fault(attrs["from"].Expr.Range(), "%s: from is \"24:00\": must be at most \"23:59\"", path)
	case w.to == w.from:
		at := attrs["to"]
		if at == nil {
			at = attrs["from"]
		}
		p.fault(at.Expr.Range(), "%s: from and to are both %q: must differ; leave both out for the whole day", path, clockText(w.to))
	case w.to < w.from:
		w.to += day
	}
	w.models = p.dedicated(path, w.name, b, attrs)
	return w
}

func clockText(d time.Duration) string {
	return fmt.Sprintf("%02d:%02d", int(d.Hours()), int(d.Minutes())%60)
}

// clock reads a time of the day; true where it was read or is left out.
func (p *parser) clock(path string, attr *hcl.Attribute, to *time.Duration) bool {
	if attr == nil {
		return true
	}
	s, ok := p.text(path+": ", attr, "must be a time, such as \"08:30\"")
	if !ok {
		return false
	}
	d, err := parseClock(s)
	if err != nil {
		p.fault(attr.Expr.Range(), "%s: %s is %q: %v", path, attr.Name, hclfault.Clip(s), err)
		return false
	}
	*to = d
	return true
}

// dedicated reads a set: whole numbers by the names of models.
func (p *parser) dedicated(path, window string, b *hcl.Block, attrs hcl.Attributes) map[string]int {
	const want = "must be replica counts by model, such as { \"llama-3-8b\" = 2 }, or {} for none"
	attr := attrs["dedicated"]
	if attr == nil {
		p.fault(b.DefRange, "%s: dedicated is missing: %s", path, want)
		return nil
	}
	pairs, diags := hcl.ExprMap(attr.Expr)
	if diags.HasErrors() {
		p.fault(attr.Expr.Range(), "%s: dedicated is %s: %s", path, p.found(attr.Expr), want)
		return nil
	}
	set, first := map[string]int{}, map[string]hcl.Range{}
	for _, pair := range pairs {
		at := pair.Key.Range()
		model, ok := constant(pair.Key)
		if !ok || model.Type() != cty.String || model.AsString() == "" {
			p.fault(at, "%s: dedicated: name is %s: must be a model's name, such as \"llama-3-8b\"", path, p.found(pair.Key))
			continue
		}
		name := model.AsString()
		if was, dup := first[name]; dup {
			p.fault(at, "%s: dedicated: duplicate model %q: first set on line %d", path, hclfault.Clip(name), was.Start.Line)
			continue
		}
		first[name] = at
		v, ok := constant(pair.Value)
		if ok && v.Type() == cty.Number {
			if n, exact := v.AsBigFloat().Int64(); exact == big.Exact && n >= 1 && n <= MaxReplicas {
				set[name] = int(n)
				p.calendar.uses = append(p.calendar.uses, Use{Window: window, Model: name, Replicas: int(n), Line: at.Start.Line, Column: at.Start.Column})
				continue
			}
		}
		p.fault(pair.Value.Range(), "%s: dedicated: model %q is %s: must be a whole number from 1 to %d; leave the model out for none", path, hclfault.Clip(name), p.found(pair.Value), MaxReplicas)
	}
	return maps.Clone(set)
}

// list reads a list of strings, at least one.
func (p *parser) list(path string, attr *hcl.Attribute, want string, each func(string) error) {
	exprs, diags := hcl.ExprList(attr.Expr)
	if diags.HasErrors() {
		p.fault(attr.Expr.Range(), "%s: %s is %s: must be a list of %s", path, attr.Name, p.found(attr.Expr), want)
		return
	}
	if len(exprs) == 0 {
		p.fault(attr.Expr.Range(), "%s: %s is empty: must be %s; leave it out for every day", path, attr.Name, want)
	}
	for i, e := range exprs {
		v, ok := constant(e)
		if !ok || v.Type() != cty.String {
			p.fault(e.Range(), "%s: %s: number %d is %s: must be a string", path, attr.Name, i+1, p.found(e))
			continue
		}
		if err := each(v.AsString()); err != nil {
			p.fault(e.Range(), "%s: %s: number %d is %q: %v", path, attr.Name, i+1, hclfault.Clip(v.AsString()), err)
		}
	}
}

func (p *parser) text(path string, attr *hcl.Attribute, want string) (string, bool) {
	v, ok := constant(attr.Expr)
	if !ok || v.Type() != cty.String {
		p.fault(attr.Expr.Range(), "%s%s is %s: %s", path, attr.Name, p.found(attr.Expr), want)
		return "", false
	}
	return v.AsString(), true
}

// constant returns an expression's value; a calendar has no variables.
func constant(e hcl.Expression) (cty.Value, bool) {
	v, diags := e.Value(nil)
	return v, !diags.HasErrors() && !v.IsNull() && v.IsWhollyKnown()
}

// found says in a word what an expression is.
func (p *parser) found(e hcl.Expression) string {
	v, ok := constant(e)
	switch {
	case !ok:
		if v.IsKnown() && v.IsNull() {
			return "null"
		}
		return "not a constant"
	}
	return hclfault.Show(v)
}
