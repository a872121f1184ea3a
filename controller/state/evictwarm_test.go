package state_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/state"
)

func toWarm(c *state.EvictRequest) { c.To = state.GoalWarm }

// TestEvictToWarmFromEveryStatus expects what becomes of the only replica, and why it is
// refused where it is.
func TestEvictToWarmFromEveryStatus(t *testing.T) {
	const never, waking = "only a serving replica can go WARM", "wait until it serves, or evict it to COLD"
	want := map[state.Status]string{
		state.StatusPlaced:     never,
		state.StatusStarting:   never,
		state.StatusFailed:     never,
		state.StatusWaking:     waking,
		state.StatusDraining:   "", // on its way to WARM
		state.StatusSleeping:   "",
		state.StatusWarm:       "",
		state.StatusStopping:   "", // on its way out
		state.StatusDiscarding: "",
		state.StatusCold:       "",
	}
	for from := range paths {
		t.Run(string(from), func(t *testing.T) {
			l := walk(t, from)
			before := l.replica(name("m", "1"))
			if from == state.StatusServing {
				l.must(evict("m:v:1", "", toWarm))
				r := l.replica(name("m", "1"))
				require.Equal(t, state.StatusDraining, r.Status)
				require.Equal(t, state.GoalWarm, r.Goal)
				require.Equal(t, later, r.Since)
				require.Equal(t, 0, l.model("m").Active().Total())
				require.False(t, l.apply(evict("m:v:1", "", toWarm)).Changed, "it is on its way already")
				return
			}
			text, ok := want[from]
			require.True(t, ok)
			res := l.apply(evict("m:v:1", "", toWarm))
			if text != "" {
				require.ErrorIs(t, res.Err, state.ErrConflict)
				require.ErrorContains(t, res.Err, text)
				require.ErrorContains(t, res.Err, string(from))
			} else {
				require.Nil(t, res.Err)
			}
			require.False(t, res.Changed)
			res = l.apply(evict("", "m", toWarm))
			require.Nil(t, res.Err, "with its model, it is left alone")
			require.False(t, res.Changed)
			require.Equal(t, before, l.replica(name("m", "1")))
			require.Equal(t, 1, l.model("m").Active().Total())
		})
	}
}

// TestEvictAModelToWarm has a replica that serves, one that starts, one that is WARM.
func TestEvictAModelToWarm(t *testing.T) {
	start := func(least int) *log {
		l := newLog(t)
		l.must(&state.UpsertModel{Model: model("m", func(m *state.Model) { m.Min, m.Desired = least, state.Any(2) })}, &state.UpsertNodes{Nodes: []state.Node{node("n", 3, 2, 10)}})
		for i := range 3 {
			p := place("m", fmt.Sprint(i), "n", i, 0, 5)
			p.Placement.HostMemory = 2
			l.must(l.plan(p))
			l.to(fmt.Sprint(i), state.EventStarted, "")
		}
		l.to("0", state.EventServing, "")
		l.to("2", state.EventServing, "")
		l.sleep("2")
		return l
	}
	l := start(1)
	l.must(evict("", "m", toWarm))
	require.Equal(t, []state.Goal{state.GoalWarm, state.GoalRun, state.GoalWarm}, []state.Goal{l.replica(name("m", "0")).Goal, l.replica(name("m", "1")).Goal, l.replica(name("m", "2")).Goal})
	require.Equal(t, 1, l.model("m").Active().Total())

	l = start(2)
	require.ErrorContains(t, l.apply(evict("", "m", toWarm)).Err, "the target is 2 replicas, and 1 fewer would be below min, which is 2")
	res := l.apply(evict("", "m", toWarm, force))
	require.ErrorIs(t, res.Err, state.ErrForbidden)
	require.ErrorContains(t, res.Err, "would be below min, which is 2: a replica that goes WARM would serve again at once: lower min in the model file, or evict it to COLD")
	require.Equal(t, state.StatusServing, l.replica(name("m", "0")).Status)
	l.must(evict("", "m", force))
	require.Equal(t, 2, l.model("m").Active().Total())

	// What is WARM is no part of the scale: sending it on is no matter of the minimum.
	l = start(2)
	l.must(evict("m:v:2", "", func(c *state.EvictRequest) { c.To = state.GoalCold }))
	require.Equal(t, 2, l.model("m").Active().Total())
	require.Equal(t, state.StatusDiscarding, l.replica(name("m", "2")).Status)
}

func TestCordonHasAReason(t *testing.T) {
	l := ready(t)
	gpu := func() state.GPU { return l.store.View().Node(nil, "n").GPUs[1] }
	on := func(reason string) *state.Cordon {
		return &state.Cordon{Node: "n", GPU: "n-GPU1", On: true, Reason: reason}
	}
	l.must(on(""), on("5 GiB were not given back"))
	require.Equal(t, "5 GiB were not given back", gpu().CordonReason)
	require.False(t, l.apply(on("another one")).Changed, "the first reason stays")
	require.False(t, l.apply(on("")).Changed)

	// Nomad knows nothing of it, and cannot say so either.
	fresh := node("n", 2, 2, 11)
	fresh.GPUs[0].Cordoned, fresh.GPUs[0].CordonReason = true, "so Nomad says"
	l.must(&state.UpsertNodes{Nodes: []state.Node{fresh}})
	require.Equal(t, "5 GiB were not given back", gpu().CordonReason)
	require.Empty(t, l.store.View().Node(nil, "n").GPUs[0].CordonReason)
	l.must(&state.UpsertNodes{Nodes: []state.Node{node("n", 1, 2, 11)}})
	require.Equal(t, "5 GiB were not given back", gpu().CordonReason, "while it is not offered")

	require.ErrorContains(t, l.apply(on(string(make([]byte, 5000)))).Err, "reason is 5000 bytes")
	l.must(&state.Cordon{Node: "n", GPU: "n-GPU1", Reason: "all good"})
	require.Nil(t, l.store.View().Node(nil, "n").GPU("n-GPU1").Seats)
	require.False(t, gpu().Cordoned)
	require.Empty(t, gpu().CordonReason)
}

// TestCordonOfANode: a node stands for the GPUs that it has.
func TestCordonOfANode(t *testing.T) {
	l := ready(t)
	l.must(&state.Cordon{Node: "n", GPU: "n-GPU1", On: true, Reason: "5 GiB were not given back"})
	l.must(&state.Cordon{Node: "n", On: true, Reason: "new fans"})
	n := l.store.View().Node(nil, "n")
	require.True(t, n.GPU("n-GPU0").Cordoned)
	require.Equal(t, "new fans", n.GPU("n-GPU0").CordonReason)
	require.Equal(t, "5 GiB were not given back", n.GPU("n-GPU1").CordonReason, "the first reason stays")
	require.False(t, l.apply(&state.Cordon{Node: "n", On: true, Reason: "another one"}).Changed)
	l.must(&state.Cordon{Node: "n"})
	for _, g := range l.store.View().Node(nil, "n").GPUs {
		require.False(t, g.Cordoned)
		require.Empty(t, g.CordonReason)
	}
}
