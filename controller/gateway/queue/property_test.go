package queue_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/controller/gateway/queue"
)

const aging = 100 * time.Millisecond

func drawEntry(t *rapid.T, id int, now time.Duration, keys int) queue.Entry[int] {
	return queue.Entry[int]{
		ID:       fmt.Sprint(id),
		Key:      fmt.Sprint("k", rapid.IntRange(1, keys).Draw(t, "key")),
		Weight:   rapid.SampledFrom([]float64{0, 0.5, 1, 3}).Draw(t, "weight"),
		Priority: rapid.IntRange(0, 9).Draw(t, "priority"),
		Cost:     rapid.Int64Range(1, 50).Draw(t, "cost"),
		Prompt:   rapid.Int64Range(0, 50).Draw(t, "prompt"),
		Arrived:  at(now - time.Duration(rapid.SampledFrom([]int64{0, 0, 0, 1, int64(aging / 2), int64(3 * aging)}).Draw(t, "late"))),
		Value:    id,
	}
}

// world drives a queue and a slow model of it with the same calls.
type world struct {
	q      *queue.Queue[int]
	m      *model
	now    time.Duration
	waits  []*queue.Waiter[int]
	popped []*queue.Waiter[int]
	ids    int
	// added - taken must be what waits.
	added, taken int
}

func (w *world) tick(t *rapid.T) {
	w.now += time.Duration(rapid.SampledFrom([]int64{0, 0, 1, int64(aging / 3), int64(aging), int64(12 * aging)}).Draw(t, "tick"))
}

func (w *world) drop(x *queue.Waiter[int]) {
	w.waits = slices.DeleteFunc(w.waits, func(y *queue.Waiter[int]) bool { return x == y })
	w.taken++
}

func (w *world) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"tick": w.tick,
		"push": func(t *rapid.T) {
			w.ids++
			e := drawEntry(t, w.ids, w.now, 4)
			x, err := w.q.Push(at(w.now), e)
			if len(w.waits) >= w.m.length {
				require.ErrorIs(t, err, queue.ErrFull)
				return
			}
			require.NoError(t, err)
			w.m.push(w.now, e)
			w.waits = append(w.waits, x)
			w.added++
		},
		"displace": func(t *rapid.T) {
			w.ids++
			e := drawEntry(t, w.ids, w.now, 4)
			x, out := w.q.Displace(at(w.now), e, max(len(w.waits), 1))
			require.Equal(t, x == nil, out == nil)
			if out == nil {
				return
			}
			w.m.remove(out.Value)
			w.drop(out)
			w.m.push(w.now, e)
			w.waits = append(w.waits, x)
			w.added++
		},
		"pop": func(t *rapid.T) {
			peeked := w.q.Peek(at(w.now))
			x := w.q.Pop(at(w.now))
			require.Same(t, peeked, x)
			want := w.m.pop(w.now)
			if want == 0 {
				require.Nil(t, x)
				return
			}
			require.NotNil(t, x)
			require.Equal(t, want, x.Value)
			w.noStarvation(t, x)
			w.drop(x)
			w.popped = append(w.popped, x)
		},
		"return": func(t *rapid.T) {
			if len(w.popped) == 0 {
				return
			}
			i := rapid.IntRange(0, len(w.popped)-1).Draw(t, "which")
			x := w.popped[i]
			w.popped = slices.Delete(w.popped, i, i+1)
			w.q.Return(at(w.now), x)
			w.m.back(w.now, x.Value)
			w.waits = append(w.waits, x)
			w.added++
		},
		"remove": func(t *rapid.T) {
			if len(w.waits) == 0 {
				return
			}
			x := rapid.SampledFrom(w.waits).Draw(t, "which")
			require.True(t, w.q.Remove(x))
			require.False(t, w.q.Remove(x))
			w.m.remove(x.Value)
			w.drop(x)
		},
		"charge": func(t *rapid.T) {
			key := fmt.Sprint("k", rapid.IntRange(1, 4).Draw(t, "key"))
			cost := rapid.Int64Range(1, 50).Draw(t, "cost")
			w.q.Charge(at(w.now), key, 2, cost)
			w.m.charge(w.now, key, 2, cost)
		},
		"reweigh": func(t *rapid.T) {
			key := fmt.Sprint("k", rapid.IntRange(1, 4).Draw(t, "key"))
			weight := rapid.SampledFrom([]float64{0, 0.5, 1, 3}).Draw(t, "weight")
			w.q.Reweigh(key, weight)
			w.m.reweigh(key, weight)
		},
		"": w.check,
	}
}

// noStarvation: x must not be served while one waits that arrived so much
// earlier that no priority makes up for it.
func (w *world) noStarvation(t *rapid.T, x *queue.Waiter[int]) {
	for _, y := range w.waits {
		if y == x {
			continue
		}
		bound := time.Duration(9-y.Priority+1) * aging
		require.Less(t, x.Arrived.Sub(y.Arrived), bound, "%s (priority %d) was served after %s", y.ID, y.Priority, x.ID)
	}
}

func (w *world) check(t *rapid.T) {
	require.Equal(t, len(w.waits), w.q.Len())
	require.Equal(t, w.added-w.taken, w.q.Len())
	oldest, prompt := time.Time{}, int64(0)
	for _, x := range w.waits {
		prompt += x.Prompt
		if oldest.IsZero() || x.Arrived.Before(oldest) {
			oldest = x.Arrived
		}
	}
	require.Equal(t, oldest, w.q.Oldest())
	require.Equal(t, prompt, w.q.Prompt())
	for _, x := range w.popped {
		require.Zero(t, w.q.Position(at(w.now), x))
	}
}

