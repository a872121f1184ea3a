package planner_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/planner"
	"remuda/controller/state"
)

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// tick is how much time passes at each step.
const tick = 2 * time.Second

// world is a store, a little Nomad with its nodes, engines and gateways, and the loop
// that the reconciler is.
type world struct {
	t       require.TestingT
	rand    *rand.Rand
	updates *rand.Rand // of how models are updated
	store   *state.Store
	index   uint64
	entries [][]byte // the log
	plans   int      // and how many plans are in it
	// restarts draws when the store is made anew, from a snapshot and the entries since.
	restarts *rand.Rand
	snapshot []byte
	saved    int
	now      time.Time
	// keeps has what sleeping replicas of a model keep of each GPU, where that is not what its file says.
	keeps    map[string]int64
	passedAt map[string]time.Time
	unseen   time.Duration // from the wake of an engine until Consul shows it
	// degraded and takeovers are what shims of pairs say.
	degraded  map[string]string
	takeovers map[string]planner.Takeover
	// weightsLost are the pairs that sleep and whose shims say that their weights are lost.
	weightsLost map[string]bool
	conf        planner.Config
	nodes       map[string]*state.Node
	down        map[string]bool
	drains      map[string]time.Time
	nomad       map[string]*job
	index2      uint64 // Nomad's
	broken      map[string]bool
	dead        map[string]bool        // GPUs on which no engine runs
	missing     map[string][]state.GPU // GPUs that a node does not offer for now
	requests    map[string][]time.Time // when each request in flight ends
	clients     clients
	listed      map[string]planner.Job // what the watch has seen last
	listedAt    uint64                 // Nomad's index then
	wrote       map[string]uint64      // the index of each write that Nomad has acknowledged
	lags        bool                   // the watch may lag by any amount, and no leader crashes

	nomadOut, consulOut bool
	nomadSince          time.Time            // when it was heard again
	poolOut             map[string]bool      // external pools out of reach
	last                map[string]time.Time // when each replica had its newest request
	demand              map[string]time.Time
	gatewaysSince       time.Time
	// outcome, nil: everything goes well. It says what becomes of a sleep or a wake. A drain is
	// done once no request is on the engine.
	outcome func(kind planner.Kind, r *state.Replica) planner.OutcomeClass
	sleeps  int // and wakes that were asked for
	// registered is how often a job was written.
	registered int
	load       func() time.Duration
	gateways   bool
	events     []string
	leader     leader
}

func newWorld(t require.TestingT, r *rand.Rand) *world {
	s, err := state.New()
	require.NoError(t, err)
	w := &world{
		t: t, rand: r, store: s, now: epoch, conf: planner.DefaultConfig(),
		nodes: map[string]*state.Node{}, down: map[string]bool{}, drains: map[string]time.Time{}, nomad: map[string]*job{}, broken: map[string]bool{}, dead: map[string]bool{}, missing: map[string][]state.GPU{},
		poolOut: map[string]bool{}, keeps: map[string]int64{}, degraded: map[string]string{}, takeovers: map[string]planner.Takeover{}, weightsLost: map[string]bool{}, last: map[string]time.Time{}, demand: map[string]time.Time{}, gatewaysSince: epoch.Add(-24 * time.Hour),
		wrote: map[string]uint64{}, requests: map[string][]time.Time{}, clients: clients{of: map[string]*requests{}, bad: map[string]bool{}}, load: func() time.Duration { return 3 * tick }, gateways: true,
	}
	return w
}

// apply applies a command, or what a state.Proposal comes to.
func (w *world) apply(c any) state.Result {
	if r, ok := c.(state.Proposal); ok {
		resolved, err := r.Resolve(w.view())
		if err != nil {
			return state.Result{Err: err}
		}
		c = resolved
	}
	data, err := state.Encode(c.(state.Command))
	require.NoError(w.t, err)
	w.index++
	w.entries = append(w.entries, data)
	return w.store.Apply(w.index, data)
}

func (w *world) must(cs ...any) {
	for _, c := range cs {
		res := w.apply(c)
		if res.Err != nil {
			require.FailNow(w.t, "refused", "%T %+v: %v\n%s", c, c, res.Err, w.history())
		}
	}
}

func (w *world) view() *state.View { return w.store.View() }

func (w *world) log(format string, args ...any) {
	w.events = append(w.events, w.now.Sub(epoch).String()+" "+fmt.Sprintf(format, args...))
}

// holds fails the test, with what has happened, where something does not hold.
func (w *world) holds(ok bool, format string, args ...any) {
	if !ok {
		require.FailNow(w.t, fmt.Sprintf(format, args...), w.history())
	}
}

