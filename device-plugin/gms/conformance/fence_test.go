package conformance_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// fenced opens a session with a token of a group.
func fenced(t testing.TB, path, lock, group string, token uint64) *link {
	t.Helper()
	return open(t, path, lock, "fence_group", group, "fence_token", token)
}

func refuseStale(t testing.TB, path, lock, group string, token uint64) {
	t.Helper()
	handshake(t, path, lock, forever, "fence_group", group, "fence_token", token).denied("fenced")
}

func TestStaleFenceTokensAreRefused(t *testing.T) {
	t.Parallel()
	s := start(t, serverConfig{gpus: 2})
	fenced(t, s.weights(), writer, "llama", 41).commit()
	for _, lock := range []string{reader, writer, auto} {
		refuseStale(t, s.weights(), lock, "llama", 40)
		refuseStale(t, s.weights(), lock, "llama", 0)
		// The token of a group holds for all GPUs and tags.
		refuseStale(t, s.kvCache(), lock, "llama", 40)
		refuseStale(t, s.socket(1, "weights"), lock, "llama", 40)
		refuseStale(t, s.socket(1, "kv_cache"), lock, "llama", 1)
	}
	require.Equal(t, lockState{State: committed, Committed: true}, stateOf(t, s.weights()), "a refusal clears nothing")
	fenced(t, s.weights(), reader, "llama", 41) // the same token again
	fenced(t, s.weights(), reader, "other", 3)  // groups have tokens of their own
	fenced(t, s.weights(), reader, "llama:", 3)
	open(t, s.weights(), reader) // and who has none is let in, as v0's clients are
	fenced(t, s.socket(1, "weights"), writer, "llama", 42).close()
	refuseStale(t, s.kvCache(), writer, "llama", 41)
	fenced(t, s.kvCache(), writer, "llama", math.MaxUint64).close()
	refuseStale(t, s.kvCache(), writer, "llama", math.MaxUint64-1)
	refuseStale(t, s.kvCache(), writer, "llama", 1<<63)
}

// TestHigherTokenEndsTheSessionsOfLowerOnes: on every GPU, a writer's layout is
// aborted, and sessions of other groups or without a token stay.
func TestHigherTokenEndsTheSessionsOfLowerOnes(t *testing.T) {
	t.Parallel()
	s := start(t, serverConfig{gpus: 2})
	commitOne(t, s.socket(1, "weights"))
	old := fenced(t, s.weights(), writer, "g", 7)
	old.allocate(1, "x")
	oldReader := fenced(t, s.socket(1, "weights"), reader, "g", 7)
	same := fenced(t, s.socket(1, "weights"), reader, "other", 1)
	plain := open(t, s.socket(1, "weights"), reader)
	plainWriter := open(t, s.socket(1, "kv_cache"), writer)

	fresh := fenced(t, s.kvCache(), writer, "g", 8)
	old.closed()
	oldReader.closed()
	becomes(t, s.weights(), lockState{State: empty})
	require.Equal(t, []event{{"rw_connected", 0}, {"rw_aborted", 0}, {"allocations_cleared", 1}}, history(t, s.weights()))
	becomes(t, s.socket(1, "weights"), lockState{State: inReading, Readers: 2, Committed: true})
	for _, l := range []*link{same, plain, plainWriter, fresh} {
		l.alive()
	}
	// The same token's other session does not end this one.
	fenced(t, s.weights(), writer, "g", 8)
	fresh.alive()
}

// TestNewHolderTakesTheLockFromAnOldOneThatHangs: the grant of a failover, in one
// step.
func TestNewHolderTakesTheLockFromAnOldOneThatHangs(t *testing.T) {
	g := freshGPU(t)
	old := fenced(t, g.weights, writer, t.Name(), 1)
	old.allocate(capacity, "x")
	w := handshake(t, g.weights, writer, 2000, "fence_group", t.Name(), "fence_token", 2)
	w.granted(writer)
	require.Empty(t, w.allocations())
	old.closed()
	w.allocate(capacity, "x")
	refuseStale(t, g.weights, reader, t.Name(), 1)
	w.alive()
}

// TestWaiterOfALowerTokenIsNeverLetIn: whether it is told at once or when its turn
// comes.
func TestWaiterOfALowerTokenIsNeverLetIn(t *testing.T) {
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	stale := handshake(t, g.weights, writer, forever, "fence_group", t.Name(), "fence_token", 5)
	waiting(t, g.weights, 1)
	staleReader := handshake(t, g.weights, reader, forever, "fence_group", t.Name(), "fence_token", 5)
	staleReader.silent(briefly)
	fenced(t, g.kvCache, writer, t.Name(), 6)
	w.commit()
	for _, l := range []*link{stale, staleReader} {
		a, err := l.receive(patience)
		if err == nil {
			require.False(t, truth(t, a.message, "success"), "a stale token is let in: %v", a.message)
			require.Equal(t, "fenced", str(t, a.message, "code"))
			l.closed()
		} else {
			require.True(t, ended(err), "%v", err)
		}
	}
	becomes(t, g.weights, lockState{State: committed, Committed: true})
}

// TestHigherTokenEndsAWaitForMemory: what the old session asked for is not allocated
// later.
func TestHigherTokenEndsAWaitForMemory(t *testing.T) {
	hostOnly(t, needsSmallGPU)
	g := freshGPU(t)
	w := open(t, g.kvCache, writer)
	hog := w.allocate(capacity, "x")
	old := fenced(t, g.weights, writer, t.Name(), 1)
	old.post(newMessage("allocate_request", "size", granularity))
	eventually(t, func() bool { return oomEvents(t, g.weights) == 1 }, func() []any { return []any{"no allocation_oom"} })
	fresh := fenced(t, g.weights, writer, t.Name(), 2)
	old.closed()
	w.free(hog)
	require.Empty(t, fresh.allocations())
	fresh.allocate(capacity, "all of it")
}

// TestBadTokensAreRefused: nobody is let in with a token that cannot be read.
func TestBadTokensAreRefused(t *testing.T) {
	g := freshGPU(t)
	for name, pairs := range map[string][]any{
		"negative":        {"fence_group", t.Name(), "fence_token", -1},
		"text":            {"fence_group", t.Name(), "fence_token", "5"},
		"float":           {"fence_group", t.Name(), "fence_token", 5.5},
		"number as group": {"fence_group", 5, "fence_token", 5},
		"number as nonce": {"expected_nonce", 5},
	} {
		l := handshake(t, g.weights, writer, oneTry, pairs...)
		a, err := l.receive(patience)
		switch {
		case err != nil:
			require.True(t, ended(err), "%s: %v", name, err)
		case a.kind() == "handshake_response":
			require.False(t, truth(t, a.message, "success"), "%s: %v", name, a.message)
			require.Equal(t, "bad_request", str(t, a.message, "code"))
		default:
			requireError(t, a.message, name)
		}
		becomes(t, g.weights, lockState{State: empty})
	}
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
