package state_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/state"
)

func observed(generation uint64, addresses ...string) *state.SetAddresses {
	return &state.SetAddresses{Replicas: []state.ReplicaAddresses{{Replica: "m:v:1", Addresses: addresses, Generation: generation}}}
}

// TestAddressesOfAReplica: they are no decision about it, and it has none once it is COLD.
func TestAddressesOfAReplica(t *testing.T) {
	l := ready(t)
	one := name("m", "1")
	l.must(l.plan(place("m", "1", "n", 0, 0, 10)))
	before := l.replica(one).ModifyIndex
	table := l.store.View().TableIndex(state.TableReplicas)
	l.must(observed(7, "10.0.0.1:1", "10.0.0.1:2"))
	r := l.replica(one)
	require.Equal(t, []string{"10.0.0.1:1", "10.0.0.1:2"}, r.Addresses)
	require.EqualValues(t, 7, r.Generation)
	require.Equal(t, before, r.ModifyIndex)
	require.Greater(t, l.store.View().TableIndex(state.TableReplicas), table, "gateways wait for it")
	require.False(t, l.apply(observed(7, "10.0.0.1:1", "10.0.0.1:2")).Changed)

	l.serve(one)
	require.Equal(t, r.Addresses, l.replica(one).Addresses, "a move keeps them")
	require.Equal(t, l.replica(one), restored(t, snapshotOf(t, l.store)).View().Replica(nil, one.String()))
	l.must(l.move(one, state.EventStop, state.GoalCold))
	require.NotEmpty(t, l.replica(one).Addresses, "its requests may finish")
	l.must(l.move(one, state.EventStopped, ""))
	require.Empty(t, l.replica(one).Addresses)
	require.Zero(t, l.replica(one).Generation)
	require.False(t, l.apply(observed(8, "10.0.0.1:1")).Changed, "an observation that came late")
}

func TestAddressesThatAreRefused(t *testing.T) {
	l := ready(t)
	l.must(l.plan(place("m", "1", "n", 0, 0, 10)))
	for want, addresses := range map[string][]string{
		`address is "nowhere": must be host:port`: {"10.0.0.1:1", "nowhere"},
		`address is ":1": must be host:port`:      {":1"},
		"257 addresses: must be at most 256":      slices.Repeat([]string{"10.0.0.1:1"}, state.MaxAddresses+1),
	} {
		require.ErrorContains(t, l.apply(observed(1, addresses...)).Err, want)
	}
	res := l.apply(&state.SetAddresses{Replicas: []state.ReplicaAddresses{{Replica: "m:v:gone", Addresses: []string{"10.0.0.1:1"}}}})
	require.Nil(t, res.Err)
	require.False(t, res.Changed)
	require.Equal(t, 2, state.Level(observed(1)))
}
