package planner_test

import (
	"bytes"

	"github.com/stretchr/testify/require"

	"remuda/controller/state"
)

// restart sometimes makes the store anew, as a server that restarts or that is a new leader
// has it: from its last snapshot and the log behind it.
func (w *world) restart() {
	switch w.restarts.IntN(12) {
	case 0:
		w.snapshot, w.saved = w.save(w.store), len(w.entries)
	case 1:
		live := w.save(w.store)
		w.store = w.replay(w.snapshot, w.saved)
		require.True(w.t, bytes.Equal(live, w.save(w.store)), "a restarted server has another state")
	}
}

func (w *world) save(s *state.Store) []byte {
	var b bytes.Buffer
	_, err := s.View().WriteSnapshot(&b, state.FeatureLevel)
	require.NoError(w.t, err)
	return b.Bytes()
}

// replay returns the store that a snapshot, nil for none, and the entries behind it make.
func (w *world) replay(snapshot []byte, applied int) *state.Store {
	s, err := state.New()
	require.NoError(w.t, err)
	if snapshot != nil {
		_, err := s.Restore(bytes.NewReader(snapshot), state.FeatureLevel)
		require.NoError(w.t, err)
	}
	for i, data := range w.entries[applied:] {
		s.Apply(uint64(applied+i+1), data)
	}
	return s
}
