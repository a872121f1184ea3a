package server_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/server"
)

// TestAutoscalers: the leader lists who asked it as an autoscaler in the last hour.
func TestAutoscalers(t *testing.T) {
	t.Parallel()
	clock := epoch
	m := cluster(t, 1, settings{server: func(c *server.Config) { c.Now = func() time.Time { return clock } }})[0]
	m.applied("m")
	as := func(agent string) *api.Client {
		c, err := api.NewClient(api.Config{Addresses: []string{m.url}, UserAgent: agent, HTTPClient: checked(t)})
		require.NoError(t, err)
		t.Cleanup(c.Close)
		return c
	}
	list := func() []api.Autoscaler {
		t.Helper()
		all, err := m.client.Autoscalers(t.Context())
		require.NoError(t, err)
		return all
	}
	for _, agent := range []string{"", "curl/8.0 (x)", "remuda-autoscaler/1", "remuda-autoscaler/1 ()", "remuda-autoscaler/1 (" + fmt.Sprintf("%0300d", 1) + ")"} {
		_, _, err := as(agent).Model(t.Context(), "m", api.QueryOptions{})
		require.NoError(t, err)
	}
	require.Empty(t, list())
	require.Contains(t, m.page("/ui/servers", ""), "No autoscaler asks this cluster.")

	leads, waits := as("remuda-autoscaler/1.2 (b/77)"), as("remuda-autoscaler/1.1 (a/0f)")
	_, _, err := waits.Policies(t.Context(), api.QueryOptions{})
	require.NoError(t, err)
	_, _, err = leads.Model(t.Context(), "m", api.QueryOptions{})
	require.NoError(t, err)
	clock = epoch.Add(10 * time.Second)
	_, err = leads.Scale(t.Context(), "m", api.ScaleRequest{Replicas: 1})
	require.NoError(t, err)
	require.Equal(t, []api.Autoscaler{
		{Name: "a/0f", Version: "1.1", FirstSeenAt: epoch, LastSeenAt: epoch},
		{Name: "b/77", Version: "1.2", FirstSeenAt: epoch, LastSeenAt: clock, EvaluatedAt: epoch, ScaledAt: clock, Scaled: "m"},
	}, list())
	page := m.page("/ui/servers", "")
	require.Contains(t, page, `<th scope="row">b/77</th><td>1.2</td>`)
	require.Contains(t, page, "never: it waits for another one")

	clock = epoch.Add(time.Hour + 5*time.Second)
	require.Len(t, list(), 1, "one was not seen for an hour")
	for i := range 100 {
		_, _, err := as(fmt.Sprintf("remuda-autoscaler/1 (c/%d)", i)).Policies(t.Context(), api.QueryOptions{})
		require.NoError(t, err)
	}
	require.Len(t, list(), 64)
}

// The leader knows an autoscaler also if it asks another server.
func TestAnAutoscalerMayAskAnyServer(t *testing.T) {
	t.Parallel()
	ms := cluster(t, 3, settings{})
	leader := leaderOf(t, ms)
	for _, m := range ms {
		c, err := api.NewClient(api.Config{Addresses: []string{m.url}, UserAgent: "remuda-autoscaler/1 (" + m.node.ID() + ")", HTTPClient: checked(t)})
		require.NoError(t, err)
		t.Cleanup(c.Close)
		_, _, err = c.Policies(t.Context(), api.QueryOptions{})
		require.NoError(t, err)
	}
	all, err := leader.client.Autoscalers(t.Context())
	require.NoError(t, err)
	require.Len(t, all, 3)
}
