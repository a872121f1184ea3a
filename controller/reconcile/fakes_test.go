package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"remuda/controller/nomad"
	"remuda/controller/raft"
	"remuda/controller/state"
	"remuda/internal/replica"
)

// fakeRaft is a cluster of one server that leads when it is told to.
type fakeRaft struct {
	store *state.Store

	mu        sync.Mutex
	index     uint64
	applied   []state.Command
	terms     uint64
	cancel    context.CancelFunc
	elected   chan struct{}
	deposed   bool
	barriers  int
	onApply   func(state.Command) (apply bool, err error)
	onVerify  func() error
	onBarrier func() error
	slow      time.Duration // what a Move takes
}

func newFakeRaft() *fakeRaft {
	s, err := state.New()
	if err != nil {
		panic(err)
	}
	return &fakeRaft{store: s, elected: make(chan struct{}, 10)}
}

func (r *fakeRaft) Store() *state.Store { return r.store }

func (r *fakeRaft) WhileLeader(ctx context.Context, lead func(context.Context, uint64)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.elected:
		}
		leading, cancel := context.WithCancel(ctx)
		r.mu.Lock()
		r.terms++
		term := r.terms
		r.cancel, r.deposed = cancel, false
		r.mu.Unlock()
		lead(leading, term)
		cancel()
	}
}

// term is that of the last election.
func (r *fakeRaft) term() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.terms
}

func (r *fakeRaft) elect() { r.elected <- struct{}{} }

func (r *fakeRaft) depose() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.deposed = true
	r.cancel()
}

func (r *fakeRaft) Verify(context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.deposed:
		return &raft.NotLeaderError{}
	case r.onVerify != nil:
		return r.onVerify()
	}
	return nil
}

func (r *fakeRaft) Barrier(context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.barriers++
	if r.onBarrier != nil {
		return r.onBarrier()
	}
	return nil
}

func (r *fakeRaft) Apply(ctx context.Context, c state.Command) (state.Result, error) {
	r.mu.Lock()
	slow := r.slow
	r.mu.Unlock()
	if _, ok := c.(*state.Move); ok {
		time.Sleep(slow)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if ctx.Err() != nil || r.deposed {
		return state.Result{}, &raft.NotLeaderError{}
	}
	var err error
	apply := true
	if r.onApply != nil {
		apply, err = r.onApply(c)
	}
	if !apply {
		return state.Result{}, err
	}
	res, refused := r.put(c)
	return res, errors.Join(err, refused)
}

// put applies a command; it needs the lock.
func (r *fakeRaft) put(c state.Command) (state.Result, error) {
	data, err := state.Encode(c)
	if err != nil {
		return state.Result{}, err
	}
	r.index++
	r.applied = append(r.applied, c)
	res := r.store.Apply(r.index, data)
	if res.Err != nil {
		return res, res.Err
	}
	return res, nil
}

// resolved returns the command that a state.Proposal comes to, and others as they are.
func resolved(v *state.View, c any) state.Command {
	if r, ok := c.(state.Proposal); ok {
		scale, err := r.Resolve(v)
		if err != nil {
			panic(err)
		}
		return scale
	}
	return c.(state.Command)
}

// must applies another client's command, or what a state.Proposal comes to.
func (r *fakeRaft) must(c any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, err := r.put(resolved(r.store.View(), c)); err != nil {
		panic(err)
	}
}

func (r *fakeRaft) set(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

// writes is how many commands there were.
func (r *fakeRaft) writes() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.applied)
}

// commands are all of them.
func (r *fakeRaft) commands() []state.Command {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.applied)
}

