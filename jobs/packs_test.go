package jobs_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/stretchr/testify/require"

	"remuda/internal/testkit/reference"
)

// packJobs are the jobs of the pack remuda in the order in which they are installed.
var packJobs = []string{"controller", "node", "gateway", "autoscaler"}

// TestReferencePacks: the pack remuda has the job files of this directory, with the pack's variables
// as the defaults of their variables, and nothing else.
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
			if len(declared[v.name]) == 1 {
				v.name = job + "_" + v.name
			}
			if v.name == "controller_servers" {
				v.name = "servers"
			}
			if i := slices.IndexFunc(all, func(o variable) bool { return o.name == v.name }); i < 0 {
				all = append(all, v)
			} else {
				require.Equal(t, [2]string{all[i].kind, all[i].value}, [2]string{v.kind, v.value}, "%s: jobs that have a variable in common mean the same", v.name)
			}
			b.Body().SetAttributeRaw("default", hclwrite.Tokens{{Bytes: fmt.Appendf(nil, ` [[ template "value" (var %q .) ]]`, v.name)}})
		}
		source, _, found := strings.Cut(string(files[job].Bytes()), "\nvariable ")
		require.True(t, found)
		template := fmt.Sprintf("[[- /* Generated from jobs/%s.nomad.hcl by `make reference`: do not edit. */ -]]\n[[- if has %q (var \"jobs\" .) ]]\n%s[[ end ]]\n",
			job, job, strings.TrimPrefix(string(files[job].Bytes()), source+"\n"))
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
