package lockd_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/internal/testkit/proclog"
	"remuda/lockd"
	"remuda/lockd/lock"
	"remuda/lockd/wire"
)

func TestHolderIsKilled(t *testing.T) {
	t.Parallel()
	d := newDaemon(t, nil)
	a := d.newClient("g", "primary", clientSettings{})
	require.Equal(t, uint64(1), a.granted().Token)
	b := d.newClient("g", "shadow", clientSettings{})
	require.Equal(t, 1, b.waiting().Position)
	a.signal(syscall.SIGKILL)
	e := b.granted()
	require.Equal(t, uint64(2), e.Token)
	require.False(t, e.Regranted)
	// The primary comes back and is the next shadow.
	again := d.newClient("g", "primary", clientSettings{})
	require.Equal(t, 1, again.waiting().Position)
	st := d.status("g")
	require.Equal(t, "shadow", st.Holder)
	require.Equal(t, []string{"primary"}, st.Waiters)
	require.Equal(t, b.cmd.Process.Pid, st.PID)
}

// TestAFreeLockIsForgottenOnDisk: without another event that would be written.
func TestAFreeLockIsForgottenOnDisk(t *testing.T) {
	t.Parallel()
	d := newDaemon(t, nil)
	a := d.newClient("g", "primary", clientSettings{})
	require.Equal(t, uint64(1), a.granted().Token)
	a.signal(syscall.SIGKILL)
	require.Eventually(t, func() bool {
		raw, err := os.ReadFile(d.stateFile())
		require.NoError(t, err)
		return bytes.Contains(raw, []byte(`"token":1,"groups":{}`))
	}, patience, 10*time.Millisecond)
}

// TestSurvivorsAreEndedFirst: a dead holder's lock stays shut until all that
// descends from it is gone, however it hides, and whoever holds the connection.
func TestSurvivorsAreEndedFirst(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"child", "daemon", "nameless"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			d := newDaemon(t, nil)
			a := d.newClient("g", "primary", clientSettings{})
			a.granted()
			pid := a.leave(how)
			if how == "nameless" {
				d.looks() // only while its parent lives it is seen whose it is
			}
			b := d.newClient("g", "shadow", clientSettings{})
			b.waiting()
			a.signal(syscall.SIGKILL)
			require.Equal(t, uint64(2), b.granted().Token)
			require.True(t, gone(pid), "process %d of the dead holder lives", pid)
			var end string
			require.Eventually(t, func() (granted bool) {
				_, after, _ := strings.Cut(d.log.String(), "holder is proven gone")
				end, _, granted = strings.Cut(after, "granted")
				return granted
			}, patience, time.Millisecond)
			require.Equal(t, 1, strings.Count(end, "OnEnd: of=g"), "it is told between the proof and the next grant: %s", end)
		})
	}
}

// looks waits until lockd, which is left alone meanwhile, has looked for the holders'
// processes: it does that each second, and reads nothing otherwise.
func (d *daemon) looks() {
	d.t.Helper()
	reads := func() (n int) {
		raw, err := os.ReadFile("/proc/" + strconv.Itoa(d.cmd.Process.Pid) + "/io")
		require.NoError(d.t, err)
		_, err = fmt.Sscanf(string(raw), "rchar: %d", &n)
		require.NoError(d.t, err)
		return n
	}
	before := reads()
	for range 2 { // the first look may have begun before
		require.Eventually(d.t, func() bool { return reads() > before }, patience, 10*time.Millisecond, "lockd does not look")
		time.Sleep(600 * time.Millisecond) // that look is over
		before = reads()
	}
}

// TestNobodyElseIsTouched: neither a sibling nor a restarted engine with the same
// name and group.
func TestNobodyElseIsTouched(t *testing.T) {
	t.Parallel()
	d := newDaemon(t, nil)
	a := d.newClient("g", "primary", clientSettings{})
	a.granted()
	again := d.newClient("g", "primary", clientSettings{})
	again.waiting()
	other := d.newClient("h", "primary", clientSettings{})
	other.granted()
	child := other.leave("daemon")
	a.signal(syscall.SIGKILL)
	require.Equal(t, uint64(3), again.granted().Token)
	require.False(t, gone(child))
	other.silent(100 * time.Millisecond)
}

