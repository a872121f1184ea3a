package main

import (
	"bufio"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/internal/testkit/consultest"
	"remuda/internal/testkit/loopback"
	lockclient "remuda/lockd/client"
)

// unread starts the program with a log whose reader is gone, as that of a killed executor of
// Nomad, and returns its standard output.
func unread(t *testing.T, args ...string) *bufio.Scanner {
	t.Helper()
	read, write, err := os.Pipe()
	require.NoError(t, err)
	require.NoError(t, read.Close())
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	cmd.Stderr = write
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	require.NoError(t, write.Close())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return bufio.NewScanner(out)
}

// TestLogThatNobodyReads: no daemon ends because nobody reads its log.
func TestLogThatNobodyReads(t *testing.T) {
	t.Parallel()
	t.Run("lockd goes on granting", func(t *testing.T) {
		t.Parallel()
		dir, err := os.MkdirTemp("", "lockd") // a short path
		require.NoError(t, err)
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		sock := filepath.Join(dir, "sock")
		unread(t, "lockd", "-socket", sock, "-state", filepath.Join(dir, "state"))
		require.Eventually(t, func() bool {
			c, err := net.Dial("unix", sock)
			if err == nil {
				_ = c.Close()
			}
			return err == nil
		}, patience, 5*time.Millisecond, "lockd does not serve")
		for _, group := range []string{"a", "b", "c"} { // each grant is a line of log
			cfg := lockclient.DefaultConfig()
			cfg.Addr, cfg.Group, cfg.Holder = sock, group, "a test"
			c, err := lockclient.New(cfg)
			require.NoError(t, err)
			grant, err := c.Acquire(t.Context())
			require.NoError(t, err)
			t.Cleanup(func() { _ = grant.Close() })
		}
	})
	t.Run("the engine's shim serves", func(t *testing.T) {
		t.Parallel()
		addr := loopback.Free(t)
		unread(t, "engine", "-group", "m:v:r", "-engine-url", "http://"+loopback.Free(t), "-listen", addr, "-no-consul", "--", "sleep", "600")
		require.Eventually(t, func() bool {
			resp, err := http.Get("http://" + addr + "/state")
			if err == nil {
				_ = resp.Body.Close()
			}
			return err == nil
		}, patience, 5*time.Millisecond, "the shim does not serve")
	})
	t.Run("the gateway serves", func(t *testing.T) {
		t.Parallel()
		agent := consultest.New(t)
		out := unread(t, "gateway", "-dev", "-listen", "127.0.0.1:0", "-operator-listen", "127.0.0.1:0", "-consul", agent.Addr())
		require.True(t, out.Scan(), "it has ended")
		agent.Await(t, "the registration", func(all []consultest.Service) bool { return len(all) == 1 })
		resp, err := http.Get(strings.TrimPrefix(out.Text(), "gateway listening on ") + "/live")
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, http.StatusOK, resp.StatusCode)
	})
	t.Run("the controller serves", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		out := unread(t, "agent", "-dev", "-http", "127.0.0.1:0", "-raft", "127.0.0.1:0", "-nomad", w.nomad.URL, "-consul", w.consul.Addr())
		require.True(t, out.Scan(), "it has ended")
		r := &running{t: t, url: strings.TrimPrefix(out.Text(), "controller listening on ")}
		r.ok("model", "list")
	})
}
