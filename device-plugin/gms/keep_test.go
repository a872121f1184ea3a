package gms_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"remuda/device-plugin/gms"
	"remuda/device-plugin/gms/wire"
	"remuda/internal/testkit/gmstest"
)

// kept is a service with a keeper that outlives it.
func kept(t *testing.T) (*service, *gmstest.Keeper) {
	t.Helper()
	cfg, k := keptConfig(t)
	return start(t, cfg), k
}

func keptConfig(t *testing.T) (gms.Config, *gmstest.Keeper) {
	t.Helper()
	cfg := config(t)
	k := gmstest.NewKeeper()
	t.Cleanup(k.Close)
	cfg.Keeper = k
	return cfg, k
}

func (s *service) isKept() bool {
	return s.metric("remuda_gms_kept", map[string]string{"tag": weights}) == 1
}

func TestCommittedLayoutSurvives(t *testing.T) {
	s, k := kept(t)
	w := s.open(weights, wire.RW)
	gone := w.allocate(1, "gone")
	for range 10 {
		w.allocate(1, "x")
	}
	ask[*wire.FreeAllocationResponse](w, &wire.FreeAllocationRequest{AllocationID: gone.AllocationID})
	a := w.allocate(2, "y")
	fd := w.export(a.AllocationID)
	_, err := unix.Pwrite(fd, []byte("bytes"), 10)
	require.NoError(t, err)
	require.NoError(t, unix.Close(fd))
	ask[*wire.MetadataPutResponse](w, &wire.MetadataPutRequest{Key: "k", AllocationID: a.AllocationID, OffsetBytes: 7, Value: []byte("bytes")})
	w.commit()
	fds, found := k.Has(layoutRecord)
	require.True(t, found, "it is kept before it is answered")
	require.Equal(t, 11, fds)
	require.True(t, s.isKept())
	r := s.open(weights, wire.RO)
	list := ask[*wire.ListAllocationsResponse](r, &wire.ListAllocationsRequest{})
	before := s.state(weights)

	// Another process: a backend of its own.
	s.cfg.GPUs = []gms.GPU{{UUID: uuid, Backend: gmstest.NewBackend(64 * gmstest.Page)}}
	s = s.again()
	after := s.state(weights)
	require.NotEqual(t, before.Nonce, after.Nonce)
	before.Nonce, before.State, before.ROSessionCount = after.Nonce, wire.StateCommitted, 0
	require.Equal(t, before, after)
	s.holds(weights, a.AllocationID, "bytes")
	r = s.open(weights, wire.RO)
	require.Equal(t, list, ask[*wire.ListAllocationsResponse](r, &wire.ListAllocationsRequest{}))
	require.EqualValues(t, 12*gmstest.Page, s.gpu.Used())
	require.Empty(t, s.events(weights))
	require.True(t, s.isKept())
	require.NoError(t, r.Close())

	// A new writer clears it there too, before it is answered.
	w = s.open(weights, wire.RW)
	_, found = k.Has(layoutRecord)
	require.False(t, found)
	b := w.allocate(1, "x")
	for _, a := range list.Allocations {
		require.NotEqual(t, a.AllocationID, b.AllocationID)
	}
	eventually(t, "the memory is free", func() bool { return s.gpu.Used() == gmstest.Page })
	require.Equal(t, wire.StateEmpty, s.again().state(weights).State, "what was not committed is not kept")
}

func TestEmptyLayoutIsKeptToo(t *testing.T) {
	s, _ := kept(t)
	s.open(weights, wire.RW).commit()
	hash := s.state(weights).MemoryLayoutHash
	require.Equal(t, hash, s.again().state(weights).MemoryLayoutHash)
}

// TestSpoiledRecordsAreDropped: and nothing of them stays open.
func TestSpoiledRecordsAreDropped(t *testing.T) {
	for name, spoil := range map[string]func(blob []byte, fds []int) ([]byte, []int){
		"empty":            func(_ []byte, fds []int) ([]byte, []int) { return nil, fds },
		"another version":  func(b []byte, fds []int) ([]byte, []int) { return append([]byte{99}, b[1:]...), fds },
		"cut short":        func(b []byte, fds []int) ([]byte, []int) { return b[:len(b)/2], fds },
		"fewer":            func(b []byte, fds []int) ([]byte, []int) { _ = unix.Close(fds[2]); return b, fds[:2] },
		"another's memory": func(b []byte, fds []int) ([]byte, []int) { fds[0], fds[1] = fds[1], fds[0]; return b, fds },
	} {
		t.Run(name, func(t *testing.T) {
			s, k := kept(t)
			w := s.open(weights, wire.RW)
			for i := range int64(3) {
				w.allocate(i+1, "x")
			}
			w.commit()
			s.end()
			s.gpu.Take(-6 * gmstest.Page) // those of the process that ended
			before := descriptors(t)
			k.Spoil(layoutRecord, spoil)
			s = start(t, s.cfg)
			require.Equal(t, wire.StateEmpty, s.state(weights).State)
			eventually(t, "the record is dropped", func() bool { _, found := k.Has(layoutRecord); return !found })
			require.Positive(t, s.metric("remuda_gms_keeper_failures_total", nil))
			s.open(weights, wire.RW).commit()
			s.end()
			eventually(t, "nothing is left open", func() bool { return descriptors(t) <= before })
		})
	}
}

