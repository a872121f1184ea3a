package conformance_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMetadataIsStoredReplacedAndDeleted(t *testing.T) {
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	a, b := w.allocate(1, "x"), w.allocate(1, "x")
	_, found := w.get("k")
	require.False(t, found)
	require.False(t, truth(t, w.ask("metadata_delete", "key", "k"), "deleted"))
	w.put("k", a, 1, []byte("first"))
	w.put("k", b, 2, []byte("second, which is longer"))
	e, _ := w.get("k")
	require.Equal(t, entry{b.id, 2, []byte("second, which is longer")}, e)
	require.Equal(t, []string{"k"}, w.keys(""))
	require.True(t, truth(t, w.ask("metadata_delete", "key", "k"), "deleted"))
	require.False(t, truth(t, w.ask("metadata_delete", "key", "k"), "deleted"))
	_, found = w.get("k")
	require.False(t, found)
	require.Empty(t, w.keys(""))
	require.Equal(t, []allocation{a, b}, w.allocations(), "the allocations stay")
}

func TestMetadataIsAnyBytes(t *testing.T) {
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	a := w.allocate(1, "x")
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	values := map[string][]byte{"empty": {}, "zero": {0}, "every": every, "long": bytes.Repeat(every, 1000), "no text": {0xff, 0xfe, 0xc0}}
	for key, v := range values {
		w.put(key, a, 0, v)
	}
	w.commit()
	r := open(t, g.weights, reader)
	for key, v := range values {
		e, found := r.get(key)
		require.True(t, found, key)
		require.Equal(t, v, e.value, key)
	}
}

func TestKeysAreListedSortedByPrefix(t *testing.T) {
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	a := w.allocate(1, "x")
	// Sorted by code point: "\uffff" is before "🐎", which UTF-16 sorts the other way.
	keys := []string{"z", "a/b", "a", "a/a", "ab", "B", "é", "zz", "10", "9", " ", "\uffff", "🐎", "a/é", "A:b:", "a\x00"}
	for _, k := range keys {
		w.put(k, a, 0, []byte(k))
	}
	slices.Sort(keys)
	w2 := w
	for range 2 {
		require.Equal(t, keys, w2.keys(""))
		require.Equal(t, keys, texts(t, w2.ask("metadata_list"), "keys"))
		require.Equal(t, []string{"a", "a\x00", "a/a", "a/b", "a/é", "ab"}, w2.keys("a"))
		require.Equal(t, []string{"a/a", "a/b", "a/é"}, w2.keys("a/"))
		require.Equal(t, []string{"z", "zz"}, w2.keys("z"))
		require.Equal(t, []string{"🐎"}, w2.keys("🐎"))
		require.Empty(t, w2.keys("a/bc"))
		for _, k := range keys {
			e, found := w2.get(k)
			require.True(t, found, "%q", k)
			require.Equal(t, []byte(k), e.value)
		}
		if w2 == w {
			w.commit()
			w2 = open(t, g.weights, reader)
		}
	}
}

// TestValuesUpToTheFrameCapAreStored: the cap is on the body of the request, so that
// the answer with the value is larger.
func TestValuesUpToTheFrameCapAreStored(t *testing.T) {
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	a := w.allocate(1, "x")
	put := func(n int) message {
		return newMessage("metadata_put_request", "key", "k", "allocation_id", a.id, "offset_bytes", 0, "value", bytes.Repeat([]byte{0xc1}, n))
	}
	room := frameCap - len(encode(put(100_000))) + 100_000
	require.Len(t, encode(put(room)), frameCap)
	w.post(put(room))
	require.Equal(t, "metadata_put_response", w.next().kind())
	e, _ := w.get("k")
	require.Equal(t, bytes.Repeat([]byte{0xc1}, room), e.value)
	w.commit()
	r := open(t, g.weights, reader)
	e, _ = r.get("k")
	require.Len(t, e.value, room)
}

func TestBodiesOverTheFrameCapEndTheSession(t *testing.T) {
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	a := w.allocate(1, "x")
	body := encode(newMessage("metadata_put_request", "key", "k", "allocation_id", a.id, "offset_bytes", 0, "value", make([]byte, frameCap)))
	require.Greater(t, len(body), frameCap)
	_ = w.write(frame(body)) // the server may be gone before it is all written
	w.closed()
	becomes(t, g.weights, lockState{State: empty})
}
