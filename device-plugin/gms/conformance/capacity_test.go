package conformance_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"remuda/internal/testkit/loopback"
)

func TestWholeCapacityCanBeAllocated(t *testing.T) {
	hostOnly(t, needsSmallGPU)
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	for range capacity / granularity {
		w.allocate(1, "in pieces")
	}
	require.Zero(t, oomEvents(t, g.weights))
	w.close()
	w = open(t, g.weights, writer)
	w.allocate(capacity, "in one")
}

// TestTagsShareTheirGPUsMemoryAndGPUsDoNot.
func TestTagsShareTheirGPUsMemoryAndGPUsDoNot(t *testing.T) {
	hostOnly(t, needsSmallGPU)
	g, other := freshGPU(t), anotherGPU(t)
	w, k := open(t, g.weights, writer), open(t, g.kvCache, writer)
	a := w.allocate(capacity, "x")
	open(t, other.weights, writer).allocate(capacity, "x")
	k.post(newMessage("allocate_request", "size", granularity))
	eventually(t, func() bool { return oomEvents(t, g.kvCache) > 0 }, func() []any { return []any{"no allocation_oom"} })
	k.silent(3 * oomRetry)
	require.Zero(t, oomEvents(t, g.weights))
	w.free(a)
	require.Equal(t, "allocate_response", k.next().kind())
}

func oomEvents(t testing.TB, path string) int {
	t.Helper()
	n := 0
	for _, e := range history(t, path) {
		if e.Kind == "allocation_oom" {
			n++
		}
	}
	return n
}

// TestAllocationThatHasNoRoomIsRetriedAndLeavesAnEvent: the event counts what the
// layout holds then.
func TestAllocationThatHasNoRoomIsRetriedAndLeavesAnEvent(t *testing.T) {
	hostOnly(t, needsSmallGPU)
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	hog := w.allocate(capacity/2, "x")
	k := open(t, g.kvCache, writer)
	k.allocate(granularity, "a")
	k.allocate(granularity, "b")
	k.post(newMessage("allocate_request", "size", capacity/2, "tag", "big"))
	eventually(t, func() bool { return oomEvents(t, g.kvCache) > 0 }, func() []any { return []any{"no allocation_oom"} })
	events := history(t, g.kvCache)
	require.Equal(t, event{"allocation_oom", 2}, events[len(events)-1])
	_, n, _ := runtimeState(t, g.kvCache)
	require.EqualValues(t, 2, n, "what has no memory yet is not counted")
	k.silent(3 * oomRetry)
	// Nobody else waits for it: the other tag's requests, and state.
	w.alive()
	w.free(hog)
	m := k.next()
	require.Equal(t, "allocate_response", m.kind(), "%v", m)
	require.EqualValues(t, 2, whole(t, m, "layout_slot"))
	require.Len(t, k.allocations(), 3)
}

// TestOutOfMemoryEndsAtItsLimit: an error then, nothing changed.
func TestOutOfMemoryEndsAtItsLimit(t *testing.T) {
	hostOnly(t, needsSmallGPU)
	s := start(t, serverConfig{args: []string{"-oom-limit", "300ms"}})
	w := open(t, s.weights(), writer)
	a := w.allocate(capacity, "x")
	began := time.Now()
	w.post(newMessage("allocate_request", "size", 1))
	requireError(t, w.next(), "allocate")
	require.GreaterOrEqual(t, time.Since(began), 200*time.Millisecond, "it is retried until the limit")
	require.Equal(t, []allocation{a}, w.allocations())
	w.free(a)
	require.EqualValues(t, 1, w.allocate(1, "x").slot)
}

// TestMemoryCountsUntilItsLastHolderLetsGo: an allocation that is freed is still there
// for whoever has its descriptor or maps it.
func TestMemoryCountsUntilItsLastHolderLetsGo(t *testing.T) {
	hostOnly(t, needsSmallGPU)
	s := start(t, serverConfig{args: []string{"-oom-limit", "100ms"}})
	for name, hold := range map[string]func(fd int, size int64) (letGo func()){
		"descriptor": func(fd int, _ int64) func() { return func() { closeFD(fd) } },
		"mapping": func(fd int, size int64) func() {
			mem, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
			require.NoError(t, err)
			closeFD(fd)
			return func() { _ = unix.Munmap(mem) }
		},
	} {
		for _, ended := range []string{"freed", "aborted", "cleared"} {
			t.Run(name+" "+ended, func(t *testing.T) {
				w := open(t, s.weights(), writer)
				a := w.allocate(capacity, "x")
				_, fd := w.export(a)
				letGo := hold(fd, a.aligned)
				switch ended {
				case "freed":
					w.free(a)
					require.Empty(t, w.allocations())
				case "aborted":
					w.close()
					w = open(t, s.weights(), writer)
				case "cleared":
					w.commit()
					w = open(t, s.weights(), writer)
				}
				w.refused("allocate", "size", 1)
				w.refused("allocate", "size", capacity)
				letGo()
				// Its memory is free now, within the retries.
				b := w.allocate(capacity, "x")
				require.NotEqual(t, a.id, b.id)
				w.close()
				becomes(t, s.weights(), lockState{State: empty})
			})
		}
	}
}

