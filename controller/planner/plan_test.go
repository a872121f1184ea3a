package planner_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/planner"
	"remuda/controller/state"
	"remuda/internal/replica"
)

// fresh is a world with nodes of two GPUs each, of two seats and 80 bytes.
func fresh(t *testing.T, nodes ...string) *world {
	w := newWorld(t, rand.New(rand.NewPCG(1, 2)))
	for _, n := range nodes {
		w.addNodes(node(n, 2))
	}
	return w
}

// deployed is such a world in which the model m has replicas of variant a that serve.
func deployed(t *testing.T, replicas int, nodes ...string) *world {
	w := fresh(t, nodes...)
	w.model(model("m", replicas, variant("a", "h1")))
	w.turns(8)
	require.Equal(t, map[string]int{"serving h1": replicas}, w.counts("m"))
	require.Zero(t, w.round(), "it is at rest")
	return w
}

func (w *world) scale(n int) {
	w.must(&state.ScaleRequest{Model: "m", Replicas: &n, Origin: state.OriginOperator})
}

// only returns the one replica of m that is so.
func (w *world) only(so func(*state.Replica) bool) *state.Replica {
	var found *state.Replica
	for _, r := range w.view().ReplicasOf(nil, "m") {
		if so(r) {
			require.Nil(w.t, found, "there are two")
			found = r
		}
	}
	require.NotNil(w.t, found, w.history())
	return found
}

func withStatus(s state.Status) func(*state.Replica) bool {
	return func(r *state.Replica) bool { return r.Status == s }
}

func (w *world) lastPlan() *state.Plan {
	p, _ := planner.Plan(w.view(), w.observe(false), w.conf)
	return p
}

