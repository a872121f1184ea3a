package server_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/state"
)

// TestPauseIsTakenAwayAndNotSetToFalse: the reconciler pauses while the switch is there,
// whatever it says.
func TestPauseIsTakenAwayAndNotSetToFalse(t *testing.T) {
	t.Parallel()
	m := one(t)
	for _, value := range []string{"", "false", "False", "off", "no", "0"} {
		_, err := m.client.SetSwitch(t.Context(), state.SwitchPauseReconcile, api.SwitchRequest{Value: value})
		requireError(t, err, http.StatusBadRequest, api.CodeBadRequest, `run "remuda switch unset pause-reconcile" to end the pause`)
	}
	_, err := m.client.SetSwitch(t.Context(), state.SwitchPauseReconcile, api.SwitchRequest{Value: "on"})
	require.NoError(t, err)
}

// TestUnknownSwitchesAreRejected: a kill switch with a typing error must not look as if it were set.
func TestUnknownSwitchesAreRejected(t *testing.T) {
	t.Parallel()
	m := one(t)
	_, err := m.client.SetSwitch(t.Context(), "disable-scalling", api.SwitchRequest{Value: "true"})
	requireError(t, err, http.StatusBadRequest, api.CodeBadRequest,
		`unknown switch "disable-scalling", did you mean "disable-scaling"?: must be one of pause-reconcile, disable-scaling[/MODEL], cap-max-replicas[/MODEL], scale-to-zero-delay`)
	all, _, err := m.client.Switches(t.Context(), api.QueryOptions{})
	require.NoError(t, err)
	require.Empty(t, all)
	require.NoError(t, m.client.DeleteSwitch(t.Context(), "of-an-older-version"))
}

// TestSwitchesAreShort: each is kept in the log, the state and a decision.
func TestSwitchesAreShort(t *testing.T) {
	t.Parallel()
	m := one(t)
	_, err := m.client.SetSwitch(t.Context(), state.SwitchPauseReconcile, api.SwitchRequest{Value: strings.Repeat("x", 4096)})
	require.NoError(t, err)
	_, err = m.client.SetSwitch(t.Context(), state.SwitchPauseReconcile, api.SwitchRequest{Value: strings.Repeat("x", 4097)})
	requireError(t, err, http.StatusBadRequest, api.CodeBadRequest, `field "Value" is 4097 bytes: must be at most 4096 bytes`)
}

// TestAPauseIsAReason why a model is as it is, and whoever watches the model is told.
func TestAPauseIsAReason(t *testing.T) {
	t.Parallel()
	m := one(t)
	m.applied("m")
	_, meta, err := m.client.Model(t.Context(), "m", api.QueryOptions{})
	require.NoError(t, err)
	ch := wait(func() (api.ModelStatus, api.QueryMeta, error) {
		return m.client.Model(t.Context(), "m", api.QueryOptions{Index: meta.Index, Wait: patience})
	})
	m.waitWatches(1)
	_, err = m.client.SetSwitch(t.Context(), state.SwitchPauseReconcile, api.SwitchRequest{Value: "true"})
	require.NoError(t, err)
	got := receive(t, ch)
	require.NoError(t, got.err)
	require.Contains(t, got.value.StatusDescription, `none is placed yet. The controller is paused: run "remuda switch unset pause-reconcile" to resume. Last decision, apply`)
	require.NoError(t, m.client.DeleteSwitch(t.Context(), state.SwitchPauseReconcile))
	status, _, err := m.client.Model(t.Context(), "m", api.QueryOptions{})
	require.NoError(t, err)
	require.NotContains(t, status.StatusDescription, "pauses")
}
