package queue_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/controller/gateway/queue"
)

func newKeys(t testing.TB, def queue.KeyLimit, named map[string]queue.KeyLimit) *queue.Keys {
	t.Helper()
	k, err := queue.NewKeys(def, named)
	require.NoError(t, err)
	return k
}

func TestKeysConfig(t *testing.T) {
	_, err := queue.NewKeys(queue.KeyLimit{Weight: -1, Priority: 5}, map[string]queue.KeyLimit{
		"b": {Rate: math.Inf(1), Burst: -1},
		"a": {Weight: math.NaN(), Priority: 10, MaxPriority: 10, Concurrency: -1, Rate: -1},
	})
	require.EqualError(t, err, `invalid key limits: default: Weight is -1: must be 0.001 to 1000; `+
		`default: MaxPriority is 0: must be Priority (5) to 9; `+
		`key "a": Weight is NaN: must be 0.001 to 1000; key "a": Priority is 10: must be 0 to 9; key "a": MaxPriority is 10: must be Priority (10) to 9; `+
		`key "a": Concurrency is -1: must be 0 (no limit) or more; key "a": Rate is -1: must be 0 (no limit) or more per second; `+
		`key "b": Rate is +Inf: must be 0 (no limit) or more per second; key "b": Burst is -1: must be 0 (as many as in a second) or more`)
}

func TestKeysLimit(t *testing.T) {
	k := newKeys(t, queue.KeyLimit{Priority: 2, MaxPriority: 4}, map[string]queue.KeyLimit{"gold": {Weight: 4, Rate: 2.5}, "slow": {Rate: 0.1}})
	require.Equal(t, queue.KeyLimit{Weight: 1, Priority: 2, MaxPriority: 4}, k.Limit("anyone"))
	require.Equal(t, queue.KeyLimit{Weight: 4, Rate: 2.5, Burst: 3}, k.Limit("gold"))
	require.Equal(t, 1, k.Limit("slow").Burst)
}

func TestKeysConcurrency(t *testing.T) {
	k := newKeys(t, queue.KeyLimit{Concurrency: 2}, map[string]queue.KeyLimit{"free": {}})
	admit := func(key string) error { _, err := k.Admit(t0, key, 0); return err }
	require.NoError(t, admit("a"))
	require.NoError(t, admit("a"))
	require.ErrorIs(t, admit("a"), queue.ErrConcurrency)
	require.EqualError(t, admit("a"), "concurrency limit exceeded: 2")
	require.NoError(t, admit("b"), "each key has its own")
	for range 10 {
		require.NoError(t, admit("free"))
	}
	k.Done(t0, "a", 0)
	require.NoError(t, admit("a"))
	require.ErrorIs(t, admit("a"), queue.ErrConcurrency)
	k.Sweep(at(time.Hour))
	require.ErrorIs(t, admit("a"), queue.ErrConcurrency, "it still has two")
	for range 5 { // more than there were
		k.Done(t0, "a", 0)
	}
	require.NoError(t, admit("a"))
	require.NoError(t, admit("a"))
	require.ErrorIs(t, admit("a"), queue.ErrConcurrency)
}

func TestKeysRate(t *testing.T) {
	k := newKeys(t, queue.KeyLimit{Rate: 2, Burst: 3}, nil)
	for range 3 {
		_, err := k.Admit(t0, "a", 0)
		require.NoError(t, err)
	}
	after, err := k.Admit(t0, "a", 0)
	require.ErrorIs(t, err, queue.ErrRate)
	require.EqualError(t, err, "rate limit exceeded: 2 per second, 3 at once")
	require.Equal(t, 500*time.Millisecond, after)
	after, err = k.Admit(at(200*time.Millisecond), "a", 0)
	require.ErrorIs(t, err, queue.ErrRate)
	require.InDelta(t, 300*time.Millisecond, after, 2)
	_, err = k.Admit(at(200*time.Millisecond+after), "a", 0)
	require.NoError(t, err)
}

func TestKeysTimeThatGoesBackGivesNothing(t *testing.T) {
	k := newKeys(t, queue.KeyLimit{Rate: 1, Burst: 10}, nil)
	for range 9 {
		_, err := k.Admit(at(10*time.Second), "a", 0)
		require.NoError(t, err)
	}
	_, err := k.Admit(t0, "a", 0)
	require.NoError(t, err)
	_, err = k.Admit(at(10*time.Second), "a", 0)
	require.ErrorIs(t, err, queue.ErrRate)
}

