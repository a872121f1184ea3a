package queue

import (
	"container/heap"
	"time"
)

// standing is what two requests that wait are compared by.
type standing struct {
	level, tag, arrived int64
	seq                 uint64
}

// before tells whether a request is served before another.
func (s standing) before(o standing) bool {
	switch {
	case s.level != o.level:
		return s.level > o.level
	case s.tag != o.tag:
		return s.tag < o.tag
	case s.arrived != o.arrived:
		return s.arrived < o.arrived
	default:
		return s.seq < o.seq
	}
}

// standing of a request of the key, with the sum of the tolls before it in the
// key.
func (q *Queue[T]) standing(now int64, s *share[T], w *Waiter[T], sum int64) standing {
	return standing{
		level:   q.level(now, w.inKey.at),
		tag:     q.clock.move(s.tag+sum, s.class, w.Priority),
		arrived: w.inArrival.at,
		seq:     w.inKey.seq,
	}
}

// Position is the place of a request that waits: 1 is next, 0 does not wait.
//
// It is as things stand: who arrives, leaves or ages later changes it. As such
// it is exact where each key's waiting requests have one priority. Where keys
// mix priorities it is an estimate; only 1 is still exact. It takes time in
// proportion of the number of keys that wait: a few microseconds for 100. For
// the places of many, call All once.
func (q *Queue[T]) Position(now time.Time, w *Waiter[T]) int {
	if w == nil || w.queue != q || !w.waiting {
		return 0
	}
	at := q.since(now)
	count, sum := w.share.waiting.until(func(n *node[*Waiter[T]], _ int64) bool { return !n.before(&w.inKey) })
	mine := q.standing(at, w.share, w, sum)
	last := q.latestOf(at, mine.level)
	var walk func(n *node[*share[T]])
	walk = func(n *node[*share[T]]) {
		if n == nil {
			return
		}
		walk(n.left)
		if n.at > last {
			return // it and those after it are at lower levels
		}
		if n.elem != w.share {
			count += q.ahead(at, n.elem, mine)
		}
		walk(n.right)
	}
	walk(q.keys.root)
	return count + 1
}

// ahead is how many requests of a key are served before one that stands so.
func (q *Queue[T]) ahead(now int64, s *share[T], mine standing) int {
	if !q.standing(now, s, s.waiting.first().elem, 0).before(mine) {
		return 0
	}
	count, _ := s.waiting.until(func(n *node[*Waiter[T]], sum int64) bool {
		return !q.standing(now, s, n.elem, sum).before(mine)
	})
	return count
}

// All returns the requests that wait in the order in which they would be served
// if all were served now; at most so many.
func (q *Queue[T]) All(now time.Time, most int) []*Waiter[T] {
	most = min(most, q.Len())
	if most <= 0 {
		return nil
	}
	at := q.since(now)
	clock := q.clock
	c := make(cursors[T], 0, q.keys.len())
	for _, s := range q.shares {
		if first := s.waiting.first(); first != nil {
			c = append(c, cursor[T]{share: s, class: s.class, next: first.elem, standing: q.standing(at, s, first.elem, 0)})
		}
	}
	heap.Init(&c)
	out := make([]*Waiter[T], 0, most)
	for {
		// What Pop would do, on copies.
		top := &c[0]
		out = append(out, top.next)
		if len(out) == most {
			return out
		}
		clock.serve(top.class, top.tag)
		tag := top.tag + top.next.toll
		if top.served++; top.served == top.share.waiting.len() {
			heap.Pop(&c)
			continue
		}
		w := top.share.waiting.nth(top.served).elem
		top.standing = q.standing(at, top.share, w, 0)
		top.tag = clock.move(tag, top.class, w.Priority)
		top.next, top.class = w, w.Priority
		heap.Fix(&c, 0)
	}
}

// cursor is a key of which some requests count as served.
type cursor[T any] struct {
	standing
	share  *share[T]
	class  int
	served int
	next   *Waiter[T]
}

// cursors is a heap, the next to serve first.
type cursors[T any] []cursor[T]

func (c cursors[T]) Len() int           { return len(c) }
func (c cursors[T]) Less(i, j int) bool { return c[i].before(c[j].standing) }
func (c cursors[T]) Swap(i, j int)      { c[i], c[j] = c[j], c[i] }
func (c *cursors[T]) Push(x any)        { *c = append(*c, x.(cursor[T])) }
func (c *cursors[T]) Pop() any {
	last := (*c)[len(*c)-1]
	(*c)[len(*c)-1] = cursor[T]{}
	*c = (*c)[:len(*c)-1]
	return last
}
