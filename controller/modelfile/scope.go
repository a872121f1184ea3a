package modelfile

import (
	"fmt"
	"math/big"
	"reflect"
	"strings"
	"time"

	"github.com/agext/levenshtein"
	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	"github.com/zclconf/go-cty/cty/function"

	"remuda/internal/hclfault"
)

// fileType is what file("…") gives: the path, so that the file's faults can be told
// with its own name.
var fileType = cty.Capsule("file", reflect.TypeFor[string]())

var fileFunction = function.New(&function.Spec{
	Description: "Names a file, relative to the model file.",
	Params:      []function.Parameter{{Name: "path", Type: cty.String}},
	Type:        function.StaticReturnType(fileType),
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		path := args[0].AsString()
		return cty.CapsuleVal(fileType, &path), nil
	},
})

// scope is one block while it is read. Its methods report what is wrong and tell
// whether there is a value that can be used.
type scope struct {
	p      *parser
	path   string
	at     hcl.Range
	attrs  hcl.Attributes
	blocks map[string]hcl.Blocks
	// broken: something in the block has a wrong name, which may be what seems to
	// be missing.
	broken bool
	// varsOK and varRanges are of the variant's vars, and say where each is.
	varsOK    bool
	varRanges map[string]hcl.Range
}

func (p *parser) scope(b *hcl.Block, path string, attrs []string, blocks ...hcl.BlockHeaderSchema) *scope {
	schema := &hcl.BodySchema{Blocks: blocks}
	for _, name := range attrs {
		schema.Attributes = append(schema.Attributes, hcl.AttributeSchema{Name: name})
	}
	content, diags := b.Body.Content(schema)
	p.diagnostics(path+": ", diags)
	s := &scope{p: p, path: path, at: b.DefRange, attrs: content.Attributes, blocks: content.Blocks.ByType(), broken: diags.HasErrors()}
	return s
}

// fault is about an attribute, or about the block where it has none.
func (s *scope) fault(name, format string, args ...any) {
	s.p.add(s.rangeOf(name), "%s: %s %s", s.path, name, fmt.Sprintf(format, args...))
}

func (s *scope) rangeOf(name string) hcl.Range {
	if attr := s.attrs[name]; attr != nil {
		return attr.Expr.Range()
	}
	return s.at
}

// single returns the one block of a type, or nil.
func (s *scope) single(name string) *hcl.Block {
	blocks := s.blocks[name]
	for i, b := range blocks {
		if i > 0 {
			s.p.add(b.DefRange, "%s: duplicate %s block: first defined on line %d", s.path, name, blocks[0].DefRange.Start.Line)
			// What is in it is checked all the same, later, by who fixes this.
		}
	}
	if len(blocks) == 0 {
		return nil
	}
	return blocks[0]
}

func (s *scope) valueIn(attr *hcl.Attribute, ctx *hcl.EvalContext) (cty.Value, bool) {
	v, diags := attr.Expr.Value(ctx)
	if diags.HasErrors() {
		s.p.diagnostics(s.path+": "+attr.Name+": ", diags)
		return v, false
	}
	if v.IsNull() || !v.IsWhollyKnown() {
		s.fault(attr.Name, "is null: set a value, or leave it out")
		return v, false
	}
	return v, true
}

// value is of an attribute, with given false where there is none.
func (s *scope) value(name string) (v cty.Value, given, ok bool) {
	attr := s.attrs[name]
	if attr == nil {
		return v, false, false
	}
	v, ok = s.valueIn(attr, nil)
	return v, true, ok
}

// number reads a whole number.
func (s *scope) number(name string, low, high int64) (n int64, given, ok bool) {
	v, given, ok := s.value(name)
	if !given || !ok {
		return 0, given, false
	}
	if v.Type() == cty.Number {
		if whole, exact := v.AsBigFloat().Int64(); exact == big.Exact && whole >= low && whole <= high {
			return whole, true, true
		}
	}
	s.fault(name, "is %s: must be a whole number from %d to %d", hclfault.Show(v), low, high)
	return 0, true, false
}

func (s *scope) float(name string, low, high float64) (float64, bool) {
	v, given, ok := s.value(name)
	if !given || !ok {
		return 0, false
	}
	if v.Type() == cty.Number {
		if f, _ := v.AsBigFloat().Float64(); f >= low && f <= high {
			return f, true
		}
	}
	s.fault(name, "is %s: must be a number from %g to %g", hclfault.Show(v), low, high)
	return 0, false
}

func (s *scope) flag(name string, to *bool) {
	v, given, ok := s.value(name)
	switch {
	case !given || !ok:
	case v.Type() == cty.Bool:
		*to = v.True()
	default:
		s.fault(name, "is %s: must be true or false", hclfault.Show(v))
	}
}