func TestStoppedHolderIsFenced(t *testing.T) {
	t.Parallel()
	d := newDaemon(t, func(c *lockd.Config) { c.Times.Reconnect = time.Hour })
	a := d.newClient("g", "primary", clientSettings{})
	token := a.granted().Token
	b := d.newClient("g", "shadow", clientSettings{})
	b.waiting()
	a.signal(syscall.SIGSTOP)
	// A holder that hangs keeps its lock as long as its connection stands; here
	// lockd restarts, and it does not come back.
	d.kill()
	d.start()
	b = d.newClient("g", "shadow", clientSettings{})
	b.waiting()
	d.awaitState("g", lock.Reconnecting)
	// With a window that ends.
	d.kill()
	d.cfg.Times.Reconnect = 500 * time.Millisecond
	d.start()
	b = d.newClient("g", "shadow", clientSettings{})
	require.Equal(t, token+1, b.granted().Token)
	require.True(t, gone(a.cmd.Process.Pid), "it was ended before its lock went on")
}

func TestLockdIsKilledWhileTheHolderLives(t *testing.T) {
	t.Parallel()
	d := newDaemon(t, func(c *lockd.Config) { c.Times.Reconnect = time.Hour })
	// This process itself is the holder, so that it can connect anew. (The window is
	// long: lockd would end it otherwise.)
	first := dial(t, d)
	require.Equal(t, uint64(1), first.acquire("g", "primary", 0).Token)
	d.kill()
	require.Equal(t, "end", first.next().Event)
	d.start()
	d.awaitState("g", lock.Reconnecting)
	b := d.newClient("g", "shadow", clientSettings{})
	b.waiting()
	second := dial(t, d)
	require.Equal(t, wire.Event{Event: wire.Granted, Token: 1, Regranted: true}, second.acquire("g", "primary", 1))
	b.silent(50 * time.Millisecond)
	require.Equal(t, string(lock.Held), d.status("g").State)
}

// TestLostGrantIsSentAgain: lockd died between writing the grant down and saying
// so, and the holder asks as if for the first time.
func TestLostGrantIsSentAgain(t *testing.T) {
	t.Parallel()
	d := newDaemon(t, func(c *lockd.Config) { c.Times.Reconnect = time.Hour })
	first := dial(t, d)
	require.Equal(t, uint64(1), first.acquire("g", "primary", 0).Token)
	d.kill()
	d.start()
	second := dial(t, d)
	require.Equal(t, wire.Event{Event: wire.Granted, Token: 1, Regranted: true}, second.acquire("g", "primary", 0))
}

func TestLockdIsKilledWithTheHolder(t *testing.T) {
	t.Parallel()
	d := newDaemon(t, func(c *lockd.Config) { c.Times.Reconnect = time.Hour })
	a := d.newClient("g", "primary", clientSettings{})
	a.granted()
	child := a.leave("daemon")
	d.kill()
	a.kill()
	d.start()
	b := d.newClient("g", "shadow", clientSettings{})
	require.Equal(t, uint64(2), b.granted().Token, "the window of an hour is not waited for: the kernel knows")
	require.True(t, gone(child))
}

func TestImpostors(t *testing.T) {
	t.Parallel()
	d := newDaemon(t, func(c *lockd.Config) { c.Times.Reconnect = time.Hour })
	a := d.newClient("g", "primary", clientSettings{})
	token := a.granted().Token
	e := dial(t, d).acquire("g", "primary", token)
	require.Equal(t, lock.CodeNotHolder, e.Code, "%+v", e)
	e = dial(t, d).acquire("g", "primary", token+7)
	require.Equal(t, lock.CodeStale, e.Code, "%+v", e)
	// Another user cannot even connect; made able to, it is refused.
	require.NoError(t, os.Chmod(d.cfg.Socket, 0o666))
	a.silent(50 * time.Millisecond)
	require.Equal(t, string(lock.Held), d.status("g").State)
}

