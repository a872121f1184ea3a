package server_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/autoscaler-plugin/plugin"
	"remuda/controller/api"
	"remuda/controller/server"
)

func TestPolicies(t *testing.T) {
	t.Parallel()
	m := cluster(t, 1, settings{server: func(c *server.Config) { c.CheckScaling = plugin.CheckPolicy }})[0]
	c := m.client
	with := func(scaling string) api.ApplyRequest {
		return api.ApplyRequest{Files: modelFile(strings.Replace(file("m"), "{\n", "{\nscaling {\n"+scaling+"\n}\n", 1) + file("n"))}
	}
	for scaling, want := range map[string]string{
		`strategy = "remuda-magic"`:                        `model "m": scaling: strategy is "remuda-magic": must be one of remuda-capacity, remuda-hpa, remuda-utilization, remuda-predictive`,
		"strategy = \"remuda-capacity\"\nholds = \"2m\"":   `model "m": scaling: holds is an unknown key: must be one of `,
		"strategy = \"remuda-capacity\"\nhold = \"soon\"":  `model "m": scaling: hold is "soon": must be a time from 0s to 24h0m0s, such as "30s"`,
		"strategy = \"remuda-capacity\"\nmodel = \"n\"":    `model "m": scaling: model is set: remove it`,
		"strategy = \"remuda-hpa\"\nbehavior = { up = 1 }": `model "m": scaling: behavior is invalid: `,
	} {
		_, err := c.ApplyModels(t.Context(), with(scaling))
		require.ErrorContains(t, err, want)
		_, err = c.Plan(t.Context(), api.PlanRequest{Files: with(scaling).Files})
		require.ErrorContains(t, err, want)
	}
	none, meta, err := c.Policies(t.Context(), api.QueryOptions{})
	require.NoError(t, err)
	require.Empty(t, none)

	_, err = c.ApplyModels(t.Context(), with("strategy = \"remuda-capacity\"\nhold = \"1m\"\nscale_to_zero = true"))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	got, meta, err := c.Policies(ctx, api.QueryOptions{Index: meta.Index})
	require.NoError(t, err)
	st, _, err := c.Model(ctx, "m", api.QueryOptions{})
	require.NoError(t, err)
	want := api.Scaling{Strategy: "remuda-capacity", Interval: api.Duration(10 * time.Second), Settings: map[string]string{"hold": "1m", "scale_to_zero": "true"}}
	require.Equal(t, []api.Policy{{Model: "m", Min: st.Model.Min, Max: st.Model.Max, Scaling: want}}, got)
	require.Equal(t, &want, st.Model.Scaling)

	_, err = c.ApplyModels(t.Context(), api.ApplyRequest{Files: modelFile(file("m"))})
	require.NoError(t, err)
	got, _, err = c.Policies(ctx, api.QueryOptions{Index: meta.Index})
	require.NoError(t, err)
	require.Empty(t, got)
}
