package gms

import (
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/device-plugin/gms/layout"
	"remuda/internal/testkit/gmstest"
)

// TestLayoutOfAFencedWriterIsNotKept: not even an empty one, where the writer was
// fenced while its commit waited for the record.
func TestLayoutOfAFencedWriterIsNotKept(t *testing.T) {
	cfg := DefaultConfig()
	cfg.SocketDir = t.TempDir()
	cfg.GPUs = []GPU{{UUID: "GPU-1", Backend: gmstest.NewBackend(0)}}
	s, err := New(cfg)
	require.NoError(t, err)
	u := s.units[0]
	u.machine.Connect(1, layout.Writer)
	_, _, err = u.machine.Accept(1)
	require.NoError(t, err)
	u.committing = 1
	c, err := u.wantLayout()
	require.NoError(t, err)
	require.True(t, c.keep)
	u.machine.Leave(1)
	c, err = u.wantLayout()
	require.NoError(t, err)
	require.False(t, c.keep)
	u.machine.Connect(2, layout.Writer) // the next one has not committed anything
	_, _, err = u.machine.Accept(2)
	require.NoError(t, err)
	c, err = u.wantLayout()
	require.NoError(t, err)
	require.False(t, c.keep)
}

// TestTokenCountsOnceItIsKept: for every session that brings it, not for the first
// one only, which may be about to have it kept.
func TestTokenCountsOnceItIsKept(t *testing.T) {
	f := newFences()
	admit := func(token uint64) (*session, bool) {
		s := &session{group: "g", token: token}
		_, unkept, err := f.admit(s)
		require.NoError(t, err)
		return s, unkept
	}
	first, unkept := admit(0)
	require.True(t, unkept)
	_, unkept = admit(0)
	require.True(t, unkept, "the first one has not settled yet")
	f.settled(first)
	_, unkept = admit(0)
	require.False(t, unkept)
	second, unkept := admit(2)
	require.True(t, unkept)
	f.settled(first)
	_, unkept = admit(2)
	require.True(t, unkept)
	f.settled(second)
	_, unkept = admit(2)
	require.False(t, unkept)

	f = newFences()
	f.restore(map[string]uint64{"g": 2})
	_, unkept = admit(2)
	require.False(t, unkept, "the keeper has it")
	_, unkept = admit(3)
	require.True(t, unkept)
}
