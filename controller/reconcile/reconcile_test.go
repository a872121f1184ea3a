package reconcile_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/planner"
	"remuda/controller/reconcile"
	"remuda/controller/state"
)

func TestConfigNamesEveryFault(t *testing.T) {
	cfg := reconcile.Config{Retry: 2, RetryMax: 1, ConsulGrace: -1}
	_, err := reconcile.New(cfg)
	for _, want := range []string{
		"raft must be set", "nomad must be set", "shims must be set", "consul must be set", "loads must be set", "new planner must be set", "actions must be set", "after must be set", "now must be set",
		"logger must be set", "settle is 0s", "resync is 0s", "why interval is 0s", "lag timeout is 0s", "consul grace is -1ns", "longest retry is 1ns",
		"longest retry at a shim is 0s", "workers is 0", "tiers is 0", "plan rate is 0", "planner: node_grace is 0s",
	} {
		require.ErrorContains(t, err, want)
	}
	cfg = reconcile.DefaultConfig()
	cfg.Planner.Pools = []planner.Pool{planner.DefaultPool("a")}
	cfg.Pools = map[string]reconcile.Nomad{"b": newFakeNomad()}
	_, err = reconcile.New(cfg)
	require.ErrorContains(t, err, `pool "a" has no Nomad client`)
	require.ErrorContains(t, err, `Nomad client of pool "b": the planner has no such pool`)
}

func TestLifeOfAReplica(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		require.NotNil(t, w.node("n"), "the inventory is in the state")
		w.place("1")
		w.rest()
		r := w.replica("m:v:1")
		require.Equal(t, state.Status("starting"), r.Status)
		require.Equal(t, w.nomad.jobs["m:v:1"].Index, r.JobIndex)
		require.Equal(t, []uint64{0}, w.nomad.indexes, "over no other job")

		w.nomad.allocate("m:v:1", allocation("n"))
		w.consul.serve(engine("1"))
		w.rest()
		require.Equal(t, "serving", w.stage("m:v:1"))
		require.Empty(t, w.seen().Jobs["m:v:1"].Drift)

		ended := w.withShim("1").working()
		w.move("m:v:1", state.EventDrain)
		w.pass(time.Minute)
		require.Equal(t, "draining", w.stage("m:v:1"))
		close(ended)
		w.rest()
		require.Equal(t, "stopping", w.stage("m:v:1"))
		require.True(t, w.nomad.jobs["m:v:1"].Stopped)
		w.rest()
		require.NotNil(t, w.replica("m:v:1"), "its allocation runs")

		done := allocation("n")
		done.Client, done.Desired = "complete", "stop"
		w.nomad.allocate("m:v:1", done)
		w.rest()
		require.Nil(t, w.replica("m:v:1"))
		require.Empty(t, w.nomad.jobs, "Nomad was made to forget it")
		registers, stops, purges := w.nomad.did()
		require.Equal(t, []int{1, 1, 1}, []int{registers, stops, purges}, "each once")
	})
}

func TestAtRestNothingIsWritten(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.running("1", "2")
		w.raft.must(&state.Cordon{Node: "n", GPU: "n-GPU3", On: true}) // the state's own: Nomad does not say it
		w.rest()
		writes, looks := w.raft.writes(), w.plans()
		for i := range 60 {
			w.pass(10 * time.Second)
			w.nomad.set(func() {}) // it says the same again
			w.consul.serve(engine("1"), engine("2"))
			w.loads.Put(api.GatewayReport{Gateway: "g", Index: 1, Replicas: []api.ReplicaLoad{{Name: "m:v:1", InFlight: i}}})
		}
		require.Equal(t, writes, w.raft.writes(), "ten minutes without a write to Raft")
		registers, stops, purges := w.nomad.did()
		require.Equal(t, []int{2, 0, 0}, []int{registers, stops, purges})
		require.Greater(t, w.plans(), looks, "it did look")
		require.True(t, w.node("n").GPU("n-GPU3").Cordoned)
	})
}

func TestLoadsAreShownAndDoNotWakeWhileNothingDrains(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.running("1")
		looks := w.plans()
		at := time.Now().UTC()
		for i := range 100 {
			w.loads.Put(api.GatewayReport{Gateway: "g", Replicas: []api.ReplicaLoad{{Name: "m:v:1", InFlight: i, OldestAt: at, LastRequest: at}}})
		}
		w.rest()
		require.Equal(t, looks, w.plans())
		w.pass(time.Minute / 2)
		require.Greater(t, w.plans(), looks)
		w.loads.Put(api.GatewayReport{Gateway: "g", Replicas: []api.ReplicaLoad{{Name: "m:v:1", InFlight: 5, OldestAt: at, LastRequest: at}}})
		w.nomad.set(func() {})
		w.rest()
		require.Equal(t, planner.Load{InFlight: 5, LastRequest: at}, w.seen().Loads["m:v:1"])
	})
}

