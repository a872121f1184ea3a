package lockd_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/internal/testkit/long"
	"remuda/lockd"
	"remuda/lockd/wire"
)

// queue starts n waiters behind a holder and returns them in the order in which
// they wait: each is told its place when it comes.
func (d *daemon) queue(group string, n int) []*client {
	d.t.Helper()
	waiters := make([]*client, n)
	places := make([]int, n)
	for i := range n {
		waiters[i] = d.makeClient(group, fmt.Sprint("waiter-", i), clientSettings{})
	}
	next := make(chan int)
	var starting sync.WaitGroup
	for range 6 {
		starting.Go(func() {
			for i := range next {
				waiters[i].start()
				e, ok := <-waiters[i].events
				if ok && e.Event.Event == wire.Waiting {
					places[i] = e.Position
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	starting.Wait()
	ordered := make([]*client, n)
	for i, place := range places {
		require.NotZero(d.t, place, "waiter %d was not told its place", i)
		require.Nil(d.t, ordered[place-1], "place %d is told twice", place)
		ordered[place-1] = waiters[i]
	}
	return ordered
}

// heard tells whether the client was granted the lock, and its token. It is for a
// client that has ended.
func (c *client) heard() (token uint64, ok bool) {
	for e := range c.events {
		if e.Event.Event == wire.Granted {
			token, ok = e.Token, true
		}
	}
	return token, ok
}

// TestWaiterIsKilledAtItsGrant, at every moment around it: the next one is always
// granted, with a larger token.
func TestWaiterIsKilledAtItsGrant(t *testing.T) {
	t.Parallel()
	d := newDaemon(t, func(c *lockd.Config) { c.Times.Reconnect = time.Hour })
	const rounds = 20
	holder := d.newClient("g", "first", clientSettings{})
	holder.granted()
	queue := d.queue("g", 2*rounds+1)
	// The delay follows the time that a takeover takes, so that about half of the
	// kills come too early.
	begin := time.Now()
	holder.signal(syscall.SIGKILL)
	holder, queue = queue[0], queue[1:]
	token := holder.granted().Token
	typical := time.Since(begin)
	early, written, told := 0, 0, 0
	for range rounds {
		victim, next := queue[0], queue[1]
		queue = queue[2:]
		delay := time.Duration(float64(typical) * (.5 + rand.Float64()))
		begin = time.Now()
		holder.signal(syscall.SIGKILL)
		for time.Since(begin) < delay { // a sleep is too coarse
		}
		victim.signal(syscall.SIGKILL)
		got := next.granted().Token
		require.True(t, gone(holder.cmd.Process.Pid), "token %d was granted beside the one before it", got)
		if got != token+1 {
			require.True(t, gone(victim.cmd.Process.Pid), "token %d was granted beside the one before it", got)
		} // else it only waited, and its connection ends before its process
		its, ok := victim.heard()
		switch {
		case got == token+1:
			require.False(t, ok, "token %d was granted twice", got)
			early++
			typical = (typical + time.Since(begin)) / 2 // one takeover
		case ok:
			require.Equal(t, token+1, its)
			require.Equal(t, token+2, got)
			told++
			typical -= typical / 5
		default:
			require.Equal(t, token+2, got)
			written++
			typical -= typical / 5
		}
		holder, token = next, got
	}
	t.Logf("killed before the grant %d times, between the grant and its arrival %d times, after it %d times", early, written, told)
	require.NotZero(t, early)
	require.NotZero(t, written+told)
}

// TestFiveHundredWaiters: with kills among them at random, the survivors are
// served in the order in which they came, nobody is forgotten, and lockd keeps
// nothing of the dead.
func TestFiveHundredWaiters(t *testing.T) {
	n := long.Pick(50, 500)
	t.Parallel()
	d := newDaemon(t, func(c *lockd.Config) { c.Times.Reconnect = time.Hour })
	warm := d.newClient("g", "warm", clientSettings{})
	warm.granted()
	warm.kill()
	holder := d.newClient("g", "first", clientSettings{})
	token := holder.granted().Token
	before := descriptors(t, d.cmd.Process.Pid)
	queue := d.queue("g", n)
	require.Equal(t, n, d.status("g").Waiting)

	// More than nine of ten die as waiters, some of them as the lock comes to them. (With
	// more grants the test takes long: each tells every waiter its new place.)
	served, killed := 0, 0
	survivor := make(map[*client]bool, n)
	for _, c := range queue {
		survivor[c] = true
	}
	kill := func(c *client) {
		if survivor[c] {
			survivor[c] = false
			killed++
			c.signal(syscall.SIGKILL)
		}
	}
	for len(queue) > 0 {
		holder.signal(syscall.SIGKILL)
		for range max(1, n/40) {
			kill(queue[rand.IntN(len(queue))])
		}
		if rand.IntN(2) == 0 {
			time.Sleep(time.Duration(rand.IntN(int(10 * time.Millisecond))))
			kill(queue[0])
		}
		at := slices.IndexFunc(queue, func(c *client) bool { return survivor[c] })
		if at < 0 {
			break
		}
		holder = queue[at]
		got := holder.granted().Token
		require.Greater(t, got, token)
		require.LessOrEqual(t, got, token+1+uint64(at), "more tokens than waiters who may have had one")
		// Nobody behind has it: one grant, and its order is the queue's.
		st := d.status("g")
		require.Equal(t, []any{got, holder.cmd.Process.Pid}, []any{st.Token, st.PID})
		token, queue = got, queue[at+1:]
		served++
	}
	holder.signal(syscall.SIGKILL)
	t.Logf("%d waiters were served, %d were killed", served, killed)
	require.Equal(t, n, served+killed)
	last := d.newClient("g", "last", clientSettings{})
	require.Greater(t, last.granted().Token, token)
	last.kill()
	require.Eventually(t, func() bool { return d.status("g").State == "free" }, patience, time.Millisecond)
	require.Eventually(t, func() bool { return descriptors(t, d.cmd.Process.Pid) <= before }, patience, 5*time.Millisecond, "descriptors leak")
}
