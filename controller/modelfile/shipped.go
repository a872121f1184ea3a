package modelfile

import (
	"fmt"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/zclconf/go-cty/cty"

	"remuda/controller/state"
	"remuda/internal/hclfault"
)

// shippedPrefix begins the path of a job file that comes with remuda.
const shippedPrefix = "remuda:"

// shippedJobs are the job files, in package jobs, of variants that name none: of a single engine and
// of a failover pair.
var shippedJobs = map[string][2]string{
	"vllm":   {"vllm.nomad.hcl", "vllm-failover.nomad.hcl"},
	"sglang": {"sglang.nomad.hcl", "sglang-failover.nomad.hcl"},
	"ollama": {"ollama.nomad.hcl", "ollama-failover.nomad.hcl"},
	"sim":    {"demo.nomad.hcl", "failover.nomad.hcl"},
}

// shippedJob gives a variant the job file of its engine.
func (s scope) shippedJob(v *state.Variant, failover bool, vars variables) {
	name := shippedJobs[v.Engine][0]
	if failover {
		name = shippedJobs[v.Engine][1]
	}
	if s.read == nil {
		s.missing("job is missing: must be the job itself, in a heredoc: files cannot be read here")
		return
	}
	raw, err := s.read(shippedPrefix + name)
	if err != nil {
		s.missing(fmt.Sprintf("job is missing, and that of engine %q, %s, cannot be read: %v", v.Engine, name, err))
		return
	}
	v.Job = tidyJob(string(raw))
	declared, diags := JobVariables(name, v.Job)
	s.Diagnostics(s.path+"job: ", diags)
	if !diags.HasErrors() {
		s.checkVars(vars, declared)
	}
}

// RenderJob returns the job file of a variant with the values of its model file as the defaults of its
// variables. It is the same job without these values in the model file.
func RenderJob(v state.Variant) (string, error) {
	declared, diags := JobVariables("job", v.Job)
	if diags.HasErrors() {
		return "", diags
	}
	file, diags := hclwrite.ParseConfig([]byte(v.Job), "job", hcl.InitialPos)
	if diags.HasErrors() {
		return "", diags
	}
	for _, d := range declared {
		value, given := v.Vars[d.Name]
		if !given {
			continue
		}
		literal := cty.StringVal(value)
		if d.Composite {
			expr, diags := hclfault.ParseExpression([]byte(value), d.Name)
			if diags.HasErrors() {
				return "", diags
			}
			if literal, diags = expr.Value(nil); diags.HasErrors() {
				return "", diags
			}
		}
		file.Body().FirstMatchingBlock("variable", []string{d.Name}).Body().SetAttributeValue("default", literal)
	}
	return string(hclwrite.Format(file.Bytes())), nil
}
