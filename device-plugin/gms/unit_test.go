package gms_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/device-plugin/gms"
	"remuda/device-plugin/gms/wire"
	"remuda/internal/testkit/gmstest"
)

const (
	modelA = "meta/llama@1"
	modelB = "mistral:7b@12"
)

// units is how many there are.
func (s *service) units() int {
	s.t.Helper()
	families, err := s.metrics.Gather()
	require.NoError(s.t, err)
	n := 0
	for _, f := range families {
		if f.GetName() == "remuda_gms_committed" {
			n = len(f.GetMetric())
		}
	}
	return n
}

// series is how many series have a tag.
func (s *service) series(tag string) (n int) {
	s.t.Helper()
	families, err := s.metrics.Gather()
	require.NoError(s.t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "tag" && l.GetValue() == tag {
					n++
				}
			}
		}
	}
	return n
}

// TestUnitsComeAndGo: with their first connection, and when nothing is committed and no
// connection is left.
func TestUnitsComeAndGo(t *testing.T) {
	s := start(t, config(t))
	require.Equal(t, own, s.units(), "those of the GPU's own sockets")
	held := s.dial(modelA)
	require.Equal(t, own+1, s.units())
	w := s.open(modelA, wire.RW)
	w.allocate(1, "x")
	require.NoError(t, w.Close())
	eventually(t, "the writer is gone", func() bool { return s.state(modelA).State == wire.StateEmpty })
	require.Len(t, s.events(modelA), 3)
	require.NoError(t, held.Close())
	eventually(t, "the unit goes", func() bool { return s.units() == own })
	require.Zero(t, s.series(modelA), "nothing is left of it")
	require.Empty(t, s.events(modelA), "it is another one")

	id, _ := s.commitOne(modelA, "x")
	eventually(t, "no connection is left", func() bool { return s.metric("remuda_gms_connections", nil) == 0 })
	require.Equal(t, own+1, s.units(), "what is committed stays")
	s.holds(modelA, id, "x")
	require.NoError(t, s.hello(modelA, wire.HandshakeRequest{LockType: wire.RW}).Close())
	eventually(t, "the cleared unit goes", func() bool {
		if s.units() == own {
			return true
		}
		_ = s.open(modelA, wire.RW).Close()
		return false
	})
	eventually(t, "its memory is free", func() bool { return s.gpu.Used() == 0 })
}

// TestTagsOfOneGPUHoldUpEachOtherNever: a writer that waits, and one that loads.
func TestTagsOfOneGPUHoldUpEachOtherNever(t *testing.T) {
	s := start(t, config(t))
	id, _ := s.commitOne(modelA, "a")
	awake := s.open(modelA, wire.RO)
	s.commitOne(modelB, "b")
	reader := s.open(modelB, wire.RO)
	waits := s.hello(modelB, wire.HandshakeRequest{LockType: wire.RW})
	eventually(t, "the writer waits", func() bool { return s.state(modelB).WaitingWriters == 1 })
	// A failover: the reader dies, and another one comes.
	require.NoError(t, awake.Close())
	s.holds(modelA, id, "a")
	s.open(modelA, wire.RO)
	require.NoError(t, reader.Close())
	waits.granted(wire.RW)
	waits.allocate(1, "loads")
	s.holds(modelA, id, "a")
	s.open(weights, wire.RW)
}

func TestUnitsAreRefusedWithTheReason(t *testing.T) {
	s := start(t, config(t))
	for _, tc := range []struct {
		gpu, tag, want string
	}{
		{"GPU-9", modelA, `GPU "GPU-9" is not served here: start 'remuda gms' with it`},
		{uuid, "", `tag "": must have 1 to 256 bytes of UTF-8`},
		{uuid, strings.Repeat("x", 257), "must have 1 to 256 bytes"},
		{uuid, "a b", `tag "a b": must not have spaces and control characters`},
		{uuid, "a\nb", "must not have spaces"},
	} {
		c := dialPath(t, s.path(modelA))
		require.Contains(t, c.refused(&wire.OpenUnitRequest{GPU: tc.gpu, Tag: tc.tag}).Error, tc.want)
		c.closed()
	}
	c := dialPath(t, s.path(modelA))
	require.Contains(t, c.refused(&wire.GetRuntimeStateRequest{}).Error, "must be an open_unit_request")
	c.closed()
	c = dialPath(t, s.path(weights))
	c.refused(&wire.OpenUnitRequest{GPU: uuid, Tag: modelA})
	c.closed()
	c = s.dial(modelA)
	c.refused(&wire.OpenUnitRequest{GPU: uuid, Tag: modelB})
	c.closed()
	require.Equal(t, own, s.units())
}

func TestUnitsAreBounded(t *testing.T) {
	cfg := config(t)
	cfg.MaxConns = 1000
	s := start(t, cfg)
	var all []*client
	for i := own; i < 512; i++ {
		all = append(all, s.dial(fmt.Sprint("m@", i)))
	}
	c := dialPath(t, s.path(modelA))
	require.Contains(t, c.refused(&wire.OpenUnitRequest{GPU: uuid, Tag: "m@512"}).Error, "the limit of 512 layouts is reached: clear those that no engine needs with 'remuda gms clear'")
	s.dial("m@7") // one that is there
	require.NoError(t, all[0].Close())
	eventually(t, "there is room", func() bool { return s.units() < 512 })
	s.dial("m@512")
}

