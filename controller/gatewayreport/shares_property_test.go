package gatewayreport_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/controller/api"
	"remuda/controller/gatewayreport"
)

// holder is a gateway that obeys the answer to its newest report.
type holder struct {
	sequence         uint64
	held, used, need int
	draining         bool
	// of is the whole that it knows; reported is that of the newest report that the leader has,
	// which is arrived.
	of, reported int
	arrived      uint64
	// heardAt is when the leader got a report that the gateway had just sent.
	heardAt time.Time
	// late is a report that is still on its way.
	late *api.GatewayReport
}

// done: it takes nothing new and has nothing left.
func (h *holder) done() bool { return h.draining && h.used == 0 && h.need == 0 }

// holders are gateways that share the slots of one replica, and a witness of what they use.
type holders struct {
	*rapid.T
	store *gatewayreport.Store
	clock *clock
	term  uint64
	began time.Time // the term
	live  map[string]*holder
	born  int
}

// givenUp reports whether the leader does not count a gateway any more, for lack of reports.
func (w *holders) givenUp(h *holder) bool {
	last := h.heardAt
	if w.began.After(last) {
		last = w.began
	}
	return !w.clock.now.Before(last.Add(shareTTL))
}

// send returns the next report of a gateway.
func (w *holders) send(name string) api.GatewayReport {
	h := w.live[name]
	h.sequence++
	r := claims(name, h.sequence, h.held, h.used, h.need)
	r.Shares[0].Of, r.Draining = h.of, h.draining
	require.NoError(w, gatewayreport.Validate(r))
	return r
}

// deliver brings a report that was just sent to the leader, and returns the share.
func (w *holders) deliver(r api.GatewayReport) int {
	w.live[r.Gateway].heardAt = w.clock.now
	w.arrive(r)
	return slots(w, w.store.Orders(r.Gateway))
}

// arrive brings a report to the leader.
func (w *holders) arrive(r api.GatewayReport) {
	require.NoError(w, w.store.Put(r))
	if h := w.live[r.Gateway]; r.Sequence > h.arrived {
		h.arrived, h.reported = r.Sequence, r.Shares[0].Of
	}
}

// obey applies an answer. It fails if a share grew that does not fit beside what others may use.
func (w *holders) obey(name string, units int) {
	h := w.live[name]
	grew := units > h.held
	h.held = units
	if !grew {
		return
	}
	require.False(w, w.clock.now.Before(w.began.Add(shareTTL)), "not all gateways can have reported in this term")
	sum, whole := units, h.reported
	for other, o := range w.live {
		if other != name && !w.givenUp(o) && !o.done() {
			sum += max(o.held, o.used)
			whole = min(whole, o.reported)
		}
	}
	require.LessOrEqual(w, sum, whole, "the share of %s grew to %d", name, units)
}

// step does one thing that may happen to a gateway.
func (w *holders) step(name, what string) {
	h := w.live[name]
	switch what {
	case "need":
		if !h.draining {
			h.need = rapid.IntRange(h.used, h.used+20).Draw(w.T, "need")
		}
	case "use":
		h.used = rapid.IntRange(0, min(h.need, max(h.held, h.used))).Draw(w.T, "used")
	case "whole":
		h.of = rapid.IntRange(0, 20).Draw(w.T, "of")
	case "drain":
		h.draining, h.need = true, h.used
	case "report":
		w.obey(name, w.deliver(w.send(name)))
	case "lose report":
		w.send(name)
	case "lose answer":
		w.deliver(w.send(name))
	case "delay":
		r := w.send(name)
		h.late = &r
	case "arrive late":
		if h.late != nil {
			w.arrive(*h.late)
			h.late = nil
		}
	case "overtake":
		r := w.send(name)
		w.step(name, "report")
		w.arrive(r)
	case "die":
		delete(w.live, name)
	}
}

// TestSharesAreNeverMoreThanTheWhole: whatever is lost, late, dead, back or newly elected, no share
// grows unless all shares together fit in the whole. A gateway that stays alone has everything
// after one time to live.
func TestSharesAreNeverMoreThanTheWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, c := listening()
		w := &holders{T: t, store: s, clock: c, live: map[string]*holder{}}
		things := []string{"need", "need", "use", "use", "use", "report", "report", "report", "report", "report", "report", "report",
			"lose report", "lose answer", "delay", "arrive late", "overtake", "overtake", "whole", "drain", "die", "born", "born", "wait", "wait", "away", "elect"}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			what := rapid.SampledFrom(things).Draw(t, "what")
			switch {
			case what == "born" && len(w.live) < 4:
				w.live[fmt.Sprint("g", w.born)] = &holder{of: 16, reported: 16}
				w.born++
			case what == "wait":
				c.advance(shareTTL / 8)
			case what == "away": // all others report, one is cut off
				for range 4 {
					c.advance(shareTTL / 4)
					for _, name := range slices.Sorted(maps.Keys(w.live))[min(1, len(w.live)):] {
						w.step(name, "report")
					}
				}
			case what == "elect":
				w.term++
				w.began = c.now
				s.Begin(w.term)
			case len(w.live) > 0:
				w.step(rapid.SampledFrom(slices.Sorted(maps.Keys(w.live))).Draw(t, "gateway"), what)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(w.live)) {
			if h := w.live[name]; !h.draining {
				c.advance(shareTTL)
				w.live = map[string]*holder{name: h}
				w.step(name, "report")
				require.Equal(t, h.of, h.held, "it is alone")
				break
			}
		}
	})
}
