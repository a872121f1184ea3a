package layout_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/gob"
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/device-plugin/gms/layout"
)

// numbered makes IDs "a1", "a2" and so on.
func numbered() func() string {
	n := 0
	return func() string { n++; return fmt.Sprintf("a%d", n) }
}

func offers(pairs ...any) []layout.Offer {
	var out []layout.Offer
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, layout.Offer{Session: layout.SessionID(pairs[i].(int)), Mode: pairs[i+1].(layout.Mode)})
	}
	return out
}

// open connects and accepts a session that gets the lock at once.
func open(t *testing.T, m *layout.Machine, id layout.SessionID, mode layout.Mode) layout.Accepted {
	t.Helper()
	e := m.Connect(id, mode)
	require.Len(t, e.Offers, 1)
	require.Equal(t, id, e.Offers[0].Session)
	a, _, err := m.Accept(id)
	require.NoError(t, err)
	return a
}

func allocate(t *testing.T, m *layout.Machine, id layout.SessionID, size uint64, tag string) layout.Allocation {
	t.Helper()
	a, err := m.Allocate(id, size, (size+15)/16*16, tag)
	require.NoError(t, err)
	return a
}

func commit(t *testing.T, m *layout.Machine, id layout.SessionID) layout.Effects {
	t.Helper()
	e, err := m.Commit(id)
	require.NoError(t, err)
	return e
}

// TestLockGrants walks through the rules of the page, one case a rule.
func TestLockGrants(t *testing.T) {
	const rw, ro, auto = layout.Writer, layout.Reader, layout.Auto
	for _, c := range []struct {
		name string
		do   func(t *testing.T, m *layout.Machine)
	}{
		{"a writer on an empty layout", func(t *testing.T, m *layout.Machine) {
			require.Equal(t, offers(1, rw), m.Connect(1, rw).Offers)
		}},
		{"auto on an empty layout writes", func(t *testing.T, m *layout.Machine) {
			require.Equal(t, offers(1, rw), m.Connect(1, auto).Offers)
		}},
		{"a reader of nothing waits", func(t *testing.T, m *layout.Machine) {
			require.Empty(t, m.Connect(1, ro).Offers)
		}},
		{"an offer reserves the lock", func(t *testing.T, m *layout.Machine) {
			m.Connect(1, rw)
			require.Empty(t, m.Connect(2, rw).Offers)
			require.Empty(t, m.Connect(3, auto).Offers)
			require.Equal(t, layout.Status{State: layout.Empty, Waiting: 1}, m.Status())
			require.Equal(t, offers(2, rw), m.Leave(1).Offers, "given back")
			require.Empty(t, m.Events())
		}},
		{"a commit wakes readers and autos, but not before a writer", func(t *testing.T, m *layout.Machine) {
			open(t, m, 1, rw)
			m.Connect(2, ro)
			m.Connect(3, auto)
			require.Equal(t, offers(2, ro, 3, ro), commit(t, m, 1).Offers)
		}},
		{"a waiting writer goes first on commit", func(t *testing.T, m *layout.Machine) {
			open(t, m, 1, rw)
			m.Connect(2, ro)
			m.Connect(3, auto)
			m.Connect(4, rw)
			require.Equal(t, offers(4, rw), commit(t, m, 1).Offers)
			require.Equal(t, offers(2, ro, 3, ro), m.Leave(4).Offers, "it has cleared nothing")
			require.True(t, m.Status().Committed)
		}},
		{"a waiting writer holds up readers that come later", func(t *testing.T, m *layout.Machine) {
			open(t, m, 1, rw)
			commit(t, m, 1)
			open(t, m, 2, ro)
			require.Empty(t, m.Connect(3, rw).Offers)
			require.Empty(t, m.Connect(4, ro).Offers)
			require.Empty(t, m.Connect(5, auto).Offers)
			require.Equal(t, layout.Status{State: layout.Reading, Readers: 1, Waiting: 1, Committed: true, Hash: m.Status().Hash}, m.Status())
			gaveUp, e := m.GiveUp(3)
			require.True(t, gaveUp)
			require.Equal(t, offers(4, ro, 5, ro), e.Offers)
		}},
		{"the last reader lets the writer in", func(t *testing.T, m *layout.Machine) {
			open(t, m, 1, rw)
			commit(t, m, 1)
			open(t, m, 2, ro)
			open(t, m, 3, ro)
			m.Connect(4, rw)
			require.Empty(t, m.Leave(2).Offers)
			require.Equal(t, offers(4, rw), m.Leave(3).Offers)
		}},
		{"an offered reader keeps a writer out", func(t *testing.T, m *layout.Machine) {
			open(t, m, 1, rw)
			commit(t, m, 1)
			require.Equal(t, offers(2, ro), m.Connect(2, ro).Offers)
			require.Empty(t, m.Connect(3, rw).Offers)
			require.Equal(t, layout.Committed, m.Status().State, "it has not accepted")
			require.Equal(t, offers(3, rw), m.Leave(2).Offers)
		}},
		{"an abort lets the first of writers and autos in", func(t *testing.T, m *layout.Machine) {
			open(t, m, 1, rw)
			m.Connect(2, ro)
			m.Connect(3, auto)
			m.Connect(4, rw)
			require.Equal(t, offers(3, rw), m.Leave(1).Offers)
			require.Equal(t, offers(4, rw), m.Leave(3).Offers)
			require.Empty(t, m.Leave(4).Offers, "nothing is committed for the reader")
		}},
		{"giving up too late", func(t *testing.T, m *layout.Machine) {
			m.Connect(1, rw)
			gaveUp, e := m.GiveUp(1)
			require.False(t, gaveUp)
			require.Empty(t, e.Offers)
			_, _, err := m.Accept(1)
			require.NoError(t, err)
			gaveUp, _ = m.GiveUp(1)
			require.False(t, gaveUp)
			gaveUp, _ = m.GiveUp(99)
			require.False(t, gaveUp)
		}},
		{"accepting what was not offered", func(t *testing.T, m *layout.Machine) {
			open(t, m, 1, rw)
			m.Connect(2, rw)
			for _, id := range []layout.SessionID{2, 99} {
				_, _, err := m.Accept(id)
				require.ErrorIs(t, err, layout.ErrNoSession)
			}
			_, _, err := m.Accept(1)
			require.Error(t, err, "twice")
		}},
		{"leaving twice", func(t *testing.T, m *layout.Machine) {
			open(t, m, 1, rw)
			m.Leave(1)
			n := len(m.Events())
			require.Empty(t, m.Leave(1))
			require.Len(t, m.Events(), n)
		}},
	} {
		t.Run(c.name, func(t *testing.T) { c.do(t, layout.New(numbered())) })
	}
}

