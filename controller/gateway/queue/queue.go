// Package queue holds what a gateway needs to let requests of one model wait,
// and to bound what they cost: a queue with priorities, aging and fair shares,
// an estimate of how fast it drains, a budget for retries, and limits for
// single API keys.
//
// Everything here is plain state over plain data: no I/O, no goroutines, no
// logging, and no clock but the times that are passed in. Nothing is safe for
// concurrent use; the owner guards it. Times should come from one clock that
// does not go back; one that does harms the order a little, and nothing else.
//
// # The order
//
// Requests wait under the name of their key (the API key they came with). A
// request's level is its priority, plus one for each Config.Aging that it has
// waited:
//
//	level = Priority + floor(waited / Aging)
//
// Within a key the request with the highest level is first, by the exact value
// of Arrived - Priority*Aging. A key has the level of its first request, and
// the keys with the highest level are served first. Among them start-time fair
// queueing decides (Goyal, Vin, Cheng 1996): each request that is served
// charges its key Cost/Weight, and the key that was charged least is next. Of
// equals the first to arrive is served.
//
// What this promises:
//   - No request starves: one of priority p is never served after one that
//     arrived (10-p)*Aging or more later and waited beside it.
//   - Keys that wait at the same level, with requests of the same priority, are
//     served in proportion of their weights: over any time in which both always
//     have a request waiting, what they were served, divided by their weights,
//     differs by at most one request of each.
//   - A key that asked for nothing saved nothing up: it is served as if it had
//     had its share so far. What it is charged beyond its share it owes for as
//     long as it has requests waiting, and for at most one Aging after that.
//   - The same calls give the same order. There is no chance in it.
//
// What a key is served at a high priority does not count against what it gets
// at a lower one, nor the other way round: each priority has its own virtual
// clock, and a key takes along only by how much it is ahead or behind.
//
// # A full queue
//
// Where as many requests wait as may, a new one takes the place of another, see Displace, if
//
//   - its key has fewer requests waiting than its part: the number of places, divided
//     by the number of keys with waiting requests, its own included, and rounded down;
//   - or its level is higher than that of the one that gives way.
//
// The one that gives way is the last in the order of the key that has most requests waiting.
// Requests that were served before do not give way, and do not count for that.
//
// So no key can keep another one out, whatever it sends: while requests that were served
// before do not take up the places, a key is refused nothing before it has its part. Two keys that
// have their parts do not take places from each other.
package queue

import (
	"container/list"
	"errors"
	"fmt"
	"strings"
	"time"
)

// ErrFull means that as many requests wait as may.
var ErrFull = errors.New("the queue is full")

const (
	// MaxPriority is the highest priority of a request.
	MaxPriority = 9
	// MaxAging keeps times in range.
	MaxAging = 365 * 24 * time.Hour
	// mostIdle is how many keys without waiting requests are remembered. What
	// is forgotten is a debt of about one request each.
	mostIdle = 4096
)

// Config is what a queue needs to know.
type Config struct {
	// Length is how many requests may wait, at least 1.
	Length int
	// Aging is how long a request waits until it counts one priority more: more
	// than 0, at most MaxAging. It is also where fairness ends: a request that
	// has waited for one Aging longer than another is served first, whatever
	// their keys' shares. A queue that takes much longer than Aging to drain
	// works more and more like a plain one, so make it about as long as a
	// request may wait.
	Aging time.Duration
}

func (c Config) validate() error {
	var bad []string
	if c.Length < 1 {
		bad = append(bad, fmt.Sprintf("Length is %d: must be 1 or more", c.Length))
	}
	if c.Aging <= 0 || c.Aging > MaxAging {
		bad = append(bad, fmt.Sprintf("Aging is %s: must be more than 0 and at most %s", c.Aging, MaxAging))
	}
	if bad != nil {
		return fmt.Errorf("invalid queue config: %s", strings.Join(bad, "; "))
	}
	return nil
}

