package gms_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
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
	cfg.KeeperWait = 50 * time.Millisecond
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

// TestCommitHoldsWithoutTheKeeper: it is kept as soon as that can be.
func TestCommitHoldsWithoutTheKeeper(t *testing.T) {
	s, k := kept(t)
	k.Hang(true)
	id, hash := s.commitOne(weights, "x")
	require.False(t, s.isKept())
	require.Zero(t, s.metric("remuda_gms_keeper_up", nil))
	require.Positive(t, s.metric("remuda_gms_keeper_records_behind", nil))
	require.Positive(t, s.metric("remuda_gms_keeper_failures_total", nil))
	k.Hang(false)
	eventually(t, "it is kept", s.isKept)
	require.EqualValues(t, 1, s.metric("remuda_gms_keeper_up", nil))
	s = s.again()
	require.Equal(t, hash, s.state(weights).MemoryLayoutHash)
	s.holds(weights, id, "x")
}

// TestKeeperThatIsGoneHoldsUpNobody: though the background tries to reach it all the
// time.
func TestKeeperThatIsGoneHoldsUpNobody(t *testing.T) {
	cfg, k := keptConfig(t)
	cfg.KeeperWait = 24 * time.Hour // whoever waited for it would not be done before the tests are stopped
	s := start(t, cfg)
	s.commitOne(weights, "x")
	k.Kill()
	for range 3 {
		s.open(weights, wire.RW).commit()
		s.open(kvCache, wire.RW).commit()
		eventually(t, "the background tries", func() bool { return k.Waiting() > 0 })
	}
	require.False(t, s.isKept())
}

func TestRefusedRecordIsTriedAgainLater(t *testing.T) {
	s, k := kept(t)
	k.Refuse(true)
	s.commitOne(weights, "x")
	require.False(t, s.isKept())
	require.EqualValues(t, 1, s.metric("remuda_gms_keeper_up", nil), "a refusal is an answer")
	k.Refuse(false)
	s.commitOne(kvCache, "y")
	_, found := k.Has("layout/GPU-1/kv_cache")
	require.True(t, found)
	// A keeper that comes back empty may have room at once.
	k.Kill()
	k.Start()
	eventually(t, "it is kept", s.isKept)
}

func TestKeeperThatComesBackIsGivenEverything(t *testing.T) {
	s, k := kept(t)
	s.commitOne(weights, "x")
	k.Kill()
	k.Start()
	eventually(t, "the record is there", func() bool { _, found := k.Has(layoutRecord); return found })
	_, found := k.Has("layout/GPU-1/kv_cache")
	require.False(t, found, "nothing is committed there")
	eventually(t, "it is said so", s.isKept)
}

// TestKeptTellsTheTruthAboutANewKeeper: one that has come back empty has nothing yet.
func TestKeptTellsTheTruthAboutANewKeeper(t *testing.T) {
	cfg, k := keptConfig(t)
	cfg.KeeperWait = 10 * patience
	s := start(t, cfg)
	s.commitOne(weights, "x")
	require.Equal(t, 1.0, s.metric("remuda_gms_kept", nil))
	k.Hang(true)
	k.Kill()
	k.Start()
	eventually(t, "it is not kept any more", func() bool { return s.metric("remuda_gms_kept", nil) == 0 })
	k.Hang(false)
	eventually(t, "it is kept again", func() bool { return s.metric("remuda_gms_kept", nil) == 1 })
}