// TestIfUnused: nobody's layout is taken away, awake or asleep, and nobody is waited for.
func TestIfUnused(t *testing.T) {
	s := start(t, config(t))
	s.commitOne(modelA, "x")
	hello := wire.HandshakeRequest{LockType: wire.RW, IfUnused: true}
	for _, uses := range []func() *client{
		func() *client { return s.dial(modelA) }, // an engine that sleeps: its shim has a connection
		func() *client { return s.open(modelA, wire.RO) },
	} {
		c := uses()
		require.Contains(t, s.hello(modelA, hello).denied(wire.CodeInUse).Error, "others use the layout")
		require.NoError(t, c.Close())
	}
	// A group is one: its shims, and its engine that sleeps.
	own, other := &wire.OpenUnitRequest{GPU: uuid, Tag: modelA, Group: "g"}, &wire.OpenUnitRequest{GPU: uuid, Tag: modelA, Group: "h"}
	join := func(open *wire.OpenUnitRequest) *client {
		c := dialPath(t, s.path(modelA))
		ask[*wire.OpenUnitResponse](c, open)
		return c
	}
	idle := join(own)
	stays := join(other)
	join(own).post(&hello).denied(wire.CodeInUse)
	require.NoError(t, stays.Close())
	eventually(t, "the other group is gone", func() bool { return s.metric("remuda_gms_connections", nil) == 1 })
	s.hello(modelA, hello).denied(wire.CodeInUse)
	w := join(own).post(&hello)
	w.granted(wire.RW)
	w.commit()
	require.NoError(t, idle.Close())
	require.True(t, s.state(modelA).Committed)
	eventually(t, "the others are gone", func() bool { return s.metric("remuda_gms_connections", nil) == 0 })
	w = s.hello(modelA, hello)
	w.granted(wire.RW)
	require.Equal(t, wire.CodeInUse, s.hello(modelA, hello).denied(wire.CodeInUse).Code)
	for _, lock := range []wire.LockType{wire.RO, wire.Auto} {
		s.hello(modelA, wire.HandshakeRequest{LockType: lock, IfUnused: true}).denied(wire.CodeBadRequest)
	}
}

// TestLayoutThatNobodyUsesIsReleased, some time after the last of its engines' shims has gone, and
// not before.
func TestLayoutThatNobodyUsesIsReleased(t *testing.T) {
	cfg := config(t)
	cfg.ReleaseAfter = 4 * time.Second
	s := start(t, cfg)
	s.commitOne(weights, "w")
	s.commitOne(modelA, "a")
	s.commitOne(modelB, "b")
	shim := dialPath(t, s.path(modelA))
	hold := &wire.OpenUnitRequest{GPU: uuid, Tag: modelA, Group: "g"}
	ask[*wire.OpenUnitResponse](shim, hold)
	eventually(t, "the layout of b is released", func() bool { return !s.state(modelB).Committed })
	require.True(t, s.state(modelA).Committed, "a shim has a connection")
	// One that comes back in time finds it.
	require.NoError(t, shim.Close())
	time.Sleep(cfg.ReleaseAfter / 10)
	shim = dialPath(t, s.path(modelA))
	ask[*wire.OpenUnitResponse](shim, hold)
	time.Sleep(5 * cfg.ReleaseAfter / 4)
	require.True(t, s.state(modelA).Committed)
	require.NoError(t, shim.Close())
	eventually(t, "the layout of a is released", func() bool { return !s.state(modelA).Committed })
	require.True(t, s.state(weights).Committed, "its clients leave no connection while they sleep")
}

// TestUnitsSurvive: those with a committed layout. Whether one is unused is known once those that use
// it had time to come back.
func TestUnitsSurvive(t *testing.T) {
	s, k := kept(t)
	id, hash := s.commitOne(modelA, "a")
	s.open(modelB, wire.RW).allocate(1, "half")
	s.cfg.GPUs = []gms.GPU{{UUID: uuid, Backend: gmstest.NewBackend(64 * gmstest.Page)}}
	restarted := time.Now()
	s = s.again()
	require.Equal(t, own+1, s.units())
	require.Equal(t, hash, s.state(modelA).MemoryLayoutHash)
	s.holds(modelA, id, "a")
	hello := wire.HandshakeRequest{LockType: wire.RW, IfUnused: true}
	eventually(t, "it is unused", func() bool { // the connection above may not have ended yet
		return s.hello(modelA, hello).next().(*wire.HandshakeResponse).Success
	})
	require.Greater(t, time.Since(restarted), 5*time.Second, "those that use it had no time to come back")
	_, found := k.Has(uuid + "/" + modelA)
	require.False(t, found)
}

// TestUsersComeBack: after a crash of the service a layout is not taken away from those that come back
// a moment later.
func TestUsersComeBack(t *testing.T) {
	s, _ := kept(t)
	s.commitOne(modelA, "a")
	s.cfg.GPUs = []gms.GPU{{UUID: uuid, Backend: gmstest.NewBackend(64 * gmstest.Page)}}
	s = s.again()
	eventually(t, "the connection of the commit is gone", func() bool { return s.metric("remuda_gms_connections", nil) == 0 })
	asks := s.hello(modelA, wire.HandshakeRequest{LockType: wire.RW, IfUnused: true})
	s.dial(modelA)
	require.Contains(t, asks.denied(wire.CodeInUse).Error, "others use the layout")
	require.True(t, s.state(modelA).Committed)
}
