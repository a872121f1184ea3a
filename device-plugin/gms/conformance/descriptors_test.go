package conformance_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"remuda/internal/testkit/loopback"
)

// gifts are the write ends of so many pipes, to be sent, and one read end: it is at
// its end once every copy of the write ends is closed.
func gifts(t testing.TB, n int) (fds []int, read int) {
	t.Helper()
	var p [2]int
	require.NoError(t, unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK))
	fds = append(fds, p[1])
	for range n - 1 {
		fd, err := unix.FcntlInt(uintptr(p[1]), unix.F_DUPFD_CLOEXEC, 0)
		require.NoError(t, err)
		fds = append(fds, fd)
	}
	t.Cleanup(func() { closeFD(p[0]) })
	return fds, p[0]
}

// given waits until the server has closed all copies.
func given(t testing.TB, fds []int, read int) {
	t.Helper()
	for _, fd := range fds {
		closeFD(fd)
	}
	eventually(t, func() bool {
		n, err := unix.Read(read, make([]byte, 1))
		return n == 0 && err == nil
	}, func() []any { return []any{"the server keeps descriptors that it was sent"} })
}

// TestDescriptorsThatNobodyAskedForAreClosed: 1, 2 and 50 of them on every message.
// One too many for the server's buffer ends the session (MSG_CTRUNC).
func TestDescriptorsThatNobodyAskedForAreClosed(t *testing.T) {
	s := start(t, serverConfig{})
	commitOne(t, s.kvCache())
	before, _ := descriptors(t, s.pid())
	for _, n := range []int{1, 2, 50} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			for i := range len(requests("")) {
				w := open(t, s.weights(), writer)
				a := w.allocate(1, "x")
				w.put("key", a, 0, []byte("v"))
				q := requests(a.id)[i]
				fds, read := gifts(t, n)
				w.post(newMessage(q.kind+"_request", q.pairs...), fds...)
				got, err := w.receive(patience)
				if n == 1 {
					require.NoError(t, err, "%s with one descriptor", q.kind)
				}
				if err == nil {
					require.Equal(t, q.kind+"_response", got.kind(), "%v", got.message)
					got.close()
				} else {
					require.True(t, ended(err), "%s: %v", q.kind, err)
				}
				given(t, fds, read) // while the session is open
				w.close()
				eventually(t, func() bool { return !stateOf(t, s.weights()).Writer }, func() []any { return []any{"the writer's lock is kept"} })
			}
			for _, m := range []message{
				newMessage("handshake_request", "lock_type", reader, "timeout_ms", 0),
				newMessage("get_runtime_state_request"), newMessage("get_event_history_request"), newMessage("no_such_request"), {"no": "type"},
			} {
				fds, read := gifts(t, n)
				l := dial(t, s.kvCache()).post(m, fds...)
				a, err := l.receive(patience)
				require.True(t, err == nil || ended(err), "%v", err)
				require.Empty(t, a.fds)
				given(t, fds, read)
				l.close()
			}
			becomes(t, s.kvCache(), lockState{State: committed, Committed: true})
			settles(t, s.pid(), before)
		})
	}
}

// TestDescriptorsOnAnyByteAreClosed: in the middle of a frame, in the length, behind
// it, on bytes that are no frame, and on a request that never ends.
func TestDescriptorsOnAnyByteAreClosed(t *testing.T) {
	s := start(t, serverConfig{})
	before, _ := descriptors(t, s.pid())
	body := frame(encode(newMessage("get_allocation_state_request")))
	for _, n := range []int{1, 2, 50, 253} { // the kernel takes no more at once
		for _, at := range []int{1, 3, 4, 10, len(body) - 1} {
			w := open(t, s.weights(), writer)
			fds, read := gifts(t, n)
			require.NoError(t, w.write(body[:at]))
			if err := w.write(body[at:], fds...); err == nil {
				a, err := w.receive(patience)
				require.True(t, err == nil || ended(err), "%v %v", a, err)
			}
			given(t, fds, read)
			w.close()
			becomes(t, s.weights(), lockState{State: empty})
		}
		for _, junk := range [][]byte{{0xff}, {0, 0}, {0, 0, 0, 5, 0x81}, {0, 0, 0, 1, 0xc1}} {
			fds, read := gifts(t, n)
			l := dial(t, s.weights())
			require.NoError(t, l.write(junk, fds...))
			l.close()
			given(t, fds, read)
		}
	}
	settles(t, s.pid(), before)
}

// TestDescriptorsInEveryReadOfAFrameAreClosed: each byte brings one.
func TestDescriptorsInEveryReadOfAFrameAreClosed(t *testing.T) {
	s := start(t, serverConfig{})
	before, _ := descriptors(t, s.pid())
	w := open(t, s.weights(), writer)
	for _, b := range frame(encode(newMessage("get_allocation_state_request"))) {
		fds, read := gifts(t, 1)
		if err := w.write([]byte{b}, fds...); err != nil {
			require.True(t, ended(err), "%v", err)
		}
		given(t, fds, read)
	}
	w.close()
	settles(t, s.pid(), before)
}

