package scalesim_test

import (
	"math"
	"slices"
	"time"

	"remuda/tools/policystudy/scalesim"
)

// reference is a second simulation, as plain as can be: at every instant at which anything
// happens it looks at everything. It has the same rules and shares no code.
type reference struct {
	cfg   scalesim.Config
	trace *scalesim.Trace
	reps  []*refReplica // all that are charged, in the order in which they became ready or start
	queue []int
	began map[int]time.Duration
	ended map[int]bool
	seq   int

	desired, nextID                            int
	charged                                    time.Duration
	started, cancelled, stopped, acts, decided int
	peakRunning, peakWaiting                   int
}

type refReplica struct {
	id       int
	readyAt  time.Duration
	ready    bool
	draining bool
	requests map[int]time.Duration // by end
	changed  int
	order    int
	peak     int64
	peaks    []int64
}

func (r *reference) tokens(rep *refReplica) int64 {
	if r.cfg.KVTokens == 0 {
		return int64(len(rep.requests))
	}
	sum := int64(0)
	for i := range rep.requests {
		sum += int64(r.trace.Arrivals[i].Context) + int64(r.trace.Arrivals[i].Generated)
	}
	return sum
}

func (r *reference) touch(rep *refReplica) {
	r.seq++
	rep.changed = r.seq
	rep.peak = max(rep.peak, r.tokens(rep))
}

func (r *reference) running() int {
	n := 0
	for _, rep := range r.reps {
		n += len(rep.requests)
	}
	return n
}

func (r *reference) count(f func(*refReplica) bool) int {
	n := 0
	for _, rep := range r.reps {
		if f(rep) {
			n++
		}
	}
	return n
}

func isReady(rep *refReplica) bool    { return rep.ready && !rep.draining }
func isStarting(rep *refReplica) bool { return !rep.ready }
func isDraining(rep *refReplica) bool { return rep.draining }

// place gives requests to free slots: in the emptiest replica whose load changed last.
func (r *reference) place(now time.Duration) {
	for len(r.queue) > 0 {
		var best *refReplica
		for _, rep := range r.reps {
			if !isReady(rep) || len(rep.requests) >= r.cfg.Slots {
				continue
			}
			if best == nil {
				best = rep
				continue
			}
			d := len(rep.requests) - len(best.requests)
			if r.cfg.Dispatch == scalesim.Packed {
				d = -d
			}
			if d < 0 || d == 0 && rep.changed > best.changed {
				best = rep
			}
		}
		if best == nil {
			return
		}
		i := r.queue[0]
		r.queue = r.queue[1:]
		r.began[i] = now
		best.requests[i] = now + r.trace.Arrivals[i].Service
		r.touch(best)
		r.peakRunning = max(r.peakRunning, r.running())
	}
}

func (r *reference) drop(rep *refReplica) {
	r.reps = slices.DeleteFunc(r.reps, func(x *refReplica) bool { return x == rep })
}

