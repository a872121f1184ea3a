package planner_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/planner"
	"remuda/controller/state"
	"remuda/device-plugin/nvml"
)

// cordon cordons a GPU, or uncordons it.
func (w *world) cordon(gpu string, on bool) {
	id, _, _ := strings.Cut(gpu, "-GPU")
	c := &state.Cordon{Node: id, GPU: gpu, On: on}
	if on {
		c.Reason = "it is hot"
	}
	w.must(c)
}

// on returns the GPU that a replica uses.
func on(r *state.Replica) string {
	for gpu := range r.Placement.Memory {
		return gpu
	}
	return ""
}

// reasons returns the reasons of a model's decisions of a kind, the newest first.
func (w *world) reasons(model, kind string) []string {
	var out []string
	for _, d := range w.decisions(model, kind) {
		out = append(out, d.Reason)
	}
	return out
}

// TestCordonedGPU: replicas leave a GPU on which nothing new is placed.
func TestCordonedGPU(t *testing.T) {
	t.Parallel()
	// ways are the ways in which a GPU goes out of use, while the engines on it serve on.
	ways := map[string]func(*world, string){
		"cordoned":    func(w *world, gpu string) { w.cordon(gpu, true) },
		"unhealthy":   func(w *world, gpu string) { w.sicken(gpu, false) },
		"not offered": func(w *world, gpu string) { w.lose(gpu) },
	}
	for what, leave := range ways {
		t.Run(what+": another one serves before it is drained", func(t *testing.T) {
			t.Parallel()
			w := deployed(t, 1, "n0")
			old := w.only(withStatus(state.StatusServing))
			leave(w, on(old))
			w.plan(false)
			require.Equal(t, map[string]int{"serving h1": 1, "placed h1": 1}, w.counts("m"))
			fresh := w.only(withStatus(state.StatusPlaced))
			require.NotEqual(t, on(old), on(fresh))
			require.Regexp(t, "^GPU "+on(old)+" of node n0 is "+what+".*: "+fresh.Name.String()+" takes over$", w.reasons("m", planner.KindMoveAway)[0])
			require.Equal(t, old.Name.String(), w.decisions("m", planner.KindMoveAway)[0].Replica)
			for range 12 {
				w.round()
				require.GreaterOrEqual(t, capacity(w.view())["m"], 1)
				w.step()
			}
			require.Equal(t, fresh.Name, w.only(withStatus(state.StatusServing)).Name)
			require.Equal(t, map[string]int{"serving h1": 1}, w.counts("m"))
			require.Contains(t, w.reasons("m", planner.KindMoveAway)[0], ": replaced by another replica")
			require.Zero(t, w.round(), "it is at rest")
		})
		t.Run(what+": it stays if it fits nowhere else, and the reason is recorded once", func(t *testing.T) {
			t.Parallel()
			w := fresh(t)
			w.addNodes(node("n0", 1))
			w.model(model("m", 1, variant("a", "h1")))
			w.quiet()
			old := w.only(withStatus(state.StatusServing))
			leave(w, on(old))
			w.quiet()
			require.Equal(t, old.Name, w.only(withStatus(state.StatusServing)).Name)
			said := w.reasons("m", planner.KindGPUOutOfUse)
			require.Len(t, said, 1)
			require.Regexp(t, "^GPU n0-GPU0 of node n0 is "+what+".*: its replicas fit nowhere else and stay; ", said[0])
			w.addNodes(node("n1", 1))
			w.quiet()
			require.Equal(t, "n1", w.only(withStatus(state.StatusServing)).Placement.Node)
		})
	}
	t.Run("it evicts nothing to make room", func(t *testing.T) {
		t.Parallel()
		w := idle(t, nil, node("n0", 1))
		b := model("b", 1, variant("v", "b1", whole))
		b.Priority = 100
		w.addNodes(node("n1", 1))
		w.model(b)
		w.quiet()
		w.cordon(on(w.oneOf("b", state.StatusServing)), true)
		w.quiet()
		require.Equal(t, map[string]int{"serving": 1}, w.stages("a"))
		require.Equal(t, map[string]int{"serving": 1}, w.stages("b"))
		require.Empty(t, w.decisions("a", planner.KindEvict))
	})
	t.Run("many GPUs at once: as many replicas at a time as the surge", func(t *testing.T) {
		t.Parallel()
		w := deployed(t, 4, "n0")
		w.addNodes(node("n1", 2))
		w.must(&state.Cordon{Node: "n0", On: true})
		most := 0
		w.until(func() bool {
			staying := 0
			for _, r := range w.view().ReplicasOf(nil, "m") {
				staying += btoi(r.Counts())
			}
			most = max(most, staying)
			require.GreaterOrEqual(t, capacity(w.view())["m"], 4)
			return !slices.ContainsFunc(w.view().ReplicasOf(nil, "m"), func(r *state.Replica) bool { return r.Placement.Node == "n0" })
		})
		require.Equal(t, 5, most, "one beyond the target")
		require.Equal(t, map[string]int{"serving h1": 4}, w.counts("m"))
		require.Len(t, w.decisions("m", planner.KindPlace), 8, "nothing is placed in vain")
	})
	t.Run("a GPU that is in order again keeps its replica", func(t *testing.T) {
		t.Parallel()
		w := deployed(t, 1, "n0", "n1")
		old := w.only(withStatus(state.StatusServing))
		w.load = func() time.Duration { return time.Hour }
		w.sicken(on(old), false)
		w.turns(4)
		require.Equal(t, map[string]int{"serving h1": 1, "starting h1": 1}, w.counts("m"))
		w.sicken(on(old), true)
		w.turns(8)
		require.Equal(t, old.Name, w.only(withStatus(state.StatusServing)).Name)
		require.Equal(t, map[string]int{"serving h1": 1}, w.counts("m"))
	})
	t.Run("an outage of Nomad in the middle of it changes nothing", func(t *testing.T) {
		t.Parallel()
		w := deployed(t, 1, "n0", "n1")
		w.load = func() time.Duration { return 20 * tick }
		old := w.only(withStatus(state.StatusServing))
		w.cordon(on(old), true)
		w.turns(4)
		fresh := w.only(withStatus(state.StatusStarting))
		w.nomadOut = true
		w.turns(4)
		require.Equal(t, map[string]int{"serving h1": 1, "starting h1": 1}, w.counts("m"))
		w.nomadOut = false
		w.until(func() bool { return len(w.view().ReplicasOf(nil, "m")) == 1 })
		require.Equal(t, fresh.Name, w.only(withStatus(state.StatusServing)).Name)
	})
	t.Run("a pool that is out of reach loses nothing", func(t *testing.T) {
		t.Parallel()
		w := fresh(t)
		w.conf.Pools = []planner.Pool{pool("cloud", state.ManagementManual)}
		w.addNodes(node("n0", 2), away("c0", "cloud", 2))
		w.model(model("m", 1, variant("a", "h1", whole)))
		w.must(&state.ScaleRequest{Model: "m", Pool: "cloud", Replicas: new(1), Origin: state.OriginOperator})
		w.quiet()
		old := w.only(withStatus(state.StatusServing))
		w.poolOut["cloud"] = true
		w.cordon(on(old), true)
		w.quiet()
		require.Equal(t, old.Name, w.only(withStatus(state.StatusServing)).Name)
		w.poolOut["cloud"] = false
		w.quiet()
		require.Equal(t, map[string]int{"cloud": 1}, w.inPool("m"))
		require.NotEqual(t, old.Name, w.only(withStatus(state.StatusServing)).Name)
	})
	t.Run("a rollout that waits does not keep it", func(t *testing.T) {
		t.Parallel()
		w := stuckRollout(t, 1)
		n := node("n3", 2)
		n.GPUs[0].Memory, n.GPUs[1].Memory = 40, 40 // too small for variant a
		w.addNodes(n)
		m := *w.view().Model(nil, "m")
		m.Variants = append(slices.Clone(m.Variants), variant("b", "b1", func(v *state.Variant) { v.Cost = 0.5 }))
		m.Hash += " b1"
		w.model(m)
		w.scale(4)
		w.turns(10)
		old := w.only(func(r *state.Replica) bool { return r.Name.Variant == "b" })
		require.Equal(t, state.StatusServing, old.Status)
		w.cordon(on(old), true)
		w.until(func() bool { return w.view().Replica(nil, old.Name.String()) == nil })
	})
	t.Run("what moves does not take the place that was freed for a canary", func(t *testing.T) {
		t.Parallel()
		w := fresh(t, "n0")
		m := model("m", 1, variant("a", "h1"))
		m.Update = &state.Update{MinAvailable: percent(0)}
		w.model(m)
		w.quiet()
		for _, gpu := range w.view().Node(nil, "n0").GPUs {
			w.cordon(gpu.UUID, true)
		}
		w.addNodes(node("n1", 1))
		w.turns(1)
		require.Equal(t, map[string]int{"serving h1": 1, "starting h1": 1}, w.counts("m"))
		w.next("h2", whole)
		w.turns(60)
		require.Equal(t, map[string]int{"serving h2": 1}, w.counts("m"))
		w.quiet()
	})
	t.Run("a pair moves as one", func(t *testing.T) {
		t.Parallel()
		w := fresh(t, "n0")
		m := model("m", 1, variant("a", "h1"))
		m.Failover = true
		w.model(m)
		w.quiet()
		old := w.only(withStatus(state.StatusServing))
		w.cordon(on(old), true)
		w.quiet()
		moved := w.only(withStatus(state.StatusServing))
		require.NotEqual(t, on(old), on(moved))
		require.Equal(t, []string{on(moved) + "#0", on(moved) + "#1"}, moved.Placement.Seats)
	})
	t.Run("one GPU of several is enough", func(t *testing.T) {
		t.Parallel()
		w := fresh(t)
		w.addNodes(node("n0", 3))
		w.model(model("m", 1, variant("a", "h1", whole, func(v *state.Variant) { v.GPUs = 2 })))
		w.quiet()
		w.addNodes(node("n1", 2))
		old := w.only(withStatus(state.StatusServing))
		w.cordon(old.Placement.Seats[1][:len("n0-GPU0")], true)
		w.quiet()
		require.Equal(t, "n1", w.only(withStatus(state.StatusServing)).Placement.Node)
	})
	t.Run("a seat on it is enough", func(t *testing.T) {
		t.Parallel()
		w := fresh(t, "n0")
		w.model(model("m", 1, variant("a", "h1", whole, func(v *state.Variant) { v.Reach = 2 })))
		w.quiet()
		w.addNodes(node("n1", 2))
		old := w.only(withStatus(state.StatusServing))
		require.Len(t, old.Placement.Seats, 2)
		spare := "n0-GPU0"
		if on(old) == spare {
			spare = "n0-GPU1"
		}
		w.cordon(spare, true)
		w.quiet()
		require.Equal(t, "n1", w.only(withStatus(state.StatusServing)).Placement.Node)
	})
	t.Run("what cannot move does not hold up what can", func(t *testing.T) {
		t.Parallel()
		w := fresh(t)
		w.conf.Pools = []planner.Pool{pool("cloud", state.ManagementManual)}
		w.addNodes(node("n0", 2), away("c0", "cloud", 1))
		w.model(model("m", 2, variant("a", "h1", whole)))
		w.must(&state.ScaleRequest{Model: "m", Pool: "cloud", Replicas: new(1), Origin: state.OriginOperator})
		w.quiet()
		require.Equal(t, map[string]int{"": 1, "cloud": 1}, w.inPool("m"))
		w.cordon("c0-GPU0", true) // and people expect a replica there
		own := slices.DeleteFunc(w.view().ReplicasOf(nil, "m"), func(r *state.Replica) bool { return r.Placement.Node != "n0" })[0]
		w.cordon(on(own), true)
		w.quiet()
		require.Equal(t, map[string]int{"": 1, "cloud": 1}, w.inPool("m"))
		for _, r := range w.view().ReplicasOf(nil, "m") {
			require.NotEqual(t, on(own), on(r))
		}
		require.NotEmpty(t, w.decisions("m", planner.KindGPUOutOfUse))
	})
	t.Run("a pool that is disabled is left as it is", func(t *testing.T) {
		t.Parallel()
		w := fresh(t)
		w.conf.Pools = []planner.Pool{pool("cloud", state.ManagementManual)}
		w.addNodes(node("n0", 2), away("c0", "cloud", 2))
		w.model(model("m", 1, variant("a", "h1", whole)))
		w.must(&state.ScaleRequest{Model: "m", Pool: "cloud", Replicas: new(1), Origin: state.OriginOperator})
		w.quiet()
		require.Equal(t, map[string]int{"cloud": 1}, w.inPool("m"))
		w.conf.Pools[0].Management = state.ManagementDisabled
		w.quiet()
		old := w.only(withStatus(state.StatusServing))
		w.cordon(on(old), true)
		w.quiet()
		require.Equal(t, old.Name, w.only(withStatus(state.StatusServing)).Name)
	})
	t.Run("what cannot move does not hold up a rollout", func(t *testing.T) {
		t.Parallel()
		w := fresh(t)
		w.conf.Pools = []planner.Pool{pool("cloud", state.ManagementManual)}
		w.addNodes(node("n0", 3), away("c0", "cloud", 1))
		m := model("m", 3, variant("a", "h1", whole))
		w.model(m)
		w.must(&state.ScaleRequest{Model: "m", Pool: "cloud", Replicas: new(1), Origin: state.OriginOperator})
		w.quiet()
		require.Equal(t, map[string]int{"": 2, "cloud": 1}, w.inPool("m"))
		w.cordon("c0-GPU0", true)
		w.model(model("m", 3, variant("a", "h2", whole)))
		w.until(func() bool { return w.counts("m")["serving h2"] == 2 })
		w.quiet()
		require.Equal(t, map[string]int{"serving h1": 1, "serving h2": 2}, w.counts("m"))
		require.Equal(t, map[string]int{"": 2, "cloud": 1}, w.inPool("m"))
	})
	for what, leave := range ways {
		t.Run(what+": what is idle goes COLD, and not WARM", func(t *testing.T) {
			t.Parallel()
			w := idle(t, func(m *state.Model) { m.IdleWarm = 2 * time.Hour }, node("n0", 1))
			leave(w, "n0-GPU0")
			w.quiet()
			require.Equal(t, map[string]int{"serving": 1}, w.stages("a"), "it fits nowhere else")
			w.later(3 * time.Hour)
			require.Equal(t, map[string]int{"cold": 1}, w.stages("a"))
			require.Empty(t, w.decisions("a", planner.KindAsleep))
		})
		t.Run(what+": what is too much is not kept WARM", func(t *testing.T) {
			t.Parallel()
			w := idle(t, func(m *state.Model) { m.KeepWarm = 1 }, node("n0", 1))
			leave(w, "n0-GPU0")
			w.scaleOf("a", 0)
			w.quiet()
			require.Empty(t, w.stages("a"))
		})
		t.Run(what+": what loads there goes on until another one serves", func(t *testing.T) {
			t.Parallel()
			w := fresh(t, "n0")
			w.load = func() time.Duration { return time.Hour }
			w.model(model("m", 1, variant("a", "h1")))
			w.turns(4)
			old := w.only(withStatus(state.StatusStarting))
			w.load = func() time.Duration { return 20 * tick }
			leave(w, on(old))
			w.turns(10)
			require.Equal(t, map[string]int{"starting h1": 2}, w.counts("m"))
			w.until(func() bool { return w.counts("m")["serving h1"] == 1 })
			w.quiet()
			require.NotEqual(t, old.Name, w.only(withStatus(state.StatusServing)).Name)
			require.Equal(t, map[string]int{"serving h1": 1}, w.counts("m"))
		})
	}
	for what, fail := range map[string]func(w *world, c *state.Replica){
		"to serve on": func(w *world, c *state.Replica) {
			w.until(func() bool { return w.counts("m")["serving h2"] == 1 })
			w.cordon(on(c), true)
			w.kill(on(c))
		},
		"to start": func(w *world, c *state.Replica) {
			w.dead[on(c)] = true
			w.turns(1)
			w.cordon(on(c), true)
		},
	} {
		t.Run("a definition is not blamed for a canary that fails there "+what, func(t *testing.T) {
			t.Parallel()
			w := deployed(t, 1, "n0", "n1")
			w.model(model("m", 0, variant("a", "h2")))
			w.until(func() bool { return w.counts("m")["starting h2"] == 1 })
			c := w.only(func(r *state.Replica) bool { return r.Canary })
			fail(w, c)
			w.until(func() bool { return w.status() == "" })
			require.Empty(t, w.decisions("m", planner.KindRolledBack))
			w.quiet()
			require.Equal(t, map[string]int{"serving h2": 1}, w.counts("m"))
			require.NotEqual(t, c.Name, w.only(withStatus(state.StatusServing)).Name)
		})
	}
	t.Run("it is what a scale-down takes first", func(t *testing.T) {
		t.Parallel()
		w := fresh(t)
		w.addNodes(node("n0", 3))
		w.model(model("m", 3, variant("a", "h1", whole)))
		w.quiet()
		old := w.view().ReplicasOf(nil, "m")
		for i, r := range old {
			w.requests[r.Name.String()] = slices.Repeat([]time.Time{w.now.Add(time.Hour)}, i)
		}
		w.cordon(on(old[2]), true)
		w.scale(2)
		w.once()
		require.Equal(t, old[2].Name, w.only(withStatus(state.StatusDraining)).Name, "although it has the most requests")
	})
}

