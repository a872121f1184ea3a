package planner_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/planner"
	"remuda/controller/state"
)

// reserve is a world in which a model has one replica that serves and keeps one WARM, on two nodes of one
// GPU each unless others are given.
func reserve(t *testing.T, edit func(*state.Model), nodes ...state.Node) *world {
	w := fresh(t)
	if len(nodes) == 0 {
		nodes = []state.Node{node("n0", 1), node("n1", 1)}
	}
	w.addNodes(nodes...)
	m := model("m", 1, variant("a", "h1", whole))
	m.KeepWarm = 1
	if edit != nil {
		edit(&m)
	}
	w.model(m)
	w.quiet()
	return w
}

// dies kills the engine of a replica, which loads for so long.
func (w *world) dies(r *state.Replica, load time.Duration) {
	w.nomad[r.Name.String()].serves = w.now.Add(load)
}

func TestReserve(t *testing.T) {
	t.Parallel()
	w := reserve(t, nil)
	require.Equal(t, map[string]int{"serving": 1, "warm": 1}, w.stages("m"))
	serves, rests := w.oneOf("m", state.StatusServing), w.oneOf("m", state.StatusWarm)
	require.NotEqual(t, serves.Placement.Node, rests.Placement.Node)
	require.Equal(t, "loads to be kept WARM: 0 of 1 are", w.decisions("m", planner.KindReserve)[0].Reason)
	require.Equal(t, 1, w.replicas("m"), "the scale is what it was")

	// Its engine dies, and needs ten minutes to load again. The other one stands in meanwhile.
	w.dies(serves, 10*time.Minute)
	w.turns(8)
	require.Equal(t, map[string]int{"serving": 2}, w.stages("m"))
	require.Len(t, w.decisions("m", planner.KindStandIn), 1)
	require.Equal(t, rests.Name.String(), w.decisions("m", planner.KindStandIn)[0].Replica)
	w.now = w.now.Add(10 * time.Minute)
	w.quiet()
	require.Equal(t, map[string]int{"serving": 1, "warm": 1}, w.stages("m"))
	require.Len(t, w.decisions("m", planner.KindReserve), 1, "none was started for it")

	// The node of the one that serves is lost for good.
	lost := w.oneOf("m", state.StatusServing)
	stays := w.oneOf("m", state.StatusWarm)
	w.down[lost.Placement.Node] = true
	w.setNode(lost.Placement.Node, func(n *state.Node) { n.Ready, n.DownSince = false, w.now })
	w.quiet()
	require.Equal(t, state.StatusServing, w.view().Replica(nil, stays.Name.String()).Status, "long before the node is given up")
	w.setNode(lost.Placement.Node, func(n *state.Node) { n.WrittenOff = true })
	w.quiet()
	require.Equal(t, map[string]int{"serving": 1}, w.stages("m"))
	require.Nil(t, w.view().Replica(nil, lost.Name.String()))

	// Another node comes.
	w.addNodes(node("n2", 1))
	w.later(w.conf.ThrashWindow)
	require.Equal(t, map[string]int{"serving": 1, "warm": 1}, w.stages("m"))
}

// TestReservesThatLoadUnequallyLong: the one that serves first goes WARM, and the other one loads on.
func TestReservesThatLoadUnequallyLong(t *testing.T) {
	t.Parallel()
	w := reserve(t, func(m *state.Model) { m.KeepWarm = 2 }, node("n0", 1))
	w.addNodes(node("n1", 1), node("n2", 1))
	w.turns(2) // their tasks run
	require.Equal(t, map[string]int{"serving": 1, "starting": 2}, w.stages("m"))
	slow := w.view().ReplicasOf(nil, "m")[slices.IndexFunc(w.view().ReplicasOf(nil, "m"), func(r *state.Replica) bool { return r.Status == state.StatusStarting })]
	w.dies(slow, 10*time.Minute)
	w.turns(60)
	require.Equal(t, map[string]int{"serving": 1, "warm": 1, "starting": 1}, w.stages("m"))
	require.Equal(t, slow.Name, w.oneOf("m", state.StatusStarting).Name)
	w.now = w.now.Add(10 * time.Minute)
	w.quiet()
	require.Equal(t, map[string]int{"serving": 1, "warm": 2}, w.stages("m"))
	require.Len(t, w.decisions("m", planner.KindReserve), 2)
}

// On a single node the reserve is placed on another GPU. It shares the GPU if the node has only one.
func TestReserveOnOtherGPUs(t *testing.T) {
	t.Parallel()
	small := func(m *state.Model) { m.Variants[0].Memory = 30 }
	for gpus, apart := range map[int]bool{1: false, 2: true} {
		w := reserve(t, small, node("n0", gpus))
		require.Equal(t, map[string]int{"serving": 1, "warm": 1}, w.stages("m"))
		gpuOf := func(r *state.Replica) string {
			gpu, _, _ := strings.Cut(r.Placement.Seats[0], "#")
			return gpu
		}
		serves, rests := gpuOf(w.oneOf("m", state.StatusServing)), gpuOf(w.oneOf("m", state.StatusWarm))
		require.Equal(t, apart, serves != rests, "%s and %s", serves, rests)
	}
}