func newWorld(t *rapid.T) *world {
	length := rapid.SampledFrom([]int{3, 10, 60}).Draw(t, "length")
	q, err := queue.New[int](queue.Config{Length: length, Aging: aging})
	require.NoError(t, err)
	return &world{q: q, m: newModel(length, aging)}
}

// Push, Pop, Return, Remove and Expired conserve requests, no request starves,
// and the order is that of the model.
func TestQueueIsItsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		t.Repeat(w.actions())
		for w.q.Len() > 0 {
			w.actions()["pop"](t)
		}
		w.check(t)
	})
}

// fill draws a queue that has some past and in which some wait.
func fill(t *rapid.T, entry func(id int, now time.Duration) queue.Entry[int]) (q *queue.Queue[int], now time.Duration) {
	q, err := queue.New[int](queue.Config{Length: 1000, Aging: aging})
	require.NoError(t, err)
	for id := range rapid.IntRange(1, 60).Draw(t, "entries") {
		now += time.Duration(rapid.Int64Range(0, int64(aging/5)).Draw(t, "tick"))
		_, err := q.Push(at(now), entry(id, now))
		require.NoError(t, err)
		if rapid.IntRange(0, 4).Draw(t, "serve") == 0 {
			x := q.Pop(at(now))
			if rapid.Bool().Draw(t, "fail") {
				q.Return(at(now), x)
			}
		}
	}
	return q, now
}

func TestAllIsTheOrderOfService(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q, now := fill(t, func(id int, now time.Duration) queue.Entry[int] { return drawEntry(t, id, now, 5) })
		all := q.All(at(now), 1000)
		require.Len(t, all, q.Len())
		some := rapid.IntRange(0, 70).Draw(t, "some")
		require.Equal(t, ids(all[:min(some, len(all))]), ids(q.All(at(now), some)))
		if len(all) > 0 {
			require.Equal(t, 1, q.Position(at(now), all[0]))
		}
		for _, x := range all {
			require.Equal(t, x.ID, q.Pop(at(now)).ID)
		}
	})
}

// Position is exact where each key's requests have one priority.
func TestPositionIsTheOrderOfService(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q, now := fill(t, func(id int, now time.Duration) queue.Entry[int] {
			e := drawEntry(t, id, now, 6)
			e.Priority = int(e.Key[1]-'0') / 2 * 2
			return e
		})
		for i, x := range q.All(at(now), 1000) {
			require.Equal(t, i+1, q.Position(at(now), x), "of %s", x.ID)
		}
	})
}

// Two keys that always have requests waiting, of one priority and at one level,
// are served in proportion of their weights, over any stretch of time, whatever
// other keys do.
func TestFairShares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q, err := queue.New[int](queue.Config{Length: 1 << 20, Aging: time.Hour})
		require.NoError(t, err)
		const a, b = "a", "b"
		weight := map[string]float64{
			a: rapid.Float64Range(0.1, 10).Draw(t, "weight a"),
			b: rapid.Float64Range(0.1, 10).Draw(t, "weight b"),
		}
		maxCost := map[string]int64{
			a: rapid.Int64Range(1, 1000).Draw(t, "cost a"),
			b: rapid.Int64Range(1, 1000).Draw(t, "cost b"),
		}
		waiting := map[string]int{}
		push := func(key string, priority int, w float64, most int64) {
			_, err := q.Push(t0, queue.Entry[int]{Key: key, Weight: w, Priority: priority, Cost: rapid.Int64Range(1, most).Draw(t, "cost")})
			require.NoError(t, err)
			waiting[key]++
		}
		// What came before counts for one request at most.
		for range rapid.IntRange(0, 5).Draw(t, "charges") {
			q.Charge(t0, a, weight[a], rapid.Int64Range(1, maxCost[a]).Draw(t, "before"))
		}
		// Served a less served b, by weight, and the range that it had.
		var diff, low, high float64
		bound := float64(maxCost[a])/weight[a] + float64(maxCost[b])/weight[b]
		for range rapid.IntRange(10, 200).Draw(t, "rounds") {
			for _, key := range []string{a, b} {
				if waiting[key] < 2 {
					push(key, 4, weight[key], maxCost[key])
				}
			}
			if rapid.Bool().Draw(t, "other") {
				push(fmt.Sprint("o", rapid.IntRange(0, 3).Draw(t, "who")), rapid.IntRange(3, 5).Draw(t, "priority"), 1, 500)
			}
			x := q.Pop(t0)
			waiting[x.Key]--
			switch x.Key {
			case a:
				diff += float64(x.Cost) / weight[a]
			case b:
				diff -= float64(x.Cost) / weight[b]
			}
			low, high = min(low, diff), max(high, diff)
			const rounding = 0.5
			require.LessOrEqual(t, high-low, bound+rounding, "weights %v, costs up to %v", weight, maxCost)
		}
	})
}

// The same calls give the same order, whatever the maps inside do.
func TestDeterminism(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var entries []queue.Entry[int]
		now := time.Duration(0)
		for id := range rapid.IntRange(1, 50).Draw(t, "entries") {
			now += aging / 7
			entries = append(entries, drawEntry(t, id, now, 20))
		}
		run := func() (all, served string) {
			q, err := queue.New[int](queue.Config{Length: 1000, Aging: aging})
			require.NoError(t, err)
			for _, e := range entries {
				_, err := q.Push(e.Arrived, e)
				require.NoError(t, err)
			}
			all = ids(q.All(at(now), 1000))
			for x := q.Pop(at(now)); x != nil; x = q.Pop(at(now)) {
				served += x.ID + " "
				now += time.Millisecond
			}
			return all, served
		}
		start := now
		all, served := run()
		now = start
		all2, served2 := run()
		require.Equal(t, all, all2)
		require.Equal(t, served, served2)
	})
}
