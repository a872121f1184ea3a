package conformance_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEventsTellWhatHappenedInOrder(t *testing.T) {
	hostOnly(t, losesEvents)
	g := freshGPU(t)
	var want []event
	check := func(more ...event) {
		t.Helper()
		want = append(want, more...)
		eventually(t, func() bool { return len(history(t, g.weights)) >= len(want) }, func() []any {
			return []any{"events %v, want %v", history(t, g.weights), want}
		})
		require.Equal(t, want, history(t, g.weights))
	}
	w := open(t, g.weights, writer)
	check(event{"rw_connected", 0})
	for range 3 {
		w.allocate(1, "x")
	}
	check() // allocations are no events
	w.commit()
	check(event{"committed", 0})
	r := open(t, g.weights, reader)
	r.close() // readers are none either
	handshake(t, g.weights, reader, oneTry).granted(reader)
	check()
	// The reader above ends with the test: another GPU for a writer over a layout.
	g = anotherGPU(t)
	want = nil

	w = open(t, g.weights, writer)
	w.allocate(1, "x")
	w.free(w.allocate(1, "x"))
	w.commit()
	check(event{"rw_connected", 0}, event{"committed", 0})
	// A writer over a committed layout: one cleared, then connected.
	w = open(t, g.weights, writer)
	check(event{"allocations_cleared", 1}, event{"rw_connected", 0})
	w.allocate(1, "x")
	w.allocate(1, "x")
	w.close()
	// An abort: aborted, then two cleared.
	check(event{"rw_aborted", 0}, event{"allocations_cleared", 2})
	w = open(t, g.weights, writer)
	check(event{"rw_connected", 0})
	w.commit()
	check(event{"committed", 0})
	require.Empty(t, history(t, g.kvCache), "the other tag has events of its own")
}

// TestLast256EventsAreKept: the oldest go.
func TestLast256EventsAreKept(t *testing.T) {
	hostOnly(t, losesEvents)
	g := freshGPU(t)
	var want []event
	for n := range int64(70) { // 4 events each
		w := open(t, g.weights, writer)
		want = append(want, event{"rw_connected", 0})
		for range n%3 + 1 {
			w.allocate(1, "x")
		}
		if n%2 == 0 {
			w.commit()
			w = open(t, g.weights, writer)
			want = append(want, event{"committed", 0}, event{"allocations_cleared", n%3 + 1}, event{"rw_connected", 0})
			w.allocate(1, "x")
			w.close()
			want = append(want, event{"rw_aborted", 0}, event{"allocations_cleared", 1})
		} else {
			w.close()
			want = append(want, event{"rw_aborted", 0}, event{"allocations_cleared", n%3 + 1})
		}
		becomes(t, g.weights, lockState{State: empty})
		require.Equal(t, want[max(0, len(want)-256):], history(t, g.weights), "after %d events", len(want))
	}
	require.Greater(t, len(want), 256+40)
}

// TestHistoryIsReadWithoutALock: beside a writer, beside readers, by many at once.
func TestHistoryIsReadWithoutALock(t *testing.T) {
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	links := make([]*link, 20)
	for i := range links {
		links[i] = dial(t, g.weights).post(newMessage("get_event_history_request"))
	}
	for _, l := range links {
		require.Len(t, list(t, l.next(), "events"), 1)
		l.closed()
	}
	w.alive()
}

// lawful says whether events can follow each other: a writer that connects commits or
// aborts; an abort may clear, and so may a writer over a committed layout before it
// connects.
func lawful(all []event, isCommitted bool) error {
	state := "unknown" // the oldest events are gone
	if len(all) < 256 {
		state = empty
	}
	for i, e := range all {
		var next string
		var ok bool
		switch e.Kind {
		case "rw_connected":
			next, ok = inWriting, state != inWriting
		case "committed":
			next, ok = committed, state == inWriting || state == "unknown"
		case "rw_aborted":
			next, ok = "aborted", state == inWriting || state == "unknown"
		case "allocations_cleared":
			next, ok = empty, state == committed || state == "aborted" || state == "unknown"
			if state == committed {
				next, ok = "cleared", true
			}
		case "allocation_oom":
			next, ok = state, state == inWriting || state == "unknown"
		default:
			return fmt.Errorf("event %d: no such kind: %q", i, e.Kind)
		}
		if !ok || state == "cleared" && e.Kind != "rw_connected" {
			return fmt.Errorf("event %d: %s while %s", i, e.Kind, state)
		}
		if e.Count != 0 && e.Kind != "allocation_oom" && e.Kind != "allocations_cleared" || e.Count < 0 {
			return fmt.Errorf("event %d: %s counts %d", i, e.Kind, e.Count)
		}
		state = next
	}
	if isCommitted != (state == committed) && state != "unknown" {
		return fmt.Errorf("the layout is committed: %v, after %s", isCommitted, state)
	}
	return nil
}
