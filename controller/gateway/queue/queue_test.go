package queue_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/gateway/queue"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(d time.Duration) time.Time { return t0.Add(d) }

func newQueue(t testing.TB, length int, aging time.Duration) *queue.Queue[int] {
	t.Helper()
	q, err := queue.New[int](queue.Config{Length: length, Aging: aging})
	require.NoError(t, err)
	return q
}

func push(t testing.TB, q *queue.Queue[int], now time.Time, e queue.Entry[int]) *queue.Waiter[int] {
	t.Helper()
	w, err := q.Push(now, e)
	require.NoError(t, err)
	return w
}

// drain pops all, and returns the IDs in one word each.
func drain(q *queue.Queue[int], now time.Time) string {
	var ids []string
	for w := q.Pop(now); w != nil; w = q.Pop(now) {
		ids = append(ids, w.ID)
	}
	return strings.Join(ids, " ")
}

func ids(ws []*queue.Waiter[int]) string {
	var ids []string
	for _, w := range ws {
		ids = append(ids, w.ID)
	}
	return strings.Join(ids, " ")
}

func TestConfig(t *testing.T) {
	_, err := queue.New[int](queue.Config{})
	require.EqualError(t, err, "invalid queue config: Length is 0: must be 1 or more; Aging is 0s: must be more than 0 and at most 8760h0m0s")
	_, err = queue.New[int](queue.Config{Length: 1, Aging: queue.MaxAging + 1})
	require.ErrorContains(t, err, "Aging is 8760h0m0.000000001s")
}

func TestOrder(t *testing.T) {
	const aging = 10 * time.Second
	e := func(id, key string, arrived time.Duration) queue.Entry[int] {
		return queue.Entry[int]{ID: id, Key: key, Cost: 100, Arrived: at(arrived)}
	}
	with := func(e queue.Entry[int], f func(*queue.Entry[int])) queue.Entry[int] { f(&e); return e }
	prio := func(p int, e queue.Entry[int]) queue.Entry[int] {
		return with(e, func(e *queue.Entry[int]) { e.Priority = p })
	}
	for _, c := range []struct {
		name string
		in   []queue.Entry[int]
		now  time.Duration
		want string
	}{
		{name: "one key: first come first", now: time.Second, want: "a b c",
			in: []queue.Entry[int]{e("a", "k", 0), e("b", "k", 1), e("c", "k", 2)}},
		{name: "two keys take turns", now: time.Second, want: "a1 b1 a2 b2 a3",
			in: []queue.Entry[int]{e("a1", "a", 0), e("a2", "a", 0), e("a3", "a", 0), e("b1", "b", 1), e("b2", "b", 1)}},
		{name: "by weight", now: time.Second, want: "a1 b1 b2 a2 b3 b4",
			in: []queue.Entry[int]{e("a1", "a", 0), e("a2", "a", 0),
				with(e("b1", "b", 1), func(e *queue.Entry[int]) { e.Weight = 2 }), with(e("b2", "b", 2), func(e *queue.Entry[int]) { e.Weight = 2 }),
				with(e("b3", "b", 3), func(e *queue.Entry[int]) { e.Weight = 2 }), with(e("b4", "b", 4), func(e *queue.Entry[int]) { e.Weight = 2 })}},
		{name: "by cost", now: time.Second, want: "big s1 s2 s3 s4",
			in: []queue.Entry[int]{with(e("big", "a", 0), func(e *queue.Entry[int]) { e.Cost = 400 }), e("s4", "a", 9),
				e("s1", "b", 1), e("s2", "b", 2), e("s3", "b", 3)}},
		{name: "priority first", now: time.Second, want: "high mid low",
			in: []queue.Entry[int]{e("low", "a", 0), prio(4, e("mid", "b", 1)), prio(9, e("high", "c", 2))}},
		{name: "priority within a key", now: time.Second, want: "high low",
			in: []queue.Entry[int]{e("low", "a", 0), prio(1, e("high", "a", 1))}},
		{name: "one aging makes up for one priority", now: 11 * time.Second, want: "old new",
			in: []queue.Entry[int]{prio(1, e("new", "b", 2*time.Second)), e("old", "a", 0)}},
		{name: "but not less", now: 9 * time.Second, want: "new old",
			in: []queue.Entry[int]{prio(1, e("new", "b", 2*time.Second)), e("old", "a", 0)}},
		{name: "within a key age counts exactly", now: 9 * time.Second, want: "new old",
			in: []queue.Entry[int]{e("old", "a", 0), prio(1, e("new", "a", 9*time.Second))}},
		{name: "within a key the older of equals", now: 10 * time.Second, want: "old new",
			in: []queue.Entry[int]{e("old", "a", 0), prio(1, e("new", "a", 10*time.Second))}},
		{name: "a level goes before the share", now: 10 * time.Second, want: "a1 a2 b1",
			in: []queue.Entry[int]{e("a1", "a", 0), e("a2", "a", 0), e("b1", "b", 1)}},
		{name: "arrivals in the future are no harm", now: -55 * time.Second, want: "a b",
			in: []queue.Entry[int]{e("b", "a", 20*time.Second), e("a", "b", 0)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := newQueue(t, 100, aging)
			for _, e := range c.in {
				push(t, q, at(0), e)
			}
			require.Equal(t, c.want, ids(q.All(at(c.now), 100)), "All")
			require.Equal(t, c.want, drain(q, at(c.now)), "Pop")
		})
	}
}

