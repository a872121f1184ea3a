package lockd_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"remuda/internal/testkit/long"
	"remuda/internal/testkit/loopback"
	"remuda/internal/testkit/proclog"
	"remuda/lockd"
	"remuda/lockd/lock"
	"remuda/lockd/wire"
)

// TestFaults is what happens to the lock when lockd, a holder or both fail: real
// lockd, real holders with the real client.
func TestFaults(t *testing.T) {
	t.Parallel()
	never := func(c *lockd.Config) { c.Times.Reconnect = time.Hour }

	t.Run("lockd crashes, A is healthy: A goes on, no failover", func(t *testing.T) {
		t.Parallel()
		// Long enough for A to come back on a busy machine.
		d := newDaemon(t, func(c *lockd.Config) { c.Times.Reconnect = 3 * time.Second })
		p, path := newPage(t)
		a := d.newKeeper("g", "primary", keeperSettings{Page: path})
		require.Equal(t, uint64(1), a.granted().Token)
		b := d.newKeeper("g", "shadow", keeperSettings{Page: path})
		b.waiting()
		d.kill()
		d.start()
		require.Equal(t, 1, b.waiting().Position)
		st := d.awaitState("g", lock.Held)
		require.Equal(t, []any{"primary", uint64(1), a.cmd.Process.Pid}, []any{st.Holder, st.Token, st.PID})
		p.awaitMarks(t, 1, 20)
		a.silent(0)
		// Longer than the window: it is over.
		b.silent(d.cfg.Times.Reconnect + 200*time.Millisecond)
		require.Equal(t, uint64(1), d.status("g").Token)
		require.Zero(t, p.overlaps().Load())
	})

	t.Run("lockd crashes, A is dead: B has it at once", func(t *testing.T) {
		t.Parallel()
		d := newDaemon(t, never)
		a := d.newKeeper("g", "primary", keeperSettings{})
		a.granted()
		b := d.newKeeper("g", "shadow", keeperSettings{})
		b.waiting()
		d.kill()
		a.kill()
		d.start()
		require.Equal(t, uint64(2), b.granted().Token, "no window is waited for: the kernel knows")
	})

	t.Run("lockd crashes, A hangs: A is ended after the window, then B has it", func(t *testing.T) {
		t.Parallel()
		d := newDaemon(t, nil)
		a := d.newKeeper("g", "primary", keeperSettings{})
		a.granted()
		b := d.newKeeper("g", "shadow", keeperSettings{})
		b.waiting()
		a.signal(syscall.SIGSTOP)
		d.kill()
		began := time.Now()
		d.start()
		require.Equal(t, uint64(2), b.granted().Token)
		require.GreaterOrEqual(t, time.Since(began), d.cfg.Times.Reconnect)
		require.True(t, gone(a.cmd.Process.Pid), "A is ended first")
	})

	t.Run("both crash: the first to come back has it", func(t *testing.T) {
		t.Parallel()
		d := newDaemon(t, never)
		a := d.newKeeper("g", "primary", keeperSettings{})
		a.granted()
		b := d.newKeeper("g", "shadow", keeperSettings{})
		b.waiting()
		d.kill()
		a.kill()
		b.kill()
		d.start()
		b = d.newKeeper("g", "shadow", keeperSettings{})
		require.Equal(t, uint64(2), b.granted().Token)
		a = d.newKeeper("g", "primary", keeperSettings{})
		require.Equal(t, 1, a.waiting().Position, "a restarted primary is the shadow")
	})
}

// TestFailedWake: an engine whose wake fails ends itself, and the lock goes on to
// the next one, which fails as well; both come back and one of them has the lock.
func TestFailedWake(t *testing.T) {
	t.Parallel()
	d := newDaemon(t, nil)
	a := d.newKeeper("g", "primary", keeperSettings{WakeFails: true})
	require.Equal(t, uint64(1), a.granted().Token)
	b := d.newKeeper("g", "shadow", keeperSettings{WakeFails: true})
	require.Equal(t, uint64(2), b.granted().Token)
	a = d.newKeeper("g", "primary", keeperSettings{})
	require.Equal(t, uint64(3), a.granted().Token)
	b = d.newKeeper("g", "shadow", keeperSettings{})
	require.Equal(t, 1, b.waiting().Position)
}

