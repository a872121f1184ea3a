package queue

import (
	"container/list"
	"math"
	"time"
)

const (
	// MinWeight and MaxWeight bound the weight of a key.
	MinWeight, MaxWeight = 0.001, 1000.0
	// MaxCost bounds what one request is charged, in tokens. A client may ask
	// for any number of tokens; none yields more than this.
	MaxCost = 1 << 24
	// grain is how many units of virtual time one token of weight 1 takes. Tags
	// are whole numbers, so that what is put on and taken off cancels out.
	grain = 1 << 10
	// farTag is where virtual time starts over.
	farTag = 1 << 60
)

// NormalWeight brings a weight into range; 0 is 1.
func NormalWeight(w float64) float64 {
	if w == 0 || math.IsNaN(w) {
		return 1
	}
	return min(max(w, MinWeight), MaxWeight)
}

// toll is what a request costs its key in virtual time.
func toll(cost int64, weight float64) int64 {
	return max(1, int64(math.Round(float64(cost)*grain/weight)))
}

// share is what the queue knows of one key.
type share[T any] struct {
	key string
	// tag is the virtual time at which the key's first request starts, or for
	// an idle key the time at which its last one ended. It is a time of the
	// clock of class, the priority of that request.
	tag     int64
	class   int
	waiting tree[*Waiter[T]]
	// place is its place among the keys with waiting requests.
	place node[*share[T]]
	// mayGo is how many of its requests give way to others in a full queue, and crowd its place among
	// the keys with such requests; number is the order in which the queue came to know the keys.
	mayGo  int
	crowd  node[*share[T]]
	number uint64
	// idle is its place in the queue's idle list, nil while requests wait.
	idle      *list.Element
	idleSince int64
}

// clock is the virtual time of each priority: the highest tag that was served
// at this priority or a lower one. So a higher priority is never behind, and a
// key that comes with a high priority saves nothing up from before.
type clock [MaxPriority + 1]int64

// serve moves the clocks to the tag of a request that is served.
func (c *clock) serve(class int, tag int64) {
	for i := class; i < len(c); i++ {
		c[i] = max(c[i], tag)
	}
}

// meet sets all clocks to the latest. When nothing waits, no priority is kept
// waiting by another.
func (c *clock) meet() {
	for i := range c {
		c[i] = c[MaxPriority]
	}
}

// join is the tag of an idle key whose requests wait at a priority from now on.
// What it is ahead of the clock of its old priority, it is ahead of the new one.
func (c *clock) join(tag int64, from, to int) int64 { return c[to] + max(0, tag-c[from]) }

// move is the tag of a key with waiting requests whose first one now has
// another priority.
func (c *clock) move(tag int64, from, to int) int64 { return tag + c[to] - c[from] }

// level is a request's level at a time, from its Arrived - Priority*Aging.
func (q *Queue[T]) level(now, at int64) int64 {
	d := now - at
	l := d / q.aging
	if d%q.aging < 0 {
		l--
	}
	return l
}

// latestOf is the highest Arrived - Priority*Aging of requests that are at
// least at the level.
func (q *Queue[T]) latestOf(now, level int64) int64 { return now - level*q.aging }

// since brings a time into the queue's nanoseconds.
func (q *Queue[T]) since(t time.Time) int64 {
	const far = 1 << 61 // 73 years; what is farther would overflow
	return min(max(int64(t.Sub(q.base)), -far), far)
}

// see notes the time and forgets what is over by then.
func (q *Queue[T]) see(now time.Time) {
	if !q.based {
		q.base, q.based = now, true
	}
	q.latest = max(q.latest, q.since(now))
	for f := q.idle.Front(); f != nil; f = q.idle.Front() {
		s := f.Value.(*share[T])
		if s.tag > q.clock[s.class] && q.latest-s.idleSince < q.aging && q.idle.Len() <= mostIdle {
			return
		}
		q.idle.Remove(f)
		delete(q.shares, s.key)
	}
}

// shareOf returns the share of a key. A new one is idle and owes nothing.
func (q *Queue[T]) shareOf(key string) *share[T] {
	s := q.shares[key]
	if s == nil {
		q.seq++
		s = &share[T]{key: key, tag: q.clock[0], number: q.seq}
		q.shares[key] = s
	}
	return s
}

// settle puts a share where it belongs after a change: among the keys with
// waiting requests, from which it was taken before, or among the idle ones.
func (q *Queue[T]) settle(s *share[T]) {
	if first := s.waiting.first(); first != nil {
		w := first.elem
		s.tag, s.class = q.clock.move(s.tag, s.class, w.Priority), w.Priority
		s.place = node[*share[T]]{elem: s, at: first.at, seq: first.seq, tag: s.tag, arrived: w.inArrival.at}
		q.keys.insert(&s.place)
		if s.idle != nil {
			q.idle.Remove(s.idle)
			s.idle = nil
		}
	} else {
		s.idleSince = q.latest
		if s.idle == nil {
			s.idle = q.idle.PushBack(s)
		} else {
			q.idle.MoveToBack(s.idle)
		}
	}
	if q.Len() == 0 {
		q.clock.meet()
	}
	if q.clock[MaxPriority] > farTag {
		q.startOver()
	}
}

// startOver sets virtual time back, long before it overflows.
func (q *Queue[T]) startOver() {
	d := q.clock[MaxPriority]
	for i := range q.clock {
		q.clock[i] = max(q.clock[i]-d, -farTag)
	}
	q.keys = tree[*share[T]]{}
	for _, s := range q.shares {
		s.tag = max(s.tag-d, -farTag)
		if s.waiting.len() > 0 {
			s.place.tag = s.tag
			q.keys.insert(&s.place)
		}
	}
}
