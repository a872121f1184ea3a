package hclfault_test

import (
	"errors"
	"testing"

	"github.com/hashicorp/hcl/v2"
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
