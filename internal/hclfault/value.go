package hclfault

import (
	"slices"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	"github.com/zclconf/go-cty/cty/gocty"
)

// Read puts the constant value of attr into to, which points to a string, a bool, a number
// or a []string. It returns false if attr is nil, and if its value is of another type or out
// of to's range: that is a fault, whose text begins with where and ends with want. Read
// converts no value: "1" is not a number.
func (c *Collector) Read(where string, attr *hcl.Attribute, to any, want string) bool {
	return attr != nil && c.ReadExpr(where+attr.Name, attr.Expr, to, want)
}

// ReadExpr is Read for an expression; name begins the text.
func (c *Collector) ReadExpr(name string, e hcl.Expression, to any, want string) bool {
	v, diags := e.Value(nil)
	if diags.HasErrors() && len(e.Variables()) == 0 { // a call, or broken arithmetic
		c.Diagnostics(name+": ", diags)
		return false
	}
	if !diags.HasErrors() && take(v, to) {
		return true
	}
	c.Add(e.Range(), "%s is %s: must be %s", name, Found(e), want)
	return false
}

func take(v cty.Value, to any) bool {
	target, err := gocty.ImpliedType(to)
	if err != nil {
		panic(err) // a bug of the caller
	}
	if v.IsNull() || !v.IsWhollyKnown() {
		return false
	}
	if target.IsListType() && v.Type().IsTupleType() {
		if slices.ContainsFunc(v.Type().TupleElementTypes(), func(t cty.Type) bool { return !t.Equals(target.ElementType()) }) {
			return false
		}
		if v, err = convert.Convert(v, target); err != nil {
			return false
		}
	}
	if !v.Type().Equals(target) {
		return false
	}
	// big.Float.Uint64 calls 1.5 exact.
	if _, isFloat := to.(*float64); target == cty.Number && !isFloat && !v.AsBigFloat().IsInt() {
		return false
	}
	return gocty.FromCtyValue(v, to) == nil
}
