package reconcile_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/nomad"
	"remuda/controller/planner"
	"remuda/controller/reconcile"
	"remuda/controller/state"
	"remuda/internal/replica"
)

// twoPools adds a pool "far", whose node is "f".
func twoPools(c *reconcile.Config) { c.Planner.Pools = []planner.Pool{planner.DefaultPool("far")} }

func inTwoPools(t *testing.T, test func(t *testing.T, w *world, far *fakeNomad)) {
	inWorld(t, twoPools, func(t *testing.T, w *world) {
		far := w.pools["far"]
		far.set(func() { far.nodes = []state.Node{node("f", 4)} })
		w.rest()
		require.Equal(t, "far", w.node("f").CapacityPool)
		require.Empty(t, w.node("n").CapacityPool)
		test(t, w, far)
	})
}

// placeFar puts a replica on a GPU of f.
func (w *world) placeFar(ids ...string) {
	p := &state.Plan{ID: "test", Index: w.raft.store.View().Index(), Time: time.Now()}
	for i, id := range ids {
		one := placeOf(id, 0)
		uuid := fmt.Sprintf("f-GPU%d", i)
		one.Placement = state.Placement{Node: "f", Seats: []string{uuid + "#0"}, Memory: map[string]int64{uuid: 10}}
		p.Place = append(p.Place, one)
	}
	w.raft.must(p)
}

func TestJobsAreOfThePoolOfTheirNode(t *testing.T) {
	inTwoPools(t, func(t *testing.T, w *world, far *fakeNomad) {
		w.place("1")
		w.placeFar("2")
		w.rest()
		require.Equal(t, []string{"m:v:1"}, w.nomad.registers)
		require.Equal(t, []string{"m:v:2"}, far.registers)
		require.Equal(t, "", w.seen().Jobs["m:v:1"].Pool)
		require.Equal(t, "far", w.seen().Jobs["m:v:2"].Pool)
		far.allocate("m:v:2", allocation("f"))
		w.consul.serve(engine("2"))
		w.rest()
		require.Equal(t, "serving", w.stage("m:v:2"))
		w.move("m:v:2", state.EventStop)
		w.rest()
		far.allocate("m:v:2")
		w.rest()
		require.Nil(t, w.replica("m:v:2"))
		_, stops, purges := far.did()
		require.Equal(t, []int{1, 1}, []int{stops, purges}, "stopped and forgotten where it was")
		_, stops, purges = w.nomad.did()
		require.Zero(t, stops+purges)
	})
}

func TestAnUnreachablePoolChangesNothingElsewhere(t *testing.T) {
	inTwoPools(t, func(t *testing.T, w *world, far *fakeNomad) {
		w.placeFar("9")
		w.rest()
		far.set(func() { far.down = true })
		w.rest()
		require.False(t, w.seen().Pools["far"].JobsKnown)
		require.True(t, w.seen().Pools[""].JobsKnown)
		require.Contains(t, w.seen().Jobs, "m:v:9", "as they were last seen")
		s := w.r.Status()
		require.Len(t, s.Pools, 2)
		require.True(t, s.Pools[0].Known())
		require.False(t, s.Pools[1].Known())
		require.Equal(t, "far", s.Pools[1].Name)
		require.Contains(t, s.Pools[1].Error(), "connection refused")
		require.True(t, s.Nodes.Known && s.Jobs.Known, "those are the own one's")

		w.running("1")
		w.pass(10 * planner.DefaultConfig().NodeGrace)
		require.Zero(t, w.node("f").DownSince, "its nodes are not lost because of that")
		require.Equal(t, "starting", w.stage("m:v:9"))

		far.set(func() { far.down = false })
		w.rest()
		require.True(t, w.seen().Pools["far"].JobsKnown)
		require.WithinDuration(t, time.Now(), w.seen().Pools["far"].JobsSince, time.Second)
		require.Zero(t, w.seen().Pools[""].JobsSince)
		far.set(func() { far.nodes = nil })
		w.rest()
		require.NotZero(t, w.node("f").DownSince, "now it says so itself")
	})
}

// A pool that takes its time, or hangs, has its own workers.
func TestAPoolThatHangsTakesNobodysPlace(t *testing.T) {
	inWorld(t, func(c *reconcile.Config) { twoPools(c); c.Workers = 2 }, func(t *testing.T, w *world) {
		far := w.pools["far"]
		goOn := make(chan struct{})
		far.set(func() {
			far.nodes = []state.Node{node("f", 4)}
			far.onRender = func(context.Context, nomad.Request) error { <-goOn; return nil }
		})
		w.rest()
		w.placeFar("7", "8", "9")
		w.rest()
		require.Equal(t, 2, w.r.Status().Pools[1].Running)
		w.running("1", "2", "3")
		require.Equal(t, 2, w.r.Status().Running)
		close(goOn)
		w.rest()
		require.Len(t, far.registers, 3)
	})
}