func TestBadFramesAreRefused(t *testing.T) {
	t.Parallel()
	d := newDaemon(t, nil)
	a := d.newClient("g", "primary", clientSettings{})
	a.granted()
	require.NoError(t, dial(t, d).raw.Close())
	before, since := -1, time.Now() // the holder's watch opens its descriptors after the grant
	require.Eventually(t, func() bool {
		if n := descriptors(t, d.cmd.Process.Pid); n != before {
			before, since = n, time.Now()
		}
		return time.Since(since) > 250*time.Millisecond
	}, patience, 5*time.Millisecond)
	for name, frame := range map[string]string{
		"not JSON":        "hello\n",
		"huge":            `{"op":"acquire","group":"` + string(make([]byte, 8192)) + `"}` + "\n",
		"no group":        `{"op":"acquire","holder":"x"}` + "\n",
		"unknown op":      `{"op":"release","group":"g","holder":"primary"}` + "\n",
		"control letters": `{"op":"acquire","group":"a\u0007b","holder":"x"}` + "\n",
		"twice": `{"op":"acquire","group":"g","holder":"a"}` + "\n" +
			`{"op":"acquire","group":"g","holder":"a"}` + "\n",
	} {
		c := dial(t, d)
		_, err := io.WriteString(c.raw, frame)
		require.NoError(t, err, name)
		e := c.next()
		for e.Event == wire.Granted || e.Event == wire.Waiting {
			e = c.next()
		}
		require.Equal(t, wire.Refused, e.Event, name)
		require.Equal(t, lock.CodeBadRequest, e.Code, name)
		require.Equal(t, "end", c.next().Event, name)
	}
	// Split byte by byte, and coalesced, are fine.
	c := dial(t, d)
	for _, b := range []byte(`{"op":"ping"}` + "\n" + `{"op":"ping"}` + "\n") {
		_, err := c.raw.Write([]byte{b})
		require.NoError(t, err)
	}
	require.Equal(t, wire.Pong, c.next().Event)
	require.Equal(t, wire.Pong, c.next().Event)
	_, err := io.WriteString(c.raw, `{"op":"ping"}`+"\n"+`{"op":"ping"}`+"\n")
	require.NoError(t, err)
	require.Equal(t, wire.Pong, c.next().Event)
	require.Equal(t, wire.Pong, c.next().Event)
	require.NoError(t, c.raw.Close())
	require.Eventually(t, func() bool { return descriptors(t, d.cmd.Process.Pid) <= before }, patience, 5*time.Millisecond, "descriptors leak")
	a.silent(10 * time.Millisecond)
}

func TestSecondLockdIsRefused(t *testing.T) {
	t.Parallel()
	d := newDaemon(t, nil)
	a := d.newClient("g", "primary", clientSettings{})
	a.granted()
	for name, tc := range map[string]struct {
		change func(c *lockd.Config)
		want   string
	}{
		"on the same socket":     {func(c *lockd.Config) { c.State += "2" }, "another program is using the socket"},
		"on the same state file": {func(c *lockd.Config) { c.Socket += "2" }, "in use by another lockd"},
	} {
		second := &daemon{t: t, cfg: d.cfg, log: &proclog.Buffer{}}
		tc.change(&second.cfg)
		second.launch()
		require.Error(t, second.wait(), name)
		require.Contains(t, second.log.String(), tc.want, name)
	}
	a.silent(10 * time.Millisecond)
	require.Equal(t, string(lock.Held), d.status("g").State)
}

// raw is a connection of the test process itself.
type raw struct {
	t   testing.TB
	raw net.Conn
	r   *wire.Reader
}

func dial(t testing.TB, d *daemon) *raw {
	t.Helper()
	c, err := net.Dial("unix", d.cfg.Socket)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	return &raw{t, c, wire.NewReader(c)}
}

func (c *raw) acquire(group, holder string, token uint64) wire.Event {
	c.t.Helper()
	line, err := wire.EncodeRequest(wire.Request{Op: wire.OpAcquire, Group: group, Holder: holder, Token: token})
	require.NoError(c.t, err)
	_, err = c.raw.Write(line)
	require.NoError(c.t, err)
	return c.next()
}

// next is the next event, "end" at the end.
func (c *raw) next() wire.Event {
	c.t.Helper()
	line, err := c.r.Line()
	if err != nil {
		return wire.Event{Event: "end"}
	}
	e, err := wire.DecodeEvent(line)
	require.NoError(c.t, err)
	return e
}

func descriptors(t testing.TB, pid int) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/fd")
	require.NoError(t, err)
	return len(entries)
}
