package conformance_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The states of the lock.
const (
	empty     = "EMPTY"
	inWriting = "RW"
	committed = "COMMITTED"
	inReading = "RO"
)

// lockState is what get_lock_state and get_runtime_state have in common.
type lockState struct {
	State     string
	Writer    bool
	Readers   int64
	Waiting   int64
	Committed bool
}

// readState reads it and what follows from it.
func readState(t testing.TB, m message) lockState {
	t.Helper()
	s := lockState{State: str(t, m, "state"), Writer: truth(t, m, "has_rw_session"), Readers: whole(t, m, "ro_session_count"),
		Waiting: whole(t, m, "waiting_writers"), Committed: truth(t, m, "committed")}
	require.Equal(t, s.Committed && !s.Writer, truth(t, m, "is_ready"), "is_ready of %+v", s)
	require.Equal(t, s.Committed, truth(t, m, "layout_committed"), "layout_committed of %+v", s)
	return s
}

// runtimeState is the answer to get_runtime_state_request: the lock's state, how
// many allocations there are, and the layout's hash.
func runtimeState(t testing.TB, path string) (lockState, int64, string) {
	t.Helper()
	l := dial(t, path)
	defer l.close()
	m := l.ask("get_runtime_state")
	l.closed()
	return readState(t, m), whole(t, m, "allocation_count"), str(t, m, "memory_layout_hash")
}

func stateOf(t testing.TB, path string) lockState {
	t.Helper()
	s, _, _ := runtimeState(t, path)
	return s
}

// becomes waits until the lock is in a state.
func becomes(t testing.TB, path string, want lockState) {
	t.Helper()
	var got lockState
	eventually(t, func() bool { got = stateOf(t, path); return got == want },
		func() []any { return []any{"the lock is %+v, not %+v", got, want} })
}

// waiting waits until so many writers wait.
func waiting(t testing.TB, path string, n int64) {
	t.Helper()
	eventually(t, func() bool { return stateOf(t, path).Waiting == n }, func() []any { return []any{"%d waiting writers", n} })
}

// event is one entry of the history.
type event struct {
	Kind  string
	Count int64
}

// history is the answer to get_event_history_request.
func history(t testing.TB, path string) []event {
	t.Helper()
	l := dial(t, path)
	defer l.close()
	m := l.ask("get_event_history")
	l.closed()
	out := []event{}
	for _, v := range list(t, m, "events") {
		item, ok := v.(map[string]any)
		require.True(t, ok, "an event is %T", v)
		out = append(out, event{str(t, item, "kind"), whole(t, item, "allocation_count")})
	}
	return out
}

// eventually polls until the condition holds.
func eventually(t testing.TB, holds func() bool, why func() []any) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			args := why()
			require.Fail(t, "waited in vain", args...)
		}
	}
}

func sortBySlot(all []allocation) {
	slices.SortFunc(all, func(a, b allocation) int { return int(a.slot - b.slot) })
}
