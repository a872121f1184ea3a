package policies

import (
	"time"

	"remuda/tools/policystudy/scalesim"
)

// held keeps the highest wish of a time around a policy.
type held struct {
	scalesim.Policy
	hold, pace time.Duration
	wishes     []wish
}

type wish struct {
	at time.Duration
	n  int
}

var _ scalesim.Paced = (*held)(nil)

// Interval implements scalesim.Paced.
func (h *held) Interval() time.Duration { return h.pace }

// Decide implements scalesim.Policy.
func (h *held) Decide(o *scalesim.Observation) int {
	n := h.Policy.Decide(o)
	for len(h.wishes) > 0 && h.wishes[len(h.wishes)-1].n <= n {
		h.wishes = h.wishes[:len(h.wishes)-1]
	}
	h.wishes = append(h.wishes, wish{o.Now, n})
	for h.wishes[0].at <= o.Now-h.hold && len(h.wishes) > 1 {
		h.wishes = h.wishes[1:]
	}
	return h.wishes[0].n
}
