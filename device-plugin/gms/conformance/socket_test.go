package conformance_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestSocketsAreNamedAfterGPUAndTagAndPrivate(t *testing.T) {
	hostOnly(t, namesGPUs)
	dir := socketDir(t)
	require.NoError(t, os.Chmod(dir, 0o755))
	s := start(t, serverConfig{dir: dir, gpus: 3})
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	sockets := 0
	for _, e := range entries {
		info, err := e.Info()
		require.NoError(t, err)
		if info.Mode()&os.ModeSocket != 0 {
			sockets++
			require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), e.Name())
		}
	}
	require.Equal(t, 1+2*3, sockets, "the node's and two for each GPU: %v", entries)
	for gpu := range 3 {
		w := open(t, filepath.Join(dir, "gms_"+gpuUUID(gpu)+"_weights.sock"), writer)
		w.allocate(1, "x")
		w = open(t, filepath.Join(dir, "gms.sock")+"#"+gpuUUID(gpu)+"#kv_cache", writer)
		w.allocate(1, "x")
	}
	require.Equal(t, inWriting, stateOf(t, s.socket(2, "kv_cache")).State)
}

// TestModeDoesNotDependOnTheUmask.
func TestModeDoesNotDependOnTheUmask(t *testing.T) {
	dir := socketDir(t)
	wrapped := filepath.Join(dir, "wrapped")
	require.NoError(t, os.WriteFile(wrapped, []byte("#!/bin/sh\numask 0\nexec '"+remuda+"' \"$@\"\n"), 0o700))
	s := start(t, serverConfig{dir: dir, binary: wrapped})
	info, err := os.Stat(socketFile(s.weights()))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
}

// TestServerDoesNotBindOverASocketThatAnswers: the second ends, the first goes on.
func TestServerDoesNotBindOverASocketThatAnswers(t *testing.T) {
	t.Parallel()
	s := start(t, serverConfig{gpus: 2})
	w := open(t, s.socket(1, "weights"), writer)
	a := w.allocate(1, "x")
	before, err := os.Stat(socketFile(s.weights()))
	require.NoError(t, err)
	second, err := launch(serverConfig{dir: s.cfg.dir, first: 1}) // one GPU of the first's two
	require.NoError(t, err)
	endsWithAnError(t, second)
	require.Equal(t, []allocation{a}, w.allocations())
	after, err := os.Stat(socketFile(s.weights()))
	require.NoError(t, err)
	require.True(t, os.SameFile(before, after))
	open(t, s.weights(), writer)
	open(t, s.socket(1, "kv_cache"), writer)
}

// TestServerDoesNotBindOverAnotherProgramsLiveSocket: any listener counts.
func TestServerDoesNotBindOverAnotherProgramsLiveSocket(t *testing.T) {
	t.Parallel()
	s := &server{cfg: serverConfig{dir: socketDir(t)}}
	node := socketFile(s.kvCache())
	l, err := net.Listen("unix", node)
	require.NoError(t, err)
	defer l.Close()
	second, err := launch(serverConfig{dir: s.cfg.dir})
	require.NoError(t, err)
	endsWithAnError(t, second)
	_, err = net.Dial("unix", node)
	require.NoError(t, err, "the listener's socket is still there")
	if !onCUDA() { // every tag there is reached through the node's socket
		_, err = net.Dial("unix", s.weights())
		require.Error(t, err, "one program serves all its sockets or none")
	}
}

func endsWithAnError(t testing.TB, s *server) {
	t.Helper()
	select {
	case <-s.done:
	case <-time.After(patience):
		_ = s.cmd.Process.Kill()
		<-s.done
		require.Fail(t, "it goes on", "%s", s.log)
	}
	require.NotZero(t, s.cmd.ProcessState.ExitCode())
	require.NoError(t, s.log.fault())
	require.Contains(t, s.log.String(), ".sock", "it says which socket")
}

func TestServerUnlinksADeadSocket(t *testing.T) {
	s := start(t, serverConfig{})
	resume := pause(t, s.keeper())
	pid := s.pid()
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	eventually(t, func() bool { return processEnded(pid) }, func() []any { return []any{"it lives"} })
	for _, path := range []string{socketFile(s.weights()), socketFile(s.kvCache())} {
		_, err := os.Stat(path)
		require.NoError(t, err, "a crash leaves the socket")
		_, err = net.Dial("unix", path)
		require.ErrorIs(t, err, unix.ECONNREFUSED)
	}
	resume()
	s = s.again(t)
	open(t, s.weights(), writer)
	info, err := os.Stat(socketFile(s.weights()))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
}

