package gms_test

import (
	"errors"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"remuda/device-plugin/gms/wire"
	"remuda/internal/testkit/gmstest"
)

func TestLayoutIsWrittenCommittedAndRead(t *testing.T) {
	s := start(t, config(t))
	id, hash := s.commitOne(weights, "the weights")
	require.Len(t, hash, 64)
	s.holds(weights, id, "the weights")
	other := s.hello(weights, wire.HandshakeRequest{LockType: wire.RWOrRO})
	other.granted(wire.RO)
	require.NoError(t, other.Close())
	c := s.hello(weights, wire.HandshakeRequest{LockType: wire.Auto})
	h := c.granted(wire.RO)
	require.Equal(t, hash, h.MemoryLayoutHash)
	require.Equal(t, s.server.Nonce(), h.Nonce)
	require.Equal(t, []wire.Event{{Kind: wire.EventRWConnected}, {Kind: wire.EventCommitted}}, s.events(weights))
	w := s.hello(weights, wire.HandshakeRequest{LockType: wire.RW})
	require.NoError(t, c.Close())
	w.granted(wire.RW)
	require.Equal(t, []wire.Event{{Kind: wire.EventCleared, AllocationCount: 1}, {Kind: wire.EventRWConnected}}, s.events(weights)[2:])
	eventually(t, "the old memory is released", func() bool { live, _, _ := s.gpu.Counts(); return live == 0 })
}

// TestKVCacheOfAnEngine: Dynamo's engines write their KV cache at a socket of its own and never
// commit it. The next engine gets the lock once the first is gone, and its memory is free.
func TestKVCacheOfAnEngine(t *testing.T) {
	s := start(t, config(t))
	first := s.open(kvCache, wire.RW)
	first.allocate(1, "KV")
	second := s.hello(kvCache, wire.HandshakeRequest{LockType: wire.RW})
	require.Equal(t, wire.StateRW, s.state(kvCache).State)
	require.Equal(t, wire.StateEmpty, s.state(weights).State, "the weights are another layout")
	require.NoError(t, first.Close())
	second.granted(wire.RW)
	eventually(t, "the memory is released", func() bool { live, _, _ := s.gpu.Counts(); return live == 0 })
}

func TestHandshakeTimeouts(t *testing.T) {
	s := start(t, config(t))
	s.open(weights, wire.RW)
	for _, timeout := range []int64{0, -1, math.MinInt64, 20} {
		began := time.Now()
		h := s.hello(weights, wire.HandshakeRequest{LockType: wire.RO, TimeoutMS: &timeout}).denied(wire.CodeTimeout)
		require.GreaterOrEqual(t, time.Since(began), time.Duration(max(timeout, 0))*time.Millisecond)
		require.False(t, h.Committed)
		require.Equal(t, s.server.Nonce(), h.Nonce)
	}
	forever := s.hello(weights, wire.HandshakeRequest{LockType: wire.RO, TimeoutMS: ptr(int64(math.MaxInt64))})
	forever.silent(20 * time.Millisecond)
}

func TestBadHandshakes(t *testing.T) {
	s := start(t, config(t))
	for _, h := range []wire.HandshakeRequest{
		{LockType: "wr"}, {LockType: ""},
	} {
		s.hello(weights, h).denied(wire.CodeBadRequest)
	}
	require.Equal(t, wire.StateEmpty, s.state(weights).State)
}