// What the gateways report decides no drain: one that is cut off from the controller may have
// requests, and one that is dead has none. The engine knows.
func TestADrainLastsAsLongAsTheEnginesRequests(t *testing.T) {
	report := func(w *world, gateway string, inFlight int) {
		w.loads.Put(api.GatewayReport{Gateway: gateway, Index: w.raft.store.View().Index(), Replicas: []api.ReplicaLoad{{Name: m1, InFlight: inFlight}}})
	}
	t.Run("a gateway is cut off", func(t *testing.T) {
		inWorld(t, nil, func(t *testing.T, w *world) {
			w.running("1")
			s := w.withShim("1")
			ended := s.working()
			report(w, "cut off", 1)
			w.pass(loadTTL)
			w.move(m1, state.EventDrain)
			for range 20 {
				report(w, "alive", 0)
				w.pass(loadTTL / 4)
				require.Equal(t, "draining", w.stage(m1), "the request of the other gateway still runs")
			}
			close(ended)
			w.rest()
			require.Equal(t, "stopping", w.stage(m1))
			require.Equal(t, []string{"drain"}, s.Orders())
		})
	})
	t.Run("a gateway was cut off before this server led", func(t *testing.T) {
		inWorld(t, nil, func(t *testing.T, w *world) {
			w.running("1")
			s := w.withShim("1")
			ended := s.working()
			w.move(m1, state.EventDrain)
			w.rest()
			w.raft.depose()
			w.rest()
			w.raft.elect()
			for range 20 {
				report(w, "alive", 0)
				w.pass(loadTTL / 4)
				require.Equal(t, "draining", w.stage(m1))
			}
			close(ended)
			w.pass(time.Second)
			require.Equal(t, "stopping", w.stage(m1))
			require.Equal(t, []string{"drain", "drain"}, s.Orders(), "each leader gives the order")
		})
	})
	t.Run("a gateway is dead", func(t *testing.T) {
		inWorld(t, nil, func(t *testing.T, w *world) {
			w.running("1")
			w.withShim("1")
			report(w, "dead", 1)
			w.move(m1, state.EventDrain)
			w.rest()
			require.Equal(t, "stopping", w.stage(m1), "at once, although its last report counts")
		})
	})
}

func TestConsulOutageConcludesNothing(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.running("1")
		require.True(t, w.seen().EnginesKnown)
		w.consul.set(func() { w.consul.down = true })
		w.rest()
		require.False(t, w.seen().EnginesKnown)
		require.NotEmpty(t, w.r.Status().Engines.Error)
		w.pass(time.Minute)
		// It comes back empty, as after a restart, and hears from the engines later.
		w.consul.set(func() { w.consul.down, w.consul.engines = false, nil })
		w.rest()
		require.False(t, w.seen().EnginesKnown, "the engines have not had the time to come back")
		require.True(t, w.r.Status().Engines.Known)
		w.pass(5 * time.Second)
		w.consul.serve(engine("1"))
		w.pass(11 * time.Second)
		require.True(t, w.seen().EnginesKnown)
		require.Equal(t, []planner.Engine{{Passing: true}}, w.seen().Engines["m:v:1"])
		require.Equal(t, "serving", w.stage("m:v:1"))
	})
}

func TestNothingIsPlannedBeforeNomadIsHeard(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.raft.depose()
		w.nomad.set(func() { w.nomad.down = true })
		w.rest()
		looks := w.plans()
		w.raft.elect()
		w.place("1")
		w.pass(time.Minute)
		require.Equal(t, looks, w.plans(), "seats may be taken by jobs that nobody knows of yet")
		require.Equal(t, []string{"n"}, w.nomad.known, "the watch is told which nodes the state knows")
		w.nomad.set(func() { w.nomad.down = false })
		w.rest()
		require.Equal(t, "starting", w.stage("m:v:1"))
	})
}

// The plan that was proposed may still come: nothing is decided before that is known.
func TestPlanOfUnknownOutcome(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		placed := 0
		w.script(func(v *state.View, _ planner.Observation) (*state.Plan, time.Time) {
			if len(v.Replicas(nil)) > 0 {
				return nil, time.Time{}
			}
			placed++
			return &state.Plan{Place: []state.Place{placeOf(fmt.Sprint(placed), placed-1)}}, time.Time{}
		})
		var late state.Command
		w.raft.set(func() {
			w.raft.onApply = func(c state.Command) (bool, error) {
				w.raft.onApply = nil
				late = c
				return false, errUnknown
			}
			w.raft.onBarrier = func() error {
				switch w.raft.barriers {
				case 1, 2:
					return errUnknown
				case 3:
					_, err := w.raft.put(late)
					require.NoError(t, err)
				}
				return nil
			}
		})
		w.nomad.set(func() {})
		w.pass(10 * time.Second)
		require.Len(t, w.raft.store.View().Replicas(nil), 1)
		require.Equal(t, 1, placed)
		require.Equal(t, 3, w.raft.barriers)
	})
}