func (s *scope) text(name string) (string, bool) {
	v, given, ok := s.value(name)
	if !given || !ok {
		return "", false
	}
	if !isText(v) {
		s.fault(name, "is %s: must be a string", hclfault.Show(v))
		return "", false
	}
	return v.AsString(), true
}

func (s *scope) oneOf(name string, to *string, words ...string) {
	v, given, ok := s.value(name)
	if !given || !ok {
		return
	}
	if isText(v) {
		for _, w := range words {
			if v.AsString() == w {
				*to = w
				return
			}
		}
	}
	hint := ""
	if isText(v) {
		hint = suggest(v.AsString(), words)
	}
	s.fault(name, "is %s: must be %s%s", hclfault.Show(v), oneOfList(words), hint)
}

func (s *scope) size(name string) (n int64, given, ok bool) {
	v, given, ok := s.value(name)
	if !given || !ok {
		return 0, given, false
	}
	var err error
	if !isText(v) {
		s.fault(name, "is %s: must be a whole number with a unit, such as \"16GiB\"", hclfault.Show(v))
		return 0, true, false
	}
	if n, err = ParseSize(v.AsString()); err == nil && n == 0 {
		err = fmt.Errorf("must be more than 0")
	}
	if err != nil {
		s.fault(name, "is %s: %v", hclfault.Show(v), err)
		return 0, true, false
	}
	return n, true, true
}

func (s *scope) duration(name string, to *time.Duration) bool {
	v, given, ok := s.value(name)
	if !given || !ok {
		return false
	}
	if !isText(v) {
		s.fault(name, "is %s: must be a duration in whole numbers, such as \"90s\" or \"1h30m\", or \"0s\" for never", hclfault.Show(v))
		return false
	}
	d, err := parseDuration(v.AsString())
	if err != nil {
		s.fault(name, "is %s: %v", hclfault.Show(v), err)
		return false
	}
	*to = d
	return true
}

// vars reads the values of a job file's variables. Numbers and booleans are written
// as strings, as on Nomad's command line; lists and objects as HCL expressions.
func (s *scope) vars(name string) map[string]string {
	s.varRanges = map[string]hcl.Range{}
	attr := s.attrs[name]
	if attr == nil {
		s.varsOK = true
		return nil
	}
	pairs, diags := hcl.ExprMap(attr.Expr)
	if diags.HasErrors() {
		v, given, ok := s.value(name)
		if given && ok {
			s.fault(name, "is %s: must be values by variable name, such as { tensor_parallel = 2 }", hclfault.Show(v))
		}
		return nil
	}
	s.varsOK = true
	out := map[string]string{}
	for _, pair := range pairs {
		key, diags := pair.Key.Value(nil)
		if diags.HasErrors() || key.IsNull() || !isText(key) {
			s.p.add(pair.Key.Range(), "%s: %s: invalid name: must be a variable's name, such as { tensor_parallel = 2 }", s.path, name)
			continue
		}
		k := key.AsString()
		if at, dup := s.varRanges[k]; dup {
			s.p.add(pair.Key.Range(), "%s: %s: duplicate %q: first set on line %d", s.path, name, hclfault.Clip(k), at.Start.Line)
			continue
		}
		s.varRanges[k] = pair.Value.Range()
		v, diags := pair.Value.Value(nil)
		if diags.HasErrors() {
			s.p.diagnostics(fmt.Sprintf("%s: %s: %s: ", s.path, name, hclfault.Clip(k)), diags)
			continue
		}
		if v.IsNull() || !v.IsWhollyKnown() {
			s.p.add(pair.Value.Range(), "%s: %s: %s is null: set a value, or leave it out", s.path, name, hclfault.Clip(k))
			continue
		}
		if v.Type().IsPrimitiveType() {
			text, err := convert.Convert(v, cty.String)
			if err != nil {
				s.p.add(pair.Value.Range(), "%s: %s: %s: %v", s.path, name, hclfault.Clip(k), err)
				continue
			}
			out[k] = text.AsString()
			continue
		}
		out[k] = expression(v)
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

func isText(v cty.Value) bool { return v.Type() == cty.String && v.IsKnown() && !v.IsNull() }

func multiline(s string) bool { return strings.ContainsRune(s, '\n') }

func oneOfList(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = fmt.Sprintf("%q", w)
	}
	if len(quoted) == 1 {
		return quoted[0]
	}
	return strings.Join(quoted[:len(quoted)-1], ", ") + " or " + quoted[len(quoted)-1]
}

// suggest is "; did you mean …?" where one of the words is close, as HCL has it for
// the names of arguments.
func suggest(given string, words []string) string {
	for _, w := range words {
		if levenshtein.Distance(given, w, nil) < 3 {
			return fmt.Sprintf("; did you mean %q?", w)
		}
	}
	return ""
}