func TestEventsAreInTheOrderOfThePage(t *testing.T) {
	m := layout.New(numbered())
	open(t, m, 1, layout.Writer)
	allocate(t, m, 1, 1, "x")
	allocate(t, m, 1, 1, "x")
	m.OutOfMemory(1)
	commit(t, m, 1)
	open(t, m, 2, layout.Reader)
	m.Leave(2)
	a := open(t, m, 3, layout.Writer)
	require.Equal(t, layout.Accepted{Mode: layout.Writer, Cleared: true}, a)
	allocate(t, m, 3, 1, "x")
	m.Leave(3)
	open(t, m, 4, layout.Writer)
	commit(t, m, 4)
	open(t, m, 5, layout.Writer)
	m.Leave(5)
	require.Equal(t, []layout.Event{
		{layout.EventConnected, 0}, {layout.EventOutOfMemory, 2}, {layout.EventCommitted, 0},
		{layout.EventCleared, 2}, {layout.EventConnected, 0}, {layout.EventAborted, 0}, {layout.EventCleared, 1},
		{layout.EventConnected, 0}, {layout.EventCommitted, 0},
		{layout.EventCleared, 0}, {layout.EventConnected, 0}, {layout.EventAborted, 0}, {layout.EventCleared, 0},
	}, m.Events())
}

func TestHistoryKeepsTheLastEvents(t *testing.T) {
	m := layout.New(numbered())
	for i := range 100 {
		id := layout.SessionID(i + 1)
		open(t, m, id, layout.Writer)
		for range i {
			allocate(t, m, id, 1, "x")
		}
		m.Leave(id)
	}
	events := m.Events()
	require.Len(t, events, layout.MaxEvents)
	// Three events a round: the last are those of round 99.
	require.Equal(t, []layout.Event{{layout.EventConnected, 0}, {layout.EventAborted, 0}, {layout.EventCleared, 99}}, events[len(events)-3:])
	require.Equal(t, layout.Event{Kind: layout.EventCleared, Allocations: 14}, events[0])
}

