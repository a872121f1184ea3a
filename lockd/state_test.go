package lockd_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"remuda/internal/testkit/proclog"
	"remuda/lockd"
	"remuda/lockd/lock"
	"remuda/lockd/wire"
)

// TestStateFileIsNotBelieved: lockd ends with an error that says what to do, and
// serves nobody. It leaves what it found as it is: put right, it goes on where it
// was.
func TestStateFileIsNotBelieved(t *testing.T) {
	t.Parallel()
	overwrite := func(t *testing.T, path string, at int64, text string) {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		require.NoError(t, err)
		_, err = f.WriteAt([]byte(text), at)
		require.NoError(t, errors.Join(err, f.Close()))
	}
	for _, tc := range []struct {
		name   string
		damage func(t *testing.T, path string, old []byte)
		want   string
	}{
		{"truncated", func(t *testing.T, path string, _ []byte) { require.NoError(t, os.Truncate(path, 30)) }, "state file is damaged"},
		{"emptied", func(t *testing.T, path string, _ []byte) { require.NoError(t, os.Truncate(path, 0)) }, "state file has been rolled back"},
		{"deleted", func(t *testing.T, path string, _ []byte) { require.NoError(t, os.Remove(path)) }, "state file has been rolled back"},
		{"corrupted", func(t *testing.T, path string, _ []byte) {
			overwrite(t, path, 38, "#")
			overwrite(t, path, 4<<20+38, "#")
		}, "state file is damaged"},
		{"garbage", func(t *testing.T, path string, _ []byte) {
			require.NoError(t, os.WriteFile(path, bytes.Repeat([]byte{0xa5}, 5<<20), 0o600))
		}, "state file is damaged"},
		{"rolled back", func(t *testing.T, path string, old []byte) { require.NoError(t, os.WriteFile(path, old, 0o600)) }, "state file has been rolled back"},
		{"without its witness", func(t *testing.T, path string, _ []byte) { require.NoError(t, os.Remove(path+".gen")) }, "state file is damaged"},
		{"a directory", func(t *testing.T, path string, _ []byte) {
			require.NoError(t, os.Remove(path))
			require.NoError(t, os.Mkdir(path, 0o700))
		}, "is a directory"},
		{"unreadable", func(t *testing.T, path string, _ []byte) {
			require.NoError(t, os.Rename(path, path+".away"))
			require.NoError(t, os.Symlink(path+".away", path))
		}, "too many levels of symbolic links"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			d := newDaemon(t, func(c *lockd.Config) { c.Times.Reconnect = patience })
			live := d.newKeeper("live", "primary", keeperSettings{})
			require.Equal(t, uint64(1), live.granted().Token)
			a := d.newClient("g", "primary", clientSettings{})
			a.granted()
			old, err := os.ReadFile(d.stateFile())
			require.NoError(t, err)
			a.kill()
			b := d.newClient("g", "shadow", clientSettings{})
			require.Equal(t, uint64(3), b.granted().Token)
			b.kill()
			d.awaitState("g", lock.Free)
			d.kill()
			good := map[string][]byte{}
			for _, path := range []string{d.stateFile(), d.stateFile() + ".gen"} {
				good[path], err = os.ReadFile(path)
				require.NoError(t, err)
			}

			tc.damage(t, d.stateFile(), old)
			for range 2 { // the second start is refused as well
				d.refusesToStart(d.stateFile(), tc.want)
			}
			live.livesOn()

			for path, content := range good {
				require.NoError(t, os.RemoveAll(path))
				require.NoError(t, os.WriteFile(path, content, 0o600))
			}
			d.start()
			require.Equal(t, uint64(4), d.newClient("g", "primary", clientSettings{}).granted().Token)
			d.knows(live, 1)
		})
	}
}

// livesOn makes sure that the holder runs and has not been told of a loss.
func (c *client) livesOn() {
	c.t.Helper()
	require.False(c.t, gone(c.cmd.Process.Pid), "the holder was ended")
	c.silent(0)
}

// knows makes sure that the holder of the group "live" has its lock, and waits until lockd shows it.
func (d *daemon) knows(live *client, token uint64) {
	d.t.Helper()
	st := d.awaitState("live", lock.Held)
	require.Equal(d.t, []any{token, live.cmd.Process.Pid}, []any{st.Token, st.PID})
	live.livesOn()
}

// TestStateDirectory: it is private, and of one node.
func TestStateDirectory(t *testing.T) {
	t.Parallel()
	d := newDaemon(t, func(c *lockd.Config) { c.Times.Reconnect = patience })
	live := d.newKeeper("live", "primary", keeperSettings{})
	live.granted()
	info, err := os.Stat(d.cfg.State)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	d.kill()

	require.NoError(t, os.Chmod(d.cfg.State, 0o770))
	d.refusesToStart("has mode 0770: must be 0700")
	require.NoError(t, os.Chmod(d.cfg.State, 0o700))
	if os.Geteuid() == 0 {
		require.NoError(t, os.Chown(d.cfg.State, 65534, -1))
		d.refusesToStart("belongs to user 65534: must belong to user 0")
		require.NoError(t, os.Chown(d.cfg.State, 0, -1))
	}
	d.cfg.Node = "another"
	d.refusesToStart("the state directory was written by another node", `it has machine ID "`, `this node has "another"`)
	live.livesOn()
	d.cfg.Node = lockd.DefaultConfig().Node
	d.start()
	d.knows(live, 1)
	require.Equal(t, uint64(2), d.newClient("h", "primary", clientSettings{}).granted().Token)
}

