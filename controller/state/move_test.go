package state_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/state"
)

// step is an event with its goal.
type step struct {
	event state.Event
	goal  state.Goal
}

// paths lead to every status from a new replica.
var paths = map[state.Status][]step{
	state.StatusPlaced:   {},
	state.StatusStarting: {{state.EventStarted, ""}},
	state.StatusServing:  {{state.EventStarted, ""}, {state.EventServing, ""}},
	state.StatusDraining: {{state.EventStarted, ""}, {state.EventServing, ""}, {state.EventDrain, state.GoalWarm}},
	state.StatusSleeping: {{state.EventStarted, ""}, {state.EventServing, ""}, {state.EventDrain, state.GoalWarm}, {state.EventSleep, ""}},
	state.StatusWarm:     {{state.EventStarted, ""}, {state.EventServing, ""}, {state.EventDrain, state.GoalWarm}, {state.EventSleep, ""}, {state.EventSlept, ""}},
	state.StatusWaking: {{state.EventStarted, ""}, {state.EventServing, ""}, {state.EventDrain, state.GoalWarm}, {state.EventSleep, ""}, {state.EventSlept, ""},
		{state.EventWake, ""}},
	state.StatusFailed:   {{state.EventFailed, ""}},
	state.StatusStopping: {{state.EventStop, state.GoalCold}},
	state.StatusDiscarding: {{state.EventStarted, ""}, {state.EventServing, ""}, {state.EventDrain, state.GoalWarm}, {state.EventSleep, ""}, {state.EventSlept, ""},
		{state.EventStop, state.GoalCold}},
	state.StatusCold: {{state.EventStop, state.GoalCold}, {state.EventStopped, ""}},
}

// walk takes the replica m:v:1 there.
func walk(t *testing.T, to state.Status) *log {
	l := ready(t)
	l.must(l.plan(place("m", "1", "n", 0, 0, 10)))
	for _, s := range paths[to] {
		l.must(l.move(name("m", "1"), s.event, s.goal))
	}
	require.Equal(t, to, l.replica(name("m", "1")).Status)
	return l
}

// TestTransitions tries every event with every goal in every status, also unknown ones, and
// expects exactly the transitions of a replica's life.
func TestTransitions(t *testing.T) {
	statuses := []state.Status{
		state.StatusPlaced, state.StatusStarting, state.StatusServing, state.StatusDraining, state.StatusSleeping, state.StatusWarm,
		state.StatusWaking, state.StatusStopping, state.StatusDiscarding, state.StatusCold, state.StatusFailed,
	}
	events := []state.Event{
		state.EventStarted, state.EventServing, state.EventDrain, state.EventSleep, state.EventSlept, state.EventWake, state.EventStop,
		state.EventStopped, state.EventFailed, state.EventRetry, "dance",
	}
	want := map[state.Status]string{
		state.StatusPlaced:     "starting, stopping, failed",
		state.StatusStarting:   "serving, stopping, failed",
		state.StatusServing:    "starting, draining, stopping, failed",
		state.StatusDraining:   "starting, serving, draining, sleeping, stopping, failed",
		state.StatusSleeping:   "starting, serving, warm, stopping, failed",
		state.StatusWarm:       "starting, waking, discarding",
		state.StatusWaking:     "starting, serving, warm, stopping, failed",
		state.StatusStopping:   "stopping, cold",
		state.StatusDiscarding: "discarding, cold",
		state.StatusCold:       "",
		state.StatusFailed:     "placed, starting, serving, stopping",
	}
	require.Len(t, paths, len(statuses))
	for _, from := range statuses {
		reached := map[state.Status]bool{}
		for _, event := range events {
			for _, goal := range []state.Goal{"", state.GoalRun, state.GoalWarm, state.GoalCold, state.GoalGone, "lie down"} {
				l := walk(t, from)
				before := l.replica(name("m", "1"))
				res := l.apply(l.move(name("m", "1"), event, goal))
				r := l.replica(name("m", "1"))
				if res.Err != nil {
					require.ErrorIs(t, res.Err, state.ErrConflict)
					require.Equal(t, before, r)
					continue
				}
				reached[r.Status] = true
				if goal != "" {
					require.Equal(t, goal, r.Goal)
				}
			}
		}
		var got []string
		for _, s := range statuses {
			if reached[s] {
				got = append(got, string(s))
			}
		}
		require.ElementsMatch(t, strings.FieldsFunc(want[from], func(c rune) bool { return c == ',' || c == ' ' }), got, "from %s", from)
	}
}

