package conformance_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRuntimeStateIsReadWithoutALockOrATrace: in every state of the lock.
func TestRuntimeStateIsReadWithoutALockOrATrace(t *testing.T) {
	g := freshGPU(t)
	same := func(want lockState, count int64) {
		t.Helper()
		events := history(t, g.weights)
		var hash string
		for i := range 20 {
			s, n, h := runtimeState(t, g.weights)
			require.Equal(t, want, s)
			require.Equal(t, count, n)
			require.Equal(t, want.Committed, h != "", "hash %q", h)
			if i == 0 {
				hash = h
			}
			require.Equal(t, hash, h)
		}
		require.Equal(t, events, history(t, g.weights))
	}
	same(lockState{State: empty}, 0)
	w := open(t, g.weights, writer)
	same(lockState{State: inWriting, Writer: true}, 0)
	w.allocate(1, "x")
	w.allocate(1, "x")
	same(lockState{State: inWriting, Writer: true}, 2)
	require.Equal(t, lockState{State: inWriting, Writer: true}, readState(t, w.alive()))
	w2 := handshake(t, g.weights, writer, forever)
	waiting(t, g.weights, 1)
	same(lockState{State: inWriting, Writer: true, Waiting: 1}, 2)
	require.Equal(t, lockState{State: inWriting, Writer: true, Waiting: 1}, readState(t, w.alive()))
	w2.close()
	waiting(t, g.weights, 0)
	w.commit()
	same(lockState{State: committed, Committed: true}, 2)
	r, r2 := open(t, g.weights, reader), open(t, g.weights, reader)
	same(lockState{State: inReading, Readers: 2, Committed: true}, 2)
	w = handshake(t, g.weights, writer, forever)
	waiting(t, g.weights, 1)
	same(lockState{State: inReading, Readers: 2, Waiting: 1, Committed: true}, 2)
	require.Equal(t, lockState{State: inReading, Readers: 2, Waiting: 1, Committed: true}, readState(t, r.alive()))
	r.close()
	r2.close()
	w.granted(writer)
	w.close()
	becomes(t, g.weights, lockState{State: empty})
	same(lockState{State: empty}, 0)
}

// TestStateConnectionsThatLeaveEarlyLeaveNothing.
func TestStateConnectionsThatLeaveEarlyLeaveNothing(t *testing.T) {
	g := freshGPU(t)
	commitOne(t, g.weights)
	before, events := stateOf(t, g.weights), history(t, g.weights)
	for i := range 50 {
		kind := []string{"get_runtime_state_request", "get_event_history_request"}[i%2]
		dial(t, g.weights).post(newMessage(kind)).close()
	}
	require.Equal(t, before, stateOf(t, g.weights), fmt.Sprint(events))
	require.Equal(t, events, history(t, g.weights))
	open(t, g.weights, writer)
}
