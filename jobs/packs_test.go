package jobs_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/stretchr/testify/require"

	"remuda/internal/testkit/reference"
)

// packJobs are the jobs of the pack remuda in the order in which they are installed.
var packJobs = []string{"controller", "node", "gateway", "autoscaler"}

// TestReferencePacks: the pack remuda has the jobs of the job files of this directory, with the pack's
// variables in place of theirs, and nothing else.
func TestReferencePacks(t *testing.T) {
	type variable struct{ name, description, kind, value string }
	files, declared := map[string]*hclwrite.File{}, map[string][]string{}
	for _, job := range packJobs {
		name := job + ".nomad.hcl"
		require.NotContains(t, read(t, name), "[[", "nomad-pack's own delimiter")
		file, diags := hclwrite.ParseConfig([]byte(read(t, name)), name, hcl.InitialPos)
		require.False(t, diags.HasErrors(), diags.Error())
		files[job] = file
		for _, b := range file.Body().Blocks() {
			if b.Type() == "variable" {
				declared[b.Labels()[0]] = append(declared[b.Labels()[0]], job)
			}
		}
	}
	text := func(b *hclwrite.Block, name string) string {
		if a := b.Body().GetAttribute(name); a != nil {
			return strings.TrimSpace(string(a.Expr().BuildTokens(nil).Bytes()))
		}
		return "string"
	}
	var all []variable
	for _, job := range packJobs {
		for _, b := range files[job].Body().Blocks() {
			if b.Type() != "variable" {
				continue
			}
			v := variable{b.Labels()[0], text(b, "description"), text(b, "type"), text(b, "default")}
			if v.name == "remuda" {
				v.value = `"/usr/local/bin/remuda"` // the exec driver needs the full path
			}
			if v.value == "true" || v.value == "false" {
				v.kind = "bool"
			}
			v.name = packVariable(job, v.name, len(declared[v.name]) > 1)
			if i := slices.IndexFunc(all, func(o variable) bool { return o.name == v.name }); i < 0 {
				all = append(all, v)
			} else {
				require.Equal(t, [2]string{all[i].kind, all[i].value}, [2]string{v.kind, v.value}, "%s: jobs that have a variable in common mean the same", v.name)
			}
		}
		template := fmt.Sprintf("[[- /* Generated from jobs/%s.nomad.hcl by `make reference`: do not edit. */ -]]\n[[- if has %q (var \"jobs\" .) ]]\n%s[[ end ]]\n",
			job, job, withoutVariables(t, job, func(name string) string { return packVariable(job, name, len(declared[name]) > 1) }))
		reference.File(t, "jobs/packs/remuda/templates/"+job+".nomad.tpl", template)
	}
	var b strings.Builder
	fmt.Fprintf(&b, `# Generated from the job files in jobs by `+"`make reference`"+`: do not edit.

variable "jobs" {
  description = "The jobs to run."
  type        = list(string)
  default     = ["%s"]
}
`, strings.Join(packJobs, `", "`))
	for _, v := range all {
		fmt.Fprintf(&b, "\nvariable %q {\n  description = %s\n  type        = %s\n  default     = %s\n}\n", v.name, v.description, v.kind, v.value)
	}
	reference.File(t, "jobs/packs/remuda/variables.hcl", b.String())
}

// packVariable is the name in the pack of a job's variable: with the job's in front, unless several
// jobs have it in common.
func packVariable(job, name string, common bool) string {
	if common || name == "servers" {
		return name
	}
	return job + "_" + name
}

// withoutVariables is the job block of a job file with each var.NAME replaced by the pack's variable.
// nomad-pack does not mark the jobs of files with variables as its own, and could not stop them.
func withoutVariables(t *testing.T, job string, name func(string) string) string {
	t.Helper()
	text := read(t, job+".nomad.hcl")
	file, diags := hclsyntax.ParseConfig([]byte(text), job, hcl.InitialPos)
	require.False(t, diags.HasErrors(), diags.Error())
	blocks := file.Body.(*hclsyntax.Body).Blocks
	block := blocks[len(blocks)-1]
	require.Equal(t, "job", block.Type)
	type use struct {
		at   hcl.Range
		name string
	}
	var uses []use
	diags = hclsyntax.VisitAll(block.Body, func(n hclsyntax.Node) hcl.Diagnostics {
		if e, ok := n.(*hclsyntax.ScopeTraversalExpr); ok && e.Traversal.RootName() == "var" {
			require.Len(t, e.Traversal, 2, "only whole variables are replaced")
			uses = append(uses, use{e.SrcRange, e.Traversal[1].(hcl.TraverseAttr).Name})
		}
		return nil
	})
	require.False(t, diags.HasErrors(), diags.Error())
	slices.SortFunc(uses, func(a, b use) int { return b.at.Start.Byte - a.at.Start.Byte })
	for _, u := range uses {
		text = fmt.Sprintf("%s[[ template \"value\" (var %q .) ]]%s", text[:u.at.Start.Byte], name(u.name), text[u.at.End.Byte:])
	}
	return text[block.TypeRange.Start.Byte:]
}
