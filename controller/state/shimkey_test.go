package state_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/state"
)

// TestShimKey: it is made once, whoever makes it and however often, and outlives the log.
func TestShimKey(t *testing.T) {
	l := newLog(t)
	require.Nil(t, l.store.View().ShimKey(nil))
	for _, bad := range [][]byte{nil, make([]byte, 31), make([]byte, 64)} {
		require.ErrorIs(t, l.apply(&state.SetShimKey{Seed: bad}).Err, state.ErrBadRequest)
	}
	first := state.NewShimKey()
	l.must(first)
	key := l.store.View().ShimKey(nil)
	require.Equal(t, first.Seed, key.Seed())
	second := state.NewShimKey()
	require.NotEqual(t, first.Seed, second.Seed)
	res := l.apply(second)
	require.Nil(t, res.Err)
	require.False(t, res.Changed, "the jobs that run have the public part of the first")
	require.Equal(t, key, l.store.View().ShimKey(nil))
	require.Empty(t, l.store.View().Decisions(nil, "", 0))

	data := snapshotOf(t, l.store)
	require.Equal(t, key, restored(t, data).View().ShimKey(nil))
	info, err := state.Inspect(bytes.NewReader(data), state.FeatureLevel)
	require.NoError(t, err)
	require.Equal(t, 1, info.Rows[state.TableShimKey], "what inspect shows of it")
}
