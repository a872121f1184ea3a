package reconcile_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"remuda/controller/gatewayreport"
	"remuda/controller/nomad"
	"remuda/controller/planner"
	"remuda/controller/reconcile"
	"remuda/controller/shimclient"
	"remuda/controller/state"
	"remuda/internal/replica"
	"remuda/internal/testkit/shimtest"
)

func TestMain(m *testing.M) {
	// hashicorp/raft never answers what lay in its queue when it was shut down, and
	// whoever asked is not told.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("remuda/controller/raft.(*Node).await.func1"))
}

const loadTTL = 10 * time.Second

// world is a reconciler among fakes, on a clock that only moves when everybody waits.
type world struct {
	t       *testing.T
	raft    *fakeRaft
	nomad   *fakeNomad
	consul  *fakeConsul
	shims   *shimtest.Net
	pools   map[string]*fakeNomad
	loads   *gatewayreport.Store
	r       *reconcile.Reconciler
	cancel  context.CancelFunc
	stopped chan struct{}

	mu       sync.Mutex
	last     planner.Observation
	planned  int
	outcomes []planner.Outcome
	scripted func(*state.View, planner.Observation) (*state.Plan, time.Time)
}

// inWorld runs a test in a world with a model "m", whose replicas are of one GPU, and
// a node "n" with four.
func inWorld(t *testing.T, edit func(*reconcile.Config), test func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, raft: newFakeRaft(), nomad: newFakeNomad(), consul: newFakeConsul(), shims: shimtest.NewNet(), pools: map[string]*fakeNomad{}, loads: gatewayreport.New(loadTTL, time.Now), stopped: make(chan struct{})}
		cfg := reconcile.DefaultConfig()
		cfg.Raft, cfg.Nomad, cfg.Consul, cfg.Shims, cfg.Loads = w.raft, w.nomad, w.consul, shimclient.New(w.shims), w.loads
		cfg.NewPlanner, cfg.Actions, cfg.After = func(planner.Config) reconcile.Planner { return scriptedPlanner{w} }, actions, w.after
		if edit != nil {
			edit(&cfg)
		}
		for _, p := range cfg.Planner.Pools {
			if cfg.Pools == nil {
				cfg.Pools = map[string]reconcile.Nomad{}
			}
			w.pools[p.Name] = newFakeNomad()
			cfg.Pools[p.Name] = w.pools[p.Name]
		}
		var err error
		w.r, err = reconcile.New(cfg)
		require.NoError(t, err)
		w.raft.must(&state.UpsertModel{Model: state.Model{
			Name: "m", Max: 100, Priority: 50, Management: state.ManagementFull, Hash: "h1",
			Variants: []state.Variant{{Name: "v", GPUs: 1, Memory: 10, Cost: 1, Hash: "vh1"}},
		}})
		w.nomad.nodes = []state.Node{node("n", 4)}
		ctx, cancel := context.WithCancel(t.Context())
		w.cancel = cancel
		go func() {
			defer close(w.stopped)
			w.r.Run(ctx)
		}()
		w.raft.elect()
		w.rest()
		defer func() {
			cancel()
			<-w.stopped
		}()
		test(t, w)
	})
}

// rest waits until nothing is done any more.
func (w *world) rest() {
	time.Sleep(aWhile)
	synctest.Wait()
}

// pass lets time pass.
func (w *world) pass(d time.Duration) {
	time.Sleep(d)
	w.rest()
}

// scriptedPlanner is a planner that does as the world's script says.
type scriptedPlanner struct{ *world }

func (w scriptedPlanner) Plan(v *state.View, o planner.Observation) (*state.Plan, time.Time) {
	w.mu.Lock()
	w.last = o
	w.planned++
	script := w.scripted
	w.mu.Unlock()
	if script != nil {
		return script(v, o)
	}
	return simplePlan(v, o), time.Time{}
}

func (w *world) script(f func(*state.View, planner.Observation) (*state.Plan, time.Time)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.scripted = f
}

// seen is what the planner was last shown.
func (w *world) seen() planner.Observation {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}

func (w *world) plans() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.planned
}

func (w *world) replica(name string) *state.Replica {
	return w.raft.store.View().Replica(nil, name)
}

func (w *world) stage(name string) string {
	r := w.replica(name)
	if r == nil {
		return ""
	}
	return string(r.Status)
}

func (w *world) node(id string) *state.Node { return w.raft.store.View().Node(nil, id) }

// place puts new replicas on GPUs of n, from the first on.
func (w *world) place(ids ...string) {
	p := &state.Plan{ID: "test", Index: w.raft.store.View().Index(), Time: time.Now()}
	for i, id := range ids {
		p.Place = append(p.Place, placeOf(id, i))
	}
	w.raft.must(p)
}

// move changes a replica behind the reconciler's back.
func (w *world) move(name string, event state.Event) {
	w.raft.must(moveOf(w, name, event))
}

// running has replicas of these IDs that run.
func (w *world) running(ids ...string) {
	w.place(ids...)
	w.rest()
	var engines []replica.Engine
	for _, id := range ids {
		w.nomad.allocate("m:v:"+id, allocation("n"))
		engines = append(engines, engine(id))
	}
	w.consul.serve(engines...)
	w.rest()
	for _, id := range ids {
		require.Equal(w.t, "serving", w.stage("m:v:"+id))
	}
}