func TestFull(t *testing.T) {
	q := newQueue(t, 2, time.Second)
	a := push(t, q, t0, queue.Entry[int]{ID: "a"})
	push(t, q, t0, queue.Entry[int]{ID: "b"})
	_, err := q.Push(t0, queue.Entry[int]{ID: "c"})
	require.ErrorIs(t, err, queue.ErrFull)
	require.Equal(t, 2, q.Len())
	require.Same(t, a, q.Pop(t0))
	push(t, q, t0, queue.Entry[int]{ID: "c"})
	// Who was let in is not refused later.
	q.Return(t0, a)
	require.Equal(t, 3, q.Len())
	_, err = q.Push(t0, queue.Entry[int]{ID: "d"})
	require.ErrorIs(t, err, queue.ErrFull)
	require.Equal(t, "a b c", drain(q, t0))
}

func TestEmpty(t *testing.T) {
	q := newQueue(t, 2, time.Second)
	require.Nil(t, q.Pop(t0))
	require.Nil(t, q.Peek(t0))
	require.Empty(t, q.All(t0, 5))
	require.Zero(t, q.Len())
	require.True(t, q.Oldest().IsZero())
	require.False(t, q.Remove(nil))
	require.Zero(t, q.Position(t0, nil))
}

func TestStrangeValuesAreBroughtIntoRange(t *testing.T) {
	q := newQueue(t, 9, time.Second)
	w := push(t, q, t0, queue.Entry[int]{Priority: 99, Weight: -1, Cost: math.MaxInt64})
	require.Equal(t, 9, w.Priority)
	require.Equal(t, queue.MinWeight, w.Weight)
	require.EqualValues(t, queue.MaxCost, w.Cost)
	require.Equal(t, t0, w.Arrived)
	w = push(t, q, t0, queue.Entry[int]{Priority: -1, Weight: math.NaN(), Cost: -5})
	require.Equal(t, 0, w.Priority)
	require.Equal(t, 1.0, w.Weight)
	require.EqualValues(t, 1, w.Cost)
	w = push(t, q, t0, queue.Entry[int]{Weight: math.Inf(1), Arrived: t0.AddDate(-5000, 0, 0)})
	require.Equal(t, queue.MaxWeight, w.Weight)
	require.Same(t, w, q.Pop(t0), "it has waited for longest")
}

func TestRemove(t *testing.T) {
	q := newQueue(t, 9, time.Second)
	a := push(t, q, t0, queue.Entry[int]{ID: "a"})
	b := push(t, q, t0, queue.Entry[int]{ID: "b"})
	require.True(t, q.Remove(b))
	require.False(t, q.Remove(b))
	require.Zero(t, q.Position(t0, b))
	require.Same(t, a, q.Pop(t0))
	require.False(t, q.Remove(a), "popped")

	other := newQueue(t, 9, time.Second)
	c := push(t, other, t0, queue.Entry[int]{ID: "c"})
	require.False(t, q.Remove(c))
	require.Zero(t, q.Position(t0, c))
	q.Return(t0, c)
	require.Zero(t, q.Len())
	require.Equal(t, 1, other.Len())
}

