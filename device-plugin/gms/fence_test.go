package gms_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/device-plugin/gms/wire"
	"remuda/internal/testkit/gmstest"
)

func fenced(mode wire.LockType, group string, token uint64) wire.HandshakeRequest {
	return wire.HandshakeRequest{LockType: mode, FenceGroup: group, FenceToken: &token}
}

func TestStaleTokensAreRefused(t *testing.T) {
	s := start(t, config(t))
	_, hash := s.commitOne(weights, "x")
	s.hello(weights, fenced(wire.RO, "g", 5)).granted(wire.RO)
	h := s.hello(weights, fenced(wire.RO, "g", 4)).denied(wire.CodeFenced)
	require.Equal(t, hash, h.MemoryLayoutHash)
	s.hello(kvCache, fenced(wire.RW, "g", 4)).denied(wire.CodeFenced) // across tags
	require.Empty(t, s.events(kvCache))
	s.hello(weights, fenced(wire.RO, "g", 5)).granted(wire.RO) // each rank has a session
	s.hello(weights, fenced(wire.RO, "other", 1)).granted(wire.RO)
	s.hello(weights, fenced(wire.RO, "zero", 0)).granted(wire.RO)
	s.open(weights, wire.RO)
	require.EqualValues(t, 5, s.state(weights).ROSessionCount)
	require.EqualValues(t, 2, s.metric("remuda_gms_fenced_total", map[string]string{"action": "refused"}))
}

// TestHigherTokenEndsSessions: writers, readers and those that wait, everywhere in
// the group, before it is answered; and nobody else's.
func TestHigherTokenEndsSessions(t *testing.T) {
	s := start(t, config(t))
	s.commitOne(weights, "x")
	reader := s.hello(weights, fenced(wire.RO, "g", 1))
	reader.granted(wire.RO)
	foreign := s.hello(weights, fenced(wire.RO, "other", 1))
	foreign.granted(wire.RO)
	writer := s.hello(kvCache, fenced(wire.RW, "g", 1))
	writer.granted(wire.RW)
	writer.allocate(3, "x")
	waits := s.hello(kvCache, fenced(wire.RO, "g", 1))
	waits.silent(10 * time.Millisecond)

	heir := s.hello(kvCache, fenced(wire.RW, "g", 2))
	heir.granted(wire.RW)
	require.Equal(t, []wire.Event{{Kind: wire.EventRWConnected}, {Kind: wire.EventRWAborted}, {Kind: wire.EventCleared, AllocationCount: 1}, {Kind: wire.EventRWConnected}}, s.events(kvCache))
	require.EqualValues(t, 1, s.state(weights).ROSessionCount)
	reader.closed()
	writer.closed()
	waits.denied(wire.CodeFenced)
	ask[*wire.GetLockStateResponse](foreign, &wire.GetLockStateRequest{})
	require.EqualValues(t, 3, s.metric("remuda_gms_fenced_total", map[string]string{"action": "closed"}))
	require.Zero(t, heir.allocate(1, "x").LayoutSlot)
	// An older token ends nobody.
	s.hello(kvCache, fenced(wire.RW, "g", 1)).denied(wire.CodeFenced)
	heir.allocate(1, "x")
}

// TestFencedWriterInTheMiddleOfARequest: one that waits for room.
func TestFencedWriterInTheMiddleOfARequest(t *testing.T) {
	s := start(t, config(t))
	s.gpu.Take(60 * gmstest.Page)
	w := s.hello(weights, fenced(wire.RW, "g", 1))
	w.granted(wire.RW)
	w.allocate(4, "x")
	w.post(&wire.AllocateRequest{Size: gmstest.Page})
	w.silent(20 * time.Millisecond)
	heir := s.hello(weights, fenced(wire.RW, "g", 2))
	heir.granted(wire.RW)
	w.closed()
	heir.allocate(4, "x")
	require.EqualValues(t, 1, s.state(weights).AllocationCount)
}

// TestFencedWriterInTheMiddleOfACommit: its layout must not be committed, and must
// not be kept, though the keeper is about to have it.
func TestFencedWriterInTheMiddleOfACommit(t *testing.T) {
	cfg, k := keptConfig(t)
	cfg.KeeperWait = patience
	s := start(t, cfg)
	w := s.hello(weights, fenced(wire.RW, "g", 1))
	w.granted(wire.RW)
	w.allocate(1, "x")
	k.Hang(true)
	w.post(&wire.CommitRequest{})
	w.silent(20 * time.Millisecond)
	heir := s.hello(weights, fenced(wire.RW, "g", 2))
	w.closed()
	k.Hang(false)
	heir.granted(wire.RW)
	require.False(t, s.state(weights).Committed)
	_, found := k.Has(layoutRecord)
	require.False(t, found)
	heir.allocate(1, "x")
	heir.commit()
	require.Equal(t, 1, func() int { fds, _ := k.Has(layoutRecord); return fds }())
	require.Equal(t, []wire.Event{{Kind: wire.EventRWConnected}, {Kind: wire.EventRWAborted}, {Kind: wire.EventCleared, AllocationCount: 1}, {Kind: wire.EventRWConnected}, {Kind: wire.EventCommitted}}, s.events(weights))
}

func TestTokensSurvive(t *testing.T) {
	s, k := kept(t)
	for i := range uint64(5) {
		w := s.hello(weights, fenced(wire.RW, fmt.Sprintf("g%d", i), 10+i))
		w.granted(wire.RW)
		_, found := k.Has("fence")
		require.True(t, found, "it is kept before it counts")
		w.commit()
	}
	s = s.again()
	for i := range uint64(5) {
		group := fmt.Sprintf("g%d", i)
		s.hello(kvCache, fenced(wire.RW, group, 9+i)).denied(wire.CodeFenced)
		w := s.hello(kvCache, fenced(wire.RW, group, 10+i))
		w.granted(wire.RW)
		w.commit()
	}
	k.Spoil("fence", func([]byte, []int) ([]byte, []int) { return []byte{1, 2, 3}, nil })
	s = s.again()
	s.hello(kvCache, fenced(wire.RW, "g0", 1)).granted(wire.RW)
	require.Positive(t, s.metric("remuda_gms_keeper_failures_total", nil), "it is told that nothing is known")
}

// TestTokenIsKeptBeforeItCounts: a keeper that hangs is waited for, by each client
// for as long as it wants.
func TestTokenIsKeptBeforeItCounts(t *testing.T) {
	s, k := kept(t)
	k.Hang(true)
	first := s.hello(weights, fenced(wire.RW, "g", 1))
	first.silent(20 * time.Millisecond)
	h := fenced(wire.RO, "other", 1)
	h.TimeoutMS = ptr(int64(20))
	s.hello(weights, h).denied(wire.CodeTimeout)
	// The same token again: it is not kept yet either.
	s.hello(kvCache, fenced(wire.RW, "g", 1)).silent(20 * time.Millisecond)
	s.open(kvCache, wire.RW).commit() // who has no token is not concerned
	k.Hang(false)
	first.granted(wire.RW)
	s = s.again()
	s.hello(weights, fenced(wire.RW, "g", 0)).denied(wire.CodeFenced)
	s.hello(weights, fenced(wire.RW, "other", 0)).denied(wire.CodeFenced)
	k.Kill()
	s.hello(weights, fenced(wire.RW, "g", 2)).granted(wire.RW) // there is none to wait for
	k.Start()
	eventually(t, "it is kept", func() bool { _, found := k.Has("fence"); return found })
}
