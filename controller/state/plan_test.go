package state_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/state"
)

func TestPlanIsRefusedAsAWhole(t *testing.T) {
	good := place("m", "good", "n", 1, 1, 1)
	for _, tt := range []struct {
		name  string
		setup func(*log)
		edit  func(*state.Place)
		index func(uint64) uint64
		want  error
		text  string
	}{
		{name: "seat taken", setup: func(l *log) { l.must(l.plan(place("m", "0", "n", 0, 0, 1))) }, want: state.ErrConflict, text: "is held by m:v:0"},
		{name: "bytes taken", setup: func(l *log) { l.must(l.plan(place("m", "0", "n", 0, 1, 1))) }, want: state.ErrConflict, text: "GPU n-GPU0 on node n has 9 of 10 bytes free"},
		{name: "more bytes than there are", edit: func(p *state.Place) { p.Placement.Memory["n-GPU0"] = math.MaxInt64 }, want: state.ErrConflict, text: "bytes free"},
		{name: "negative bytes", edit: func(p *state.Place) { p.Placement.Memory["n-GPU0"] = -1 }, want: state.ErrBadRequest},
		{name: "negative host bytes", edit: func(p *state.Place) { p.Placement.HostMemory = -1 }, want: state.ErrBadRequest},
		{name: "unknown node", edit: func(p *state.Place) { p.Placement.Node = "x" }, want: state.ErrNotFound},
		{name: "unknown model", edit: func(p *state.Place) { p.Name.Model = "x" }, want: state.ErrNotFound},
		{name: "unknown seat", edit: func(p *state.Place) { p.Placement.Seats = []string{"x"} }, want: state.ErrConflict, text: "no seat"},
		{name: "seat twice", edit: func(p *state.Place) { p.Placement.Seats = []string{"n-GPU0#0", "n-GPU0#0"} }, want: state.ErrBadRequest},
		{name: "no seat", edit: func(p *state.Place) { p.Placement.Seats = nil }, want: state.ErrBadRequest},
		{name: "memory without a seat", edit: func(p *state.Place) { p.Placement.Memory["n-GPU1"] = 0 }, want: state.ErrBadRequest},
		{name: "a seat without memory", edit: func(p *state.Place) { p.Placement.Memory = nil }, want: state.ErrBadRequest},
		{name: "two seats for one engine", edit: func(p *state.Place) { p.Placement.Seats = []string{"n-GPU0#0", "n-GPU0#1"} }, want: state.ErrBadRequest},
		{name: "two GPUs for a variant of one", edit: func(p *state.Place) {
			p.Placement.Seats, p.Placement.Memory["n-GPU1"] = []string{"n-GPU0#0", "n-GPU1#0"}, 1
		}, want: state.ErrBadRequest},
		{name: "bad name", edit: func(p *state.Place) { p.Name.ID = "a:b" }, want: state.ErrBadRequest},
		{name: "long name", edit: func(p *state.Place) { p.Name.ID = strings.Repeat("x", 600) }, want: state.ErrBadRequest},
		{name: "exists", setup: func(l *log) { l.must(l.plan(place("m", "1", "n", 1, 0, 1))) }, want: state.ErrConflict, text: "replica m:v:1 already exists"},
		{name: "node not ready", setup: node1(func(n *state.Node) { n.Ready = false }), want: state.ErrConflict, text: "not ready"},
		{name: "node draining", setup: node1(func(n *state.Node) { n.Draining = true }), want: state.ErrConflict, text: "node n is draining"},
		{name: "node down", setup: node1(func(n *state.Node) { n.DownSince = epoch }), want: state.ErrConflict, text: "is down"},
		{name: "node gone", setup: node1(func(n *state.Node) { n.WrittenOff = true }), want: state.ErrConflict, text: "is gone"},
		{name: "GPU unhealthy", setup: node1(func(n *state.Node) { n.GPUs[0].Healthy, n.GPUs[0].Reason = false, "XID 79" }), want: state.ErrConflict, text: "XID 79"},
		{name: "GPU cordoned", setup: func(l *log) { l.must(&state.Cordon{Node: "n", GPU: "n-GPU0", On: true}) }, want: state.ErrConflict, text: "cordoned"},
		{name: "model stopped", setup: func(l *log) {
			l.must(&state.ScaleRequest{Model: "m", Stopped: ptr(true), Origin: state.OriginOperator})
		}, want: state.ErrConflict, text: "is stopped"},
		{name: "node changed since", setup: node1(func(n *state.Node) { n.CPU++ }), index: func(i uint64) uint64 { return i - 1 }, want: state.ErrConflict, text: "after the plan was made"},
		{name: "model changed since", setup: func(l *log) {
			l.must(&state.ScaleRequest{Model: "m", Replicas: ptr(9), Origin: state.OriginOperator})
		}, index: func(i uint64) uint64 { return i - 1 }, want: state.ErrConflict, text: "after the plan was made"},
		{name: "no index", index: func(uint64) uint64 { return 0 }, want: state.ErrBadRequest, text: "plan has no index"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := ready(t)
			if tt.setup != nil {
				tt.setup(l)
			}
			p := place("m", "1", "n", 0, 0, 10)
			if tt.edit != nil {
				tt.edit(&p)
			}
			before := l.store.View().Replicas(nil)
			decisions := []state.Decision{{Kind: "place", Time: epoch}}
			c := l.plan(good, p)
			c.Decisions = decisions
			if tt.index != nil {
				c.Index = tt.index(c.Index)
			}
			res := l.apply(c)
			require.ErrorIs(t, res.Err, tt.want)
			require.ErrorContains(t, res.Err, tt.text)
			require.False(t, res.Changed)
			require.Equal(t, before, l.store.View().Replicas(nil), "not even the good placement")
			require.Empty(t, l.store.View().Decisions(nil, "", 0))

			// The good one alone is taken.
			if tt.name != "exists" && !strings.HasPrefix(tt.name, "node") && !strings.HasPrefix(tt.name, "model") {
				l.must(l.plan(good))
			}
		})
	}
}

