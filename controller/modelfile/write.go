package modelfile

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
)

// Quote writes a text as an HCL string that reads back as the same text.
func Quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for i, r := range s {
		switch {
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case (r == '$' || r == '%') && strings.HasPrefix(s[i+1:], "{") && i > 0 && s[i-1] == byte(r):
			fmt.Fprintf(&b, `\u%04x`, r) // "$$${" would be read in more than one way
		case (r == '$' || r == '%') && strings.HasPrefix(s[i+1:], "{"):
			b.WriteRune(r)
			b.WriteRune(r)
		case !unicode.IsPrint(r) && r <= 0xffff:
			fmt.Fprintf(&b, `\u%04x`, r)
		case !unicode.IsPrint(r):
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// expression writes a value as HCL, on one line and the same for equal values.
func expression(v cty.Value) string {
	switch {
	case v.IsNull() || !v.IsWhollyKnown():
		return "null"
	case v.Type() == cty.String:
		return Quote(v.AsString())
	case v.Type() == cty.Bool:
		return fmt.Sprint(v.True())
	case v.Type() == cty.Number:
		return v.AsBigFloat().Text('f', -1)
	case v.Type().IsObjectType() || v.Type().IsMapType():
		var parts []string
		for k, e := range v.AsValueMap() {
			parts = append(parts, key(k)+" = "+expression(e))
		}
		slices.Sort(parts)
		if parts == nil {
			return "{}"
		}
		return "{ " + strings.Join(parts, ", ") + " }"
	case v.CanIterateElements():
		parts := []string{}
		for _, e := range v.AsValueSlice() {
			parts = append(parts, expression(e))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	}
	return "null"
}

// key writes a key of an object.
func key(k string) string {
	if hclsyntax.ValidIdentifier(k) {
		return k
	}
	return Quote(k)
}
