package modelfile

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"

	"remuda/controller/state"
	"remuda/internal/closest"
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

// scope is one block while it is read. Its methods report what is wrong.
type scope struct {
	*parser
	path string    // begins what is said of the block
	at   hcl.Range // of its first line
	// misspelt: HCL found a wrong name in the block, which may be what seems to be missing.
	misspelt bool
}

func (p *parser) scope(path string, at hcl.Range, body hcl.Body) scope {
	block := body.(*hclsyntax.Body).Range()
	return scope{p, path, at, slices.ContainsFunc(p.diags, func(d *hcl.Diagnostic) bool {
		return d.Severity == hcl.DiagError && d.Subject != nil && block.Overlaps(*d.Subject)
	})}
}

func (s scope) fault(attr *hcl.Attribute, format string, args ...any) {
	s.Add(attr.Expr.Range(), "%s%s %s", s.path, attr.Name, fmt.Sprintf(format, args...))
}

func (s scope) missing(text string) {
	if !s.misspelt {
		s.Add(s.at, "%s%s", s.path, text)
	}
}

// number reads a whole number. It returns true if it was read or is left out.
func (s scope) number(attr *hcl.Attribute, to *int, low, high int) bool {
	want := fmt.Sprintf("a whole number from %d to %d", low, high)
	var n int
	if !s.Read(s.path, attr, &n, want) {
		return attr == nil
	}
	if n < low || n > high {
		s.fault(attr, "is %d: must be %s", n, want)
		return false
	}
	*to = n
	return true
}

// amount reads a whole number from 0 to high, or a percentage. It returns true if it was read.
func (s scope) amount(attr *hcl.Attribute, high int) (state.Amount, bool) {
	want := fmt.Sprintf("a whole number from 0 to %d, or a percentage from \"0%%\" to \"100%%\"", high)
	var a state.Amount
	if attr == nil {
		return a, false
	}
	if v, diags := attr.Expr.Value(nil); !diags.HasErrors() && v.Type() == cty.String && !v.IsNull() {
		digits, percent := strings.CutSuffix(v.AsString(), "%")
		n, err := strconv.Atoi(digits)
		if !percent || err != nil || n > 100 || strings.Trim(digits, "0123456789") != "" {
			s.fault(attr, "is %q: must be %s", hclfault.Clip(v.AsString()), want)
			return a, false
		}
		return state.Amount{Number: n, Percent: true}, true
	}
	if !s.Read(s.path, attr, &a.Number, want) {
		return a, false
	}
	if a.Number < 0 || a.Number > high {
		s.fault(attr, "is %d: must be %s", a.Number, want)
		return a, false
	}
	return a, true
}

func (s scope) oneOf(attr *hcl.Attribute, to *string, words ...string) {
	var text string
	switch {
	case !s.Read(s.path, attr, &text, oneOfList(words)):
	case slices.Contains(words, text):
		*to = text
	default:
		s.fault(attr, "is %q: must be %s%s", hclfault.Clip(text), oneOfList(words), suggest(text, words))
	}
}

// size reads a size above 0. It returns true if it was read.
func (s scope) size(attr *hcl.Attribute, to *int64) bool {
	return parsed(s, attr, to, wantSize, func(text string) (int64, error) {
		n, err := parseSize(text)
		if err == nil && n == 0 {
			err = errors.New("must be more than 0")
		}
		return n, err
	})
}

func (s scope) duration(attr *hcl.Attribute, to *time.Duration) {
	parsed(s, attr, to, wantDuration, parseDuration)
}

// parsed reads a value that is written as a string. It returns true if it was read.
func parsed[V any](s scope, attr *hcl.Attribute, to *V, want string, parse func(string) (V, error)) bool {
	var text string
	if !s.Read(s.path, attr, &text, want) {
		return false
	}
	v, err := parse(text)
	if err != nil {
		s.fault(attr, "is %q: %v", hclfault.Clip(text), err)
		return false
	}
	*to = v
	return true
}

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
	if near := closest.Word(given, words); near != "" {
		return fmt.Sprintf("; did you mean %q?", near)
	}
	return ""
}
