package planner_test

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/placement"
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
	conf     planner.Config
	nodes    map[string]*state.Node
	down     map[string]bool
	drains   map[string]time.Time
	nomad    map[string]*job
	index2   uint64 // Nomad's
	broken   map[string]bool
	dead     map[string]bool        // GPUs on which no engine runs
	missing  map[string][]state.GPU // GPUs that a node does not offer for now
	requests map[string][]time.Time // when each request in flight ends
	clients  clients
	listed   map[string]planner.Job // what the watch has seen last
	listedAt uint64                 // Nomad's index then
	wrote    map[string]uint64      // the index of each write that Nomad has acknowledged
	lags     bool                   // the watch may lag by any amount, and no leader crashes

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

type job struct {
	planner.Job
	alloc    *planner.Alloc
	serves   time.Time // when the engine serves; zero: never
	retries  time.Time // of a broken one
	ends     time.Time // of an allocation that was told to stop
	allocs   int
	drifting string
	// asleep: its engine has given its memory back. using is what is really in use of
	// each GPU, and host of the node's memory, as long as the process is there.
	asleep bool
	// strange: it was not made by us, and takes what it likes.
	strange bool
	using   map[string]int64
	// moved is what it takes of the GPUs to which its last wake moved it, nil where none did. Its
	// shim keeps them in the allocation's directory, and starts the engine there again.
	moved map[string]int64
	host  int64
}

// live reports whether a process of it may be there.
func (j *job) live() bool {
	return j.alloc != nil && slices.Contains([]string{"pending", "running", "unknown"}, j.alloc.Client)
}