// TestHolderWithMuchMemory: its memory, a gigabyte in the long form if the machine has
// that to spare, takes the kernel a while, and the grant waits for all of it.
func TestHolderWithMuchMemory(t *testing.T) {
	size := long.Pick(128<<20, 1<<30)
	for size > 16<<20 && available(t) < 3*size {
		size /= 2
	}
	t.Parallel()
	d := newDaemon(t, nil)
	a := d.newClient("g", "primary", clientSettings{first: "memory=" + strconv.Itoa(size)})
	a.granted()
	require.GreaterOrEqual(t, resident(t, a.cmd.Process.Pid), size)
	b := d.newClient("g", "shadow", clientSettings{first: fmt.Sprint("witness=", a.cmd.Process.Pid)})
	b.waiting()
	a.signal(syscall.SIGKILL)
	require.Equal(t, "gone", b.next("witness").Code, "what the next holder saw when it got the grant")
	require.Equal(t, uint64(2), b.granted().Token)
}

func available(t testing.TB) int {
	t.Helper()
	raw, err := os.ReadFile("/proc/meminfo")
	require.NoError(t, err)
	m := regexp.MustCompile(`(?m)^MemAvailable:\s+(\d+) kB`).FindSubmatch(raw)
	require.NotNil(t, m)
	kb, err := strconv.Atoi(string(m[1]))
	require.NoError(t, err)
	return kb << 10
}

// resident is a process's resident size in bytes.
func resident(t testing.TB, pid int) int {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	require.NoError(t, err)
	pages, err := strconv.Atoi(strings.Fields(string(raw))[1])
	require.NoError(t, err)
	return pages * os.Getpagesize()
}

// TestLockdIsKilledBetweenPersistingAndReplying kills lockd as soon as the grant
// can be read in the state file, and at any other moment around the grant. The
// holder that was written down gets that very grant; no token is ever used for
// two holders.
func TestLockdIsKilledBetweenPersistingAndReplying(t *testing.T) {
	t.Parallel()
	d := newDaemon(t, func(c *lockd.Config) { c.Times.Reconnect = time.Hour })
	// Each third round kills lockd at any moment, the others as soon as the grant is written
	// down, which must once be before it is sent: a slow machine may need more of them.
	const rounds, most = 12, 300
	last, written, lost := uint64(0), 0, 0
	for round := 0; round < rounds || lost == 0 && round < most; round++ {
		name := fmt.Sprint("holder-", round)
		k := d.newKeeper("g", name, keeperSettings{})
		recorded := uint64(0)
		if round%3 > 0 {
			recorded = awaitRecord(t, d.stateFile(), name)
			written++
		} else { // a start takes about so long
			time.Sleep(time.Duration(rand.IntN(int(40 * time.Millisecond))))
		}
		d.kill()
		e, told := k.within(wire.Granted, 100*time.Millisecond)
		if recorded != 0 && !told {
			lost++
		}
		d.start()
		if !told {
			e = k.granted()
		}
		token := e.Token
		if recorded != 0 {
			require.Equal(t, recorded, token, "what was written down is granted")
		}
		require.Greater(t, token, last, "a token is used once")
		last = token
		st := d.awaitState("g", lock.Held)
		require.Equal(t, []any{name, token, k.cmd.Process.Pid}, []any{st.Holder, st.Token, st.PID})
		k.kill()
	}
	t.Logf("of %d grants that were written down, %d were not sent", written, lost)
	require.NotZero(t, lost, "lockd was never killed in between")
}

