package jobs_test

import (
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsimple"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/nomad-autoscaler/sdk"
	"github.com/stretchr/testify/require"

	"remuda/autoscaler-plugin/plugin"
	"remuda/controller/modelfile"
	"remuda/controller/pipeline"
	"remuda/controller/state"
	"remuda/jobs"
)

// own are the jobs that are no replica's: `remuda model apply` has no use for them.
var own = []string{"autoscaler.nomad.hcl", "controller.nomad.hcl", "drill.nomad.hcl", "gateway.nomad.hcl", "node.nomad.hcl"}

func names(t *testing.T, pattern string) []string {
	t.Helper()
	found, err := fs.Glob(jobs.Files, pattern)
	require.NoError(t, err)
	require.NotEmpty(t, found)
	return found
}

func read(t *testing.T, name string) string {
	t.Helper()
	src, err := fs.ReadFile(jobs.Files, name)
	require.NoError(t, err)
	return string(src)
}

func TestEveryFileIsOfAKind(t *testing.T) {
	for _, name := range names(t, "*") {
		require.True(t, strings.HasSuffix(name, ".nomad.hcl") || strings.HasSuffix(name, ".model.hcl") || strings.HasSuffix(name, ".pipeline.hcl") || strings.HasSuffix(name, ".policy.hcl"), name)
	}
}

func TestPipelineFiles(t *testing.T) {
	for _, name := range names(t, "*.pipeline.hcl") {
		p, err := pipeline.Parse(name, []byte(read(t, name)))
		require.NoError(t, err)
		require.Equal(t, []string{"demo"}, p.Models(), "it runs on what remuda dev runs")
	}
}

// Every policy names the model that remuda dev runs, everywhere, and a strategy that takes
// its keys.
func TestPolicyFiles(t *testing.T) {
	files := names(t, "*.policy.hcl")
	require.Len(t, files, len(plugin.StrategyNames())+1, "one for each strategy, and one for the form replicate")
	for _, name := range files {
		var file sdk.FileDecodeScalingPolicies
		require.NoError(t, hclsimple.Decode(name, []byte(read(t, name)), nil, &file))
		require.Len(t, file.ScalingPolicies, 1, name)
		p := file.ScalingPolicies[0]
		require.Equal(t, "demo", p.Name, name)
		require.True(t, p.Enabled, "without it nomad-autoscaler leaves the policy out and says nothing")
		require.Equal(t, "remuda", p.Doc.Target.Name)
		require.Equal(t, map[string]string{"model": "demo"}, p.Doc.Target.Config)
		require.Len(t, p.Doc.Checks, 1, name)
		check := p.Doc.Checks[0]
		require.Equal(t, "replicas/demo", check.Query)
		of := strings.TrimPrefix(check.Strategy.Name, "remuda-")
		if form := check.Strategy.Config["form"]; form != "" {
			of = form
		}
		require.Equal(t, name, jobs.Policy(of))
		s, err := plugin.NewStrategy(plugin.StrategyConfig{Name: "remuda-autoscaler", Strategy: check.Strategy.Name})
		require.NoError(t, err)
		defer s.Close()
		require.NoError(t, s.SetConfig(map[string]string{"controller": "http://127.0.0.1:1", "consul": "none"}))
		eval, err := s.Run(&sdk.ScalingCheckEvaluation{Check: &sdk.ScalingPolicyCheck{Strategy: check.Strategy}, Action: &sdk.ScalingAction{}}, 1)
		require.NoError(t, err, "%s: its keys", name)
		require.Equal(t, sdk.ScaleDirection(sdk.ScaleDirectionNone), eval.Action.Direction, "nobody answers")
		require.Contains(t, eval.Action.Reason, "127.0.0.1:1")
	}
}

func TestModelFiles(t *testing.T) {
	want := map[string]map[string]string{ // by model file: its models' variants' engines
		jobs.DemoModel:                         {"demo/sim": "sim"},
		jobs.SingleModel:                       {"demo/sim": "sim"},
		jobs.TinyModel:                         {"tiny/ollama": "ollama"},
		"llama-3-8b-sglang-failover.model.hcl": {"llama-3-8b/h100": "sglang"},
		"tiny-failover.model.hcl":              {"tiny/ollama": "ollama"},
		"llama-3-8b.model.hcl":                 {"llama-3-8b/h100": "vllm", "llama-3-8b/l40s": "vllm"},
		"llama-3-8b-failover.model.hcl":        {"llama-3-8b/h100": "vllm"},
		"llama-3-8b-sglang.model.hcl":          {"llama-3-8b/h100": "sglang"},
	}
	require.Equal(t, slices.Sorted(maps.Keys(want)), names(t, "*.model.hcl"))
	used := map[string]bool{}
	for file, engines := range want {
		_, models, err := modelfile.Load(jobs.Files, file)
		require.NoError(t, err)
		got := map[string]string{}
		for _, m := range models {
			require.Equal(t, file == jobs.DemoModel || strings.Contains(file, "failover"), m.Failover, file)
			for _, v := range m.Variants {
				got[m.Name+"/"+v.Name] = v.Engine
				used[v.Job] = true
				requireReplicaJob(t, v)
			}
		}
		require.Equal(t, engines, got)
	}
	for _, name := range names(t, "*.nomad.hcl") {
		require.Equal(t, !slices.Contains(own, name), used[read(t, name)], "%s is in a model file", name)
	}
}

