package gateway

import (
	"errors"
	"fmt"
	"math"
	"os"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/zclconf/go-cty/cty"
)

// setting is one attribute of a config file.
type setting struct {
	// block is the block it stands in; empty for the top level.
	block, name string
	set         func(c *Config, v cty.Value) error
}

func (s setting) field() string {
	if s.block == "" {
		return s.name
	}
	return s.block + "." + s.name
}

// settings are all attributes that a config file may have.
var settings = []setting{
	{"", "listen", text(func(c *Config) *string { return &c.Listen })},
	{"", "log_level", text(func(c *Config) *string { return &c.LogLevel })},
	{"", "retry_after", duration(func(c *Config) *time.Duration { return &c.RetryAfter })},
	{"consul", "address", text(func(c *Config) *string { return &c.Consul.Address })},
	{"consul", "token", text(func(c *Config) *string { return &c.Consul.Token })},
	{"consul", "service", text(func(c *Config) *string { return &c.Consul.Service })},
	{"timeouts", "header", duration(func(c *Config) *time.Duration { return &c.Timeouts.Header })},
	{"timeouts", "body", duration(func(c *Config) *time.Duration { return &c.Timeouts.Body })},
	{"timeouts", "keep_alive", duration(func(c *Config) *time.Duration { return &c.Timeouts.KeepAlive })},
	{"timeouts", "write", duration(func(c *Config) *time.Duration { return &c.Timeouts.Write })},
	{"timeouts", "connect", duration(func(c *Config) *time.Duration { return &c.Timeouts.Connect })},
	{"timeouts", "first_byte", duration(func(c *Config) *time.Duration { return &c.Timeouts.FirstByte })},
	{"timeouts", "stream_idle", duration(func(c *Config) *time.Duration { return &c.Timeouts.StreamIdle })},
	{"timeouts", "engine_idle", duration(func(c *Config) *time.Duration { return &c.Timeouts.EngineIdle })},
	{"timeouts", "lame_duck", duration(func(c *Config) *time.Duration { return &c.Timeouts.LameDuck })},
	{"timeouts", "drain", duration(func(c *Config) *time.Duration { return &c.Timeouts.Drain })},
	{"limits", "body", size(func(c *Config) *int64 { return &c.Limits.Body })},
	{"limits", "header", size(func(c *Config) *int64 { return &c.Limits.Header })},
	{"limits", "buffered", size(func(c *Config) *int64 { return &c.Limits.Buffered })},
	{"limits", "attempts", count(func(c *Config) *int64 { return &c.Limits.Attempts })},
	{"routing", "grace", duration(func(c *Config) *time.Duration { return &c.Routing.Grace })},
	{"routing", "suspect", duration(func(c *Config) *time.Duration { return &c.Routing.Suspect })},
	{"routing", "remember", duration(func(c *Config) *time.Duration { return &c.Routing.Remember })},
}

// LoadFile reads an HCL config file over base and returns the result. Its
// error has one line, "file:line: …", for each thing that is wrong.
//
//	listen = "0.0.0.0:8080"
//	consul   { address = "127.0.0.1:8500" }
//	timeouts { first_byte = "20m" }
//	limits   { body = "64MiB" }
func LoadFile(path string, base Config) (Config, error) {
	src, err := os.ReadFile(path)
	if err != nil {
		return base, fmt.Errorf("read the gateway config: %w", err)
	}
	return Parse(path, src, base)
}

// Parse is LoadFile for a file whose content is at hand; filename is for
// messages only.
func Parse(filename string, src []byte, base Config) (Config, error) {
	p := fileParser{cfg: base, ranges: map[string]hcl.Range{}}
	file, diags := hclparse.NewParser().ParseHCL(src, filename)
	p.diags(diags)
	if file != nil && !diags.HasErrors() {
		p.body(file.Body)
		// A setting that could not be read has kept its valid value from base.
		for _, bad := range p.cfg.settingProblems() {
			at, ok := p.ranges[bad.field]
			if !ok && bad.field == "limits.buffered" {
				at, ok = p.ranges["limits.body"] // they are checked against each other
			}
			if !ok { // base itself is bad
				at = hcl.Range{Filename: filename, Start: hcl.Pos{Line: 1}}
			}
			p.fault(at, bad.field+" "+bad.text)
		}
	}
	return p.cfg, p.err()
}

