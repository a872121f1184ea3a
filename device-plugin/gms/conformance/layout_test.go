package conformance_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSlotsCountFromZeroAndAreNeverReused(t *testing.T) {
	g := freshGPU(t)
	for range 3 { // a new layout starts at slot 0
		w := open(t, g.weights, writer)
		var live []allocation
		for slot := range int64(20) {
			a := w.allocate(1, "x")
			require.Equal(t, slot, a.slot)
			if slot%3 == 1 {
				w.free(a)
			} else {
				live = append(live, a)
			}
			if slot == 10 { // the newest slot is not used again either
				w.free(live[len(live)-1])
				live = live[:len(live)-1]
			}
			require.Equal(t, live, w.allocations())
		}
		require.EqualValues(t, len(live), whole(t, w.ask("get_allocation_state"), "allocation_count"))
		w.commit()
		r := open(t, g.weights, reader)
		require.Equal(t, live, r.allocations(), "a commit keeps the slots")
		r.close()
	}
}

func TestAllocationIDsNeverRepeat(t *testing.T) {
	g := freshGPU(t)
	seen := map[string]bool{}
	for layout := range 8 {
		for _, path := range []string{g.weights, g.kvCache} {
			w := open(t, path, writer)
			for i := range 12 {
				a := w.allocate(1, "x")
				require.False(t, seen[a.id], "id %q comes again", a.id)
				seen[a.id] = true
				if i%2 == 0 {
					w.free(a)
				}
			}
			if layout%2 == 0 {
				w.commit()
			} else {
				w.close()
			}
		}
	}
}

func TestTagsSelectAllocations(t *testing.T) {
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	m := w.ask("allocate", "size", 1) // without a tag
	plain := allocation{str(t, m, "allocation_id"), 1, granularity, "default", 0}
	a, b := w.allocate(1, "a"), w.allocate(2, "b")
	a2, odd := w.allocate(3, "a"), w.allocate(4, "größe: \"1\" 🐎")
	prefix := w.allocate(5, "ab")
	all := []allocation{plain, a, b, a2, odd, prefix}
	check := func(l *link) {
		require.Equal(t, all, l.allocations("tag", nil))
		require.Equal(t, all, l.allocations())
		require.Equal(t, []allocation{a, a2}, l.allocations("tag", "a"))
		require.Equal(t, []allocation{b}, l.allocations("tag", "b"))
		require.Equal(t, []allocation{plain}, l.allocations("tag", "default"))
		require.Equal(t, []allocation{odd}, l.allocations("tag", odd.tag))
		require.Empty(t, l.allocations("tag", "no such"))
		for _, x := range all {
			require.Equal(t, x, readAllocation(t, l.ask("get_allocation", "allocation_id", x.id)))
		}
	}
	check(w)
	w.commit()
	check(open(t, g.weights, reader))
}

func TestFreeingAnAllocationDropsItsMetadataAndNoOther(t *testing.T) {
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	a, b := w.allocate(1, "x"), w.allocate(1, "x")
	w.put("a1", a, 0, []byte("1"))
	w.put("a2", a, 1, []byte("2"))
	w.put("b1", b, 0, []byte("3"))
	w.put("moved", a, 0, []byte("4"))
	w.put("moved", b, 5, []byte("5")) // belongs to b now
	w.put("left", b, 0, []byte("6"))
	w.put("left", a, 0, []byte("7")) // belongs to a now
	w.free(a)
	require.Equal(t, []string{"b1", "moved"}, w.keys(""))
	for _, key := range []string{"a1", "a2", "left"} {
		_, found := w.get(key)
		require.False(t, found, key)
		require.False(t, truth(t, w.ask("metadata_delete", "key", key), "deleted"))
	}
	e, _ := w.get("moved")
	require.Equal(t, entry{b.id, 5, []byte("5")}, e)
	w.commit()
	r := open(t, g.weights, reader)
	require.Equal(t, []string{"b1", "moved"}, r.keys(""))
}

func TestFreedMemoryCanBeAllocatedAgain(t *testing.T) {
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	for range 10 {
		a, b := w.allocate(capacity/2, "x"), w.allocate(capacity/2, "x")
		w.free(b)
		w.free(a)
	}
}

// TestListsAreEmptyAndNeverNil: the readers of the fields here take no nil for a list.
func TestListsAreEmptyAndNeverNil(t *testing.T) {
	g := freshGPU(t)
	require.Empty(t, history(t, g.weights))
	w := open(t, g.weights, writer)
	check := func(l *link) {
		require.Empty(t, list(t, l.ask("list_allocations"), "allocations"))
		require.Empty(t, list(t, l.ask("list_allocations", "tag", "x"), "allocations"))
		require.Empty(t, texts(t, l.ask("metadata_list"), "keys"))
		require.Empty(t, texts(t, l.ask("metadata_list", "prefix", "x"), "keys"))
	}
	check(w)
	a := w.allocate(1, "y")
	w.put("empty", a, 0, []byte{})
	require.Empty(t, blob(t, w.ask("metadata_get", "key", "empty"), "value"))
	w.free(a)
	check(w)
	w.commit()
	check(open(t, g.weights, reader))
}

// TestRepliesMayBeLargerThanTheCapOfRequests: lists of a layout that took many
// requests to make.
func TestRepliesMayBeLargerThanTheCapOfRequests(t *testing.T) {
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	tag := strings.Repeat("t", 100_000)
	var all []allocation
	for range 20 {
		all = append(all, w.allocate(1, tag))
	}
	const keys = 300
	long := strings.Repeat("k", 5000)
	for i := range keys {
		w.post(newMessage("metadata_put_request", "key", string(rune('a'+i%26))+string(rune('a'+i/26))+long, "allocation_id", all[0].id,
			"offset_bytes", i, "value", []byte{}))
		require.Equal(t, "metadata_put_response", w.next().kind())
	}
	require.Greater(t, len(all)*len(tag), frameCap)
	require.Equal(t, all, w.allocations())
	require.Len(t, w.keys(""), keys)
	w.commit()
	r := open(t, g.weights, reader)
	require.Equal(t, all, r.allocations("tag", tag))
	require.Len(t, r.keys("a"), 12)
}