func TestClearedBeforeAnybodyWakes(t *testing.T) {
	m := layout.New(numbered())
	open(t, m, 1, layout.Writer)
	a := allocate(t, m, 1, 1, "x")
	require.NoError(t, m.Put(1, "k", a.ID, 0, []byte("v")))
	m.Connect(2, layout.Writer)
	e := m.Leave(1)
	require.Equal(t, []layout.Allocation{a}, e.Freed)
	require.Equal(t, offers(2, layout.Writer), e.Offers)
	_, e, err := m.Accept(2)
	require.NoError(t, err)
	require.Empty(t, e.Freed)
	keys, err := m.Keys(2, "")
	require.NoError(t, err)
	require.Equal(t, []string{}, keys)
	b := allocate(t, m, 2, 1, "x")
	require.Zero(t, b.Slot, "a new layout starts at slot 0")
	require.NotEqual(t, a.ID, b.ID)
}

func TestBounds(t *testing.T) {
	for _, c := range []struct {
		size int64
		want uint64
	}{{1, 16}, {16, 16}, {17, 32}, {math.MaxInt64, 1 << 63}} {
		got, err := layout.Align(c.size, 16)
		require.NoError(t, err)
		require.Equal(t, c.want, got)
	}
	for _, size := range []int64{0, -1, math.MinInt64} {
		_, err := layout.Align(size, 16)
		require.ErrorIs(t, err, layout.ErrBadValue)
	}
	m := layout.New(numbered())
	open(t, m, 1, layout.Writer)
	a := allocate(t, m, 1, 3, "x")
	for _, offset := range []int64{-1, 16, math.MaxInt64, math.MinInt64} {
		require.ErrorIs(t, m.Put(1, "k", a.ID, offset, nil), layout.ErrBadValue)
	}
	for _, offset := range []int64{0, 3, 15} {
		require.NoError(t, m.Put(1, "k", a.ID, offset, nil))
	}
	require.ErrorIs(t, m.Put(1, "k", "nobody", 0, nil), layout.ErrNotFound)
	e, found, err := m.Metadata(1, "k")
	require.NoError(t, err)
	require.True(t, found)
	require.EqualValues(t, 15, e.Offset, "what was refused has changed nothing")
}

// TestTextIsBounded: and what is dropped makes room.
func TestTextIsBounded(t *testing.T) {
	m := layout.New(numbered())
	open(t, m, 1, layout.Writer)
	big := make([]byte, layout.MaxText-4*layout.Overhead-10) // two allocations, a key, and one more
	a := allocate(t, m, 1, 1, "0123")
	b := allocate(t, m, 1, 1, "")
	require.NoError(t, m.Put(1, "key", a.ID, 0, big))
	require.NoError(t, m.Put(1, "key", a.ID, 0, big), "in its own place")
	require.ErrorIs(t, m.Put(1, "more", b.ID, 0, nil), layout.ErrBadValue)
	require.ErrorIs(t, m.CanAllocate(1, "0123"), layout.ErrBadValue)
	require.NoError(t, m.CanAllocate(1, "012"))
	found, _, err := m.Free(1, a.ID)
	require.NoError(t, err)
	require.True(t, found)
	require.NoError(t, m.Put(1, "more", b.ID, 0, big))
	deleted, err := m.Delete(1, "more")
	require.NoError(t, err)
	require.True(t, deleted)
	require.NoError(t, m.Put(1, "again", b.ID, 0, big))
	m.Leave(1)
	open(t, m, 2, layout.Writer)
	c := allocate(t, m, 2, 1, "")
	require.NoError(t, m.Put(2, "k", c.ID, 0, big))
}

