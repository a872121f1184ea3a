package reconcile_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/nomad"
	"remuda/controller/planner"
	"remuda/controller/state"
	"remuda/internal/testkit/long"
)

// lost is the node as Nomad has it when it is down, since a time by Nomad's clock.
func lost(n state.Node, since time.Time) state.Node {
	n.Ready, n.DownSince = false, since
	return n
}

func TestLostNode(t *testing.T) {
	grace := planner.DefaultConfig().NodeGrace
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.running("1")
		registers, _, _ := w.nomad.did()
		fine := w.node("n")

		// A blink.
		began := time.Now().UTC()
		w.nomad.set(func() { w.nomad.nodes = []state.Node{lost(node("n", 4), began.Add(-time.Hour))} })
		w.rest()
		require.WithinDuration(t, began, w.node("n").DownSince, time.Second, "by our own clock: Nomad's may be an hour behind")
		require.False(t, w.node("n").WrittenOff)
		w.pass(grace / 2)
		require.False(t, w.node("n").WrittenOff)
		w.nomad.set(func() { w.nomad.nodes = []state.Node{node("n", 4)} })
		w.rest()
		back := *w.node("n")
		back.ModifyIndex = fine.ModifyIndex
		require.Equal(t, *fine, back)

		// A loss, with another leader in the middle and Nomad away for a part of it.
		began = time.Now().UTC()
		w.nomad.set(func() { w.nomad.nodes = []state.Node{lost(node("n", 4), began)} })
		w.rest()
		began = w.node("n").DownSince
		w.raft.depose()
		w.pass(2 * grace)
		w.raft.elect()
		w.rest()
		require.Equal(t, began, w.node("n").DownSince)
		require.False(t, w.node("n").WrittenOff, "the new leader's clock may be ahead: it waits for the grace itself")
		writes := w.raft.writes()
		w.nomad.set(func() { w.nomad.down = true })
		w.pass(2 * grace)
		require.False(t, w.node("n").WrittenOff, "Nomad is unreachable, so the node may be up again")
		require.Equal(t, writes, w.raft.writes())
		w.nomad.set(func() { w.nomad.down = false })
		w.rest()
		require.True(t, w.node("n").WrittenOff)
		require.Equal(t, began, w.node("n").DownSince)

		// Gone is not undone but by the node itself.
		w.pass(grace)
		require.True(t, w.node("n").WrittenOff)
		w.nomad.set(func() { w.nomad.nodes = []state.Node{node("n", 4)} })
		w.rest()
		require.False(t, w.node("n").WrittenOff)
		require.Zero(t, w.node("n").DownSince)
		require.Equal(t, "serving", w.stage("m:v:1"))
		after, stops, _ := w.nomad.did()
		require.Equal(t, []int{registers, 0}, []int{after, stops}, "the reconciler itself does nothing to what runs there")
	})
}

// A node that cannot be read keeps its row, however long that lasts, and the others change.
func TestNodeThatCannotBeRead(t *testing.T) {
	grace := planner.DefaultConfig().NodeGrace
	unread := map[string]error{"n": errDown}
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.running("1")
		fine := *w.node("n")
		w.nomad.set(func() {
			w.nomad.nodes = []state.Node{lost(node("n", 3), time.Now()), node("o", 1)}
			w.nomad.unread = unread
		})
		w.pass(3 * grace)
		require.Equal(t, fine, *w.node("n"), "it is not known to be down")
		require.NotNil(t, w.node("o"), "it can be read")
		require.True(t, w.r.Status().Pools[0].Known())
		require.Contains(t, w.r.Status().Pools[0].Error(), "cannot read 1 nodes, which stay as they were last known: connection refused")
		w.raft.must(&state.Plan{ID: "test", Index: w.raft.store.View().Index(), Time: time.Now(), Place: []state.Place{placeOf("2", 1)}})
		w.rest()
		require.Equal(t, "starting", w.stage("m:v:2"), "as its last row allows")

		// Now it is down, until another read fails: that time does not count.
		w.nomad.set(func() { w.nomad.unread = nil })
		w.pass(grace - time.Second)
		require.False(t, w.node("n").DownSince.IsZero())
		require.Empty(t, w.r.Status().Pools[0].Error())
		w.nomad.set(func() { w.nomad.unread = unread })
		w.pass(3 * grace)
		require.False(t, w.node("n").WrittenOff)
		w.nomad.set(func() { w.nomad.unread = nil })
		w.pass(grace - time.Second)
		require.False(t, w.node("n").WrittenOff)
		w.pass(2 * time.Second)
		require.True(t, w.node("n").WrittenOff)
	})
}

