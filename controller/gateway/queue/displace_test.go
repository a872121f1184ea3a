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

// TestDisplace fills queues from several keys, and beyond.
func TestDisplace(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		length := rapid.IntRange(1, 12).Draw(t, "length")
		q, err := queue.New[int](queue.Config{Length: length, Aging: aging})
		require.NoError(t, err)
		var now time.Duration
		for id := range rapid.IntRange(1, 60).Draw(t, "requests") {
			now += time.Duration(rapid.SampledFrom([]int64{0, 1, int64(aging / 3), int64(aging)}).Draw(t, "tick"))
			e := drawEntry(t, id, now, 5)
			e.Arrived = at(now)
			if q.Len() < length {
				_, err := q.Push(at(now), e)
				require.NoError(t, err)
				continue
			}
			before := q.All(at(now), length)
			w, out := q.Displace(at(now), e, length)
			require.Equal(t, length, q.Len())
			requireDisplaced(t, at(now), e, before, w, out)
			if w == nil {
				require.Equal(t, before, q.All(at(now), length), "nothing has changed")
			} else {
				requireOrder(t, before, q.All(at(now), length), w, out)
			}
		}
	})
}

// requireDisplaced checks that a new request took the place of the right one, or was refused rightly.
func requireDisplaced(t *rapid.T, now time.Time, e queue.Entry[int], before []*queue.Waiter[int], w, out *queue.Waiter[int]) {
	has := map[string]int{e.Key: 0}
	for _, x := range before {
		has[x.Key]++
	}
	most := 0
	for _, n := range has {
		most = max(most, n)
	}
	level := func(arrived time.Time, priority int) int64 {
		return int64(priority) + int64(now.Sub(arrived)/aging)
	}
	if has[e.Key] < len(before)/len(has) {
		require.NotNil(t, w, "key %s has %d of %d places, %d keys wait", e.Key, has[e.Key], len(before), len(has))
	}
	if w == nil {
		require.Nil(t, out)
		// Of the keys with the most there is one whose last request is not lower.
		require.True(t, slices.ContainsFunc(before, func(x *queue.Waiter[int]) bool {
			return has[x.Key] == most && x == lastOf(before, x.Key) && level(x.Arrived, x.Priority) >= level(now, e.Priority)
		}))
		return
	}
	require.Equal(t, most, has[out.Key])
	require.Same(t, lastOf(before, out.Key), out)
	require.True(t, has[e.Key] < len(before)/len(has) || level(now, e.Priority) > level(out.Arrived, out.Priority), "there is a reason")
}

// lastOf is the last of a key in the order in which a queue serves it.
func lastOf(all []*queue.Waiter[int], key string) (last *queue.Waiter[int]) {
	for _, x := range all {
		if x.Key == key {
			last = x
		}
	}
	return last
}

// requireOrder checks that all others wait in the order of before within their keys.
func requireOrder(t *rapid.T, before, after []*queue.Waiter[int], in, out *queue.Waiter[int]) {
	of := func(all []*queue.Waiter[int]) map[string][]int {
		keys := map[string][]int{}
		for _, x := range all {
			if x != in && x != out {
				keys[x.Key] = append(keys[x.Key], x.Value)
			}
		}
		return keys
	}
	require.Equal(t, of(before), of(after))
	require.Contains(t, after, in)
	require.NotContains(t, after, out)
}

// TestServedRequestsKeepTheirPlaces: who was served before does not give way.
func TestServedRequestsKeepTheirPlaces(t *testing.T) {
	t.Parallel()
	q, err := queue.New[int](queue.Config{Length: 10, Aging: aging})
	require.NoError(t, err)
	for i := range 3 {
		q.Readmit(at(0), queue.Entry[int]{ID: fmt.Sprint(i), Key: "a"})
	}
	w, out := q.Displace(at(0), queue.Entry[int]{Key: "b", Priority: 9}, 3)
	require.Nil(t, w)
	require.Nil(t, out)
	last, err := q.Push(at(0), queue.Entry[int]{Key: "a", Priority: 1})
	require.NoError(t, err)
	w, out = q.Displace(at(0), queue.Entry[int]{Key: "b", Priority: 2}, 4)
	require.NotNil(t, w)
	require.Same(t, last, out)
}

// TestOneKeyCannotKeepAnotherOut: the key that fills the queue makes room for others, up to their parts.
func TestOneKeyCannotKeepAnotherOut(t *testing.T) {
	t.Parallel()
	q, err := queue.New[int](queue.Config{Length: 9, Aging: aging})
	require.NoError(t, err)
	for i := range 9 {
		_, err := q.Push(at(0), queue.Entry[int]{Key: "a", Priority: 9, Value: i})
		require.NoError(t, err)
	}
	displaced := func(key string, priority int) (out []int) {
		for {
			w, gone := q.Displace(at(0), queue.Entry[int]{Key: key, Priority: priority}, 9)
			if w == nil {
				return out
			}
			out = append(out, gone.Value)
		}
	}
	require.Equal(t, []int{8, 7, 6, 5}, displaced("b", 0))
	require.Equal(t, []int{4, 3, 0}, displaced("c", 0), "the last one of the other that had more")
	require.Empty(t, displaced("a", 0))
	require.Empty(t, displaced("b", 0))
	require.NotNil(t, q.Peek(at(0)))
}