func placeOf(id string, gpu int) state.Place {
	uuid := fmt.Sprintf("n-GPU%d", gpu)
	return state.Place{
		Name: replica.Name{Model: "m", Variant: "v", ID: id}, Version: 1,
		Placement: state.Placement{Node: "n", Seats: []string{uuid + "#0"}, Memory: map[string]int64{uuid: 10}},
	}
}

func node(id string, gpus int) state.Node {
	n := state.Node{ID: id, Name: "name-" + id, Datacenter: "dc1", Pool: "default", Ready: true, HostMemory: 100, CPU: 1000}
	for g := range gpus {
		uuid := fmt.Sprintf("%s-GPU%d", id, g)
		n.GPUs = append(n.GPUs, state.GPU{UUID: uuid, Model: "H100", Memory: 100, Healthy: true, Seats: []string{uuid + "#0", uuid + "#1"}})
	}
	return n
}

func allocation(node string) nomad.Allocation {
	return nomad.Allocation{ID: "a1", Node: node, Desired: "run", Client: "running", Tasks: []nomad.Task{{Name: "primary", State: "running"}}}
}

func engine(id string) replica.Engine {
	return replica.Engine{Name: replica.Name{Model: "m", Variant: "v", ID: id}, Role: replica.RolePrimary, Passing: true, Token: replica.Token{Counter: 7}}
}

// simplePlan is the least of a planner: what serves runs, what has stopped goes.
func simplePlan(v *state.View, o planner.Observation) *state.Plan {
	p := &state.Plan{}
	for _, r := range v.Replicas(nil) {
		name := r.Name.String()
		to := state.Move{Replica: name, ModifyIndex: r.ModifyIndex}
		job, there := o.Jobs[name]
		switch {
		case r.Status == state.StatusStarting && o.EnginesKnown && len(o.Engines[name]) > 0 && o.Engines[name][0].Passing:
			to.Event = state.EventServing
		case o.InFlight[name]:
			continue
		case r.Status == state.StatusStopping && o.Pools[poolOf(v, r)].JobsKnown && (!there || job.Ended):
			p.Remove = append(p.Remove, state.Remove{Replica: name, ModifyIndex: r.ModifyIndex})
			continue
		default:
			continue
		}
		p.Move = append(p.Move, to)
	}
	if len(p.Move) == 0 && len(p.Remove) == 0 {
		return nil
	}
	return p
}

func poolOf(v *state.View, r *state.Replica) string {
	if n := v.Node(nil, r.Placement.Node); n != nil {
		return n.CapacityPool
	}
	return ""
}

// actions registers what should run and does not, stops what should not, and changes
// tiers.
func actions(v *state.View, o planner.Observation, _ planner.Config) []planner.Action {
	var out []planner.Action
	for _, r := range v.Replicas(nil) {
		name := r.Name.String()
		job, there := o.Jobs[name]
		a := planner.Action{Replica: name, Name: r.Name, Pool: poolOf(v, r), Index: job.Index, Reason: "test"}
		switch {
		case !o.Pools[a.Pool].JobsKnown || o.InFlight[name] && r.Status != state.StatusPlaced:
			continue
		case r.Status == state.StatusDraining && r.Leaving():
			a.Kind = planner.Drain
		case r.Status == state.StatusSleeping:
			a.Kind = planner.Sleep
		case r.Status == state.StatusWaking:
			a.Kind = planner.Wake
		case r.Status == state.StatusPlaced, (r.Status == state.StatusStarting || r.Status == state.StatusServing) && (!there || job.Stopped):
			a.Kind = planner.Register
		case (r.Status == state.StatusStopping || r.Status == state.StatusFailed) && there && !job.Stopped:
			a.Kind = planner.Stop
		default:
			continue
		}
		out = append(out, a)
	}
	for name, job := range o.Jobs {
		if v.Replica(nil, name) != nil || !o.Pools[job.Pool].JobsKnown {
			continue
		}
		a := planner.Action{Kind: planner.Stop, Replica: name, Name: job.Name, Pool: job.Pool, Reason: "test"}
		switch {
		case job.Ended:
			a.Kind = planner.Purge
		case job.Stopped:
			continue
		}
		out = append(out, a)
	}
	return out
}

// after is the least of planner.After: what was drained is stopped, what slept is WARM, what
// was woken or not drained is HOT, and the rest is stopped.
func (w *world) after(v *state.View, out planner.Outcome, _ time.Time, _ planner.Config) *state.Plan {
	w.mu.Lock()
	w.outcomes = append(w.outcomes, out)
	w.mu.Unlock()
	r := v.Replica(nil, out.Replica)
	if r != nil && out.Kind == planner.Drain && out.Class == planner.Done && r.Status == state.StatusDraining {
		return &state.Plan{Move: []state.Move{{Replica: out.Replica, ModifyIndex: r.ModifyIndex, Event: state.EventStop}}}
	}
	if r == nil || out.Class == planner.Unreachable || r.Status != state.StatusSleeping && r.Status != state.StatusWaking {
		return nil
	}
	to := state.Move{Replica: out.Replica, ModifyIndex: r.ModifyIndex, Event: state.EventServing}
	switch {
	case out.Class == planner.Done && out.Kind == planner.Sleep:
		to.Event = state.EventSlept
		for _, kept := range out.Kept {
			to.SleepMemory = &kept
		}
	case out.Class != planner.Done && out.Class != planner.NotDrained:
		to.Event, to.Goal, to.LastError = state.EventStop, state.GoalCold, &out.Error
	}
	return &state.Plan{Move: []state.Move{to}}
}

// ended are the outcomes so far.
func (w *world) ended() []planner.Outcome {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.outcomes)
}
