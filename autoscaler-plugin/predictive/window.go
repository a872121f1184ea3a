package predictive

// mark is a value and the policy's own time (seconds) at which it held last.
type mark struct {
	At    float64 `json:"at"`
	Value float64 `json:"value"`
}

// highest adds a value to a window of falling values and drops what is older than age.
// Values within a grain of the one before are one entry, so that the window stays small:
// it is up to a grain longer than age for that.
func highest(w []mark, now, value, age, grain float64) []mark {
	for len(w) > 0 && w[len(w)-1].Value <= value {
		w = w[:len(w)-1]
	}
	if n := len(w); n == 0 || int64(w[n-1].At/grain) != int64(now/grain) {
		w = append(w, mark{now, value})
	}
	return expire(w, now, age)
}

// lowest is the same for the minimum, exactly.
func lowest(w []mark, now, value, age float64) []mark {
	for len(w) > 0 && w[len(w)-1].Value >= value {
		w = w[:len(w)-1]
	}
	return expire(append(w, mark{now, value}), now, age)
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
