package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
)

// TestApplyADirectory applies all of its files or none, and -prune deletes the other models.
func TestApplyADirectory(t *testing.T) {
	t.Parallel()
	r := newWorld(t).dev()
	dir := t.TempDir()
	write := func(file, model string) {
		t.Helper()
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte("model \""+model+"\" {\n  replicas = 0\n"+variant("h100", "20GiB")+"\n}\n"), 0o600))
	}
	names := func() (all []string) {
		t.Helper()
		var models []api.ModelSummary
		r.json(&models, "model", "list")
		for _, m := range models {
			all = append(all, m.Name)
		}
		return all
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "job.nomad.hcl"), []byte(jobFile), 0o600))
	got := r.do("model", "apply", dir)
	require.Equal(t, 1, got.code)
	require.Contains(t, got.errout, "directory "+dir+" has no model files (*.model.hcl)")

	write("a.model.hcl", "a")
	write("b.model.hcl", "b")
	out := r.ok("model", "apply", dir)
	require.Contains(t, out, `model "a" is new`)
	require.Contains(t, out, `model "b" is new`)
	require.Equal(t, []string{"a", "b"}, names())
	require.Contains(t, r.ok("model", "apply", dir, "-prune"), "Nothing changed.\n")

	write("c.model.hcl", "a")
	got = r.do("model", "apply", dir)
	require.Equal(t, 1, got.code)
	require.Contains(t, got.errout, filepath.Join(dir, "c.model.hcl")+`:1:7: duplicate model "a": first defined in `+filepath.Join(dir, "a.model.hcl")+" on line 1")
	require.NoError(t, os.Remove(filepath.Join(dir, "c.model.hcl")))

	require.NoError(t, os.Remove(filepath.Join(dir, "b.model.hcl")))
	require.NotContains(t, r.ok("model", "apply", dir), "deleted")
	require.Contains(t, r.ok("model", "apply", dir, "-prune", "-dry-run"), `model "b" is not in `+dir+": it is deleted\nDry run: nothing was changed.\n")
	require.Equal(t, []string{"a", "b"}, names())
	for _, args := range [][]string{{filepath.Join(dir, "a.model.hcl"), "-prune"}, {dir, "-prune", "-detach"}} {
		require.Equal(t, 2, r.do(append([]string{"model", "apply"}, args...)...).code, args)
	}
	require.Equal(t, []string{"a", "b"}, names())
	require.Contains(t, r.ok("model", "apply", dir, "-prune"), "b is deleted.\n")
	require.Equal(t, []string{"a"}, names())
}

// TestApplyStandardInput applies a model file of standard input with a job file beside it.
func TestApplyStandardInput(t *testing.T) {
	t.Parallel()
	r := newWorld(t).dev()
	dir := t.TempDir()
	job := filepath.Join(dir, "job.nomad.hcl")
	require.NoError(t, os.WriteFile(job, []byte(jobFile), 0o600))
	text := strings.Replace("model \"piped\" {\n  replicas = 0\n"+variant("h100", "20GiB")+"\n}\n", `"job.nomad.hcl"`, strconv.Quote(job), 1)
	var out, errout bytes.Buffer
	p := &program{ctx: t.Context(), stdin: strings.NewReader(text), stdout: &out, stderr: &errout}
	require.Equal(t, 0, p.run([]string{"model", "apply", "-address", r.url, "-"}), errout.String())
	require.Contains(t, out.String(), `model "piped" is new`)
	require.Equal(t, text, r.ok("model", "file", "piped"))
	got := r.do("model", "apply", "-", dir)
	require.Equal(t, 2, got.code)
	require.Contains(t, got.errout, "- stands for one model file on standard input")
}
