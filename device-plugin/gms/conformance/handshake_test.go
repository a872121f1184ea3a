package conformance_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestWriterIsGrantedOnAnEmptyLayout(t *testing.T) {
	g := freshGPU(t)
	m := handshake(t, g.weights, writer, forever).grant(writer)
	require.Equal(t, "", str(t, m, "memory_layout_hash"), "nothing is committed")
	require.NotEmpty(t, str(t, m, "nonce"))
}

func TestReaderIsGrantedOnACommittedLayoutBesideOthers(t *testing.T) {
	g := freshGPU(t)
	commitOne(t, g.weights)
	for n := range int64(5) {
		m := handshake(t, g.weights, reader, oneTry).grant(reader)
		require.Len(t, str(t, m, "memory_layout_hash"), 64)
		becomes(t, g.weights, lockState{State: inReading, Readers: n + 1, Committed: true})
	}
}

func TestAutoGivesTheWriterOnlyWhereNothingIsCommitted(t *testing.T) {
	g := freshGPU(t)
	w := handshake(t, g.weights, auto, oneTry)
	w.granted(writer)
	w.commit()
	r := handshake(t, g.weights, auto, oneTry)
	r.granted(reader)
	r2 := handshake(t, g.weights, auto, oneTry)
	r2.granted(reader)
	r.close()
	r2.close()
	becomes(t, g.weights, lockState{State: committed, Committed: true})
	handshake(t, g.weights, auto, oneTry).granted(reader)
}

func TestAutoThatWaitsReadsWhatTheWriterCommits(t *testing.T) {
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	a := w.allocate(5, "x")
	waiter := handshake(t, g.weights, auto, forever)
	waiter.silent(50 * time.Millisecond)
	w.commit()
	waiter.granted(reader)
	require.Equal(t, a.id, waiter.allocations()[0].id)
}

func TestAutoThatWaitsWritesAfterAnAbort(t *testing.T) {
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	w.allocate(5, "x")
	waiter := handshake(t, g.weights, auto, forever)
	waiter.silent(50 * time.Millisecond)
	w.close()
	waiter.granted(writer)
	require.Empty(t, waiter.allocations())
}

// onlyGrant waits until one of the links is let in, takes it out of them, and finds that
// no other one is.
func onlyGrant(t testing.TB, links []*link, lock string) (in *link) {
	t.Helper()
	poll := func(within time.Duration) {
		for i, l := range links {
			if l == nil {
				continue
			}
			a, err := l.receive(within)
			if timedOut(err) {
				continue
			}
			require.NoError(t, err)
			require.True(t, truth(t, a.message, "success"), "%v", a.message)
			require.Equal(t, lock, str(t, a.message, "granted_lock_type"))
			require.Nil(t, in, "two are let in at once: %v", a.message)
			in, links[i] = l, nil
		}
	}
	eventually(t, func() bool { poll(time.Millisecond); return in != nil }, func() []any { return []any{"nobody is let in"} })
	poll(briefly)
	return in
}

func TestAutosThatWaitTogetherGetOneWriter(t *testing.T) {
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	links := make([]*link, 8)
	for i := range links {
		links[i] = handshake(t, g.weights, auto, forever)
	}
	w.close()
	// One is the writer; the others wait for it, and read what it commits.
	first := onlyGrant(t, links, writer)
	first.allocate(7, "x")
	first.commit()
	for _, l := range links {
		if l != nil {
			l.granted(reader)
		}
	}
}

// TestTimeoutOfZeroOrLessIsOneTry: no wait, and the refusal closes the connection.
func TestTimeoutOfZeroOrLessIsOneTry(t *testing.T) {
	cases := map[string]struct {
		lock  string
		setUp func(t *testing.T, path string)
	}{
		"ro on an empty layout":      {reader, func(*testing.T, string) {}},
		"ro beside a writer":         {reader, func(t *testing.T, path string) { open(t, path, writer) }},
		"rw beside a writer":         {writer, func(t *testing.T, path string) { open(t, path, writer) }},
		"auto beside a writer":       {auto, func(t *testing.T, path string) { open(t, path, writer) }},
		"rw beside a reader":         {writer, func(t *testing.T, path string) { commitOne(t, path); open(t, path, reader) }},
		"ro behind a waiting writer": {reader, behindWriter},
		// Something is committed, so it would read, and readers wait for the writer.
		"auto behind a waiting writer": {auto, behindWriter},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			g := freshGPU(t)
			c.setUp(t, g.weights)
			before, events := stateOf(t, g.weights), history(t, g.weights)
			for _, timeout := range []int64{0, -1, -1000, math.MinInt64} {
				m := handshake(t, g.weights, c.lock, timeout).denied("timeout")
				require.Equal(t, before.Committed, truth(t, m, "committed"))
			}
			require.Equal(t, before, stateOf(t, g.weights))
			require.Equal(t, events, history(t, g.weights))
		})
	}
}