func node1(edit func(*state.Node)) func(*log) {
	return func(l *log) { l.must(&state.UpsertNodes{Nodes: []state.Node{node("n", 2, 2, 10, edit)}}) }
}

func TestPlanReplacesInOneStep(t *testing.T) {
	l := ready(t)
	l.must(l.plan(place("m", "1", "n", 0, 0, 10)))
	l.must(l.plan(place("m", "2", "n", 1, 0, 10)))
	c := l.plan(place("m", "3", "n", 0, 0, 10))
	c.Remove = []state.Remove{{Replica: "m:v:1", ModifyIndex: 3}}
	c.Move = []state.Move{{Replica: "m:v:2", ModifyIndex: 4, Event: state.EventStarted, JobIndex: ptr(uint64(17))}}
	c.Decisions = []state.Decision{{Kind: "replace", Model: "m", Time: epoch, Details: map[string]string{"a": "1"}}}
	l.must(c)
	v := l.store.View()
	require.Nil(t, v.Replica(nil, "m:v:1"))
	moved := v.Replica(nil, "m:v:2")
	require.Equal(t, state.StatusStarting, moved.Status)
	require.Equal(t, uint64(17), moved.JobIndex)
	require.Equal(t, epoch, moved.Since, "a move's time is the plan's where it has none")
	require.Equal(t, epoch, v.Replica(nil, "m:v:3").CreatedAt)
	require.Len(t, v.Decisions(nil, "m", 0), 1)

	// What was removed or moved meanwhile makes the plan stale.
	for _, c := range []*state.Plan{
		{ID: "p", Index: l.index, Remove: []state.Remove{{Replica: "m:v:3", ModifyIndex: 3}}},
		{ID: "p", Index: l.index, Move: []state.Move{{Replica: "m:v:2", ModifyIndex: 4, Event: state.EventServing}}},
	} {
		require.ErrorIs(t, l.apply(c).Err, state.ErrConflict)
	}
}

