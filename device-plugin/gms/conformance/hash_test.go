package conformance_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// layoutHash is the page's hash of a layout: allocations by slot, then metadata by
// key, with an allocation's rank in place of its slot.
func layoutHash(all []allocation, meta map[string]entry) string {
	all = slices.Clone(all)
	sortBySlot(all)
	h := sha256.New()
	ranks := map[string]int{}
	for rank, a := range all {
		ranks[a.id] = rank
		fmt.Fprintf(h, "%d:%d:%d:%s", rank, a.size, a.aligned, a.tag)
	}
	for _, key := range slices.Sorted(maps.Keys(meta)) {
		e := meta[key]
		fmt.Fprintf(h, "%s:%d:%d:", key, ranks[e.id], e.offset)
		h.Write(e.value)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// TestHashIsThePagesOfARandomLayout: allocations that come and go, keys that are
// set, replaced, deleted and dropped.
func TestHashIsThePagesOfARandomLayout(t *testing.T) {
	g := freshGPU(t)
	seen := map[string]bool{}
	for seed := range uint64(12) {
		random := rand.New(rand.NewPCG(seed, 4))
		w := open(t, g.weights, writer)
		all, meta := build(w, random, 40)
		require.Empty(t, w.layoutHash(), "uncommitted")
		w.commit()
		want := layoutHash(all, meta)
		r := open(t, g.weights, reader)
		require.Equal(t, want, r.layoutHash(), "seed %d: %v %v", seed, all, meta)
		require.Equal(t, all, r.allocations())
		r.close()
		_, n, hash := runtimeState(t, g.weights)
		require.Equal(t, want, hash)
		require.EqualValues(t, len(all), n)
		again := handshake(t, g.weights, reader, forever)
		require.Equal(t, want, str(t, again.grant(reader), "memory_layout_hash"))
		require.False(t, seen[hash], "layouts differ, so their hashes do")
		seen[hash] = true
		again.close()
	}
}

// build makes a layout by random requests; it returns what must be there.
func build(w *link, random *rand.Rand, steps int) ([]allocation, map[string]entry) {
	all, meta := []allocation{}, map[string]entry{}
	for range steps {
		key := fmt.Sprintf("layer.%d.wéight", random.IntN(12))
		switch n := random.IntN(10); {
		case n < 4 || len(all) == 0:
			if len(all) == 15 {
				continue
			}
			all = append(all, w.allocate(1+random.Int64N(2*granularity), []string{"weights", "", "a:b", "tag é"}[random.IntN(4)]))
		case n < 5:
			i := random.IntN(len(all))
			w.free(all[i])
			maps.DeleteFunc(meta, func(_ string, e entry) bool { return e.id == all[i].id })
			all = slices.Delete(all, i, i+1)
		case n < 6:
			_, there := meta[key]
			require.Equal(w.t, there, truth(w.t, w.ask("metadata_delete", "key", key), "deleted"))
			delete(meta, key)
		default:
			a := all[random.IntN(len(all))]
			e := entry{a.id, random.Int64N(a.aligned), make([]byte, random.IntN(40))}
			for i := range e.value {
				e.value[i] = byte(random.Uint32())
			}
			w.put(key, a, e.offset, e.value)
			meta[key] = e
		}
	}
	return all, meta
}

// TestHashIsOfTheLayoutAndNotOfItsHistory: slots that were pruned, the order in which
// keys came, and what was replaced leave no trace, on another GPU either.
func TestHashIsOfTheLayoutAndNotOfItsHistory(t *testing.T) {
	plain, pruned := freshGPU(t), anotherGPU(t)
	w := open(t, plain.weights, writer)
	a, b := w.allocate(100, "x"), w.allocate(200, "y")
	w.put("a", a, 1, []byte("1"))
	w.put("b", b, 2, []byte("2"))
	w.commit()

	w = open(t, pruned.weights, writer)
	gone := w.allocate(5, "gone")
	c := w.allocate(100, "x")
	gone2 := w.allocate(5, "gone")
	d := w.allocate(200, "y")
	gone3 := w.allocate(5, "gone")
	w.put("gone", gone2, 0, []byte("gone"))
	w.put("b", d, 9, []byte("replaced"))
	w.put("b", d, 2, []byte("2"))
	w.put("deleted", d, 2, []byte("2"))
	w.put("a", c, 1, []byte("1"))
	w.ask("metadata_delete", "key", "deleted")
	for _, x := range []allocation{gone, gone2, gone3} {
		w.free(x)
	}
	w.mapping(c, true).fill(5) // the bytes on the GPU do not count
	w.commit()
	require.EqualValues(t, []int64{1, 3}, []int64{c.slot, d.slot})
	_, _, first := runtimeState(t, plain.weights)
	_, _, second := runtimeState(t, pruned.weights)
	require.Equal(t, first, second)
	require.Equal(t, layoutHash([]allocation{a, b}, map[string]entry{"a": {a.id, 1, []byte("1")}, "b": {b.id, 2, []byte("2")}}), first)
}

// TestHashIsStableWhileReadersComeAndGo.
func TestHashIsStableWhileReadersComeAndGo(t *testing.T) {
	g := freshGPU(t)
	commitOne(t, g.weights)
	_, _, hash := runtimeState(t, g.weights)
	for range 5 {
		r := open(t, g.weights, reader)
		require.Equal(t, hash, r.layoutHash())
		r.close()
		_, _, now := runtimeState(t, g.weights)
		require.Equal(t, hash, now)
	}
}

// TestHashTellsEveryPartOfALayoutApart: one change each.
func TestHashTellsEveryPartOfALayoutApart(t *testing.T) {
	g := freshGPU(t)
	type layout struct {
		sizes  [2]int64
		tags   [2]string
		key    string
		on     int
		offset int64
		value  string
	}
	base := layout{[2]int64{100, 200}, [2]string{"x", "y"}, "k", 0, 5, "v"}
	change := map[string]func(*layout){
		"nothing": func(*layout) {},
		"size":    func(l *layout) { l.sizes[0]++ },
		"aligned": func(l *layout) { l.sizes[1] = granularity + 1 },
		"order":   func(l *layout) { l.sizes[0], l.sizes[1] = l.sizes[1], l.sizes[0] },
		"tag":     func(l *layout) { l.tags[1] = "z" },
		"key":     func(l *layout) { l.key = "K" },
		"rank":    func(l *layout) { l.on = 1 },
		"offset":  func(l *layout) { l.offset++ },
		"value":   func(l *layout) { l.value = "w" },
		"empty":   func(l *layout) { l.value = "" },
	}
	hashes := map[string]string{}
	for name, f := range change {
		l := base
		f(&l)
		w := open(t, g.weights, writer)
		all := []allocation{w.allocate(l.sizes[0], l.tags[0]), w.allocate(l.sizes[1], l.tags[1])}
		w.put(l.key, all[l.on], l.offset, []byte(l.value))
		w.commit()
		_, _, hash := runtimeState(t, g.weights)
		require.Equal(t, layoutHash(all, map[string]entry{l.key: {all[l.on].id, l.offset, []byte(l.value)}}), hash, name)
		require.Empty(t, hashes[hash], "%s hashes like %s", name, hashes[hash])
		hashes[hash] = name
	}
	require.Len(t, hashes, len(change))
}