// TestDeadGPU: nothing waits for a replica of which nothing runs, on a GPU on which it cannot
// start again.
func TestDeadGPU(t *testing.T) {
	t.Parallel()
	for what, fail := range map[string]func(*world, string){
		"unhealthy":   func(w *world, gpu string) { w.sicken(gpu, false) },
		"not offered": func(w *world, gpu string) { w.lose(gpu) },
	} {
		t.Run(what+": given up at once, at the usual price of a missing replica", func(t *testing.T) {
			t.Parallel()
			w := idle(t, nil, node("n0", 1))
			w.addNodes(node("n1", 1))
			b := model("b", 1, variant("v", "b1", whole))
			b.Priority = 100
			w.model(b)
			w.quiet()
			old := w.oneOf("b", state.StatusServing)
			fail(w, on(old))
			w.kill(on(old))
			w.once()
			require.Equal(t, "b", w.oneOf("a", state.StatusDraining).MakesRoomFor, "in the same plan it makes room for b")
			w.oneOf("b", state.StatusDraining)
			require.Regexp(t, "^GPU "+on(old)+" of node n1 is "+what+".*: replica given up while serving$", w.reasons("b", planner.KindMoveAway)[0])
			w.quiet()
			require.NotEqual(t, old.Name, w.oneOf("b", state.StatusServing).Name)
		})
		t.Run(what+": many at once are all replaced at once", func(t *testing.T) {
			t.Parallel()
			w := deployed(t, 4, "n0")
			w.addNodes(node("n1", 2))
			for _, gpu := range []string{"n0-GPU0", "n0-GPU1"} {
				fail(w, gpu)
				w.kill(gpu)
			}
			w.plan(false)
			require.Equal(t, 4, w.counts("m")["placed h1"])
			w.quiet()
			require.Equal(t, map[string]int{"serving h1": 4}, w.counts("m"))
		})
		t.Run(what+": what failed there comes back as soon as there is room", func(t *testing.T) {
			t.Parallel()
			w := fresh(t)
			w.addNodes(node("n0", 1))
			w.model(model("m", 1, variant("a", "h1")))
			w.quiet()
			fail(w, "n0-GPU0")
			w.kill("n0-GPU0")
			w.quiet()
			require.Empty(t, w.counts("m"))
			require.Contains(t, w.reasons("m", planner.KindCannotPlace)[0], "1 of 1 replicas are missing")
			w.offerAll("n0")
			w.sicken("n0-GPU0", true)
			w.quiet()
			require.Equal(t, map[string]int{"serving h1": 1}, w.counts("m"))
		})
		t.Run(what+": nothing is concluded while Consul or Nomad is out of reach", func(t *testing.T) {
			t.Parallel()
			w := deployed(t, 1, "n0", "n1")
			w.load = func() time.Duration { return time.Hour }
			old := w.only(withStatus(state.StatusServing)).Name.String()
			fail(w, on(w.view().Replica(nil, old)))
			w.kill(on(w.view().Replica(nil, old)))
			w.consulOut = true
			w.turns(4)
			require.True(t, w.view().Replica(nil, old).Counts())
			w.consulOut, w.nomadOut = false, true
			w.turns(4)
			require.True(t, w.view().Replica(nil, old).Counts())
			w.nomadOut = false
			w.plan(false)
			require.False(t, w.view().Replica(nil, old).Counts())
		})
		t.Run(what+": a canary is not blamed for its GPU", func(t *testing.T) {
			t.Parallel()
			w := deployed(t, 1, "n0", "n1")
			w.model(model("m", 0, variant("a", "h2")))
			w.until(func() bool { return w.counts("m")["serving h2"] == 1 })
			c := w.only(func(r *state.Replica) bool { return r.Canary })
			fail(w, on(c))
			w.kill(on(c))
			w.until(func() bool { return w.status() == "" })
			require.Empty(t, w.decisions("m", planner.KindRolledBack))
			w.quiet()
			require.Equal(t, map[string]int{"serving h2": 1}, w.counts("m"))
		})
	}
	t.Run("on a GPU that is only cordoned Nomad restarts it", func(t *testing.T) {
		t.Parallel()
		w := fresh(t)
		w.addNodes(node("n0", 1))
		w.model(model("m", 1, variant("a", "h1")))
		w.quiet()
		old := w.only(withStatus(state.StatusServing))
		w.cordon("n0-GPU0", true)
		w.kill("n0-GPU0")
		w.plan(false)
		delete(w.dead, "n0-GPU0")
		w.quiet()
		require.Equal(t, old.Name, w.only(withStatus(state.StatusServing)).Name)
	})
}

