package keeper_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"remuda/device-plugin/gms/keeper"
)

const (
	// deadline is far more than anything here takes.
	deadline = time.Minute
	tick     = time.Millisecond
)

// keeperEnv makes this program a keeper at the socket that it names.
const keeperEnv = "REMUDA_TEST_KEEPER"

func TestMain(m *testing.M) {
	if socket := os.Getenv(keeperEnv); socket != "" {
		cfg := keeper.DefaultConfig()
		cfg.Socket = socket
		k, err := keeper.New(cfg)
		if err == nil {
			err = k.Run(context.Background())
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	t.Cleanup(cancel)
	return ctx
}

// start runs a keeper in this process. What change does to its config counts.
func start(t *testing.T, change func(*keeper.Config)) (socket string, stop func()) {
	t.Helper()
	cfg := keeper.DefaultConfig()
	cfg.Socket = filepath.Join(t.TempDir(), "k.sock")
	if change != nil {
		change(&cfg)
	}
	k, err := keeper.New(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			assert.NoError(t, <-done)
		})
	}
	t.Cleanup(stop)
	require.Eventually(t, func() bool { _, err := os.Stat(cfg.Socket); return err == nil }, deadline, tick)
	return cfg.Socket, stop
}

// startProcess runs a keeper in a process of its own.
func startProcess(t *testing.T, socket string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), keeperEnv+"="+socket)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { kill(cmd) })
	return cmd
}

func kill(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

func open(t *testing.T, socket string) *keeper.Client {
	t.Helper()
	c, err := keeper.Open(socket, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// files makes n descriptors, each of a file that holds its number from first on.
func files(t *testing.T, first, n int) []int {
	t.Helper()
	fds := make([]int, n)
	for i := range fds {
		fd, err := unix.MemfdCreate("kept", unix.MFD_CLOEXEC)
		require.NoError(t, err)
		_, err = unix.Pwrite(fd, binary.BigEndian.AppendUint32(nil, uint32(first+i)), 0)
		require.NoError(t, err)
		fds[i] = fd
	}
	return fds
}

func closeAll(t *testing.T, fds []int) {
	t.Helper()
	for _, fd := range fds {
		require.NoError(t, unix.Close(fd))
	}
}

// requireFiles checks what files made, and that exec closes the descriptors.
func requireFiles(t *testing.T, fds []int, first, n int) {
	t.Helper()
	require.Len(t, fds, n)
	for i, fd := range fds {
		buf := make([]byte, 4)
		_, err := unix.Pread(fd, buf, 0)
		require.NoError(t, err)
		require.EqualValues(t, first+i, binary.BigEndian.Uint32(buf), "the order is kept")
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		require.NoError(t, err)
		require.NotZero(t, flags&unix.FD_CLOEXEC)
	}
}

// descriptors counts the memfds of files that a process has open.
func descriptors(t *testing.T, pid int) int {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	list, err := os.ReadDir(dir)
	require.NoError(t, err)
	n := 0
	for _, e := range list {
		if to, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && to == "/memfd:kept (deleted)" {
			n++
		}
	}
	return n
}

// have waits until a process has n of the memfds open.
func have(t *testing.T, pid, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return descriptors(t, pid) == n }, deadline, tick, "memfds: %d, want %d", descriptors(t, pid), n)
}