// TestConnectionThatIsSentOverItselfStillEnds: a copy of the client's own end, in the
// server's hands, would keep the session open for ever.
func TestConnectionThatIsSentOverItselfStillEnds(t *testing.T) {
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	f, err := w.c.File()
	require.NoError(t, err)
	w.post(newMessage("get_lock_state_request"), int(f.Fd()))
	require.Equal(t, inWriting, readState(t, w.next()).State)
	w.post(newMessage("get_lock_state_request"), int(f.Fd())) // and one that nobody waits for
	f.Close()
	w.close()
	handshake(t, g.weights, writer, 3000).granted(writer)
	g = anotherGPU(t)
	l := dial(t, g.weights) // in a request that is never whole
	f, err = l.c.File()
	require.NoError(t, err)
	require.NoError(t, l.write([]byte{0, 0, 1}, int(f.Fd())))
	f.Close()
	l.close()
	open(t, g.weights, writer)
}

// TestReaderThatNeverReadsItsExportsCostsNoDescriptors: they are made one by one, and
// what is not read is not made.
func TestReaderThatNeverReadsItsExportsCostsNoDescriptors(t *testing.T) {
	s := start(t, serverConfig{})
	a := commitOne(t, s.weights())
	r := open(t, s.weights(), reader)
	_, fd := r.export(a) // the first may make the driver open descriptors of its own
	closeFD(fd)
	before, _ := descriptors(t, s.pid())
	request := frame(encode(newMessage("export_allocation_request", "allocation_id", a.id)))
	most, sent := 0, 0
	for ; sent < 20_000; sent++ {
		if sent%500 == 0 {
			n, _ := descriptors(t, s.pid())
			most = max(most, n-before)
		}
		// Once both sockets are full, the server reads no more.
		raw, err := r.c.SyscallConn()
		require.NoError(t, err)
		var werr error
		require.NoError(t, raw.Write(func(fd uintptr) bool {
			_, werr = unix.Write(int(fd), request)
			return true
		}))
		if werr == unix.EAGAIN {
			break
		}
		require.NoError(t, werr)
	}
	require.Greater(t, sent, 100, "nothing was queued")
	// Others go on, the same layout's readers among them.
	r2 := open(t, s.weights(), reader)
	closeFD(func() int { _, fd := r2.export(a); return fd }())
	r2.close()
	open(t, s.kvCache(), writer).close()
	for range 20 {
		n, _ := descriptors(t, s.pid())
		most = max(most, n-before)
	}
	require.LessOrEqual(t, most, 10, "descriptors of a client that reads none")
	t.Logf("%d exports asked, at most %d descriptors more", sent, most)
	r.close()
	settles(t, s.pid(), before-1) // its connection is gone too
	becomes(t, s.weights(), lockState{State: committed, Committed: true})
}

// TestNothingGrowsOverConnectionsThatComeAndGo: neither descriptors nor goroutines.
func TestNothingGrowsOverConnectionsThatComeAndGo(t *testing.T) {
	address := loopback.Free(t)
	s := start(t, serverConfig{args: []string{"-metrics", address}})
	a := commitOne(t, s.weights())
	cycle := func(t testing.TB, n int) {
		r := open(t, s.weights(), reader)
		_, fd := r.export(a)
		closeFD(fd)
		r.close()
		handshake(t, s.weights(), reader, forever).close()
		handshake(t, s.kvCache(), reader, forever).close()           // leaves while it waits
		dial(t, s.kvCache()).post(newMessage("nonsense")).close()    // leaves without its answer
		require.NoError(t, dial(t, s.kvCache()).write([]byte{0, 1})) // leaves within a frame, when the cycles end
		w := open(t, s.kvCache(), writer)
		x := w.allocate(1, "x")
		if n%2 == 0 {
			_, fd := w.export(x)
			closeFD(fd)
			w.commit()
		}
		w.close()
		open(t, s.kvCache(), writer).close()
		stateOf(t, s.weights())
		history(t, s.weights())
	}
	cycles := func(many int) {
		t.Run(fmt.Sprint(many), func(t *testing.T) {
			for n := range many {
				cycle(t, n)
			}
		})
		becomes(t, s.weights(), lockState{State: committed, Committed: true})
		becomes(t, s.kvCache(), lockState{State: empty})
	}
	cycles(20)
	fds, _ := descriptors(t, s.pid())
	goroutines := gauge(t, address, "go_goroutines")
	cycles(200)
	settles(t, s.pid(), fds+2) // a connection to the metrics may be one of them
	eventually(t, func() bool { return gauge(t, address, "go_goroutines") <= goroutines+4 }, func() []any {
		return []any{"%v goroutines, %v before", gauge(t, address, "go_goroutines"), goroutines}
	})
}