// TestOfServersThatStartTogetherOneServes: over dead sockets, where all of them have
// to unlink.
func TestOfServersThatStartTogetherOneServes(t *testing.T) {
	t.Parallel()
	first := start(t, serverConfig{})
	first.lose(t)
	for range 4 {
		var all []*server
		for range 3 {
			s, err := launch(first.cfg)
			require.NoError(t, err)
			t.Cleanup(func() { _ = s.cmd.Process.Kill(); <-s.done })
			all = append(all, s)
		}
		var alive []*server
		eventually(t, func() bool {
			alive = alive[:0]
			for _, s := range all {
				if !s.gone() {
					alive = append(alive, s)
				}
			}
			return len(alive) <= 1
		}, func() []any { return []any{"%d servers of the same sockets", len(alive)} })
		require.Len(t, alive, 1, "nobody serves:\n%s\n%s\n%s", all[0].log, all[1].log, all[2].log)
		alive[0].ready(t)
		alive[0].lose(t)
	}
}

// TestSeveralServersRunOnOneMachine: nothing but the socket directory sets them
// apart, and the GPUs may have the same names.
func TestSeveralServersRunOnOneMachine(t *testing.T) {
	one, two, three := start(t, serverConfig{}), start(t, serverConfig{}), start(t, serverConfig{})
	for _, s := range []*server{one, two, three} {
		open(t, s.weights(), writer).allocate(capacity, "x")
	}
	// Nor does it listen on any port.
	for _, table := range []string{"tcp", "tcp6"} {
		require.Empty(t, listeners(t, one.pid(), table), "%s", table)
	}
}

// listeners are the TCP sockets on which a process listens.
func listeners(t testing.TB, pid int, table string) []string {
	t.Helper()
	own := map[string]bool{}
	dir := filepath.Join("/proc", itoa(pid), "fd")
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		if target, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil {
			if inode, ok := strings.CutPrefix(target, "socket:["); ok {
				own[strings.TrimSuffix(inode, "]")] = true
			}
		}
	}
	require.NotEmpty(t, own, "it has its Unix sockets")
	b, err := os.ReadFile(filepath.Join("/proc", itoa(pid), "net", table))
	require.NoError(t, err)
	var out []string
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 9 && f[3] == "0A" && own[f[9]] {
			out = append(out, f[1])
		}
	}
	return out
}

// TestSocketDirectoryComesFromTheEnvironment: GMS_SOCKET_DIR, or else the system's
// directory for temporary files.
func TestSocketDirectoryComesFromTheEnvironment(t *testing.T) {
	for _, variable := range []string{"GMS_SOCKET_DIR", "TMPDIR"} {
		t.Run(variable, func(t *testing.T) {
			dir := socketDir(t)
			s := start(t, serverConfig{dir: dir, env: []string{variable + "=" + dir}, dirFromEnv: true})
			open(t, s.weights(), writer)
		})
	}
}

// TestGPUsMayBeRepeated.
func TestGPUsMayBeRepeated(t *testing.T) {
	hostOnly(t, namesGPUs)
	dir := socketDir(t)
	cmd := command("", "gms", "-backend", "host", "-socket-dir", dir, "-gpu", gpuUUID(0), "-gpu", gpuUUID(1)+","+gpuUUID(2))
	require.NoError(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	var found []string
	eventually(t, func() bool {
		var err error
		found, err = filepath.Glob(filepath.Join(dir, "gms_*_weights.sock"))
		require.NoError(t, err)
		return len(found) >= 3
	}, func() []any { return []any{"%v", found} })
	for i := range 3 {
		require.Equal(t, filepath.Join(dir, "gms_"+gpuUUID(i)+"_weights.sock"), found[i])
		m := open(t, found[i], writer).ask("allocate", "size", 1)
		require.EqualValues(t, 2*mib, whole(t, m, "aligned_size"), "the granularity of current GPUs")
	}
	require.Len(t, found, 3)
}

// TestServiceWhoseSocketIsTakenAwayStartsAgain: nobody could reach it any more.
func TestServiceWhoseSocketIsTakenAwayStartsAgain(t *testing.T) {
	t.Parallel()
	s := start(t, serverConfig{gpus: 2})
	commitOne(t, s.weights())
	before := readLayout(t, s.weights())
	pid := s.pid()
	require.NoError(t, os.Remove(socketFile(s.socket(1, "weights"))))
	eventually(t, func() bool { return s.pid() != pid }, func() []any { return []any{"it goes on: %s", s.log} })
	s = s.again(t)
	require.Equal(t, before, readLayout(t, s.weights()))
}
