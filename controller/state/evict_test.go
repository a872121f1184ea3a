package state_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/state"
)

var later = epoch.Add(time.Hour)

func evict(replica, model string, edit ...func(*state.EvictRequest)) *state.EvictRequest {
	c := &state.EvictRequest{Replica: replica, Model: model, To: state.GoalGone, Time: later}
	for _, e := range edit {
		e(c)
	}
	return c
}

func force(c *state.EvictRequest) { c.Force = true }

// TestEvictFromEveryStatus expects the status and goal that an eviction leads to.
func TestEvictFromEveryStatus(t *testing.T) {
	for from, want := range map[state.Status]struct {
		to   state.Status
		gone bool // whatever the goal of the eviction is
	}{
		state.StatusPlaced:   {to: state.StatusStopping, gone: true},
		state.StatusStarting: {to: state.StatusStopping, gone: true},
		state.StatusFailed:   {to: state.StatusStopping, gone: true},
		state.StatusServing:  {to: state.StatusDraining},
		state.StatusDraining: {to: state.StatusDraining}, // it was on its way to WARM
		state.StatusSleeping: {to: state.StatusStopping},
		state.StatusWarm:     {to: state.StatusDiscarding},
		state.StatusWaking:   {to: state.StatusStopping},
	} {
		for _, to := range []state.Goal{state.GoalGone, state.GoalCold} {
			t.Run(string(from)+" to "+string(to), func(t *testing.T) {
				l := walk(t, from)
				before := l.replica(name("m", "1"))
				require.False(t, before.Leaving())
				c := evict("m:v:1", "", func(c *state.EvictRequest) { c.To = to })
				l.must(c)
				r := l.replica(name("m", "1"))
				require.Equal(t, want.to, r.Status)
				if want.gone {
					require.Equal(t, state.GoalGone, r.Goal)
				} else {
					require.Equal(t, to, r.Goal)
				}
				if want.to == from {
					require.Equal(t, before.Since, r.Since)
				} else {
					require.Equal(t, later, r.Since)
				}
				require.True(t, r.Leaving())
				require.Equal(t, l.index, r.ModifyIndex)
				want := 0
				if before.Resting() {
					want = 1 // It was no part of the scale.
				}
				require.Equal(t, want, l.model("m").Active().Total())
				require.False(t, l.apply(c).Changed, "it is on its way out already")
			})
		}
	}
	for _, from := range []state.Status{state.StatusStopping, state.StatusDiscarding, state.StatusCold} {
		t.Run(string(from), func(t *testing.T) {
			l := walk(t, from)
			require.True(t, l.replica(name("m", "1")).Leaving())
			for _, c := range []*state.EvictRequest{evict("m:v:1", ""), evict("", "m")} {
				res := l.apply(c)
				require.Nil(t, res.Err)
				require.False(t, res.Changed)
			}
			require.Equal(t, 1, l.model("m").Active().Total())
		})
	}
	require.Len(t, paths, 11, "all stages were tried")
}