// TestWriterWaitsForAKeeperThatHangs: it could remember what the writer is told to
// have cleared. Until then nothing is cleared.
func TestWriterWaitsForAKeeperThatHangs(t *testing.T) {
	s, k := kept(t)
	id, hash := s.commitOne(weights, "x")
	k.Hang(true)
	s.hello(weights, wire.HandshakeRequest{LockType: wire.RW, TimeoutMS: ptr(int64(0))}).denied(wire.CodeTimeout)
	s.hello(weights, wire.HandshakeRequest{LockType: wire.RW, TimeoutMS: ptr(int64(20))}).denied(wire.CodeTimeout)
	leaves := s.hello(weights, wire.HandshakeRequest{LockType: wire.RW})
	leaves.silent(20 * time.Millisecond)
	require.NoError(t, leaves.Close())
	s.holds(weights, id, "x")
	stays := s.hello(weights, wire.HandshakeRequest{LockType: wire.RW})
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
	for range 20 {
		w := s.hello(weights, wire.HandshakeRequest{LockType: wire.RW, TimeoutMS: ptr(int64(1))})
		k.Hang(true)
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

// TestWriterDoesNotWaitForAKeeperThatIsGone: nothing can come back from it.
func TestWriterDoesNotWaitForAKeeperThatIsGone(t *testing.T) {
	s, k := kept(t)
	s.commitOne(weights, "x")
	k.Kill()
	w := s.open(weights, wire.RW)
	k.Start()
	w.allocate(1, "x")
	w.commit()
	eventually(t, "the new layout is kept", s.isKept)
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

// TestStartTogetherWithTheKeeper: what is started together finds each other.
func TestStartTogetherWithTheKeeper(t *testing.T) {
	s, k := kept(t)
	id, _ := s.commitOne(weights, "x")
	s.end()
	cfg := s.cfg
	cfg.KeeperWait = patience
	late := &lateKeeper{Keeper: k}
	late.absent.Store(5)
	cfg.Keeper = late
	s = start(t, cfg)
	s.holds(weights, id, "x")
	require.True(t, s.isKept())
}

// lateKeeper is not there when it is looked for the first times.
type lateKeeper struct {
	*gmstest.Keeper
	absent atomic.Int32
}

func (k *lateKeeper) Gone() bool { return k.absent.Add(-1) >= 0 || k.Keeper.Gone() }

// TestStartWithoutAKeeper goes on without, and uses it when it comes.
func TestStartWithoutAKeeper(t *testing.T) {
	cfg, k := keptConfig(t)
	k.Kill()
	s := start(t, cfg)
	s.commitOne(weights, "x")
	require.Zero(t, s.metric("remuda_gms_keeper_up", nil))
	k.Start()
	eventually(t, "it is kept", s.isKept)
	require.EqualValues(t, 1, s.metric("remuda_gms_keeper_up", nil))
}

// TestFirstCommitAfterTheKeeperHasComeIsKept: though nothing was done with it yet.
func TestFirstCommitAfterTheKeeperHasComeIsKept(t *testing.T) {
	cfg, k := keptConfig(t)
	cfg.KeeperRetry = time.Hour
	k.Kill()
	s := start(t, cfg)
	k.Start()
	s.open(weights, wire.RW).commit()
	require.True(t, s.isKept())
}

// TestKeeperThatHangsIsWaitedForOnce: commits after the first wait for a tenth.
func TestKeeperThatHangsIsWaitedForOnce(t *testing.T) {
	cfg, k := keptConfig(t)
	cfg.Tags = []string{"1", "2", "3", "4", "5"}
	cfg.KeeperWait, cfg.KeeperRetry = 100*time.Hour, 1000*time.Hour
	hung := &hungKeeper{Keeper: k}
	cfg.Keeper = hung
	s := start(t, cfg)
	for _, tag := range cfg.Tags {
		s.open(tag, wire.RW).commit()
	}
	hung.mu.Lock()
	defer hung.mu.Unlock()
	require.Len(t, hung.waits, len(cfg.Tags))
	require.InDelta(t, 100, hung.waits[0].Hours(), 1)
	for _, wait := range hung.waits[1:] {
		require.InDelta(t, 10, wait.Hours(), 1)
	}
}

// hungKeeper does not answer when something is saved, and notes for how long it would have
// been waited for.
type hungKeeper struct {
	*gmstest.Keeper
	mu    sync.Mutex // guards waits
	waits []time.Duration
}

func (k *hungKeeper) Save(ctx context.Context, _ string, _ []byte, _ []int) error {
	end, _ := ctx.Deadline()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.waits = append(k.waits, time.Until(end))
	return context.DeadlineExceeded
}

// TestStartWaitsForAKeeperThatHangs: it may have what would be lost. Until then
// nobody is told that nothing is there.
func TestStartWaitsForAKeeperThatHangs(t *testing.T) {
	s, k := kept(t)
	id, _ := s.commitOne(weights, "x")
	s.end()
	k.Hang(true)
	var helper sync.WaitGroup
	defer helper.Wait()
	helper.Go(func() {
		for began := time.Now(); time.Since(began) < 3*s.cfg.KeeperWait || k.Waiting() == 0; {
			time.Sleep(time.Millisecond)
			if _, err := wire.Dial(s.path(weights)); err == nil {
				t.Error("it serves before it knows what there is")
				break
			}
		}
		k.Hang(false)
	})
	s = start(t, s.cfg)
	s.holds(weights, id, "x")
	s.end()

	// It can be told to end meanwhile, and does not wait for one that is gone.
	k.Hang(true)
	server, err := gms.New(s.cfg)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	eventually(t, "it waits", func() bool { return k.Waiting() > 0 })
	stop()
	require.NoError(t, <-ended)
	_, found := k.Has(layoutRecord)
	require.True(t, found)
	helper.Go(func() {
		for k.Waiting() == 0 {
			time.Sleep(time.Millisecond)
		}
		k.Kill()
		k.Hang(false)
	})
	s = start(t, s.cfg)
	require.Equal(t, wire.StateEmpty, s.state(weights).State)
}
