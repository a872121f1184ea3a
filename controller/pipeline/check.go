package pipeline

import (
	"fmt"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"

	"remuda/internal/hclfault"
)

// wanted is what an expression has to be, in the words of a fault.
type wanted string

const (
	wantBool       wanted = "true or false"
	wantText       wanted = "a string"
	wantNumber     wanted = "a number"
	wantTokens     wanted = "a whole number above 0"
	wantCollection wanted = "a list or a map"
	wantMessages   wanted = "a list of messages, such as [{ role = \"user\", content = input.text }]"
	wantParams     wanted = "an object with fields of the request, such as { top_p = 0.9 }"
	wantOutput     wanted = "a step or a string"
)

// fits tells whether a value of a type can be what is wanted.
func (w wanted) fits(t cty.Type) bool {
	if t == cty.DynamicPseudoType {
		return true // it depends on the request
	}
	to := func(want cty.Type) bool { return t == want || convert.GetConversionUnsafe(t, want) != nil }
	switch w {
	case wantBool:
		return to(cty.Bool)
	case wantText:
		return to(cty.String)
	case wantNumber, wantTokens:
		return to(cty.Number)
	case wantCollection:
		return t.IsCollectionType() || t.IsTupleType() || t.IsObjectType()
	case wantMessages:
		return t.IsListType() || t.IsTupleType()
	case wantParams:
		return t.IsObjectType() || t.IsMapType()
	case wantOutput:
		return t.Equals(answerType) || to(cty.String)
	}
	return false
}

// stepOf finds the step that a traversal names.
func (r *reader) stepOf(t hcl.Traversal) (int, bool) {
	if t.RootName() != "step" || len(t) < 2 {
		return 0, false
	}
	i, ok := r.index[attribute(t[1])]
	return i, ok
}

// attribute is the name that a part of a traversal takes, empty where it takes none.
func attribute(t hcl.Traverser) string {
	switch t := t.(type) {
	case hcl.TraverseAttr:
		return t.Name
	case hcl.TraverseIndex:
		if t.Key.Type() == cty.String && t.Key.IsKnown() && !t.Key.IsNull() {
			return t.Key.AsString()
		}
	}
	return ""
}

// expression checks an expression without a request, and returns the steps that it names.
// each tells whether there is a for_each, eachHere whether its value is known here.
func (r *reader) expression(where string, expr hcl.Expression, want wanted, each, eachHere bool) []int {
	var deps []int
	wrong := false
	bad := func(at hcl.Range, format string, args ...any) {
		wrong = true
		r.Add(at, "%s: %s", where, fmt.Sprintf(format, args...))
	}
	for _, t := range expr.Variables() {
		at := t.SourceRange()
		switch root := t.RootName(); {
		case root == "step" && len(t) == 1:
			bad(at, "refers to all steps: must be one step, such as step.%s", r.anyStep())
		case root == "step":
			i, ok := r.stepOf(t)
			if !ok {
				bad(at, "unknown step %q: must be one of %s", hclfault.Clip(attribute(t[1])), r.stepNames())
				continue
			}
			deps = addSorted(deps, i)
		case root == "input":
			r.uses(t)
		case root == "each" && !eachHere:
			bad(at, "each cannot be used here: only in the request of a step with for_each")
		case root == "each" && !each:
			bad(at, "each is used without for_each")
		case root == "each":
		default:
			bad(at, "unknown name %q: must be input, step or each", hclfault.Clip(root))
		}
	}
	if wrong {
		return deps
	}
	v, diags := expr.Value(r.unknown(each))
	if diags.HasErrors() {
		r.Diagnostics(where+": ", diags)
		return deps
	}
	if !want.fits(v.Type()) {
		r.Add(expr.Range(), "%s is %s: must be %s", where, typeText(v.Type()), want)
		return deps
	}
	if v.IsWhollyKnown() { // the same for every request: it is checked once and for all
		if _, err := want.take(v); err != nil {
			r.Add(expr.Range(), "%s %v", where, err)
		}
	}
	return deps
}

// uses notes which parts of the input an expression looks at.
func (r *reader) uses(t hcl.Traversal) {
	part := ""
	if len(t) > 1 {
		part = attribute(t[1])
	}
	switch part {
	case "text":
	case "messages":
		r.p.uses.messages = true
	case "params":
		r.p.uses.params = true
	default:
		r.p.uses.messages, r.p.uses.params = true, true
	}
}

// unknown is the scope of a request of which nothing is known but the types.
func (r *reader) unknown(each bool) *hcl.EvalContext {
	steps := map[string]cty.Value{}
	for name, i := range r.index {
		steps[name] = cty.UnknownVal(r.p.Steps[i].valueType())
	}
	vars := map[string]cty.Value{
		"input": cty.ObjectVal(map[string]cty.Value{"text": cty.UnknownVal(cty.String), "messages": cty.DynamicVal, "params": cty.DynamicVal}),
		"step":  cty.ObjectVal(steps),
	}
	if each {
		vars["each"] = cty.ObjectVal(map[string]cty.Value{"key": cty.DynamicVal, "value": cty.DynamicVal})
	}
	return &hcl.EvalContext{Variables: vars, Functions: functions}
}

func (r *reader) anyStep() string {
	for _, s := range r.p.Steps {
		if checkStepName(s.Name) == nil {
			return s.Name
		}
	}
	return "classify"
}

func (r *reader) stepNames() string {
	const most = 8
	var names []string
	for i, s := range r.p.Steps {
		if i == most {
			names = append(names, fmt.Sprintf("%d more", len(r.p.Steps)-most))
			break
		}
		names = append(names, hclfault.Clip(s.Name))
	}
	return strings.Join(names, ", ")
}

// typeText is how people call a type.
func typeText(t cty.Type) string {
	switch {
	case t.Equals(answerType):
		return "a step"
	case t.IsListType() && t.ElementType().Equals(answerType):
		return "a step with for_each, which is a list of answers"
	}
	return "a " + t.FriendlyName()
}
