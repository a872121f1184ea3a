//go:build e2e

package gpucheck_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/internal/gpucheck"
)

// TestBundle: what `make gpu-check` makes runs where it is unpacked, with nothing
// else on the PATH but what every system has.
func TestBundle(t *testing.T) {
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	made := exec.Command("make", "gpu-check")
	made.Dir = root
	out, err := made.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "remuda: ")

	dir := t.TempDir()
	out, err = exec.Command("tar", "-C", dir, "-xzf", filepath.Join(root, "bin", "gpu-check.tar.gz")).CombinedOutput()
	require.NoError(t, err, "%s", out)
	run := func(args ...string) (string, error) {
		cmd := exec.Command(filepath.Join(dir, "gpu-check", "run.sh"), args...)
		cmd.Dir = dir
		cmd.Env = []string{"PATH=/usr/bin:/bin", "OUT=" + filepath.Join(dir, "from the environment")}
		out, err := cmd.Output()
		return string(out), err
	}
	small := []string{"-backend", "host", "-memory", "64MiB", "-weights", "64MiB", "-n", "3"}
	for where, args := range map[string][]string{
		"from the environment": small,
		"named first":          append([]string{"named first"}, small...),
	} {
		t.Run(where, func(t *testing.T) {
			table, err := run(args...)
			require.NoError(t, err, table)
			raw, err := os.ReadFile(filepath.Join(dir, where, "results.json"))
			require.NoError(t, err)
			var r gpucheck.Report
			require.NoError(t, json.Unmarshal(raw, &r))
			require.Equal(t, "1 device plugin skip\n"+all, results(r))
			require.Equal(t, r.Markdown(), table)
		})
	}
	t.Run("no driver", func(t *testing.T) {
		_, err := run("-cuda-library", "/nonexistent/libcuda.so.1")
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit)
		require.Equal(t, 1, exit.ExitCode())
		require.Contains(t, string(exit.Stderr), "there is no usable NVIDIA driver")
	})
}
