package process_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/internal/testkit/process"
)

// markEnv marks the processes of one test, and starterEnv makes this program start
// one and wait.
const (
	markEnv    = "REMUDA_TEST_PROCESS"
	starterEnv = "REMUDA_TEST_PROCESS_STARTER"
)

func TestMain(m *testing.M) {
	if log := os.Getenv(starterEnv); log != "" {
		p, err := process.Start(process.Config{Path: "/bin/sleep", Args: []string{"600"}, Log: log})
		if err == nil {
			err = p.Wait(context.Background())
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// shell starts a shell that runs the script.
func shell(t *testing.T, script string, env ...string) *process.Process {
	t.Helper()
	p, err := process.Start(process.Config{Path: "/bin/sh", Args: []string{"-c", script}, Env: env, Log: filepath.Join(t.TempDir(), "log")})
	require.NoError(t, err)
	t.Cleanup(p.Kill)
	return p
}

func output(t *testing.T, p *process.Process) string {
	t.Helper()
	out, err := p.Output()
	require.NoError(t, err)
	return out
}

func TestOutputAndExitStatus(t *testing.T) {
	p := shell(t, "echo $GREETING; echo failed >&2; exit 7", "GREETING=hello")
	err := p.Wait(t.Context())
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 7, exit.ExitCode())
	require.Equal(t, "hello\nfailed\n", output(t, p))
	<-p.Done()
	err = p.Running()
	require.ErrorIs(t, err, process.ErrEnded)
	require.ErrorContains(t, err, "exit status 7")
	require.ErrorContains(t, err, ": failed")
	p.Kill()
	require.NoError(t, p.Stop(time.Minute), "the process has ended")
	require.NoError(t, shell(t, "exit 0").Wait(t.Context()))
}

func TestStartFails(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	_, err := process.Start(process.Config{Path: "/nonexistent", Log: log})
	require.ErrorContains(t, err, "/nonexistent")
	_, err = process.Start(process.Config{Path: "/bin/sh", Log: filepath.Join(log, "log")})
	require.ErrorContains(t, err, "start /bin/sh")
}

// started waits until the script has printed a line.
func started(t *testing.T, p *process.Process) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.HasSuffix(output(t, p), "\n") }, 20*time.Second, 5*time.Millisecond)
}

func TestStop(t *testing.T) {
	p := shell(t, "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.01; done")
	started(t, p)
	require.NoError(t, p.Running())
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	require.ErrorIs(t, p.Wait(ctx), context.DeadlineExceeded)
	require.NoError(t, p.Stop(time.Minute))
	require.Equal(t, "ready\nbye\n", output(t, p))

	p = shell(t, "trap '' TERM; echo ready; while :; do sleep 0.01; done")
	started(t, p)
	require.ErrorContains(t, p.Stop(time.Millisecond), "did not end within 1ms")
	<-p.Done()
}

// marked waits until n processes carry the mark.
func marked(t *testing.T, mark string, n int) []int {
	t.Helper()
	var pids []int
	require.Eventually(t, func() bool {
		var err error
		pids, err = process.WithEnv(mark)
		return err == nil && len(pids) == n
	}, 20*time.Second, 5*time.Millisecond)
	return pids
}

func TestKillEndsTheGroup(t *testing.T) {
	mark := fmt.Sprintf("%s=%s-%d", markEnv, t.Name(), os.Getpid())
	p := shell(t, "sleep 600 & sleep 600 & wait", mark)
	require.Contains(t, marked(t, mark, 3), p.PID())
	p.Kill()
	marked(t, mark, 0)
}

func TestProcessDiesWithTheProgramThatStartedIt(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	mark := fmt.Sprintf("%s=%s-%d", markEnv, t.Name(), os.Getpid())
	starter := exec.Command(self)
	starter.Env = append(os.Environ(), mark, starterEnv+"="+filepath.Join(t.TempDir(), "log"))
	require.NoError(t, starter.Start())
	marked(t, mark, 2)
	require.NoError(t, starter.Process.Kill())
	_ = starter.Wait() // it was killed
	marked(t, mark, 0)
}
