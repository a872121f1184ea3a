package reconcile_test

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/nomad"
	"remuda/controller/planner"
	"remuda/controller/reconcile"
	"remuda/controller/shimclient"
	"remuda/controller/state"
	"remuda/internal/testkit/shimtest"
)

// waiting is a report of a gateway at which a request waits for the model.
func waiting(model string, in api.QueueState, since time.Time) api.GatewayReport {
	return api.GatewayReport{Gateway: "g", Index: 1, Since: since, Queues: []api.QueueLoad{{Model: model, State: in, Waiting: 1, OldestAt: since}}}
}

// A model that requests wait for is not idle, though its engines take none, as one does that
// hangs. Once nobody waits any more it is.
func TestAModelThatRequestsWaitForIsNotIdle(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		m := *w.raft.store.View().Model(nil, "m")
		m.IdleWarm, m.Hash = time.Minute, "h2"
		w.raft.must(&state.UpsertModel{Model: m, ModifyIndex: m.ModifyIndex})
		one := 1
		w.raft.must(&state.ScaleRequest{Model: "m", Replicas: &one, Origin: state.OriginOperator})
		w.running("1")
		began := time.Now()
		w.script(func(v *state.View, o planner.Observation) (*state.Plan, time.Time) {
			return planner.New(planner.DefaultConfig()).Plan(v, o)
		})
		during := func(d time.Duration, r api.GatewayReport) {
			for end := time.Now().Add(d); time.Now().Before(end); w.pass(2 * time.Second) {
				w.loads.Put(r)
			}
		}
		during(10*time.Minute, waiting("m", api.QueueBusy, began))
		require.Equal(t, "serving", w.stage("m:v:1"))
		require.WithinDuration(t, time.Now(), w.seen().Loads["m:v:1"].LastRequest, time.Minute)
		require.Zero(t, w.seen().Loads["m:v:1"].InFlight)
		during(5*time.Minute, api.GatewayReport{Gateway: "g", Index: 1, Since: began})
		require.NotEqual(t, "serving", w.stage("m:v:1"), "it was kept up for the one that waited only")
	})
}

// A leader that begins knows of no demand: what waits tells it.
func TestANewLeaderBringsUpWhatRequestsWaitFor(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		since := time.Now()
		w.loads.Put(waiting("m", api.QueueProvisioning, since))
		w.rest()
		require.Contains(t, w.seen().Demand, "m")
		w.raft.depose()
		w.rest()
		w.script(func(v *state.View, o planner.Observation) (*state.Plan, time.Time) {
			return planner.New(planner.DefaultConfig()).Plan(v, o)
		})
		w.raft.elect()
		w.rest()
		require.Empty(t, w.raft.store.View().ReplicasOf(nil, "m"))
		w.loads.Put(waiting("m", api.QueueProvisioning, since))
		w.rest()
		require.Len(t, w.raft.store.View().ReplicasOf(nil, "m"), 1)
		for range 5 { // it waits on
			w.loads.Put(waiting("m", api.QueueProvisioning, since))
			w.pass(time.Second)
		}
		require.Len(t, w.raft.store.View().ReplicasOf(nil, "m"), 1, "it is one demand")
	})
}

// TestANewLeaderKeepsAnOperatorsScaleDown: requests that waited before the scale-down are
// not demand.
func TestANewLeaderKeepsAnOperatorsScaleDown(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		before := time.Now()
		w.pass(time.Second)
		for _, n := range []int{1, 0} {
			w.raft.must(&state.ScaleRequest{Model: "m", Replicas: &n, Origin: state.OriginOperator, Time: time.Now()})
		}
		w.raft.depose()
		w.rest()
		w.raft.elect()
		w.rest()
		w.loads.Put(waiting("m", api.QueueProvisioning, before))
		w.rest()
		require.Empty(t, w.seen().Demand)
		w.pass(time.Second)
		w.loads.Put(waiting("m", api.QueueProvisioning, time.Now()))
		w.rest()
		require.Contains(t, w.seen().Demand, "m")
	})
}