// TestCountsAreBounded: of keys and allocations that have hardly any text, so that
// the keeper takes every layout.
func TestCountsAreBounded(t *testing.T) {
	for name, fill := range map[string]func(m *layout.Machine) error{
		"keys": func(m *layout.Machine) error {
			a, err := m.Allocate(1, math.MaxInt64, math.MaxUint64, "")
			if err != nil {
				return err
			}
			for i := range layout.MaxText {
				if err := m.Put(1, strconv.Itoa(i), a.ID, math.MaxInt64, nil); err != nil {
					return err
				}
			}
			return nil
		},
		"allocations": func(m *layout.Machine) error {
			for range layout.MaxText {
				if _, err := m.Allocate(1, math.MaxInt64, math.MaxUint64, ""); err != nil {
					return err
				}
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := uint64(0)
			m := layout.New(func() string { n++; return fmt.Sprintf("0123456789abcdef-%020d", n) })
			open(t, m, 1, layout.Writer)
			require.ErrorIs(t, fill(m), layout.ErrBadValue)
			var record bytes.Buffer
			require.NoError(t, gob.NewEncoder(&record).Encode(m.Snapshot()))
			require.Less(t, uint64(record.Len()), uint64(64<<20))
		})
	}
}

// TestModes: each request with each kind of session; what is refused changes
// nothing.
func TestModes(t *testing.T) {
	m := layout.New(numbered())
	open(t, m, 1, layout.Writer)
	a := allocate(t, m, 1, 1, "x")
	require.NoError(t, m.Put(1, "k", a.ID, 0, []byte("v")))
	commit(t, m, 1)
	open(t, m, 2, layout.Reader)
	m.Connect(3, layout.Writer) // waits
	before, events := m.Snapshot(), m.Events()
	writes := map[string]func(id layout.SessionID) error{
		"allocate":     func(id layout.SessionID) error { _, err := m.Allocate(id, 1, 16, "x"); return err },
		"can allocate": func(id layout.SessionID) error { return m.CanAllocate(id, "x") },
		"free":         func(id layout.SessionID) error { _, _, err := m.Free(id, a.ID); return err },
		"put":          func(id layout.SessionID) error { return m.Put(id, "k", a.ID, 1, nil) },
		"delete":       func(id layout.SessionID) error { _, err := m.Delete(id, "k"); return err },
		"commit":       func(id layout.SessionID) error { _, err := m.Commit(id); return err },
	}
	reads := map[string]func(id layout.SessionID) error{
		"get":      func(id layout.SessionID) error { _, err := m.Get(id, a.ID); return err },
		"list":     func(id layout.SessionID) error { _, err := m.List(id, nil); return err },
		"metadata": func(id layout.SessionID) error { _, _, err := m.Metadata(id, "k"); return err },
		"keys":     func(id layout.SessionID) error { _, err := m.Keys(id, ""); return err },
	}
	for name, do := range writes {
		require.ErrorIs(t, do(2), layout.ErrNotAllowed, name)
	}
	for name, do := range reads {
		require.NoError(t, do(2), name)
	}
	for _, id := range []layout.SessionID{1, 3, 99} { // over, waiting, unknown
		for name, do := range writes {
			require.ErrorIs(t, do(id), layout.ErrNoSession, name)
		}
		for name, do := range reads {
			require.ErrorIs(t, do(id), layout.ErrNoSession, name)
		}
	}
	m.OutOfMemory(2)
	require.Equal(t, before, m.Snapshot())
	require.Equal(t, events, m.Events())
}

func TestListsAndCascade(t *testing.T) {
	m := layout.New(numbered())
	open(t, m, 1, layout.Writer)
	a, b, c := allocate(t, m, 1, 1, "x"), allocate(t, m, 1, 2, "y"), allocate(t, m, 1, 3, "x")
	for i, key := range []string{"b/2", "a/1", "b/1", "c"} {
		require.NoError(t, m.Put(1, key, []layout.Allocation{a, b, c, b}[i].ID, 0, []byte(key)))
	}
	list := func(tag *string) []layout.Allocation {
		out, err := m.List(1, tag)
		require.NoError(t, err)
		return out
	}
	keys := func(prefix string) []string {
		out, err := m.Keys(1, prefix)
		require.NoError(t, err)
		return out
	}
	x, none := "x", ""
	require.Equal(t, []layout.Allocation{a, b, c}, list(nil))
	require.Equal(t, []layout.Allocation{a, c}, list(&x))
	require.Equal(t, []layout.Allocation{}, list(&none))
	require.Equal(t, []string{"a/1", "b/1", "b/2", "c"}, keys(""))
	require.Equal(t, []string{"b/1", "b/2"}, keys("b/"))
	require.Equal(t, []string{}, keys("z"))
	found, e, err := m.Free(1, b.ID)
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, []layout.Allocation{b}, e.Freed)
	require.Equal(t, []string{"b/1", "b/2"}, keys(""))
	found, e, err = m.Free(1, b.ID)
	require.NoError(t, err)
	require.False(t, found)
	require.Empty(t, e.Freed)
	require.EqualValues(t, 3, allocate(t, m, 1, 1, "z").Slot, "slots are not reused")
}

