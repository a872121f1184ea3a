package conformance_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestGrantThatCannotBeSentIsGivenBack: askers that leave before, while and after
// they are granted never keep the lock.
func TestGrantThatCannotBeSentIsGivenBack(t *testing.T) {
	for _, lock := range []string{writer, auto, reader} {
		t.Run(lock, func(t *testing.T) {
			g := freshGPU(t)
			if lock == reader {
				commitOne(t, g.weights)
			}
			for range 100 {
				handshake(t, g.weights, lock, forever).close()
			}
			w := handshake(t, g.weights, writer, 5000)
			w.granted(writer)
			require.Empty(t, w.allocations())
			becomes(t, g.weights, lockState{State: inWriting, Writer: true})
		})
	}
}

// TestGrantThatCannotBeSentChangesNothing: the server stands still while clients ask
// and leave, so that none of its answers can reach them. It clears nothing for them,
// and does not do what they sent ahead.
func TestGrantThatCannotBeSentChangesNothing(t *testing.T) {
	// By itself, not parallel to tests that start processes: between its fork and its exec
	// a child holds this connection open too, and the grant would be sent after all.
	s := start(t, serverConfig{})
	a := commitOne(t, s.weights())
	events, none := history(t, s.weights()), history(t, s.kvCache())
	for range 5 {
		resume := pause(t, s.pid())
		for _, lock := range []string{writer, auto, reader} {
			handshake(t, s.weights(), lock, forever).close()
			handshake(t, s.kvCache(), lock, forever).close()
			handshake(t, s.weights(), lock, forever).post(newMessage("allocate_request", "size", 1)).post(newMessage("commit_request")).close()
			handshake(t, s.kvCache(), lock, forever).post(newMessage("commit_request")).close()
		}
		resume()
		r := open(t, s.weights(), reader)
		require.Equal(t, []allocation{a}, r.allocations())
		r.close()
		becomes(t, s.weights(), lockState{State: committed, Committed: true})
		becomes(t, s.kvCache(), lockState{State: empty})
	}
	require.Equal(t, events, history(t, s.weights()))
	require.Equal(t, none, history(t, s.kvCache()))
}

// TestWaiterThatLeavesAsTheLockFallsFreeChangesNothing: the server learns of both at
// once.
func TestWaiterThatLeavesAsTheLockFallsFreeChangesNothing(t *testing.T) {
	// By itself, not parallel to tests that start processes: between its fork and its exec
	// a child holds this connection open too, and the grant would be sent after all.
	s := start(t, serverConfig{})
	a := commitOne(t, s.weights())
	events := history(t, s.weights())
	for range 10 {
		r := open(t, s.weights(), reader)
		w := handshake(t, s.weights(), writer, forever)
		waiting(t, s.weights(), 1)
		resume := pause(t, s.pid())
		w.close()
		r.close()
		resume()
		becomes(t, s.weights(), lockState{State: committed, Committed: true})
	}
	require.Equal(t, []allocation{a}, open(t, s.weights(), reader).allocations())
	require.Equal(t, events, history(t, s.weights()))
}

// TestGrantToAWaiterThatLeavesAtThatMomentIsGivenBack: the lock falls free and its
// next owner dies, at about the same time and in both orders.
func TestGrantToAWaiterThatLeavesAtThatMomentIsGivenBack(t *testing.T) {
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	for round := range 60 {
		dying := handshake(t, g.weights, writer, forever)
		waiting(t, g.weights, 1)
		heir := handshake(t, g.weights, writer, forever)
		waiting(t, g.weights, 2)
		w.allocate(1, "x")
		var both sync.WaitGroup
		spread := time.Duration(round%20) * 20 * time.Microsecond
		both.Go(func() { time.Sleep(spread); dying.close() })
		both.Go(func() { time.Sleep(400*time.Microsecond - spread); w.close() })
		both.Wait()
		heir.granted(writer)
		require.Empty(t, heir.allocations())
		waiting(t, g.weights, 0)
		w = heir
	}
	becomes(t, g.weights, lockState{State: inWriting, Writer: true})
}

// TestWriterIsAloneWhateverComesAndGoes: many clients want the writer's lock; each
// that has it finds only what it made itself.
func TestWriterIsAloneWhateverComesAndGoes(t *testing.T) {
	g := freshGPU(t)
	var all sync.WaitGroup
	faults := make(chan error, 100)
	for worker := range 8 {
		all.Go(func() {
			for round := range 12 {
				if err := writeAlone(g.weights, fmt.Sprintf("w%d-%d", worker, round), round%3 == 0); err != nil {
					faults <- err
					return
				}
			}
		})
	}
	all.Wait()
	close(faults)
	for err := range faults {
		t.Error(err)
	}
	eventually(t, func() bool { s := stateOf(t, g.weights); return !s.Writer && s.Waiting == 0 },
		func() []any { return []any{"they have all left: %+v", stateOf(t, g.weights)} })
}

func writeAlone(path, name string, commits bool) error {
	r, err := dialRaw(path)
	if err != nil {
		return err
	}
	defer r.c.Close()
	ask := func(m message) (message, error) {
		if err := r.send(m); err != nil {
			return nil, err
		}
		a, err := r.receive(patience)
		return a.message, err
	}
	m, err := ask(newMessage("handshake_request", "lock_type", writer, "timeout_ms", nil))
	if err != nil || m["success"] != true {
		return fmt.Errorf("%s: handshake: %v, %w", name, m, err)
	}
	for i := range 2 {
		if m, err = ask(newMessage("allocate_request", "size", 1+i, "tag", name)); err != nil || m.kind() != "allocate_response" {
			return fmt.Errorf("%s: allocate: %v, %w", name, m, err)
		}
	}
	if m, err = ask(newMessage("list_allocations_request")); err != nil {
		return fmt.Errorf("%s: list: %w", name, err)
	}
	items, _ := m["allocations"].([]any)
	if len(items) != 2 {
		return fmt.Errorf("%s has %d allocations, not its 2: %v", name, len(items), items)
	}
	for _, item := range items {
		if tag := item.(map[string]any)["tag"]; tag != name {
			return fmt.Errorf("%s finds an allocation of %v", name, tag)
		}
	}
	if commits {
		if m, err = ask(newMessage("commit_request")); err != nil || m["success"] != true {
			return fmt.Errorf("%s: commit: %v, %w", name, m, err)
		}
	}
	return nil
}