// awaitRecord reads the state file, past lockd and without its lock, until a
// grant of the holder is in one of its two slots, and returns its token.
func awaitRecord(t testing.TB, path, holder string) uint64 {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	want := regexp.MustCompile(`"token":(\d+),"holder":"` + holder + `"`)
	buf := make([]byte, 512)
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		for _, at := range []int64{0, 4 << 20} {
			n, err := f.ReadAt(buf, at)
			if err != nil && !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
			if m := want.FindSubmatch(buf[:n]); m != nil {
				token, err := strconv.ParseUint(string(m[1]), 10, 64)
				require.NoError(t, err)
				return token
			}
		}
	}
	t.Fatalf("no grant of %s is written down", holder)
	return 0
}

// TestStoppedHolderDoesNothingMore: it was fenced while it was stopped. What it
// would do once it runs again it never does, and its token is refused.
func TestStoppedHolderDoesNothingMore(t *testing.T) {
	t.Parallel()
	d := newDaemon(t, nil)
	p, path := newPage(t)
	a := d.newKeeper("g", "primary", keeperSettings{Page: path})
	a.granted()
	p.awaitMarks(t, 1, 20)
	b := d.newKeeper("g", "shadow", keeperSettings{Page: path})
	b.waiting()
	a.signal(syscall.SIGSTOP)
	d.kill()
	d.start()
	require.Equal(t, uint64(2), b.granted().Token)
	before := p.marks(1).Load()
	require.NoError(t, syscall.Kill(a.cmd.Process.Pid, syscall.SIGCONT), "not yet reaped by this test")
	p.awaitMarks(t, 2, 200)
	require.Equal(t, before, p.marks(1).Load(), "it did something")
	require.Zero(t, p.overlaps().Load())
	for name, pretend := range map[string]string{"its own name": "primary", "the new holder's": "shadow"} {
		require.Equal(t, lock.CodeStale, dial(t, d).acquire("g", pretend, 1).Code, name)
	}
	require.Equal(t, uint64(2), d.status("g").Token)
}

// TestHolderRunsAgainAsItIsFenced: SIGCONT comes at about the end of the window.
// Either it comes in time and keeps its lock, or it is ended before the next one
// has it; never both.
func TestHolderRunsAgainAsItIsFenced(t *testing.T) {
	t.Parallel()
	const window = 300 * time.Millisecond
	for i := range 6 {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			d := newDaemon(t, func(c *lockd.Config) { c.Times.Reconnect = window })
			p, path := newPage(t)
			a := d.newKeeper("g", "primary", keeperSettings{Page: path})
			a.granted()
			b := d.newKeeper("g", "shadow", keeperSettings{Page: path})
			b.waiting()
			a.signal(syscall.SIGSTOP)
			d.kill()
			d.start()
			time.Sleep(window - 20*time.Millisecond + time.Duration(rand.IntN(int(30*time.Millisecond))))
			_ = a.cmd.Process.Signal(syscall.SIGCONT)
			st := d.awaitState("g", lock.Held)
			if st.Token == 1 {
				p.awaitMarks(t, 1, 20)
				require.Zero(t, p.marks(2).Load())
			} else {
				require.Equal(t, "shadow", st.Holder)
				require.True(t, gone(a.cmd.Process.Pid))
				p.awaitMarks(t, 2, 20)
			}
			require.Zero(t, p.overlaps().Load())
			t.Logf("SIGCONT came, and token %d holds", st.Token)
		})
	}
}

// TestStoppedRemoteHolderIsRefused: over TCP nobody can end it. Its session ends,
// it learns that as soon as it runs again and ends itself, and its token is
// refused.
func TestStoppedRemoteHolderIsRefused(t *testing.T) {
	t.Parallel()
	d := newDaemon(t, func(c *lockd.Config) {
		c.Listen = loopback.Free(t)
		c.Times.SessionTTL, c.Times.LockDelay = 8*time.Second, 8*time.Second // no session ends because the machine is slow
	})
	set := keeperSettings{Addr: "tcp://" + d.cfg.Listen, SessionTTL: d.cfg.Times.SessionTTL}
	a := d.newKeeper("g", "primary", set)
	a.granted()
	b := d.newKeeper("g", "shadow", set)
	b.waiting()
	stopped := time.Now()
	a.signal(syscall.SIGSTOP)
	require.Equal(t, uint64(2), b.granted().Token)
	// Its last ping may be as old as the TTL on a slow machine.
	require.GreaterOrEqual(t, time.Since(stopped), d.cfg.Times.LockDelay)
	a.signal(syscall.SIGCONT)
	require.Contains(t, a.next("lost").Error, "lost")
	require.Error(t, a.cmd.Wait(), "it ends itself")
	require.Equal(t, lock.CodeStale, dial(t, d).acquire("g", "primary", 1).Code)
}

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