func TestKeysRefusedForConcurrencyKeepTheirRate(t *testing.T) {
	k := newKeys(t, queue.KeyLimit{Rate: 0.001, Burst: 2, Concurrency: 1}, nil)
	_, err := k.Admit(t0, "a", 0)
	require.NoError(t, err)
	for range 5 {
		_, err = k.Admit(t0, "a", 0)
		require.ErrorIs(t, err, queue.ErrConcurrency)
	}
	k.Done(t0, "a", 0)
	_, err = k.Admit(t0, "a", 0)
	require.NoError(t, err)
	// One that the rate refuses does not count as a request at once.
	k.Done(t0, "a", 0)
	_, err = k.Admit(t0, "a", 0)
	require.ErrorIs(t, err, queue.ErrRate)
	_, err = k.Admit(at(1000*time.Second), "a", 0)
	require.NoError(t, err)
}

func TestKeysSweep(t *testing.T) {
	k := newKeys(t, queue.KeyLimit{Rate: 1, Burst: 10}, map[string]queue.KeyLimit{"free": {Weight: 2}})
	for _, key := range []string{"a", "b", "free"} {
		_, err := k.Admit(t0, key, 0)
		require.NoError(t, err)
	}
	require.Equal(t, 2, queue.Counted(k))
	k.Done(t0, "a", 0)
	k.Sweep(t0)
	require.Equal(t, 2, queue.Counted(k), "a has not got its burst back")
	k.Sweep(at(time.Second))
	require.Equal(t, 1, queue.Counted(k), "b has a request")
	k.Done(t0, "b", 0)
	k.Done(t0, "nobody", 0)
	k.Sweep(at(time.Second))
	require.Zero(t, queue.Counted(k))
}

// In any window of time no more than burst + rate * length pass, whether or not
// the key was swept in between; and who waits as told passes.
func TestKeysRateProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := queue.KeyLimit{
			Rate:  rapid.SampledFrom([]float64{0.3, 1, 7, 1000}).Draw(t, "rate"),
			Burst: rapid.IntRange(1, 5).Draw(t, "burst"),
		}
		k, err := queue.NewKeys(limit, nil)
		require.NoError(t, err)
		gap := time.Duration(float64(time.Second) / limit.Rate)
		now := time.Duration(0)
		var passed []time.Duration
		admit := func() (time.Duration, error) {
			after, err := k.Admit(at(now), "a", 0)
			if err == nil {
				k.Done(at(now), "a", 0)
				passed = append(passed, now)
			} else {
				require.ErrorIs(t, err, queue.ErrRate)
				require.Positive(t, after)
			}
			return after, err
		}
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			now += time.Duration(rapid.Int64Range(0, int64(gap)).Draw(t, "tick"))
			after, err := admit()
			if err != nil && rapid.Bool().Draw(t, "wait") {
				now += after
				_, err := admit()
				require.NoError(t, err, "after %s as told", after)
			}
			if rapid.Bool().Draw(t, "sweep") {
				k.Sweep(at(now))
			}
		}
		for i := range passed {
			for j := i; j < len(passed); j++ {
				length := passed[j] - passed[i]
				require.LessOrEqual(t, float64(j-i+1), float64(limit.Burst)+limit.Rate*length.Seconds()+1e-3)
			}
		}
	})
}

func TestKeysTokens(t *testing.T) {
	k := newKeys(t, queue.KeyLimit{TokensPerMinute: 600}, nil)
	now := time.Unix(1000, 0)
	_, err := k.Admit(now, "a", 30)
	require.NoError(t, err)
	require.Equal(t, queue.Room{Tokens: 70, ResetTokens: 3 * time.Second}, k.Room(now, "a"))
	_, err = k.Admit(now, "a", 60)
	require.NoError(t, err)
	k.Done(now, "a", 40) // it took more than there was
	wait, err := k.Admit(now, "a", 1)
	require.ErrorIs(t, err, queue.ErrTokens)
	require.Equal(t, 3100*time.Millisecond, wait)
	_, err = k.Admit(now.Add(wait), "a", 1)
	require.NoError(t, err)
	k.Done(now.Add(wait), "a", -50)
	k.Done(now.Add(wait), "a", -1000)
	require.EqualValues(t, 100, k.Room(now.Add(wait), "a").Tokens, "no more than ever")
	k.Sweep(now.Add(wait))
	require.NoError(t, k.Set(now.Add(wait), queue.KeyLimit{TokensPerMinute: 60}, nil))
	require.EqualValues(t, 10, k.Room(now.Add(wait), "a").Tokens)
}