func TestOldest(t *testing.T) {
	q := newQueue(t, 9, time.Second)
	push(t, q, at(3), queue.Entry[int]{ID: "c", Key: "k2", Arrived: at(3)})
	push(t, q, at(3), queue.Entry[int]{ID: "a", Key: "k1", Arrived: at(1), Priority: 9})
	push(t, q, at(3), queue.Entry[int]{ID: "b", Key: "k2", Arrived: at(2)})
	for i, id := range []string{"a", "b", "c"} {
		require.Equal(t, at(time.Duration(1+i)), q.Oldest())
		require.Equal(t, id, q.Pop(at(12)).ID)
	}
}

func TestReturnWaitsAgainInItsOldPlaceAndPaysOnce(t *testing.T) {
	q := newQueue(t, 9, time.Hour)
	for i := range 3 {
		push(t, q, t0, queue.Entry[int]{ID: fmt.Sprint("a", i), Key: "a", Cost: 100})
		push(t, q, t0, queue.Entry[int]{ID: fmt.Sprint("b", i), Key: "b", Cost: 100})
	}
	a0 := q.Pop(t0)
	require.Equal(t, "a0", a0.ID)
	require.Equal(t, "b0", q.Pop(t0).ID)
	q.Return(at(1), a0)
	q.Return(at(1), a0) // it waits already
	require.Equal(t, 5, q.Len())
	// Next, since its key has not had what it was charged for; then as before.
	require.Equal(t, "a0 a1 b1 a2 b2", drain(q, at(1)))
}

func TestReturnOfTheOnlyRequestPaysOnce(t *testing.T) {
	q := newQueue(t, 9, time.Hour)
	a0 := push(t, q, t0, queue.Entry[int]{ID: "a0", Key: "a", Cost: 100})
	for range 5 {
		require.Same(t, a0, q.Pop(t0))
		q.Return(t0, a0)
	}
	require.Same(t, a0, q.Pop(t0))
	// a was served 100 once: b, with 101, and then a is next again.
	push(t, q, t0, queue.Entry[int]{ID: "a1", Key: "a", Cost: 100})
	push(t, q, t0, queue.Entry[int]{ID: "b0", Key: "b", Cost: 101})
	push(t, q, t0, queue.Entry[int]{ID: "b1", Key: "b", Cost: 100})
	require.Equal(t, "b0 a1 b1", drain(q, t0))
}

func TestRemoveOfAReturnedRequestGivesNoCredit(t *testing.T) {
	q := newQueue(t, 9, time.Hour)
	a := push(t, q, t0, queue.Entry[int]{ID: "a", Key: "a", Cost: 1000})
	require.Same(t, a, q.Pop(t0))
	q.Return(t0, a)
	a1 := push(t, q, t0, queue.Entry[int]{ID: "a1", Key: "a", Cost: 100})
	push(t, q, t0, queue.Entry[int]{ID: "b1", Key: "b", Cost: 100})
	require.True(t, q.Remove(a))
	require.Equal(t, 2, q.Position(t0, a1))
	require.Equal(t, "b1 a1", drain(q, t0))
}

func TestChargeCountsWhatDidNotWait(t *testing.T) {
	q := newQueue(t, 9, time.Hour)
	q.Charge(t0, "a", 1, 100)
	push(t, q, t0, queue.Entry[int]{ID: "a1", Key: "a", Cost: 100})
	push(t, q, t0, queue.Entry[int]{ID: "b1", Key: "b", Cost: 100})
	push(t, q, t0, queue.Entry[int]{ID: "b2", Key: "b", Cost: 100})
	push(t, q, t0, queue.Entry[int]{ID: "c1", Key: "c", Cost: 100})
	q.Charge(t0, "b", 2, 100) // half a request, while b waits
	require.Equal(t, "c1 b1 a1 b2", drain(q, t0))
}

