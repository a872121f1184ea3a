package conformance_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAbortClearsTheLayoutBeforeAnyWaiterWakes(t *testing.T) {
	for _, lock := range []string{writer, auto} {
		t.Run(lock, func(t *testing.T) {
			g := freshGPU(t)
			for range 10 {
				w := open(t, g.weights, writer)
				var last allocation
				for range capacity / granularity { // the whole GPU
					last = w.allocate(granularity, "old")
				}
				w.put("old", last, 0, []byte("x"))
				heir := handshake(t, g.weights, lock, forever)
				if lock == writer {
					waiting(t, g.weights, 1)
				}
				w.close()
				heir.granted(writer)
				// All at once, without a wait: what the writer had is free.
				heir.post(newMessage("list_allocations_request")).post(newMessage("metadata_list_request")).
					post(newMessage("get_allocation_state_request"))
				require.Empty(t, list(t, heir.next(), "allocations"))
				require.Empty(t, list(t, heir.next(), "keys"))
				require.Zero(t, whole(t, heir.next(), "allocation_count"))
				heir.refused("get_allocation", "allocation_id", last.id)
				heir.refused("export_allocation", "allocation_id", last.id)
				heir.allocate(capacity, "new")
				heir.close()
				becomes(t, g.weights, lockState{State: empty})
			}
		})
	}
}

func TestAbortLeavesTheLockEmptyAndReadersWaiting(t *testing.T) {
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	w.allocate(10, "x")
	r := handshake(t, g.weights, reader, forever)
	w.close()
	becomes(t, g.weights, lockState{State: empty})
	_, n, hash := runtimeState(t, g.weights)
	require.Zero(t, n)
	require.Empty(t, hash)
	r.silent(briefly)
	handshake(t, g.weights, reader, oneTry).denied("timeout")
	commitOne(t, g.weights)
	r.granted(reader)
}

// TestNewWriterClearsTheCommittedLayoutWhenItConnects: before it has asked anything.
func TestNewWriterClearsTheCommittedLayoutWhenItConnects(t *testing.T) {
	g := freshGPU(t)
	a := commitOne(t, g.weights)
	w := open(t, g.weights, writer)
	s, n, hash := runtimeState(t, g.weights)
	require.Equal(t, lockState{State: inWriting, Writer: true}, s)
	require.Zero(t, n)
	require.Empty(t, hash)
	require.Empty(t, w.allocations())
	require.Empty(t, w.keys(""))
	w.refused("get_allocation", "allocation_id", a.id)
	// Its loss does not bring the old layout back.
	w.close()
	becomes(t, g.weights, lockState{State: empty})
}
