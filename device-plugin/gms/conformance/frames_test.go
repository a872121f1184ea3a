package conformance_test

import (
	"bytes"
	"encoding/binary"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestFramesThatDripInAreRead: byte by byte, and nobody waits for them.
func TestFramesThatDripInAreRead(t *testing.T) {
	g := freshGPU(t)
	w := dial(t, g.weights)
	drip := func(m message) {
		for i, b := range frame(encode(m)) {
			require.NoError(t, w.write([]byte{b}))
			if i%10 == 0 {
				stateOf(t, g.weights) // others are served between two bytes
			}
		}
	}
	drip(newMessage("handshake_request", "lock_type", writer, "timeout_ms", 0))
	w.granted(writer)
	drip(newMessage("allocate_request", "size", 5, "tag", "x"))
	require.Equal(t, "allocate_response", w.next().kind())
	drip(newMessage("commit_request"))
	require.Equal(t, "commit_response", w.next().kind())
	w.closed()
}

// TestFramesThatComeTogetherAreAnsweredInOrder: a whole session in one write.
func TestFramesThatComeTogetherAreAnsweredInOrder(t *testing.T) {
	g := freshGPU(t)
	var all []byte
	for _, m := range []message{
		newMessage("handshake_request", "lock_type", writer, "timeout_ms", nil),
		newMessage("allocate_request", "size", 1, "tag", "a"),
		newMessage("allocate_request", "size", 2, "tag", "b"),
		newMessage("allocate_request", "size", 0, "tag", "bad"),
		newMessage("list_allocations_request", "tag", "b"),
		newMessage("get_allocation_state_request"),
		newMessage("commit_request"),
	} {
		all = append(all, frame(encode(m))...)
	}
	l := dial(t, g.weights)
	require.NoError(t, l.write(all))
	l.granted(writer)
	require.Zero(t, whole(t, l.next(), "layout_slot"))
	require.EqualValues(t, 1, whole(t, l.next(), "layout_slot"))
	requireError(t, l.next(), "size 0")
	require.Len(t, list(t, l.next(), "allocations"), 1)
	require.EqualValues(t, 2, whole(t, l.next(), "allocation_count"))
	require.True(t, truth(t, l.next(), "success"))
	l.closed()
	require.Equal(t, committed, stateOf(t, g.weights).State)
}

// TestRequestsBehindAHandshakeThatWaitsAreAnsweredAfterIt.
func TestRequestsBehindAHandshakeThatWaitsAreAnsweredAfterIt(t *testing.T) {
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	l := handshake(t, g.weights, writer, forever).post(newMessage("allocate_request", "size", 1)).post(newMessage("get_lock_state_request"))
	waiting(t, g.weights, 1)
	w.close()
	l.granted(writer)
	require.Equal(t, "allocate_response", l.next().kind())
	require.Equal(t, inWriting, readState(t, l.next()).State)
}

// TestManyRequestsAtOnceAreAllAnswered: more than the sockets hold, while the client
// reads late.
func TestManyRequestsAtOnceAreAllAnswered(t *testing.T) {
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	a := w.allocate(1, "x")
	const many = 5000
	sent := make(chan error, 1)
	go func() {
		request := frame(encode(newMessage("get_allocation_request", "allocation_id", a.id)))
		var err error
		for i := 0; i < many && err == nil; i++ {
			err = w.write(request)
		}
		sent <- err
	}()
	for range many {
		require.Equal(t, a, readAllocation(t, w.next()))
	}
	require.NoError(t, <-sent)
	w.silent(time.Millisecond)
}

// TestReadersAtOnceGetTheirOwnAnswers: sessions of one layout do not mix.
func TestReadersAtOnceGetTheirOwnAnswers(t *testing.T) {
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	var all []allocation
	for i := range 8 {
		a := w.allocate(int64(i+1), "x")
		w.put(string(rune('a'+i)), a, int64(i), bytes.Repeat([]byte{byte(i)}, 1000*i))
		all = append(all, a)
	}
	w.commit()
	var group sync.WaitGroup
	for i, a := range all {
		r := open(t, g.weights, reader)
		group.Go(func() {
			for range 60 {
				m := r.ask("get_allocation", "allocation_id", a.id)
				e, _ := r.get(string(rune('a' + i)))
				if m["layout_slot"] != a.slot || e.id != a.id || !bytes.Equal(e.value, bytes.Repeat([]byte{byte(i)}, 1000*i)) {
					t.Errorf("reader %d got %v and %v", i, m, e)
					return
				}
				got, fd := r.export(a)
				closeFD(fd)
				if got != a {
					t.Errorf("reader %d got an export of %v", i, got)
					return
				}
			}
		})
	}
	group.Wait()
}

// TestTruncatedFramesEndTheSession: the peer is gone within a frame. A writer's
// session is an abort then, however near the frame was to a commit.
func TestTruncatedFramesEndTheSession(t *testing.T) {
	g := freshGPU(t)
	request := frame(encode(newMessage("commit_request")))
	for cut := 1; cut < len(request); cut++ {
		w := open(t, g.weights, writer)
		w.allocate(1, "x")
		require.NoError(t, w.write(request[:cut]))
		w.close()
		becomes(t, g.weights, lockState{State: empty})
	}
	for _, e := range history(t, g.weights) {
		require.NotEqual(t, "committed", e.Kind)
	}
}

func TestTruncatedFirstFramesAreForgotten(t *testing.T) {
	g := freshGPU(t)
	request := frame(encode(newMessage("handshake_request", "lock_type", writer, "timeout_ms", nil)))
	for cut := range len(request) {
		l := dial(t, g.weights)
		if cut > 0 {
			require.NoError(t, l.write(request[:cut]))
		}
		l.close()
	}
	handshake(t, g.weights, writer, 5000).granted(writer)
	require.Equal(t, []event{{"rw_connected", 0}}, history(t, g.weights))
}

// TestLengthsOverTheCapEndTheSessionAtOnce: before any of the body comes, and
// without room being made for it.
func TestLengthsOverTheCapEndTheSessionAtOnce(t *testing.T) {
	s := start(t, serverConfig{})
	before := residentKiB(t, s.pid())
	for _, n := range []uint32{frameCap + 1, 1 << 24, 1<<31 - 1, 1 << 31, 1<<32 - 1} {
		for _, first := range []bool{true, false} {
			var l *link
			if first {
				l = dial(t, s.weights())
			} else {
				l = open(t, s.weights(), writer)
			}
			require.NoError(t, l.write(binary.BigEndian.AppendUint32(nil, n)))
			l.mayError()
			becomes(t, s.weights(), lockState{State: empty})
		}
	}
	require.Less(t, residentKiB(t, s.pid())-before, int64(64<<10), "KiB of memory for frames that never came")
}

// TestManyHalfFramesTakeNoMemoryForTheirOtherHalf: a length within the cap, no body.
func TestManyHalfFramesTakeNoMemoryForTheirOtherHalf(t *testing.T) {
	s := start(t, serverConfig{})
	before := residentKiB(t, s.pid())
	for range 200 {
		require.NoError(t, dial(t, s.weights()).write(binary.BigEndian.AppendUint32(nil, frameCap)))
	}
	open(t, s.weights(), writer).commit() // they are all served
	require.Less(t, residentKiB(t, s.pid())-before, int64(260<<10))
}

// mayError reads the end of a connection, perhaps after an error_response.
func (l *link) mayError() {
	l.t.Helper()
	if !l.errorOrEnd() {
		l.closed()
	}
}

// TestBodiesThatAreNoMapAreADisconnect.
func TestBodiesThatAreNoMapAreADisconnect(t *testing.T) {
	g := freshGPU(t)
	bodies := map[string][]byte{
		"empty": {}, "nil": {0xc0}, "number": {5}, "text": {0xa1, 'x'}, "list": {0x92, 1, 2}, "empty list": {0x90}, "bool": {0xc3},
		"never used": {0xc1}, "float": {0xcb, 0, 0, 0, 0, 0, 0, 0, 0}, "extension": {0xd4, 1, 1}, "bytes": {0xc4, 1, 0},
		"list with the message": append([]byte{0x91}, encode(newMessage("commit_request"))...),
	}
	for name, body := range bodies {
		t.Run(name, func(t *testing.T) {
			l := dial(t, g.weights)
			require.NoError(t, l.write(frame(body)))
			l.closed()
			w := open(t, g.weights, writer)
			w.allocate(1, "x")
			require.NoError(t, w.write(frame(body)))
			w.closed()
			becomes(t, g.weights, lockState{State: empty})
		})
	}
}

// TestMalformedMapsEndTheSession: with an error or without.
func TestMalformedMapsEndTheSession(t *testing.T) {
	g := freshGPU(t)
	commit := encode(newMessage("commit_request"))
	bodies := map[string][]byte{
		"cut short":                  commit[:len(commit)-1],
		"a map of 4 billion":         {0xdf, 0xff, 0xff, 0xff, 0xff, 0xa1, 'x', 0},
		"more entries than it has":   append([]byte{0x82}, commit[1:]...),
		"bytes of 4 GiB":             {0x81, 0xa4, 't', 'y', 'p', 'e', 0xc6, 0xff, 0xff, 0xff, 0xff},
		"text of 4 GiB":              {0x81, 0xdb, 0xff, 0xff, 0xff, 0xff, 'x'},
		"a list of 4 billion":        append([]byte{0x82, 0xa1, 'x', 0xdd, 0xff, 0xff, 0xff, 0xff}, commit[1:]...),
		"an extension of 4 GiB":      append([]byte{0x82, 0xa1, 'x', 0xc9, 0xff, 0xff, 0xff, 0xff, 5}, commit[1:]...),
		"a byte that is not in use":  append([]byte{0x82, 0xa1, 'x', 0xc1}, commit[1:]...),
		"more after the map":         append(bytes.Clone(commit), 0xc0),
		"a second map after the map": append(bytes.Clone(commit), commit...),
	}
	for name, body := range bodies {
		t.Run(name, func(t *testing.T) {
			w := open(t, g.weights, writer)
			w.allocate(1, "x")
			require.NoError(t, w.write(frame(body)))
			if !w.errorOrEnd() {
				w.close()
			}
			becomes(t, g.weights, lockState{State: empty})
		})
	}
	for _, e := range history(t, g.weights) {
		require.NotEqual(t, "committed", e.Kind, "a malformed commit was taken")
	}
}

// TestDeepNestingHarmsNobody: it is skipped, or ends that session.
func TestDeepNestingHarmsNobody(t *testing.T) {
	g := freshGPU(t)
	other := open(t, g.kvCache, writer)
	for _, open1 := range []byte{0x91, 0x81} {
		var deep []byte
		for range 300_000 {
			deep = append(deep, open1)
			if open1 == 0x81 {
				deep = append(deep, 0xa0)
			}
		}
		deep = append(deep, 0xc0)
		l := dial(t, g.weights).post(newMessage("get_runtime_state_request", "x", rawInt(deep)))
		a, err := l.receive(patience)
		require.True(t, err == nil || ended(err), "%v, %v", a, err)
	}
	other.alive()
	open(t, g.weights, writer)
}

// TestFrameThatComesSlowlyDoesNotHoldUpItsNeighbours: a large one, half of it.
func TestFrameThatComesSlowlyDoesNotHoldUpItsNeighbours(t *testing.T) {
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	a := w.allocate(1, "x")
	put := frame(encode(newMessage("metadata_put_request", "key", strings.Repeat("k", 100), "allocation_id", a.id, "offset_bytes", 0, "value", make([]byte, 900_000))))
	require.NoError(t, w.write(put[:len(put)/2]))
	for range 5 {
		open(t, g.kvCache, writer).commit()
	}
	w.silent(time.Millisecond)
	require.NoError(t, w.write(put[len(put)/2:]))
	require.Equal(t, "metadata_put_response", w.next().kind())
}