// Where Nomad has the node job, nothing is placed on a node on which not all of it runs. What serves
// there serves on.
func TestNodeWithoutLockd(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.running("1")
		registers, _, _ := w.nomad.did()
		w.nomad.set(func() { w.nomad.nodeJob = &nomad.NodeJob{Healthy: map[string]bool{"n": true}} })
		w.rest()
		require.Empty(t, w.node("n").Usable())
		w.nomad.set(func() { w.nomad.nodeJob = &nomad.NodeJob{} })
		w.rest()
		require.Equal(t, "without lockd or the GPU memory service: not all tasks of the job remuda-node run there", w.node("n").Usable())
		index := w.raft.store.View().Index()
		_, err := w.raft.Apply(t.Context(), &state.Plan{ID: "p", Index: index, Time: time.Now(), Place: []state.Place{placeOf("2", 1)}})
		require.ErrorContains(t, err, "without lockd")
		require.Equal(t, "serving", w.stage("m:v:1"))
		w.nomad.set(func() { w.nomad.nodeJob.Healthy = map[string]bool{"n": true} })
		w.rest()
		require.Empty(t, w.node("n").Usable())
		after, stops, _ := w.nomad.did()
		require.Equal(t, []int{registers, 0}, []int{after, stops})
	})
}

func TestNodeIsGoneRightAfterTheGrace(t *testing.T) {
	grace := planner.DefaultConfig().NodeGrace
	inWorld(t, nil, func(t *testing.T, w *world) {
		began := time.Now()
		w.nomad.set(func() { w.nomad.nodes = []state.Node{lost(node("n", 4), began)} })
		w.pass(grace - time.Second)
		require.False(t, w.node("n").WrittenOff)
		w.pass(time.Second)
		require.True(t, w.node("n").WrittenOff, "nothing but the clock has told")
	})
}

func TestForgottenNode(t *testing.T) {
	grace := planner.DefaultConfig().NodeGrace
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.nomad.set(func() { w.nomad.nodes = append(w.nomad.nodes, node("empty", 1)) })
		w.running("1")
		require.NotNil(t, w.node("empty"))
		w.nomad.set(func() { w.nomad.nodes = nil })
		w.rest()
		require.False(t, w.node("empty").Ready)
		w.pass(grace - time.Second)
		require.False(t, w.node("n").WrittenOff)
		w.pass(2 * time.Second)
		require.Nil(t, w.node("empty"), "nothing is on it")
		require.True(t, w.node("n").WrittenOff)
		r := w.replica("m:v:1")
		w.raft.must(&state.Plan{ID: "p", Remove: []state.Remove{{Replica: "m:v:1", ModifyIndex: r.ModifyIndex}}})
		w.rest()
		require.Nil(t, w.node("n"))
	})
}

func TestANodeThatTheStateRefusesDoesNotHideOthers(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		mad := node("mad", 2)
		mad.GPUs[1].UUID = mad.GPUs[0].UUID
		w.nomad.set(func() { w.nomad.nodes = []state.Node{mad, node("n", 4), node("o", 1)} })
		w.rest()
		require.NotNil(t, w.node("o"))
		require.Nil(t, w.node("mad"))
		writes := w.raft.writes()
		w.pass(10 * time.Minute)
		require.Equal(t, writes, w.raft.writes(), "it is not tried again as it is")
		w.nomad.set(func() { w.nomad.nodes[0] = node("mad", 2) })
		w.rest()
		require.NotNil(t, w.node("mad"))
	})
}