// TestRestOnAGPUOutOfUse: what rests gives a GPU up that an operator wants for himself, and
// waits for one that may be well again.
func TestRestOnAGPUOutOfUse(t *testing.T) {
	t.Parallel()
	asleep := func(t *testing.T) *world {
		w := idle(t, nil, node("n0", 1))
		w.must(&state.EvictRequest{Model: "a", To: state.GoalWarm, Time: w.now})
		w.quiet()
		require.Equal(t, map[string]int{"warm": 1}, w.stages("a"))
		return w
	}
	t.Run("cordoned: WARM goes COLD, and COLD stays", func(t *testing.T) {
		t.Parallel()
		w := asleep(t)
		w.cordon("n0-GPU0", true)
		w.quiet()
		require.Equal(t, map[string]int{"cold": 1}, w.stages("a"))
		require.Contains(t, w.reasons("a", planner.KindMoveAway)[0], "no longer kept WARM: GPU n0-GPU0 of node n0 is cordoned: it is hot")
		require.Empty(t, w.nomad, "no process keeps the GPU open")
	})
	t.Run("cordoned: what is on its way to WARM goes COLD", func(t *testing.T) {
		t.Parallel()
		w := idle(t, nil, node("n0", 1))
		w.requests[w.oneOf("a", state.StatusServing).Name.String()] = []time.Time{w.now.Add(5 * tick)}
		w.must(&state.EvictRequest{Model: "a", To: state.GoalWarm, Time: w.now})
		w.cordon("n0-GPU0", true)
		w.quiet()
		require.Equal(t, map[string]int{"cold": 1}, w.stages("a"))
	})
	t.Run("unhealthy: WARM stays, and is woken elsewhere or later", func(t *testing.T) {
		t.Parallel()
		w := asleep(t)
		w.sicken("n0-GPU0", false)
		w.quiet()
		r := w.oneOf("a", state.StatusWarm)
		w.scaleOf("a", 1)
		w.quiet()
		require.Equal(t, map[string]int{"warm": 1}, w.stages("a"), "it is not woken there")
		w.sicken("n0-GPU0", true)
		w.quiet()
		require.Equal(t, r.Name, w.oneOf("a", state.StatusServing).Name, fmt.Sprint(w.stages("a")))
	})
}

