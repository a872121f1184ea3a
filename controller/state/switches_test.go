package state_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/state"
)

func TestCheckSwitch(t *testing.T) {
	for _, tt := range []struct{ name, value, text string }{
		{"disable-scaling", "true", ""},
		{"disable-scaling/m", "true", ""},
		{"disable-scaling", "false", `switch "disable-scaling" is "false": must be true, or unset ("remuda switch unset")`},
		{"disable-scaling/m", "", "must be true"},
		{"disable-scaling/", "true", "missing model after the '/'"},
		{"cap-max-replicas", "0", ""},
		{"cap-max-replicas/m", "12", ""},
		{"cap-max-replicas", "-1", "must be a whole number of replicas, 0 or more"},
		{"cap-max-replicas/m", "two", "must be a whole number"},
		{"cap-max-replicas/", "1", "missing model after the '/'"},
		{"scale-to-zero-delay", "1h30m", ""},
		{"scale-to-zero-delay", "0s", ""},
		{"scale-to-zero-delay", "never", ""},
		{"scale-to-zero-delay", "-1s", "must be a duration of 0 or more, such as 30m, or never"},
		{"scale-to-zero-delay", "30", "must be a duration"},
		{"scale-to-zero-delay/m", "30m", "scale-to-zero-delay applies to all models: it cannot be set for one model"},
		{"pause-reconcile", "on", ""},
		{"pause-reconcile", "Off", `run "remuda switch unset pause-reconcile" to end the pause`},
		{"pause-reconcile/m", "on", "pause-reconcile applies to all models"},
		{"disable-scaling-soon", "whatever", `unknown switch "disable-scaling-soon": must be one of pause-reconcile, disable-scaling[/MODEL], `},
		{"cap-max-replica/m", "1", `unknown switch "cap-max-replica/m", did you mean "cap-max-replicas"?`},
		{"", "1", "unknown switch"},
	} {
		err := state.CheckSwitch(tt.name, tt.value)
		if tt.text == "" {
			require.NoError(t, err, "%s = %q", tt.name, tt.value)
			continue
		}
		require.ErrorContains(t, err, tt.text)
	}
}

// TestAReplayDoesNotJudge: what an older version accepted makes the same state again, although
// this version rejects it in a request.
func TestAReplayDoesNotJudge(t *testing.T) {
	require.Error(t, state.CheckSwitch("disable-scaling", "yes"))
	l := newLog(t)
	for _, entry := range []string{
		`{"Name":"disable-scaling","Value":"yes"}`, `{"Name":"cap-max-replicas","Value":"many"}`, `{"Name":"of-an-older-version","Value":""}`,
	} {
		res := l.applyBytes(append([]byte{byte(state.TypeSetSwitch)}, entry...))
		require.Nil(t, res.Err, entry)
		require.True(t, res.Changed, entry)
	}
	v := l.store.View()
	require.True(t, v.Limits(nil)("m").ScalingDisabled)
	require.Nil(t, v.Limits(nil)("m").Cap)
	require.Len(t, v.Switches(nil), 3)

	l.must(&state.UpsertNodes{Nodes: []state.Node{node("n", 1, 1, 1)}})
	for _, c := range []state.Command{
		&state.Cordon{Node: "n", On: true, Reason: strings.Repeat("x", 5000)},
		&state.Plan{ID: "p", Cordons: []state.Cordon{{Node: "n", On: true, Reason: strings.Repeat("x", 5000)}}},
		&state.SetSchedule{File: strings.Repeat("x", 2<<20)},
		&state.SetPipeline{Name: "p", Source: "steps", Models: []string{"b", "a"}},
		&state.UpsertToken{Token: state.Token{Accessor: "a", Role: "of-an-older-version", Hash: state.HashSecret("x")}},
	} {
		_, err := state.Encode(c)
		require.ErrorIs(t, err, state.ErrBadRequest, "%T", c)
		_, err = state.Decide(c)
		require.ErrorIs(t, err, state.ErrBadRequest, "%T", c)
		body, err := json.Marshal(c)
		require.NoError(t, err)
		require.Nil(t, l.applyBytes(append([]byte{byte(c.Type())}, body...)).Err, "%T", c)
	}
}