// Entry is a request that is to wait.
type Entry[T any] struct {
	// ID is the request's name. The queue does not look at it.
	ID string
	// Key is the fair share that the request counts for.
	Key string
	// Weight is the size of the key's share. 0 means 1; others are brought into
	// MinWeight to MaxWeight.
	Weight float64
	// Priority is 0 to MaxPriority, higher is sooner. Others are brought into
	// that range.
	Priority int
	// Cost is the estimated work in tokens. It is brought into 1 to MaxCost.
	Cost int64
	// Prompt is how many tokens the prompt is estimated to have; see Queue.Prompt.
	Prompt int64
	// Arrived is since when the request waits. Zero means: since Push.
	Arrived time.Time
	// Value is the owner's.
	Value T
}

// Waiter is a request in a queue, or one that was in it. Its fields are for
// reading.
type Waiter[T any] struct {
	Entry[T]

	queue   *Queue[T]
	share   *share[T] // while it waits
	waiting bool
	// toll is what the key is charged for it.
	toll int64
	// paid tells that the key was charged. While it waits again the toll is
	// taken off the key's tag, so that Pop adds it only once.
	paid bool
	// mayGo tells that it waits and gives way to others in a full queue.
	mayGo     bool
	inKey     node[*Waiter[T]] // by Arrived - Priority*Aging
	inArrival node[*Waiter[T]] // by Arrived
}

// Queue is a bounded queue of requests. See the package comment for its order.
type Queue[T any] struct {
	cfg   Config
	aging int64 // nanoseconds

	// base is the first time that the queue saw; all others are nanoseconds
	// after it.
	base   time.Time
	based  bool
	latest int64 // the latest time that the queue saw
	seq    uint64

	shares   map[string]*share[T]
	keys     tree[*share[T]]  // those with waiting requests, by their first one
	arrivals tree[*Waiter[T]] // all that wait
	crowds   tree[*share[T]]  // those with requests that may give way, the most of them first
	idle     list.List        // *share[T], those without, longest idle first
	prompt   int64            // the sum of Entry.Prompt of all that wait
	clock    clock
}

// New returns an empty queue.
func New[T any](cfg Config) (*Queue[T], error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Queue[T]{cfg: cfg, aging: int64(cfg.Aging), shares: map[string]*share[T]{}}, nil
}

// Push makes a request wait. The error is ErrFull.
func (q *Queue[T]) Push(now time.Time, e Entry[T]) (*Waiter[T], error) {
	if q.Len() >= q.cfg.Length {
		return nil, ErrFull
	}
	return q.add(now, e, false), nil
}

// Readmit makes a request wait that was served without waiting, see Charge, but has to be
// served again. As Return does, it never refuses, and charges nothing more.
func (q *Queue[T]) Readmit(now time.Time, e Entry[T]) *Waiter[T] { return q.add(now, e, true) }

func (q *Queue[T]) add(now time.Time, e Entry[T], paid bool) *Waiter[T] {
	q.see(now)
	e.Weight = NormalWeight(e.Weight)
	e.Cost = min(max(e.Cost, 1), MaxCost)
	e.Priority = normalPriority(e.Priority)
	if e.Arrived.IsZero() {
		e.Arrived = now
	}
	w := &Waiter[T]{Entry: e, queue: q, toll: toll(e.Cost, e.Weight), paid: paid}
	arrived := q.since(e.Arrived)
	q.seq++
	w.inKey = node[*Waiter[T]]{elem: w, at: arrived - int64(e.Priority)*q.aging, seq: q.seq, toll: w.toll}
	w.inArrival = node[*Waiter[T]]{elem: w, at: arrived, seq: q.seq}
	q.enter(w)
	return w
}

// Return makes a request wait again that was popped and could not be served.
// Its place is that of its old Arrived, it is never refused because the queue
// is full, and its key is not charged a second time. A request that waits
// already is left alone, as is one of another queue.
func (q *Queue[T]) Return(now time.Time, w *Waiter[T]) {
	if w.queue != q || w.waiting {
		return
	}
	q.see(now)
	q.enter(w)
}

