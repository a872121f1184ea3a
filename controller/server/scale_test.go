package server_test

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/state"
)

// TestVariantsAreScaledTogether: one request, one change, one decision with its reason.
func TestVariantsAreScaledTogether(t *testing.T) {
	m, secrets := bootstrapped(t)
	m.applied("m")
	c := m.as(secrets["autoscaler"])
	before, _, err := c.Model(t.Context(), "m", api.QueryOptions{})
	require.NoError(t, err)
	ask := api.ScaleRequest{Variants: map[string]int{"a": 1, "b": 2}, Reason: " the queue\n\tis\x00 long\r\n", CAS: ptr(before.Model.ModifyIndex)}
	done, err := c.Scale(t.Context(), "m", ask)
	require.NoError(t, err)
	require.True(t, done.Changed)
	require.Equal(t, 3, done.Target)
	after, _, err := c.Model(t.Context(), "m", api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, []api.Share{{Variant: "a", Replicas: 1}, {Variant: "b", Replicas: 2}}, after.Model.Desired)
	require.Equal(t, 3, after.Model.Replicas)
	require.Equal(t, done.ModifyIndex, after.Model.ModifyIndex)
	require.Len(t, after.Decisions, len(before.Decisions)+1)
	d := after.Decisions[0]
	require.Equal(t, `autoscaler "a autoscaler" asked for the replicas a=1, b=2 (was 2): the queue is long`, d.Reason)
	require.Equal(t, map[string]string{"asked": "a=1, b=2", "before": "2", "variant": "", "origin": "autoscaler"}, d.Details)

	// Who compares with what was before is refused, and the same again changes nothing.
	_, err = c.Scale(t.Context(), "m", ask)
	requireError(t, err, http.StatusConflict, api.CodeConflict, "has changed")
	ask.CAS = nil
	again, err := c.Scale(t.Context(), "m", ask)
	require.NoError(t, err)
	require.False(t, again.Changed)
	require.Equal(t, done.ModifyIndex, again.ModifyIndex)

	// The other ways keep a reason as well.
	one, err := c.Scale(t.Context(), "m", api.ScaleRequest{Replicas: 4, Reason: strings.Repeat("x", api.MaxScaleReason)})
	require.NoError(t, err)
	require.Equal(t, 4, one.Target)
	last, _, err := c.Decisions(t.Context(), api.DecisionFilter{Model: "m", Limit: 1}, api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, `autoscaler "a autoscaler" asked for 4 replicas of the model (was 3): `+strings.Repeat("x", api.MaxScaleReason), last[0].Reason)

	// An empty map is no wish for nothing at all.
	_, err = c.Scale(t.Context(), "m", api.ScaleRequest{Variants: map[string]int{}})
	requireError(t, err, http.StatusBadRequest, api.CodeBadRequest, "no variants are set")
	_, err = m.client.ApplyModels(t.Context(), api.ApplyRequest{Files: modelFile(file("m", `"full"`, `"manual"`))})
	require.NoError(t, err)
	_, err = c.Scale(t.Context(), "m", api.ScaleRequest{Variants: map[string]int{"a": 1, "b": 1}})
	requireError(t, err, http.StatusForbidden, api.CodeForbidden, `the autoscaler cannot scale it (management = "manual" in the model file)`)
}

// TestTwoAutoscalersNeverAddTwice: of many that have seen the same, one is heard.
func TestTwoAutoscalersNeverAddTwice(t *testing.T) {
	t.Parallel()
	m := one(t)
	m.applied("m")
	seen, _, err := m.client.Model(t.Context(), "m", api.QueryOptions{})
	require.NoError(t, err)
	const many = 8
	errs := make([]error, many)
	var wg sync.WaitGroup
	for i := range many {
		wg.Go(func() {
			_, errs[i] = m.client.Scale(t.Context(), "m", api.ScaleRequest{Variants: map[string]int{"a": 2, "b": 1}, CAS: ptr(seen.Model.ModifyIndex), Origin: "autoscaler"})
		})
	}
	wg.Wait()
	heard := 0
	for _, err := range errs {
		if err == nil {
			heard++
			continue
		}
		requireError(t, err, http.StatusConflict, api.CodeConflict, "has changed")
	}
	require.Equal(t, 1, heard)
	require.Equal(t, 3, m.store.View().Model(nil, "m").Desired.Total())
}

func TestReplicasAreCountedByVariant(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 100)
	m := cluster(t, 1, settings{world: func(w *world) {
		w.unplaceable = func(model string) map[string]string {
			asked <- model
			return map[string]string{"b": "no room"}
		}
		w.notServing = map[string]string{"m:a:r1": "it is loading", "m:a:r2": "it is loading"}
	}})[0]
	m.applied("m")
	hot := m.place("m", "r1", 0, 0)
	m.move(hot, state.EventStarted, state.EventServing)
	m.move(m.place("m", "r2", 0, 1), state.EventStarted)
	got, _, err := m.client.Model(t.Context(), "m", api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, map[string]api.Counts{"a": {Hot: 1, Starting: 1}, "b": {}}, got.VariantCounts)
	require.Equal(t, api.Counts{Hot: 1, Starting: 1}, got.Counts)
	require.Equal(t, map[string]string{"b": "no room"}, got.Unplaceable)
	require.Equal(t, "m", <-asked)
	require.Empty(t, got.Replicas[0].NotServing, "it serves")
	require.Equal(t, "it is loading", got.Replicas[1].NotServing)

	// A variant that is gone is counted while it has replicas, and no longer.
	_, err = m.client.ApplyModels(t.Context(), api.ApplyRequest{Files: modelFile(file("m", `variant "a"`, `variant "z"`))})
	require.NoError(t, err)
	got, _, err = m.client.Model(t.Context(), "m", api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, map[string]api.Counts{"a": {Hot: 1, Starting: 1}, "b": {}, "z": {}}, got.VariantCounts)
}