func TestNodesThatChange(t *testing.T) {
	for name, change := range map[string]func(*state.Node){
		"drained":           func(n *state.Node) { n.Ready, n.Draining = false, true },
		"a GPU falls ill":   func(n *state.Node) { n.GPUs[1].Healthy, n.GPUs[1].Reason = false, "XID 79" },
		"a GPU disappears":  func(n *state.Node) { n.GPUs = n.GPUs[:3] },
		"all GPUs":          func(n *state.Node) { n.GPUs = nil },
		"a seat disappears": func(n *state.Node) { n.GPUs[0].Seats = n.GPUs[0].Seats[:1] },
		"no seat is left":   func(n *state.Node) { n.GPUs[0].Seats = nil },
		"more memory":       func(n *state.Node) { n.HostMemory++ },
		"another pool":      func(n *state.Node) { n.Pool = "gpu" },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, nil, func(t *testing.T, w *world) {
				want := node("n", 4)
				change(&want)
				w.nomad.set(func() {
					n := node("n", 4)
					change(&n)
					w.nomad.nodes = []state.Node{n}
				})
				w.rest()
				got := *w.node("n")
				got.CreateIndex, got.ModifyIndex = 0, 0
				require.Equal(t, want, got)
				writes := w.raft.writes()
				w.nomad.set(func() {})
				w.pass(5 * time.Minute)
				require.Equal(t, writes, w.raft.writes())
			})
		})
	}
}

// A cordoned GPU whose node does not offer it for a while is remembered, and at
// rest nothing is written for that.
func TestCordonedGPUDisappears(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.raft.must(&state.Cordon{Node: "n", GPU: "n-GPU3", On: true})
		w.nomad.set(func() { w.nomad.nodes = []state.Node{node("n", 0)} })
		w.rest()
		require.Len(t, w.node("n").GPUs, 1)
		require.True(t, w.node("n").GPU("n-GPU3").Cordoned)
		writes := w.raft.writes()
		w.nomad.set(func() {})
		w.pass(5 * time.Minute)
		require.Equal(t, writes, w.raft.writes())
		w.nomad.set(func() { w.nomad.nodes = []state.Node{node("n", 4)} })
		w.rest()
		require.Len(t, w.node("n").GPUs, 4)
		require.True(t, w.node("n").GPU("n-GPU3").Cordoned)
		require.NotEmpty(t, w.node("n").GPU("n-GPU3").Seats)
	})
}

// TestManyNodesAreWrittenInParts: a first look at a large cluster stays far below what a
// command may have, however many GPUs its nodes have.
func TestManyNodesAreWrittenInParts(t *testing.T) {
	nodes := long.Pick(1000, 10_000)
	inWorld(t, nil, func(t *testing.T, w *world) {
		all := []state.Node{node("n", 4)}
		for i := range nodes - 1 {
			all = append(all, node(fmt.Sprintf("n%05d", i), 16))
		}
		before := w.raft.writes()
		w.nomad.set(func() { w.nomad.nodes = all })
		w.rest()
		require.Len(t, w.raft.store.View().Nodes(nil), nodes)
		largest, seen := 0, map[string]bool{}
		for _, c := range w.raft.commands()[before:] {
			data, err := state.Encode(c)
			require.NoError(t, err)
			largest = max(largest, len(data))
			for _, n := range c.(*state.UpsertNodes).Nodes {
				require.False(t, seen[n.ID], "%s is written twice", n.ID)
				seen[n.ID] = true
			}
		}
		require.Len(t, seen, nodes-1, "n was there before")
		require.Less(t, largest, state.MaxCommand/4)
		t.Logf("%d commands of at most %d bytes", w.raft.writes()-before, largest)
	})
}

// TestNodesOfVeryManySeats: those of one command could be longer than it may be.
func TestNodesOfVeryManySeats(t *testing.T) {
	nodes := long.Pick(200, 400)
	inWorld(t, nil, func(t *testing.T, w *world) {
		all := []state.Node{node("n", 4)}
		for i := range nodes {
			n := node(fmt.Sprintf("%08x-0000-4000-8000-%012x", i, i), 16)
			for g := range n.GPUs {
				n.GPUs[g].Seats = nil
				for seat := range 64 {
					n.GPUs[g].Seats = append(n.GPUs[g].Seats, fmt.Sprintf("%s#%d", n.GPUs[g].UUID, seat))
				}
			}
			all = append(all, n)
		}
		data, err := state.Encode(&state.UpsertNodes{Nodes: all[1:201]})
		require.Error(t, err, "%d bytes", len(data))
		before := w.raft.writes()
		w.nomad.set(func() { w.nomad.nodes = all })
		w.rest()
		require.Len(t, w.raft.store.View().Nodes(nil), nodes+1)
		require.LessOrEqual(t, w.raft.writes()-before, 8)
	})
}