func TestEvict(t *testing.T) {
	type spread = map[string]int
	for _, tt := range []struct {
		name    string
		model   func(*state.Model)
		counts  spread
		first   []any
		evict   *state.EvictRequest
		after   string
		staying int
		refused error
		text    string
	}{
		{name: "one", counts: spread{"a": 3, "b": 2}, evict: evict("m:a:1", ""), after: "4", staying: 4},
		{name: "one of a variant with a number", counts: spread{"a": 3, "b": 2}, first: []any{variants(spread{"a": 3})}, evict: evict("m:a:1", ""), after: "2 a=2", staying: 4},
		{name: "one beside such a variant", counts: spread{"a": 3, "b": 2}, first: []any{variants(spread{"a": 3})}, evict: evict("m:b:1", ""), after: "1 a=3", staying: 4},
		{name: "all, with a minimum", counts: spread{"a": 3, "b": 2}, evict: evict("", "m"), refused: state.ErrForbidden, text: "the target is 5 replicas, and 5 fewer would be below min, which is 1: set Force"},
		{name: "all, forced", counts: spread{"a": 3, "b": 2}, evict: evict("", "m", force), after: "1"},
		{name: "all", model: func(m *state.Model) { m.Min = 0 }, counts: spread{"a": 3, "b": 2}, first: []any{variants(spread{"b": 2})}, evict: evict("", "m"), after: "b=0"},
		{name: "at the minimum", model: func(m *state.Model) { m.Min = 5 }, counts: spread{"a": 5}, evict: evict("m:a:0", ""), refused: state.ErrForbidden, text: "the target is 5 replicas, and 1 fewer would be below min, which is 5"},
		{name: "at the minimum, forced", model: func(m *state.Model) { m.Min = 5 }, counts: spread{"a": 5}, evict: evict("m:a:0", "", force), after: "5", staying: 4},
		{name: "at the minimum with numbers, forced", model: func(m *state.Model) { m.Min = 5 }, counts: spread{"a": 3, "b": 2}, first: []any{variants(spread{"a": 3})}, evict: evict("m:a:0", "", force), after: "2 a=3", staying: 4},
		{name: "dedicated", model: func(m *state.Model) { m.Dedicated = true }, counts: spread{"a": 5}, evict: evict("m:a:0", ""), refused: state.ErrForbidden, text: "is dedicated"},
		{name: "dedicated, forced", model: func(m *state.Model) { m.Dedicated = true }, counts: spread{"a": 5}, evict: evict("m:a:0", "", force), after: "4", staying: 4},
		{name: "disabled", model: func(m *state.Model) { m.Management = state.ManagementDisabled }, counts: spread{"a": 5}, evict: evict("m:a:0", ""), refused: state.ErrForbidden, text: "disabled"},
		{name: "disabled, forced", model: func(m *state.Model) { m.Management = state.ManagementDisabled }, counts: spread{"a": 5}, evict: evict("m:a:0", "", force), after: "4", staying: 4},
		{name: "more than there should be", counts: spread{"a": 3, "b": 2}, first: []any{variants(spread{"b": 0}), variants(spread{"a": 2}), variants(spread{"c": 0})}, evict: evict("m:a:0", ""), after: "a=1 b=0 c=0", staying: 4},
		{name: "one that nobody wants", counts: spread{"a": 3, "b": 2}, first: []any{variants(spread{"b": 0})}, evict: evict("m:b:0", ""), after: "3 b=0", staying: 4},
		{name: "stopped", model: func(m *state.Model) { m.Min = 5 }, counts: spread{"a": 3, "b": 2}, first: []any{&state.ScaleRequest{Model: "m", Stopped: ptr(true), Origin: state.OriginOperator}}, evict: evict("", "m"), after: "5"},
		{name: "unknown replica", evict: evict("m:a:9", ""), refused: state.ErrNotFound, text: `"m:a:9"`},
		{name: "unknown model", evict: evict("", "x"), refused: state.ErrNotFound, text: `"x"`},
		{name: "everything wrong", evict: evict("m:a:0", "m", func(c *state.EvictRequest) { c.To, c.Time = state.GoalRun, time.Time{} }), refused: state.ErrBadRequest,
			text: "time is zero: must be the time of the decision\nreplica is \"m:a:0\" and model is \"m\": exactly one must be set\ngoal is \"run\": must be warm, cold or gone"},
		{name: "nothing said", evict: evict("", ""), refused: state.ErrBadRequest, text: "exactly one must be set"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLog(t)
			if tt.model == nil {
				tt.model = func(*state.Model) {}
			}
			l.must(&state.UpsertModel{Model: three(tt.model, func(m *state.Model) { m.Hash = "h" })})
			l.populate(tt.counts)
			l.must(tt.first...)
			before, replicas := l.model("m"), l.store.View().Replicas(nil)
			res := l.apply(tt.evict)
			m := l.model("m")
			if tt.refused != nil {
				require.ErrorIs(t, res.Err, tt.refused)
				require.ErrorContains(t, res.Err, tt.text)
				require.Equal(t, before, m)
				require.Equal(t, replicas, l.store.View().Replicas(nil))
				return
			}
			require.Nil(t, res.Err)
			require.True(t, res.Changed)
			require.Equal(t, tt.after, text(m.Active()))
			require.Equal(t, before.Desired, m.Desired, "what was asked for stays")
			require.Empty(t, m.Displaced.UntilRoom, "an operator sent it away: it does not come back by itself")
			require.Len(t, l.store.View().StayingOf(nil, "m"), tt.staying)
			require.Len(t, l.store.View().ReplicasOf(nil, "m"), len(replicas), "what goes holds its seats until its job has ended")
			if text(m.Active()) == text(before.Active()) {
				require.Equal(t, before.ModifyIndex, m.ModifyIndex)
			} else {
				require.Equal(t, l.index, m.ModifyIndex)
			}
		})
	}
}

