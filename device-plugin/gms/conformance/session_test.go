package conformance_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The lock types of a handshake.
const (
	writer = "rw"
	reader = "ro"
	auto   = "auto"
)

// Timeouts: forever is nil on the wire, oneTry the smallest that the page names.
var forever any

const oneTry = 0

// handshake sends a handshake and does not wait for its answer.
func handshake(t testing.TB, path, lock string, timeout any, pairs ...any) *link {
	t.Helper()
	m := newMessage("handshake_request", pairs...)
	m["lock_type"], m["timeout_ms"] = lock, timeout
	return dial(t, path).post(m)
}

// open opens a session and checks the grant.
func open(t testing.TB, path, lock string, pairs ...any) *link {
	t.Helper()
	l := handshake(t, path, lock, int(patience/time.Millisecond), pairs...)
	granted := lock
	if lock == auto {
		granted = ""
	}
	l.granted(granted)
	return l
}

// granted reads the answer to a handshake, which must be a grant of that lock.
// Without one, it may be either; which it is is returned.
func (l *link) granted(lock string) string {
	l.t.Helper()
	return str(l.t, l.grant(lock), "granted_lock_type")
}

func (l *link) grant(lock string) message {
	l.t.Helper()
	m := l.next()
	require.Equal(l.t, "handshake_response", m.kind(), "%v", m)
	require.True(l.t, truth(l.t, m, "success"), "the handshake failed: %v", m)
	got := str(l.t, m, "granted_lock_type")
	if lock != "" {
		require.Equal(l.t, lock, got)
	}
	require.Contains(l.t, []string{writer, reader}, got)
	// A writer has just cleared the layout; a reader is only let in to a committed one.
	require.Equal(l.t, got == reader, truth(l.t, m, "committed"), "committed in the grant of %s", got)
	return m
}

// denied reads the answer to a handshake, which must be a refusal; then the server
// closes.
func (l *link) denied(code string) message {
	l.t.Helper()
	m := l.next()
	require.Equal(l.t, "handshake_response", m.kind(), "%v", m)
	require.False(l.t, truth(l.t, m, "success"), "%v", m)
	require.Contains(l.t, m, "granted_lock_type")
	require.Nil(l.t, m["granted_lock_type"])
	truth(l.t, m, "committed")
	require.Equal(l.t, code, str(l.t, m, "code"), "%v", m)
	require.NotEmpty(l.t, str(l.t, m, "error"))
	l.closed()
	return m
}

// allocation is what the server says of one.
type allocation struct {
	id            string
	size, aligned int64
	tag           string
	slot          int64
}

// allocate makes an allocation in a writer's session, with the tag in words.
func (l *link) allocate(size int64, tag string) allocation {
	l.t.Helper()
	m := l.ask("allocate", "size", size, "tag", tag)
	a := allocation{id: str(l.t, m, "allocation_id"), size: whole(l.t, m, "size"), aligned: whole(l.t, m, "aligned_size"),
		tag: tag, slot: whole(l.t, m, "layout_slot")}
	require.NotEmpty(l.t, a.id)
	require.Equal(l.t, size, a.size)
	require.GreaterOrEqual(l.t, a.aligned, a.size)
	return a
}

// readAllocation reads the five fields of an allocation.
func readAllocation(t testing.TB, m message) allocation {
	t.Helper()
	return allocation{id: str(t, m, "allocation_id"), size: whole(t, m, "size"), aligned: whole(t, m, "aligned_size"),
		tag: str(t, m, "tag"), slot: whole(t, m, "layout_slot")}
}

// allocations lists the session's allocations, by slot.
func (l *link) allocations(pairs ...any) []allocation {
	l.t.Helper()
	m := l.ask("list_allocations", pairs...)
	out := []allocation{}
	for _, v := range list(l.t, m, "allocations") {
		item, ok := v.(map[string]any)
		require.True(l.t, ok, "an item of allocations is %T", v)
		require.Equal(l.t, "get_allocation_response", item["type"], "v0 decodes the items as messages")
		out = append(out, readAllocation(l.t, item))
	}
	sortBySlot(out)
	return out
}

func (l *link) keys(prefix string) []string {
	l.t.Helper()
	return texts(l.t, l.ask("metadata_list", "prefix", prefix), "keys")
}

// put stores metadata.
func (l *link) put(key string, a allocation, offset int64, value []byte) {
	l.t.Helper()
	m := l.ask("metadata_put", "key", key, "allocation_id", a.id, "offset_bytes", offset, "value", value)
	require.True(l.t, truth(l.t, m, "success"))
}

// entry is one key's metadata.
type entry struct {
	id     string
	offset int64
	value  []byte
}

// get reads metadata; found is false where there is none.
func (l *link) get(key string) (e entry, found bool) {
	l.t.Helper()
	m := l.ask("metadata_get", "key", key)
	if !truth(l.t, m, "found") {
		return e, false
	}
	return entry{str(l.t, m, "allocation_id"), whole(l.t, m, "offset_bytes"), blob(l.t, m, "value")}, true
}

func (l *link) free(a allocation) {
	l.t.Helper()
	require.True(l.t, truth(l.t, l.ask("free_allocation", "allocation_id", a.id), "success"))
}

func (l *link) layoutHash() string {
	l.t.Helper()
	return str(l.t, l.ask("get_memory_layout_hash"), "memory_layout_hash")
}

// commit commits; then the server closes the session.
func (l *link) commit() {
	l.t.Helper()
	require.True(l.t, truth(l.t, l.ask("commit"), "success"))
	l.closed()
}

// commitOne commits a layout of one allocation with one key.
func commitOne(t testing.TB, path string) allocation {
	t.Helper()
	w := open(t, path, writer)
	a := w.allocate(1000, "one")
	w.put("key", a, 10, []byte("value"))
	w.commit()
	return a
}

// Sizes that no GPU has.
const (
	mostNegative = math.MinInt64
	mostPositive = math.MaxInt64
)
