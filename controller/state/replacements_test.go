package state_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/state"
)

// TestReplacementsSurviveANewModelFile, which does not set them.
func TestReplacementsSurviveANewModelFile(t *testing.T) {
	l := newLog(t)
	own := state.Replacements{InARow: 3, Last: later}
	l.must(&state.UpsertModel{Model: three(func(m *state.Model) { m.Replacements = own })})
	require.Zero(t, l.model("m").Replacements, "they are the state's own")
	l.must(&state.Plan{ID: "p", Replacements: []state.SetReplacements{{Model: "m", Replacements: own}}})
	changed := three(func(m *state.Model) { m.Hash = "other" })
	l.must(&state.UpsertModel{Model: changed, ModifyIndex: l.model("m").ModifyIndex})
	require.Equal(t, own, l.model("m").Replacements)
	require.Equal(t, own, restored(t, snapshotOf(t, l.store)).View().Model(nil, "m").Replacements)
}
