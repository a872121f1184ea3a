package layout

// MaxEvents is how many events are remembered.
const MaxEvents = 256

// The kinds of events.
const (
	EventConnected   = "rw_connected"
	EventCommitted   = "committed"
	EventAborted     = "rw_aborted"
	EventCleared     = "allocations_cleared"
	EventOutOfMemory = "allocation_oom"
)

// Event is something that happened to a layout.
type Event struct {
	Kind string
	// Allocations counts those that were cleared, or those that are held when
	// there is no more memory; 0 in other kinds.
	Allocations int
}

// history is a ring of the last events.
type history struct {
	ring []Event
	next int
}

func (h *history) add(kind string, allocations int) {
	e := Event{Kind: kind, Allocations: allocations}
	if len(h.ring) < MaxEvents {
		h.ring = append(h.ring, e)
		return
	}
	h.ring[h.next] = e
	h.next = (h.next + 1) % MaxEvents
}

func (h *history) list() []Event {
	out := make([]Event, 0, len(h.ring))
	out = append(out, h.ring[h.next:]...)
	return append(out, h.ring[:h.next]...)
}
