package conformance_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// crash kills the service and waits for the next; it logs how long nobody could ask.
func (s *server) crash(t testing.TB) *server {
	t.Helper()
	began := time.Now()
	s.kill(t)
	after := s.again(t)
	t.Logf("answers again %v after the kill", time.Since(began).Round(time.Millisecond))
	return after
}

// layoutOf is all that a reader can learn of a layout.
type layoutOf struct {
	All  []allocation
	Meta map[string]entry
	Hash string
}

func readLayout(t testing.TB, path string) layoutOf {
	t.Helper()
	r := open(t, path, reader)
	defer func() {
		r.close()
		eventually(t, func() bool { return stateOf(t, path).Readers == 0 }, func() []any { return []any{"readers"} })
	}()
	l := layoutOf{r.allocations(), map[string]entry{}, r.layoutHash()}
	for _, key := range r.keys("") {
		e, found := r.get(key)
		require.True(t, found)
		l.Meta[key] = e
	}
	require.Equal(t, layoutHash(l.All, l.Meta), l.Hash)
	return l
}

func nonceOf(t testing.TB, path string) string {
	t.Helper()
	l := dial(t, path)
	defer l.close()
	return str(t, l.ask("get_runtime_state"), "nonce")
}

// TestCrashLosesNoByteThatIsCommitted: engines that map it read on, and the server
// that comes back has the same layout, as a new incarnation.
func TestCrashLosesNoByteThatIsCommitted(t *testing.T) {
	t.Parallel()
	s := start(t, serverConfig{})
	primary, shadow := newClient(t), newClient(t)
	require.Equal(t, writer, primary.open("w", s.weights(), auto))
	var all []allocation
	for i := range 3 {
		a := primary.allocate("w", granularity+int64(i), fmt.Sprintf("tag%d", i))
		primary.mapOf("w", a)
		primary.fill(a, int64(i))
		all = append(all, a)
	}
	gone := primary.allocate("w", 1, "gone") // so that slots and ranks differ
	primary.ask("w", "free_allocation", "allocation_id", gone.id)
	last := primary.allocate("w", 5, "last")
	primary.ask("w", "metadata_put", "key", "a", "allocation_id", last.id, "offset_bytes", 3, "value", []byte{0, 255})
	primary.ask("w", "metadata_put", "key", "empty", "allocation_id", all[0].id, "offset_bytes", 0, "value", []byte{})
	require.True(t, truth(t, primary.ask("w", "commit"), "success"))
	s.keeps(t, 4)
	require.Equal(t, reader, shadow.open("r", s.weights(), reader))
	for i, a := range all {
		shadow.mapOf("r", a)
		shadow.verify(a, int64(i))
	}
	shadow.order(newMessage("close", "name", "r"))
	becomes(t, s.weights(), lockState{State: committed, Committed: true})
	before, nonce := readLayout(t, s.weights()), nonceOf(t, s.weights())
	require.EqualValues(t, 4, last.slot)

	for round := range 3 { // what was taken back is kept again
		s = s.crash(t)
		for i, a := range all {
			primary.verify(a, int64(i))
			shadow.verify(a, int64(i))
		}
		becomes(t, s.weights(), lockState{State: committed, Committed: true})
		require.Equal(t, before, readLayout(t, s.weights()))
		now := nonceOf(t, s.weights())
		require.NotEqual(t, nonce, now)
		// A sleeping engine is told at once, and with what it needs to go on.
		m := handshake(t, s.weights(), reader, forever, "expected_nonce", nonce).denied("restarted")
		require.True(t, truth(t, m, "committed"))
		require.Equal(t, before.Hash, str(t, m, "memory_layout_hash"))
		nonce = now
		// The memory is the same memory: an old mapping and a new export share it.
		fresh := newClient(t)
		require.Equal(t, reader, fresh.open("r", s.weights(), auto))
		for i, a := range all {
			fresh.mapOf("r", a)
			fresh.verify(a, int64(i))
		}
		primary.fill(all[0], int64(50+round))
		fresh.verify(all[0], int64(50+round))
		shadow.verify(all[0], int64(50+round))
		primary.fill(all[0], 0)
		fresh.kill()
		becomes(t, s.weights(), lockState{State: committed, Committed: true})
	}
}