func (w *world) history() string {
	out := ""
	for _, e := range w.events[max(0, len(w.events)-60):] {
		out += e + "\n"
	}
	for _, r := range w.view().Replicas(nil) {
		out += fmt.Sprintf("%s %s->%q version %d on %s %v canary %v failures %d job %d\n", r.Name, r.Status, r.Goal, r.Version, r.Placement.Node, r.Placement.Seats, r.Canary, r.Failures, r.JobIndex)
	}
	for _, m := range w.view().Models(nil) {
		out += fmt.Sprintf("%s desired %s displaced %v stopped %v\n", m.Name, m.Desired, m.Displaced, m.Stopped)
		for v, r := range m.Rollouts {
			out += fmt.Sprintf("  rollout of %s: %s %d\n", v, r.Status, r.Version)
		}
	}
	for n, j := range w.nomad {
		out += fmt.Sprintf("job %s index %d stopped %v ended %v alloc %+v\n", n, j.Index, j.Stopped, j.Ended, j.alloc)
	}
	return out
}

// model writes a model as `remuda model apply` does.
func (w *world) model(m state.Model) {
	var have uint64
	if old := w.view().Model(nil, m.Name); old != nil {
		have = old.ModifyIndex
	}
	m.Desired = state.Any(m.Desired.Total())
	w.must(&state.UpsertModel{Model: m, ModifyIndex: have, Time: w.now})
}

func (w *world) addNodes(ns ...state.Node) {
	for _, n := range ns {
		w.nodes[n.ID] = &n
		w.must(&state.UpsertNodes{Nodes: []state.Node{n}})
	}
}

// setNode changes a node and tells the state, as the reconciler does.
func (w *world) setNode(id string, edit func(*state.Node)) {
	edit(w.nodes[id])
	w.must(&state.UpsertNodes{Nodes: []state.Node{*w.nodes[id]}})
}

// step lets the world go on by one tick.
func (w *world) step() {
	w.now = w.now.Add(tick)
	for _, id := range sorted(w.nodes) {
		if n := w.nodes[id]; w.down[id] && !n.WrittenOff && !n.DownSince.IsZero() && w.now.Sub(n.DownSince) >= w.conf.NodeGrace {
			w.setNode(id, func(n *state.Node) { n.WrittenOff = true })
			w.log("node %s is gone", id)
		}
	}
	for _, name := range sorted(w.nomad) {
		w.run(w.nomad[name])
	}
	w.physics()
	for name, ends := range w.requests {
		j := w.nomad[name]
		if j == nil || j.alloc == nil || j.alloc.Client != "running" {
			ends = nil
		}
		w.requests[name] = slices.DeleteFunc(ends, func(t time.Time) bool { return !t.After(w.now) })
	}
	w.ask()
}

// plan plans until there is nothing more to plan from what is seen now, and checks
// each plan. It returns when to look again.
func (w *world) plan(lagging bool) (plans int, next time.Time) {
	for range 20 {
		before := w.view()
		o := w.observe(lagging)
		p, again := planner.Plan(before, o, w.conf)
		same, sameNext := w.leads(before, o)
		w.holds(reflect.DeepEqual(p, same) && again.Equal(sameNext), "the plan of a new leader, due again %s, is\n%+v\nthat of one that has planned before, due again %s, is\n%+v", again, p, sameNext, same)
		if p == nil {
			return plans, again
		}
		plans++
		w.plans++
		changes := len(p.Remove) + len(p.Move) + len(p.Place) + len(p.Rollouts) + len(p.Decisions) + len(p.Scales) + len(p.Replacements) + len(p.Cordons) + len(p.Evictions) + len(p.Sleeps) + len(p.Unplaceable)
		if p.Dedicated != nil {
			changes++
		}
		w.holds(changes > 0 && changes < 1010, "a plan has %d changes", changes)
		for _, d := range p.Decisions {
			w.log("%s %s%s: %s", d.Kind, d.Model, d.Replica, d.Reason)
		}
		w.must(p)
		w.check(before, w.view(), o, p)
	}
	require.FailNow(w.t, "plans follow each other without end", w.history())
	return 0, time.Time{}
}

// round is one turn of the reconciler.
func (w *world) round() int {
	plans, _ := w.plan(false)
	actions := planner.Actions(w.view(), w.observe(false), w.conf)
	for _, a := range actions {
		w.act(a, false)
	}
	return plans + len(actions)
}

// turns runs the world for a while.
func (w *world) turns(n int) {
	for range n {
		w.round()
		w.step()
	}
}

// counts are of a model's replicas that stay, by phase and hash.
func (w *world) counts(model string) map[string]int {
	out := map[string]int{}
	for _, r := range w.view().ReplicasOf(nil, model) {
		out[fmt.Sprintf("%s %s", r.Status, w.hash(r))]++
	}
	return out
}

func (w *world) decisions(model, kind string) []*state.Decision {
	return slices.DeleteFunc(w.view().Decisions(nil, model, 0), func(d *state.Decision) bool { return d.Kind != kind })
}

func sorted[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