func TestDeploy(t *testing.T) {
	t.Parallel()
	t.Run("the cheapest variant first, then the file's order, and what does not fit is skipped", func(t *testing.T) {
		t.Parallel()
		w := fresh(t, "n0")
		huge := variant("huge", "h3", func(v *state.Variant) { v.Cost, v.GPUs = 0.5, 8 })
		dear := variant("dear", "h1", func(v *state.Variant) { v.Cost = 2 })
		w.model(model("m", 3, huge, dear, variant("second", "h2"), variant("third", "h4")))
		w.turns(8)
		require.Equal(t, map[string]int{"serving h2": 3}, w.counts("m"))
	})
	t.Run("numbers of variants come first", func(t *testing.T) {
		t.Parallel()
		w := fresh(t, "n0", "n1")
		w.model(model("m", 3, variant("a", "h1"), variant("b", "h2", func(v *state.Variant) { v.Cost = 9 })))
		two := 2
		w.must(&state.ScaleRequest{Model: "m", Variants: map[string]int{"b": two}, Origin: state.OriginOperator})
		w.turns(8)
		require.Equal(t, 2, w.counts("m")["serving h2"])
	})
	t.Run("pairs take two seats of one GPU", func(t *testing.T) {
		t.Parallel()
		w := fresh(t, "n0")
		m := model("m", 2, variant("a", "h1"))
		m.Failover = true
		w.model(m)
		w.turns(8)
		for _, r := range w.view().ReplicasOf(nil, "m") {
			require.Len(t, r.Placement.Seats, 2)
			require.Len(t, r.Placement.Memory, 1)
		}
		require.Equal(t, map[string]int{"serving h1": 2}, w.counts("m"))
	})
	t.Run("what cannot be placed is said once, with a reason for each node, and is placed when there is room", func(t *testing.T) {
		t.Parallel()
		w := fresh(t, "n0", "n1")
		w.setNode("n1", func(n *state.Node) { n.Ready = false })
		w.model(model("m", 6, variant("a", "h1")))
		w.turns(8)
		require.Equal(t, map[string]int{"serving h1": 4}, w.counts("m"))
		said := w.decisions("m", planner.KindCannotPlace)
		require.Len(t, said, 1)
		require.Equal(t, "not ready", said[0].Details["node n1"])
		require.Contains(t, said[0].Details["node n0"], "too few free seats")
		require.Contains(t, said[0].Reason, "2 of 6 replicas are missing")
		w.setNode("n1", func(n *state.Node) { n.Ready = true })
		w.turns(8)
		require.Equal(t, map[string]int{"serving h1": 6}, w.counts("m"))
	})
	t.Run("the higher priority gets the last seats", func(t *testing.T) {
		t.Parallel()
		w := fresh(t, "n0")
		low, high := model("a", 4, variant("a", "h1")), model("z", 4, variant("a", "h2"))
		low.Priority, high.Priority = 10, 90
		w.must(&state.UpsertModels{Models: []state.UpsertModel{{Model: low, Time: epoch}, {Model: high, Time: epoch}}})
		w.turns(8)
		require.Empty(t, w.counts("a"))
		require.Equal(t, map[string]int{"serving h2": 4}, w.counts("z"))
	})
	t.Run("a node with the weights is preferred", func(t *testing.T) {
		t.Parallel()
		w := deployed(t, 1, "n0", "n1")
		w.must(&state.UpsertNodes{Nodes: []state.Node{node("n2", 1)}})
		r := w.only(withStatus(state.StatusServing))
		w.setNode("n0", func(n *state.Node) { n.Ready = false })
		w.scale(2)
		w.turns(8)
		other := w.only(func(o *state.Replica) bool { return o.Name != r.Name })
		require.Equal(t, "n1", other.Placement.Node)
		w.must(&state.EvictRequest{Replica: other.Name.String(), To: state.GoalCold, Time: w.now})
		w.turns(8)
		require.Equal(t, state.Cold, w.view().Replica(nil, other.Name.String()).Tier())
		w.setNode("n0", func(n *state.Node) { n.Ready = true })
		w.scale(2)
		w.turns(8)
		last := w.only(func(o *state.Replica) bool { return o.Name != r.Name })
		require.Equal(t, "n1", last.Placement.Node, "and not n0, which is fuller")
		require.Equal(t, state.Hot, last.Tier(), "the memory of the weights is gone, they are in use")
	})
	t.Run("what goes makes room in the same plan", func(t *testing.T) {
		t.Parallel()
		w := deployed(t, 4, "n0")
		w.model(model("z", 1, variant("a", "h2")))
		w.plan(false)
		w.scale(3)
		var p *state.Plan
		w.until(func() bool { p = w.lastPlan(); return p != nil && len(p.Remove) > 0 })
		require.Len(t, p.Place, 1)
		require.Equal(t, "z", p.Place[0].Name.Model)
	})
	t.Run("much comes in several plans, none of them too large", func(t *testing.T) {
		t.Parallel()
		w := fresh(t)
		for i := range 5 {
			w.addNodes(node(fmt.Sprintf("n%d", i), 80))
		}
		w.model(model("m", 800, variant("a", "h1")))
		for range 2 {
			before := w.view()
			o := w.observe(false)
			p, next := planner.Plan(before, o, w.conf)
			require.Less(t, len(p.Place)+len(p.Decisions), 1010)
			w.must(p)
			if len(w.view().Replicas(nil)) < 800 {
				require.Equal(t, w.now.Add(1), next, "the next plan follows at once")
			}
		}
		require.Len(t, w.view().Replicas(nil), 800)
		w.turns(6)
		w.scale(0)
		w.turns(12)
		require.Empty(t, w.view().Replicas(nil))
	})
	t.Run("names are new, and the same for every leader", func(t *testing.T) {
		t.Parallel()
		w := fresh(t, "n0", "n1")
		w.model(model("m", 5, variant("a", "h1")))
		one, two := w.lastPlan(), w.lastPlan()
		require.Equal(t, one, two)
		names := map[string]bool{}
		for _, p := range one.Place {
			names[p.Name.String()] = true
		}
		require.Len(t, names, 5)
		o := w.observe(false)
		o.Jobs[one.Place[0].Name.String()] = planner.Job{Name: one.Place[0].Name, Stopped: true, Index: 1}
		again, _ := planner.Plan(w.view(), o, w.conf)
		require.NotEqual(t, one.Place[0].Name, again.Place[0].Name, "a job of that name is there")
	})
}

