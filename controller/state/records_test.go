package state_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/state"
)

// A change and the decision that it carries out are there together, or neither is.
func TestDecided(t *testing.T) {
	s := newLog(t)
	decided := func(c state.Command) state.Command {
		d, err := state.Decide(c, state.Decision{Kind: "switch", Time: time.Unix(1, 0), Reason: "because"})
		require.NoError(t, err)
		return d
	}
	set := &state.SetSwitch{Name: "a", Value: "1"}
	for _, c := range []struct {
		name      string
		command   state.Command
		err       error
		changed   bool
		decisions int
	}{
		{"a change", decided(set), nil, true, 1},
		{"what is there already", decided(set), nil, false, 1},
		{"one that is refused", decided(&state.DeleteModel{Model: "nobody"}), state.ErrNotFound, false, 1},
		{"one in another", decided(decided(set)), state.ErrBadRequest, false, 1},
		{"nothing", &state.Decided{}, state.ErrUnknownCommand, false, 1},
		{"a newer command", &state.Decided{Of: 0x70, Command: []byte("{}")}, state.ErrUnknownCommand, false, 1},
		{"no command", &state.Decided{Of: state.TypeSetSwitch}, state.ErrBadRequest, false, 1},
		{"a change with a bad decision", &state.Decided{Of: state.TypeSetSwitch, Command: []byte(`{"Name":"b","Value":"1"}`), Decisions: []state.Decision{{}}}, state.ErrBadRequest, false, 1},
	} {
		res := s.apply(c.command)
		if c.err == nil {
			require.Nil(t, res.Err, c.name)
		} else {
			require.ErrorIs(t, res.Err, c.err, c.name)
		}
		require.Equal(t, c.changed, res.Changed, c.name)
		require.Len(t, s.store.View().Decisions(nil, "", 0), c.decisions, c.name)
	}
	require.Empty(t, s.store.View().Switch(nil, "b"), "half of a command was applied")
}
