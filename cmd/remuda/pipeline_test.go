package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
)

const pipelineFile = `pipeline "meta/support" {
  deadline = "60s"

  step "classify" {
    model  = "small"
    prompt = input.text
  }
  step "ideas" {
    for_each = split(",", step.classify.text)
    model    = "large"
    prompt   = each.value
    parallel = 3
  }
  output = join("\n", step.ideas[*].text)
}
`

// TestPipelineVerbs goes through the life of a pipeline.
func TestPipelineVerbs(t *testing.T) {
	w := newWorld(t)
	r := w.dev()
	write := func(text string) string {
		path := filepath.Join(t.TempDir(), "pipeline.hcl")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	path := write(pipelineFile)
	require.Contains(t, r.ok("pipeline", "list"), `No pipelines. Add one with "remuda pipeline apply FILE".`)
	require.Contains(t, r.ok("pipeline", "apply", path, "-dry-run"), `Pipeline "meta/support" is valid.`)
	require.Contains(t, r.ok("pipeline", "list"), `No pipelines. Add one with "remuda pipeline apply FILE".`)

	out := r.ok("pipeline", "apply", path)
	require.Contains(t, out, `Pipeline "meta/support" created.`)
	require.Contains(t, out, "steps fail until these models exist: large, small.")
	require.Contains(t, r.ok("pipeline", "apply", path), "Nothing changed.\n")
	require.Contains(t, r.ok("pipeline", "apply", write(strings.Replace(pipelineFile, "60s", "90s", 1))), "Pipeline \"meta/support\" updated.\n")
	require.Regexp(t, `(?m)^meta/support +large,small +large,small +\d+$`, r.ok("pipeline", "list"))
	out = r.ok("pipeline", "status", "meta/support")
	require.Regexp(t, `(?m)^Deadline += 1m30s$`, out)
	require.Regexp(t, `(?m)^Output += computed$`, out)
	require.Regexp(t, `(?m)^classify +small +no +- +once$`, out)
	require.Regexp(t, `(?m)^ideas +large +no +classify +for each, 3 at once$`, out)
	require.Contains(t, out, "\nFile\npipeline \"meta/support\" {\n")
	var p api.Pipeline
	r.json(&p, "pipeline", "status", "meta/support")
	require.Equal(t, []string{"large", "small"}, p.Models)
	var all []api.Pipeline
	r.json(&all, "pipeline", "list")
	require.Equal(t, []api.Pipeline{p}, all)
	var again api.PipelineResponse
	r.json(&again, "pipeline", "apply", path)
	require.True(t, again.Changed)
	require.False(t, again.New)

	// A name is a model's or a pipeline's.
	r.ok("model", "apply", writeModel(t, "small", "  max = 1\n  replicas = 0\n"+variant("h100", "20GiB")), "-detach")
	require.Regexp(t, `(?m)^meta/support +large,small +large +\d+$`, r.ok("pipeline", "list"))
	got := r.do("pipeline", "apply", write(strings.Replace(pipelineFile, "meta/support", "small", 1)))
	require.Equal(t, 1, got.code)
	require.Contains(t, got.errout, `"small"`)

	got = r.do("pipeline", "apply", write("pipeline \"p\" {\n  output = step.a\n}\n"))
	require.Equal(t, 1, got.code)
	require.Contains(t, got.errout, "pipeline.hcl:2:12: ")
	require.Equal(t, 1, r.do("pipeline", "apply", filepath.Join(t.TempDir(), "none.hcl")).code)
	require.Equal(t, 2, r.do("pipeline", "apply").code)
	require.Equal(t, 2, r.do("pipeline", "status").code)

	// From standard input.
	var stdout, stderr bytes.Buffer
	pipe := &program{ctx: t.Context(), stdin: strings.NewReader(strings.Replace(pipelineFile, "meta/support", "piped", 1)), stdout: &stdout, stderr: &stderr}
	require.Equal(t, 0, pipe.run([]string{"pipeline", "apply", "-address", r.url, "-"}), stderr.String())
	require.Contains(t, stdout.String(), `Pipeline "piped" created.`)

	require.Contains(t, r.ok("pipeline", "delete", "meta/support"), "Deleted pipeline \"meta/support\".\n")
	require.Equal(t, "{}\n", r.ok("pipeline", "delete", "piped", "-json"))
	require.Contains(t, r.ok("pipeline", "list"), `No pipelines. Add one with "remuda pipeline apply FILE".`)
	got = r.do("pipeline", "delete", "meta/support")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.errout, `pipeline "meta/support" does not exist`)
	require.Equal(t, 1, r.do("pipeline", "status", "meta/support").code)
}