// TestEvictAModelThatMadeRoom: what was evicted for another model does not come back for room
// after an operator has evicted its model.
func TestEvictAModelThatMadeRoom(t *testing.T) {
	for _, tt := range []struct {
		evict *state.EvictRequest
		want  state.Displaced
	}{
		{evict("m:v:1", ""), state.Displaced{UntilRoom: state.Any(2), UntilAsked: state.Any(1)}},
		{evict("", "m"), state.Displaced{UntilAsked: state.Any(3)}},
	} {
		l := walk(t, state.StatusServing)
		l.must(&state.Scale{Model: "m", Desired: state.Any(3), Displaced: state.Displaced{UntilRoom: state.Any(2)}, ModifyIndex: l.model("m").ModifyIndex})
		l.must(tt.evict)
		require.Equal(t, tt.want, l.model("m").Displaced)
		require.Equal(t, state.Any(3), l.model("m").Desired)
	}
}

// TestEvictFromAPool displaces one of the pool where no other replica is there for it.
func TestEvictFromAPool(t *testing.T) {
	l := newLog(t)
	own, east := node("own", 2, 2, 10), node("east", 2, 2, 10)
	east.CapacityPool = "east"
	l.must(&state.UpsertModel{Model: model("m", func(m *state.Model) { m.Desired = state.Any(4) })}, &state.UpsertNodes{Nodes: []state.Node{own, east}}, pool("east", 1))
	l.must(l.plan(place("m", "0", "own", 0, 0, 1), place("m", "1", "own", 1, 0, 1), place("m", "2", "east", 0, 0, 1), place("m", "3", "east", 1, 0, 1)))
	l.must(evict("m:v:0", ""))
	require.Equal(t, "2 @east=1", text(l.model("m").Active()), "it was none of them")
	l.must(evict("m:v:2", ""))
	require.Equal(t, "1 @east=1", text(l.model("m").Active()), "there is another one")
	l.must(evict("m:v:3", ""))
	require.Equal(t, "1", text(l.model("m").Active()))
}

// TestEvictedOneCannotBePlacedAnewByAnOlderPlan: the model has changed.
func TestEvictedOneCannotBePlacedAnewByAnOlderPlan(t *testing.T) {
	l := walk(t, state.StatusServing)
	older := l.plan(place("m", "2", "n", 1, 0, 10))
	l.must(evict("m:v:1", ""))
	require.ErrorContains(t, l.apply(older).Err, "after the plan was made")
}

// TestLeavingRestingCounting: each replica is exactly one of them.
func TestLeavingRestingCounting(t *testing.T) {
	want := map[state.Status]string{
		state.StatusPlaced: "counting", state.StatusServing: "counting", state.StatusFailed: "counting", state.StatusSleeping: "resting",
		state.StatusWarm: "resting", state.StatusWaking: "counting", state.StatusStopping: "leaving", state.StatusDiscarding: "leaving", state.StatusCold: "leaving",
	}
	check := func(r *state.Replica, want string) {
		require.Equal(t, want == "leaving", r.Leaving(), "%s, goal %s", r.Status, r.Goal)
		require.Equal(t, want == "resting", r.Resting(), "%s, goal %s", r.Status, r.Goal)
		require.Equal(t, want == "counting", r.Counts(), "%s, goal %s", r.Status, r.Goal)
	}
	for status, what := range want {
		check(walk(t, status).replica(name("m", "1")), what)
	}
	for goal, what := range map[state.Goal]string{state.GoalGone: "leaving", state.GoalCold: "leaving", state.GoalWarm: "resting"} {
		l := walk(t, state.StatusServing)
		l.must(l.move(name("m", "1"), state.EventDrain, goal))
		check(l.replica(name("m", "1")), what)
	}
}