func TestFailoverPairTakesTwoSeatsOfEachGPU(t *testing.T) {
	l := newLog(t)
	l.must(
		&state.UpsertModel{Model: model("m", func(m *state.Model) { m.Failover = true; m.Variants[0].GPUs = 2 })},
		&state.UpsertNodes{Nodes: []state.Node{node("n", 2, 2, 10)}},
	)
	p := place("m", "1", "n", 0, 0, 10)
	p.Placement.Memory["n-GPU1"] = 10
	p.Placement.Seats = []string{"n-GPU0#0", "n-GPU0#1", "n-GPU1#0"}
	require.ErrorIs(t, l.apply(l.plan(p)).Err, state.ErrBadRequest)
	p.Placement.Seats = append(p.Placement.Seats, "n-GPU1#1")
	l.must(l.plan(p))
	u := l.store.View().Usage(nil, "n")
	require.Len(t, u.Seats, 4)
	require.Equal(t, map[string]int64{"n-GPU0": 10, "n-GPU1": 10}, u.Memory)
}

func TestAdoptTakesWhatRunsAlready(t *testing.T) {
	l := ready(t)
	node1(func(n *state.Node) { n.Draining = true; n.GPUs[0].Healthy = false })(l)
	p := place("m", "1", "n", 0, 0, 10)
	p.Adopt, p.Status, p.JobIndex = true, state.StatusWarm, 9
	l.must(&state.Plan{ID: "adopt", Time: epoch, Place: []state.Place{p}})
	require.Equal(t, uint64(9), l.replica(p.Name).JobIndex)
	require.Equal(t, int64(10), l.store.View().Usage(nil, "n").HostMemory)

	q := place("m", "2", "n", 0, 0, 0)
	q.Adopt, q.Status = true, state.StatusServing
	require.ErrorIs(t, l.apply(&state.Plan{ID: "adopt", Place: []state.Place{q}}).Err, state.ErrConflict, "the seat is another's")
	q.Status = state.StatusStopping
	require.ErrorIs(t, l.apply(&state.Plan{ID: "adopt", Place: []state.Place{q}}).Err, state.ErrBadRequest)
}

func TestPlaceCarriesFailuresOver(t *testing.T) {
	l := ready(t)
	p := place("m", "1", "n", 0, 0, 10)
	p.Failures, p.LastError, p.RetryAt = 3, "out of memory", epoch.In(time.FixedZone("", 3600))
	l.must(l.plan(p))
	r := l.replica(p.Name)
	require.Equal(t, []any{3, "out of memory", epoch}, []any{r.Failures, r.LastError, r.RetryAt})
	q := place("m", "2", "n", 1, 0, 10)
	q.Failures = -1
	require.ErrorIs(t, l.apply(l.plan(q)).Err, state.ErrBadRequest)
}

func TestNodesKeepWhatIsNotNomads(t *testing.T) {
	l := ready(t)
	l.must(&state.Cordon{Node: "n", GPU: "n-GPU1", On: true})
	require.False(t, l.apply(&state.Cordon{Node: "n", GPU: "n-GPU1", On: true}).Changed)
	index := l.index - 1
	res := l.apply(&state.UpsertNodes{Nodes: []state.Node{node("n", 2, 2, 10)}})
	require.Nil(t, res.Err)
	require.False(t, res.Changed, "the same node as before")
	n := l.store.View().Node(nil, "n")
	require.True(t, n.GPU("n-GPU1").Cordoned)
	require.Equal(t, index, n.ModifyIndex)
	require.ErrorIs(t, l.apply(&state.Cordon{Node: "n", GPU: "x", On: true}).Err, state.ErrNotFound)
	require.ErrorIs(t, l.apply(&state.Cordon{Node: "x", GPU: "x", On: true}).Err, state.ErrNotFound)
	l.must(&state.UpsertNodes{Nodes: []state.Node{node("bare", 0, 0, 0)}})
	require.ErrorIs(t, l.apply(&state.Cordon{Node: "bare", On: true}).Err, state.ErrNotFound)
	for _, bad := range []state.Node{
		node("", 0, 0, 0),
		node("x", 1, 1, -1),
		node("x", 2, 1, 1, func(n *state.Node) { n.GPUs[1].UUID = n.GPUs[0].UUID }),
		node("x", 2, 1, 1, func(n *state.Node) { n.GPUs[1].Seats = n.GPUs[0].Seats }),
	} {
		require.ErrorIs(t, l.apply(&state.UpsertNodes{Nodes: []state.Node{node("good", 1, 1, 1), bad}}).Err, state.ErrBadRequest)
	}
	require.Nil(t, l.store.View().Node(nil, "good"))
}

