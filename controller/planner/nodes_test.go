package planner_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/planner"
	"remuda/controller/state"
)

func TestNodes(t *testing.T) {
	t.Parallel()
	t.Run("a blink changes nothing", func(t *testing.T) {
		t.Parallel()
		w := deployed(t, 2, "n0", "n1")
		for _, id := range []string{"n0", "n1"} {
			w.setNode(id, func(n *state.Node) { n.Ready, n.DownSince = false, w.now })
			w.down[id] = true
		}
		for range 20 {
			require.Zero(t, w.round())
			w.step()
		}
		for _, id := range []string{"n0", "n1"} {
			w.back(id)
		}
		w.turns(8)
		require.Equal(t, map[string]int{"serving h1": 2}, w.counts("m"))
	})
	t.Run("a node that is gone is written off, and its replicas placed anew in the same plan", func(t *testing.T) {
		t.Parallel()
		w := deployed(t, 2, "n0", "n1")
		lost := w.view().ReplicasOf(nil, "m")[0].Placement.Node
		w.down[lost] = true
		w.setNode(lost, func(n *state.Node) { n.WrittenOff, n.Ready = true, false })
		p := w.lastPlan()
		require.NotEmpty(t, p.Move)
		require.Len(t, p.Place, len(p.Move))
		w.turns(8)
		require.Equal(t, map[string]int{"serving h1": 2}, w.counts("m"))
		w.back(lost)
		w.turns(8)
		require.Equal(t, map[string]int{"serving h1": 2}, w.counts("m"))
		require.Len(t, w.nomad, 2, "what ran on it was told to stop before it was forgotten")
	})
	t.Run("a node that is being drained: first the replacement, then the end", func(t *testing.T) {
		t.Parallel()
		w := deployed(t, 2, "n0", "n1")
		away := w.view().ReplicasOf(nil, "m")[0].Placement.Node
		w.drains[away] = w.now
		w.setNode(away, func(n *state.Node) { n.Draining = true })
		for range 12 {
			w.round()
			require.GreaterOrEqual(t, capacity(w.view())["m"], 2)
			w.step()
		}
		for _, r := range w.view().ReplicasOf(nil, "m") {
			require.NotEqual(t, away, r.Placement.Node)
		}
	})
	t.Run("a node that is being drained: all of its replicas at once", func(t *testing.T) {
		t.Parallel()
		w := deployed(t, 4, "n0")
		w.addNodes(node("n1", 2))
		w.drains["n0"] = w.now
		w.setNode("n0", func(n *state.Node) { n.Draining = true })
		w.plan(false)
		require.Equal(t, map[string]int{"serving h1": 4, "placed h1": 4}, w.counts("m"))
		w.turns(9)
		require.Equal(t, map[string]int{"serving h1": 4}, w.counts("m"))
	})
	t.Run("what is drained in order to sleep, of a model that is stopped then, keeps its requests", func(t *testing.T) {
		t.Parallel()
		w := deployed(t, 1, "n0")
		r := w.only(withStatus(state.StatusServing))
		w.requests[r.Name.String()] = []time.Time{w.now.Add(time.Hour)}
		w.must(&state.EvictRequest{Replica: r.Name.String(), To: state.GoalWarm, Time: w.now})
		require.Nil(t, w.lastPlan(), "it waits for its requests")
		w.must(&state.ScaleRequest{Model: "m", Stopped: new(true), Origin: state.OriginOperator})
		w.plan(false)
		r = w.only(withStatus(state.StatusDraining))
		require.Equal(t, state.GoalGone, r.Goal)
		w.requests[r.Name.String()] = nil
		w.turns(6)
		require.Empty(t, w.counts("m"))
	})
	t.Run("a node that is being drained, and nothing else fits", func(t *testing.T) {
		t.Parallel()
		w := deployed(t, 2, "n0")
		w.drains["n0"] = w.now
		w.setNode("n0", func(n *state.Node) { n.Draining = true })
		w.turns(10)
		require.Equal(t, map[string]int{"serving h1": 2}, w.counts("m"))
		require.Len(t, w.decisions("m", planner.KindNodeDraining), 1, "of both replicas")
		w.setNode("n0", func(n *state.Node) { n.Draining = false })
		require.Nil(t, w.lastPlan())
	})
	t.Run("what loads on a node that is being drained goes on until another serves", func(t *testing.T) {
		t.Parallel()
		w := fresh(t, "n0", "n1")
		w.load = func() time.Duration { return 20 * tick }
		w.model(model("m", 1, variant("a", "h1")))
		w.turns(4)
		r := w.only(withStatus(state.StatusStarting))
		w.drains[r.Placement.Node] = w.now
		w.setNode(r.Placement.Node, func(n *state.Node) { n.Draining = true })
		w.nomad[r.Name.String()].serves = w.now.Add(time.Hour)
		w.turns(10)
		require.Equal(t, map[string]int{"starting h1": 2}, w.counts("m"))
		w.until(func() bool { return w.counts("m")["serving h1"] == 1 })
		w.turns(5)
		require.NotEqual(t, r.Name, w.only(withStatus(state.StatusServing)).Name)
		require.Equal(t, map[string]int{"serving h1": 1}, w.counts("m"))
	})
	t.Run("what Nomad's drain has ended is given up as soon as another one is placed", func(t *testing.T) {
		t.Parallel()
		w := deployed(t, 1, "n0", "n1")
		w.load = func() time.Duration { return time.Hour }
		r := w.only(withStatus(state.StatusServing))
		w.nomad[r.Name.String()].alloc.Client = "complete"
		w.setNode(r.Placement.Node, func(n *state.Node) { n.Draining = true })
		w.turns(6)
		require.Equal(t, map[string]int{"starting h1": 1}, w.counts("m"))
		require.NotEqual(t, r.Name, w.view().ReplicasOf(nil, "m")[0].Name)
	})
	t.Run("a canary is not blamed for its node", func(t *testing.T) {
		t.Parallel()
		w := deployed(t, 1, "n0", "n1")
		w.model(model("m", 0, variant("a", "h2")))
		w.turns(6)
		c := w.only(func(r *state.Replica) bool { return r.Canary })
		w.drains[c.Placement.Node] = w.now.Add(-time.Hour)
		w.setNode(c.Placement.Node, func(n *state.Node) { n.Draining = true })
		w.step()
		w.until(func() bool { return w.status() == "" })
		require.Empty(t, w.decisions("m", planner.KindRolledBack))
	})
}
