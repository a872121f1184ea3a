//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestTwoClusters runs two at once, and kills one with SIGKILL: the next run
// with its directory cleans up.
func TestTwoClusters(t *testing.T) {
	state := dataDir(t)
	env := []string{"XDG_STATE_HOME=" + state}
	first := startDev(t, env, "-no-autoscaler", "-single").await(filepath.Join(state, "remuda", "dev"))
	second := startDev(t, env, "-no-autoscaler", "-single").await(filepath.Join(state, "remuda", "dev-2"))
	require.NotEqual(t, first.info.Gateway, second.info.Gateway)
	for _, d := range []*dev{first, second} {
		got, err := streamChat(t.Context(), d.info.Gateway, "demo", "Hello", 8)
		require.NoError(t, err)
		require.Equal(t, exact("demo", "Hello", 8).Text, got.text)
	}
	first.signal(syscall.SIGKILL)
	<-first.done
	got, err := streamChat(t.Context(), second.info.Gateway, "demo", "Hello", 8)
	require.NoError(t, err, "the other cluster goes on")
	require.Equal(t, exact("demo", "Hello", 8).Text, got.text)
	require.NoError(t, os.Remove(filepath.Join(first.info.DataDir, "cluster.json")))
	third := startDev(t, env, "-no-autoscaler", "-single").await(first.info.DataDir)
	require.Contains(t, third.out.String(), "of an earlier run that was killed")
	require.Len(t, enginesRunning(third), 1)
	third.stop(syscall.SIGTERM)
	second.stop(syscall.SIGINT)
}

// TestCrashHalfWay has a Consul that ends at once: the error shows why, and
// nothing is left.
func TestCrashHalfWay(t *testing.T) {
	bin, dir := dataDir(t), dataDir(t)
	script := "#!/bin/sh\nif [ \"$1\" = version ]; then echo Consul v99.0.0; else echo broken on purpose; exit 3; fi\n"
	require.NoError(t, os.WriteFile(filepath.Join(bin, "consul"), []byte(script), 0o755))
	d := startDev(t, []string{"PATH=" + bin + string(os.PathListSeparator) + os.Getenv("PATH")}, "-data-dir", dir)
	select {
	case <-d.done:
	case <-time.After(time.Minute):
		t.Fatal("it did not end")
	}
	require.Error(t, d.err)
	require.True(t, strings.Contains(d.out.String(), "broken on purpose") && strings.Contains(d.out.String(), `step "consul" failed`), d.out.String())
	requireNothingLeft(t, dir)
}

// TestBadOptions: wrong usage is exit code 2 and changes nothing.
func TestBadOptions(t *testing.T) {
	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"-gpus", "99"}, 2, "-gpus is 99: want 1 to 16"},
		{[]string{"-engine", "vllm"}, 2, `-engine is "vllm": want sim or ollama`},
		{[]string{"-gguf", "x"}, 2, "-gguf needs -engine ollama"},
		{[]string{"-data-dir", "/etc"}, 1, "not from remuda dev"},
		{[]string{"extra"}, 2, `unexpected argument "extra"`},
	} {
		out, err := exec.Command(binary(t, "remuda"), append([]string{"dev"}, tc.args...)...).CombinedOutput()
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit)
		require.Equal(t, tc.code, exit.ExitCode(), "%s", out)
		require.Contains(t, string(out), tc.want)
	}
}