func TestAnIdleKeyGetsNoCredit(t *testing.T) {
	q := newQueue(t, 99, time.Hour)
	for i := range 20 {
		push(t, q, t0, queue.Entry[int]{ID: fmt.Sprint("a", i), Key: "a"})
	}
	for range 15 {
		q.Pop(t0)
	}
	for i := range 4 {
		push(t, q, t0, queue.Entry[int]{ID: fmt.Sprint("b", i), Key: "b"})
	}
	require.Equal(t, "b0 a15 b1 a16 b2 a17 b3 a18 a19", drain(q, t0))
}

func TestADebtLapses(t *testing.T) {
	const aging = time.Minute
	q := newQueue(t, 99, aging)
	order := func(now time.Time) string {
		push(t, q, now, queue.Entry[int]{ID: "a", Key: "a"})
		push(t, q, now, queue.Entry[int]{ID: "b", Key: "b"})
		return drain(q, now)
	}
	q.Charge(t0, "a", 1, 1000)
	require.Equal(t, "b a", order(at(aging-1)))
	q.Charge(at(aging), "a", 1, 1000)
	require.Equal(t, "a b", order(at(2*aging)))
}

// A priority that gets nothing while a higher one is busy must not lend its old
// virtual time to keys that come with the high priority, and the high one must
// not lend its own to newcomers with the low one.
func TestPrioritiesKeepTheirOwnTime(t *testing.T) {
	setup := func(t *testing.T) *queue.Queue[int] {
		q := newQueue(t, 999, time.Hour)
		for i := range 3 {
			push(t, q, t0, queue.Entry[int]{ID: fmt.Sprint("low", i), Key: "low"})
		}
		for i := range 103 {
			for _, key := range []string{"p", "r"} {
				push(t, q, t0, queue.Entry[int]{ID: fmt.Sprint(key, i), Key: key, Priority: 9})
			}
		}
		for range 200 {
			require.Equal(t, 9, q.Pop(t0).Priority)
		}
		return q
	}
	t.Run("a newcomer at the high one", func(t *testing.T) {
		q := setup(t)
		for i := range 3 {
			push(t, q, t0, queue.Entry[int]{ID: fmt.Sprint("new", i), Key: "new", Priority: 9})
		}
		require.Equal(t, "new0 p100 r100 new1 p101 r101 new2 p102 r102 low0 low1 low2", ids(q.All(t0, 99)))
		require.Equal(t, "new0 p100 r100 new1 p101 r101 new2 p102 r102 low0 low1 low2", drain(q, t0))
	})
	t.Run("a newcomer at both", func(t *testing.T) {
		q := setup(t)
		push(t, q, t0, queue.Entry[int]{ID: "newlow", Key: "new"})
		for i := range 3 {
			push(t, q, t0, queue.Entry[int]{ID: fmt.Sprint("new", i), Key: "new", Priority: 9})
		}
		// It takes along to the low one what it is ahead by at the high one: a
		// request, not a hundred.
		require.Equal(t, "new0 p100 r100 new1 p101 r101 new2 p102 r102 low0 low1 newlow low2", drain(q, t0))
	})
	t.Run("a newcomer at the low one", func(t *testing.T) {
		q := setup(t)
		for i := range 3 {
			push(t, q, t0, queue.Entry[int]{ID: fmt.Sprint("new", i), Key: "new"})
		}
		require.Equal(t, "p100 r100 p101 r101 p102 r102 low0 new0 low1 new1 low2 new2", drain(q, t0))
	})
}

// When nothing waits any more, a priority that was kept waiting has no claim
// left: a request of it that has aged up to another takes turns with it.
func TestPrioritiesMeetWhenNothingWaits(t *testing.T) {
	const aging = 10 * time.Second
	q := newQueue(t, 999, aging)
	push(t, q, t0, queue.Entry[int]{Key: "low"})
	for range 100 {
		push(t, q, t0, queue.Entry[int]{Key: "p", Priority: 1})
	}
	drain(q, t0)
	for i := range 3 {
		push(t, q, at(aging), queue.Entry[int]{ID: fmt.Sprint("low", i), Key: "low"})
	}
	for i := range 3 {
		push(t, q, at(2*aging), queue.Entry[int]{ID: fmt.Sprint("p", i), Key: "p", Priority: 1})
	}
	require.Equal(t, "low0 p0 low1 p1 low2 p2", drain(q, at(2*aging)))
}

