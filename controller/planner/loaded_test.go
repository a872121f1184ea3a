package planner_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/planner"
	"remuda/controller/state"
)

// TestLoadedBesideUnknownMemory: after a load the memory in use of a GPU is not reported, or may be the old pair's. That is not the
// new version's fault: it is not rolled back, and the old pair makes way before the next load.
func TestLoadedBesideUnknownMemory(t *testing.T) {
	t.Parallel()
	for _, class := range []planner.OutcomeClass{planner.MemoryUnknown, planner.MemoryHeld} {
		t.Run(string(class), func(t *testing.T) {
			t.Parallel()
			w := pairsOn(t, 1)
			w.outcome = func(planner.Kind, *state.Replica) planner.OutcomeClass { return planner.Unreachable }
			w.next("h2", paired)
			w.turns(6)
			s := w.only(func(r *state.Replica) bool { return w.hash(r) == "h2" })
			require.True(t, s.Loads())
			w.after(planner.Outcome{Kind: planner.Sleep, Replica: s.Name.String(), Class: class, Error: "asleep, but", Kept: map[string]int64{gpuOf(s): 31}})
			w.outcome = nil
			require.Equal(t, 1, w.counts("m")["serving h1"])
			require.NotEqual(t, state.RolloutRolledBack, w.status())
			for _, g := range w.view().Node(nil, "n0").GPUs {
				require.Empty(t, g.OutOfUse())
			}
			w.until(func() bool { return w.status() == "" })
			w.turns(4)
			require.Equal(t, map[string]int{"serving h2": 1}, w.counts("m"))
			require.Empty(t, w.decisions("m", planner.KindRolledBack))
			require.Equal(t, 3, w.registered, "it is tried once")
			require.Zero(t, w.bridged())
		})
	}
	t.Run("a sleep that is not a load goes COLD", func(t *testing.T) {
		t.Parallel()
		w := deployed(t, 1, "n0")
		w.outcome = func(planner.Kind, *state.Replica) planner.OutcomeClass { return planner.MemoryUnknown }
		w.must(&state.EvictRequest{Model: "m", To: state.GoalWarm, Time: w.now})
		w.turns(8)
		require.Len(t, w.decisions("m", planner.KindSleepFailed), 1)
		require.Empty(t, w.view().Model(nil, "m").Sleeps)
	})
}