// TestReportsBeforeTheReconcilerBegins: a new leader serves gateways as soon as it leads, and
// keeps their reports when its reconciler begins.
func TestReportsBeforeTheReconcilerBegins(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.loads.Put(waiting("m", api.QueueProvisioning, time.Now()))
		w.raft.depose()
		w.rest()
		w.loads.Begin(w.raft.term() + 1)
		require.Empty(t, w.loads.Gateways(), "it was of the term before")
		w.loads.Put(waiting("m", api.QueueProvisioning, time.Now()))
		require.NoError(t, w.loads.Kill("x"))
		w.raft.elect()
		w.rest()
		require.Contains(t, w.seen().Demand, "m")
		require.True(t, w.loads.Killed("x"))
	})
}

// How many wait, and how fast they are served, is no reason to look.
func TestNumbersOfQueuesDoNotWake(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.running("1")
		began := time.Now()
		w.loads.Put(waiting("m", api.QueueBusy, began))
		w.rest()
		looks := w.plans()
		for i := range 100 {
			r := waiting("m", api.QueueBusy, began)
			r.Queues[0].Waiting, r.Queues[0].CompletedPerSecond = i+1, float64(i)
			w.loads.Put(r)
		}
		w.rest()
		require.Equal(t, looks, w.plans())
	})
}

func TestMetricsOfWhatWaits(t *testing.T) {
	reg := prometheus.NewRegistry()
	inWorld(t, func(c *reconcile.Config) { c.Registerer = reg }, func(t *testing.T, w *world) {
		w.loads.Put(api.GatewayReport{Gateway: "g", Index: 1, Queues: []api.QueueLoad{
			{Model: "m", State: api.QueueDeploying, Waiting: 3}, {Model: "whatever a client asked for", State: api.QueueDeploying, Waiting: 1},
		}})
		require.Equal(t, []string{`remuda_controller_waiting{model="m"} 3`}, exposed(t, reg, "remuda_controller_waiting"))
		w.raft.depose()
		w.rest()
		require.Empty(t, exposed(t, reg, "remuda_controller_waiting"), "only the leader tells")
	})
}

// TestWhyAReplicaDoesNotServe: shims are asked of replicas that run and do not serve, and of no
// others.
func TestWhyAReplicaDoesNotServe(t *testing.T) {
	cfg := reconcile.DefaultConfig()
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.place("1")
		w.rest()
		s := shimtest.New("m:v:1", "primary", false)
		s.Set(func(st *shimclient.State) { st.Consul = &shimclient.Consul{LastError: "403 (Permission denied)"} })
		w.shims.Put("10.0.0.1:4000", s)
		a := allocation("n")
		a.Seats, a.Ports = map[string][]string{"primary": {"n-GPU0#0"}}, map[string]string{"shim": "10.0.0.1:4000"}
		a.Tasks[0].State = "pending"
		w.nomad.allocate("m:v:1", a)
		w.pass(cfg.Planner.ServingGrace)
		require.Empty(t, w.r.NotServing("m:v:1"), "tasks before the engine may take their time")

		a.Tasks = []nomad.Task{{Name: "primary", State: "running"}}
		w.nomad.allocate("m:v:1", a)
		w.rest()
		require.Equal(t, "the engine is up, but Consul rejects its registration: 403 (Permission denied)", w.r.NotServing("m:v:1"))
		s.Set(func(st *shimclient.State) { st.Phase = shimclient.Init })
		w.pass(cfg.WhyInterval)
		require.Equal(t, "the engine is loading", w.r.NotServing("m:v:1"))

		w.consul.serve(engine("1"))
		w.rest()
		require.Equal(t, "serving", w.stage("m:v:1"))
		require.Empty(t, w.r.NotServing("m:v:1"))
	})
}
