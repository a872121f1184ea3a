package hclfault_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/zclconf/go-cty/cty"

	"remuda/internal/hclfault"
)

func TestShow(t *testing.T) {
	for want, v := range map[string]cty.Value{
		"null":      cty.NullVal(cty.String),
		"unknown":   cty.UnknownVal(cty.Number),
		`"a\nb"`:    cty.StringVal("a\nb"),
		"1.5":       cty.NumberFloatVal(1.5),
		"true":      cty.True,
		"a list":    cty.TupleVal([]cty.Value{cty.True, cty.StringVal("x")}),
		"an object": cty.ObjectVal(map[string]cty.Value{"a": cty.True}),
	} {
		require.Equal(t, want, hclfault.Show(v))
	}
}

func TestClip(t *testing.T) {
	require.Equal(t, "short", hclfault.Clip("short"))
	require.Equal(t, strings.Repeat("é", 80)+"…", hclfault.Clip(strings.Repeat("é", 81)))
}