func sum(parts ...string) string {
	h := sha256.Sum256([]byte(strings.Join(parts, "")))
	return hex.EncodeToString(h[:])
}

// TestHash compares with hashes of texts that are written out here by hand.
func TestHash(t *testing.T) {
	m := layout.New(numbered())
	require.Equal(t, sum(), m.Snapshot().Hash)
	open(t, m, 1, layout.Writer)
	gone := allocate(t, m, 1, 9, "gone")
	a, b := allocate(t, m, 1, 5, "x"), allocate(t, m, 1, 16, "y z")
	require.NoError(t, m.Put(1, "z", b.ID, 3, []byte{0xff, 0}))
	require.NoError(t, m.Put(1, "k", a.ID, 15, nil))
	_, _, err := m.Free(1, gone.ID)
	require.NoError(t, err)
	require.Empty(t, m.Status().Hash, "nothing is committed")
	commit(t, m, 1)
	// The rank is the position and not the slot.
	require.Equal(t, sum("0:5:16:x", "1:16:16:y z", "k:0:15:", "z:1:3:", "\xff\x00"), m.Status().Hash)
	open(t, m, 2, layout.Writer)
	require.Empty(t, m.Status().Hash)
	commit(t, m, 2)
	require.Equal(t, sum(), m.Status().Hash, "an empty layout has a hash too")
}

func TestRestore(t *testing.T) {
	m := layout.New(numbered())
	open(t, m, 1, layout.Writer)
	gone := allocate(t, m, 1, 9, "gone")
	a, b := allocate(t, m, 1, 5, "x"), allocate(t, m, 1, 16, "y")
	require.NoError(t, m.Put(1, "k", b.ID, 15, []byte("v")))
	_, _, err := m.Free(1, gone.ID)
	require.NoError(t, err)
	commit(t, m, 1)

	whole := m.Snapshot()
	require.Equal(t, m.Status().Hash, whole.Hash)
	again, err := layout.Restore(numbered(), whole)
	require.NoError(t, err)
	require.Equal(t, m.Status(), again.Status())
	require.Equal(t, whole, again.Snapshot())
	require.Empty(t, again.Events())
	open(t, again, 7, layout.Reader)
	got, err := again.List(7, nil)
	require.NoError(t, err)
	require.Equal(t, []layout.Allocation{a, b}, got)

	for name, change := range map[string]func(s *layout.Snapshot){
		"another hash":     func(s *layout.Snapshot) { s.Hash = sum() },
		"another size":     func(s *layout.Snapshot) { s.Allocations[0].Size++ },
		"no allocation":    func(s *layout.Snapshot) { s.Allocations = s.Allocations[:1] },
		"the same ID":      func(s *layout.Snapshot) { s.Allocations[1].ID = a.ID },
		"the same slot":    func(s *layout.Snapshot) { s.Allocations[1].Slot = a.Slot },
		"size 0":           func(s *layout.Snapshot) { s.Allocations[0].Size = 0 },
		"too small":        func(s *layout.Snapshot) { s.Allocations[0].AlignedSize = 4 },
		"an offset beyond": func(s *layout.Snapshot) { s.Metadata["k"] = layout.Entry{AllocationID: b.ID, Offset: 16} },
		"metadata is gone": func(s *layout.Snapshot) { s.Metadata = nil },
	} {
		t.Run(name, func(t *testing.T) {
			s := m.Snapshot()
			change(&s)
			_, err := layout.Restore(numbered(), s)
			require.Error(t, err)
		})
	}
}