// TestExpectedNonce: a reader of another incarnation is told at once, with what
// there is now.
func TestExpectedNonce(t *testing.T) {
	s := start(t, config(t))
	_, hash := s.commitOne(weights, "x")
	s.hello(weights, wire.HandshakeRequest{LockType: wire.RO, ExpectedNonce: s.server.Nonce()}).granted(wire.RO)
	h := s.hello(weights, wire.HandshakeRequest{LockType: wire.RO, ExpectedNonce: "another"}).denied(wire.CodeRestarted)
	require.True(t, h.Committed)
	require.Equal(t, hash, h.MemoryLayoutHash)
	// At once also where it would have to wait; and a writer clears nothing.
	s.open(kvCache, wire.RW)
	require.False(t, s.hello(kvCache, wire.HandshakeRequest{LockType: wire.RO, ExpectedNonce: "another"}).denied(wire.CodeRestarted).Committed)
	s.hello(weights, wire.HandshakeRequest{LockType: wire.RW, ExpectedNonce: "another"}).denied(wire.CodeRestarted)
	require.Equal(t, hash, s.state(weights).MemoryLayoutHash)
	require.NotEqual(t, s.server.Nonce(), s.again().server.Nonce())
}

// TestWriterThatDiesWhileItWaits lets those behind it in and clears nothing.
func TestWriterThatDiesWhileItWaits(t *testing.T) {
	s := start(t, config(t))
	id, _ := s.commitOne(weights, "x")
	s.open(weights, wire.RO)
	w := s.hello(weights, wire.HandshakeRequest{LockType: wire.RW})
	eventually(t, "it waits", func() bool { return s.state(weights).WaitingWriters == 1 })
	// What it has sent ahead does not hide its end.
	w.post(&wire.CommitRequest{})
	late := s.hello(weights, wire.HandshakeRequest{LockType: wire.RO})
	late.silent(20 * time.Millisecond)
	require.NoError(t, w.Close())
	late.granted(wire.RO)
	s.holds(weights, id, "x")
}

func TestPipelinedRequests(t *testing.T) {
	s := start(t, config(t))
	w := s.open(weights, wire.RW)
	for i := range 5 {
		w.post(&wire.AllocateRequest{Size: int64(i + 1), Tag: "x"})
	}
	w.post(&wire.GetAllocationStateRequest{}).post(&wire.CommitRequest{})
	for i := range 5 {
		require.EqualValues(t, i, w.next().(*wire.AllocateResponse).LayoutSlot)
	}
	require.EqualValues(t, 5, w.next().(*wire.GetAllocationStateResponse).AllocationCount)
	require.True(t, w.next().(*wire.CommitResponse).Success)
	w.closed()
}

func TestCommitHoldsWithoutItsClient(t *testing.T) {
	s := start(t, config(t))
	w := s.open(weights, wire.RW)
	w.allocate(1, "x")
	w.post(&wire.CommitRequest{})
	require.NoError(t, w.Close())
	eventually(t, "it is committed", func() bool { return s.state(weights).Committed })
	require.EqualValues(t, 1, s.state(weights).AllocationCount)
}

