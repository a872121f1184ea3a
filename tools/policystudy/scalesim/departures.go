package scalesim

// departure is the end of a request.
type departure struct {
	at      int64 // ns since the start of the trace
	service int64 // ns
	replica int32 // and unscored
	tokens  int32
}

// unscored marks, beside the replica's number, a request that arrived before the score.
const unscored = 1 << 30

// departures is a heap of degree 4, the earliest at its top. Typed, as container/heap
// spends most of its time in calls through interfaces.
type departures []departure

// push adds a departure.
func (h *departures) push(d departure) {
	s := append(*h, d)
	i := len(s) - 1
	for i > 0 {
		up := (i - 1) / 4
		if s[up].at <= d.at {
			break
		}
		s[i] = s[up]
		i = up
	}
	s[i] = d
	*h = s
}

// pop removes the earliest.
func (h *departures) pop() {
	s := *h
	last := s[len(s)-1]
	s = s[:len(s)-1]
	*h = s
	if len(s) > 0 {
		s.replaceTop(last)
	}
}

// replaceTop puts d in the place of the earliest.
func (h departures) replaceTop(d departure) {
	i, n := 0, len(h)
	for {
		child := 4*i + 1
		if child >= n {
			break
		}
		best, at := child, h[child].at
		for c := child + 1; c < min(child+4, n); c++ {
			if h[c].at < at {
				best, at = c, h[c].at
			}
		}
		if at >= d.at {
			break
		}
		h[i] = h[best]
		i = best
	}
	h[i] = d
}
