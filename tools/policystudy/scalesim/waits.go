package scalesim

import (
	"math"
	"math/bits"
	"time"
)

// waits counts waits: zero exactly, others in 128 classes for each power of two, so that a
// percentile is less than 1 % too high.
type waits struct {
	zero, count int64
	sum         float64
	max         int64
	class       []int64
}

const waitBits = 7

// classOf is exact below 2^waitBits ns.
func classOf(ns int64) int {
	e := bits.Len64(uint64(ns)) - waitBits - 1
	if e <= 0 {
		return int(ns)
	}
	return e<<waitBits + int(ns>>e)
}

// upper is the highest wait in a class.
func upper(class int) int64 {
	e := class>>waitBits - 1
	if e <= 0 {
		return int64(class)
	}
	return (int64(class-e<<waitBits)+1)<<e - 1
}

// add counts a wait above 0.
func (w *waits) add(ns int64) {
	c := classOf(ns)
	for c >= len(w.class) {
		w.class = append(w.class, make([]int64, c+1-len(w.class)+1<<waitBits)...)
	}
	w.class[c]++
	w.count++
	w.sum += float64(ns)
	w.max = max(w.max, ns)
}

// mean is over all waits, those of 0 included.
func (w *waits) mean() time.Duration {
	if w.zero+w.count == 0 {
		return 0
	}
	return time.Duration(w.sum / float64(w.zero+w.count))
}

// quantile is the least wait that at least a share q of all waits do not exceed.
func (w *waits) quantile(q float64) time.Duration {
	rank := int64(math.Ceil(q*float64(w.zero+w.count) - 1e-9))
	seen := w.zero
	if rank <= seen {
		return 0
	}
	for c, n := range w.class {
		seen += n
		if seen >= rank {
			return time.Duration(min(upper(c), w.max))
		}
	}
	return time.Duration(w.max)
}
