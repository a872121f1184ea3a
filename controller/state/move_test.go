package state_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/state"
)

// step is a stage and its target.
type step struct {
	tier   state.Tier
	phase  state.Phase
	target state.Tier
}

// paths lead to every stage from a new replica.
var paths = map[state.Stage][]step{
	{Tier: state.Hot, Phase: state.Placed}:   {},
	{Tier: state.Hot, Phase: state.Starting}: {{state.Hot, state.Starting, ""}},
	{Tier: state.Hot, Phase: state.Running}:  {{state.Hot, state.Starting, ""}, {state.Hot, state.Running, ""}},
	{Tier: state.Hot, Phase: state.Draining}: {{state.Hot, state.Starting, ""}, {state.Hot, state.Running, ""}, {state.Hot, state.Draining, state.Warm}},
	{Tier: state.Hot, Phase: state.Sleeping}: {{state.Hot, state.Starting, ""}, {state.Hot, state.Running, ""}, {state.Hot, state.Draining, state.Warm}, {state.Hot, state.Sleeping, state.Warm}},
	{Tier: state.Warm, Phase: state.Running}: {{state.Hot, state.Starting, ""}, {state.Hot, state.Running, ""}, {state.Hot, state.Draining, state.Warm}, {state.Hot, state.Sleeping, state.Warm}, {state.Warm, state.Running, ""}},
	{Tier: state.Warm, Phase: state.Waking}: {{state.Hot, state.Starting, ""}, {state.Hot, state.Running, ""}, {state.Hot, state.Draining, state.Warm}, {state.Hot, state.Sleeping, state.Warm}, {state.Warm, state.Running, ""},
		{state.Warm, state.Waking, state.Hot}},
	{Tier: state.Hot, Phase: state.Failed}:   {{state.Hot, state.Failed, ""}},
	{Tier: state.Hot, Phase: state.Stopping}: {{state.Hot, state.Stopping, state.Cold}},
	{Tier: state.Warm, Phase: state.Stopping}: {{state.Hot, state.Starting, ""}, {state.Hot, state.Running, ""}, {state.Hot, state.Draining, state.Warm}, {state.Hot, state.Sleeping, state.Warm}, {state.Warm, state.Running, ""},
		{state.Warm, state.Stopping, state.Cold}},
	{Tier: state.Cold, Phase: state.Running}: {{state.Hot, state.Stopping, state.Cold}, {state.Cold, state.Running, ""}},
}

// walk takes the replica m:v:1 there.
func walk(t *testing.T, to state.Stage) *log {
	l := ready(t)
	l.must(l.plan(place("m", "1", "n", 0, 0, 10)))
	for _, s := range paths[to] {
		l.must(l.move(name("m", "1"), s.tier, s.phase, s.target))
	}
	require.Equal(t, to, l.replica(name("m", "1")).Stage())
	return l
}

// TestTransitions tries the way from every stage to every other, also to those that
// are none, and expects exactly the transitions of the replica life cycle.
func TestTransitions(t *testing.T) {
	phases := []state.Phase{state.Placed, state.Starting, state.Running, state.Draining, state.Sleeping, state.Waking, state.Stopping, state.Failed, "dancing"}
	want := map[string]string{
		"HOT placed":    "HOT starting, HOT stopping, HOT failed",
		"HOT starting":  "HOT running, HOT stopping, HOT failed",
		"HOT running":   "HOT starting, HOT draining, HOT stopping, HOT failed",
		"HOT draining":  "HOT starting, HOT running, HOT sleeping, HOT stopping, HOT failed",
		"HOT sleeping":  "HOT starting, HOT running, HOT stopping, HOT failed, WARM running",
		"HOT failed":    "HOT placed, HOT starting, HOT running, HOT stopping",
		"HOT stopping":  "COLD running",
		"WARM running":  "HOT starting, WARM waking, WARM stopping",
		"WARM waking":   "HOT starting, HOT running, HOT stopping, HOT failed, WARM running",
		"WARM stopping": "COLD running",
		"COLD running":  "",
	}
	require.Len(t, paths, len(want))
	for from := range paths {
		got := ""
		for _, tier := range []state.Tier{state.Hot, state.Warm, state.Cold, "TEPID"} {
			for _, phase := range phases {
				to := state.Stage{Tier: tier, Phase: phase}
				if to == from {
					continue
				}
				possible := false
				for _, target := range []state.Tier{"", state.Hot, state.Warm, state.Cold} {
					l := walk(t, from)
					res := l.apply(l.move(name("m", "1"), tier, phase, target))
					if res.Err != nil {
						require.ErrorIs(t, res.Err, state.ErrConflict)
						require.Equal(t, from, l.replica(name("m", "1")).Stage())
						continue
					}
					possible = true
				}
				if possible {
					if got != "" {
						got += ", "
					}
					got += to.String()
				}
			}
		}
		require.Equal(t, want[from.String()], got, "from %s", from)
	}
}

