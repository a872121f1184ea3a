package conformance_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNonceThatIsNoTextIsRefused: the field cannot be read, so no lock is granted.
func TestNonceThatIsNoTextIsRefused(t *testing.T) {
	g := freshGPU(t)
	l := handshake(t, g.weights, writer, oneTry, "expected_nonce", 5)
	a, err := l.receive(patience)
	if err != nil {
		require.True(t, ended(err), "%v", err)
	} else {
		requireError(t, a.message, "a number as nonce")
	}
	becomes(t, g.weights, lockState{State: empty})
}

func TestNonceIsTheServersIncarnation(t *testing.T) {
	t.Parallel()
	s := start(t, serverConfig{})
	nonce := func() string {
		m := dial(t, s.weights()).ask("get_runtime_state")
		return str(t, m, "nonce")
	}
	first := nonce()
	require.NotEmpty(t, first)
	w := handshake(t, s.weights(), writer, forever)
	require.Equal(t, first, str(t, w.grant(writer), "nonce"))
	refused := handshake(t, s.weights(), reader, oneTry).denied("timeout")
	require.Equal(t, first, str(t, refused, "nonce"), "a refusal tells it too")
	w.commit()
	require.Equal(t, first, str(t, handshake(t, s.weights(), reader, oneTry, "expected_nonce", first).grant(reader), "nonce"))
	s.kill(t)
	s = s.again(t)
	require.NotEqual(t, first, nonce())
}

// TestExpectedNonceOfAnotherServerFailsAtOnce: whatever the timeout and the state of
// the lock, and the answer tells what is committed now.
func TestExpectedNonceOfAnotherServerFailsAtOnce(t *testing.T) {
	g := freshGPU(t)
	check := func(wantCommitted bool, hash string) {
		t.Helper()
		before, events := stateOf(t, g.weights), history(t, g.weights)
		for _, lock := range []string{reader, writer, auto} {
			for _, timeout := range []any{forever, 0, 24 * 3600_000} {
				m := handshake(t, g.weights, lock, timeout, "expected_nonce", "of-before").denied("restarted")
				require.Equal(t, wantCommitted, truth(t, m, "committed"))
				require.Equal(t, hash, str(t, m, "memory_layout_hash"))
				require.NotEqual(t, "of-before", str(t, m, "nonce"))
			}
		}
		require.Equal(t, before, stateOf(t, g.weights))
		require.Equal(t, events, history(t, g.weights))
	}
	check(false, "")
	w := open(t, g.weights, writer)
	check(false, "")
	w.allocate(1, "x")
	w.commit()
	_, _, hash := runtimeState(t, g.weights)
	require.Len(t, hash, 64)
	check(true, hash)
	r := open(t, g.weights, reader)
	check(true, hash)
	handshake(t, g.weights, writer, forever)
	waiting(t, g.weights, 1)
	check(true, hash)
	r.alive()
}
