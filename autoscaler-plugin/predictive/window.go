package predictive

// mark is a value and the policy's own time (seconds) at which it held last.
type mark struct {
	At    float64 `json:"at"`
	Value float64 `json:"value"`
}

// expire drops what is older than age, but for the last.
func expire(w []mark, now, age float64) []mark {
	n := 0
	for n < len(w)-1 && w[n].At <= now-age {
		n++
	}
	if n > 0 {
		w = w[:copy(w, w[n:])]
	}
	return w
}
