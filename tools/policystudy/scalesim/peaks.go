package scalesim

// peak is the maximum over the last n intervals between decisions, in constant time each
// (a queue of falling values).
type peak struct {
	high int64 // since the last decision
	ring []peakEntry
	head int // of the oldest entry
	size int
}

type peakEntry struct {
	tick  int64
	value int64
}

// note records a value.
func (p *peak) note(v int64) {
	if v > p.high {
		p.high = v
	}
}

// close ends the interval before decision tick, gives the maximum of the last window
// intervals, and begins the next interval with the value that holds now.
func (p *peak) close(tick, window, now int64) int64 {
	v := max(p.high, now)
	p.high = now
	for p.size > 0 {
		if p.ring[p.head].tick > tick-window {
			break
		}
		p.head = (p.head + 1) % len(p.ring)
		p.size--
	}
	for p.size > 0 && p.ring[(p.head+p.size-1)%len(p.ring)].value <= v {
		p.size--
	}
	if p.size == len(p.ring) {
		ring := make([]peakEntry, max(4, 2*len(p.ring)))
		for i := range p.size {
			ring[i] = p.ring[(p.head+i)%len(p.ring)]
		}
		p.ring, p.head = ring, 0
	}
	p.ring[(p.head+p.size)%len(p.ring)] = peakEntry{tick, v}
	p.size++
	return p.ring[p.head].value
}

// reset forgets everything and keeps the memory.
func (p *peak) reset() { p.high, p.head, p.size = 0, 0, 0 }