func TestRefusedRequestsLeaveTheSessionAlone(t *testing.T) {
	s := start(t, config(t))
	id, hash := s.commitOne(weights, "x")
	r := s.open(weights, wire.RO)
	for _, c := range []struct {
		m    wire.Message
		code int64
	}{
		{&wire.AllocateRequest{Size: 1}, wire.ErrorNotAllowed},
		{&wire.FreeAllocationRequest{AllocationID: id}, wire.ErrorNotAllowed},
		{&wire.MetadataPutRequest{Key: "k", AllocationID: id}, wire.ErrorNotAllowed},
		{&wire.MetadataDeleteRequest{Key: "k"}, wire.ErrorNotAllowed},
		{&wire.CommitRequest{}, wire.ErrorNotAllowed},
		{&wire.HandshakeRequest{LockType: wire.RO}, wire.ErrorNotAllowed},
		{&wire.GetRuntimeStateRequest{}, wire.ErrorNotAllowed},
		{&wire.GetEventHistoryRequest{}, wire.ErrorNotAllowed},
		{&wire.CommitResponse{}, wire.ErrorNotAllowed},
		{&wire.GetAllocationRequest{AllocationID: "nobody"}, wire.ErrorNotFound},
		{&wire.ExportAllocationRequest{AllocationID: "nobody"}, wire.ErrorNotFound},
	} {
		require.Equal(t, c.code, r.refused(c.m).Code, "%s", c.m.MessageType())
	}
	require.NoError(t, r.WriteFrame([]byte{0x81, 0xa4, 't', 'y', 'p', 'e', 0xa1, 'x'}, -1))
	require.EqualValues(t, wire.ErrorBadRequest, r.next().(*wire.ErrorResponse).Code)
	require.Equal(t, hash, ask[*wire.GetMemoryLayoutHashResponse](r, &wire.GetMemoryLayoutHashRequest{}).MemoryLayoutHash)
	require.NoError(t, r.Close())

	w := s.open(weights, wire.RW)
	for _, size := range []int64{0, -1, math.MinInt64, 65 * gmstest.Page, math.MaxInt64} {
		require.EqualValues(t, wire.ErrorBadRequest, w.refused(&wire.AllocateRequest{Size: size}).Code)
	}
	a := w.allocate(1, "x")
	require.EqualValues(t, wire.ErrorBadRequest, w.refused(&wire.MetadataPutRequest{AllocationID: a.AllocationID, OffsetBytes: gmstest.Page}).Code)
	require.False(t, ask[*wire.FreeAllocationResponse](w, &wire.FreeAllocationRequest{AllocationID: "nobody"}).Success)
}

func TestBackendFaultsAreAnswers(t *testing.T) {
	s := start(t, config(t))
	w := s.open(weights, wire.RW)
	a := w.allocate(1, "x")
	s.gpu.Fail("export", unix.EMFILE)
	require.Contains(t, w.refused(&wire.ExportAllocationRequest{AllocationID: a.AllocationID}).Error, "too many open files")
	s.gpu.Fail("allocate", errors.New("the driver is cross"))
	require.Contains(t, w.refused(&wire.AllocateRequest{Size: 1}).Error, "the driver is cross")
	s.gpu.Fail("allocate", nil)
	s.gpu.Fail("export", nil)
	require.NoError(t, unix.Close(w.export(a.AllocationID)))
	require.EqualValues(t, 1, w.allocate(1, "x").LayoutSlot, "what failed has no slot")
}

func TestOutOfMemoryIsWaitedFor(t *testing.T) {
	s := start(t, config(t))
	other := s.open(kvCache, wire.RW)
	hog := other.allocate(60, "x")
	w := s.open(weights, wire.RW)
	w.allocate(2, "x")
	w.post(&wire.AllocateRequest{Size: 10 * gmstest.Page, Tag: "x"})
	w.silent(30 * time.Millisecond)
	require.True(t, ask[*wire.FreeAllocationResponse](other, &wire.FreeAllocationRequest{AllocationID: hog.AllocationID}).Success)
	require.EqualValues(t, 1, w.next().(*wire.AllocateResponse).LayoutSlot)
	_, _, asked := s.gpu.Counts()
	require.Greater(t, asked, 4, "it was tried again")
	require.Equal(t, []wire.Event{{Kind: wire.EventRWConnected}, {Kind: wire.EventOOM, AllocationCount: 1}}, s.events(weights), "one event a request")
}

// TestAskerThatIsGoneIsDroppedAtOnce: though the next try is an hour away, and
// though it has sent more ahead.
func TestAskerThatIsGoneIsDroppedAtOnce(t *testing.T) {
	cfg := config(t)
	cfg.OOMRetry = time.Hour
	s := start(t, cfg)
	s.gpu.Take(64 * gmstest.Page)
	w := s.open(weights, wire.RW)
	w.post(&wire.AllocateRequest{Size: 1}).post(&wire.CommitRequest{})
	eventually(t, "it waits", func() bool { return s.metric("remuda_gms_oom_total", nil) == 1 })
	heir := s.hello(weights, wire.HandshakeRequest{LockType: wire.RW})
	heir.silent(10 * time.Millisecond)
	require.NoError(t, w.Close())
	heir.granted(wire.RW)
	require.False(t, s.state(weights).Committed)
}

