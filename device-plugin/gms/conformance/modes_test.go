package conformance_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// request is one of the requests of a session, with the mode that it needs.
type request struct {
	kind  string
	pairs []any
	rw    bool
}

// requests are all that the page has, about an allocation and its key.
func requests(id string) []request {
	return []request{
		{"allocate", []any{"size", 1, "tag", "x"}, true},
		{"free_allocation", []any{"allocation_id", id}, true},
		{"metadata_put", []any{"key", "key", "allocation_id", id, "offset_bytes", 3, "value", []byte("changed")}, true},
		{"metadata_delete", []any{"key", "key"}, true},
		{"commit", nil, true},
		{"get_allocation", []any{"allocation_id", id}, false},
		{"list_allocations", []any{"tag", nil}, false},
		{"metadata_get", []any{"key", "key"}, false},
		{"metadata_list", []any{"prefix", ""}, false},
		{"get_memory_layout_hash", nil, false},
		{"get_lock_state", nil, false},
		{"get_allocation_state", nil, false},
		{"export_allocation", []any{"allocation_id", id}, false},
	}
}

func TestWritingRequestsOfAReaderAreRefusedAndChangeNothing(t *testing.T) {
	g := freshGPU(t)
	a := commitOne(t, g.weights)
	r := open(t, g.weights, reader)
	hash, events := r.layoutHash(), history(t, g.weights)
	refused := 0
	for _, q := range requests(a.id) {
		if !q.rw {
			continue
		}
		refused++
		r.refused(q.kind, q.pairs...)
		require.Equal(t, []allocation{a}, r.allocations(), "after %s", q.kind)
		require.Equal(t, []string{"key"}, r.keys(""))
		e, found := r.get("key")
		require.True(t, found)
		require.Equal(t, entry{a.id, 10, []byte("value")}, e)
		require.Equal(t, hash, r.layoutHash())
		require.Equal(t, lockState{State: inReading, Readers: 1, Committed: true}, stateOf(t, g.weights))
	}
	require.Equal(t, 5, refused)
	require.Equal(t, events, history(t, g.weights))
}

func TestReadingRequestsAreAnsweredInBothModes(t *testing.T) {
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	a := w.allocate(100, "tag")
	w.put("key", a, 1, []byte("v"))
	readAll := func(t *testing.T, l *link) {
		require.Equal(t, a, readAllocation(t, l.ask("get_allocation", "allocation_id", a.id)))
		require.Equal(t, []allocation{a}, l.allocations("tag", nil))
		e, found := l.get("key")
		require.True(t, found)
		require.Equal(t, entry{a.id, 1, []byte("v")}, e)
		require.Equal(t, []string{"key"}, l.keys(""))
		require.EqualValues(t, 1, whole(t, l.ask("get_allocation_state"), "allocation_count"))
		got, fd := l.export(a)
		require.Equal(t, a, got)
		closeFD(fd)
	}
	readAll(t, w)
	require.Equal(t, "", w.layoutHash(), "nothing is committed")
	require.Equal(t, lockState{State: inWriting, Writer: true}, readState(t, w.alive()))
	w.commit()

	r := open(t, g.weights, reader)
	readAll(t, r)
	require.Len(t, r.layoutHash(), 64)
	require.Equal(t, lockState{State: inReading, Readers: 1, Committed: true}, readState(t, r.alive()))
}

// TestStateRequestsInASessionAreRefused: they belong to a connection of their own.
func TestStateRequestsInASessionAreRefused(t *testing.T) {
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	a := w.allocate(1, "x")
	w.refused("get_runtime_state")
	w.refused("get_event_history")
	require.Equal(t, []allocation{a}, w.allocations())
	w.commit()
	r := open(t, g.weights, reader)
	r.refused("get_runtime_state")
	r.refused("get_event_history")
	require.Equal(t, []allocation{a}, r.allocations())
}

// TestSecondHandshakeInASessionChangesNoLock.
func TestSecondHandshakeInASessionChangesNoLock(t *testing.T) {
	g := freshGPU(t)
	commitOne(t, g.weights)
	other := open(t, g.weights, reader)
	for _, lock := range []string{writer, reader, auto} {
		r := open(t, g.weights, reader)
		r.post(newMessage("handshake_request", "lock_type", lock, "timeout_ms", 0))
		if !r.errorOrEnd() {
			require.EqualValues(t, 2, stateOf(t, g.weights).Readers)
		}
		r.close()
		becomes(t, g.weights, lockState{State: inReading, Readers: 1, Committed: true})
	}
	other.alive()
}

// TestAnswersAsRequestsAreNoRequests: a server does not take its own messages.
func TestAnswersAsRequestsAreNoRequests(t *testing.T) {
	g := freshGPU(t)
	for _, kind := range []string{"handshake_response", "commit_response", "error_response", "allocate_response", "", "no_such_request"} {
		w := open(t, g.weights, writer)
		a := w.allocate(1, "x")
		w.post(newMessage(kind, "success", true, "error", "x", "code", 1))
		if !w.errorOrEnd() {
			require.Equal(t, []allocation{a}, w.allocations(), "after %q", kind)
			w.close()
		}
		becomes(t, g.weights, lockState{State: empty})
	}
}