// TestFiftyHoldersOfAKilledLockd are all known again, whatever they are named, and none is
// disturbed.
func TestFiftyHoldersOfAKilledLockd(t *testing.T) {
	t.Parallel()
	d := newDaemon(t, func(c *lockd.Config) { c.Times.Reconnect = 10 * time.Second })
	holders := map[string]*client{}
	tokens := map[string]uint64{}
	for i := range 50 {
		group := fmt.Sprintf("model-%d:v:%d", i%7, i)
		holders[group] = d.newKeeper(group, "primary", keeperSettings{})
		tokens[group] = holders[group].granted().Token
	}
	for range 2 {
		d.kill()
		d.start()
		for group, h := range holders {
			st := d.awaitState(group, lock.Held)
			require.Equal(t, []any{tokens[group], h.cmd.Process.Pid}, []any{st.Token, st.PID}, group)
		}
	}
	require.NotContains(t, d.log.String(), "killing the holder")
	for _, h := range holders {
		h.silent(0)
	}
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

// TestClientOfAnotherUser cannot connect, and where someone has opened the socket
// to all it is refused.
func TestClientOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	t.Parallel()
	d := newDaemon(t, nil)
	a := d.newClient("g", "primary", clientSettings{})
	a.granted()
	dir := filepath.Dir(d.cfg.Socket)
	require.NoError(t, os.Chmod(dir, 0o755))
	exe := filepath.Join(dir, "client") // where that user may go
	if err := os.Link(self(t), exe); err != nil {
		content, err := os.ReadFile(self(t))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(exe, content, 0o755))
	}
	asNobody := func() (*client, *proclog.Buffer) {
		c := d.makeClient("g", "intruder", clientSettings{})
		c.cmd.Path, c.cmd.Dir = exe, "/"
		c.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		log := &proclog.Buffer{}
		c.cmd.Stderr = log
		c.start()
		return c, log
	}
	b, log := asNobody()
	require.Error(t, b.cmd.Wait())
	require.Contains(t, log.String(), "permission denied")

	require.NoError(t, os.Chmod(d.cfg.Socket, 0o666))
	b, _ = asNobody()
	e := <-b.events
	require.Equal(t, []string{wire.Refused, "forbidden"}, []string{e.Event.Event, e.Code}, "%+v", e)
	require.Contains(t, e.Error, "user 65534")
	require.Equal(t, "end", b.next("end").Event.Event)
	a.silent(10 * time.Millisecond)
	st := d.status("g")
	require.Equal(t, []any{"primary", []string{}}, []any{st.Holder, st.Waiters})
}

// TestClientOfAnotherPIDNamespace gets no lock: lockd could not see its death, and it would not
// know that it has a session to renew. It may ask for the status.
func TestClientOfAnotherPIDNamespace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make a PID namespace")
	}
	t.Parallel()
	d := makeDaemon(t, nil)
	d.namespaces = syscall.CLONE_NEWPID
	d.start()
	for _, heartbeat := range []int64{0, 5000} {
		c := dial(t, d)
		line, err := wire.EncodeRequest(wire.Request{Op: wire.OpAcquire, Protocol: wire.Protocol, Group: "g", Holder: "primary", SessionTTL: heartbeat})
		require.NoError(t, err)
		_, err = c.raw.Write(line)
		require.NoError(t, err)
		e := c.next()
		require.Equal(t, []string{wire.Refused, "forbidden"}, []string{e.Event, e.Code}, "%+v", e)
		require.Contains(t, e.Error, "another PID namespace")
		require.Contains(t, e.Error, `pid_mode = "host"`)
		require.Equal(t, "end", c.next().Event)
	}
	require.Equal(t, string(lock.Free), d.status("g").State)
}