func TestOutOfMemoryLimit(t *testing.T) {
	cfg := config(t)
	cfg.OOMLimit = 30 * time.Millisecond
	s := start(t, cfg)
	s.gpu.Take(63 * gmstest.Page)
	w := s.open(weights, wire.RW)
	require.EqualValues(t, wire.ErrorOutOfMemory, w.refused(&wire.AllocateRequest{Size: 2 * gmstest.Page}).Code)
	require.Zero(t, w.allocate(1, "x").LayoutSlot)
}

// TestSlowReleaseHoldsUpNobody: memory that takes long to free is still used, but
// sessions come and go and allocate what there is.
func TestSlowReleaseHoldsUpNobody(t *testing.T) {
	s := start(t, config(t))
	w := s.open(weights, wire.RW)
	for range 20 {
		w.allocate(3, "x")
	}
	w.commit()
	letGo := s.gpu.HoldReleases()
	w = s.open(weights, wire.RW) // clears the layout
	require.EqualValues(t, 60*gmstest.Page, s.gpu.Used())
	require.EqualValues(t, 60*gmstest.Page, s.metric("remuda_gms_releasing_bytes", nil))
	w.allocate(4, "x")
	s.open(kvCache, wire.RW).commit()
	w.post(&wire.AllocateRequest{Size: gmstest.Page, Tag: "x"})
	w.silent(20 * time.Millisecond)
	letGo()
	require.IsType(t, &wire.AllocateResponse{}, w.next())
	eventually(t, "all of it is free", func() bool { return s.gpu.Used() == 5*gmstest.Page })
	require.Zero(t, s.metric("remuda_gms_releasing_bytes", nil))
}

// TestDescriptorsOfExportsComeBack: also of those that nobody reads.
func TestDescriptorsOfExportsComeBack(t *testing.T) {
	s := start(t, config(t))
	id, _ := s.commitOne(weights, "x")
	before := descriptors(t)
	r := s.open(weights, wire.RO)
	for range 50 {
		require.NoError(t, unix.Close(r.export(id)))
	}
	lazy := s.open(weights, wire.RO)
	for range 20 { // those that fit; see TestUnreadExportsAreFew
		lazy.post(&wire.ExportAllocationRequest{AllocationID: id})
	}
	eventually(t, "they are answered", func() bool {
		return s.metric("remuda_gms_requests_total", map[string]string{"request": "export_allocation_request", "result": "ok"}) >= 70
	})
	require.LessOrEqual(t, descriptors(t), before+5)
	require.NoError(t, r.Close())
	require.NoError(t, lazy.Close())
	eventually(t, "all are closed", func() bool { return descriptors(t) <= before })
}

func TestWritersAreAlone(t *testing.T) {
	s := start(t, config(t))
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() {
			for round := range 10 {
				c, err := wire.Dial(s.path(weights))
				if err != nil {
					t.Error(err)
					return
				}
				w := &client{t: t, Conn: c}
				if err := w.Write(&wire.HandshakeRequest{LockType: wire.RW}, -1); err != nil {
					t.Error(err)
				}
				if m, _, err := w.Read(0, false); err != nil || !m.(*wire.HandshakeResponse).Success {
					t.Errorf("%v %v", m, err)
				}
				for range 3 {
					if err := w.Write(&wire.AllocateRequest{Size: 1}, -1); err != nil {
						t.Error(err)
					}
				}
				for slot := range uint64(3) {
					m, _, err := w.Read(0, false)
					if a, ok := m.(*wire.AllocateResponse); err != nil || !ok || a.LayoutSlot != slot {
						t.Errorf("%#v %v", m, err)
					}
				}
				if (i+round)%2 == 0 {
					_ = w.Write(&wire.CommitRequest{}, -1)
					_, _, _ = w.Read(0, false)
				}
				_ = c.Close()
			}
		})
	}
	all.Wait()
	eventually(t, "nobody is left", func() bool { return !s.state(weights).HasRWSession })
	eventually(t, "memory is what is committed", func() bool {
		return s.gpu.Used() == s.state(weights).AllocationCount*gmstest.Page
	})
}