func TestANodeThatShrinksTakesNothingAway(t *testing.T) {
	l := ready(t)
	l.must(l.plan(place("m", "1", "n", 0, 0, 8)))
	// The GPU has fewer bytes than are taken, then it is not there any more.
	l.must(&state.UpsertNodes{Nodes: []state.Node{node("n", 2, 2, 5)}})
	l.must(l.move(name("m", "1"), state.EventStarted, ""))
	require.ErrorIs(t, l.apply(l.plan(place("m", "2", "n", 0, 1, 0))).Err, state.ErrConflict, "no byte is free")
	l.must(&state.UpsertNodes{Nodes: []state.Node{node("n", 0, 0, 5)}})
	l.must(l.move(name("m", "1"), state.EventServing, ""))
	require.Equal(t, map[string]int64{"n-GPU0": 8}, l.store.View().Usage(nil, "n").Memory)
	require.ErrorIs(t, l.apply(&state.DeleteNode{Node: "n"}).Err, state.ErrConflict)

	// It is back: the seat is still held.
	l.must(&state.UpsertNodes{Nodes: []state.Node{node("n", 2, 2, 10)}})
	require.ErrorIs(t, l.apply(l.plan(place("m", "2", "n", 0, 0, 0))).Err, state.ErrConflict)

	// Gone for good: its replicas are written off.
	l.must(&state.UpsertNodes{Nodes: []state.Node{node("n", 2, 2, 10, func(n *state.Node) { n.WrittenOff = true })}})
	l.must(&state.Plan{ID: "p", Remove: []state.Remove{{Replica: "m:v:1", ModifyIndex: l.replica(name("m", "1")).ModifyIndex}}})
	l.must(&state.DeleteNode{Node: "n"})
	require.ErrorIs(t, l.apply(&state.DeleteNode{Node: "n"}).Err, state.ErrNotFound)
}

// TestACordonOutlivesItsGPUsAbsence: Nomad's client starts anew, and for a moment the node
// has no GPUs.
func TestACordonOutlivesItsGPUsAbsence(t *testing.T) {
	l := ready(t)
	l.must(&state.Cordon{Node: "n", GPU: "n-GPU1", On: true})
	bare := node("n", 0, 0, 0)
	l.must(&state.UpsertNodes{Nodes: []state.Node{bare}})
	n := l.store.View().Node(nil, "n")
	require.Len(t, n.GPUs, 1, "of the others nothing is remembered")
	require.True(t, n.GPUs[0].Cordoned)
	require.False(t, n.GPUs[0].Healthy)
	require.Empty(t, n.GPUs[0].Seats)
	require.False(t, l.apply(&state.UpsertNodes{Nodes: []state.Node{bare}}).Changed, "the same node as before")

	l.must(&state.UpsertNodes{Nodes: []state.Node{node("n", 2, 2, 10)}})
	n = l.store.View().Node(nil, "n")
	require.Len(t, n.GPUs, 2)
	require.True(t, n.GPU("n-GPU1").Cordoned)
	require.True(t, n.GPU("n-GPU1").Healthy)
	require.False(t, n.GPU("n-GPU0").Cordoned)

	l.must(&state.UpsertNodes{Nodes: []state.Node{bare}}, &state.Cordon{Node: "n", GPU: "n-GPU1", On: false}, &state.UpsertNodes{Nodes: []state.Node{bare}})
	require.Empty(t, l.store.View().Node(nil, "n").GPUs, "it may be forgotten once it is lifted")
}