// TestShippedJobs: a variant without a job file has the one for its engine.
func TestShippedJobs(t *testing.T) {
	for engine, want := range map[string][2]string{
		"vllm": {"vllm", "vllm-failover"}, "sglang": {"sglang", "sglang-failover"}, "ollama": {"ollama", "ollama-failover"}, "sim": {"demo", "failover"},
	} {
		for i, failover := range []bool{false, true} {
			text := fmt.Sprintf("model \"m\" {\n  failover = %t\n  variant \"v\" {\n    engine  = %q\n    weights = \"1GiB\"\n  }\n}\n", failover, engine)
			source, models, err := modelfile.Read([]modelfile.File{{Name: "m.model.hcl", Text: text}}, jobs.Files, nil)
			require.NoError(t, err)
			require.Equal(t, read(t, want[i]+".nomad.hcl"), models[0].Variants[0].Job, "%s %t", engine, failover)
			// The controller reads it from what it is sent, whatever comes with its own version.
			again, err := source.Models(plugin.CheckPolicy)
			require.NoError(t, err)
			require.Equal(t, models, again)
		}
	}
}

// requireReplicaJob checks that a job file takes from the controller what it gives.
func requireReplicaJob(t *testing.T, v state.Variant) {
	t.Helper()
	declared, diags := modelfile.JobVariables(v.Name, v.Job)
	require.False(t, diags.HasErrors(), diags.Error())
	for _, name := range modelfile.ReservedVars() {
		require.True(t, slices.ContainsFunc(declared, func(d modelfile.JobVariable) bool { return d.Name == name }), "%s: %s", v.Name, name)
	}
	used := references(t, v.Job)
	for _, d := range declared {
		require.False(t, d.Required, "%s: `nomad job run` needs a value for %s", v.Name, d.Name)
		require.True(t, used[d.Name], "%s: %s is declared and not used", v.Name, d.Name)
	}
}

// TestStartBudget: each shim lets its engine start for as long as the check of its task does.
func TestStartBudget(t *testing.T) {
	var have []string
	for _, name := range names(t, "*.nomad.hcl") {
		text := read(t, name)
		if !strings.Contains(text, `variable "start_budget"`) {
			continue
		}
		have = append(have, name)
		shims := strings.Count(text, `"-engine-url"`)
		require.Positive(t, shims, name)
		require.Equal(t, shims, strings.Count(text, `"-init-timeout", var.start_budget,`), "%s: shims that get it", name)
		require.Equal(t, shims, strings.Count(text, `/live?startup=${var.start_budget}"`), "%s: checks that get it", name)
	}
	require.Equal(t, []string{"failover.nomad.hcl", "sglang-failover.nomad.hcl", "sglang.nomad.hcl", "vllm-failover.nomad.hcl", "vllm.nomad.hcl"}, have)
}

// TestNoJobDefaultsToAnAgent: a job file does not choose a Consul agent. Without one a task has its
// Nomad client's, or fails with an error that says so.
func TestNoJobDefaultsToAnAgent(t *testing.T) {
	for _, name := range names(t, "*.nomad.hcl") {
		for line := range strings.Lines(read(t, name)) {
			if !strings.Contains(line, "description") && !strings.HasPrefix(strings.TrimSpace(line), "#") {
				require.NotContains(t, line, ":8500", name)
			}
		}
	}
}

// references are the variables that a job file uses.
func references(t *testing.T, source string) map[string]bool {
	t.Helper()
	file, diags := hclsyntax.ParseConfig([]byte(source), "job", hcl.InitialPos)
	require.False(t, diags.HasErrors())
	out := map[string]bool{}
	diags = hclsyntax.VisitAll(file.Body.(*hclsyntax.Body), func(n hclsyntax.Node) hcl.Diagnostics {
		if e, ok := n.(*hclsyntax.ScopeTraversalExpr); ok && e.Traversal.RootName() == "var" && len(e.Traversal) > 1 {
			if attr, ok := e.Traversal[1].(hcl.TraverseAttr); ok {
				out[attr.Name] = true
			}
		}
		return nil
	})
	require.False(t, diags.HasErrors())
	return out
}

func TestJobsWithoutAModelNeedNoValues(t *testing.T) {
	for _, name := range own {
		declared, diags := modelfile.JobVariables(name, read(t, name))
		require.False(t, diags.HasErrors(), diags.Error())
		used := references(t, read(t, name))
		for _, d := range declared {
			require.False(t, d.Required, "%s: %s", name, d.Name)
			require.True(t, used[d.Name], "%s: %s is declared and not used", name, d.Name)
			require.NotContains(t, modelfile.ReservedVars(), d.Name, name)
		}
	}
}
