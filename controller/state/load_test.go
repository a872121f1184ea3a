package state_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/state"
)

// loading is wide with another replica that loads to become WARM on GPU1, with 3 bytes.
func loading(t *testing.T) *log {
	l := wide(t)
	p := widePlace("2", 1, 1)
	p.Placement.LoadMemory = 3
	l.must(l.plan(p))
	return l
}

func TestOneThatLoadsToSleep(t *testing.T) {
	l := loading(t)
	r := l.store.View().Replica(nil, name("m", "2").String())
	require.Equal(t, []any{state.GoalWarm, state.StatusPlaced, true}, []any{r.Goal, r.Status, r.Loads()})
	require.True(t, r.Resting())
	require.False(t, r.Counts())
	require.Equal(t, [3]int64{8, 3, 4}, l.bytesOf())
	require.Error(t, l.apply(l.move(name("m", "2"), state.EventStarted, state.GoalRun)).Err)
	l.to("2", state.EventStarted, "")
	require.ErrorContains(t, l.apply(l.move(name("m", "2"), state.EventServing, "")).Err, "cannot become serving")
	require.Equal(t, [3]int64{8, 3, 4}, l.bytesOf())
	l.to("2", state.EventSlept, "")
	require.Equal(t, [3]int64{8, 2, 4}, l.bytesOf())
	require.False(t, l.store.View().Replica(nil, name("m", "2").String()).Loads())
	l.to("2", state.EventWake, "")
	require.Equal(t, [3]int64{8, 8, 4}, l.bytesOf())
	l.to("2", state.EventServing, "")
	require.Equal(t, [3]int64{8, 8, 0}, l.bytesOf())
}

func TestOneThatLoadsToSleepEnds(t *testing.T) {
	l := loading(t)
	l.to("2", state.EventStarted, "")
	l.to("2", state.EventFailed, "")
	require.Equal(t, [3]int64{8, 3, 4}, l.bytesOf())
	l.to("2", state.EventRetry, "")
	require.Equal(t, state.GoalWarm, l.store.View().Replica(nil, name("m", "2").String()).Goal)
	l.to("2", state.EventStop, state.GoalGone)
	require.Equal(t, [3]int64{8, 3, 4}, l.bytesOf(), "until its job has ended")
}

func TestOneThatServesDoesNotSleepAtOnce(t *testing.T) {
	l := wide(t)
	l.to("1", state.EventStarted, "")
	require.ErrorContains(t, l.apply(l.move(name("m", "1"), state.EventSlept, "")).Err, "cannot become warm")
}

func TestMemoryToLoadWith(t *testing.T) {
	l := wide(t)
	for _, load := range []int64{-1, 1, 9} {
		p := widePlace("2", 1, 1)
		p.Placement.LoadMemory = load
		require.ErrorContains(t, l.apply(l.plan(p)).Err, "to load with")
	}
	p := widePlace("2", 1, 1)
	p.Placement.LoadMemory, p.Adopt, p.Status = 3, true, state.StatusStarting
	require.ErrorContains(t, l.apply(l.plan(p)).Err, "to load with")
}