// fakeNomad is Nomad in memory. It runs nothing by itself.
type fakeNomad struct {
	mu       sync.Mutex
	changed  chan struct{} // closed and made anew at each change
	index    uint64
	nodes    []state.Node
	unread   map[string]error // by ID of a node: these are not shown
	nodeJob  *nomad.NodeJob
	jobs     map[string]nomad.Job
	requests map[string]nomad.Request
	down     bool           // nothing is answered
	frozen   bool           // the watch of jobs shows nothing new
	lagging  *nomad.Listing // what it shows instead, nil: the jobs as they are
	reasons  map[string]string
	memory   func(node string) (map[string]nomad.Sample, error)

	known                         []string
	registers, stops, purges, ask []string
	indexes                       []uint64 // of the registers
	onRender                      func(context.Context, nomad.Request) error
	// unchanged: a job that is written over itself counts as the same.
	unchanged          bool
	onRegister         func(name string) error
	mostAtOnce, atOnce int
}

func newFakeNomad() *fakeNomad {
	return &fakeNomad{changed: make(chan struct{}), index: 100, jobs: map[string]nomad.Job{}, requests: map[string]nomad.Request{}, reasons: map[string]string{}}
}

// set makes a change that the watches tell.
func (n *fakeNomad) set(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
	close(n.changed)
	n.changed = make(chan struct{})
}

var errDown = fmt.Errorf("connection refused: %w", nomad.ErrUnreachable)