// TestTenThousandConnections: as many as the limit are open at once, the others are refused, the
// log stays short, and who holds a lock notices nothing.
func TestTenThousandConnections(t *testing.T) {
	t.Parallel()
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	if limit.Cur < 12_000 {
		limit.Cur = 12_000
		limit.Max = max(limit.Max, limit.Cur)
		require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit), "it needs 12,000 open files")
	}
	d := newDaemon(t, nil)
	a := d.newClient("g", "primary", clientSettings{})
	a.granted()
	before := d.status("g")
	var open []net.Conn
	t.Cleanup(func() {
		for _, c := range open {
			_ = c.Close()
		}
	})
	began := time.Now()
	for range 10_000 {
		c, err := net.Dial("unix", d.cfg.Socket)
		for errors.Is(err, unix.EAGAIN) { // lockd has not accepted those before it
			time.Sleep(time.Millisecond)
			c, err = net.Dial("unix", d.cfg.Socket)
		}
		require.NoError(t, err)
		open = append(open, c)
	}
	refused := 0
	for _, c := range slices.Backward(open) { // the first ones are open, and silent
		require.NoError(t, c.SetReadDeadline(time.Now().Add(patience)))
		line, err := bufio.NewReader(c).ReadString('\n')
		if err == nil && strings.Contains(line, `"busy"`) {
			refused++
		}
	}
	// One that is silent for 10 s makes room for another.
	waves := 1 + int(time.Since(began)/(10*time.Second))
	require.GreaterOrEqual(t, refused, max(1, 10_000-waves*d.cfg.MaxConns))
	require.Less(t, strings.Count(d.log.String(), "\n"), 100)
	for _, c := range open {
		_ = c.Close()
	}
	var after wire.Group
	require.Eventually(t, func() bool { after = d.status("g"); return after.PID == before.PID }, patience, 10*time.Millisecond)
	require.Equal(t, before, after)
	a.silent(0)
}

// TestVersionsOneApart: a client whose protocol is one version newer can hold the lock. If the versions differ by
// more, lockd refuses the client and says which side to upgrade.
func TestVersionsOneApart(t *testing.T) {
	t.Parallel()
	d := newDaemon(t, nil)
	a := d.newClient("g", "primary", clientSettings{protocol: wire.Protocol + 1})
	require.Equal(t, uint64(1), a.granted().Token)
	b := d.newClient("g", "shadow", clientSettings{protocol: wire.Protocol})
	b.waiting()
	a.kill()
	require.Equal(t, uint64(2), b.granted().Token)
	for version, want := range map[int]string{wire.Protocol + 2: "upgrade lockd", -1: "upgrade the client"} {
		e := d.newClient("h", "primary", clientSettings{protocol: version}).next(wire.Refused)
		require.Equal(t, lock.CodeBadRequest, e.Code)
		require.Contains(t, e.Error, want)
	}
	require.Equal(t, "shadow", d.status("g").Holder)
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

// TestLockdsRaceForOneSocket: one of them serves, the others say why they do not.
func TestLockdsRaceForOneSocket(t *testing.T) {
	t.Parallel()
	first := makeDaemon(t, nil)
	all := []*daemon{first}
	for range 4 {
		all = append(all, makeDaemon(t, func(c *lockd.Config) { c.Socket = first.cfg.Socket }))
	}
	ended := make(chan *daemon, len(all))
	for _, d := range all {
		d.launch()
		go func() { <-d.ended; ended <- d }()
	}
	for range len(all) - 1 {
		select {
		case d := <-ended:
			require.Error(t, d.err)
			require.Contains(t, d.log.String(), "another program is using the socket")
		case <-time.After(patience):
			t.Fatal("more than one serves")
		}
	}
	a := first.newClient("g", "primary", clientSettings{})
	require.Equal(t, uint64(1), a.granted().Token)
	require.Empty(t, ended)
}
