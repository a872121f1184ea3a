package server_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/state"
)

// TestGatewaysReadWhyAModelDoesNotCome, unless a replica serves or is on its way.
func TestGatewaysReadWhyAModelDoesNotCome(t *testing.T) {
	m := one(t)
	m.applied("m")
	problem := func() *api.GatewayProblem {
		t.Helper()
		got, _, err := m.client.GatewayState(t.Context(), api.QueryOptions{})
		require.NoError(t, err)
		require.Len(t, got.Models, 1)
		return got.Models[0].Problem
	}
	require.Nil(t, problem())
	m.apply(&state.Plan{ID: "p", Time: epoch, Unplaceable: []state.SetUnplaceable{{Model: "m", Reason: "no place"}}})
	require.Equal(t, &api.GatewayProblem{State: api.QueueCantPlace, Message: "no place", Since: epoch}, problem())
	m.apply(&state.Plan{ID: "p", Time: epoch.Add(time.Hour), Unplaceable: []state.SetUnplaceable{{Model: "m", Reason: "no other place"}}})
	require.Equal(t, &api.GatewayProblem{State: api.QueueCantPlace, Message: "no other place", Since: epoch}, problem())

	r := m.place("m", "1", 0, 0)
	require.Nil(t, problem(), "one is on its way")
	failures, why, retry := 3, "exit 1", epoch.Add(time.Minute)
	m.apply(&state.Move{Replica: r.String(), ModifyIndex: m.store.View().Replica(nil, r.String()).ModifyIndex, Event: state.EventFailed, Time: epoch, Failures: &failures, LastError: &why, Retry: &retry})
	require.Equal(t, &api.GatewayProblem{State: api.QueueLoadFailed, Message: "load failed 3 times: exit 1", Since: epoch, RetryAt: retry}, problem())
	other := m.place("m", "2", 1, 0)
	m.move(other, state.EventStarted, state.EventServing)
	require.Nil(t, problem(), "one serves")
	_, err := m.client.StopModel(t.Context(), "m")
	require.NoError(t, err)
	require.Nil(t, problem())
}