// A failover of a pair takes less than StandInAfter: nothing is woken for it.
func TestNoStandInForAMoment(t *testing.T) {
	t.Parallel()
	w := reserve(t, nil)
	serves := w.oneOf("m", state.StatusServing)
	w.passedAt = map[string]time.Time{serves.Name.String(): w.now}
	w.dies(serves, w.conf.StandInAfter-1)
	w.round()
	w.now = w.now.Add(w.conf.StandInAfter - 1)
	w.quiet()
	require.Equal(t, map[string]int{"serving": 1, "warm": 1}, w.stages("m"))
	require.Empty(t, w.decisions("m", planner.KindStandIn))
}

// A replica that wakes is in the state as serving before Consul shows its engine. Nothing is woken beside it,
// although that engine was last seen to pass before it slept.
func TestNoStandInForAWake(t *testing.T) {
	t.Parallel()
	for lag, want := range map[time.Duration]int{-1: 0, time.Minute: 1} {
		w := reserve(t, func(m *state.Model) { m.KeepWarm = 2 }, node("n0", 1), node("n1", 1), node("n2", 1))
		require.Equal(t, map[string]int{"serving": 1, "warm": 2}, w.stages("m"))
		w.passedAt, w.unseen = map[string]time.Time{}, w.conf.StandInAfter+lag
		for _, r := range w.view().ReplicasOf(nil, "m") {
			if r.Status == state.StatusWarm {
				w.passedAt[r.Name.String()] = w.now
			}
		}
		w.now = w.now.Add(time.Hour)
		w.scale(2)
		for range 12 {
			w.round()
		}
		require.Equal(t, 2, w.stages("m")["serving"], "the state says so")
		w.now = w.now.Add(w.conf.StandInAfter - 1)
		w.round()
		require.Empty(t, w.decisions("m", planner.KindStandIn))
		w.turns(12)
		require.Len(t, w.decisions("m", planner.KindStandIn), want)
	}
}

// A replica whose engine is dead ends as surplus: after a scale-down, and once a WARM one stands in for it
// in a model without keep_warm.
func TestAbsentReplicaIsSurplus(t *testing.T) {
	t.Parallel()
	for target := range 2 {
		w := deployed(t, target+1, "n0")
		w.dies(w.view().ReplicasOf(nil, "m")[0], time.Hour)
		w.turns(4)
		w.scale(target)
		w.quiet()
		require.Len(t, w.view().ReplicasOf(nil, "m"), target)
	}
	w := reserve(t, nil)
	m := model("m", 1, variant("a", "h1", whole))
	m.Hash = "another file"
	w.model(m)
	require.Zero(t, w.view().Model(nil, "m").KeepWarm)
	rests := w.oneOf("m", state.StatusWarm)
	w.dies(w.oneOf("m", state.StatusServing), time.Hour)
	w.quiet()
	require.Equal(t, rests.Name, w.oneOf("m", state.StatusServing).Name)
	require.Len(t, w.view().ReplicasOf(nil, "m"), 1)
}

// What another model needs is not taken for a reserve, and an engine that cannot sleep has none.
func TestNoReserve(t *testing.T) {
	t.Parallel()
	w := reserve(t, nil, node("n0", 1))
	require.Equal(t, map[string]int{"serving": 1}, w.stages("m"), "nothing makes room for it")
	w.addNodes(node("n1", 1))
	w.model(model("other", 1, variant("b", "h2", whole)))
	w.quiet()
	require.Equal(t, map[string]int{"serving": 1}, w.stages("other"), "what is missing comes first")
	require.Equal(t, map[string]int{"serving": 1}, w.stages("m"))

	w = fresh(t, "n0", "n1")
	m := model("m", 1, variant("a", "h1"))
	m.KeepWarm = 1
	w.outcome = func(kind planner.Kind, _ *state.Replica) planner.OutcomeClass {
		if kind == planner.Sleep {
			return planner.CannotSleep
		}
		return planner.Done
	}
	w.model(m)
	w.quiet()
	require.Len(t, w.decisions("m", planner.KindReserve), 1)
	require.Equal(t, 1, w.stages("m")["serving"])
	w.later(2 * w.conf.ThrashWindow)
	require.Len(t, w.decisions("m", planner.KindReserve), 1, "it is not tried again")
}

// Idle WARM replicas go COLD, but for those that are kept.
func TestReserveStaysWarm(t *testing.T) {
	t.Parallel()
	w := reserve(t, func(m *state.Model) { m.IdleWarm, m.IdleCold = time.Hour, 2*time.Hour })
	w.later(90 * time.Minute)
	w.later(24 * time.Hour)
	require.Equal(t, 1, w.stages("m")["warm"])
	require.Zero(t, w.stages("m")["serving"])
}
