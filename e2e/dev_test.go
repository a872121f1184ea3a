//go:build e2e

package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/internal/testkit/mirror"
)

// TestTwoClusters runs two at once, and kills one with SIGKILL: the next run
// with its directory cleans up.
func TestTwoClusters(t *testing.T) {
	t.Parallel()
	state := dataDir(t)
	env := []string{"XDG_STATE_HOME=" + state}
	// They start in the same moment: none may take what is the other's.
	first, second := startDev(t, env, "-no-autoscaler", "-single"), startDev(t, env, "-no-autoscaler", "-single")
	dirs := [2]string{filepath.Join(state, "remuda", "dev"), filepath.Join(state, "remuda", "dev-2")}
	eventually(t, time.Minute, "the directories of both", func() error {
		_, err := os.Stat(dirs[1])
		return err
	})
	if !strings.Contains(first.out.String(), dirs[0]+"\n") {
		dirs[0], dirs[1] = dirs[1], dirs[0]
	}
	first, second = first.await(dirs[0]), second.await(dirs[1])
	for _, d := range []*dev{first, second} {
		decisions, _, err := d.controller.Decisions(t.Context(), api.DecisionFilter{Model: "demo", Limit: 100}, api.QueryOptions{})
		require.NoError(t, err)
		applied := 0
		for _, decision := range decisions {
			if decision.Kind == "apply" {
				applied++
			}
		}
		require.Equal(t, 1, applied, "each applies its model to its own controller: %+v", decisions)
		require.NotContains(t, d.out.String(), "starting it again")
	}
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
	t.Parallel()
	bin, dir := dataDir(t), dataDir(t)
	script := "#!/bin/sh\nif [ \"$1\" = version ]; then echo Consul v99.0.0; else echo broken on purpose; exit 3; fi\n"
	require.NoError(t, os.WriteFile(filepath.Join(bin, "consul"), []byte(script), 0o755))
	d := startDev(t, []string{"PATH=" + bin + string(os.PathListSeparator) + os.Getenv("PATH")}, "-data-dir", dir)
	select {
	case <-d.done:
	case <-time.After(3 * time.Minute):
		t.Fatal("it did not end")
	}
	require.Error(t, d.err)
	require.True(t, strings.Contains(d.out.String(), "broken on purpose") && strings.Contains(d.out.String(), `step "consul" failed`), d.out.String())
	requireNothingLeft(t, dir)
}

// TestBadOptions: wrong usage is exit code 2 and changes nothing.
func TestBadOptions(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"-gpus", "99"}, 2, "-gpus is 99: must be 1 to 16"},
		{[]string{"-engine", "vllm"}, 2, `-engine is "vllm": must be sim or ollama`},
		{[]string{"-gguf", "x"}, 2, "-gguf needs -engine ollama"},
		{[]string{"-data-dir", "/etc"}, 1, "not from remuda dev"},
		{[]string{"-controllers", "2"}, 2, "-controllers is 2: must be 1, 3 or 5"},
		{[]string{"-set", "gateway"}, 2, "must be DAEMON=FILE"},
		{[]string{"extra"}, 2, `unexpected argument "extra"`},
	} {
		out, err := exec.Command(binary(t, "remuda"), append([]string{"dev"}, tc.args...)...).CombinedOutput()
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit)
		require.Equal(t, tc.code, exit.ExitCode(), "%s", out)
		require.Contains(t, string(out), tc.want)
	}
}

// TestNotRoot runs the whole cluster, autoscaler included, as a user without rights.
func TestNotRoot(t *testing.T) {
	t.Parallel()
	const nobody = 65534
	dir, home := dataDir(t), dataDir(t)
	for _, path := range []string{dir, home} {
		require.NoError(t, os.Chmod(path, 0o755))
		require.NoError(t, os.Chown(path, nobody, nobody))
	}
	// What is under a directory of root's alone cannot be started by others.
	bin := dataDir(t)
	require.NoError(t, os.Chmod(bin, 0o755))
	for _, name := range []string{"remuda", "remuda-device", "remuda-autoscaler"} {
		plainCopy(t, binary(t, name), filepath.Join(bin, name))
	}
	for _, name := range []string{"nomad", "consul", "nomad-autoscaler"} {
		plainCopy(t, toolPath(t, name), filepath.Join(bin, name))
	}
	cmd := exec.Command(filepath.Join(bin, "remuda"), "dev", "-data-dir", dir)
	cmd.Dir = home
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	d := startProgram(t, cmd, []string{"REMUDA_TOOLS=" + bin, "HOME=" + home, "PATH=/usr/local/bin:/usr/bin:/bin"}).await(dir)
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.cmd.Process.Pid))
	require.NoError(t, err)
	require.NotContains(t, string(raw), "Uid:\t0\t")
	d.answers("as nobody")
	d.stop(syscall.SIGINT)
}

// TestFirstRun starts a cluster on a machine that has none of the tools. They are downloaded from a site of
// releases and checked by its key. A site whose key is another one is refused.
func TestFirstRun(t *testing.T) {
	t.Parallel()
	bin, home, site := dataDir(t), dataDir(t), dataDir(t)
	for _, name := range []string{"remuda", "remuda-device", "remuda-autoscaler"} {
		plainCopy(t, binary(t, name), filepath.Join(bin, name)) // not beside .tools
	}
	key, tools := mirror.NewKey(t), []string{"nomad", "consul", "nomad-autoscaler"}
	for _, name := range tools {
		program := toolPath(t, name)
		out, err := exec.Command(program, "version").Output()
		require.NoError(t, err)
		key.Add(t, site, name, regexp.MustCompile(`\d+\.\d+\.\d+`).FindString(string(out)), program)
	}
	server := httptest.NewServer(http.FileServer(http.Dir(site)))
	t.Cleanup(server.Close)
	ours, other := filepath.Join(home, "key.asc"), filepath.Join(home, "other.asc")
	require.NoError(t, os.WriteFile(ours, []byte(key.Public(t)), 0o600))
	require.NoError(t, os.WriteFile(other, []byte(mirror.NewKey(t).Public(t)), 0o600))
	start := func(dir, key string) *dev {
		cmd := exec.Command(filepath.Join(bin, "remuda"), "dev", "-data-dir", dir, "-releases", server.URL, "-releases-key", key)
		cmd.Dir = home
		return startProgram(t, cmd, []string{"REMUDA_TOOLS=", "HOME=" + home, "XDG_CACHE_HOME=" + filepath.Join(home, "cache"), "PATH=/usr/bin:/bin"})
	}

	refused := start(dataDir(t), other)
	<-refused.done
	require.Error(t, refused.err)
	require.Contains(t, refused.out.String(), "the release of nomad ")
	require.Contains(t, refused.out.String(), "is refused: unable to verify checksums signature")

	dir, began := dataDir(t), time.Now()
	first := start(dir, ours).await(dir)
	t.Logf("from a machine without tools to a model that answers: %s\n%s", time.Since(began).Round(100*time.Millisecond), first.out)
	for _, name := range tools {
		require.Regexp(t, name+` \S+, the official release of `+regexp.QuoteMeta(server.URL), first.out.String())
	}
	first.answers("with downloaded tools")
	first.stop(syscall.SIGINT)

	server.Close()
	second := start(dir, ours).await(dir)
	require.NotContains(t, second.out.String(), "the official release of", "they are kept")
	second.stop(syscall.SIGINT)
}
