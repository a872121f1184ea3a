package planner_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/placement"
	"remuda/controller/planner"
	"remuda/controller/state"
	"remuda/internal/replica"
	"remuda/internal/testkit/long"
)

// TestWorld lets random things happen to a little world, looks after each plan at what
// must hold (world.check), and then lets it come to rest.
func TestWorld(t *testing.T) {
	t.Parallel()
	seeds := long.Pick(80, 1300)
	var mu sync.Mutex
	seen := map[string]int{}
	commands, plans := 0, 0
	t.Run("all", func(t *testing.T) {
		for part := range 4 {
			t.Run(fmt.Sprintf("part=%d", part), func(t *testing.T) {
				t.Parallel()
				for seed := part; seed < seeds && !t.Failed(); seed += 4 {
					t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
						w := simulate(t, uint64(seed), false)
						mu.Lock()
						defer mu.Unlock()
						for _, d := range w.view().Decisions(nil, "", 0) {
							seen[d.Kind]++
						}
						commands, plans = commands+len(w.entries), plans+w.plans
					})
				}
			})
		}
	})
	t.Logf("%d commands, of which %d were plans", commands, plans)
	if long.Enabled() && !t.Failed() {
		require.Greater(t, commands, 100_000)
	}
	// A rule that no seed has met was not tried.
	for _, kind := range []string{
		planner.KindPlace, planner.KindCannotPlace, planner.KindScaleDown, planner.KindDrained, planner.KindDrainTimeout, planner.KindServing,
		planner.KindNotServing, planner.KindLoadFailed, planner.KindRetry, planner.KindMoveAway, planner.KindNodeDraining, planner.KindNodeGone, planner.KindGPUOutOfUse,
		planner.KindCanary, planner.KindRolloutWaits, planner.KindRolling, planner.KindRolledBack, planner.KindRolloutDone, planner.KindAdopt,
		planner.KindOrphan, planner.KindJobProblem, planner.KindJobStopped, planner.KindJobEdited, planner.KindJobGone, planner.KindVariantRemoved,
		planner.KindReplaced, planner.KindFailing,
	} {
		if !t.Failed() {
			require.NotZero(t, seen[kind], kind)
		}
	}
}

// TestWorldWithListsThatLag: whatever happens, and however old Nomad's lists are, no replica is
// removed while its job runs, and the world comes to rest where it should.
func TestWorldWithListsThatLag(t *testing.T) {
	t.Parallel()
	for seed := range uint64(long.Pick(20, 100)) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			simulate(t, seed, true)
		})
	}
}

func simulate(t *testing.T, seed uint64, lags bool) *world {
	w := newWorld(t, rand.New(rand.NewPCG(seed, 1)))
	w.restarts, w.updates, w.lags = rand.New(rand.NewPCG(seed, 3)), rand.New(rand.NewPCG(seed, 5)), lags
	w.load = func() time.Duration { return time.Duration(1+w.rand.IntN(5)) * tick }
	w.conf.DrainTimeout, w.conf.CanaryTime, w.conf.PlaceTimeout, w.conf.SteadyTime, w.conf.NodeGrace = 15*tick, 5*tick, 20*tick, 30*tick, 10*tick
	w.conf.BackoffMax = time.Minute
	w.clients.each = 3
	for i := range 4 {
		if id := fmt.Sprintf("n%d", i); i < 2 {
			w.addNodes(node(id, 2+i%2))
		} else {
			w.addNodes(seats4(id, 2+i%2))
		}
	}
	hashes := 0
	for range 60 {
		for range w.rand.IntN(3) {
			w.disturb(&hashes)
		}
		lagging := w.lags || w.rand.IntN(4) == 0
		w.plan(lagging)
		for _, a := range planner.Actions(w.view(), w.observe(lagging), w.conf) {
			switch w.rand.IntN(12) {
			case 0: // the leader crashes before it is done
			case 1:
				w.act(a, !w.lags) // or before it can write it down
			default:
				w.act(a, false)
			}
		}
		w.traffic()
		w.step()
		w.listedMayLag()
		w.restart()
	}
	w.settle()
	return w
}

// listedMayLag forgets an old list now and then.
func (w *world) listedMayLag() {
	odds := 2
	if w.lags {
		odds = 10
	}
	if w.rand.IntN(odds) == 0 {
		w.relist()
	}
}