func TestHoldings(t *testing.T) {
	for _, tt := range []struct {
		status    state.Status
		seat      bool
		gpu, host int64
		removable bool
	}{
		{state.StatusPlaced, true, 10, 0, true},
		{state.StatusStarting, true, 10, 0, false},
		{state.StatusServing, true, 10, 0, false},
		{state.StatusDraining, true, 10, 0, false},
		{state.StatusSleeping, true, 10, 10, false},
		{state.StatusWarm, true, 0, 10, false},
		{state.StatusWaking, true, 10, 10, false},
		{state.StatusFailed, true, 10, 0, false},
		{state.StatusStopping, true, 10, 0, true},
		{state.StatusDiscarding, true, 0, 10, true},
		{state.StatusCold, false, 0, 0, true},
	} {
		t.Run(string(tt.status), func(t *testing.T) {
			l := walk(t, tt.status)
			u := l.store.View().Usage(nil, "n")
			require.Equal(t, tt.seat, len(u.Seats) == 1)
			require.Equal(t, tt.gpu, u.Memory["n-GPU0"])
			require.Equal(t, tt.host, u.HostMemory)
			r := l.replica(name("m", "1"))
			require.Equal(t, "n", r.Placement.Node)
			require.ErrorIs(t, l.apply(&state.Plan{ID: "p", Remove: []state.Remove{{Replica: "m:v:1", ModifyIndex: r.ModifyIndex - 1}}}).Err, state.ErrConflict, "stale")
			res := l.apply(&state.Plan{ID: "p", Remove: []state.Remove{{Replica: "m:v:1", ModifyIndex: r.ModifyIndex}}})
			if tt.removable {
				require.Nil(t, res.Err)
				require.Empty(t, l.store.View().Usage(nil, "n").Seats)
			} else {
				require.ErrorIs(t, res.Err, state.ErrConflict)
			}
		})
	}
}

func TestARegisteredJobIsNotForgotten(t *testing.T) {
	l := walk(t, state.StatusPlaced)
	c := l.move(name("m", "1"), "", "")
	c.JobIndex = ptr(uint64(5))
	l.must(c)
	require.ErrorIs(t, l.apply(&state.Plan{ID: "p", Remove: []state.Remove{{Replica: "m:v:1", ModifyIndex: l.index}}}).Err, state.ErrConflict)
}

func TestMovesAreComparedAndSet(t *testing.T) {
	l := walk(t, state.StatusServing)
	stale := l.move(name("m", "1"), state.EventDrain, state.GoalWarm)
	l.must(l.move(name("m", "1"), state.EventFailed, ""))
	require.ErrorIs(t, l.apply(stale).Err, state.ErrConflict)
	stale.Replica = "m:v:9"
	require.ErrorIs(t, l.apply(stale).Err, state.ErrNotFound)
}

func TestMoveWritesDetails(t *testing.T) {
	l := walk(t, state.StatusStarting)
	since := l.replica(name("m", "1")).Since
	c := l.move(name("m", "1"), "", "")
	c.Time = epoch.Add(1)
	c.JobIndex, c.Canary, c.Failures, c.LastError, c.RetryAt = ptr(uint64(4)), ptr(true), ptr(2), ptr("no"), ptr(epoch)
	l.must(c)
	r := l.replica(name("m", "1"))
	require.Equal(t, since, r.Since, "the status is the same")
	require.Equal(t, []any{uint64(4), true, 2, "no", epoch}, []any{r.JobIndex, r.Canary, r.Failures, r.LastError, r.RetryAt})

	c = l.move(name("m", "1"), "", "")
	c.Failures = ptr(-1)
	require.ErrorIs(t, l.apply(c).Err, state.ErrBadRequest)
}

// TestWakingNeedsRoom has a WARM replica whose GPU another one uses meanwhile.
func TestWakingNeedsRoom(t *testing.T) {
	l := walk(t, state.StatusWarm)
	l.must(l.plan(place("m", "2", "n", 0, 1, 1)))
	for _, c := range []*state.Move{
		l.move(name("m", "1"), state.EventWake, ""),
		l.move(name("m", "1"), state.EventStarted, ""),
	} {
		require.ErrorContains(t, l.apply(c).Err, "GPU n-GPU0 on node n has 9 of 10 bytes free")
	}
	l.must(&state.Plan{ID: "p", Remove: []state.Remove{{Replica: "m:v:2", ModifyIndex: l.replica(name("m", "2")).ModifyIndex}}})

	for _, edit := range []func(*state.Node){
		func(n *state.Node) { n.GPUs[0].Healthy = false },
		func(n *state.Node) { n.DownSince = epoch },
		func(n *state.Node) { n.GPUs = nil },
	} {
		node1(edit)(l)
		require.ErrorIs(t, l.apply(l.move(name("m", "1"), state.EventWake, "")).Err, state.ErrConflict)
	}
	node1(func(*state.Node) {})(l)
	l.must(l.move(name("m", "1"), state.EventWake, ""))
	l.must(l.move(name("m", "1"), state.EventServing, ""))
}

func TestSleepingNeedsHostMemory(t *testing.T) {
	l := walk(t, state.StatusWarm)
	l.must(l.plan(place("m", "2", "n", 0, 1, 1)))
	l.must(l.move(name("m", "2"), state.EventStarted, ""))
	l.must(l.move(name("m", "2"), state.EventServing, ""))
	l.must(l.move(name("m", "2"), state.EventDrain, state.GoalWarm))
	require.ErrorContains(t, l.apply(l.move(name("m", "2"), state.EventSleep, "")).Err, "0 bytes of host memory free")
	l.must(l.move(name("m", "2"), state.EventStop, state.GoalCold))
}
