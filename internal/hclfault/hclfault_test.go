package hclfault_test

import (
	"errors"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/stretchr/testify/require"

	"remuda/internal/hclfault"
)

var errKind = errors.New("invalid thing")

func at(file string, line, column int) hcl.Range {
	return hcl.Range{Filename: file, Start: hcl.Pos{Line: line, Column: column}}
}

func TestNoFault(t *testing.T) {
	c := hclfault.Collector{File: "m.hcl"}
	c.Diagnostics("", hcl.Diagnostics{{Severity: hcl.DiagWarning, Summary: "Old syntax"}})
	require.NoError(t, c.Err(errKind))
}

// TestOrder: the file's own faults come first, then those of files that it names, each once.
func TestOrder(t *testing.T) {
	c := hclfault.Collector{File: "m.hcl"}
	c.Add(at("b.hcl", 1, 1), "in b")
	c.Add(at("a.hcl", 7, 1), "in a")
	c.Add(at("m.hcl", 3, 5), "second on line %d", 3)
	c.Add(at("m.hcl", 3, 2), "first on line 3")
	c.Add(at("a.hcl", 7, 1), "in a")
	c.Add(hcl.Range{}, "of the whole file")
	subject := at("m.hcl", 9, 1)
	c.Diagnostics("block: ", hcl.Diagnostics{
		{Severity: hcl.DiagError, Summary: "Bad thing", Detail: "It has\ntwo lines.", Subject: &subject},
		{Severity: hcl.DiagError, Detail: "no summary, no place"},
	})
	err := c.Err(errKind)
	require.EqualError(t, err, `m.hcl:1:1: of the whole file
m.hcl:1:1: block: : no summary, no place
m.hcl:3:2: first on line 3
m.hcl:3:5: second on line 3
m.hcl:9:1: block: bad thing: It has two lines.
a.hcl:7:1: in a
b.hcl:1:1: in b`)
	require.ErrorIs(t, err, errKind)
	var all hclfault.Faults
	require.ErrorAs(t, err, &all)
	require.Len(t, all, 7)
	require.Equal(t, hclfault.Fault{File: "a.hcl", Line: 7, Column: 1, Text: "in a"}, all[5])
}

func TestRead(t *testing.T) {
	body, diags := hclsyntax.ParseConfig([]byte(`
text  = "a"
count = 3
list  = ["a", "b"]
empty = []
mixed = ["a", 1]
null  = null
huge  = 9223372036854775808
half  = 1.5
name  = other
call  = f(1)
`), "m.hcl", hcl.InitialPos)
	require.False(t, diags.HasErrors(), diags)
	attrs, diags := body.Body.JustAttributes()
	require.False(t, diags.HasErrors(), diags)
	c := hclfault.Collector{File: "m.hcl"}
	var (
		text string
		n    int
		list []string
		f    float64
	)
	require.True(t, c.Read("", attrs["text"], &text, ""))
	require.True(t, c.Read("", attrs["count"], &n, ""))
	require.True(t, c.Read("", attrs["half"], &f, ""))
	require.True(t, c.Read("", attrs["list"], &list, ""))
	require.Equal(t, []any{"a", 3, 1.5, []string{"a", "b"}}, []any{text, n, f, list})
	require.True(t, c.Read("", attrs["empty"], &list, ""))
	require.Empty(t, list)
	require.False(t, c.Read("", nil, &text, ""), "it is left out")
	require.NoError(t, c.Err(errKind))

	for name, to := range map[string]any{"count": &text, "text": &n, "mixed": &list, "null": &text, "huge": &n, "half": &n, "name": &text, "call": &text} {
		require.False(t, c.Read("in a block: ", attrs[name], to, "good"), name)
	}
	require.EqualError(t, c.Err(errKind), `m.hcl:2:9: in a block: text is "a": must be good
m.hcl:3:9: in a block: count is 3: must be good
m.hcl:6:9: in a block: mixed is a list: must be good
m.hcl:7:9: in a block: null is null: must be good
m.hcl:8:9: in a block: huge is 9223372036854775808: must be good
m.hcl:9:9: in a block: half is 1.5: must be good
m.hcl:10:9: in a block: name is not a constant: must be good
m.hcl:11:9: in a block: call: function calls not allowed: Functions may not be called here.`)
}