// TestDescriptorThatNobodyReadHoldsItsMemoryOnlyAsLongAsItsSocket: the client dies
// with the answer unread.
func TestDescriptorThatNobodyReadHoldsItsMemoryOnlyAsLongAsItsSocket(t *testing.T) {
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	a := w.allocate(capacity, "x")
	w.post(newMessage("export_allocation_request", "allocation_id", a.id))
	eventually(t, func() bool { return queued(t, w) > 0 }, func() []any { return []any{"no answer"} })
	w.close()
	open(t, g.weights, writer).allocate(capacity, "y")
}

// queued is how many bytes wait to be read.
func queued(t testing.TB, l *link) int {
	t.Helper()
	raw, err := l.c.SyscallConn()
	require.NoError(t, err)
	var n int
	require.NoError(t, raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }))
	require.NoError(t, err)
	return n
}

// TestAskerThatDiesOutOfMemoryIsDroppedAtOnce: long before the next retry, and what
// is free later is not given to the dead.
func TestAskerThatDiesOutOfMemoryIsDroppedAtOnce(t *testing.T) {
	hostOnly(t, needsSmallGPU)
	t.Parallel()
	address := loopback.Free(t)
	s := start(t, serverConfig{args: []string{"-oom-retry", "24h", "-metrics", address}})
	w := open(t, s.weights(), writer)
	a := w.allocate(capacity, "x")
	for range 5 {
		asker := newClient(t)
		asker.open("c", s.kvCache(), writer)
		before := oomEvents(t, s.kvCache())
		asker.send("c", newMessage("allocate_request", "size", granularity))
		eventually(t, func() bool { return oomEvents(t, s.kvCache()) > before }, func() []any { return []any{"no allocation_oom"} })
		heir := handshake(t, s.kvCache(), writer, forever)
		waiting(t, s.kvCache(), 1)
		asker.kill()
		heir.granted(writer)
		require.Empty(t, heir.allocations())
		heir.close()
		becomes(t, s.kvCache(), lockState{State: empty})
	}
	w.free(a)
	// It is released in the background, and who asks before that waits for the next retry.
	eventually(t, func() bool { return gauge(t, address, `remuda_gms_used_bytes{gpu="`+gpuUUID(0)+`"}`) == 0 }, func() []any { return []any{"memory in use"} })
	w.allocate(capacity, "all of it")
}

// TestWriterOutOfMemoryDoesNotHoldUpState: nor the end of its session.
func TestWriterOutOfMemoryDoesNotHoldUpState(t *testing.T) {
	hostOnly(t, needsSmallGPU)
	t.Parallel()
	s := start(t, serverConfig{args: []string{"-oom-retry", "60s"}})
	w := open(t, s.weights(), writer)
	w.allocate(capacity, "x")
	w.post(newMessage("allocate_request", "size", granularity)).post(newMessage("commit_request"))
	eventually(t, func() bool { return oomEvents(t, s.weights()) == 1 }, func() []any { return []any{"no allocation_oom"} })
	require.Equal(t, lockState{State: inWriting, Writer: true}, stateOf(t, s.weights()))
	handshake(t, s.weights(), reader, 50).denied("timeout")
	w.close()
	becomes(t, s.weights(), lockState{State: empty})
}

// TestSlowReleaseHoldsUpNobody: memory that takes long to go back does not keep the
// next writer, other tags or other GPUs waiting, and is not given away meanwhile.
func TestSlowReleaseHoldsUpNobody(t *testing.T) {
	t.Parallel()
	s := start(t, serverConfig{gpus: 2, args: []string{"-host-slow-release", "24h"}})
	w := open(t, s.weights(), writer)
	for range 2 {
		w.allocate(granularity, "x")
	}
	first := w.allocate(granularity, "x")
	w.free(first)
	heir := handshake(t, s.weights(), writer, forever)
	waiting(t, s.weights(), 1)
	w.close() // an abort clears
	heir.granted(writer)
	heir.allocate(granularity, "there is room left")
	heir.commit()
	w = open(t, s.weights(), writer) // clears what is committed
	stateOf(t, s.weights())
	open(t, s.kvCache(), writer).allocate(1, "x")
	open(t, s.socket(1, "weights"), writer).allocate(1, "x")
	w.post(newMessage("allocate_request", "size", capacity-granularity))
	eventually(t, func() bool { return oomEvents(t, s.weights()) > 0 }, func() []any { return []any{"no allocation_oom"} })
	w.silent(3 * oomRetry)
}

// TestSlowReleaseEnds: the whole GPU is free, a while later.
func TestSlowReleaseEnds(t *testing.T) {
	t.Parallel()
	const slow = 500 * time.Millisecond
	s := start(t, serverConfig{args: []string{"-host-slow-release", slow.String()}})
	w := open(t, s.weights(), writer)
	a := w.allocate(capacity, "x")
	began := time.Now()
	w.free(a)
	w.allocate(capacity, "x")
	require.GreaterOrEqual(t, time.Since(began), slow*9/10, "memory was given away before its release was done")
	require.Positive(t, oomEvents(t, s.weights()))
}