func newWorld(t require.TestingT, r *rand.Rand) *world {
	s, err := state.New()
	require.NoError(t, err)
	w := &world{
		t: t, rand: r, store: s, now: epoch, conf: planner.DefaultConfig(),
		nodes: map[string]*state.Node{}, down: map[string]bool{}, drains: map[string]time.Time{}, nomad: map[string]*job{}, broken: map[string]bool{}, dead: map[string]bool{}, missing: map[string][]state.GPU{},
		poolOut: map[string]bool{}, last: map[string]time.Time{}, demand: map[string]time.Time{}, gatewaysSince: epoch.Add(-24 * time.Hour),
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

// restart sometimes makes the store anew, as a server that restarts or that is a new leader
// has it: from its last snapshot and the log behind it.
func (w *world) restart() {
	switch w.restarts.IntN(12) {
	case 0:
		w.snapshot, w.saved = w.save(w.store), len(w.entries)
	case 1:
		live := w.save(w.store)
		w.store = w.replay(w.snapshot, w.saved)
		require.True(w.t, bytes.Equal(live, w.save(w.store)), "a restarted server has another state")
	}
}

func (w *world) save(s *state.Store) []byte {
	var b bytes.Buffer
	_, err := s.View().WriteSnapshot(&b, state.FeatureLevel)
	require.NoError(w.t, err)
	return b.Bytes()
}

// replay returns the store that a snapshot, nil for none, and the entries behind it make.
func (w *world) replay(snapshot []byte, applied int) *state.Store {
	s, err := state.New()
	require.NoError(w.t, err)
	if snapshot != nil {
		_, err := s.Restore(bytes.NewReader(snapshot), state.FeatureLevel)
		require.NoError(w.t, err)
	}
	for i, data := range w.entries[applied:] {
		s.Apply(uint64(applied+i+1), data)
	}
	return s
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

// usedNow returns the definition from which replicas of a variant are placed, except for a
// canary, and whether they are pairs.
func (w *world) usedNow(view *state.View, m *state.Model, v state.Variant) (state.Variant, bool) {
	if m.Rollouts[v.Name].Status != state.RolloutCanary {
		return v, m.Failover
	}
	stable := view.Versions(nil, m.Name).Get(m.StableVersion)
	return *stable.Variant(v.Name), stable.Model.Failover
}

// hash is of the definition that a replica was made from.
func (w *world) hash(r *state.Replica) string { return w.view().VariantOf(nil, r).Hash }

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

func variant(name, hash string, edit ...func(*state.Variant)) state.Variant {
	v := state.Variant{Name: name, GPUs: 1, Memory: 30, HostMemory: 10, Cost: 1, Hash: hash}
	for _, e := range edit {
		e(&v)
	}
	return v
}

func model(name string, replicas int, vs ...state.Variant) state.Model {
	m := state.Model{Name: name, Max: 1000, Priority: 50, Management: state.ManagementFull, Desired: state.Any(replicas), Variants: vs}
	for _, v := range vs {
		m.Hash += v.Hash + " "
	}
	return m
}

func node(id string, gpus int) state.Node {
	n := state.Node{ID: id, Name: id, Datacenter: "dc1", Ready: true, HostMemory: 1000, CPU: 1000}
	for g := range gpus {
		gpu := state.GPU{UUID: fmt.Sprintf("%s-GPU%d", id, g), Model: "H100", Clique: "c", Memory: 80, Healthy: true}
		for s := range 2 {
			gpu.Seats = append(gpu.Seats, fmt.Sprintf("%s#%d", gpu.UUID, s))
		}
		n.GPUs = append(n.GPUs, gpu)
	}
	return n
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

// run lets one job of Nomad's go on.
func (w *world) run(j *job) {
	n := w.nodes[j.Placement.Node]
	reachable := n != nil && !w.down[n.ID]
	a := j.alloc
	live := a != nil && (a.Client == "pending" || a.Client == "running" || a.Client == "unknown")
	switch {
	case live && !reachable:
		a.Client = "unknown"
		j.serves = time.Time{}
	case live && a.Client == "unknown": // the node is back
		a.Client, a.Started = "running", w.now
		j.serves = w.now.Add(w.load())
		j.begin()
	case live && j.Stopped:
		if j.ends.IsZero() {
			j.ends = w.now.Add(tick)
		}
		if !w.now.Before(j.ends) {
			a.Client = "complete"
		}
	case live && n.Draining && w.now.Sub(w.drains[n.ID]) > 30*tick: // Nomad's drain has a deadline
		a.Client = "complete"
		j.serves = time.Time{}
	case live && a.Client == "pending":
		a.Client, a.Started = "running", w.now
		j.serves = w.now.Add(w.load())
		j.begin()
		if w.crashes(j) {
			j.serves, j.retries = time.Time{}, w.now.Add(tick)
		}
	case live && w.crashes(j) && j.serves.IsZero() && !j.asleep && !w.now.Before(j.retries):
		a.Restarts++
		a.Started, a.Event, j.retries = w.now, "Exit Code: 1", w.now.Add(tick)
		if a.Restarts > 2 {
			a.Client, a.Failed = "failed", true
		}
	case live && j.serves.IsZero() && !w.crashes(j) && !j.asleep:
		j.serves = w.now.Add(w.load())
	case !live && !j.Stopped && (a == nil || !a.Failed) && j.Problem == "" && reachable && n.Ready && !n.Draining:
		for _, s := range j.Placement.Seats {
			if w.occupied(s, j) || !offers(n, s) {
				return
			}
		}
		j.allocs++
		j.alloc = &planner.Alloc{ID: fmt.Sprintf("%s/%d", j.Name.ID[:4], j.allocs), Client: "pending"}
		j.serves, j.ends = time.Time{}, time.Time{}
		if j.asleep || j.moved != nil { // Nomad starts it anew on its own account, with a new directory
			j.asleep, j.strange, j.moved = false, true, nil
		}
	}
}

// crashes reports whether the engine of a job ends whenever it starts.
func (w *world) crashes(j *job) bool {
	for gpu := range j.starts() {
		if w.dead[gpu] {
			return true
		}
	}
	return w.broken[j.Hash]
}

// offers reports whether Nomad gives a seat of a node to a new allocation.
func offers(n *state.Node, seat string) bool {
	return slices.ContainsFunc(n.GPUs, func(g state.GPU) bool { return g.Healthy && slices.Contains(g.Seats, seat) })
}

// editGPU changes a GPU of a node as Nomad reports it.
func (w *world) editGPU(gpu string, edit func(*state.GPU)) {
	id, _, _ := strings.Cut(gpu, "-GPU")
	w.setNode(id, func(n *state.Node) {
		n.GPUs = slices.Clone(n.GPUs)
		for i := range n.GPUs {
			if n.GPUs[i].UUID == gpu {
				edit(&n.GPUs[i])
			}
		}
	})
}

// sicken makes a GPU unhealthy, or healthy again.
func (w *world) sicken(gpu string, healthy bool) {
	w.log("GPU %s is healthy: %v", gpu, healthy)
	w.editGPU(gpu, func(g *state.GPU) {
		g.Healthy, g.Reason = healthy, ""
		if !healthy {
			g.Reason = "XID 79"
		}
	})
	if healthy {
		delete(w.dead, gpu)
	}
}

// lose takes a GPU out of what its node offers.
func (w *world) lose(gpu string) {
	w.log("GPU %s is not offered any more", gpu)
	id, _, _ := strings.Cut(gpu, "-GPU")
	w.setNode(id, func(n *state.Node) {
		var kept []state.GPU
		for _, g := range n.GPUs {
			if g.UUID == gpu {
				w.missing[id] = append(w.missing[id], g)
			} else {
				kept = append(kept, g)
			}
		}
		n.GPUs = kept
	})
}

// offerAll has a node offer all its GPUs again.
func (w *world) offerAll(id string) {
	w.log("node %s offers all its GPUs", id)
	w.setNode(id, func(n *state.Node) {
		for _, g := range w.missing[id] {
			delete(w.dead, g.UUID)
		}
		n.GPUs = append(slices.Clone(n.GPUs), w.missing[id]...)
		slices.SortFunc(n.GPUs, func(a, b state.GPU) int { return strings.Compare(a.UUID, b.UUID) })
		w.missing[id] = nil
	})
}

// kill ends the engines on a GPU. Until it is healthy or offered again, none runs there.
func (w *world) kill(gpu string) {
	w.log("the engines on GPU %s end", gpu)
	w.dead[gpu] = true
	for _, name := range sorted(w.nomad) {
		if j := w.nomad[name]; j.alloc != nil && j.alloc.Client == "running" && !j.asleep && j.using[gpu] > 0 {
			j.alloc.Client, j.alloc.Event, j.serves, j.using = "pending", "Exit Code: 1", time.Time{}, nil
			j.alloc.Restarts++
		}
	}
}

// starts is what its engine takes of which GPUs when it starts.
func (j *job) starts() map[string]int64 {
	if j.moved != nil {
		return j.moved
	}
	return j.Placement.Memory
}

// begin is the start of a process: it takes its GPUs.
func (j *job) begin() {
	j.using, j.host = j.starts(), 0
	if j.asleep { // its shim is parked, and starts no engine
		j.using = nil
	}
}

// physics looks at what is really on each GPU and in each node's memory: never more than
// there is.
func (w *world) physics() {
	used, host := map[string]int64{}, map[string]int64{}
	for _, name := range sorted(w.nomad) {
		j := w.nomad[name]
		if !j.live() || j.strange {
			continue
		}
		for gpu, bytes := range j.using {
			used[gpu] += bytes
		}
		host[j.Placement.Node] += j.host
	}
	for _, id := range sorted(w.nodes) {
		n := w.nodes[id]
		for _, g := range n.GPUs {
			w.holds(used[g.UUID] <= g.Memory, "GPU %s has %d bytes and %d are in use", g.UUID, g.Memory, used[g.UUID])
		}
		w.holds(host[id] <= n.HostMemory, "node %s has %d bytes and %d are in use", id, n.HostMemory, host[id])
	}
}

func (w *world) occupied(seat string, but *job) bool {
	for _, other := range w.nomad {
		if other != but && other.alloc != nil && slices.Contains([]string{"pending", "running", "unknown"}, other.alloc.Client) && slices.Contains(other.Placement.Seats, seat) {
			return true
		}
	}
	return false
}

func (j *job) serving(now time.Time) bool {
	return j.alloc != nil && j.alloc.Client == "running" && !j.asleep && !j.serves.IsZero() && !now.Before(j.serves)
}

// list is what Nomad would answer now.
func (w *world) list() map[string]planner.Job {
	out := map[string]planner.Job{}
	for name, j := range w.nomad {
		p := j.Job
		if n := w.nodes[p.Placement.Node]; n != nil {
			p.Pool = n.CapacityPool
		}
		p.Ended = j.Stopped
		if j.alloc != nil {
			a := *j.alloc
			p.Alloc = &a
			p.Ended = j.Stopped && (a.Client == "complete" || a.Client == "failed")
		}
		out[name] = p
	}
	return out
}

// relist has the watch see Nomad as it is.
func (w *world) relist() { w.listed, w.listedAt = w.list(), w.index2 }

// observe returns what is seen; lagging shows Nomad's lists as they were.
func (w *world) observe(lagging bool) planner.Observation {
	if w.listed == nil || !lagging {
		w.relist()
	}
	o := planner.Observation{
		Now: w.now, Jobs: map[string]planner.Job{}, Pools: map[string]planner.PoolView{"": {JobsKnown: !w.nomadOut, JobsSince: w.nomadSince}}, Engines: map[string][]planner.Engine{}, EnginesKnown: !w.consulOut,
		Loads: map[string]planner.Load{}, InFlight: map[string]bool{},
	}
	v := w.view()
	for name, index := range w.wrote {
		o.InFlight[name] = index > w.listedAt
	}
	for _, r := range v.Replicas(nil) {
		if r.JobIndex > w.listedAt {
			o.InFlight[r.Name.String()] = true
		}
	}
	for name, j := range w.listed {
		if r := v.Replica(nil, name); r != nil && r.JobIndex != 0 && j.Index != r.JobIndex {
			j.Drift = append(j.Drift, fmt.Sprintf("index %d, not %d", j.Index, r.JobIndex))
		}
		o.Jobs[name] = j
	}
	for _, p := range w.conf.Pools {
		o.Pools[p.Name] = planner.PoolView{JobsKnown: !w.poolOut[p.Name]}
	}
	o.TrafficKnown = w.gateways
	if w.gateways {
		o.GatewaysSince = w.gatewaysSince
	}
	o.Demand = maps.Clone(w.demand)
	for name, j := range w.nomad {
		if j.alloc != nil && j.alloc.Client == "running" {
			o.Engines[name] = []planner.Engine{{Passing: j.serving(w.now)}}
		}
	}
	for _, r := range v.Replicas(nil) {
		name := r.Name.String()
		n := len(w.requests[name])
		l := planner.Load{InFlight: n, LastRequest: w.last[name]}
		l.Recent, l.Row = w.outcomes(name)
		o.Loads[name] = l
	}
	return o
}

// act does in Nomad what is asked for, and tells the state, as the reconciler does.
func (w *world) act(a planner.Action, crash bool) {
	j := w.nomad[a.Replica]
	w.log("%s %s: %s", a.Kind, a.Replica, a.Reason)
	switch a.Kind {
	case planner.Register:
		r := w.view().Replica(nil, a.Replica)
		require.NotNil(w.t, r, "a replica that is registered exists")
		require.NotNil(w.t, w.view().VariantOf(nil, r), "a replica that is registered has a definition")
		var have uint64
		if j != nil {
			have = j.Index
		}
		if have != a.Index {
			w.log("  conflict: %d, not %d", have, a.Index)
			return
		}
		if j == nil {
			j = &job{}
			w.nomad[a.Replica] = j
		}
		if j.Index == 0 || j.Stopped || j.Hash != w.hash(r) || j.drifting != "" {
			w.index2++
			w.registered++
			j.Job = planner.Job{Name: r.Name, Hash: w.hash(r), Placement: r.Placement, Index: w.index2}
			j.drifting, j.ends = "", time.Time{}
			if j.alloc != nil && j.alloc.Failed {
				j.alloc = nil
			}
		}
		if crash {
			return
		}
		w.wrote[a.Replica] = j.Index
		if r.Status == state.StatusPlaced || r.JobIndex != j.Index {
			var event state.Event
			if r.Status == state.StatusPlaced || r.Status == state.StatusServing {
				event = state.EventStarted
			}
			w.must(&state.Move{Replica: a.Replica, ModifyIndex: r.ModifyIndex, Event: event, Time: w.now, JobIndex: &j.Index})
		}
	case planner.Stop:
		if j != nil && !j.Stopped {
			w.index2++
			j.Stopped, j.Index = true, w.index2
			w.wrote[a.Replica] = j.Index
		}
	case planner.Drain:
		w.drain(a.Replica, j, crash)
	case planner.Sleep:
		w.sleep(a.Replica, j, crash)
	case planner.Wake:
		w.wake(a.Replica, j, crash)
	case planner.Purge:
		if j == nil {
			return // the list was old
		}
		w.holds(j.Stopped, "only what was stopped is purged: %s", a.Replica)
		if j.alloc != nil {
			require.NotContains(w.t, []string{"pending", "running", "unknown"}, j.alloc.Client, "only what has ended is purged")
		}
		delete(w.nomad, a.Replica)
		w.index2++
		w.wrote[a.Replica] = w.index2
	}
}

// drain is a shim that is told to drain its engine, and what the state hears.
func (w *world) drain(name string, j *job, crash bool) {
	out := planner.Outcome{Kind: planner.Drain, Replica: name, Class: planner.Done}
	switch {
	case j == nil || !j.live() || w.down[j.Placement.Node]:
		out.Class, out.Error = planner.Unreachable, "the simulated shim does not answer"
	case len(w.requests[name]) > 0:
		out.Class, out.Error = planner.Unreachable, "the simulated shim still waits"
	}
	if !crash {
		w.after(out)
	}
}

// sleep is a shim that is told to put its engine to sleep, and what the state hears.
func (w *world) sleep(name string, j *job, crash bool) {
	r := w.view().Replica(nil, name)
	out := planner.Outcome{Kind: planner.Sleep, Replica: name, Class: planner.Done}
	w.sleeps++
	if w.outcome != nil {
		out.Class = w.outcome(planner.Sleep, r)
	}
	switch {
	case j == nil || !j.live() || w.down[j.Placement.Node]:
		out.Class = planner.Unreachable
	case j.asleep && len(j.using) > 0 && slices.Max(slices.Collect(maps.Values(j.using))) > r.Placement.SleepMemory:
		out.Class, out.HeldBytes = planner.MemoryHeld, maps.Clone(j.using)
	case j.asleep:
		out.Class = planner.Done
	case len(w.requests[name]) > 0:
		out.Class = planner.NotDrained
	case out.Class == planner.Done:
		j.asleep, j.host = true, r.Placement.HostMemory
		j.using = map[string]int64{}
		for gpu := range r.Placement.Memory {
			j.using[gpu] = r.Placement.SleepMemory
		}
	case out.Class == planner.MemoryHeld:
		j.asleep, j.host = true, r.Placement.HostMemory // and using as before
		out.HeldBytes = map[string]int64{}
		for gpu, bytes := range r.Placement.Memory {
			out.HeldBytes[gpu] = bytes
		}
	}
	if out.Class != planner.Done {
		out.Error = "the simulated shim says " + string(out.Class)
	}
	w.physics()
	if !crash {
		w.after(out)
	}
}

// wake is a shim that is told to wake its engine, and what the state hears.
func (w *world) wake(name string, j *job, crash bool) {
	r := w.view().Replica(nil, name)
	out := planner.Outcome{Kind: planner.Wake, Replica: name, Class: planner.Done}
	w.sleeps++
	if w.outcome != nil {
		out.Class = w.outcome(planner.Wake, r)
	}
	switch {
	case j == nil || !j.live() || w.down[j.Placement.Node]:
		out.Class = planner.Unreachable
	case !j.asleep:
		out.Class = planner.Done
	case out.Class == planner.Done:
		j.asleep, j.host, j.serves = false, 0, w.now
		j.using, j.moved = r.Placement.Memory, r.Placement.Memory
	case out.Class == planner.Failed: // the shim and its engine die of it
		j.alloc.Started, j.alloc.Event = w.now, "Exit Code: 1"
		j.alloc.Restarts++
		j.serves = time.Time{}
		j.using, j.host = nil, 0
	}
	if out.Class != planner.Done {
		out.Error = "the simulated shim says " + string(out.Class)
	}
	w.physics()
	if !crash {
		w.after(out)
	}
}

// after tells the state what became of a sleep or a wake.
func (w *world) after(out planner.Outcome) {
	w.log("  %s %s: %s", out.Kind, out.Replica, out.Class)
	if p := planner.After(w.view(), out, w.now, w.conf); p != nil {
		for _, d := range p.Decisions {
			w.log("  %s %s%s: %s", d.Kind, d.Model, d.Replica, d.Reason)
		}
		w.must(p)
	}
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
		changes := len(p.Remove) + len(p.Move) + len(p.Place) + len(p.Rollouts) + len(p.Decisions) + len(p.Scales) + len(p.Replacements) + len(p.Cordons) + len(p.Evictions) + len(p.NoSleep) + len(p.Unplaceable)
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

// booked looks that nothing is held by two, or of what there is not.
func (w *world) booked(after *state.View) {
	seats := map[string]string{}
	bytes, host := map[string]int64{}, map[string]int64{}
	for _, r := range after.Replicas(nil) {
		if r.Status == state.StatusCold {
			continue
		}
		h := r.Holds()
		for _, s := range h.Seats {
			require.Empty(w.t, seats[s], "seat %s is held twice", s)
			seats[s] = r.Name.String()
		}
		for gpu, b := range h.Memory {
			bytes[gpu] += b
		}
		host[r.Placement.Node] += h.HostMemory
	}
	for _, n := range w.nodes {
		budget := int64(w.conf.WarmShare * float64(n.HostMemory))
		w.holds(host[n.ID] <= budget, "node %s has %d bytes for WARM replicas, and %d are held", n.ID, budget, host[n.ID])
		for _, g := range n.GPUs {
			require.LessOrEqual(w.t, bytes[g.UUID], g.Memory, "GPU %s", g.UUID)
		}
	}
}

// check looks at what must hold after each plan.
func (w *world) check(before, after *state.View, o planner.Observation, p *state.Plan) {
	w.booked(after)
	// Capacity goes down where somebody wants less, or where it was lost already.
	lost, evicted := map[string]int{}, map[string]int{}
	for _, m := range p.Move {
		r := before.Replica(nil, m.Replica)
		if r.Status == state.StatusDraining && m.Event == state.EventStop && o.Loads[m.Replica].InFlight > 0 {
			n := after.Node(nil, r.Placement.Node)
			timeout := !w.now.Before(r.Since.Add(w.conf.DrainTimeout))
			j, listed := o.Jobs[m.Replica]
			w.holds(timeout || n.WrittenOff || j.Ended || !listed && o.Pools[n.CapacityPool].JobsKnown, "%s is stopped with requests in flight", m.Replica)
		}
		if r.Status == (state.StatusServing) && m.Event == state.EventDrain && o.EnginesKnown && !slices.ContainsFunc(o.Engines[m.Replica], func(e planner.Engine) bool { return e.Passing }) {
			lost[group(before, r)]++ // it did not serve
		}
		if l := o.Loads[m.Replica]; r.Status == state.StatusServing && m.Event == state.EventDrain && (l.Row.Failed >= planner.FailuresLeast || l.Recent.Failed >= max(l.Recent.Answered, planner.FailuresLeast)) {
			lost[group(before, r)]++ // it failed half of its requests at least
		}
		if m.MakesRoomFor != nil && r.Status == (state.StatusServing) {
			evicted[group(before, r)]++ // somebody with a higher priority needs it, or its model may do without
		}
		if r.Status == (state.StatusServing) && (m.Event == state.EventStarted || m.Event == state.EventStop) {
			n := after.Node(nil, r.Placement.Node)
			w.holds(n.WrittenOff || !slices.ContainsFunc(o.Engines[m.Replica], func(e planner.Engine) bool { return e.Passing }), "%s serves and is not drained", m.Replica)
			lost[group(before, r)]++
		}
	}
	for _, rm := range p.Remove {
		r := before.Replica(nil, rm.Replica)
		n := after.Node(nil, r.Placement.Node)
		j := w.nomad[rm.Replica]
		w.holds(!w.lags || j == nil || !j.live() || n == nil || n.WrittenOff, "%s is removed while its job runs", rm.Replica)
	}
	w.enabled(before, after, o, p)
	had, has := capacity(before), capacity(after)
	for _, m := range after.Models(nil) {
		targets := targetsOf(after, m)
		if len(targets) == len(m.Variants)+1 {
			continue
		}
		most := after.Target(nil, m).Replicas
		capped := most < m.Active().Total()
		if capped && len(targets) > 1 { // which of its variants give way is the planner's choice
			all := m.Name + " in all"
			for g, target := range targets {
				targets[all] += target
				has[all], had[all], lost[all], evicted[all] = has[all]+has[g], had[all]+had[g], lost[all]+lost[g], evicted[all]+evicted[g]
			}
			targets = map[string]int{all: targets[all]}
		}
		if least, ok := w.leastServing(before, after, m); ok {
			all := m.Name + " in all, which rolls in place,"
			for g, target := range targets { // one that is scaled down loses what it has beyond that
				has[all], had[all], lost[all], evicted[all] = has[all]+has[g], had[all]+min(had[g], target), lost[all]+lost[g], evicted[all]+evicted[g]
			}
			targets = map[string]int{all: least}
		}
		for g, target := range targets {
			if m.Stopped {
				target = 0
			}
			if capped {
				target = min(target, most)
			}
			w.holds(has[g] >= min(target, had[g]-lost[g])-evicted[g], "capacity of %s is %d, and was %d", g, has[g], had[g])
		}
	}
}

// leastServing returns how many replicas of a model a rollout leaves serving, and false if that is
// its whole number.
func (w *world) leastServing(before, after *state.View, m *state.Model) (int, bool) {
	target := m.Target(after.Limits(nil)(m.Name)).Replicas
	old := before.Model(nil, m.Name)
	rolls := len(m.Rollouts) > 0 || old != nil && len(old.Rollouts) > 0 || slices.ContainsFunc(before.Replicas(nil), func(r *state.Replica) bool {
		v := m.Variant(r.Name.Variant)
		return r.Name.Model == m.Name && r.Status != state.StatusCold && (v == nil || before.VariantOf(nil, r).Hash != v.Hash)
	})
	least := m.MinAvailable(target)
	return least, rolls && least < target
}

// enabled looks that each eviction has a purpose: with it, and all else that is on its
// way, the model has a place.
func (w *world) enabled(before, after *state.View, o planner.Observation, p *state.Plan) {
	for _, mv := range p.Move {
		r := before.Replica(nil, mv.Replica)
		if mv.MakesRoomFor == nil || *mv.MakesRoomFor == "" || r.Tier() == state.Warm || r.MakesRoomFor == *mv.MakesRoomFor {
			continue
		}
		by := after.Model(nil, *mv.MakesRoomFor)
		w.holds(by != nil && by.Name != r.Name.Model, "%s is evicted for itself", mv.Replica)
		w.holds(!after.IsDedicated(nil, after.Model(nil, r.Name.Model)), "%s is dedicated and evicted", mv.Replica)
		w.holds(before.Model(nil, r.Name.Model).Priority <= by.Priority, "%s is evicted by a lower priority", mv.Replica)
		w.holds(!before.Limits(nil)(r.Name.Model).ScalingDisabled, "%s is evicted although scaling is disabled", mv.Replica)
		old := r.Status == state.StatusFailed || after.IsDedicated(nil, by) || !w.now.Before(r.Since.Add(w.conf.MinAge))
		w.holds(old, "%s is evicted and has served for %s", mv.Replica, w.now.Sub(r.Since))
		for _, other := range p.Move {
			w.holds(other.MakesRoomFor == nil || *other.MakesRoomFor == "" || before.Replica(nil, other.Replica).Name.Model != by.Name || before.Replica(nil, other.Replica).Tier() == state.Warm,
				"%s, which evicts, is evicted in the same plan", by.Name)
		}
		w.holds(slices.ContainsFunc(by.Variants, func(v state.Variant) bool {
			v, failover := w.usedNow(after, by, v)
			ask := placement.Request{Model: by.Name, Variant: &v, Failover: failover, Future: true}
			for _, own := range after.ReplicasOf(nil, by.Name) {
				if own.Status == (state.StatusWarm) && after.VariantOf(nil, own).Hash == v.Hash {
					ask.Warm = append(ask.Warm, placement.Warm{Tenant: own.Name.String(), Placement: own.Placement})
				}
			}
			_, no := w.fleetOf(after, o.Jobs).Place(ask)
			return no == nil
		}), "%s is evicted for %s, which has no place then either", mv.Replica, by.Name)
	}
}

// targetsOf returns how many replicas there should be in each group of a model, where no
// ceiling keeps it from having them.
func targetsOf(v *state.View, m *state.Model) map[string]int {
	desired := m.Active()
	if more := v.Target(nil, m).Replicas - desired.Total(); more > 0 {
		floor := *m
		floor.Displaced = m.Recall(more, "", state.UntilAsked, state.UntilRoom)
		desired = floor.Active()
		desired = m.With(desired, v.Target(nil, m).Replicas-desired.Total(), "")
	}
	shared, _ := desired.Of("")
	targets := map[string]int{m.Name: shared}
	for _, v := range m.Variants {
		if n, own := desired.Of(v.Name); own {
			targets[m.Name+":"+v.Name] = n
		}
	}
	return targets
}

// group is what a replica counts for: its variant, where that has a number of its own.
func group(v *state.View, r *state.Replica) string {
	if _, own := v.Model(nil, r.Name.Model).Desired.Of(r.Name.Variant); own {
		return r.Name.Model + ":" + r.Name.Variant
	}
	return r.Name.Model
}

func capacity(v *state.View) map[string]int {
	out := map[string]int{}
	for _, r := range v.Replicas(nil) {
		if r.Status == state.StatusServing {
			out[group(v, r)]++
		}
	}
	return out
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
