package conformance_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// script is a writer's life, request by request. The id is of its first allocation.
func script(id string) []message {
	return []message{
		newMessage("handshake_request", "lock_type", writer, "timeout_ms", nil),
		newMessage("allocate_request", "size", 100, "tag", "x"),
		newMessage("allocate_request", "size", 200, "tag", "y"),
		newMessage("export_allocation_request", "allocation_id", id),
		newMessage("metadata_put_request", "key", "a", "allocation_id", id, "offset_bytes", 1, "value", []byte("v")),
		newMessage("metadata_put_request", "key", "b", "allocation_id", id, "offset_bytes", 2, "value", []byte("w")),
		newMessage("get_allocation_request", "allocation_id", id),
		newMessage("list_allocations_request", "tag", nil),
		newMessage("metadata_get_request", "key", "a"),
		newMessage("metadata_list_request", "prefix", ""),
		newMessage("metadata_delete_request", "key", "b"),
		newMessage("get_memory_layout_hash_request"),
		newMessage("get_lock_state_request"),
		newMessage("get_allocation_state_request"),
		newMessage("allocate_request", "size", 300, "tag", "z"),
		newMessage("free_allocation_request", "allocation_id", id),
		newMessage("commit_request"),
	}
}

// TestWriterKilledAtEveryRequestBoundaryIsAnAbort: after the answer, before the
// answer, and within the request. Only a commit that was sent whole is one.
func TestWriterKilledAtEveryRequestBoundaryIsAnAbort(t *testing.T) {
	steps := len(script(""))
	for _, when := range []string{"answered", "sent", "half sent"} {
		t.Run(when, func(t *testing.T) {
			g := freshGPU(t)
			aborts, commits := 0, 0
			for last := range steps {
				isCommit := last == steps-1 && when != "half sent"
				writerDiesAt(t, g.weights, last, when)
				if isCommit {
					becomes(t, g.weights, lockState{State: committed, Committed: true})
					r := open(t, g.weights, reader)
					require.Len(t, r.allocations(), 2)
					require.Empty(t, r.keys(""))
					r.close()
					commits++
				} else {
					becomes(t, g.weights, lockState{State: empty})
				}
				// The next writer finds nothing, and all of the GPU.
				w := handshake(t, g.weights, writer, 5000)
				w.granted(writer)
				require.Empty(t, w.allocations())
				require.Empty(t, w.keys(""))
				w.allocate(capacity, "all")
				w.close()
				becomes(t, g.weights, lockState{State: empty})
				aborts++
			}
			require.Equal(t, steps, aborts)
			require.Equal(t, when != "half sent", commits == 1)
		})
	}
}

// writerDiesAt runs the script up to a request in a process that is killed there.
func writerDiesAt(t testing.TB, path string, last int, when string) {
	t.Helper()
	c := newClient(t)
	defer c.kill()
	c.dial("w", path)
	id := ""
	for i := range last + 1 {
		m := script(id)[i]
		b := frame(encode(m))
		if i == last && when == "half sent" {
			b = b[:len(b)/2]
		}
		c.order(newMessage("send", "name", "w", "bytes", b))
		if i == last && when != "answered" {
			return
		}
		got, _ := c.receive("w")
		require.NotEqual(t, "error_response", got.kind(), "%v: %v", m["type"], got)
		if id == "" && got.kind() == "allocate_response" {
			id = str(t, got, "allocation_id")
		}
	}
}

// TestReaderThatIsKilledLetsTheWriterIn: mapped or not.
func TestReaderThatIsKilledLetsTheWriterIn(t *testing.T) {
	g := freshGPU(t)
	a := commitOne(t, g.weights)
	one, two := newClient(t), newClient(t)
	one.open("r", g.weights, reader)
	two.open("r", g.weights, reader)
	two.mapOf("r", a)
	w := handshake(t, g.weights, writer, forever)
	waiting(t, g.weights, 1)
	one.kill()
	becomes(t, g.weights, lockState{State: inReading, Readers: 1, Waiting: 1, Committed: true})
	two.kill()
	w.granted(writer)
}

// TestWriterThatIsStoppedKeepsTheLock: others wait with their own timeouts, its state
// is seen, and when it runs again nothing has happened to it.
func TestWriterThatIsStoppedKeepsTheLock(t *testing.T) {
	g := freshGPU(t)
	c := newClient(t)
	require.Equal(t, writer, c.open("w", g.weights, writer))
	a := c.allocate("w", 10, "x")
	resume := pause(t, c.pid())
	for _, lock := range []string{writer, reader, auto} {
		began := time.Now()
		handshake(t, g.weights, lock, 100).denied("timeout")
		require.GreaterOrEqual(t, time.Since(began), 95*time.Millisecond)
		handshake(t, g.weights, lock, oneTry).denied("timeout")
	}
	r := handshake(t, g.weights, reader, forever)
	r.silent(briefly)
	s, n, _ := runtimeState(t, g.weights)
	require.Equal(t, lockState{State: inWriting, Writer: true}, s)
	require.EqualValues(t, 1, n)
	require.Equal(t, []event{{"rw_connected", 0}}, history(t, g.weights))
	resume()
	b := c.allocate("w", 20, "y")
	require.True(t, truth(t, c.ask("w", "commit"), "success"))
	r.granted(reader)
	require.Equal(t, []allocation{a, b}, r.allocations())
}

// TestStoppedWriterThatIsKilledIsAnAbort.
func TestStoppedWriterThatIsKilledIsAnAbort(t *testing.T) {
	g := freshGPU(t)
	c := newClient(t)
	c.open("w", g.weights, writer)
	c.allocate("w", 10, "x")
	pause(t, c.pid())
	w := handshake(t, g.weights, writer, forever)
	waiting(t, g.weights, 1)
	c.kill()
	w.granted(writer)
	require.Empty(t, w.allocations())
}

