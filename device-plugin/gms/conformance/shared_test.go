package conformance_test

import (
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Most tests share one server and have a GPU of it each: one process serves them
// all, as on a node.
var shared struct {
	mu   sync.Mutex
	s    *server
	used int
	dir  string
}

const sharedGPUs = 180

// gpu is the two sockets of one GPU.
type gpu struct {
	weights, kvCache string
}

// freshGPU is a GPU that no other test uses.
func freshGPU(t *testing.T) gpu {
	t.Helper()
	t.Parallel()
	return anotherGPU(t)
}

// anotherGPU is one more, for a test that has one.
func anotherGPU(t testing.TB) gpu {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.s == nil {
		dir, err := os.MkdirTemp("", "gms")
		require.NoError(t, err)
		shared.dir = dir
		shared.s, err = launch(serverConfig{dir: dir, gpus: sharedGPUs})
		require.NoError(t, err)
		shared.s.ready(t)
	}
	require.False(t, shared.s.gone(), "the shared server ended:\n%s", shared.s.log.tail())
	require.Less(t, shared.used, sharedGPUs, "raise sharedGPUs")
	n := shared.used
	shared.used++
	t.Cleanup(func() {
		if shared.s.gone() {
			t.Errorf("the shared server ended during this test or one beside it:\n%s", shared.s.log.tail())
		}
	})
	g := gpu{shared.s.socket(n, "weights"), shared.s.socket(n, "kv_cache")}
	t.Cleanup(func() { // after the test's connections are closed
		for _, path := range []string{g.weights, g.kvCache} {
			leftInOrder(t, path)
		}
	})
	return g
}

// leftInOrder says that nothing holds a lock when all connections are gone, and that
// its events are ones that can follow each other.
func leftInOrder(t testing.TB, path string) {
	t.Helper()
	if shared.s.gone() {
		return
	}
	var s lockState
	eventually(t, func() bool {
		s = stateOf(t, path)
		return s == lockState{State: empty} || s == lockState{State: committed, Committed: true}
	}, func() []any { return []any{"all connections are closed, and the lock is %+v", s} })
	all := history(t, path)
	require.NoError(t, lawful(all, s.Committed), "%v", all)
}

// stopShared ends the shared server after the last test.
func stopShared() error {
	if shared.s == nil {
		return nil
	}
	defer os.RemoveAll(shared.dir)
	if err := shared.s.stop(); err != nil {
		return fmt.Errorf("the shared server: %w\n%s", err, shared.s.log.tail())
	}
	return nil
}