func TestMetricsShowTheLedger(t *testing.T) {
	s := start(t, config(t))
	w := s.open(weights, wire.RW)
	w.allocate(1, "attention")
	w.allocate(2, "attention")
	w.allocate(3, "mlp")
	labels := func(tag string) map[string]string {
		return map[string]string{"gpu": uuid, "tag": weights, "allocation_tag": tag}
	}
	require.EqualValues(t, 3*gmstest.Page, s.metric("remuda_gms_allocated_bytes", labels("attention")))
	require.EqualValues(t, 3*gmstest.Page, s.metric("remuda_gms_allocated_bytes", labels("mlp")))
	require.EqualValues(t, 2, s.metric("remuda_gms_allocations", labels("attention")))
	require.EqualValues(t, 1, s.metric("remuda_gms_sessions", map[string]string{"tag": weights, "mode": "rw"}))
	require.EqualValues(t, 1, s.metric("remuda_gms_state", map[string]string{"tag": weights, "state": "RW"}))
	require.EqualValues(t, 6*gmstest.Page, s.metric("remuda_gms_used_bytes", map[string]string{"gpu": uuid}))
	require.EqualValues(t, 64*gmstest.Page, s.metric("remuda_gms_capacity_bytes", nil))
	// A request is counted once its answer is out.
	eventually(t, "all requests are counted", func() bool {
		return s.metric("remuda_gms_requests_total", map[string]string{"request": "allocate_request", "result": "ok"}) == 3
	})
	eventually(t, "the handshake is counted", func() bool {
		return s.metric("remuda_gms_handshakes_total", map[string]string{"lock_type": "rw", "result": "granted_rw"}) == 1
	})
	w.commit()
	require.EqualValues(t, 1, s.metric("remuda_gms_committed", map[string]string{"tag": weights}))
	s.open(weights, wire.RW)
	require.EqualValues(t, 1, s.metric("remuda_gms_clears_total", map[string]string{"reason": "writer"}))
	// Tags are the clients' to choose: there is an end to their series.
	w = s.open(kvCache, wire.RW)
	for i := range 40 {
		w.allocate(1, "tag-"+string(rune('a'+i)))
	}
	require.EqualValues(t, 8, s.metric("remuda_gms_allocations", map[string]string{"tag": kvCache, "allocation_tag": "other"}))
	require.EqualValues(t, 40*gmstest.Page, s.metric("remuda_gms_allocated_bytes", map[string]string{"tag": kvCache}))
}

// TestUnreadExportsAreFew: those of a reader that asks on and on and never reads are
// descriptors on their way, of which the kernel allows each user so many.
func TestUnreadExportsAreFew(t *testing.T) {
	cfg := config(t)
	cfg.Write = 100 * time.Millisecond
	s := start(t, cfg)
	id, _ := s.commitOne(weights, "x")
	r := s.open(weights, wire.RO)
	body, err := wire.Encode(&wire.ExportAllocationRequest{AllocationID: id})
	require.NoError(t, err)
	for range 400 {
		if r.WriteFrame(body, -1) != nil {
			break // it was cut off
		}
	}
	eventually(t, "it is cut off", func() bool { return s.state(weights).ROSessionCount == 0 })
	unread := 0
	for {
		_, fd, err := r.Read(0, true)
		if err != nil {
			break
		}
		require.NoError(t, unix.Close(fd))
		unread++
	}
	require.Positive(t, unread)
	require.Less(t, unread, 100)
}
