package state_test

import (
	"bytes"
	"fmt"
	"sync"
	"testing"

	"github.com/hashicorp/go-memdb"
	"github.com/stretchr/testify/require"

	"remuda/controller/state"
)

// TestForkHasALifeOfItsOwn applies to a store and its fork in turn.
func TestForkHasALifeOfItsOwn(t *testing.T) {
	l := full(t)
	v := l.store.View()
	at := snapshotOf(t, l.store)
	fork := &log{t: t, store: l.store.Fork(), index: l.index}
	require.Equal(t, at, snapshotOf(t, fork.store))

	// What is done to the fork is not seen here, and wakes nobody who waits here.
	ws := memdb.NewWatchSet()
	v.Replicas(ws)
	v.Model(ws, "m")
	v.Dedicated(ws)
	fork.must(evict("m:v:1", "", force), dedicate(nil), &state.SetSwitch{Name: "there", Value: "only"})
	require.Equal(t, at, snapshotOf(t, l.store))
	require.False(t, woken(ws))

	// Nor the other way round.
	there := snapshotOf(t, fork.store)
	l.must(&state.SetSwitch{Name: "here", Value: "only"}, l.move(name("m", "2"), state.EventStarted, ""))
	require.Equal(t, there, snapshotOf(t, fork.store))
	require.Empty(t, fork.store.View().Switch(nil, "here"))
	require.Empty(t, l.store.View().Switch(nil, "there"))
	require.Equal(t, state.StatusPlaced, fork.replica(name("m", "2")).Status)

	ws = memdb.NewWatchSet()
	l.store.View().Switches(ws)
	l.must(&state.SetSwitch{Name: "here", Delete: true})
	require.True(t, woken(ws), "who waits for the store itself is woken")

	// A fork of a fork, and a fork that outlives a restored store.
	second := fork.store.Fork()
	require.Equal(t, there, snapshotOf(t, second))
	_, err := l.store.Restore(bytes.NewReader(at), state.FeatureLevel)
	require.NoError(t, err)
	require.Equal(t, there, snapshotOf(t, fork.store))
}

// TestForkAndStore has both written to at the same time.
func TestForkAndStore(t *testing.T) {
	l := full(t)
	at := snapshotOf(t, l.store)
	fork := &log{t: t, store: l.store.Fork(), index: l.index}
	write := func(l *log, value string) {
		for i := range 50 {
			l.must(&state.SetSwitch{Name: fmt.Sprint("s", i), Value: value}, &state.ScaleRequest{Model: "m", Replicas: ptr(i%2 + 3), Origin: state.OriginOperator})
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() { write(fork, "fork") })
	wg.Go(func() { write(l, "store") })
	wg.Wait()
	require.Equal(t, "fork", fork.store.View().Switch(nil, "s7"))
	require.Equal(t, "store", l.store.View().Switch(nil, "s7"))

	// Each one is what its own commands make of the common beginning.
	for _, l := range []*log{l, fork} {
		alone := &log{t: t, store: restored(t, at), index: fork.index - 100}
		for _, e := range l.entries[len(l.entries)-100:] {
			alone.applyBytes(e)
		}
		require.True(t, bytes.Equal(snapshotOf(t, l.store), snapshotOf(t, alone.store)))
	}
	_, err := l.store.Restore(bytes.NewReader(at), state.FeatureLevel)
	require.NoError(t, err)
	require.Equal(t, "fork", fork.store.View().Switch(nil, "s7"))
}

// woken tells whether anything that ws waits for has happened.
func woken(ws memdb.WatchSet) bool {
	for ch := range ws {
		select {
		case <-ch:
			return true
		default:
		}
	}
	return false
}
