package reconcile_test

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/planner"
	"remuda/controller/reconcile"
	"remuda/controller/state"
)

// requests is the report of a gateway that has counted so many requests at two replicas: all
// that replica 1 had have failed, and replica 2 has answered all.
func requests(failed, answered int64) api.GatewayReport {
	return api.GatewayReport{Gateway: "g", Index: 1, Replicas: []api.ReplicaLoad{
		{Name: "m:v:1", Failed: failed, FailedInARow: failed}, {Name: "m:v:2", Answered: answered},
	}}
}

// deployTwo has two replicas that serve, and the planner decides.
func (w *world) deployTwo() {
	two := 2
	w.raft.must(&state.ScaleRequest{Model: "m", Replicas: &two, Origin: state.OriginOperator})
	w.running("1", "2")
	w.script(func(v *state.View, o planner.Observation) (*state.Plan, time.Time) {
		return planner.New(planner.DefaultConfig()).Plan(v, o)
	})
}

// TestAReplicaThatFailsIsReplaced within 30 s, although its gateway asks it but a few times and
// nothing else happens.
func TestAReplicaThatFailsIsReplaced(t *testing.T) {
	reg := prometheus.NewRegistry()
	inWorld(t, func(c *reconcile.Config) { c.Registerer = reg }, func(t *testing.T, w *world) {
		w.deployTwo()
		for range 10 { // until the leader knows all gateways
			w.loads.Put(requests(0, 100))
			w.pass(2 * time.Second)
		}
		began := time.Now()
		for i, wait := range []time.Duration{0, 2, 4, 8} { // as the gateway's breaker does, in seconds
			w.pass(wait * time.Second)
			w.loads.Put(requests(int64(5+i), int64(110+10*i)))
		}
		w.pass(2 * time.Second)
		require.Less(t, time.Since(began), 30*time.Second)
		require.NotEqual(t, "serving", w.stage("m:v:1"))
		require.Equal(t, "serving", w.stage("m:v:2"))
		replaced := w.raft.store.View().Decisions(nil, "m", 0)
		require.Contains(t, exposed(t, reg, "remuda_controller_replacements"), `remuda_controller_replacements_total{model="m"} 1`)
		require.Contains(t, exposed(t, reg, "remuda_controller_requests_answered", "remuda_controller_requests_failed"), `remuda_controller_requests_answered{model="m",variant="v"} 40`)
		found := false
		for _, d := range replaced {
			found = found || d.Kind == planner.KindReplaced && d.Replica == "m:v:1"
		}
		require.True(t, found)
	})
}

// TestALeaderThatBeginsKnowsNoFailures: what a gateway has counted before may be old.
func TestALeaderThatBeginsKnowsNoFailures(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.deployTwo()
		w.raft.depose()
		w.rest()
		w.raft.elect()
		w.rest()
		for range 30 {
			w.loads.Put(requests(500, 100))
			w.pass(2 * time.Second)
		}
		require.Equal(t, "serving", w.stage("m:v:1"))
		require.Zero(t, w.seen().Loads["m:v:1"])
		w.loads.Put(requests(501, 100))
		w.nomad.set(func() {}) // it looks
		w.rest()
		require.Equal(t, planner.Load{Recent: planner.Outcomes{Failed: 1}, Row: planner.Outcomes{Failed: 1}}, w.seen().Loads["m:v:1"])
	})
}
