package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/internal/testkit/cudatest"
	"remuda/internal/testkit/long"
)

// TestBundle: what `make gpu-check` makes runs where it is unpacked, with nothing else
// on the PATH but what every system has: the whole conformance suite in host memory,
// and on a fake of the CUDA driver. `make verify` runs it: the build alone takes minutes.
func TestBundle(t *testing.T) {
	if !long.Enabled() {
		t.Skip("a long form: make verify")
	}
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	made := exec.Command("make", "gpu-check")
	made.Dir = root
	out, err := made.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "gms-conformance: ")

	dir := t.TempDir()
	out, err = exec.Command("tar", "-C", dir, "-xzf", filepath.Join(root, "bin", "gpu-check.tar.gz")).CombinedOutput()
	require.NoError(t, err, "%s", out)
	bundled := func(args ...string) (string, error) {
		cmd := exec.Command(filepath.Join(dir, "gpu-check", "run.sh"), args...)
		cmd.Dir = dir
		cmd.Env = []string{"PATH=/usr/bin:/bin", "OUT=" + filepath.Join(dir, "from the environment"), "FAKECUDA_GPUS=1", "FAKECUDA_MEMORY=17179869184"}
		out, err := cmd.Output()
		return string(out), err
	}
	// A test of the suite runs the memory service as another user, who loads the driver.
	driver := cudatest.Build(t)
	require.NoError(t, os.Chmod(filepath.Dir(filepath.Dir(driver)), 0o755))
	for where, args := range map[string][]string{
		"from the environment": {"-backend", "host", "-weights", "64MiB", "-n", "3"},
		"named first":          {"named first", "-cuda-library", driver, "-weights", "64MiB", "-n", "3"},
	} {
		t.Run(where, func(t *testing.T) {
			table, err := bundled(args...)
			var r Report
			raw, rerr := os.ReadFile(filepath.Join(dir, where, "results.json"))
			require.NoError(t, rerr)
			require.NoError(t, json.Unmarshal(raw, &r))
			require.Equal(t, r.Markdown(), table)
			device := "skip"
			if r.Backend == backendCUDA { // there is no NVML
				device = "fail"
				require.Error(t, err)
			} else {
				require.NoError(t, err, table)
			}
			require.Equal(t, "1 device plugin "+device+"\n"+strings.Repeat("2 memory service pass\n", 4)+passed, results(r), table)
		})
	}
	t.Run("no driver", func(t *testing.T) {
		_, err := bundled("-cuda-library", "/nonexistent/libcuda.so.1")
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit)
		require.Equal(t, 1, exit.ExitCode())
		require.Contains(t, string(exit.Stderr), "there is no usable NVIDIA driver")
	})
}