// refusesToStart starts lockd, which must end with an error that has these texts.
func (d *daemon) refusesToStart(want ...string) {
	d.t.Helper()
	d.log = &proclog.Buffer{}
	d.launch()
	var exit *exec.ExitError
	require.ErrorAs(d.t, d.wait(), &exit)
	require.Equal(d.t, 1, exit.ExitCode(), d.log.String())
	for _, text := range want {
		require.Contains(d.t, d.log.String(), text)
	}
	require.NotContains(d.t, d.log.String(), "panic")
	require.NotContains(d.t, d.log.String(), "goroutine")
}

// TestStateFileOfAnotherLockd: the second one refuses, and the first one works on.
func TestStateFileOfAnotherLockd(t *testing.T) {
	t.Parallel()
	d := newDaemon(t, nil)
	a := d.newClient("g", "primary", clientSettings{})
	a.granted()
	b := d.newClient("g", "shadow", clientSettings{})
	b.waiting()
	second := makeDaemon(t, func(c *lockd.Config) { c.State = d.cfg.State })
	second.refusesToStart(d.stateFile(), "state file is in use by another lockd")
	_, err := net.Dial("unix", second.cfg.Socket)
	require.Error(t, err)
	a.signal(syscall.SIGKILL)
	require.Equal(t, uint64(2), b.granted().Token)
}

// TestStateFileOnAFullDisk: nobody is granted anything, who holds a lock keeps
// it, and with room again all goes on with new tokens. It needs a file system of
// its own, which only root can mount.
func TestStateFileOnAFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a small file system")
	}
	t.Parallel()
	disk := shortDir(t)
	require.NoError(t, unix.Mount("tmpfs", disk, "tmpfs", 0, "size=64k"))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(disk, unix.MNT_DETACH)) })
	// This process itself holds locks below. It does not come back for them after the
	// restart, and lockd would end it with the window.
	d := newDaemon(t, func(c *lockd.Config) { c.State, c.Times.Reconnect = filepath.Join(disk, "state"), time.Hour })
	first := d.newKeeper("g", "first", keeperSettings{})
	first.granted()
	first.kill()
	a := d.newKeeper("g", "primary", keeperSettings{})
	require.Equal(t, uint64(2), a.granted().Token)
	// Its record is longer than the one of a.
	b := d.newKeeper("g", strings.Repeat("s", wire.MaxName), keeperSettings{})
	b.waiting()

	filler := filepath.Join(disk, "filler")
	f, err := os.Create(filler)
	require.NoError(t, err)
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	require.ErrorIs(t, err, unix.ENOSPC)
	require.NoError(t, f.Close())
	// Records grow into pages that are not there.
	refused := ""
	for i := 0; refused == ""; i++ {
		require.Less(t, i, 200, "the disk is not full")
		group := fmt.Sprintf("%0200d", i)
		if e := dial(t, d).acquire(group, "x", 0); e.Event == wire.Refused {
			require.Equal(t, lock.CodeState, e.Code)
			require.Contains(t, e.Error, "no space left on device")
			refused = group
		}
	}
	require.NotContains(t, d.log.String(), "panic")
	st := d.status("g")
	require.Equal(t, []any{string(lock.Held), uint64(2), a.cmd.Process.Pid}, []any{st.State, st.Token, st.PID})
	// Nobody takes over: who should is refused, and asks again and again.
	a.kill()
	d.awaitState("g", lock.Free)
	b.silent(200 * time.Millisecond)
	// lockd itself can come back, and still grants nothing.
	d.kill()
	d.start()
	b.silent(100 * time.Millisecond)

	require.NoError(t, os.Remove(filler))
	token := b.granted().Token
	require.Greater(t, token, st.Token, "a token that was perhaps written is not used again")
	last := dial(t, d).acquire(refused, "x", 0)
	require.Equal(t, wire.Granted, last.Event)
}

// TestReadOnlyState: lockd does not start, and says why.
func TestReadOnlyState(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a file system")
	}
	t.Parallel()
	disk := shortDir(t)
	require.NoError(t, unix.Mount("tmpfs", disk, "tmpfs", 0, "size=64k"))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(disk, unix.MNT_DETACH)) })
	d := makeDaemon(t, func(c *lockd.Config) { c.State = filepath.Join(disk, "state") })
	require.NoError(t, unix.Mount("", disk, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	d.refusesToStart(d.cfg.State, "read-only file system")
	require.NoError(t, unix.Mount("", disk, "", unix.MS_REMOUNT, ""))
	d.start()
	a := d.newClient("g", "primary", clientSettings{})
	require.Equal(t, uint64(1), a.granted().Token)
	d.kill()
	require.NoError(t, unix.Mount("", disk, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	d.refusesToStart(d.cfg.State, "read-only file system")
	require.False(t, gone(a.cmd.Process.Pid), "nothing is ended for it")
}