func behindWriter(t *testing.T, path string) {
	commitOne(t, path)
	open(t, path, reader)
	handshake(t, path, writer, forever)
	waiting(t, path, 1)
}

func TestTimeoutsAnswerWhenTheyEnd(t *testing.T) {
	g := freshGPU(t)
	open(t, g.weights, writer)
	for _, lock := range []string{reader, writer, auto} {
		began := time.Now()
		handshake(t, g.weights, lock, 150).denied("timeout")
		assert.GreaterOrEqual(t, time.Since(began), 145*time.Millisecond, "%s was refused early", lock)
	}
	waiting(t, g.weights, 0)
}

func TestTimeoutEndsOnlyTheWaitAndNotTheSession(t *testing.T) {
	g := freshGPU(t)
	w := handshake(t, g.weights, writer, 50)
	w.granted(writer)
	w.silent(100 * time.Millisecond)
	w.alive()
	w.close()
}

// TestNoTimeoutWaits: nil and a missing field wait until the lock is free, whatever
// the others' timeouts do; so do timeouts that no clock can hold.
func TestNoTimeoutWaits(t *testing.T) {
	cases := map[string]message{
		"nil":       newMessage("handshake_request", "timeout_ms", nil),
		"missing":   newMessage("handshake_request"),
		"largest":   newMessage("handshake_request", "timeout_ms", int64(math.MaxInt64)),
		"300 years": newMessage("handshake_request", "timeout_ms", int64(300*365*24*3600*1000)),
	}
	for name, m := range cases {
		for _, lock := range []string{writer, reader, auto} {
			t.Run(name+" "+lock, func(t *testing.T) {
				g := freshGPU(t)
				w := open(t, g.weights, writer)
				m := newMessage("handshake_request", "lock_type", lock, "timeout_ms", m["timeout_ms"])
				if name == "missing" {
					delete(m, "timeout_ms")
				}
				waiter := dial(t, g.weights).post(m)
				handshake(t, g.weights, writer, 60).denied("timeout")
				waiter.silent(20 * time.Millisecond)
				w.commit()
				waiter.granted("")
			})
		}
	}
}

// TestTimeoutIsAnyIntegerOfMessagePack: encoders choose the width.
func TestTimeoutIsAnyIntegerOfMessagePack(t *testing.T) {
	g := freshGPU(t)
	open(t, g.weights, writer)
	for _, timeout := range []any{rawInt{0xd0, 20}, rawInt{0xd1, 0, 20}, rawInt{0xd2, 0, 0, 0, 20}, rawInt{0xd3, 0, 0, 0, 0, 0, 0, 0, 20},
		rawInt{0xcc, 20}, rawInt{0xcd, 0, 20}, rawInt{0xce, 0, 0, 0, 20}, rawInt{0xcf, 0, 0, 0, 0, 0, 0, 0, 20}, rawInt{20}} {
		handshake(t, g.weights, writer, timeout).denied("timeout")
	}
}

// TestBadHandshakesGrantNothing: what is mistyped or missing gets a refusal, an
// error or a disconnect, and leaves the lock alone.
func TestBadHandshakesGrantNothing(t *testing.T) {
	g := freshGPU(t)
	for name, m := range map[string]message{
		"unknown lock":      newMessage("handshake_request", "lock_type", "wr", "timeout_ms", 0),
		"upper case lock":   newMessage("handshake_request", "lock_type", "RW", "timeout_ms", 0),
		"no lock":           newMessage("handshake_request", "timeout_ms", 0),
		"nil lock":          newMessage("handshake_request", "lock_type", nil, "timeout_ms", 0),
		"number as lock":    newMessage("handshake_request", "lock_type", 1, "timeout_ms", 0),
		"text as timeout":   newMessage("handshake_request", "lock_type", writer, "timeout_ms", "5"),
		"float as timeout":  newMessage("handshake_request", "lock_type", writer, "timeout_ms", 5.5),
		"bool as timeout":   newMessage("handshake_request", "lock_type", writer, "timeout_ms", true),
		"list as timeout":   newMessage("handshake_request", "lock_type", writer, "timeout_ms", []int{5}),
		"list as lock type": newMessage("handshake_request", "lock_type", []string{"rw"}),
	} {
		t.Run(name, func(t *testing.T) {
			l := dial(t, g.weights).post(m)
			a, err := l.receive(patience)
			switch {
			case err != nil:
				require.True(t, ended(err), "%v", err)
			case a.kind() == "handshake_response":
				require.False(t, truth(t, a.message, "success"))
				require.Equal(t, "bad_request", str(t, a.message, "code"))
				l.closed()
			default:
				requireError(t, a.message, name)
				l.closed()
			}
			require.Equal(t, lockState{State: empty}, stateOf(t, g.weights))
		})
	}
}