// The own Nomad is away when this server begins to lead: the others go on.
func TestTheOwnNomadIsAway(t *testing.T) {
	inTwoPools(t, func(t *testing.T, w *world, far *fakeNomad) {
		w.running("1")
		w.raft.depose()
		w.nomad.set(func() { w.nomad.down = true })
		w.rest()
		w.raft.elect()
		w.placeFar("9")
		w.rest()
		require.Equal(t, "starting", w.stage("m:v:9"))
		require.False(t, w.seen().Pools[""].JobsKnown)
		w.pass(10 * planner.DefaultConfig().NodeGrace)
		require.Zero(t, w.node("n").DownSince)
	})
}

// Before the own Nomad has said anything at all, what another pool has is not taken for
// all there is.
func TestTheOwnNomadIsWaitedFor(t *testing.T) {
	inTwoPools(t, func(t *testing.T, w *world, far *fakeNomad) {
		w.raft.depose()
		w.rest()
		w.nomad.set(func() { w.nomad.frozen = true }) // it says nothing of its jobs
		plans := w.plans()
		w.raft.elect()
		w.pass(time.Minute)
		require.Equal(t, plans, w.plans())
		w.nomad.set(func() { w.nomad.frozen = false })
		w.rest()
		require.Greater(t, w.plans(), plans)
	})
}

// Two node pools of one Nomad list the same jobs, and by mistake the same nodes.
func TestPoolsOfOneNomad(t *testing.T) {
	inTwoPools(t, func(t *testing.T, w *world, far *fakeNomad) {
		w.place("1")
		w.placeFar("2")
		w.rest()
		both := map[string]nomad.Job{}
		for _, n := range []*fakeNomad{w.nomad, far} {
			n.set(func() {
				for id, j := range n.jobs {
					both[id] = j
				}
			})
		}
		for _, n := range []*fakeNomad{w.nomad, far} {
			n.set(func() {
				for id, j := range both {
					n.jobs[id] = j
				}
			})
		}
		w.rest()
		require.Len(t, w.seen().Jobs, 2)
		require.Equal(t, "", w.seen().Jobs["m:v:1"].Pool)
		require.Equal(t, "far", w.seen().Jobs["m:v:2"].Pool)

		far.set(func() { far.nodes = []state.Node{node("f", 4), node("n", 4)} })
		w.rest()
		require.Empty(t, w.node("n").CapacityPool)
		require.Contains(t, w.r.Status().Pools[1].Error(), "node n (name-n) also belongs to the controller's own pool")
		w.nomad.set(func() { w.nomad.nodes = nil })
		w.rest()
		require.Equal(t, "far", w.node("n").CapacityPool, "it has moved")
		require.Zero(t, w.node("n").DownSince)
	})
}

// A server whose config lacks a pool leaves alone what is there.
func TestAPoolThatIsNotInTheConfig(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.raft.depose() // the server whose config had it did this
		w.rest()
		for _, id := range []string{"f", "g"} {
			n := node(id, 4)
			n.CapacityPool = "gone"
			w.raft.must(&state.UpsertNodes{Nodes: []state.Node{n}})
		}
		w.placeFar("9")
		w.raft.elect()
		w.pass(10 * planner.DefaultConfig().NodeGrace)
		require.NotNil(t, w.node("f"))
		require.Zero(t, w.node("f").DownSince)
		require.Nil(t, w.node("g"), "nothing is on it")
		require.Equal(t, "placed", w.stage("m:v:9"))
		require.False(t, w.seen().Pools["gone"].JobsKnown)
	})
}

// A request for a model without a replica is looked at when it is reported, and other
// reports are not.
func TestDemandIsLookedAtAtOnce(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.running("1")
		w.pass(2 * loadTTL)
		inFlight := 0
		report := func(wanted ...string) {
			inFlight++
			asked := map[string]time.Time{}
			for _, m := range wanted {
				asked[m] = time.Now()
			}
			w.loads.Put(api.GatewayReport{Gateway: "g", Demand: asked, Replicas: []api.ReplicaLoad{{Name: "m:v:1", InFlight: inFlight}}})
		}
		report()
		w.rest()
		plans := w.plans()
		report()
		w.rest()
		require.Equal(t, plans, w.plans(), "nothing hangs on it")
		report("m")
		w.rest()
		require.Greater(t, w.plans(), plans)
		require.Contains(t, w.seen().Demand, "m")
		require.True(t, w.seen().TrafficKnown)
	})
}

func TestWhyAsksTheJobsOwnNomad(t *testing.T) {
	inTwoPools(t, func(t *testing.T, w *world, far *fakeNomad) {
		far.set(func() { far.reasons["m:v:2"] = "no room" })
		w.placeFar("2")
		w.pass(planner.DefaultConfig().PlaceTimeout + time.Second)
		require.Equal(t, "no room", w.seen().Jobs["m:v:2"].Unplaceable)
		require.Empty(t, w.nomad.asked())
		require.Equal(t, replica.Name{Model: "m", Variant: "v", ID: "2"}.String(), far.asked()[0])
	})
}