// The most expensive requests there can be.
func dear(id, key string) queue.Entry[int] {
	return queue.Entry[int]{ID: id, Key: key, Weight: queue.MinWeight, Cost: math.MaxInt64}
}

func TestVirtualTimeStartsOver(t *testing.T) {
	t.Run("while keys wait", func(t *testing.T) {
		q := newQueue(t, 9, time.Hour)
		for _, key := range []string{"a", "b", "a", "b"} {
			push(t, q, t0, dear("", key))
		}
		served := map[string]int{}
		for i := range 150_000 { // it does after about 135,000
			w := q.Pop(t0)
			served[w.Key]++
			require.LessOrEqual(t, max(served["a"]-served["b"], served["b"]-served["a"]), 1, "after %d", i)
			push(t, q, t0, w.Entry)
		}
	})
	t.Run("before it overflows", func(t *testing.T) {
		q := newQueue(t, 9, time.Hour)
		for range 600_000 {
			q.Charge(t0, "a", queue.MinWeight, math.MaxInt64)
		}
		push(t, q, t0, dear("a1", "a"))
		push(t, q, t0, dear("b1", "b"))
		push(t, q, t0, dear("b2", "b"))
		require.Equal(t, "b1 a1 b2", drain(q, t0), "a owes one request")
	})
}

func TestKeysAreForgotten(t *testing.T) {
	q := newQueue(t, 9, time.Hour)
	for i := range 20_000 {
		q.Charge(t0, fmt.Sprint(i), 1, 10)
	}
	require.LessOrEqual(t, queue.Remembered(q), 4097)
	q.Charge(at(2*time.Hour), "x", 1, 10)
	require.Equal(t, 1, queue.Remembered(q))
	for i := range 20_000 {
		now := at(2*time.Hour + time.Duration(i))
		push(t, q, now, queue.Entry[int]{Key: fmt.Sprint(i)})
		q.Pop(now)
	}
	require.LessOrEqual(t, queue.Remembered(q), 4097)
}

// TestReadmit: a request that was charged for once, without waiting, waits at its old place
// in a full queue, and its key pays nothing more.
func TestReadmit(t *testing.T) {
	q, err := queue.New[string](queue.Config{Length: 2, Aging: time.Hour})
	require.NoError(t, err)
	now := time.Unix(1000, 0)
	q.Charge(now, "a", 1, 100)
	q.Charge(now, "b", 1, 100)
	for _, id := range []string{"b1", "b2"} {
		_, err := q.Push(now.Add(time.Second), queue.Entry[string]{ID: id, Key: "b", Cost: 100, Arrived: now.Add(time.Second)})
		require.NoError(t, err)
	}
	w := q.Readmit(now.Add(2*time.Second), queue.Entry[string]{ID: "a1", Key: "a", Cost: 100, Arrived: now})
	require.Equal(t, 3, q.Len())
	_, err = q.Push(now, queue.Entry[string]{ID: "c1", Key: "c", Cost: 1})
	require.ErrorIs(t, err, queue.ErrFull)
	require.Same(t, w, q.Pop(now.Add(3*time.Second)), "its key has had nothing for what it paid")
	_, err = q.Push(now.Add(3*time.Second), queue.Entry[string]{ID: "a2", Key: "a", Cost: 100, Arrived: now.Add(3 * time.Second)})
	require.ErrorIs(t, err, queue.ErrFull)
	q.Pop(now.Add(3 * time.Second))
	_, err = q.Push(now.Add(3*time.Second), queue.Entry[string]{ID: "a2", Key: "a", Cost: 100, Arrived: now.Add(3 * time.Second)})
	require.NoError(t, err)
	require.Equal(t, "a2", q.Pop(now.Add(4*time.Second)).ID, "b was served once more than a")
}