// run simulates, and calls see before each decision.
func (r *reference) run(decide func(now time.Duration) int, see func(now time.Duration)) {
	r.began, r.ended = map[int]time.Duration{}, map[int]bool{}
	r.desired = r.cfg.Initial
	for range r.cfg.Initial {
		rep := &refReplica{id: r.nextID, ready: true, requests: map[int]time.Duration{}}
		r.nextID++
		r.touch(rep)
		r.reps = append(r.reps, rep)
	}
	next := 0
	for now := time.Duration(0); ; {
		// Ends, one at a time: a freed slot takes the queue's head.
		for {
			var who *refReplica
			for _, rep := range r.reps {
				for _, end := range rep.requests {
					if end <= now {
						who = rep
					}
				}
			}
			if who == nil {
				break
			}
			for i, end := range who.requests {
				if end <= now {
					delete(who.requests, i)
					r.ended[i] = true
					break
				}
			}
			if who.draining {
				if len(who.requests) == 0 {
					r.drop(who)
					r.stopped++
				}
				continue
			}
			r.touch(who)
			if len(r.queue) > 0 && now < r.trace.Span {
				r.place(now)
			}
		}
		if now == r.trace.Span {
			return
		}
		for _, rep := range r.reps {
			if isStarting(rep) && rep.readyAt <= now {
				rep.ready = true
				r.touch(rep)
				r.place(now)
			}
		}
		if now%r.cfg.Interval == 0 {
			see(now)
			r.decide(now, decide(now))
		}
		for next < len(r.trace.Arrivals) && r.trace.Arrivals[next].At == now {
			r.queue = append(r.queue, next)
			next++
			r.place(now)
			r.peakWaiting = max(r.peakWaiting, len(r.queue))
		}
		after := min(r.trace.Span, now-now%r.cfg.Interval+r.cfg.Interval)
		if next < len(r.trace.Arrivals) {
			after = min(after, r.trace.Arrivals[next].At)
		}
		for _, rep := range r.reps {
			if isStarting(rep) {
				after = min(after, rep.readyAt)
			}
			for _, end := range rep.requests {
				after = min(after, end)
			}
		}
		r.charged += (after - now) * time.Duration(len(r.reps))
		now = after
	}
}

func (r *reference) decide(now time.Duration, want int) {
	want = min(max(want, r.cfg.Min), r.cfg.Max)
	r.decided++
	if want != r.desired {
		r.acts++
	}
	r.desired = want
	have := r.count(isReady) + r.count(isStarting)
	for ; have < want; have++ {
		if r.cfg.Undrain && r.count(isDraining) > 0 {
			var best *refReplica
			for _, rep := range r.reps {
				if isDraining(rep) && (best == nil || len(rep.requests) > len(best.requests) ||
					len(rep.requests) == len(best.requests) && rep.order < best.order) {
					best = rep
				}
			}
			best.draining = false
			r.touch(best)
			r.drop(best)
			at := slices.IndexFunc(r.reps, isStarting) // becomes the newest of the ready ones
			if at < 0 {
				at = len(r.reps)
			}
			r.reps = slices.Insert(r.reps, at, best)
			r.place(now)
			continue
		}
		r.started++
		rep := &refReplica{id: r.nextID, readyAt: now + r.cfg.ColdStart, requests: map[int]time.Duration{}}
		r.nextID++
		r.reps = append(r.reps, rep)
		if r.cfg.ColdStart == 0 {
			rep.ready = true
			r.touch(rep)
			r.place(now)
		}
	}
	for ; have > want; have-- {
		if last := r.reps[len(r.reps)-1]; r.count(isStarting) > 0 {
			for i := len(r.reps) - 1; !isStarting(last); i-- {
				last = r.reps[i]
			}
			r.drop(last)
			r.cancelled++
			continue
		}
		var best *refReplica
		for _, rep := range r.reps {
			if isReady(rep) && (best == nil || len(rep.requests) <= len(best.requests)) {
				best = rep
			}
		}
		best.draining = true
		r.seq++
		best.order = r.seq
		if len(best.requests) == 0 {
			r.drop(best)
			r.stopped++
		}
	}
}

// window is the highest of the last n values.
func window(values []int64, n int) int64 {
	return slices.Max(values[max(0, len(values)-n):])
}

// score counts the late and the open ones, and lists the waits.
func (r *reference) score() (late, open int64, waits []time.Duration) {
	for i, a := range r.trace.Arrivals {
		at, ok := r.began[i]
		switch {
		case ok && at-a.At > r.cfg.TargetWait, !ok && r.trace.Span-a.At > r.cfg.TargetWait:
			late++
		case !ok:
			open++
		}
		if ok {
			waits = append(waits, at-a.At)
		}
	}
	slices.Sort(waits)
	return late, open, waits
}

// quantileOf is the least of the sorted values that a share q does not exceed.
func quantileOf(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))-1e-9))-1)]
}