// traffic gives requests to what serves.
func (w *world) traffic() {
	for _, r := range w.view().Replicas(nil) {
		if r.Status == state.StatusServing && w.rand.IntN(2) == 0 {
			name := r.Name.String()
			w.last[name] = w.now
			w.requests[name] = append(w.requests[name], w.now.Add(time.Duration(w.rand.IntN(20))*tick))
		}
	}
}

func (w *world) disturb(hashes *int) {
	v := w.view()
	name := fmt.Sprintf("m%d", w.rand.IntN(3))
	m := v.Model(nil, name)
	anyOf := func(names []string) string {
		if len(names) == 0 {
			return ""
		}
		return names[w.rand.IntN(len(names))]
	}
	draw := func(variantName string, odds int) state.Variant {
		*hashes++
		hash := fmt.Sprintf("h%d", *hashes)
		if w.rand.IntN(odds) == 0 {
			w.broken[hash] = true
		}
		return variant(variantName, hash, func(v *state.Variant) {
			v.GPUs, v.Memory, v.Cost = 1+w.rand.IntN(2), int64(10+10*w.rand.IntN(4)), float64(1+w.rand.IntN(3))
			v.SharedMemory, v.SleepMemory = int64(w.updates.IntN(3))*v.Memory/4, int64(w.updates.IntN(3))
		})
	}
	switch w.rand.IntN(21) {
	case 0, 1:
		if m == nil {
			fresh := model(name, w.rand.IntN(4), draw("a", 5), draw("b", 5))
			fresh.Failover, fresh.Min, fresh.Priority = w.rand.IntN(4) == 0, w.rand.IntN(2), w.rand.IntN(100)
			fresh.Management = []state.Management{state.ManagementFull, state.ManagementFull, state.ManagementDisabled}[w.rand.IntN(3)]
			fresh.Update = w.update()
			w.log("model %s", name)
			w.model(fresh)
			return
		}
		fallthrough
	case 2:
		if m == nil {
			return
		}
		changed := *m
		changed.Variants = slices.Clone(m.Variants)
		i := w.rand.IntN(len(changed.Variants))
		names := changed.Variants[i].Name
		if w.rand.IntN(6) == 0 {
			names = fmt.Sprintf("v%d", *hashes)
		}
		changed.Variants[i] = draw(names, 2)
		changed.Hash = fmt.Sprint("m", *hashes)
		w.log("model %s: variant %s becomes %s", name, names, changed.Variants[i].Hash)
		w.model(changed)
	case 3: // back to what it was
		if m == nil {
			return
		}
		stable := w.view().Versions(nil, name).Get(m.StableVersion)
		for variantName := range m.Rollouts {
			if stable.Variant(variantName) == nil {
				continue
			}
			changed := *m
			changed.Variants = slices.Clone(m.Variants)
			for i := range changed.Variants {
				if changed.Variants[i].Name == variantName {
					changed.Variants[i] = *stable.Variant(variantName)
				}
			}
			*hashes++
			changed.Hash = fmt.Sprint("m", *hashes)
			w.log("model %s: variant %s goes back", name, variantName)
			w.model(changed)
			return
		}
	case 4, 5:
		n := w.rand.IntN(5)
		w.log("scale %s %d", name, n)
		w.apply(&state.ScaleRequest{Model: name, Replicas: &n, Origin: state.OriginOperator})
	case 6:
		if m != nil {
			n := w.rand.IntN(3)
			w.log("scale %s/%s %d", name, m.Variants[0].Name, n)
			w.apply(&state.ScaleRequest{Model: name, Variants: map[string]int{m.Variants[0].Name: n}, Origin: state.OriginOperator})
		}
	case 7:
		stopped := w.rand.IntN(2) == 0
		w.log("stop %s %v", name, stopped)
		w.apply(&state.ScaleRequest{Model: name, Stopped: &stopped, Origin: state.OriginOperator})
	case 8:
		rs := v.Replicas(nil)
		if len(rs) > 0 {
			e := &state.EvictRequest{Replica: rs[w.rand.IntN(len(rs))].Name.String(), Force: w.rand.IntN(2) == 0, To: []state.Goal{state.GoalGone, state.GoalCold}[w.rand.IntN(2)], Time: w.now}
			w.log("evict %s %q", e.Replica, e.To)
			w.apply(e)
		}
	case 9, 10:
		id := anyOf(sorted(w.nodes))
		w.log("node %s drains", id)
		w.drains[id] = w.now
		w.setNode(id, func(n *state.Node) { n.Draining = !n.Draining })
	case 11:
		id := anyOf(sorted(w.nodes))
		w.log("node %s is lost", id)
		w.down[id] = true
		w.setNode(id, func(n *state.Node) {
			if n.DownSince.IsZero() {
				n.DownSince, n.Ready = w.now, false
			}
		})
	case 12:
		if id := anyOf(sorted(w.down)); id != "" {
			w.back(id)
		}
	case 13:
		j := w.nomad[anyOf(sorted(w.nomad))]
		if j == nil {
			return
		}
		w.index2++
		switch w.rand.IntN(4) {
		case 0: // stopped behind our back
			j.Stopped, j.Index = true, w.index2
		case 1:
			j.Index, j.drifting = w.index2, "edited"
		case 2: // purged
			if j.alloc != nil {
				j.alloc.Client = "complete"
			}
			delete(w.nomad, j.Name.String())
		case 3: // its process dies
			if j.alloc != nil && j.alloc.Client == "running" {
				j.alloc.Restarts++
				j.restart(w.now)
				j.alloc.Event, j.serves = "Killed", time.Time{}
			}
		}
		w.log("job %s is meddled with", j.Name)
	case 14:
		w.nomadOut = !w.nomadOut
	case 15:
		w.consulOut = !w.consulOut
	case 16:
		id := anyOf(sorted(w.nodes))
		if gs := w.nodes[id].GPUs; len(gs) > 0 {
			g, healthy := gs[0].UUID, !gs[0].Healthy
			if w.sicken(g, healthy); !healthy && w.rand.IntN(2) == 0 {
				w.kill(g)
			}
		}
	case 17:
		id := anyOf(sorted(w.nodes))
		if n := v.Node(nil, id); len(n.GPUs) > 0 {
			g := n.GPUs[len(n.GPUs)-1]
			w.log("GPU %s is cordoned: %v", g.UUID, !g.Cordoned)
			w.must(&state.Cordon{Node: id, GPU: g.UUID, On: !g.Cordoned, Reason: "it is hot"})
		}
	case 18:
		w.stranger(m)
	case 19:
		id := anyOf(sorted(w.nodes))
		switch gs := w.nodes[id].GPUs; {
		case len(w.missing[id]) > 0:
			w.offerAll(id)
		case len(gs) > 0:
			g := gs[w.rand.IntN(len(gs))].UUID
			w.lose(g)
			if w.rand.IntN(2) == 0 {
				w.kill(g)
			}
		}
	case 20: // one or all replicas of a model begin to fail their requests
		all := w.rand.IntN(4) == 0
		for _, r := range v.ReplicasOf(nil, name) {
			if r.Status == state.StatusServing && (all || w.rand.IntN(2) == 0) {
				w.log("%s fails its requests", r.Name)
				w.clients.bad[r.Name.String()] = true
			}
		}
	}
}