// Pop takes out the request that is served next and charges its key. It is nil
// if nothing waits.
func (q *Queue[T]) Pop(now time.Time) *Waiter[T] {
	w := q.Peek(now)
	if w == nil {
		return nil
	}
	q.see(now)
	q.clock.serve(w.share.class, w.share.tag)
	w.paid = true
	q.leave(w)
	return w
}

// Peek returns the request that is served next, nil if nothing waits.
func (q *Queue[T]) Peek(now time.Time) *Waiter[T] {
	first := q.keys.first()
	if first == nil {
		return nil
	}
	at := q.since(now)
	s := q.keys.leastUpTo(q.latestOf(at, q.level(at, first.at)))
	return s.elem.waiting.first().elem
}

// Remove takes out a request that is not to be served. It is false if the
// request does not wait (any more).
func (q *Queue[T]) Remove(w *Waiter[T]) bool {
	if w == nil || w.queue != q || !w.waiting {
		return false
	}
	q.leave(w)
	return true
}

// Charge counts a request against its key that was served without waiting.
// Weight and cost are as in Entry.
func (q *Queue[T]) Charge(now time.Time, key string, weight float64, cost int64) {
	q.see(now)
	s := q.shareOf(key)
	t := toll(min(max(cost, 1), MaxCost), NormalWeight(weight))
	if s.waiting.len() > 0 {
		q.keys.remove(&s.place)
		s.tag += t
		q.settle(s)
		return
	}
	s.tag, s.class = q.clock.join(s.tag, s.class, 0), 0
	if q.Len() == 0 {
		q.clock.serve(0, s.tag)
	}
	s.tag += t
	q.settle(s)
}

// Reweigh gives the waiting requests of a key another weight, but for those that were charged before.
func (q *Queue[T]) Reweigh(key string, weight float64) {
	s := q.shares[key]
	if s == nil {
		return
	}
	weight = NormalWeight(weight)
	s.waiting.each(func(n *node[*Waiter[T]]) {
		if w := n.elem; !w.paid {
			w.Weight, w.toll = weight, toll(w.Cost, weight)
			n.toll = w.toll
		}
	})
}

// normalPriority brings a priority into range.
func normalPriority(p int) int { return min(max(p, 0), MaxPriority) }

// Len is how many requests wait.
func (q *Queue[T]) Len() int { return q.arrivals.len() }

// Prompt is how many tokens the prompts of the waiting requests are estimated to have.
func (q *Queue[T]) Prompt() int64 { return q.prompt }

// Oldest is when the request that waits longest arrived, zero if none waits.
func (q *Queue[T]) Oldest() time.Time {
	if n := q.arrivals.first(); n != nil {
		return n.elem.Arrived
	}
	return time.Time{}
}

// enter puts a request among those that wait.
func (q *Queue[T]) enter(w *Waiter[T]) {
	s := q.shareOf(w.Key)
	if s.waiting.len() == 0 {
		s.tag, s.class = q.clock.join(s.tag, s.class, w.Priority), w.Priority
	} else {
		q.keys.remove(&s.place)
	}
	if w.paid {
		s.tag -= w.toll
	}
	w.share, w.waiting, w.mayGo = s, true, !w.paid
	if w.mayGo {
		q.crowd(s, 1)
	}
	s.waiting.insert(&w.inKey)
	q.arrivals.insert(&w.inArrival)
	q.prompt += w.Prompt
	q.settle(s)
}

// leave takes a request from those that wait. One that is paid for has its toll
// put (back) on its key's tag.
func (q *Queue[T]) leave(w *Waiter[T]) {
	s := w.share
	q.keys.remove(&s.place)
	s.waiting.remove(&w.inKey)
	q.arrivals.remove(&w.inArrival)
	q.prompt -= w.Prompt
	if w.paid {
		s.tag += w.toll
	}
	if w.mayGo {
		q.crowd(s, -1)
	}
	w.share, w.waiting, w.mayGo = nil, false, false
	q.settle(s)
}
