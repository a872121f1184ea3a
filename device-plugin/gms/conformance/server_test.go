package conformance_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/internal/testkit/process"
	"remuda/internal/testkit/proclog"
)

// The GPUs of the servers here, unless a test says otherwise.
const (
	mib         = 1 << 20
	granularity = 2 * mib
	capacity    = 64 * mib
	// oomRetry is how often a server here tries again to allocate.
	oomRetry = 50 * time.Millisecond
)

// serverConfig is how a server is started.
type serverConfig struct {
	dir   string // of its sockets; a fresh one where it is empty
	gpus  int    // 1 where it is 0
	first int    // number of the first GPU
	// args come after the usual flags, so that they win.
	args []string
	env  []string
	// binary is the copy of remuda to run, where it is not the usual one.
	binary string
	cred   *syscall.Credential
	// dirFromEnv leaves the socket directory to the environment.
	dirFromEnv bool
}

// server is a process of `remuda gms`: the keeper, with the service as its child.
type server struct {
	cfg  serverConfig
	cmd  *exec.Cmd
	log  *logBuffer
	done chan struct{} // closed when it is reaped
}

// gpuUUID is the name of a GPU.
func gpuUUID(n int) string { return fmt.Sprintf("GPU-5b7a4c3e-0000-4000-8000-%012d", n) }

// socket is where a connection of a GPU, counted from 0, and a tag begins: see unitPath.
func (s *server) socket(gpu int, tag string) string {
	return unitPath(s.cfg.dir, s.cfg.first+gpu, tag)
}

func (s *server) weights() string { return s.socket(0, "weights") }
func (s *server) kvCache() string { return s.socket(0, "kv_cache") }

// keeper is the process ID of the keeper, and pid that of the service.
func (s *server) keeper() int { return s.cmd.Process.Pid }
func (s *server) pid() int    { return process.Child(s.keeper()) }

// launch starts a server and does not wait until it answers.
func launch(cfg serverConfig) (*server, error) {
	if cfg.gpus == 0 {
		cfg.gpus = 1
	}
	// A test may stop the service for as long as it likes.
	args := append([]string{"gms", "-oom-retry", oomRetry.String(), "-hang-timeout", "1h"}, backendArgs(cfg.first, cfg.gpus)...)
	if !cfg.dirFromEnv {
		args = append(args, "-socket-dir", cfg.dir)
	}
	s := &server{cfg: cfg, log: &logBuffer{}, done: make(chan struct{})}
	s.cmd = command(cfg.binary, append(args, cfg.args...)...)
	s.cmd.Env = append(s.cmd.Env, cfg.env...)
	s.cmd.SysProcAttr.Credential = cfg.cred
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { _ = s.cmd.Wait(); close(s.done) }()
	return s, nil
}

// command runs remuda; it ends with this process.
func command(binary string, args ...string) *exec.Cmd {
	if binary == "" {
		binary = remuda
	}
	cmd := exec.Command(binary, args...)
	cmd.Env = append(os.Environ(), "GMS_SOCKET_DIR=")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// start starts a server that ends with the test, and waits until every socket
// answers.
func start(t testing.TB, cfg serverConfig) *server {
	t.Helper()
	if slices.ContainsFunc(cfg.args, func(arg string) bool { return strings.HasPrefix(arg, "-host-") }) {
		hostOnly(t, "it needs a -host flag of remuda gms")
	}
	if cfg.dir == "" {
		cfg.dir = socketDir(t)
	}
	s, err := launch(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { s.finish(t) })
	s.ready(t)
	return s
}

// socketDir is a directory whose path leaves room for a socket's name: sun_path has
// 108 bytes.
func socketDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "gms")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// ready waits until all sockets answer.
func (s *server) ready(t testing.TB) {
	t.Helper()
	for gpu := range s.cfg.gpus {
		s.answers(t, s.socket(gpu, "weights"))
		s.answers(t, s.socket(gpu, "kv_cache"))
	}
}

