package queue

import "time"

// Displace makes a request wait in a queue in which as many wait as may, which is length, in the
// place of another one, out, that does not wait any more then. Both are nil where the request has to
// be refused. See the package comment for the rule.
func (q *Queue[T]) Displace(now time.Time, e Entry[T], length int) (w, out *Waiter[T]) {
	most := q.crowds.first()
	if most == nil {
		return nil, nil
	}
	if out = q.last(most.elem); !q.owed(e.Key, most.elem, length) && !q.higher(now, e, out) {
		return nil, nil
	}
	q.leave(out)
	return q.add(now, e, false), out
}

// last is the last request of a key that may give way.
func (q *Queue[T]) last(s *share[T]) *Waiter[T] {
	for i := s.waiting.len() - 1; ; i-- {
		if w := s.waiting.nth(i).elem; w.mayGo {
			return w
		}
	}
}

// owed tells whether a key has fewer requests waiting than its part of the places, and than the key that
// has the most.
func (q *Queue[T]) owed(key string, most *share[T], length int) bool {
	keys, has := q.keys.len(), 0
	if s := q.shares[key]; s != nil && s.waiting.len() > 0 {
		has = s.waiting.len()
	} else {
		keys++
	}
	return has < length/keys && has < most.mayGo
}

// higher tells whether a new request has a higher level than one that waits.
func (q *Queue[T]) higher(now time.Time, e Entry[T], w *Waiter[T]) bool {
	arrived := q.since(now)
	if !e.Arrived.IsZero() {
		arrived = q.since(e.Arrived)
	}
	at := q.since(now)
	return q.level(at, arrived-int64(normalPriority(e.Priority))*q.aging) > q.level(at, w.inKey.at)
}

// crowd notes that a key has more or fewer requests that may give way.
func (q *Queue[T]) crowd(s *share[T], by int) {
	if s.mayGo > 0 {
		q.crowds.remove(&s.crowd)
	}
	if s.mayGo += by; s.mayGo > 0 {
		s.crowd = node[*share[T]]{elem: s, at: -int64(s.mayGo), seq: s.number}
		q.crowds.insert(&s.crowd)
	}
}
