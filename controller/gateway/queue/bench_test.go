package queue_test

import (
	"fmt"
	"testing"
	"time"

	"remuda/controller/gateway/queue"
)

// busy is a queue in which 10,000 requests wait, of so many keys.
func busy(b *testing.B, keys int) (*queue.Queue[int], []*queue.Waiter[int]) {
	const length = 10_000
	q := newQueue(b, length, 30*time.Second)
	var ws []*queue.Waiter[int]
	for i := range length {
		ws = append(ws, push(b, q, at(time.Duration(i)*time.Millisecond), queue.Entry[int]{
			Key: fmt.Sprint("key", i*7919%keys), Weight: float64(1 + i%3), Priority: i % keys % 10, Cost: int64(100 + i*31%4000),
		}))
	}
	return q, ws
}

// BenchmarkPop is one Pop and the Push that fills the queue again, while 10,000
// wait.
func BenchmarkPop(b *testing.B) {
	for _, keys := range []int{1, 100, 1000, 10_000} {
		b.Run(fmt.Sprint("keys=", keys), func(b *testing.B) {
			q, _ := busy(b, keys)
			now := 10 * time.Second
			b.ReportAllocs()
			for b.Loop() {
				now += time.Millisecond
				w := q.Pop(at(now))
				e := w.Entry
				e.Arrived = at(now)
				if _, err := q.Push(at(now), e); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkCharge is what a request costs that does not wait.
func BenchmarkCharge(b *testing.B) {
	for _, keys := range []int{1, 1000} {
		b.Run(fmt.Sprint("keys=", keys), func(b *testing.B) {
			q := newQueue(b, 10, 30*time.Second)
			names := make([]string, keys)
			for i := range names {
				names[i] = fmt.Sprint("key", i)
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				i++
				q.Charge(at(time.Duration(i)*time.Microsecond), names[i%keys], 1, 500)
			}
		})
	}
}

// BenchmarkPosition is the place of one request of 10,000.
func BenchmarkPosition(b *testing.B) {
	for _, keys := range []int{1, 100, 1000, 10_000} {
		b.Run(fmt.Sprint("keys=", keys), func(b *testing.B) {
			q, ws := busy(b, keys)
			i := 0
			for b.Loop() {
				i++
				if q.Position(at(20*time.Second), ws[i*7919%len(ws)]) == 0 {
					b.Fatal("it waits")
				}
			}
		})
	}
}

// BenchmarkAll is a report of the first 64 of 10,000.
func BenchmarkAll(b *testing.B) {
	q, _ := busy(b, 1000)
	for b.Loop() {
		if len(q.All(at(20*time.Second), 64)) != 64 {
			b.Fatal("too few")
		}
	}
}

// BenchmarkAdmit is what the limits cost a request, with all of them on.
func BenchmarkAdmit(b *testing.B) {
	k := newKeys(b, queue.KeyLimit{Concurrency: 10, Rate: 1e9, Burst: 1e9}, nil)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := k.Admit(t0, "a", 0); err != nil {
			b.Fatal(err)
		}
		k.Done(t0, "a", 0)
	}
}

// BenchmarkBudget is what the retry budget and the drain estimate cost a
// request.
func BenchmarkBudget(b *testing.B) {
	budget := newBudget(b, 0.2, 1, 10*time.Second)
	drain := queue.NewDrain(30 * time.Second)
	now := t0
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(100 * time.Microsecond)
		budget.Request(now)
		drain.Done(now)
	}
}
