package conformance_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSizesAreRoundedUpToTheGranularity(t *testing.T) {
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	for size, aligned := range map[int64]int64{1: granularity, granularity - 1: granularity, granularity: granularity,
		granularity + 1: 2 * granularity, 5*granularity - 1: 5 * granularity, 5 * granularity: 5 * granularity} {
		a := w.allocate(size, "x")
		require.Equal(t, aligned, a.aligned, "size %d", size)
		w.free(a)
	}
}

func TestSizesThatAreNoSizesAreRefused(t *testing.T) {
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	a := w.allocate(1, "x")
	for _, size := range []int64{0, -1, -granularity, math.MinInt32, mostNegative} {
		w.refused("allocate", "size", size, "tag", "x")
		require.Equal(t, []allocation{a}, w.allocations(), "after size %d", size)
	}
	require.EqualValues(t, 1, w.allocate(1, "x").slot, "a refused request takes no slot")
}

// TestSizesThatNoGPUHasAreNeverGranted: they fail at once or wait; rounding them up
// does not wrap around.
func TestSizesThatNoGPUHasAreNeverGranted(t *testing.T) {
	hostOnly(t, needsSmallGPU)
	g := freshGPU(t)
	for _, size := range []any{int64(capacity + 1), int64(1 << 40), int64(mostPositive), int64(mostPositive - granularity),
		uint64(1 << 63), uint64(math.MaxUint64), uint64(math.MaxUint64 - granularity), uint64(math.MaxUint64 - granularity + 2)} {
		w := open(t, g.weights, writer)
		w.post(newMessage("allocate_request", "size", size))
		a, err := w.receive(2 * oomRetry)
		switch {
		case err == nil:
			requireError(t, a.message, "allocate")
			require.Empty(t, w.allocations())
		case timedOut(err): // it waits for memory that never comes
			require.Zero(t, func() int64 { _, n, _ := runtimeState(t, g.weights); return n }())
		default:
			// Above 2^63 an integer may be mistyped.
			_, large := size.(uint64)
			require.True(t, large && ended(err), "size %v: %v", size, err)
		}
		w.close()
		becomes(t, g.weights, lockState{State: empty})
	}
	w := open(t, g.weights, writer)
	w.allocate(capacity, "all of it is still there")
}

func TestOffsetsLieWithinTheAllocation(t *testing.T) {
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	a := w.allocate(granularity+1, "x") // two granules
	w.put("kept", a, 7, []byte("kept"))
	for _, offset := range []int64{-1, mostNegative, math.MinInt32, a.aligned, a.aligned + 1, math.MaxUint32, mostPositive} {
		for _, key := range []string{"kept", "new"} {
			w.refused("metadata_put", "key", key, "allocation_id", a.id, "offset_bytes", offset, "value", []byte("changed"))
			require.Equal(t, []string{"kept"}, w.keys(""), "offset %d", offset)
			e, _ := w.get("kept")
			require.Equal(t, entry{a.id, 7, []byte("kept")}, e)
		}
	}
	w.post(newMessage("metadata_put_request", "key", "new", "allocation_id", a.id, "offset_bytes", uint64(math.MaxUint64), "value", []byte{}))
	if !w.errorOrEnd() { // may be mistyped
		require.Equal(t, []string{"kept"}, w.keys(""))
		w.close()
	}
	becomes(t, g.weights, lockState{State: empty})

	w = open(t, g.weights, writer)
	a = w.allocate(granularity+1, "x")
	for _, offset := range []int64{0, 1, a.size - 1, a.size, a.aligned - 1} {
		w.put("key", a, offset, []byte{})
		e, _ := w.get("key")
		require.Equal(t, entry{a.id, offset, []byte{}}, e)
	}
}

func TestUnknownAllocationsAreRefused(t *testing.T) {
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	freed := w.allocate(1, "x")
	w.free(freed)
	a := w.allocate(1, "x")
	w.put("key", a, 1, []byte("v"))
	for _, id := range []string{"", "no such", freed.id, a.id + "0", a.id[:len(a.id)-1], "0", "../" + a.id} {
		w.refused("get_allocation", "allocation_id", id)
		w.refused("export_allocation", "allocation_id", id)
		w.refused("metadata_put", "key", "key", "allocation_id", id, "offset_bytes", 0, "value", []byte("changed"))
		w.post(newMessage("free_allocation_request", "allocation_id", id))
		if m := w.next(); m.kind() == "free_allocation_response" {
			require.False(t, truth(t, m, "success"))
		} else {
			requireError(t, m, "free")
		}
		require.Equal(t, []allocation{a}, w.allocations(), "after %q", id)
		e, found := w.get("key")
		require.True(t, found)
		require.Equal(t, entry{a.id, 1, []byte("v")}, e)
	}
}

// TestMistypedFieldsAreRefused: with an error or a disconnect, and the layout is as
// it was, or gone with its writer.
func TestMistypedFieldsAreRefused(t *testing.T) {
	g := freshGPU(t)
	wrong := []any{nil, true, "12", 1.5, []byte("12"), []any{1}, map[string]any{"a": 1}}
	for _, q := range []request{
		{"allocate", []any{"tag", "x", "size", 0}, true},
		{"allocate", []any{"size", 1, "tag", 0}, true},
		{"free_allocation", []any{"allocation_id", 0}, true},
		{"get_allocation", []any{"allocation_id", 0}, true},
		{"export_allocation", []any{"allocation_id", 0}, true},
		{"metadata_get", []any{"key", 0}, true},
		{"metadata_delete", []any{"key", 0}, true},
		{"metadata_put", []any{"key", "k", "value", []byte{}, "allocation_id", "ID", "offset_bytes", 0}, true},
		{"metadata_put", []any{"key", "k", "offset_bytes", 0, "allocation_id", "ID", "value", 0}, true},
	} {
		field := q.pairs[len(q.pairs)-2].(string)
		t.Run(q.kind+" "+field, func(t *testing.T) {
			w := open(t, g.weights, writer)
			a := w.allocate(1, "x")
			for _, bad := range append(wrong, missing) {
				if mayBe(field, bad) {
					continue
				}
				m := newMessage(q.kind+"_request", q.pairs...)
				if _, ok := m["allocation_id"]; ok {
					m["allocation_id"] = a.id
				}
				m[field] = bad
				if bad == missing {
					delete(m, field)
				}
				w.post(m)
				if w.errorOrEnd() {
					becomes(t, g.weights, lockState{State: empty})
					w = open(t, g.weights, writer)
					a = w.allocate(1, "x")
					continue
				}
				require.Equal(t, []allocation{a}, w.allocations(), "%s %v", field, bad)
				require.Empty(t, w.keys(""))
			}
			w.close()
			becomes(t, g.weights, lockState{State: empty})
		})
	}
}

// missing stands for a field that is not there.
const missing = "\x00missing"

// mayBe are the values that are of the field's type, or that a decoder may take for
// one: the page has a default for the tag, and says nothing of text for bytes.
func mayBe(field string, v any) bool {
	switch v.(type) {
	case string:
		return v == missing && (field == "tag" || field == "value") || v != missing && (field != "size" && field != "offset_bytes")
	case nil:
		return field == "tag" || field == "value"
	case []byte:
		return field != "size" && field != "offset_bytes"
	}
	return false
}

func TestRefusedRequestsDoNotDelayOthers(t *testing.T) {
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	for range 100 {
		w.post(newMessage("allocate_request", "size", 0))
	}
	for range 100 {
		requireError(t, w.next(), "allocate")
	}
	require.Zero(t, oomEvents(t, g.weights), "none was tried again")
	w.allocate(1, "x")
}
