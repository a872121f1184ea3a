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
		inner, err := state.Encode(c)
		require.NoError(t, err)
		return &state.Decided{Command: inner, Decisions: []state.Decision{{Kind: "switch", Time: time.Unix(1, 0), Reason: "because"}}}
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
		{"nothing", &state.Decided{}, state.ErrBadRequest, false, 1},
		{"a newer command", &state.Decided{Command: []byte{0x70}}, state.ErrUnknownCommand, false, 1},
		{"a change with a bad decision", &state.Decided{Command: decidedSwitch(t), Decisions: []state.Decision{{}}}, state.ErrBadRequest, false, 1},
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

func decidedSwitch(t *testing.T) []byte {
	inner, err := state.Encode(&state.SetSwitch{Name: "b", Value: "1"})
	require.NoError(t, err)
	return inner
}
