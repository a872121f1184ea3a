package kept_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/autoscaler-plugin/observe/kept"
)

// source answers how often it was asked.
type source struct {
	asked atomic.Int64
	fail  atomic.Bool
	takes time.Duration
}

var errAway = errors.New("the source is away")

func (s *source) fetch(ctx context.Context, q string) (string, error) {
	n := s.asked.Add(1)
	select {
	case <-time.After(s.takes):
	case <-ctx.Done():
		return "", ctx.Err()
	}
	if s.fail.Load() {
		return "", errAway
	}
	return fmt.Sprintf("%s%d", q, n), nil
}

func (s *source) cache(t *testing.T, change func(*kept.Config[string, string])) *kept.Cache[string, string] {
	t.Helper()
	cfg := kept.Config[string, string]{Fetch: s.fetch, Every: 4 * time.Second, MaxAge: 9 * time.Second, IdleAfter: time.Minute,
		Timeout: 3 * time.Second, Pause: time.Second, Concurrency: 2, MaxKeys: 10}
	if change != nil {
		change(&cfg)
	}
	c, err := kept.New(cfg)
	require.NoError(t, err)
	return c
}

func run(t *testing.T, c *kept.Cache[string, string]) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
	})
}

func get(t *testing.T, c *kept.Cache[string, string], key string) string {
	t.Helper()
	v, err := c.Get(t.Context(), key, key)
	require.NoError(t, err)
	return v
}

func TestAnAnswerIsKeptUntilItIsTooOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{}
		c := s.cache(t, nil)
		require.Equal(t, "m1", get(t, c, "m"))
		time.Sleep(9 * time.Second)
		require.Equal(t, "m1", get(t, c, "m"))
		time.Sleep(time.Millisecond)
		require.Equal(t, "m2", get(t, c, "m"))
	})
}

func TestWhatIsWantedIsAskedForAgainInTheBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{takes: time.Second}
		c := s.cache(t, nil)
		run(t, c)
		get(t, c, "m")
		for range 5 {
			time.Sleep(10 * time.Second)
			begun := time.Now()
			get(t, c, "m")
			require.Zero(t, time.Since(begun), "who asks regularly does not wait")
		}
		before := s.asked.Load()
		require.GreaterOrEqual(t, before, int64(10))
		time.Sleep(2 * time.Minute)
		require.Zero(t, c.Len(), "nobody asked for it any more")
		require.LessOrEqual(t, s.asked.Load()-before, int64(17), "for a minute it was asked for on")
	})
}

func TestAFailureIsRememberedForAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{}
		s.fail.Store(true)
		c := s.cache(t, nil)
		for range 3 {
			_, err := c.Get(t.Context(), "m", "m")
			require.ErrorIs(t, err, errAway)
		}
		require.Equal(t, int64(1), s.asked.Load())
		s.fail.Store(false)
		time.Sleep(time.Second)
		require.Equal(t, "m2", get(t, c, "m"))
	})
}

func TestAFailureInTheBackgroundLeavesTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{}
		c := s.cache(t, nil)
		run(t, c)
		get(t, c, "m")
		s.fail.Store(true)
		time.Sleep(9 * time.Second)
		require.Equal(t, "m1", get(t, c, "m"))
		time.Sleep(time.Second)
		_, err := c.Get(t.Context(), "m", "m")
		require.ErrorIs(t, err, errAway)
	})
}

func TestOneAsksForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{takes: time.Second}
		c := s.cache(t, nil)
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				v, err := c.Get(t.Context(), "m", "m")
				if err != nil || v != "m1" {
					t.Errorf("got %q, %v", v, err)
				}
			})
		}
		all.Wait()
		require.Equal(t, int64(1), s.asked.Load())
	})
}

func TestWhoGivesUpIsNoFailureForTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{takes: 2 * time.Second}
		c := s.cache(t, nil)
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var first, second error
		var all sync.WaitGroup
		all.Go(func() { _, first = c.Get(short, "m", "m") })
		synctest.Wait()
		all.Go(func() { _, second = c.Get(t.Context(), "m", "m") })
		all.Wait()
		require.ErrorIs(t, first, context.DeadlineExceeded)
		require.NoError(t, second)
	})
}

func TestAQuestionHasATimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{takes: time.Hour}
		c := s.cache(t, nil)
		begun := time.Now()
		_, err := c.Get(t.Context(), "m", "m")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 3*time.Second, time.Since(begun))
	})
}

func TestKeysBeyondTheLimitAreAnsweredAndNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{}
		c := s.cache(t, func(cfg *kept.Config[string, string]) { cfg.MaxKeys = 1 })
		get(t, c, "a")
		require.Equal(t, "b2", get(t, c, "b"))
		require.Equal(t, "b3", get(t, c, "b"))
		require.Equal(t, "a1", get(t, c, "a"))
		time.Sleep(2 * time.Minute)
		require.Equal(t, "b4", get(t, c, "b"), "a is idle and makes room")
		require.Equal(t, "b4", get(t, c, "b"))
	})
}

func TestClockJumps(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		by   time.Duration
		want string
	}{
		"a little":  {9 * time.Second, "m1"},
		"forward":   {time.Hour, "m2"},
		"backwards": {-time.Hour, "m2"},
	} {
		t.Run(name, func(t *testing.T) {
			s, clock := &source{}, now
			cache := s.cache(t, func(cfg *kept.Config[string, string]) { cfg.Now = func() time.Time { return clock } })
			get(t, cache, "m")
			clock = clock.Add(c.by)
			require.Equal(t, c.want, get(t, cache, "m"))
			require.Equal(t, c.want, get(t, cache, "m"))
		})
	}
}

func TestNewNamesEveryBadField(t *testing.T) {
	_, err := kept.New(kept.Config[string, string]{})
	for _, field := range []string{"fetch", "every", "max age", "idle after", "timeout", "pause", "concurrency", "max keys"} {
		require.ErrorContains(t, err, field)
	}
}