func TestScaleDown(t *testing.T) {
	t.Parallel()
	t.Run("what does not run goes first, and is stopped at once", func(t *testing.T) {
		t.Parallel()
		w := deployed(t, 2, "n0", "n1")
		w.load = func() time.Duration { return time.Hour }
		w.scale(4)
		w.turns(2)
		w.scale(2)
		w.plan(false)
		require.Equal(t, map[string]int{"serving h1": 2, "stopping h1": 2}, w.counts("m"))
	})
	t.Run("then the dearest, the idlest, the youngest; drained", func(t *testing.T) {
		t.Parallel()
		w := fresh(t, "n0", "n1")
		w.model(model("m", 3, variant("a", "h1", func(v *state.Variant) { v.Cost = 2 }), variant("b", "h2")))
		one := 1
		w.must(&state.ScaleRequest{Model: "m", Variants: map[string]int{"a": one}, Origin: state.OriginOperator})
		w.turns(10)
		w.scale(4) // the numbers of variants are forgotten
		require.Equal(t, map[string]int{"serving h1": 1, "serving h2": 3}, w.counts("m"))
		var idle string
		for _, r := range w.view().ReplicasOf(nil, "m") {
			name := r.Name.String()
			if w.hash(r) == "h2" && idle == "" {
				idle = name
				continue
			}
			w.requests[name] = []time.Time{w.now.Add(time.Hour)}
		}
		w.scale(3)
		w.plan(false)
		require.Equal(t, "h1", w.hash(w.only(withStatus(state.StatusDraining))), "the dearest")
		w.scale(2)
		p := w.lastPlan()
		require.Len(t, p.Move, 1)
		require.Equal(t, idle, p.Move[0].Replica, "the idlest")
		require.Equal(t, state.EventDrain, p.Move[0].Event)
	})
	t.Run("the youngest of equals", func(t *testing.T) {
		t.Parallel()
		for _, first := range []int{1, 2, 3, 4, 5} {
			w := deployed(t, first, "n0", "n1", "n2")
			old := map[string]bool{}
			for _, r := range w.view().ReplicasOf(nil, "m") {
				old[r.Name.String()] = true
			}
			w.scale(10)
			w.turns(8)
			w.scale(first)
			w.plan(false)
			for _, r := range w.view().ReplicasOf(nil, "m") {
				require.Equal(t, old[r.Name.String()], r.Status == state.StatusServing)
			}
		}
	})
	t.Run("a stopped model loses everything, and may start again", func(t *testing.T) {
		t.Parallel()
		w := deployed(t, 3, "n0", "n1")
		yes, no := true, false
		w.must(&state.ScaleRequest{Model: "m", Stopped: &yes, Origin: state.OriginOperator})
		w.turns(8)
		require.Empty(t, w.view().ReplicasOf(nil, "m"))
		require.Empty(t, w.nomad, "the jobs are purged")
		w.must(&state.ScaleRequest{Model: "m", Stopped: &no, Origin: state.OriginOperator})
		w.turns(8)
		require.Equal(t, map[string]int{"serving h1": 3}, w.counts("m"))
	})
	t.Run("what fails in the same moment counts", func(t *testing.T) {
		t.Parallel()
		w := deployed(t, 2, "n0", "n1")
		w.broken["h1"] = true
		w.scale(3)
		for range 20 {
			w.plan(false)
			for _, a := range planner.Actions(w.view(), w.observe(false), w.conf) {
				w.act(a, false)
			}
			w.step()
			if j := w.nomad[w.only(func(r *state.Replica) bool { return r.Status != state.StatusServing }).Name.String()]; j != nil && j.alloc != nil && j.alloc.Failed {
				break
			}
		}
		w.now = w.now.Add(w.conf.SettleTime)
		w.scale(2)
		w.plan(false)
		require.Equal(t, 2, w.counts("m")["serving h1"], "no healthy one goes for it")
	})
}