func watch[T any](ctx context.Context, n *fakeNomad, of func() (T, bool), update func(T), lost func(error)) error {
	gone := false
	for {
		n.mu.Lock()
		v, tell := of()
		down, changed := n.down, n.changed
		n.mu.Unlock()
		switch {
		case down && !gone:
			gone = true
			lost(errDown)
		case !down && tell:
			gone = false
			update(v)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

func (n *fakeNomad) WatchNodes(ctx context.Context, known []string, update func([]state.Node, map[string]error), lost func(error)) error {
	n.mu.Lock()
	n.known = known
	n.mu.Unlock()
	type inventory struct {
		nodes  []state.Node
		unread map[string]error
	}
	return watch(ctx, n, func() (inventory, bool) {
		read := slices.DeleteFunc(slices.Clone(n.nodes), func(one state.Node) bool { return n.unread[one.ID] != nil })
		return inventory{read, maps.Clone(n.unread)}, true
	}, func(i inventory) { update(i.nodes, i.unread) }, lost)
}

func (n *fakeNomad) WatchJobs(ctx context.Context, update func(nomad.Listing), lost func(error)) error {
	return watch(ctx, n, func() (nomad.Listing, bool) {
		l := n.list()
		if n.lagging != nil {
			l.Jobs, l.Index = n.lagging.Jobs, n.lagging.Index
		}
		return l, !n.frozen
	}, update, lost)
}

// list is what Nomad answers now; it needs the lock.
func (n *fakeNomad) list() nomad.Listing {
	return nomad.Listing{Jobs: slices.Collect(maps.Values(n.jobs)), Node: n.nodeJob, Changed: true, Index: n.index, Began: time.Now()}
}

func (n *fakeNomad) Render(ctx context.Context, r nomad.Request) (*api.Job, error) {
	n.mu.Lock()
	hook, down := n.onRender, n.down
	n.atOnce++
	n.mostAtOnce = max(n.mostAtOnce, n.atOnce)
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		n.atOnce--
		n.mu.Unlock()
	}()
	if down {
		return nil, errDown
	}
	if hook != nil {
		if err := hook(ctx, r); err != nil {
			return nil, err
		}
	}
	id := nomad.JobID(r.Name)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.requests[id] = r
	return &api.Job{ID: &id, Meta: map[string]string{nomad.MetaReplica: id}}, nil
}

func (n *fakeNomad) Register(ctx context.Context, job *api.Job, index uint64) (nomad.Registration, error) {
	id := *job.ID
	n.mu.Lock()
	down, hook := n.down, n.onRegister
	n.registers = append(n.registers, id)
	n.indexes = append(n.indexes, index)
	n.mu.Unlock()
	if down {
		return nomad.Registration{}, errDown
	}
	if hook != nil {
		if err := hook(id); err != nil {
			return nomad.Registration{}, err
		}
	}
	var out nomad.Registration
	var err error
	n.set(func() {
		r := n.requests[id]
		old, there := n.jobs[id]
		switch {
		case there && !old.Stopped && old.Hash == r.Variant.Hash && (old.Generation == r.Generation || old.Index != index || n.unchanged):
			out = nomad.Registration{Index: old.Index, Already: true}
		case there && old.Index != index, !there && index != 0:
			err = fmt.Errorf("register %s: %w", id, &nomad.ConflictError{Job: id, Want: index, Have: old.Index, Reason: "it was changed outside remuda"})
		default:
			n.index++
			n.jobs[id] = nomad.Job{ID: id, Name: r.Name, Hash: r.Variant.Hash, Placement: r.Placement, Generation: r.Generation, Index: n.index}
			out = nomad.Registration{Index: n.index}
		}
	})
	return out, err
}

func (n *fakeNomad) Stop(_ context.Context, name replica.Name, index uint64, purge bool) (uint64, error) {
	id := name.String()
	var written uint64
	var err error
	n.set(func() {
		j, there := n.jobs[id]
		switch {
		case n.down:
			err = errDown
		case there && j.Index != index && (purge || !j.Stopped):
			err = fmt.Errorf("stop %s: %w", id, &nomad.ConflictError{Job: id, Want: index, Have: j.Index, Reason: "it has changed since"})
		case purge:
			n.purges = append(n.purges, id)
			delete(n.jobs, id)
			n.index++
			written = n.index
		default:
			n.stops = append(n.stops, id)
			if there && !j.Stopped {
				n.index++
				j.Stopped, j.Index = true, n.index
				n.jobs[id] = j
				written = n.index
			}
		}
	})
	return written, err
}

func (n *fakeNomad) Why(_ context.Context, name replica.Name) (string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ask = append(n.ask, name.String())
	return n.reasons[name.String()], nil
}

// GPUMemory tells what the test says; as it is, that all is free since just now.
func (n *fakeNomad) GPUMemory(_ context.Context, node string) (map[string]nomad.Sample, error) {
	n.mu.Lock()
	memory, down := n.memory, n.down
	n.mu.Unlock()
	switch {
	case down:
		return nil, errDown
	case memory != nil:
		return memory(node)
	}
	out := map[string]nomad.Sample{}
	for gpu := range 4 {
		out[fmt.Sprintf("%s-GPU%d", node, gpu)] = nomad.Sample{At: time.Now()}
	}
	return out, nil
}

// edit changes a job behind the controller's back, and moves its index.
func (n *fakeNomad) edit(id string, f func(*nomad.Job)) {
	n.set(func() {
		j := n.jobs[id]
		f(&j)
		n.index++
		j.Index = n.index
		n.jobs[id] = j
	})
}

// allocate gives a job its allocations.
func (n *fakeNomad) allocate(id string, allocs ...nomad.Allocation) {
	n.set(func() {
		j := n.jobs[id]
		j.Allocations = allocs
		n.jobs[id] = j
	})
}

// did counts the writes to Nomad.
func (n *fakeNomad) did() (registers, stops, purges int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.registers), len(n.stops), len(n.purges)
}

func (n *fakeNomad) asked() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.ask)
}

// fakeConsul tells what it is told.
type fakeConsul struct {
	mu      sync.Mutex
	changed chan struct{}
	engines []replica.Engine
	down    bool
}

func newFakeConsul() *fakeConsul { return &fakeConsul{changed: make(chan struct{})} }

func (c *fakeConsul) set(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *fakeConsul) serve(engines ...replica.Engine) { c.set(func() { c.engines = engines }) }

func (c *fakeConsul) Watch(ctx context.Context, update func([]replica.Engine, bool), lost func()) error {
	outage, first := false, true
	for {
		c.mu.Lock()
		engines, down, changed := c.engines, c.down, c.changed
		c.mu.Unlock()
		switch {
		case down && !outage:
			outage = true
			lost()
		case !down:
			update(engines, outage && !first)
			outage, first = false, false
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// aWhile is longer than the loop takes to come to rest.
const aWhile = 100 * time.Millisecond
