package planner_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/planner"
	"remuda/controller/state"
)

// TestEvictedReplicaComesBackWhenThereIsRoom: the number that was asked for stays, and no
// further request is needed.
func TestEvictedReplicaComesBackWhenThereIsRoom(t *testing.T) {
	t.Parallel()
	w := falling(t)
	w.quiet()
	a := w.view().Model(nil, "a")
	require.Equal(t, state.Any(1), a.Desired)
	require.Equal(t, state.Displaced{UntilRoom: state.Any(1)}, a.Displaced)
	require.Equal(t, state.Target{Bound: state.BoundDisplaced}, w.view().Target(nil, a))
	name := w.oneOf("a", state.StatusWarm).Name
	w.later(2 * w.conf.ThrashWindow)
	require.Equal(t, map[string]int{"warm": 1}, w.stages("a"), "nothing is evicted for it")
	w.scaleOf("b", 0)
	w.quiet()
	require.Equal(t, name, w.oneOf("a", state.StatusServing).Name)
	require.Equal(t, state.Displaced{}, w.view().Model(nil, "a").Displaced)
	require.Len(t, w.decisions("a", planner.KindReturn), 1)
	require.Empty(t, w.decisions("b", planner.KindEvict))
}

// TestDisplacedReplicasComeBackAfterThoseThatAreMissing: a model that was asked for more has the
// room first, whatever the order of the models.
func TestDisplacedReplicasComeBackAfterThoseThatAreMissing(t *testing.T) {
	t.Parallel()
	w := falling(t)
	w.quiet()
	w.model(model("z", 1, variant("v", "z1", whole, func(v *state.Variant) { v.GPUModel = "A100" })))
	w.quiet()
	require.NotEmpty(t, w.decisions("z", planner.KindCannotPlace))
	n1 := node("n1", 1)
	n1.GPUs[0].Model = "A100"
	w.addNodes(n1)
	w.quiet()
	require.Equal(t, map[string]int{"serving": 1}, w.stages("z"))
	require.Equal(t, map[string]int{"warm": 1}, w.stages("a"))
}

// TestIdleReplicasComeBackWhenClientsWait, and not only because there is room.
func TestIdleReplicasComeBackWhenClientsWait(t *testing.T) {
	t.Parallel()
	w := sleepy(t, 2, 1)
	w.later(20 * time.Minute)
	require.Equal(t, 1, w.stages("a")["serving"], "the minimum")
	a := w.view().Model(nil, "a")
	require.Equal(t, state.Any(2), a.Desired)
	require.Equal(t, state.Displaced{UntilAsked: state.Any(1)}, a.Displaced)
	w.demand["a"] = w.now.Add(time.Millisecond)
	w.quiet()
	require.Equal(t, 2, w.stages("a")["serving"])
	require.Len(t, w.decisions("a", planner.KindDemand), 1)
	w.demand["a"] = w.now.Add(time.Millisecond)
	w.quiet()
	require.Equal(t, 2, w.stages("a")["serving"], "no more than were asked for")
	require.Equal(t, state.Any(2), w.view().Model(nil, "a").Desired)
}

// TestAnIdleModelDoesNotComeBackForRoom: the last one that serves is idle, too.
func TestAnIdleModelDoesNotComeBackForRoom(t *testing.T) {
	t.Parallel()
	w := fresh(t)
	w.addNodes(node("n0", 2))
	a := model("a", 2, variant("v", "a1", whole))
	a.IdleWarm = time.Hour
	w.model(a)
	w.quiet()
	w.later(30 * time.Minute)
	w.model(model("b", 1, variant("v", "b1", whole)))
	w.quiet()
	require.Equal(t, 1, w.stages("b")["serving"])
	require.Equal(t, state.Displaced{UntilRoom: state.Any(1)}, w.view().Model(nil, "a").Displaced)
	w.later(time.Hour)
	require.Equal(t, state.Displaced{UntilAsked: state.Any(2)}, w.view().Model(nil, "a").Displaced)
	w.scaleOf("b", 0)
	w.quiet()
	require.Zero(t, w.stages("a")["serving"])
}

// TestAReplicaThatServesIsBack: the end of a floor ends no replica that would be placed anew.
func TestAReplicaThatServesIsBack(t *testing.T) {
	t.Parallel()
	w := falling(t)
	w.quiet()
	w.must(&state.SetDedicated{Models: map[string]int{"a": 1}, Time: w.now})
	w.addNodes(node("n1", 1))
	w.quiet()
	name := w.oneOf("a", state.StatusServing).Name
	require.Equal(t, state.Displaced{UntilRoom: state.Any(1)}, w.view().Model(nil, "a").Displaced, "the floor keeps it")
	w.must(&state.SetDedicated{Time: w.now})
	w.quiet()
	require.Equal(t, name, w.oneOf("a", state.StatusServing).Name)
	require.Empty(t, w.decisions("a", planner.KindScaleDown))
	require.True(t, w.view().Model(nil, "a").Displaced.IsZero())
}

// TestWhoScalesEndsWhatIsDisplaced: also with the same number.
func TestWhoScalesEndsWhatIsDisplaced(t *testing.T) {
	t.Parallel()
	for _, origin := range []state.Origin{state.OriginOperator, state.OriginAutoscaler} {
		w := sleepy(t, 2, 0)
		w.later(20 * time.Minute)
		require.Zero(t, w.stages("a")["serving"])
		w.must(&state.ScaleRequest{Model: "a", Replicas: new(2), Origin: origin, Time: w.now})
		w.quiet()
		require.Equal(t, 2, w.stages("a")["serving"])
	}
}

// TestDisplacedAboveACeiling: a cap that is taken away lets no idle replica come back.
func TestDisplacedAboveACeiling(t *testing.T) {
	t.Parallel()
	w := sleepy(t, 2, 0)
	w.must(&state.SetSwitch{Name: state.SwitchCapMaxReplicas, Value: "1"})
	w.later(20 * time.Minute)
	w.later(20 * time.Minute)
	require.Zero(t, w.stages("a")["serving"])
	w.must(&state.SetSwitch{Name: state.SwitchCapMaxReplicas, Delete: true})
	w.quiet()
	require.Zero(t, w.stages("a")["serving"])
	require.Equal(t, state.Any(2), w.view().Model(nil, "a").Desired)
}