// TestNVMLIsLate: while a call of NVML for a GPU does not return, nothing new is placed there. What is there
// stays and may wake: a driver is busy mostly when the engine beside it ends.
func TestNVMLIsLate(t *testing.T) {
	t.Parallel()
	late := func(w *world, gpu string) {
		w.editGPU(gpu, func(g *state.GPU) { g.Healthy, g.Reason = false, nvml.Late+"nvmlDeviceGetMemoryInfo" })
	}
	t.Run("a replica stays", func(t *testing.T) {
		t.Parallel()
		w := deployed(t, 1, "n0")
		old := w.only(withStatus(state.StatusServing))
		late(w, on(old))
		require.Zero(t, w.round(), "another GPU has room, and nothing moves")
		require.Empty(t, w.decisions("m", planner.KindMoveAway))
	})
	t.Run("nothing is placed there", func(t *testing.T) {
		t.Parallel()
		w := fresh(t)
		w.addNodes(node("n0", 1))
		late(w, "n0-GPU0")
		w.model(model("m", 1, variant("a", "h1")))
		w.quiet()
		require.Empty(t, w.counts("m"))
		w.sicken("n0-GPU0", true)
		w.quiet()
		require.Equal(t, map[string]int{"serving h1": 1}, w.counts("m"))
	})
	t.Run("what rests there wakes", func(t *testing.T) {
		t.Parallel()
		w := idle(t, nil, node("n0", 1))
		w.must(&state.EvictRequest{Model: "a", To: state.GoalWarm, Time: w.now})
		w.quiet()
		late(w, "n0-GPU0")
		w.scaleOf("a", 1)
		w.quiet()
		require.Equal(t, map[string]int{"serving": 1}, w.stages("a"))
	})
}
