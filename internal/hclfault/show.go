package hclfault

import (
	"fmt"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"
)

// Clip keeps a value that a message quotes short.
func Clip(s string) string {
	const longest = 80
	if r := []rune(strings.ToValidUTF8(s, "\ufffd")); len(r) > longest {
		return string(r[:longest]) + "…"
	}
	return s
}

// Show writes a value as people would: texts in quotes, of lists and the like only what
// they are.
func Show(v cty.Value) string {
	switch t := v.Type(); {
	case v.IsNull():
		return "null"
	case !v.IsWhollyKnown():
		return "unknown"
	case t == cty.String:
		return fmt.Sprintf("%q", Clip(v.AsString()))
	case t == cty.Number:
		return Clip(v.AsBigFloat().Text('g', 20))
	case t == cty.Bool:
		return fmt.Sprint(v.True())
	case t.IsTupleType(), t.IsListType(), t.IsSetType():
		return "a list"
	case t.IsObjectType(), t.IsMapType():
		return "an object"
	default:
		return "a " + t.FriendlyName()
	}
}

// Found describes what an expression is, for a message: its value, or "not a constant".
func Found(e hcl.Expression) string {
	v, diags := e.Value(nil)
	if diags.HasErrors() {
		return "not a constant"
	}
	return Show(v)
}