type fault struct {
	at   hcl.Range
	text string
}

type fileParser struct {
	cfg    Config
	ranges map[string]hcl.Range
	faults []fault
}

func (p *fileParser) fault(at hcl.Range, text string) {
	p.faults = append(p.faults, fault{at, text})
}

func (p *fileParser) diags(diags hcl.Diagnostics) {
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

func (p *fileParser) err() error {
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

func (p *fileParser) body(body hcl.Body) {
	schema := &hcl.BodySchema{}
	seen := map[string]bool{}
	for _, s := range settings {
		if s.block == "" {
			schema.Attributes = append(schema.Attributes, hcl.AttributeSchema{Name: s.name})
		} else if !seen[s.block] {
			seen[s.block] = true
			schema.Blocks = append(schema.Blocks, hcl.BlockHeaderSchema{Type: s.block})
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
		schema := &hcl.BodySchema{}
		for _, s := range settings {
			if s.block == b.Type {
				schema.Attributes = append(schema.Attributes, hcl.AttributeSchema{Name: s.name})
			}
		}
		content, diags := b.Body.Content(schema)
		p.diags(diags)
		p.attributes(b.Type, content.Attributes)
	}
}

func (p *fileParser) attributes(block string, attrs hcl.Attributes) {
	for _, s := range settings {
		attr := attrs[s.name]
		if s.block != block || attr == nil {
			continue
		}
		p.ranges[s.field()] = attr.Range
		v, diags := attr.Expr.Value(nil)
		p.diags(diags)
		if diags.HasErrors() {
			continue
		}
		if err := s.set(&p.cfg, v); err != nil {
			p.fault(attr.Range, fmt.Sprintf("%s %v", s.field(), err))
		}
	}
}

func isString(v cty.Value) bool {
	return v.Type() == cty.String && v.IsKnown() && !v.IsNull()
}

func text(at func(*Config) *string) func(*Config, cty.Value) error {
	return func(c *Config, v cty.Value) error {
		if !isString(v) {
			return errors.New("is no string")
		}
		*at(c) = v.AsString()
		return nil
	}
}

func duration(at func(*Config) *time.Duration) func(*Config, cty.Value) error {
	return func(c *Config, v cty.Value) error {
		if !isString(v) {
			return errors.New(`is no string, want a duration like "90s"`)
		}
		d, err := time.ParseDuration(v.AsString())
		if err != nil {
			return fmt.Errorf(`is %q, want a duration like "90s"`, v.AsString())
		}
		*at(c) = d
		return nil
	}
}

func count(at func(*Config) *int64) func(*Config, cty.Value) error {
	return func(c *Config, v cty.Value) error {
		n, ok := whole(v)
		if !ok {
			return errors.New("is no whole number")
		}
		*at(c) = n
		return nil
	}
}

func size(at func(*Config) *int64) func(*Config, cty.Value) error {
	return func(c *Config, v cty.Value) error {
		if n, ok := whole(v); ok {
			*at(c) = n
			return nil
		}
		if isString(v) {
			if n, ok := parseSize(v.AsString()); ok {
				*at(c) = n
				return nil
			}
		}
		return errors.New(`is no size, want a number of bytes or a string like "32MiB"`)
	}
}

func whole(v cty.Value) (int64, bool) {
	if v.Type() != cty.Number || !v.IsKnown() || v.IsNull() {
		return 0, false
	}
	f := v.AsBigFloat()
	if !f.IsInt() {
		return 0, false
	}
	n, accuracy := f.Int64()
	return n, accuracy == 0
}

// parseSize reads "512", "512B", "64KiB", "32MiB" or "1GiB".
func parseSize(s string) (int64, bool) {
	shift := 0
	for suffix, bits := range map[string]int{"KiB": 10, "MiB": 20, "GiB": 30} {
		if rest, ok := strings.CutSuffix(s, suffix); ok {
			s, shift = rest, bits
			break
		}
	}
	if shift == 0 {
		s = strings.TrimSuffix(s, "B")
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64>>shift {
		return 0, false
	}
	return n << shift, true
}
