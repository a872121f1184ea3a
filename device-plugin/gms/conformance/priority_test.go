package conformance_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const briefly = 50 * time.Millisecond

func TestWaitingWriterGoesBeforeReadersThatCameLater(t *testing.T) {
	g := freshGPU(t)
	old := commitOne(t, g.weights)
	r := open(t, g.weights, reader)
	w := handshake(t, g.weights, writer, forever)
	waiting(t, g.weights, 1)
	late := handshake(t, g.weights, reader, forever)
	late.silent(briefly)
	require.Equal(t, lockState{State: inReading, Readers: 1, Waiting: 1, Committed: true}, stateOf(t, g.weights))
	// While it waits it clears nothing.
	require.Equal(t, old.id, r.allocations()[0].id)

	r.close()
	w.granted(writer)
	late.silent(briefly)
	becomes(t, g.weights, lockState{State: inWriting, Writer: true})
	a := w.allocate(9, "new")
	w.commit()
	late.granted(reader)
	require.Equal(t, []allocation{a}, late.allocations())
}

func TestWriterThatDiesWhileItWaitsClearsNothingAndLetsReadersIn(t *testing.T) {
	g := freshGPU(t)
	a := commitOne(t, g.weights)
	r := open(t, g.weights, reader)
	w := handshake(t, g.weights, writer, forever)
	waiting(t, g.weights, 1)
	late := handshake(t, g.weights, reader, forever)
	late.silent(briefly)
	events := history(t, g.weights)

	w.close()
	late.granted(reader)
	waiting(t, g.weights, 0)
	for _, l := range []*link{r, late} {
		require.Equal(t, []allocation{a}, l.allocations())
		_, found := l.get("key")
		require.True(t, found)
	}
	require.Equal(t, events, history(t, g.weights))
}

// TestWaiterThatDiesIsMissedWhateverItSentAhead: requests that wait behind its
// handshake do not hide that it is gone, and are not done.
func TestWaiterThatDiesIsMissedWhateverItSentAhead(t *testing.T) {
	for name, ahead := range map[string][]byte{
		"a request":       frame(encode(newMessage("commit_request"))),
		"half a request":  frame(encode(newMessage("commit_request")))[:7],
		"many requests":   bytes.Repeat(frame(encode(newMessage("commit_request"))), 3000),
		"no frame at all": {0xff, 0xff, 0xff, 0xff, 0xff},
	} {
		t.Run(name, func(t *testing.T) {
			g := freshGPU(t)
			a := commitOne(t, g.weights)
			r := open(t, g.weights, reader)
			events := history(t, g.weights)
			w := handshake(t, g.weights, writer, forever)
			waiting(t, g.weights, 1)
			require.NoError(t, w.write(ahead))
			w.close()
			waiting(t, g.weights, 0)
			r.close()
			becomes(t, g.weights, lockState{State: committed, Committed: true})
			require.Equal(t, []allocation{a}, open(t, g.weights, reader).allocations())
			require.Equal(t, events, history(t, g.weights))
		})
	}
}

func TestWriterThatGivesUpWaitingLetsReadersIn(t *testing.T) {
	g := freshGPU(t)
	commitOne(t, g.weights)
	open(t, g.weights, reader)
	w := handshake(t, g.weights, writer, 1000) // it is seen waiting before that
	waiting(t, g.weights, 1)
	late := handshake(t, g.weights, reader, forever)
	w.denied("timeout")
	late.granted(reader)
	becomes(t, g.weights, lockState{State: inReading, Readers: 2, Committed: true})
}

func TestWriterWaitsForTheLastReader(t *testing.T) {
	g := freshGPU(t)
	commitOne(t, g.weights)
	first, second := open(t, g.weights, reader), open(t, g.weights, reader)
	w := handshake(t, g.weights, writer, forever)
	waiting(t, g.weights, 1)
	first.close()
	becomes(t, g.weights, lockState{State: inReading, Readers: 1, Waiting: 1, Committed: true})
	w.silent(briefly)
	second.close()
	w.granted(writer)
	waiting(t, g.weights, 0)
}

func TestWaitingWritersGoOneByOne(t *testing.T) {
	g := freshGPU(t)
	const n = 6
	w := open(t, g.weights, writer)
	waiters := make([]*link, n)
	for i := range waiters {
		waiters[i] = handshake(t, g.weights, writer, forever)
		waiting(t, g.weights, int64(i+1))
	}
	w.allocate(3, "x")
	w.commit()
	for left := n; left > 0; left-- {
		waiting(t, g.weights, int64(left-1))
		in := onlyGrant(t, waiters, writer)
		require.Empty(t, in.allocations(), "a new writer begins with nothing")
		in.allocate(int64(left), "x")
		if left%2 == 0 {
			in.commit()
		} else {
			in.close()
		}
	}
	becomes(t, g.weights, lockState{State: empty})
}

func TestReadersWakeTogetherOnCommit(t *testing.T) {
	g := freshGPU(t)
	early := handshake(t, g.weights, reader, forever) // nothing is committed yet
	w := open(t, g.weights, writer)
	links := []*link{early}
	for range 10 {
		links = append(links, handshake(t, g.weights, reader, forever))
	}
	early.silent(briefly)
	w.commit()
	for _, l := range links {
		l.granted(reader)
	}
	becomes(t, g.weights, lockState{State: inReading, Readers: 11, Committed: true})
}

// TestReaderThatJoinsOrLeavesClearsNothing: the layout stays through all of it.
func TestReaderThatJoinsOrLeavesClearsNothing(t *testing.T) {
	g := freshGPU(t)
	a := commitOne(t, g.weights)
	events := history(t, g.weights)
	_, _, hash := runtimeState(t, g.weights)
	for range 20 {
		r := open(t, g.weights, reader)
		require.Equal(t, []allocation{a}, r.allocations())
		r.close()
	}
	becomes(t, g.weights, lockState{State: committed, Committed: true})
	_, n, after := runtimeState(t, g.weights)
	require.EqualValues(t, 1, n)
	require.Equal(t, hash, after)
	require.Equal(t, events, history(t, g.weights))
}

func TestTagsOfOneGPUAreLocksOfTheirOwn(t *testing.T) {
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	k := open(t, g.kvCache, writer)
	w.allocate(1, "x")
	k.commit()
	open(t, g.kvCache, reader)
	require.Equal(t, inWriting, stateOf(t, g.weights).State)
	require.Equal(t, lockState{State: inReading, Readers: 1, Committed: true}, stateOf(t, g.kvCache))
	require.Equal(t, []event{{"rw_connected", 0}}, history(t, g.weights))
	require.Equal(t, []event{{"rw_connected", 0}, {"committed", 0}}, history(t, g.kvCache))
}
