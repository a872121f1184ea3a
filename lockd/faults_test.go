package lockd_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
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