func TestDrain(t *testing.T) {
	t.Parallel()
	draining := func(t *testing.T) (*world, *state.Replica) {
		w := deployed(t, 2, "n0")
		for _, r := range w.view().ReplicasOf(nil, "m") {
			w.requests[r.Name.String()] = []time.Time{w.now.Add(time.Hour)}
		}
		w.scale(1)
		w.plan(false)
		return w, w.only(withStatus(state.StatusDraining))
	}
	t.Run("it waits for requests", func(t *testing.T) {
		t.Parallel()
		w, r := draining(t)
		w.turns(20)
		require.Equal(t, state.StatusDraining, w.view().Replica(nil, r.Name.String()).Status)
		require.False(t, w.nomad[r.Name.String()].Stopped)
		w.requests[r.Name.String()] = nil
		w.turns(6)
		require.Nil(t, w.view().Replica(nil, r.Name.String()))
		require.NotContains(t, w.nomad, r.Name.String())
	})
	t.Run("but not longer than the timeout, which is known beforehand", func(t *testing.T) {
		t.Parallel()
		w, r := draining(t)
		_, next := planner.Plan(w.view(), w.observe(false), w.conf)
		require.Equal(t, r.Since.Add(w.conf.DrainTimeout), next)
		w.now = next.Add(-1)
		require.Nil(t, w.lastPlan())
		w.now = next
		w.plan(false)
		require.Equal(t, state.StatusStopping, w.view().Replica(nil, r.Name.String()).Status)
		require.Equal(t, "1", w.decisions("m", planner.KindDrainTimeout)[0].Details["in_flight"])
	})
	t.Run("its seats are its own until the job has ended", func(t *testing.T) {
		t.Parallel()
		w, r := draining(t)
		w.requests = map[string][]time.Time{}
		w.round()
		w.round()
		require.Equal(t, state.StatusStopping, w.view().Replica(nil, r.Name.String()).Status)
		w.nomadOut = true
		w.now = w.now.Add(time.Hour)
		w.turns(3)
		require.NotNil(t, w.view().Replica(nil, r.Name.String()), "nothing is concluded while Nomad is out of reach")
		w.nomadOut = false
		w.turns(3)
		require.Nil(t, w.view().Replica(nil, r.Name.String()))
	})
	t.Run("a job that is not listed yet is not one that has ended", func(t *testing.T) {
		t.Parallel()
		w := fresh(t, "n0")
		w.model(model("m", 1, variant("a", "h1")))
		w.observe(false) // what the watch has seen
		w.plan(false)
		w.act(planner.Actions(w.view(), w.observe(true), w.conf)[0], true)
		w.scale(0)
		w.plan(true)
		require.Len(t, w.view().ReplicasOf(nil, "m"), 1, "its job may be on its way")
		w.turns(6)
		require.Empty(t, w.view().ReplicasOf(nil, "m"))
		require.Empty(t, w.nomad)
	})
}

