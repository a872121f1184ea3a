package server_test

import (
	"encoding/json"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
)

func TestScalers(t *testing.T) {
	m, secrets := bootstrapped(t)
	c := m.as(secrets["autoscaler"])
	const name = "hpa/meta-llama/8B:x"
	_, _, err := c.Scaler(t.Context(), name, api.QueryOptions{})
	requireError(t, err, http.StatusNotFound, api.CodeNotFound, `scaler "hpa/meta-llama/8B:x" does not exist`)
	first, err := c.SetScaler(t.Context(), name, api.ScalerRequest{State: json.RawMessage(` { "up" : [ 1, "<&>" ] } `), CAS: ptr(uint64(0))})
	require.NoError(t, err)
	require.True(t, first.New)
	require.True(t, first.Changed)

	got, meta, err := c.Scaler(t.Context(), name, api.QueryOptions{})
	require.NoError(t, err)
	require.JSONEq(t, `{"up":[1,"<&>"]}`, string(got.State))
	require.Equal(t, first.ModifyIndex, got.ModifyIndex)
	require.Equal(t, first.ModifyIndex, got.CreateIndex)

	// It can be watched, and of all that know the same one is heard, though all say the same.
	changed := make(chan api.Scaler, 1)
	go func() {
		s, _, _ := c.Scaler(t.Context(), name, api.QueryOptions{Index: meta.Index, Wait: time.Minute})
		changed <- s
	}()
	const many = 8
	done, errs := make([]api.ScalerResponse, many), make([]error, many)
	var wg sync.WaitGroup
	for i := range many {
		wg.Go(func() {
			done[i], errs[i] = c.SetScaler(t.Context(), name, api.ScalerRequest{State: got.State, CAS: &got.ModifyIndex})
		})
	}
	wg.Wait()
	heard := 0
	for i, err := range errs {
		if err != nil {
			requireError(t, err, http.StatusConflict, api.CodeConflict, "has changed")
			continue
		}
		heard++
		require.Equal(t, api.ScalerResponse{Name: name, Changed: true, ModifyIndex: done[i].ModifyIndex}, done[i])
		require.Equal(t, done[i].ModifyIndex, (<-changed).ModifyIndex)
	}
	require.Equal(t, 1, heard)

	// Without a comparison the same changes nothing.
	now, _, err := c.Scaler(t.Context(), name, api.QueryOptions{})
	require.NoError(t, err)
	same, err := c.SetScaler(t.Context(), name, api.ScalerRequest{State: json.RawMessage(`{"up":[1,"<&>"]}`)})
	require.NoError(t, err)
	require.Equal(t, now.ModifyIndex, same.ModifyIndex)

	list, _, err := c.Scalers(t.Context(), api.QueryOptions{})
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, name, list[0].Name)
	require.Equal(t, len(m.store.View().Scaler(nil, name).State), list[0].Bytes)
	require.Empty(t, m.store.View().Decisions(nil, "", 0), "what it remembers is no decision")

	reader := m.as(secrets["read-only"])
	_, _, err = reader.Scaler(t.Context(), name, api.QueryOptions{})
	require.NoError(t, err)
	_, err = reader.SetScaler(t.Context(), name, api.ScalerRequest{State: json.RawMessage("1")})
	requireError(t, err, http.StatusForbidden, api.CodeForbidden, "cannot PUT")
	_, _, err = m.as(secrets["gateway"]).Scaler(t.Context(), name, api.QueryOptions{})
	requireError(t, err, http.StatusForbidden, api.CodeForbidden, "cannot GET")

	requireError(t, c.DeleteScaler(t.Context(), name, first.ModifyIndex), http.StatusConflict, api.CodeConflict, "has changed")
	require.NoError(t, c.DeleteScaler(t.Context(), name, now.ModifyIndex))
	requireError(t, c.DeleteScaler(t.Context(), name, 0), http.StatusNotFound, api.CodeNotFound, "does not exist")
	resp, body := m.raw(http.MethodDelete, "/v1/scaler/x?cas=no", secrets["operator"], "")
	require.Equal(t, http.StatusBadRequest, resp.StatusCode)
	require.Contains(t, refused(t, body).Message, `cas is "no"`)
}
