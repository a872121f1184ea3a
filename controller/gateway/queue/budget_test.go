package queue_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/controller/gateway/queue"
)

func newBudget(t testing.TB, ratio, floor float64, window time.Duration) *queue.Budget {
	t.Helper()
	b, err := queue.NewBudget(queue.BudgetConfig{Ratio: ratio, Floor: floor, Window: window})
	require.NoError(t, err)
	return b
}

func TestBudgetConfig(t *testing.T) {
	_, err := queue.NewBudget(queue.BudgetConfig{Ratio: -1, Floor: math.NaN()})
	require.EqualError(t, err, "invalid retry budget: Ratio is -1: must be 0 or more; Floor is NaN: must be 0 or more; Window is 0s: must be at least 100ms")
	_, err = queue.NewBudget(queue.BudgetConfig{Ratio: math.Inf(1), Window: time.Second})
	require.ErrorContains(t, err, "Ratio is +Inf")
}

// granted is how many of n retries are granted at a time.
func granted(b *queue.Budget, now time.Time, n int) (ok int) {
	for range n {
		if yes, _ := b.Retry(now); yes {
			ok++
		}
	}
	return ok
}

func TestBudget(t *testing.T) {
	const window = 32 * time.Second
	t.Run("a share of the requests", func(t *testing.T) {
		b := newBudget(t, 0.2, 0, window)
		require.Zero(t, granted(b, t0, 10))
		for range 50 {
			b.Request(t0)
		}
		require.Equal(t, 10, granted(b, t0, 100))
		require.Zero(t, granted(b, at(window-1), 100), "spent until the window is over")
		require.Zero(t, granted(b, at(2*window), 100), "but so are the requests")
	})
	t.Run("a floor", func(t *testing.T) {
		b := newBudget(t, 0.2, 0.25, window)
		require.Equal(t, 8, granted(b, t0, 100))
		ok, again := b.Retry(at(time.Second))
		require.False(t, ok)
		require.Equal(t, at(window+time.Second), again)
		ok, _ = b.Retry(again.Add(-1))
		require.False(t, ok)
		require.Equal(t, 8, granted(b, again, 100))
	})
	t.Run("when to ask again, if only requests can help", func(t *testing.T) {
		b := newBudget(t, 1, 0, window)
		ok, again := b.Retry(at(time.Second))
		require.False(t, ok)
		require.Equal(t, at(time.Second+window), again)
		b.Request(at(2 * time.Second))
		ok, _ = b.Retry(at(2 * time.Second))
		require.True(t, ok)
	})
	t.Run("none at all", func(t *testing.T) {
		b := newBudget(t, 0, 0, window)
		b.Request(t0)
		require.Zero(t, granted(b, t0, 10))
	})
	t.Run("time that goes back", func(t *testing.T) {
		b := newBudget(t, 0, 0.25, window)
		require.Equal(t, 8, granted(b, at(window), 100))
		require.Zero(t, granted(b, t0, 100))
	})
}

// At each retry that is granted the budget's formula holds exactly, over the
// window that ends then; all retries together never exceed the ratio of all
// requests plus what the floor allows; and a refused one that waits as it was
// told is granted, if anything but new requests can allow it.
func TestBudgetFormula(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const window = 10 * time.Second
		ratio := rapid.SampledFrom([]float64{0, 0.1, 0.5, 2}).Draw(t, "ratio")
		floor := rapid.SampledFrom([]float64{0, 0.05, 0.3, 1}).Draw(t, "floor")
		b, err := queue.NewBudget(queue.BudgetConfig{Ratio: ratio, Floor: floor, Window: window})
		require.NoError(t, err)
		var requests, retries []time.Duration
		last := func(times []time.Duration, now time.Duration) (n int) {
			for _, at := range times {
				if at > now-window && at <= now {
					n++
				}
			}
			return n
		}
		now := time.Duration(0)
		retry := func() (bool, time.Time) {
			ok, again := b.Retry(at(now))
			if !ok {
				require.True(t, again.After(at(now)), "again at %s, now %s", again, at(now))
				return false, again
			}
			retries = append(retries, now)
			require.LessOrEqual(t, float64(last(retries, now)), ratio*float64(last(requests, now))+floor*window.Seconds()+1e-6)
			return true, again
		}
		for range rapid.IntRange(1, 150).Draw(t, "steps") {
			now += time.Duration(rapid.Int64Range(0, int64(window/8)).Draw(t, "tick"))
			if rapid.Bool().Draw(t, "request") {
				b.Request(at(now))
				requests = append(requests, now)
			} else {
				retry()
			}
		}
		bursts := math.Ceil((now + 1).Seconds() / window.Seconds())
		require.LessOrEqual(t, float64(len(retries)), ratio*float64(len(requests))+floor*window.Seconds()*bursts+1e-6)

		ok, again := retry()
		for ok {
			ok, again = retry()
		}
		if floor*window.Seconds() >= 1 {
			now = again.Sub(t0)
			ok, _ = retry()
			require.True(t, ok, "it was told to ask again at %s", again)
		}
	})
}