func TestMemoryThatCannotBeTakenBack(t *testing.T) {
	s, k := kept(t)
	s.commitOne(weights, "x")
	s.end()
	s.gpu.Fail("restore", errors.New("the driver is cross"))
	s = start(t, s.cfg)
	require.Equal(t, wire.StateEmpty, s.state(weights).State)
	eventually(t, "the record is dropped", func() bool { _, found := k.Has(layoutRecord); return !found })
}

// TestWriterWaitsForAKeeperThatHangs: it could remember what the writer is told to
// have cleared. Until then nothing is cleared.
func TestWriterWaitsForAKeeperThatHangs(t *testing.T) {
	s, k := kept(t)
	_, hash := s.commitOne(weights, "x")
	k.Hang(true)
	stays := s.hello(weights, wire.HandshakeRequest{LockType: wire.RW})
	eventually(t, "it waits", func() bool { return k.Waiting() == 1 })
	stays.silent(20 * time.Millisecond)
	require.Equal(t, hash, s.state(weights).MemoryLayoutHash)
	k.Hang(false)
	stays.granted(wire.RW)
	_, found := k.Has(layoutRecord)
	require.False(t, found)
	require.Equal(t, []wire.Event{{Kind: wire.EventRWConnected}, {Kind: wire.EventCommitted}, {Kind: wire.EventCleared, AllocationCount: 1}, {Kind: wire.EventRWConnected}}, s.events(weights))
}

// TestWriterThatWasNotLetInLeavesTheLayoutKept: though the keeper had dropped it.
func TestWriterThatWasNotLetInLeavesTheLayoutKept(t *testing.T) {
	s, k := kept(t)
	_, hash := s.commitOne(weights, "x")
	for i := range 20 {
		k.Hang(true)
		w := s.hello(weights, wire.HandshakeRequest{LockType: wire.RW})
		if i%2 == 0 {
			eventually(t, "it waits", func() bool { return k.Waiting() == 1 })
		}
		_ = w.Close()
		k.Hang(false)
		eventually(t, "it is over", func() bool { return s.metric("remuda_gms_connections", nil) == 0 })
		if !s.state(weights).Committed { // the writer was quicker
			_, hash = s.commitOne(weights, "x")
		}
		eventually(t, "it is kept", s.isKept)
	}
	require.Equal(t, hash, s.again().state(weights).MemoryLayoutHash)
}

// TestEndClearsNothing: a writer that gets the lock because the service ends.
func TestEndClearsNothing(t *testing.T) {
	s, _ := kept(t)
	id, hash := s.commitOne(weights, "x")
	for range 20 {
		for range 5 {
			s.open(weights, wire.RO)
		}
		for range 3 {
			s.hello(weights, wire.HandshakeRequest{LockType: wire.RW})
		}
		eventually(t, "they wait", func() bool { return s.state(weights).WaitingWriters == 3 })
		s = s.again()
		require.Equal(t, hash, s.state(weights).MemoryLayoutHash)
	}
	s.holds(weights, id, "x")
}

// TestCommitThatCannotBeKeptIsRefused: what is acknowledged survives a crash. The
// session goes on, and may commit once there is room.
func TestCommitThatCannotBeKeptIsRefused(t *testing.T) {
	s, k := kept(t)
	w := s.open(weights, wire.RW)
	a := w.allocate(1, "x")
	k.Refuse(true)
	e := w.refused(&wire.CommitRequest{})
	require.Contains(t, e.Error, "commit: the layout cannot be kept: the keeper rejected the record: there is no room")
	require.False(t, s.state(weights).Committed)
	require.Positive(t, s.metric("remuda_gms_keeper_failures_total", nil))
	k.Refuse(false)
	s.gpu.Fail("export", errors.New("the driver is cross"))
	require.Contains(t, w.refused(&wire.CommitRequest{}).Error, "the driver is cross")
	_, found := k.Has(layoutRecord)
	require.False(t, found)
	s.gpu.Fail("export", nil)
	require.EqualValues(t, 1, w.allocate(1, "y").LayoutSlot, "nothing has changed")
	w.commit()
	s = s.again()
	r := s.open(weights, wire.RO)
	require.Equal(t, a.AllocationID, ask[*wire.ListAllocationsResponse](r, &wire.ListAllocationsRequest{}).Allocations[0].AllocationID)
}