func TestPlanThatIsRefusedForGood(t *testing.T) {
	reg := prometheus.NewRegistry()
	inWorld(t, func(c *reconcile.Config) { c.Registerer = reg }, func(t *testing.T, w *world) {
		w.script(func(*state.View, planner.Observation) (*state.Plan, time.Time) {
			return &state.Plan{Remove: []state.Remove{{Replica: "m:v:none"}}}, time.Time{}
		})
		w.nomad.set(func() {})
		before := w.raft.writes()
		w.pass(10 * time.Minute)
		tries := w.raft.writes() - before
		require.Greater(t, tries, 10, "it goes on trying")
		require.Less(t, tries, 40, "seldom")
		require.Contains(t, w.r.Status().Error, "does not exist")
		w.script(nil)
		w.pass(time.Minute)
		require.Equal(t, []string{fmt.Sprintf(`remuda_controller_plans_total{result="refused"} %d`, tries)}, exposed(t, reg, "remuda_controller_plans_total"))
	})
}

func TestPlannerWithoutRestIsSlowedDown(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.script(func(v *state.View, o planner.Observation) (*state.Plan, time.Time) {
			return &state.Plan{Decisions: []state.Decision{{Time: o.Now, Kind: "place", Reason: "again"}}}, o.Now
		})
		before := w.raft.writes()
		w.nomad.set(func() {})
		w.pass(time.Minute)
		n := w.raft.writes() - before
		require.LessOrEqual(t, n, 50+10*61)
		require.GreaterOrEqual(t, n, 50+10*55)
	})
}

func TestANewLookIsTakenWhenThePlannerAsksForOne(t *testing.T) {
	inWorld(t, func(c *reconcile.Config) { c.Resync = time.Hour }, func(t *testing.T, w *world) {
		due := time.Now().Add(7 * time.Minute)
		var last time.Time
		looks := 0
		w.script(func(_ *state.View, o planner.Observation) (*state.Plan, time.Time) {
			last = o.Now
			looks++
			if o.Now.Before(due) {
				return nil, due
			}
			return nil, time.Time{}
		})
		w.nomad.set(func() {})
		w.pass(20 * time.Minute)
		require.Equal(t, due, last)
		require.LessOrEqual(t, looks, 4, "two watches have told, the gateways have had their time, and then it was time")
	})
}

func TestLeadershipThatEnds(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.running("1")
		w.raft.depose()
		w.rest()
		require.Equal(t, reconcile.Status{}, w.r.Status())
		looks := w.plans()
		w.raft.must(&state.SetSwitch{Name: "x", Value: "y"})
		w.nomad.edit("m:v:1", func(j *jobType) { j.Stopped = true })
		w.pass(time.Minute)
		require.Equal(t, looks, w.plans(), "one who does not lead does not even look")

		// The next term finds out by itself.
		w.raft.elect()
		w.rest()
		require.False(t, w.nomad.jobs["m:v:1"].Stopped)
		s := w.r.Status()
		require.True(t, s.Leading)
		require.Equal(t, uint64(2), s.Term)
		require.True(t, s.Nodes.Known && s.Jobs.Known && s.Engines.Known)

		w.cancel()
		<-w.stopped // and goleak and synctest find what is left
	})
}

