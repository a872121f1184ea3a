package conformance_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFirstMessageOfASessionIsAHandshake: any other request of a session is an error,
// and the server closes.
func TestFirstMessageOfASessionIsAHandshake(t *testing.T) {
	g := freshGPU(t)
	a := commitOne(t, g.weights)
	before, events := stateOf(t, g.weights), history(t, g.weights)
	for _, q := range requests(a.id) {
		l := dial(t, g.weights).post(newMessage(q.kind+"_request", q.pairs...))
		requireError(t, l.next(), q.kind)
		l.closed()
	}
	r := open(t, g.weights, reader)
	require.Equal(t, []allocation{a}, r.allocations(), "none of them did anything")
	r.close()
	becomes(t, g.weights, before)
	require.Equal(t, events, history(t, g.weights))
}

func TestUnknownOrMistypedFirstMessageIsRefused(t *testing.T) {
	g := freshGPU(t)
	for name, m := range map[string]message{
		"unknown type":     newMessage("no_such_request"),
		"answer":           newMessage("handshake_response", "success", true, "committed", true, "granted_lock_type", writer),
		"empty type":       newMessage(""),
		"no type":          {"lock_type": writer},
		"nil type":         {"type": nil, "lock_type": writer},
		"number as type":   {"type": 7, "lock_type": writer},
		"empty map":        {},
		"bytes as type":    {"type": []byte("handshake_request"), "lock_type": writer, "timeout_ms": 0},
		"map as type":      {"type": map[string]any{"a": 1}},
		"wrong case":       newMessage("Handshake_Request", "lock_type", writer),
		"camel case":       newMessage("HandshakeRequest", "lock_type", writer),
		"without _request": newMessage("handshake", "lock_type", writer),
	} {
		t.Run(name, func(t *testing.T) {
			l := dial(t, g.weights).post(m)
			if !l.errorOrEnd() {
				l.closed()
			}
			require.Equal(t, lockState{State: empty}, stateOf(t, g.weights))
		})
	}
}

// TestClientThatSaysNothingHoldsNothing: connections without a request, and half a
// request, keep nobody out.
func TestClientThatSaysNothingHoldsNothing(t *testing.T) {
	g := freshGPU(t)
	for range 20 {
		dial(t, g.weights)
		l := dial(t, g.weights)
		require.NoError(t, l.write([]byte{0, 0, 0}))
	}
	open(t, g.weights, writer).commit()
	open(t, g.weights, reader)
}

// TestUnknownFieldsAreIgnored: whatever their kind, and wherever they stand.
func TestUnknownFieldsAreIgnored(t *testing.T) {
	g := freshGPU(t)
	extra := []any{
		"a_text", "x", "a_number", -5, "a_large_number", uint64(1 << 63), "a_float", 1.5, "a_flag", true, "nothing", nil,
		"a_blob", []byte{1, 2}, "a_list", []any{1, "x", []any{nil}}, "a_map", map[string]any{"type": "commit_request", "size": 3},
		"a_map_of_numbers", map[int]int{1: 2}, "an_extension", rawInt{0xd4, 5, 0}, "a_time", rawInt{0xd6, 0xff, 0, 0, 0, 1},
		"AAA", "first", "zzz", "last", "success", false, "granted_lock_type", 5,
	}
	with := func(pairs ...any) []any { return append(pairs, extra...) }
	w := handshake(t, g.weights, writer, forever, extra...)
	w.granted(writer)
	m := w.ask("allocate", with("size", 5, "tag", "x")...)
	a := allocation{str(t, m, "allocation_id"), 5, granularity, "x", 0}
	require.Equal(t, a.slot, whole(t, m, "layout_slot"))
	require.Equal(t, []allocation{a}, w.allocations(with("tag", "x")...))
	require.Equal(t, a, readAllocation(t, w.ask("get_allocation", with("allocation_id", a.id)...)))
	w.ask("metadata_put", with("key", "k", "allocation_id", a.id, "offset_bytes", 1, "value", []byte{9})...)
	w.ask("metadata_get", with("key", "k")...)
	require.Equal(t, []string{"k"}, texts(t, w.ask("metadata_list", extra...), "keys"))
	w.ask("get_memory_layout_hash", extra...)
	w.ask("get_lock_state", extra...)
	w.ask("get_allocation_state", extra...)
	require.True(t, truth(t, w.ask("metadata_delete", with("key", "k")...), "deleted"))
	b := w.allocate(1, "y")
	require.True(t, truth(t, w.ask("free_allocation", with("allocation_id", b.id)...), "success"))
	require.True(t, truth(t, w.ask("commit", extra...), "success"))
	for _, kind := range []string{"get_runtime_state", "get_event_history"} {
		dial(t, g.weights).ask(kind, extra...)
	}
	r := open(t, g.weights, reader)
	require.Equal(t, []allocation{a}, r.allocations())
}

// TestTypeMayStandAnywhereInTheMap: a map has no order.
func TestTypeMayStandAnywhereInTheMap(t *testing.T) {
	g := freshGPU(t)
	l := dial(t, g.weights)
	body := []byte{0x83} // a map of three
	body = append(body, encode(message{"lock_type": writer})[1:]...)
	body = append(body, encode(message{"timeout_ms": nil})[1:]...)
	body = append(body, encode(message{"type": "handshake_request"})[1:]...)
	require.NoError(t, l.write(frame(body)))
	l.granted(writer)
}

// TestEveryWidthOfTextAndMapIsRead: encoders need not choose the shortest.
func TestEveryWidthOfTextAndMapIsRead(t *testing.T) {
	g := freshGPU(t)
	text := func(s string) []byte { return append([]byte{0xdb, 0, 0, 0, byte(len(s))}, s...) }
	body := []byte{0xdf, 0, 0, 0, 2}
	for _, s := range []string{"type", "handshake_request", "lock_type", "rw"} {
		body = append(body, text(s)...)
	}
	l := dial(t, g.weights)
	require.NoError(t, l.write(frame(body)))
	l.granted(writer)
	id := l.allocate(9, "t").id
	put := append([]byte{0x85}, encode(message{"type": "metadata_put_request", "key": "k", "allocation_id": id, "offset_bytes": 0})[1:]...)
	put = append(put, text("value")...)
	put = append(put, 0xc6, 0, 0, 0, 2, 7, 8) // bin 32
	require.NoError(t, l.write(frame(put)))
	require.Equal(t, "metadata_put_response", l.next().kind())
	e, _ := l.get("k")
	require.Equal(t, []byte{7, 8}, e.value)
}