func TestSwitchValues(t *testing.T) {
	l := newLog(t)
	set := func(name, value string) {
		t.Helper()
		l.must(&state.SetSwitch{Name: name, Value: value})
	}
	limit := func(model string) any {
		if most := l.store.View().Limits(nil)(model).Cap; most != nil {
			return *most
		}
		return nil
	}
	v := l.store.View()
	require.False(t, v.Limits(nil)("m").ScalingDisabled)
	require.Nil(t, limit("m"))
	require.Zero(t, v.Limits(nil)("m"))

	set(state.SwitchFor(state.SwitchDisableScaling, "m"), "true")
	require.True(t, l.store.View().Limits(nil)("m").ScalingDisabled)
	require.False(t, l.store.View().Limits(nil)("other").ScalingDisabled)
	set(state.SwitchDisableScaling, "true")
	require.True(t, l.store.View().Limits(nil)("other").ScalingDisabled)

	set(state.SwitchFor(state.SwitchCapMaxReplicas, "m"), "3")
	require.Equal(t, []any{3, nil}, []any{limit("m"), limit("other")})
	set(state.SwitchCapMaxReplicas, "5")
	require.Equal(t, []any{3, 5}, []any{limit("m"), limit("other")})
	set(state.SwitchCapMaxReplicas, "0")
	require.Equal(t, []any{0, 0}, []any{limit("m"), limit("other")})

	set(state.SwitchScaleToZeroDelay, "20m")
	limits := l.store.View().Limits(nil)("m")
	require.Equal(t, []any{20 * time.Minute, false}, []any{limits.ScaleToZeroDelay, limits.KeepLast})
	set(state.SwitchScaleToZeroDelay, "never")
	require.True(t, l.store.View().Limits(nil)("m").KeepLast)
}

// TestSwitchesOfBefore were set when there were no rules: a kill switch holds.
func TestSwitchesOfBefore(t *testing.T) {
	empty := snapshotOf(t, newLog(t).store)
	for value, want := range map[string]bool{"on": true, "1": true, "true": true, "yes": true, "false": false, "0": false, "": false} {
		s := restored(t, withRecord(empty, 5, `{"Name":"disable-scaling","Value":"`+value+`"}`))
		require.Equal(t, want, s.View().Limits(nil)("m").ScalingDisabled, value)
	}
	s := restored(t, withRecord(withRecord(empty, 5, `{"Name":"cap-max-replicas","Value":"many"}`), 5, `{"Name":"scale-to-zero-delay","Value":"soon"}`))
	require.Zero(t, s.View().Limits(nil)("m"))
}

func TestDisabledScalingIsForMachines(t *testing.T) {
	for _, name := range []string{"disable-scaling", "disable-scaling/m"} {
		l := newLog(t)
		l.must(&state.UpsertModel{Model: model("m")}, &state.SetSwitch{Name: name, Value: "true"})
		for _, n := range []int{0, 2} {
			res := l.apply(&state.ScaleRequest{Model: "m", Replicas: ptr(n), Origin: state.OriginAutoscaler})
			require.ErrorIs(t, res.Err, state.ErrForbidden)
			require.ErrorContains(t, res.Err, "switch disable-scaling is set")
		}
		require.False(t, l.apply(&state.ScaleRequest{Model: "m", Replicas: ptr(1), Origin: state.OriginAutoscaler}).Changed)
		l.must(&state.ScaleRequest{Model: "m", Replicas: ptr(2), Origin: state.OriginOperator})
		l.must(&state.SetSwitch{Name: name, Delete: true})
		l.must(&state.ScaleRequest{Model: "m", Replicas: ptr(3), Origin: state.OriginAutoscaler})
	}
}