func TestHoldings(t *testing.T) {
	for _, tt := range []struct {
		tier      state.Tier
		phase     state.Phase
		seat      bool
		gpu, host int64
		removable bool
	}{
		{state.Hot, state.Placed, true, 10, 0, true},
		{state.Hot, state.Starting, true, 10, 0, false},
		{state.Hot, state.Running, true, 10, 0, false},
		{state.Hot, state.Draining, true, 10, 0, false},
		{state.Hot, state.Sleeping, true, 10, 10, false},
		{state.Warm, state.Running, true, 0, 10, false},
		{state.Warm, state.Waking, true, 10, 10, false},
		{state.Hot, state.Failed, true, 10, 0, false},
		{state.Hot, state.Stopping, true, 10, 0, true},
		{state.Warm, state.Stopping, true, 0, 10, true},
		{state.Cold, state.Running, false, 0, 0, true},
	} {
		s := state.Stage{Tier: tt.tier, Phase: tt.phase}
		t.Run(s.String(), func(t *testing.T) {
			l := walk(t, s)
			u := l.store.View().Usage(nil, "n")
			require.Equal(t, tt.seat, len(u.Seats) == 1)
			require.Equal(t, tt.gpu, u.Memory["n-GPU0"])
			require.Equal(t, tt.host, u.HostMemory)
			r := l.replica(name("m", "1"))
			require.Equal(t, "n", r.Placement.Node)
			require.ErrorIs(t, l.apply(&state.Remove{Replica: "m:v:1", ModifyIndex: r.ModifyIndex - 1}).Err, state.ErrConflict, "stale")
			res := l.apply(&state.Remove{Replica: "m:v:1", ModifyIndex: r.ModifyIndex})
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
	l := walk(t, state.Stage{Tier: state.Hot, Phase: state.Placed})
	c := l.move(name("m", "1"), state.Hot, state.Placed, "")
	c.JobIndex = ptr(uint64(5))
	l.must(c)
	require.ErrorIs(t, l.apply(&state.Remove{Replica: "m:v:1", ModifyIndex: l.index}).Err, state.ErrConflict)
}

func TestMovesAreComparedAndSet(t *testing.T) {
	l := walk(t, state.Stage{Tier: state.Hot, Phase: state.Running})
	stale := l.move(name("m", "1"), state.Hot, state.Draining, state.Warm)
	l.must(l.move(name("m", "1"), state.Hot, state.Failed, ""))
	require.ErrorIs(t, l.apply(stale).Err, state.ErrConflict)
	stale.Replica = "m:v:9"
	require.ErrorIs(t, l.apply(stale).Err, state.ErrNotFound)
}

func TestMoveWritesDetails(t *testing.T) {
	l := walk(t, state.Stage{Tier: state.Hot, Phase: state.Starting})
	since := l.replica(name("m", "1")).Since
	c := l.move(name("m", "1"), state.Hot, state.Starting, "")
	c.Time = epoch.Add(1)
	c.Job, c.JobIndex, c.Canary, c.Failures, c.LastError, c.Retry = ptr("j"), ptr(uint64(4)), ptr(true), ptr(2), ptr("no"), ptr(epoch)
	l.must(c)
	r := l.replica(name("m", "1"))
	require.Equal(t, since, r.Since, "the phase is the same")
	require.Equal(t, []any{"j", uint64(4), true, 2, "no", epoch}, []any{r.Job, r.JobIndex, r.Canary, r.Failures, r.LastError, r.Retry})

	c = l.move(name("m", "1"), state.Hot, state.Starting, "")
	c.Failures = ptr(-1)
	require.ErrorIs(t, l.apply(c).Err, state.ErrBadRequest)
}

// TestWakingNeedsRoom has a WARM replica whose GPU another one uses meanwhile.
func TestWakingNeedsRoom(t *testing.T) {
	l := walk(t, state.Stage{Tier: state.Warm, Phase: state.Running})
	l.must(l.plan(place("m", "2", "n", 0, 1, 1)))
	for _, c := range []*state.Move{
		l.move(name("m", "1"), state.Warm, state.Waking, state.Hot),
		l.move(name("m", "1"), state.Hot, state.Starting, ""),
	} {
		require.ErrorContains(t, l.apply(c).Err, "GPU n-GPU0 on node n has 9 of 10 bytes free")
	}
	l.must(&state.Remove{Replica: "m:v:2", ModifyIndex: l.replica(name("m", "2")).ModifyIndex})

	for _, edit := range []func(*state.Node){
		func(n *state.Node) { n.GPUs[0].Healthy = false },
		func(n *state.Node) { n.LostSince = epoch },
		func(n *state.Node) { n.GPUs = nil },
	} {
		node1(edit)(l)
		require.ErrorIs(t, l.apply(l.move(name("m", "1"), state.Warm, state.Waking, state.Hot)).Err, state.ErrConflict)
	}
	node1(func(*state.Node) {})(l)
	l.must(l.move(name("m", "1"), state.Warm, state.Waking, state.Hot))
	l.must(l.move(name("m", "1"), state.Hot, state.Running, ""))
}

func TestSleepingNeedsHostMemory(t *testing.T) {
	l := walk(t, state.Stage{Tier: state.Warm, Phase: state.Running})
	l.must(l.plan(place("m", "2", "n", 0, 1, 1)))
	l.must(l.move(name("m", "2"), state.Hot, state.Starting, ""))
	l.must(l.move(name("m", "2"), state.Hot, state.Running, ""))
	l.must(l.move(name("m", "2"), state.Hot, state.Draining, state.Warm))
	require.ErrorContains(t, l.apply(l.move(name("m", "2"), state.Hot, state.Sleeping, state.Warm)).Err, "0 bytes of host memory free")
	l.must(l.move(name("m", "2"), state.Hot, state.Stopping, state.Cold))
}