func TestPause(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.nomad.onRender = func(_ ctxType, _ requestType) error {
			w.raft.must(&state.SetSwitch{Name: state.SwitchPauseReconcile, Value: "on"})
			return nil
		}
		w.place("1")
		w.rest()
		require.True(t, w.r.Status().Paused)
		registers, _, _ := w.nomad.did()
		require.Zero(t, registers, "an action that had begun is held back as well")
	})
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	inWorld(t, func(c *reconcile.Config) { c.Registerer = reg }, func(t *testing.T, w *world) {
		w.running("1", "2")
		w.raft.must(&state.Scale{Model: "m", Desired: state.Any(3), ModifyIndex: w.raft.Store().View().Model(nil, "m").ModifyIndex})
		w.loads.Put(api.GatewayReport{Gateway: "g", Replicas: []api.ReplicaLoad{{Name: "m:v:1", InFlight: 2}, {Name: "m:v:2", InFlight: 3}}})
		w.script(func(v *state.View, o planner.Observation) (*state.Plan, time.Time) {
			if len(v.Decisions(nil, "", 0)) > 0 {
				return nil, time.Time{}
			}
			return &state.Plan{Decisions: []state.Decision{{Time: o.Now, Kind: "place", Reason: "because"}}}, time.Time{}
		})
		w.nomad.set(func() {})
		w.rest()
		require.Equal(t, []string{
			`remuda_controller_actions_total{kind="register",result="done"} 2`,
			`remuda_controller_decisions_total{kind="place"} 1`,
			`remuda_controller_gateways 1`,
			`remuda_controller_in_flight{model="m",variant="v"} 5`,
			`remuda_controller_pool_up{pool=""} 1`,
			`remuda_controller_replicas{model="m",pool="",status="serving",tier="HOT",variant="v"} 2`,
			`remuda_controller_source_up{source="consul_engines"} 1`,
			`remuda_controller_source_up{source="nomad_jobs"} 1`,
			`remuda_controller_source_up{source="nomad_nodes"} 1`,
			`remuda_controller_target_replicas{model="m"} 3`,
		}, exposed(t, reg, "remuda_controller_actions", "remuda_controller_decisions", "remuda_controller_gateways", "remuda_controller_in_flight", "remuda_controller_pool_up",
			"remuda_controller_replicas", "remuda_controller_source_up", "remuda_controller_target_replicas"))
		require.Len(t, exposed(t, reg, "remuda_controller_reconcile_seconds_count"), 1)
		w.raft.depose()
		w.rest()
		require.Empty(t, exposed(t, reg, "remuda_controller_replicas", "remuda_controller_gateways"), "only the leader tells")
		require.NotEmpty(t, exposed(t, reg, "remuda_controller_actions"))
	})
	require.Empty(t, exposed(t, reg, ""), "they are unregistered")
}

// TestMetricsOfGPUs tells an operator's cordon from one because of memory that was not freed.
func TestMetricsOfGPUs(t *testing.T) {
	reg := prometheus.NewRegistry()
	inWorld(t, func(c *reconcile.Config) { c.Registerer = reg }, func(t *testing.T, w *world) {
		sick := node("n", 4)
		sick.GPUs[2].Healthy = false
		w.nomad.set(func() { w.nomad.nodes = []state.Node{sick} })
		w.rest()
		for gpu, reason := range map[string]string{"n-GPU0": "too hot", "n-GPU1": "80 bytes were not freed after m:v:1 went to sleep"} {
			w.raft.must(&state.Cordon{Node: "n", GPU: gpu, On: true, Reason: reason})
		}
		require.Equal(t, []string{
			`remuda_controller_gpus{node="name-n",state="cordoned"} 1`,
			`remuda_controller_gpus{node="name-n",state="memory_held"} 1`,
			`remuda_controller_gpus{node="name-n",state="ready"} 1`,
			`remuda_controller_gpus{node="name-n",state="unhealthy"} 1`,
		}, exposed(t, reg, "remuda_controller_gpus"))
	})
}

// TestMetricsOfDeletedModelsGo with the model.
func TestMetricsOfDeletedModelsGo(t *testing.T) {
	counters := []string{"remuda_controller_evictions", "remuda_controller_failovers", "remuda_controller_replacements"}
	reg := prometheus.NewRegistry()
	inWorld(t, func(c *reconcile.Config) { c.Registerer = reg }, func(t *testing.T, w *world) {
		w.script(func(v *state.View, o planner.Observation) (*state.Plan, time.Time) {
			if len(v.Decisions(nil, "", 0)) > 0 {
				return nil, time.Time{}
			}
			return &state.Plan{Decisions: []state.Decision{
				{Time: o.Now, Model: "m", Kind: planner.KindEvict, Reason: "it makes room"},
				{Time: o.Now, Model: "m", Kind: planner.KindReplaced, Reason: "it failed its requests"},
				{Time: o.Now, Model: "m", Kind: planner.KindFailover, Reason: "its engine died", Details: map[string]string{"cause": "exited"}},
			}}, time.Time{}
		})
		w.nomad.set(func() {})
		w.rest()
		require.Equal(t, []string{
			`remuda_controller_evictions_total{kind="evict",model="m"} 1`,
			`remuda_controller_failovers_total{cause="exited",model="m"} 1`,
			`remuda_controller_replacements_total{model="m"} 1`,
		}, exposed(t, reg, counters...))
		w.raft.must(&state.DeleteModel{Model: "m"})
		require.Empty(t, exposed(t, reg, counters...))
	})
}

// exposed returns the samples whose names begin so, in the text format.
func exposed(t *testing.T, reg *prometheus.Registry, prefixes ...string) []string {
	families, err := reg.Gather()
	require.NoError(t, err)
	var b strings.Builder
	for _, f := range families {
		_, err := expfmt.MetricFamilyToText(&b, f)
		require.NoError(t, err)
	}
	var out []string
	for line := range strings.Lines(b.String()) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "#") && slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(line, p) }) {
			out = append(out, line)
		}
	}
	return out
}

var errFail = errors.New("no")
