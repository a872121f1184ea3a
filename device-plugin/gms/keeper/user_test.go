package keeper_test

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"remuda/device-plugin/gms/keeper"
)

// asNobody runs f on a thread of another user, which ends with it.
func asNobody(t *testing.T, f func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can be somebody else")
	}
	done := make(chan bool, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread is not used again
		const nobody = 65534
		// The system call itself changes this thread only.
		_, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody)
		if errno == 0 {
			f()
		}
		done <- errno == 0
	}()
	require.True(t, <-done)
}

func TestOtherUsersAreNotServed(t *testing.T) {
	socket, _ := start(t, nil)
	require.NoError(t, open(t, socket).Save(testContext(t), "r", []byte("secret"), nil))
	dial := func() (n int, connected error) {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if !assert.NoError(t, err) {
			return 0, err
		}
		defer unix.Close(fd)
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: int64(deadline / time.Second)}); !assert.NoError(t, err) {
			return 0, err
		}
		if err := unix.Connect(fd, &unix.SockaddrUnix{Name: socket}); err != nil {
			return 0, err
		}
		n, err = unix.Read(fd, make([]byte, 100))
		assert.NotErrorIs(t, err, unix.EAGAIN, "it is cut off")
		return n, nil
	}
	require.NoError(t, os.Chmod(filepath.Dir(socket), 0o755))
	require.NoError(t, os.Chmod(filepath.Dir(filepath.Dir(socket)), 0o755))
	asNobody(t, func() {
		_, err := dial()
		assert.ErrorIs(t, err, unix.EACCES, "the socket's mode keeps others out")
	})
	// And where somebody has changed the mode, the keeper looks who it is.
	require.NoError(t, os.Chmod(socket, 0o666))
	asNobody(t, func() {
		n, err := dial()
		assert.NoError(t, err)
		assert.LessOrEqual(t, n, 0, "not even a greeting")
	})
}

// A keeper of another user could be anybody's: nothing is handed to it.
func TestAClientTrustsItsOwnUserOnly(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "k.sock")
	asNobody(t, func() {}) // skips where it cannot be tried
	// The socket is made by root, and its credentials are those of whom listens.
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, unix.Bind(fd, &unix.SockaddrUnix{Name: socket}))
	asNobody(t, func() { assert.NoError(t, unix.Listen(fd, 10)) })
	c, err := keeper.Open(socket, nil)
	require.NoError(t, err)
	defer c.Close()
	ctx := testContext(t)
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	require.ErrorContains(t, c.Save(short, "r", nil, nil), "is of user 65534")
}