// TestStoppedReaderWithFullSocketsHoldsUpOnlyTheWriter.
func TestStoppedReaderWithFullSocketsHoldsUpOnlyTheWriter(t *testing.T) {
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	a := w.allocate(1, "x")
	w.put("big", a, 0, make([]byte, 900_000))
	w.commit()
	c := newClient(t)
	c.open("r", g.weights, reader)
	for range 3 { // the answers do not fit into the sockets
		c.send("r", newMessage("metadata_get_request", "key", "big"))
	}
	pause(t, c.pid())
	for range 5 {
		r := open(t, g.weights, reader)
		e, _ := r.get("big")
		require.Len(t, e.value, 900_000)
		r.close()
	}
	next := handshake(t, g.weights, writer, forever)
	waiting(t, g.weights, 1)
	next.silent(briefly)
	c.kill()
	next.granted(writer)
}

// TestFourGPUsAndAPrimaryThatCrashesAfterTwoCommits: the primary asks
// for auto everywhere, the shadow only ever reads. What is committed stays, what is
// not is loaded again, and the shadow waits through it all.
func TestFourGPUsAndAPrimaryThatCrashesAfterTwoCommits(t *testing.T) {
	const n = 4
	var paths [n]string
	g := freshGPU(t)
	for i := range paths {
		paths[i] = g.weights
		g = anotherGPU(t)
	}
	name := func(i int) string { return fmt.Sprint("gpu", i) }
	primary, shadow := newClient(t), newClient(t)
	for i, p := range paths { // at the same time, in opposite orders
		require.Equal(t, writer, primary.open(name(i), p, auto))
		j := n - 1 - i
		shadow.dial(name(j), paths[j])
		shadow.send(name(j), newMessage("handshake_request", "lock_type", reader, "timeout_ms", nil))
	}
	var made [n]allocation
	for i := range paths {
		made[i] = primary.allocate(name(i), int64(i+1), "weights")
		primary.mapOf(name(i), made[i])
		primary.fill(made[i], int64(i))
	}
	for i := range 2 {
		require.True(t, truth(t, primary.ask(name(i), "commit"), "success"))
	}
	primary.kill()

	for i, p := range paths {
		if i < 2 {
			m, _ := shadow.receive(name(i))
			require.Equal(t, reader, str(t, m, "granted_lock_type"))
			shadow.mapOf(name(i), made[i])
			shadow.verify(made[i], int64(i))
			becomes(t, p, lockState{State: inReading, Readers: 1, Committed: true})
		} else {
			becomes(t, p, lockState{State: empty})
			shadow.nothingYet(name(i))
		}
	}
	primary = newClient(t) // restarts: only the lost work is done again
	for i, p := range paths {
		want := reader
		if i >= 2 {
			want = writer
		}
		require.Equal(t, want, primary.open(name(i), p, auto))
	}
	for i := 2; i < n; i++ {
		a := primary.allocate(name(i), int64(i+1), "weights")
		primary.mapOf(name(i), a)
		primary.fill(a, int64(i))
		require.True(t, truth(t, primary.ask(name(i), "commit"), "success"))
		m, _ := shadow.receive(name(i))
		require.Equal(t, reader, str(t, m, "granted_lock_type"))
		shadow.mapOf(name(i), a)
		shadow.verify(a, int64(i))
	}
	for i := range paths {
		require.Len(t, str(t, shadow.ask(name(i), "get_memory_layout_hash"), "memory_layout_hash"), 64)
	}
}

// TestCrossAcquiredGPUsEndInTimeoutsOrACrashAndNeverHang: two engines that both ask
// for auto have two GPUs each and wait for the other's. That is a deadlock of theirs;
// the server answers at their timeouts, and the crash of one sets the other free.
func TestCrossAcquiredGPUsEndInTimeoutsOrACrashAndNeverHang(t *testing.T) {
	const n = 4
	var paths [n]string
	g := freshGPU(t)
	for i := range paths {
		paths[i] = g.weights
		g = anotherGPU(t)
	}
	name := func(i int) string { return fmt.Sprint("gpu", i) }
	engines := [2]*client{newClient(t), newClient(t)}
	for i, p := range paths {
		require.Equal(t, writer, engines[i%2].open(name(i), p, auto))
		engines[i%2].allocate(name(i), 1, "x")
	}
	for i, p := range paths { // with a deadline
		other := engines[1-i%2]
		other.dial("try", p)
		m := other.ask("try", "handshake", "lock_type", auto, "timeout_ms", 60)
		require.False(t, truth(t, m, "success"))
	}
	for i, p := range paths { // without
		other := engines[1-i%2]
		other.dial(name(i), p)
		other.send(name(i), newMessage("handshake_request", "lock_type", auto, "timeout_ms", nil))
	}
	engines[1].nothingYet(name(0))
	for i := 0; i < n; i += 2 {
		require.True(t, truth(t, engines[0].ask(name(i), "commit"), "success"))
	}
	engines[0].kill() // after two commits, while it waits for the other two
	for i := range paths {
		if i%2 == 0 {
			m, _ := engines[1].receive(name(i))
			require.Equal(t, reader, str(t, m, "granted_lock_type"))
		} else {
			require.True(t, truth(t, engines[1].ask(name(i), "commit"), "success"))
		}
	}
	again := newClient(t)
	for i, p := range paths {
		require.Equal(t, reader, again.open(name(i), p, auto))
	}
}