func (s *server) answers(t testing.TB, path string) {
	t.Helper()
	eventually(t, func() bool {
		if s.gone() {
			require.Fail(t, "the server ended", "%s", s.log)
		}
		r, err := dialRaw(path)
		if err != nil {
			return false
		}
		defer r.c.Close()
		if r.send(newMessage("get_runtime_state_request")) != nil {
			return false
		}
		_, err = r.receive(patience)
		return err == nil
	}, func() []any { return []any{"%s does not answer:\n%s", path, s.log} })
}

func (s *server) gone() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// kill is a crash of the service. The keeper starts the next one.
func (s *server) kill(t testing.TB) {
	t.Helper()
	pid := s.pid()
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	eventually(t, func() bool { return s.pid() != pid }, func() []any { return []any{"process %d is there", pid} })
	require.NoError(t, s.log.fault())
}

// lose kills the keeper, and the service ends with it: all is lost.
func (s *server) lose(t testing.TB) {
	t.Helper()
	pid := s.pid()
	require.NoError(t, s.cmd.Process.Kill())
	<-s.done
	eventually(t, func() bool { return processEnded(pid) }, func() []any { return []any{"the service outlives its keeper"} })
	require.NoError(t, s.log.fault())
}

// processEnded tells whether a process has ended, whoever has to reap it.
func processEnded(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	// The other threads of a zombie may still hold its files.
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	return strings.Contains(string(stat), ") Z ") && (err != nil || len(threads) <= 1)
}

// keeps waits until the keeper has so many allocations.
func (s *server) keeps(t testing.TB, n int) {
	t.Helper()
	var got int
	eventually(t, func() bool { _, got = descriptors(t, s.keeper()); return got == n },
		func() []any { return []any{"the keeper has %d descriptors, not %d:\n%s", got, n, s.log} })
}

// finish ends the server in order, and finds what went wrong in it on the way.
func (s *server) finish(t testing.TB) {
	t.Helper()
	if killed := s.gone() && s.cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL; !killed {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	}
	if t.Failed() {
		t.Logf("the server's log:\n%s", s.log.tail())
	}
}

// stop ends the server in order, with no error and no fault on the way.
func (s *server) stop() error {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.done:
	case <-time.After(patience):
		_ = s.cmd.Process.Signal(syscall.SIGQUIT) // for the goroutines
		<-s.done
		return errors.New("the server does not end on SIGTERM")
	}
	if code := s.cmd.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("the server ended with %d", code)
	}
	return s.log.fault()
}

// again is the server after a crash, or a new one with the same sockets.
func (s *server) again(t testing.TB) *server {
	t.Helper()
	if s.gone() {
		return start(t, s.cfg)
	}
	s.ready(t)
	return s
}

// descriptors is how many a process has open, and how many of them are of memory if it
// has no driver, as a keeper: those that every Go program and every server has are not.
func descriptors(t testing.TB, pid int) (all, memory int) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil {
			continue // closed meanwhile
		}
		if !ordinary.MatchString(target) {
			memory++
		}
		all++
	}
	return all, memory
}

// ordinary are descriptors of any server: its sockets, its lock file, and those of the
// Go runtime.
var ordinary = regexp.MustCompile(`^socket:|^pipe:|^anon_inode:\[(event|pidfd)|^pidfd:|^/dev/null$|^/sys/|\.lock$|^/memfd:remuda-gms-layout`)

// logBuffer is what a process wrote.
type logBuffer struct{ proclog.Buffer }

// fault is what a program writes when it is broken.
func (l *logBuffer) fault() error {
	for _, sign := range []string{"panic:", "fatal error:", "DATA RACE"} {
		if _, after, found := strings.Cut(l.String(), sign); found {
			return fmt.Errorf("%s%s", sign, after)
		}
	}
	return nil
}

// tail is the end of it, for a report.
func (l *logBuffer) tail() string {
	s := l.String()
	return s[max(0, len(s)-6000):]
}