// TestRestoredMemoryCountsAndIsGivenBack: as any other.
func TestRestoredMemoryCountsAndIsGivenBack(t *testing.T) {
	hostOnly(t, needsSmallGPU)
	t.Parallel()
	s := start(t, serverConfig{})
	w := open(t, s.weights(), writer)
	old := w.allocate(capacity-2*granularity, "x")
	w.commit()
	s = s.crash(t)
	kv := open(t, s.kvCache(), writer)
	require.NotEqual(t, old.id, kv.allocate(2*granularity, "y").id, "an id that is in use")
	kv.post(newMessage("allocate_request", "size", granularity))
	kv.silent(3 * oomRetry)
	w = open(t, s.weights(), writer) // clears what was restored
	require.Equal(t, "allocate_response", kv.next().kind())
	kv.close()
	fresh := w.allocate(capacity-4*granularity, "x")
	require.NotEqual(t, old.id, fresh.id)
	require.Zero(t, fresh.slot)
	becomes(t, s.kvCache(), lockState{State: empty})
	w.allocate(4*granularity, "the whole GPU again")
	s.keeps(t, 0)
}

// TestRestoredMemoryCountsAsLongAsAClientOfTheOldServerMapsIt: it is cleared, and is
// still there.
func TestRestoredMemoryCountsAsLongAsAClientOfTheOldServerMapsIt(t *testing.T) {
	hostOnly(t, needsSmallGPU)
	t.Parallel()
	s := start(t, serverConfig{})
	c := newClient(t)
	c.open("w", s.weights(), writer)
	a := c.allocate("w", capacity-granularity, "x")
	c.mapOf("w", a)
	c.fill(a, 1)
	c.ask("w", "commit")
	s = s.crash(t)
	w := open(t, s.weights(), writer) // clears
	s.keeps(t, 0)
	w.allocate(granularity, "there is room for this")
	w.post(newMessage("allocate_request", "size", granularity))
	w.silent(5 * oomRetry)
	require.Positive(t, oomEvents(t, s.weights()))
	c.verify(a, 1)
	c.kill()
	require.Equal(t, "allocate_response", w.next().kind())
}

// TestCommitThatIsAnsweredIsKept: the server is killed the moment the answer is there.
func TestCommitThatIsAnsweredIsKept(t *testing.T) {
	t.Parallel()
	s := start(t, serverConfig{})
	for round := range 4 {
		w := open(t, s.weights(), writer)
		var all []allocation
		for i := range round + 2 {
			all = append(all, w.allocate(int64(round+1), fmt.Sprint(i)))
		}
		require.True(t, truth(t, w.ask("commit"), "success"))
		s.kill(t)
		s = s.again(t)
		require.Equal(t, all, readLayout(t, s.weights()).All)
	}
}

// TestLayoutThatAWriterClearedDoesNotComeBack: the server is killed the moment the
// writer is in.
func TestLayoutThatAWriterClearedDoesNotComeBack(t *testing.T) {
	t.Parallel()
	s := start(t, serverConfig{})
	for range 4 {
		commitOne(t, s.weights())
		w := handshake(t, s.weights(), writer, forever)
		w.granted(writer)
		s.kill(t)
		s.keeps(t, 0)
		s = s.again(t)
		require.Equal(t, lockState{State: empty}, stateOf(t, s.weights()))
		handshake(t, s.weights(), reader, oneTry).denied("timeout")
	}
}

// TestEveryGPUAndTagIsKeptApart: committed, empty and half-written ones.
func TestEveryGPUAndTagIsKeptApart(t *testing.T) {
	t.Parallel()
	s := start(t, serverConfig{gpus: 2})
	layouts := map[string]layoutOf{}
	for i, path := range []string{s.weights(), s.socket(1, "kv_cache")} {
		w := open(t, path, writer)
		a := w.allocate(int64(i+1), "x")
		w.put(fmt.Sprint("key", i), a, 0, []byte{byte(i)})
		w.commit()
		layouts[path] = readLayout(t, path)
	}
	open(t, s.kvCache(), writer).commit()
	half := open(t, s.socket(1, "weights"), writer)
	half.allocate(1, "x")
	s = s.crash(t)
	for path, want := range layouts {
		require.Equal(t, want, readLayout(t, path))
	}
	require.Equal(t, lockState{State: empty}, stateOf(t, s.socket(1, "weights")), "what was not committed is gone")
}

// TestLayoutOfManyAllocationsIsKept: more descriptors than one message can carry, and
// metadata of more than a frame.
func TestLayoutOfManyAllocationsIsKept(t *testing.T) {
	t.Parallel()
	const many = 700
	s := start(t, serverConfig{args: smallGranularity()})
	w := open(t, s.weights(), writer)
	var first string
	for i := range many {
		w.post(newMessage("allocate_request", "size", i+1, "tag", "x"))
		m := w.next()
		require.Equal(t, "allocate_response", m.kind(), "%v", m)
		if i == 0 {
			first = str(t, m, "allocation_id")
		}
	}
	for i := range 4 {
		w.put(fmt.Sprint(i), allocation{id: first}, 0, make([]byte, 700_000))
	}
	w.commit()
	s.keeps(t, many)
	before := readLayout(t, s.weights())
	require.Len(t, before.All, many)
	s = s.crash(t)
	require.Equal(t, before, readLayout(t, s.weights()))
}
