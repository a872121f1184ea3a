package unixsock_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"remuda/internal/unixsock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shortPath is in a directory whose name fits into a socket's address.
func shortPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "socket")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "s.sock")
}

func listen(t *testing.T, network, path string) *unixsock.Claim {
	t.Helper()
	c, err := unixsock.Take(t.Context(), network, path)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	_, err = c.Listen()
	require.NoError(t, err)
	return c
}

// connects tells whether somebody listens.
func connects(network, path string) bool {
	c, err := net.Dial(network, path)
	if err == nil {
		_ = c.Close()
	}
	return err == nil
}

func TestASocketIsPrivateAndGoesWithItsClaim(t *testing.T) {
	for _, network := range []string{"unix", "unixpacket"} {
		path := shortPath(t)
		c := listen(t, network, path)
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, os.ModeSocket|0o600, info.Mode())
		require.True(t, connects(network, path))
		c.Stop()
		require.NoFileExists(t, path)
		_, err = unixsock.Take(t.Context(), network, path)
		require.ErrorIs(t, err, unixsock.ErrInUse, "it is claimed until Close")
		require.NoError(t, c.Close())
		listen(t, network, path)
	}
}

func TestALiveSocketIsNotTaken(t *testing.T) {
	for _, of := range []string{"unix", "unixpacket"} {
		for _, network := range []string{"unix", "unixpacket"} {
			path := shortPath(t)
			l, err := net.Listen(of, path)
			require.NoError(t, err)
			_, err = unixsock.Take(t.Context(), network, path)
			require.ErrorIs(t, err, unixsock.ErrInUse)
			require.ErrorContains(t, err, path)
			require.True(t, connects(of, path), "it was not harmed")
			require.NoError(t, l.Close())
		}
	}
	file := shortPath(t)
	require.NoError(t, os.WriteFile(file, []byte("precious"), 0o600))
	_, err := unixsock.Take(t.Context(), "unix", file)
	require.ErrorContains(t, err, "a file that is not a socket")
	require.FileExists(t, file)
}

// A program that was killed a moment ago is waited for, but not by a program that ends.
func TestTakeWaitsAMoment(t *testing.T) {
	path := shortPath(t)
	synctest.Test(t, func(t *testing.T) {
		c := listen(t, "unix", path)
		began := time.Now()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := unixsock.Take(ended, "unix", path)
		require.ErrorIs(t, err, unixsock.ErrInUse)
		require.Zero(t, time.Since(began))
		closed := make(chan struct{})
		time.AfterFunc(200*time.Millisecond, func() { _ = c.Close(); close(closed) })
		listen(t, "unix", path)
		<-closed
		require.GreaterOrEqual(t, time.Since(began), 200*time.Millisecond)
	})
}

func TestADeadSocketIsReplaced(t *testing.T) {
	path := shortPath(t)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
	listen(t, "unix", path)
	require.True(t, connects("unix", path))
}

// Somebody has emptied the directory, and another program serves there now: the
// first one is told, and leaves the other's socket alone when it ends.
func TestAnotherProgramsSocketIsLeftAlone(t *testing.T) {
	path := shortPath(t)
	first := listen(t, "unix", path)
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.Remove(path+".lock"))
	second := listen(t, "unix", path)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.ErrorContains(t, first.Watch(ctx), "was removed or replaced")
	require.NoError(t, first.Close())
	require.True(t, connects("unix", path))
	require.NoError(t, second.Close())
	require.NoFileExists(t, path)
}

func TestWatchEndsWithItsContext(t *testing.T) {
	c := listen(t, "unix", shortPath(t))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, c.Watch(ctx))
}

func TestAPathThatCannotBeServed(t *testing.T) {
	_, err := unixsock.Take(t.Context(), "unix", filepath.Join(t.TempDir(), "missing", "s"))
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = unixsock.Take(t.Context(), "unix", filepath.Join(t.TempDir(), strings.Repeat("x", unixsock.MaxPath)))
	require.ErrorContains(t, err, "must be at most")

	// The longest path works, and nothing is left beside it.
	dir := filepath.Dir(shortPath(t))
	path := filepath.Join(dir, strings.Repeat("x", unixsock.MaxPath-len(dir)-1))
	c := listen(t, "unix", path)
	require.True(t, connects("unix", path))
	require.NoError(t, c.Close())
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1, "the lock file: %v", left)

	taken := shortPath(t)
	c, err = unixsock.Take(t.Context(), "unix", taken)
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(taken, 0o700))
	_, err = c.Listen()
	require.ErrorContains(t, err, taken)
	require.NoError(t, c.Close())
	left, err = os.ReadDir(filepath.Dir(taken))
	require.NoError(t, err)
	require.Len(t, left, 2, "the lock file and the directory: %v", left)
}

// Who sees a socket can connect: nobody has to try twice.
func TestASocketThatIsThereIsServed(t *testing.T) {
	for range 200 {
		path := shortPath(t)
		seen := make(chan error, 1)
		go func() {
			for {
				if _, err := os.Lstat(path); err == nil {
					c, err := net.Dial("unix", path)
					if err == nil {
						_ = c.Close()
					}
					seen <- err
					return
				}
			}
		}()
		listen(t, "unix", path)
		require.NoError(t, <-seen)
	}
}
