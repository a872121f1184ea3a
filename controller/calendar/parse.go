package calendar

import (
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/gohcl"

	"remuda/internal/hclfault"
)

// ErrInvalid is wrapped by every error about the content of a calendar.
var ErrInvalid = errors.New("invalid calendar")

// Bounds, there to catch mistakes.
const (
	MaxFile     = 256 << 10 // bytes of a calendar
	MaxWindows  = 256
	MaxReplicas = 1000 // of a model in a set, as in a model file
)

var windowName = regexp.MustCompile(`^[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)

// file is a calendar as it is written.
type file struct {
	Timezone *hcl.Attribute `hcl:"timezone,optional"`
	Windows  []windowBlock  `hcl:"window,block"`
	Defaults []defaultBlock `hcl:"default,block"`
}

type windowBlock struct {
	Name      string         `hcl:"name,label"`
	NameAt    hcl.Range      `hcl:"name,label_range"`
	At        hcl.Range      `hcl:",def_range"`
	Days      *hcl.Attribute `hcl:"days,optional"`
	Dates     *hcl.Attribute `hcl:"dates,optional"`
	From      *hcl.Attribute `hcl:"from,optional"`
	To        *hcl.Attribute `hcl:"to,optional"`
	Dedicated *hcl.Attribute `hcl:"dedicated,optional"`
}

type defaultBlock struct {
	At        hcl.Range      `hcl:",def_range"`
	Dedicated *hcl.Attribute `hcl:"dedicated,optional"`
}

// Parse reads a calendar; name is the file's, for messages. It is either read whole, or
// the error wraps ErrInvalid and hclfault.Faults, with every fault that it has. It does not
// check that the models exist: see Uses.
func Parse(src []byte, name string) (Calendar, error) {
	p := &parser{Collector: hclfault.Collector{File: name}}
	p.file(src)
	if err := p.Err(ErrInvalid); err != nil {
		return Calendar{}, err
	}
	return p.calendar, nil
}

type parser struct {
	hclfault.Collector
	calendar Calendar
}

func (p *parser) file(src []byte) {
	body := p.Body(src, MaxFile)
	if body == nil {
		return
	}
	var f file
	diags := gohcl.DecodeBody(body, nil, &f)
	p.Diagnostics("", diags)
	// A misspelt name explains what seems to be missing.
	if f.Timezone != nil || !diags.HasErrors() {
		p.zone(f.Timezone)
	}
	if len(f.Windows)+len(f.Defaults) == 0 && !diags.HasErrors() {
		p.Add(hcl.Range{}, "no window: at least one block is required, such as window \"office\" { … }, or a default block")
	}
	if len(f.Windows) > MaxWindows {
		p.Add(f.Windows[MaxWindows].At, "window %q: window %d of the file: must be at most %d", hclfault.Clip(f.Windows[MaxWindows].Name), MaxWindows+1, MaxWindows)
		f.Windows = f.Windows[:MaxWindows]
	}
	first := map[string]hcl.Range{}
	for _, b := range f.Windows {
		switch at, dup := first[b.Name]; {
		case !windowName.MatchString(b.Name):
			p.Add(b.NameAt, "window: name is %q: must be at most 63 letters, digits, '.', '_' and '-', with a letter or digit first and last, such as \"office\"", hclfault.Clip(b.Name))
		case b.Name == Default:
			p.Add(b.NameAt, "window: name is %q: reserved for the time outside of all windows: use another name", b.Name)
		case dup:
			p.Add(b.NameAt, "duplicate window %q: first defined on line %d", b.Name, at.Start.Line)
		default:
			first[b.Name] = b.NameAt
		}
		p.calendar.windows = append(p.calendar.windows, p.window(b))
	}
	for i, b := range f.Defaults {
		if i > 0 {
			p.Add(b.At, "duplicate default block: first defined on line %d", f.Defaults[0].At.Start.Line)
		}
		p.calendar.fallback = p.dedicated(Default+": ", Default, b.At, b.Dedicated)
	}
}

func (p *parser) zone(attr *hcl.Attribute) {
	const want = "a name from the time zone database, such as \"Europe/Berlin\" or \"UTC\""
	var name string
	if attr == nil {
		p.Add(hcl.Range{}, "timezone is missing: must be %s", want)
	}
	if !p.Read("", attr, &name, want) {
		return
	}
	// "Local" and "" are the machine's own: servers of one cluster could differ.
	zone, err := time.LoadLocation(name)
	if err != nil || name == "" || name == "Local" {
		p.Add(attr.Expr.Range(), "timezone is %q: must be %s", hclfault.Clip(name), want)
		return
	}
	p.calendar.zone = zone
}

func (p *parser) window(b windowBlock) window {
	path := fmt.Sprintf("window %q: ", hclfault.Clip(b.Name))
	w := window{name: b.Name, to: day}
	if b.Days != nil {
		w.days = new([7]bool)
		p.list(path, b.Days, "days of the week, such as [\"mon-fri\"]", func(s string) error { return parseDays(s, w.days) })
	}
	p.list(path, b.Dates, "dates, such as [\"2026-12-24\", \"01-01\"]", func(s string) error {
		r, err := parseDates(s)
		w.dates = append(w.dates, r)
		return err
	})
	fromOK, toOK := p.clock(path, b.From, &w.from), p.clock(path, b.To, &w.to)
	switch {
	case !fromOK || !toOK:
	case w.from == day:
		p.Add(b.From.Expr.Range(), "%sfrom is \"24:00\": must be at most \"23:59\"", path)
	case w.to == w.from:
		at := b.To
		if at == nil {
			at = b.From
		}
		p.Add(at.Expr.Range(), "%sfrom and to are both %q: must differ; leave both out for the whole day", path, clockText(w.to))
	case w.to < w.from:
		w.to += day
	}
	w.models = p.dedicated(path, b.Name, b.At, b.Dedicated)
	return w
}

func clockText(d time.Duration) string {
	return fmt.Sprintf("%02d:%02d", int(d.Hours()), int(d.Minutes())%60)
}

// clock reads a time of the day. It returns true if it was read or is left out.
func (p *parser) clock(path string, attr *hcl.Attribute, to *time.Duration) bool {
	var s string
	if !p.Read(path, attr, &s, "a time, such as \"08:30\"") {
		return attr == nil
	}
	d, err := parseClock(s)
	if err != nil {
		p.Add(attr.Expr.Range(), "%s%s is %q: %v", path, attr.Name, hclfault.Clip(s), err)
		return false
	}
	*to = d
	return true
}

// dedicated reads a set: whole numbers by the names of models. at is the block's.
func (p *parser) dedicated(path, window string, at hcl.Range, attr *hcl.Attribute) map[string]int {
	const want = "must be replica counts by model, such as { \"llama-3-8b\" = 2 }, or {} for none"
	if attr == nil {
		p.Add(at, "%sdedicated is missing: %s", path, want)
		return nil
	}
	pairs, diags := hcl.ExprMap(attr.Expr)
	if diags.HasErrors() {
		p.Add(attr.Expr.Range(), "%sdedicated is %s: %s", path, hclfault.Found(attr.Expr), want)
		return nil
	}
	set, first := map[string]int{}, map[string]hcl.Range{}
	for _, pair := range pairs {
		at := pair.Key.Range()
		var name string
		const wantName = "a model's name, such as \"llama-3-8b\""
		if !p.ReadExpr(path+"dedicated: name", pair.Key, &name, wantName) {
			continue
		}
		if name == "" {
			p.Add(at, "%sdedicated: name is \"\": must be %s", path, wantName)
			continue
		}
		if was, dup := first[name]; dup {
			p.Add(at, "%sdedicated: duplicate model %q: first set on line %d", path, hclfault.Clip(name), was.Start.Line)
			continue
		}
		first[name] = at
		n, what, want := 0, fmt.Sprintf("%sdedicated: model %q", path, hclfault.Clip(name)), fmt.Sprintf("a whole number from 1 to %d; leave the model out for none", MaxReplicas)
		switch {
		case !p.ReadExpr(what, pair.Value, &n, want):
		case n < 1 || n > MaxReplicas:
			p.Add(pair.Value.Range(), "%s is %d: must be %s", what, n, want)
		default:
			set[name] = n
			p.calendar.uses = append(p.calendar.uses, Use{Window: window, Model: name, Replicas: n, Line: at.Start.Line, Column: at.Start.Column})
		}
	}
	return set
}

// list reads a list of strings, at least one.
func (p *parser) list(path string, attr *hcl.Attribute, want string, each func(string) error) {
	if attr == nil {
		return
	}
	exprs, diags := hcl.ExprList(attr.Expr)
	if diags.HasErrors() {
		p.Add(attr.Expr.Range(), "%s%s is %s: must be a list of %s", path, attr.Name, hclfault.Found(attr.Expr), want)
		return
	}
	if len(exprs) == 0 {
		p.Add(attr.Expr.Range(), "%s%s is empty: must be %s; leave it out for every day", path, attr.Name, want)
	}
	for i, e := range exprs {
		var s string
		what := fmt.Sprintf("%s%s: number %d", path, attr.Name, i+1)
		if !p.ReadExpr(what, e, &s, "a string") {
			continue
		}
		if err := each(s); err != nil {
			p.Add(e.Range(), "%s is %q: %v", what, hclfault.Clip(s), err)
		}
	}
}
