package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/modelfile"
	"remuda/jobs"
)

// initialised runs model init with what is typed.
func initialised(t *testing.T, typed string, args ...string) result {
	t.Helper()
	var out, errout bytes.Buffer
	p := &program{ctx: t.Context(), stdin: strings.NewReader(typed), stdout: &out, stderr: &errout}
	return result{p.run(append([]string{"model", "init"}, args...)), out.String(), errout.String()}
}

func TestModelInit(t *testing.T) {
	const want = `model "org/llama" {
  replicas = 1
  failover = true
  idle { cold = "15m" }

  variant "vllm" {
    engine  = "vllm"
    weights = "16GiB"
    memory  = "72GiB"

    gpu {
      model = "NVIDIA H100 80GB HBM3"
      count = 2
    }

    vars = {
      consul  = "127.0.0.1:8500"
      weights = "llama"
    }
  }
}
`
	typed := strings.Join([]string{"org/llama", "", "llama", "16GiB", "72GiB", "2", "NVIDIA H100 80GB HBM3", "", "", "yes", "15m"}, "\n") + "\n"
	r := initialised(t, typed, "-o", "-")
	require.Equal(t, 0, r.code, r.errout)
	require.Equal(t, want, r.out)
	require.Equal(t, 11, strings.Count(r.errout, "\n> "))

	// Flags ask nothing, and the file is what model render and model apply read.
	t.Chdir(t.TempDir())
	args := []string{"-name", "org/llama", "-model", "llama", "-weights", "16GiB", "-memory", "72GiB", "-gpus", "2", "-gpu", "NVIDIA H100 80GB HBM3", "-failover", "yes", "-idle", "15m"}
	r = initialised(t, "", args...)
	require.Equal(t, 0, r.code, r.errout)
	require.Empty(t, r.errout)
	require.Equal(t, "org-llama.model.hcl is written. Apply it with \"remuda model apply org-llama.model.hcl\".\n", r.out)
	got, err := os.ReadFile("org-llama.model.hcl")
	require.NoError(t, err)
	require.Equal(t, want, string(got))
	r = initialised(t, "", args...)
	require.Equal(t, 1, r.code)
	require.Contains(t, r.errout, "org-llama.model.hcl exists: choose another file with -o")

	for name, tc := range map[string]struct {
		typed string
		args  []string
		code  int
		want  string
	}{
		"no end":            {"m\nvllm\n", nil, 1, "standard input ended before all questions were answered"},
		"no weights":        {"", []string{"-name", "m"}, 2, "-name and -weights are required"},
		"half a pair":       {"", []string{"-name", "m", "-weights", "1GiB", "-failover", "maybe"}, 2, `-failover is "maybe": must be yes or no`},
		"many GPUs":         {"", []string{"-name", "m", "-weights", "1GiB", "-gpus", "all"}, 2, `-gpus is "all"`},
		"no such engine":    {"", []string{"-name", "m", "-weights", "1GiB", "-engine", "vlm"}, 1, `engine is "vlm": must be "vllm"`},
		"three GPUs":        {"", []string{"-name", "m", "-weights", "1GiB", "-gpus", "3"}, 1, "must be 1, 2, 4, 8 or 16"},
		"a size of nothing": {"", []string{"-name", "m", "-weights", "big"}, 1, `weights is "big"`},
	} {
		t.Run(name, func(t *testing.T) {
			r := initialised(t, tc.typed, tc.args...)
			require.Equal(t, tc.code, r.code, r.errout)
			require.Contains(t, r.errout, tc.want)
		})
	}
	for _, engine := range []string{"sglang", "ollama", "sim"} {
		r := initialised(t, "", "-name", "m", "-weights", "1GiB", "-engine", engine, "-model", "x", "-failover", "yes", "-o", "-")
		require.Equal(t, 0, r.code, r.errout)
		require.Equal(t, engine == "sglang", strings.Contains(r.out, "consul "), "programs of the node inherit CONSUL_HTTP_ADDR")
	}
}

// TestModelRender: what it prints is the same job with the values of the model file in it, so that it
// can take the place of the one that comes with remuda.
func TestModelRender(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "m.model.hcl")
	write := func(variants string) {
		require.NoError(t, os.WriteFile(path, []byte("model \"m\" {\n"+variants+"}\n"), 0o600))
	}
	const first = `variant "a" {
  weights = "16GiB"
  vars = { image = "my/vllm:${1 + 1}", extra_args = ["--seed", "7"], cpu = 200 }
`
	write(first + "}\n")
	r := remuda(t, "model", "render", path)
	require.Equal(t, 0, r.code, r.errout)
	require.Regexp(t, `(?s)variable "image" \{[^}]*default +?= "my/vllm:2"`, r.out)
	require.Regexp(t, `(?s)variable "extra_args" \{[^}]*default +?= \["--seed", "7"\]`, r.out)
	require.Regexp(t, `(?s)variable "cpu" \{[^}]*default +?= "200"`, r.out)
	shipped, err := jobs.Files.ReadFile("vllm.nomad.hcl")
	require.NoError(t, err)
	_, job, _ := strings.Cut(string(shipped), "\njob ")
	_, rendered, _ := strings.Cut(r.out, "\njob ")
	require.Equal(t, job, rendered, "only values differ")

	own := filepath.Join(dir, "own.nomad.hcl")
	require.NoError(t, os.WriteFile(own, []byte(r.out), 0o600))
	write(first + "  job = \"own.nomad.hcl\"\n}\n")
	_, models, err := modelfile.Load(nil, path)
	require.NoError(t, err)
	require.Equal(t, r.out, models[0].Variants[0].Job)

	write(first + "}\nvariant \"b\" {\n  engine = \"sim\"\n  weights = \"1GiB\"\n}\n")
	r = remuda(t, "model", "render", path)
	require.Equal(t, 2, r.code)
	require.Contains(t, r.errout, `-variant is "": must be one of m/a, m/b`)
	r = remuda(t, "model", "render", path, "-variant", "b")
	require.Contains(t, r.out, `job "demo" {`)
	require.Equal(t, r.out, remuda(t, "model", "render", path, "-variant", "m/b").out)
}