// TestProfiles: a profile changes constants alone, never a setting of the config file.
func TestProfiles(t *testing.T) {
	t.Parallel()
	production := planner.DefaultConfig()
	require.Equal(t, production, production.Profiled())
	simulation := production
	simulation.Profile = planner.ProfileSimulation
	profiled := simulation.Profiled()
	require.NoError(t, profiled.Validate())
	require.Less(t, profiled.ThrashWindow, production.ThrashWindow)
	before, after := reflect.ValueOf(simulation), reflect.ValueOf(profiled)
	for i := range before.NumField() {
		if f := before.Type().Field(i); f.Tag.Get("hcl") != "" {
			require.Equal(t, before.Field(i).Interface(), after.Field(i).Interface(), f.Name)
		}
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	require.NoError(t, planner.DefaultConfig().Validate())
	err := planner.Config{Backoff: time.Second}.Validate()
	for _, field := range []string{"node_grace", "drain_timeout", "canary_time", "serving_grace", "place_timeout", "steady_time", "settle_time", "backoff_max", "restarts"} {
		require.ErrorContains(t, err, field)
	}
}

// TestPause stops everything.
func TestPause(t *testing.T) {
	t.Parallel()
	w := fresh(t, "n0")
	w.model(model("m", 1, variant("a", "h1")))
	w.plan(false)
	w.scale(2)
	require.NotNil(t, w.lastPlan())
	require.NotEmpty(t, planner.Actions(w.view(), w.observe(false), w.conf))
	w.must(&state.SetSwitch{Name: state.SwitchPauseReconcile, Value: "true"})
	p, next := planner.Plan(w.view(), w.observe(false), w.conf)
	require.Nil(t, p)
	require.Zero(t, next)
	require.Empty(t, planner.Actions(w.view(), w.observe(false), w.conf))
}

// TestManagementDisabled: nothing is scaled, what dies is brought back.
func TestManagementDisabled(t *testing.T) {
	t.Parallel()
	w := fresh(t, "n0", "n1")
	m := model("m", 2, variant("a", "h1"))
	m.Management = state.ManagementDisabled
	w.model(m)
	w.turns(8)
	w.strange("h1", "n0-GPU1#1")
	w.turns(8)
	require.Equal(t, map[string]int{"serving h1": 3}, w.counts("m"), "what was found running stays")
	on := map[string]int{}
	for _, r := range w.view().ReplicasOf(nil, "m") {
		on[r.Placement.Node]++
	}
	w.down["n0"] = true
	w.setNode("n0", func(n *state.Node) { n.WrittenOff, n.Ready = true, false })
	w.turns(10)
	require.Equal(t, map[string]int{"serving h1": max(2, 3-on["n0"])}, w.counts("m"))
	yes := true
	w.must(&state.ScaleRequest{Model: "m", Stopped: &yes, Origin: state.OriginOperator})
	w.turns(10)
	require.Empty(t, w.counts("m"), "people may always stop a model")
}

// strange puts a job of m into Nomad that the state knows nothing of.
func (w *world) strange(hash string, seats ...string) *job {
	p := state.Placement{Node: "n0", Seats: seats, Memory: map[string]int64{}, HostMemory: 10}
	for _, s := range seats {
		p.Memory[s[:len(s)-2]] = 30
	}
	w.index2++
	name := replica.Name{Model: "m", Variant: "a", ID: "stranger"}
	j := &job{Job: planner.Job{Name: name, Hash: hash, Placement: p, Index: w.index2}, strange: true}
	w.nomad[name.String()] = j
	return j
}

func BenchmarkPlan(b *testing.B) {
	w := newWorld(b, rand.New(rand.NewPCG(1, 2)))
	for i := range 100 {
		w.addNodes(node(string(rune('a'+i/26))+string(rune('a'+i%26)), 8))
	}
	for i := range 10 {
		w.model(model("m"+string(rune('0'+i)), 100, variant("a", "h1")))
	}
	w.load = func() time.Duration { return tick }
	empty := w.view()
	nothing := w.observe(false)
	w.turns(6)
	running := w.view()
	o := w.observe(false)
	require.Len(b, running.Replicas(nil), 1000)
	b.Run("nothing-to-do", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if p, _ := planner.Plan(running, o, w.conf); p != nil {
				b.Fatal("there is nothing to do")
			}
		}
	})
	b.Run("actions", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if as := planner.Actions(running, o, w.conf); len(as) > 0 {
				b.Fatal("there is nothing to do")
			}
		}
	})
	b.Run("place-500", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			p, _ := planner.Plan(empty, nothing, w.conf)
			if len(p.Place) != 500 { // a full plan
				b.Fatal(len(p.Place))
			}
		}
	})
}
