package state_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/state"
	"remuda/internal/replica"
)

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// log is a store and the log that made it.
type log struct {
	t       require.TestingT
	store   *state.Store
	index   uint64
	entries [][]byte
}

func newLog(t require.TestingT) *log {
	s, err := state.New()
	require.NoError(t, err)
	return &log{t: t, store: s}
}

// apply applies a command, or what a state.Proposal or state.UsageCounters come to.
func (l *log) apply(c any) state.Result {
	if u, ok := c.(*state.UsageCounters); ok {
		c = counted(u, l.store.View())
	}
	if r, ok := c.(state.Proposal); ok {
		resolved, err := r.Resolve(l.store.View())
		if err != nil {
			return state.Result{Err: err}
		}
		c = resolved
	}
	data, err := state.Encode(c.(state.Command))
	var refused *state.Error
	if errors.As(err, &refused) {
		return state.Result{Err: refused} // it does not enter the log
	}
	require.NoError(l.t, err)
	return l.applyBytes(data)
}

func (l *log) applyBytes(data []byte) state.Result {
	l.index++
	l.entries = append(l.entries, data)
	return l.store.Apply(l.index, data)
}

// must applies commands that change something.
func (l *log) must(cs ...any) {
	for _, c := range cs {
		res := l.apply(c)
		if res.Err != nil {
			require.FailNow(l.t, "refused", "%T: %v", c, res.Err)
		}
		require.True(l.t, res.Changed, "%T %+v", c, c)
	}
}

func snapshotOf(t require.TestingT, s *state.Store) []byte {
	var b bytes.Buffer
	info, err := s.View().WriteSnapshot(&b, state.FeatureLevel)
	require.NoError(t, err)
	require.Equal(t, int64(b.Len()), info.Bytes)
	return b.Bytes()
}

func restored(t require.TestingT, snapshot []byte) *state.Store {
	s, err := state.New()
	require.NoError(t, err)
	_, err = s.Restore(bytes.NewReader(snapshot), state.FeatureLevel)
	require.NoError(t, err)
	return s
}

func model(name string, edit ...func(*state.Model)) state.Model {
	m := state.Model{
		Name: name, Max: 100, Priority: 50, Management: state.ManagementFull, Hash: "h1", Desired: state.Any(1),
		Variants: []state.Variant{{Name: "v", GPUs: 1, Memory: 10, HostMemory: 10, Cost: 1, Hash: "vh1", Vars: map[string]string{"b": "1", "a": "2"}}},
	}
	for _, e := range edit {
		e(&m)
	}
	return m
}

func node(id string, gpus, seats int, memory int64, edit ...func(*state.Node)) state.Node {
	n := state.Node{ID: id, Name: id, Ready: true, HostMemory: memory, CPU: 1000}
	for g := range gpus {
		gpu := state.GPU{UUID: fmt.Sprintf("%s-GPU%d", id, g), Model: "H100", Memory: memory, Healthy: true}
		for s := range seats {
			gpu.Seats = append(gpu.Seats, fmt.Sprintf("%s#%d", gpu.UUID, s))
		}
		n.GPUs = append(n.GPUs, gpu)
	}
	for _, e := range edit {
		e(&n)
	}
	return n
}

func name(model, id string) replica.Name { return replica.Name{Model: model, Variant: "v", ID: id} }

// place puts a replica of one GPU on a seat of a node made by node.
func place(model, id, node string, gpu, seat int, memory int64) state.Place {
	uuid := fmt.Sprintf("%s-GPU%d", node, gpu)
	return state.Place{
		Name: name(model, id), Version: 1,
		Placement: state.Placement{
			Node: node, Seats: []string{fmt.Sprintf("%s#%d", uuid, seat)},
			Memory: map[string]int64{uuid: memory}, HostMemory: memory,
		},
	}
}

func (l *log) plan(places ...state.Place) *state.Plan {
	return &state.Plan{ID: "p", Index: l.store.View().Index(), Time: epoch, Place: places}
}

func (l *log) replica(name replica.Name) *state.Replica {
	r := l.store.View().Replica(nil, name.String())
	require.NotNil(l.t, r)
	return r
}

// move returns the command that moves a replica from where it is.
func (l *log) move(n replica.Name, event state.Event, goal state.Goal) *state.Move {
	return &state.Move{Replica: n.String(), ModifyIndex: l.replica(n).ModifyIndex, Event: event, Goal: goal, Time: epoch}
}

// serve brings placed replicas up.
func (l *log) serve(names ...replica.Name) {
	for _, n := range names {
		l.must(l.move(n, state.EventStarted, ""))
		l.must(l.move(n, state.EventServing, ""))
	}
}

// madeFrom returns the hash of the definition that a replica was made from.
func (l *log) madeFrom(n replica.Name) string {
	v := l.store.View().VariantOf(nil, l.replica(n))
	require.NotNil(l.t, v)
	return v.Hash
}

// ready is a store with the model m, the node n (two GPUs of two seats and 10 bytes)
// and nothing placed.
func ready(t *testing.T) *log {
	l := newLog(t)
	l.must(&state.UpsertModel{Model: model("m")}, &state.UpsertNodes{Nodes: []state.Node{node("n", 2, 2, 10)}})
	return l
}

func ptr[T any](v T) *T { return &v }
