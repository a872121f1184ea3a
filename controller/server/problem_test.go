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
	t.Parallel()
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
	m.apply(&state.Move{Replica: r.String(), ModifyIndex: m.store.View().Replica(nil, r.String()).ModifyIndex, Event: state.EventFailed, Time: epoch, Failures: &failures, LastError: &why, RetryAt: &retry})
	require.Equal(t, &api.GatewayProblem{State: api.QueueLoadFailed, Message: "load failed 3 times: exit 1", Since: epoch, RetryAt: retry}, problem())
	loads := m.placement("m", "3", 1, 1)
	loads.Placement.LoadMemory = gib
	m.apply(&state.Plan{ID: "p", Index: m.store.View().Index(), Time: epoch, Place: []state.Place{loads}})
	require.NotNil(t, problem(), "one that loads to become WARM serves nothing")
	other := m.place("m", "2", 1, 0)
	m.move(other, state.EventStarted, state.EventServing)
	require.Nil(t, problem(), "one serves")
	_, err := m.client.StopModel(t.Context(), "m")
	require.NoError(t, err)
	require.Nil(t, problem())
}

// TestGatewaysReadWhichSettingKeepsAModelAway: its clients need not wait until an operator changes it.
func TestGatewaysReadWhichSettingKeepsAModelAway(t *testing.T) {
	t.Parallel()
	m := one(t)
	m.applied("m")
	read := func(q api.QueryOptions) (*api.GatewayProblem, uint64) {
		t.Helper()
		got, meta, err := m.client.GatewayState(t.Context(), q)
		require.NoError(t, err)
		return got.Models[0].Problem, meta.Index
	}
	scale := func(n int) {
		t.Helper()
		_, err := m.client.Scale(t.Context(), "m", api.ScaleRequest{Replicas: n})
		require.NoError(t, err)
	}
	scale(0)
	problem, index := read(api.QueryOptions{})
	require.Nil(t, problem, "a request brings it up")
	for _, tt := range []struct{ name, value, why string }{
		{"cap-max-replicas", "0", "capped at 0 replicas by switch cap-max-replicas"},
		{"cap-max-replicas/m", "0", "capped at 0 replicas by switch cap-max-replicas/m"},
		{"disable-scaling", "true", "the target is 0 replicas, and scaling is disabled by switch disable-scaling"},
		{"disable-scaling/m", "true", "the target is 0 replicas, and scaling is disabled by switch disable-scaling/m"},
	} {
		m.apply(&state.SetSwitch{Name: tt.name, Value: tt.value})
		before := index
		problem, index = read(api.QueryOptions{Index: before, Wait: patience})
		require.Greater(t, index, before)
		require.Equal(t, &api.GatewayProblem{State: api.QueueCantPlace, Message: tt.why}, problem)
		m.apply(&state.SetSwitch{Name: tt.name, Delete: true})
		problem, index = read(api.QueryOptions{Index: index, Wait: patience})
		require.Nil(t, problem)
	}

	// A cap holds where people want replicas, too; the others let what is wanted come.
	scale(2)
	m.apply(&state.SetSwitch{Name: "disable-scaling", Value: "true"})
	problem, _ = read(api.QueryOptions{})
	require.Nil(t, problem)
	m.apply(&state.SetSwitch{Name: "cap-max-replicas", Value: "0"})
	problem, _ = read(api.QueryOptions{})
	require.Equal(t, "capped at 0 replicas by switch cap-max-replicas", problem.Message)
	r := m.place("m", "1", 0, 0)
	problem, _ = read(api.QueryOptions{})
	require.Nil(t, problem, "one is on its way")
	m.move(r, state.EventStarted, state.EventServing)

	m.apply(&state.SetSwitch{Name: "cap-max-replicas", Delete: true})
	_, err := m.client.ApplyModels(t.Context(), api.ApplyRequest{Files: modelFile(file("a", `"full"`, `"disabled"`, "replicas   = 2", "replicas   = 0"))})
	require.NoError(t, err)
	problem, _ = read(api.QueryOptions{})
	require.Equal(t, "the target is 0 replicas, and scaling is disabled by the model file (management = \"disabled\")", problem.Message)
}
