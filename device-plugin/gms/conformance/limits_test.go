package conformance_test

import (
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"remuda/internal/testkit/loopback"
)

// limitDescriptors lets a process have so many more than it has; it returns what
// takes the limit away. The limit is on the numbers of descriptors, of which a process
// takes the lowest that is free.
func limitDescriptors(t testing.TB, pid, more int) (lift func()) {
	t.Helper()
	var old unix.Rlimit
	require.NoError(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &old))
	limit := unix.Rlimit{Max: old.Max}
	for ; more > 0; limit.Cur++ {
		if _, err := os.Lstat(fmt.Sprintf("/proc/%d/fd/%d", pid, limit.Cur)); os.IsNotExist(err) {
			more--
		}
	}
	require.NoError(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &limit, nil))
	return func() { require.NoError(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &old, nil)) }
}

// TestServerAtItsDescriptorLimitServesItsSessionsAndRecovers: nobody new comes in,
// what needs a descriptor fails with an error, the rest is answered, and it does not
// spin. When descriptors are free again, all is as before.
func TestServerAtItsDescriptorLimitServesItsSessionsAndRecovers(t *testing.T) {
	t.Parallel()
	address := loopback.Free(t)
	s := start(t, serverConfig{args: []string{"-metrics", address}})
	commitOne(t, s.kvCache())
	w, r := open(t, s.weights(), writer), open(t, s.kvCache(), reader)
	a := w.allocate(1, "before")
	open(t, s.kvCache(), reader).close()
	becomes(t, s.kvCache(), lockState{State: inReading, Readers: 1, Committed: true})
	const failures = "remuda_gms_accept_failures_total"
	http.DefaultClient.CloseIdleConnections()
	before, began := gauge(t, address, failures), time.Now()
	lift := limitDescriptors(t, s.pid(), 8)
	var crowd []*link
	turnedAway := false
	for range 60 { // connections that the kernel takes and the server cannot
		l := dial(t, s.weights()).post(newMessage("get_runtime_state_request", "x", "stays"))
		crowd = append(crowd, l)
		idle := dial(t, s.weights()) // it stays open
		crowd = append(crowd, idle)
		if got, err := l.receive(time.Second); err != nil {
			require.True(t, timedOut(err) || ended(err), "%v", err)
			turnedAway = true
			break
		} else {
			got.close()
		}
	}
	require.True(t, turnedAway, "the limit was not reached")

	// Its sessions live on.
	for range 3 {
		require.Equal(t, []allocation{a}, w.allocations())
		w.put("key", a, 0, []byte("v"))
		r.alive()
		w.post(newMessage("allocate_request", "size", 1, "tag", "at the limit"))
		if m := w.next(); m.kind() == "allocate_response" {
			w.ask("free_allocation", "allocation_id", str(t, m, "allocation_id"))
		} else {
			requireError(t, m, "allocate")
		}
		w.post(newMessage("export_allocation_request", "allocation_id", a.id))
		got, err := w.receive(patience)
		require.NoError(t, err)
		if got.kind() == "export_allocation_response" {
			require.Len(t, got.fds, 1)
		} else {
			requireError(t, got.message, "export")
			require.Empty(t, got.fds)
		}
		got.close()
	}
	w.silent(500 * time.Millisecond) // for it to spin, if it does
	r.alive()

	// Recovery, first by those that leave, then without the limit.
	for _, l := range crowd {
		l.close()
	}
	becomes(t, s.weights(), lockState{State: inWriting, Writer: true})
	lift()
	tried, took := gauge(t, address, failures)-before, time.Since(began)
	t.Logf("in %v it has tried to accept %v times in vain", took, tried)
	require.Positive(t, tried)
	const sockets, pause = 2, 50 * time.Millisecond // each rests after a failure
	require.LessOrEqual(t, tried, float64(sockets*(took/pause+1)), "it spins while it can accept nobody")
	a2, fd := w.export(a)
	closeFD(fd)
	require.Equal(t, a, a2)
	w.allocate(1, "after")
	w.commit()
	handshake(t, s.weights(), reader, 5000).granted(reader)
	require.Equal(t, lockState{State: inReading, Readers: 1, Committed: true}, stateOf(t, s.weights()))
}

// TestCommitAtTheDescriptorLimitIsRefused: with no descriptor to be had for the keeper,
// neither here nor there. The session goes on.
func TestCommitAtTheDescriptorLimitIsRefused(t *testing.T) {
	t.Parallel()
	s := start(t, serverConfig{})
	w := open(t, s.weights(), writer)
	for i := range 5 {
		w.allocate(int64(i+1), "x")
	}
	lift := limitDescriptors(t, s.pid(), 0)
	w.refused("commit")
	lift()
	lift = limitDescriptors(t, s.keeper(), 2)
	w.refused("commit")
	lift()
	require.False(t, stateOf(t, s.weights()).Committed)
	s.keeps(t, 0)
	require.True(t, truth(t, w.ask("commit"), "success"))
	w.close()
	before := readLayout(t, s.weights())
	s.keeps(t, 5)
	s = s.crash(t)
	require.Equal(t, before, readLayout(t, s.weights()))
}
