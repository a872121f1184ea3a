package planner_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/planner"
	"remuda/controller/state"
)

// pairs is a world in which pairs of the model m serve, each on one GPU.
func pairs(t *testing.T, replicas int, nodes ...string) *world {
	return full(t, replicas, func(m *state.Model) { m.Failover = true }, nodes...)
}

func (w *world) degradeAll(of func(*state.Replica) bool) {
	for _, r := range w.view().ReplicasOf(nil, "m") {
		delete(w.degraded, r.Name.String())
		if of(r) {
			w.degraded[r.Name.String()] = "the shadow cannot take over: the engine is loading"
		}
	}
}

// A rollout takes no pair away while those of the new definition have no standby, and says so once.
func TestRolloutWaitsForTheStandby(t *testing.T) {
	t.Parallel()
	w := pairs(t, 1, "n0", "n1", "n2")
	isNew := func(r *state.Replica) bool { return w.hash(r) == "h2" }
	w.next("h2")
	w.until(func() bool { w.degradeAll(isNew); return len(w.decisions("m", planner.KindDegraded)) > 0 })
	w.turns(10)
	require.Equal(t, map[string]int{"serving h1": 1, "serving h2": 1}, w.counts("m"))
	waits := w.decisions("m", planner.KindDegraded)
	require.Len(t, waits, 1)
	require.Contains(t, waits[0].Reason, "has no standby: the shadow cannot take over: the engine is loading")
	w.degradeAll(func(*state.Replica) bool { return false })
	w.until(func() bool { return w.status() == "" })
	w.turns(8)
	require.Equal(t, map[string]int{"serving h2": 1}, w.counts("m"))
}

// A scale-down takes the pair without a standby first, and waits if the one that is left has none.
func TestScaleDownLeavesAPairWithAStandby(t *testing.T) {
	t.Parallel()
	w := pairs(t, 3, "n0", "n1", "n2")
	all := w.view().ReplicasOf(nil, "m")
	w.degraded[all[0].Name.String()] = "its shadow does not respond"
	w.scale(2)
	w.turns(8)
	require.Equal(t, map[string]int{"serving h1": 2}, w.counts("m"))
	require.Nil(t, w.view().Replica(nil, all[0].Name.String()))
	w.degradeAll(func(*state.Replica) bool { return true })
	w.scale(1)
	w.turns(8)
	require.Equal(t, map[string]int{"serving h1": 2}, w.counts("m"), "either of them would be the last engine")
	require.NotEmpty(t, w.decisions("m", planner.KindDegraded))
	delete(w.degraded, all[1].Name.String())
	w.turns(8)
	require.Equal(t, map[string]int{"serving h1": 1}, w.counts("m"))
	require.NotNil(t, w.view().Replica(nil, all[1].Name.String()))
	w.degradeAll(func(*state.Replica) bool { return true })
	w.scale(0)
	w.turns(8)
	require.Empty(t, w.counts("m"), "nothing is to be left")
}

// A node that is drained does not wait: it ends at a deadline.
func TestADrainedNodeDoesNotWaitForAStandby(t *testing.T) {
	t.Parallel()
	w := pairs(t, 1, "n0", "n1")
	old := w.view().ReplicasOf(nil, "m")[0]
	w.setNode(old.Placement.Node, func(n *state.Node) { n.Draining = true })
	w.until(func() bool {
		w.degradeAll(func(*state.Replica) bool { return true })
		return w.view().Replica(nil, old.Name.String()) == nil
	})
	w.turns(4)
	require.Equal(t, map[string]int{"serving h1": 1}, w.counts("m"))
}

// Each failover is one decision, and no old one is told again.
func TestAFailoverIsRecordedOnce(t *testing.T) {
	t.Parallel()
	w := pairs(t, 1, "n0")
	name := w.view().ReplicasOf(nil, "m")[0].Name.String()
	failover := func(at time.Time) {
		w.takeovers[name] = planner.Takeover{From: "primary", Cause: "exited", Reason: "the engine exited: signal: killed", Ended: at.Add(-time.Second), At: at, Seconds: 1.25}
	}
	failover(w.now.Add(-time.Hour))
	w.turns(4)
	require.Empty(t, w.decisions("m", planner.KindFailover), "another leader has recorded it")
	for n := 1; n <= 3; n++ {
		failover(w.now)
		w.turns(4)
		ds := w.decisions("m", planner.KindFailover)
		require.Len(t, ds, n)
		require.Equal(t, name, ds[0].Replica)
		require.Equal(t, "another engine took over 1.25s after the primary ended: the engine exited: signal: killed", ds[0].Reason)
		require.Equal(t, "exited", ds[0].Details["cause"])
		require.Empty(t, ds[0].Details["gpu"])
	}
	w.conf.PlaceTimeout = time.Hour // it has no other place
	w.sicken("n0-GPU0", false)
	failover(w.now)
	w.turns(1)
	w.sicken("n0-GPU0", true)
	w.turns(4)
	ds := w.decisions("m", planner.KindFailover)
	require.Len(t, ds, 4)
	require.Contains(t, ds[0].Details["gpu"], "XID 79")
}

// A pair whose engine was restarted long ago still serves when the other one hands over to it: that no
// engine serves for a moment is no sign that none has served since the restart.
func TestAMomentWithoutAnEngineLongAfterARestart(t *testing.T) {
	t.Parallel()
	w := pairs(t, 1, "n0")
	r := w.view().ReplicasOf(nil, "m")[0]
	name := r.Name.String()
	o := w.observe(false)
	job := o.Jobs[name]
	a := *job.Alloc
	a.Started, a.Restarts = r.Since.Add(time.Minute), a.Restarts+1
	job.Alloc = &a
	o.Jobs[name] = job
	o.Now = a.Started.Add(time.Hour)
	o.Engines[name] = nil
	o.PassedAt = map[string]time.Time{name: o.Now.Add(-time.Second)}
	kinds := func() (kinds []string) {
		p, _ := planner.Plan(w.view(), o, w.conf)
		if p != nil {
			for _, d := range p.Decisions {
				kinds = append(kinds, d.Kind)
			}
		}
		return kinds
	}
	require.NotContains(t, kinds(), planner.KindNotServing)
	o.Now = o.Now.Add(w.conf.ServingGrace)
	require.Contains(t, kinds(), planner.KindNotServing)
	o.PassedAt = nil
	o.EnginesSince = o.Now.Add(-time.Second)
	require.NotContains(t, kinds(), planner.KindNotServing, "a new leader does not know when it last served")
}
