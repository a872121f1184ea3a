package planner_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/planner"
	"remuda/controller/state"
)

// shares takes 50 bytes, of which replicas of its version on the same GPU share 40.
func shares(v *state.Variant) { v.Memory, v.SharedMemory = 50, 40 }

// sharing is a world of one GPU of 80 bytes with so many idle replicas that share.
func sharing(t *testing.T, replicas int) *world {
	n := node("n0", 1)
	n.GPUs[0].Seats = append(n.GPUs[0].Seats, "n0-GPU0#2", "n0-GPU0#3")
	w := fresh(t)
	w.addNodes(n)
	w.model(model("m", replicas, variant("v", "h1", shares)))
	w.quiet()
	w.later(time.Hour)
	require.Equal(t, map[string]int{"serving": replicas}, w.stages("m"))
	return w
}

func (w *world) taken() int64 { return w.view().Usage(nil, "n0").Memory["n0-GPU0"] }

// TestSharedWeightsAreChargedOnce: as long as one replica is there the weights are charged.
func TestSharedWeightsAreChargedOnce(t *testing.T) {
	t.Parallel()
	w := sharing(t, 4)
	require.EqualValues(t, 40+4*10, w.taken())
	d := w.decisions("m", planner.KindPlace)
	require.Contains(t, d[0].Reason+d[1].Reason, "shares 40 B of weights on each GPU")
	w.scale(1)
	w.quiet()
	require.EqualValues(t, 50, w.taken())
	w.scale(0)
	w.quiet()
	require.Zero(t, w.taken())
}

// TestSharedWeightsWake: a WARM replica needs no room for weights that another one has on its GPU.
func TestSharedWeightsWake(t *testing.T) {
	t.Parallel()
	w := sharing(t, 2)
	require.Nil(t, w.apply(&state.EvictRequest{Replica: w.view().ReplicasOf(nil, "m")[0].Name.String(), To: state.GoalWarm, Force: true, Time: w.now}).Err)
	w.scale(1)
	w.quiet()
	require.Equal(t, map[string]int{"serving": 1, "warm": 1}, w.stages("m"))
	w.model(model("other", 1, variant("v", "o1", func(v *state.Variant) { v.Memory = 20 })))
	w.quiet()
	require.EqualValues(t, 50+20, w.taken())
	w.scale(2)
	w.quiet()
	require.Equal(t, map[string]int{"serving": 2}, w.stages("m"))
	require.EqualValues(t, 80, w.taken())
	require.Empty(t, w.decisions("other", planner.KindEvict))
}

// TestSharedWeightsOfAnotherVersion: they are others, and have no room here.
func TestSharedWeightsOfAnotherVersion(t *testing.T) {
	t.Parallel()
	w := sharing(t, 2)
	w.model(model("m", 2, variant("v", "h2", shares)))
	w.turns(20)
	require.Equal(t, map[string]int{"serving": 2}, w.stages("m"))
	for _, r := range w.view().ReplicasOf(nil, "m") {
		require.Equal(t, 1, r.Version)
	}
	require.EqualValues(t, 60, w.taken())
}

// TestSharedWeightsAreFreedByTheLast: who needs the whole GPU evicts all who share it.
func TestSharedWeightsAreFreedByTheLast(t *testing.T) {
	t.Parallel()
	w := sharing(t, 3)
	w.model(model("b", 1, variant("v", "b1", whole)))
	w.quiet()
	require.Equal(t, map[string]int{"warm": 3}, w.stages("m"))
	require.Equal(t, map[string]int{"serving": 1}, w.stages("b"))
	require.EqualValues(t, 80, w.taken())
}

// TestOneOfThoseThatShareMakesRoom: as many go as are needed, and what they share is not counted as room.
func TestOneOfThoseThatShareMakesRoom(t *testing.T) {
	t.Parallel()
	w := sharing(t, 3)
	w.model(model("b", 1, variant("v", "b1", func(v *state.Variant) { v.Memory = 20 })))
	w.quiet()
	require.Equal(t, map[string]int{"warm": 1, "serving": 2}, w.stages("m"))
	require.EqualValues(t, 80, w.taken())
}