// update draws how the replicas of a model are replaced: half of the models roll in place.
func (w *world) update() *state.Update {
	u := &state.Update{Surge: w.updates.IntN(2)}
	switch w.updates.IntN(4) {
	case 0:
		return nil
	case 1:
		u.MinAvailable = &state.Amount{Number: w.updates.IntN(4)}
	case 2:
		u.MinAvailable = percent(w.updates.IntN(101))
	}
	return u
}

// stranger puts a job into Nomad that the state knows nothing of, as after the state
// was restored from an older snapshot.
func (w *world) stranger(m *state.Model) {
	if m == nil {
		return
	}
	f := placement.NewFleet(w.view().Nodes(nil), placement.Config{Rates: w.conf.Rates, WarmShare: w.conf.WarmShare})
	if w.rand.IntN(3) > 0 {
		f = w.fleet()
	}
	v := m.Variants[0]
	at, no := f.Place(placement.Request{Model: m.Name, Variant: &v, Failover: m.Failover})
	if no != nil {
		return
	}
	w.index2++
	name := replica.Name{Model: m.Name, Variant: v.Name, ID: fmt.Sprintf("stranger%d", w.index2)}
	j := &job{Job: planner.Job{Name: name, Hash: v.Hash, Placement: at.Placement, Index: w.index2}, strange: true}
	switch w.rand.IntN(4) {
	case 0:
		j.Hash = "unknown"
	case 1:
		j.Problem = "its meta was edited"
	}
	w.log("job %s appears, of hash %s on %v", name, j.Hash, at.Placement.Seats)
	w.nomad[name.String()] = j
}

func (w *world) back(id string) {
	w.log("node %s is back", id)
	delete(w.down, id)
	w.setNode(id, func(n *state.Node) { n.DownSince, n.Ready, n.WrittenOff = time.Time{}, true, false })
}
