package planner_test

import (
	"bytes"
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
		w.addNodes(node(fmt.Sprintf("n%d", i), 2+i%2))
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
				j.alloc.Started, j.alloc.Event, j.serves = w.now, "Killed", time.Time{}
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

// settle ends the disturbances, and looks that the world comes to rest where it
// should.
func (w *world) settle() {
	w.nomadOut, w.consulOut, w.gateways = false, false, true
	w.poolOut, w.demand, w.outcome = map[string]bool{}, map[string]time.Time{}, nil
	for _, s := range w.view().Switches(nil) {
		w.must(&state.SetSwitch{Name: s.Name, Delete: true})
	}
	w.broken = map[string]bool{}
	for _, id := range sorted(w.down) {
		w.back(id)
	}
	// In half of the worlds GPUs stay out of use.
	if w.rand.IntN(2) == 0 {
		for _, id := range sorted(w.nodes) {
			w.offerAll(id)
			for _, g := range w.nodes[id].GPUs {
				w.sicken(g.UUID, true)
			}
			w.must(&state.Cordon{Node: id})
		}
	}
	for _, id := range sorted(w.nodes) {
		w.setNode(id, func(n *state.Node) { n.Draining = false })
	}
	for _, name := range sorted(w.nomad) { // people look after what the controller leaves alone
		if j := w.nomad[name]; j.Problem != "" || j.Hash == "unknown" || w.view().Replica(nil, name) == nil && !w.adoptable(j) {
			delete(w.nomad, name)
		}
	}
	quiet := 0
	for turn := 0; quiet < 60; turn++ {
		w.holds(turn < 700, "it does not come to rest")
		quiet++
		if w.round() > 0 {
			quiet = 0
		}
		w.step()
	}
	v := w.view()
	for _, m := range v.Models(nil) {
		running := map[string]int{}
		outdated := map[string]bool{}
		for _, r := range v.ReplicasOf(nil, m.Name) {
			if r.Status == state.StatusCold {
				continue
			}
			if r.Status == (state.StatusWarm) {
				continue
			}
			if n := v.Node(nil, r.Placement.Node); r.Status == state.StatusFailed && n.CapacityPool != "" && w.conf.Pools[0].Management == state.ManagementDisabled {
				continue // nothing is placed there
			}
			w.holds(r.Status == state.StatusServing, "%s is %s", r.Name, r.Status)
			if n := v.Node(nil, r.Placement.Node); r.OutOfUse(n) != "" && n.CapacityPool == "" {
				w.mustNotFit(m, group(v, r), planner.KindGPUOutOfUse)
			}
			// One whose GPUs are out of use is to be replaced anyway, and fits nowhere else; see above.
			w.holds(w.clients.each == 0 || !w.clients.bad[r.Name.String()] || r.OutOfUse(v.Node(nil, r.Placement.Node)) != "", "%s serves and fails all of its requests", r.Name)
			running[group(v, r)]++
			want := m.Variant(r.Name.Variant)
			if want == nil || want.Hash != w.hash(r) {
				outdated[r.Name.Variant] = true
			}
		}
		waits := false
		for name, ro := range m.Rollouts {
			if ro.Ongoing() {
				waits = true
				w.mustNotRollInPlace(m, name)
				w.holds(len(w.decisions(m.Name, planner.KindRolloutWaits))+len(w.decisions(m.Name, planner.KindCannotPlace)) > 0, "%s waits", name)
			}
			if ro.Ongoing() {
				delete(outdated, name)
			}
		}
		if len(outdated) > 0 {
			w.holds(len(w.decisions(m.Name, planner.KindRolloutWaits))+len(w.decisions(m.Name, planner.KindCannotPlace)) > 0, "%v are outdated", outdated)
			waits = true
		}
		targets := targetsOf(v, m)
		if len(targets) == len(m.Variants)+1 {
			continue
		}
		abroad, owed := 0, 0 // in pools that are not left, and what waits for a pool
		for _, r := range v.ReplicasOf(nil, m.Name) {
			owed += btoi(r.Status == state.StatusFailed)
		}
		in := w.inPool(m.Name)
		for pool, n := range in {
			if pool != "" {
				abroad += n
			}
		}
		for _, pool := range m.Active().External() {
			owed += max(m.Active().In(pool)-in[pool], 0)
		}
		for _, share := range m.Displaced.UntilRoom {
			more := *m
			more.Displaced = m.Recall(1, share.Variant, state.UntilRoom)
			g := m.Name
			if share.Variant != "" {
				g += ":" + share.Variant
			}
			limits := v.Limits(nil)(m.Name)
			if m.Management != state.ManagementDisabled && !limits.ScalingDisabled && more.Target(limits).Replicas > m.Target(limits).Replicas && !waits && owed == 0 && running[g] == targets[g] {
				w.mustNotFit(m, g, planner.KindReturn)
			}
		}
		for g, target := range targets {
			if m.Stopped {
				target = 0
			}
			switch have := running[g]; {
			case have > target:
				w.holds(waits || m.Management == state.ManagementDisabled || have-abroad <= 0, "%s: %d of %d", g, have, target)
			case have < target-owed:
				w.mustNotFit(m, g, planner.KindCannotPlace)
			}
		}
	}
	// What is in Nomad is what is in the state.
	for name, j := range w.nomad {
		r := v.Replica(nil, name)
		if r == nil {
			said := slices.ContainsFunc(w.decisions(j.Name.Model, planner.KindOrphan), func(d *state.Decision) bool { return d.Replica == name })
			w.holds(said, "job %s is of no replica", name)
			continue
		}
		w.holds(!j.Stopped || r.Status == state.StatusFailed, "job %s is stopped", name)
	}
	require.True(w.t, bytes.Equal(w.save(w.store), w.save(w.replay(nil, 0))), "the log gives another state")
}

// adoptable reports whether nobody holds the seats of a job.
func (w *world) adoptable(j *job) bool {
	u := w.view().Usage(nil, j.Placement.Node)
	return !slices.ContainsFunc(j.Placement.Seats, func(s string) bool { return u.Seats[s] != "" })
}

// fleet is the nodes with what replicas and jobs that are nobody's hold of them.
func (w *world) fleet() *placement.Fleet { return w.fleetOf(w.view(), w.list()) }

func (w *world) fleetOf(v *state.View, jobs map[string]planner.Job) *placement.Fleet {
	f := placement.NewFleet(v.Nodes(nil), placement.Config{Rates: w.conf.Rates, WarmShare: w.conf.WarmShare})
	for _, r := range v.Replicas(nil) {
		t := placement.Tenant{Name: r.Name.String(), Node: r.Placement.Node, Model: r.Name.Model, Holds: r.Holds()}
		switch warm := *r; {
		case r.Leaving():
			t.After = &state.Holding{}
		case r.Resting():
			warm.Status = state.StatusWarm
			t.After = new(warm.Holds())
		}
		f.Put(t)
	}
	for _, name := range sorted(jobs) {
		if j := jobs[name]; v.Replica(nil, name) == nil && !j.Ended {
			f.Put(placement.Tenant{Name: name, Node: j.Placement.Node, Model: j.Name.Model, Holds: state.Holding{Seats: j.Placement.Seats, Memory: j.Placement.Memory}})
		}
	}
	return f
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// mustNotRollInPlace looks that no old replica of a variant could make way for a new one.
func (w *world) mustNotRollInPlace(m *state.Model, variant string) {
	v := w.view()
	serving := 0
	for _, r := range v.ReplicasOf(nil, m.Name) {
		serving += btoi(r.Status == state.StatusServing)
	}
	target := m.Target(v.Limits(nil)(m.Name)).Replicas
	if m.MinAvailable(target) >= min(serving, target) {
		return
	}
	next := m.Variant(variant)
	for _, r := range v.ReplicasOf(nil, m.Name) {
		if n := v.Node(nil, r.Placement.Node); r.Name.Variant != variant || !r.Counts() || w.hash(r) == next.Hash || n.CapacityPool != "" {
			continue
		}
		f := w.fleet()
		f.Drop(r.Name.String())
		_, no := f.Place(placement.Request{Model: m.Name, Variant: next, Failover: m.Failover})
		w.holds(no != nil, "%s could make way for a replica of version %d", r.Name, m.Version)
	}
}

// mustNotFit looks that no further replica of a group could be placed, and that it was
// said why.
func (w *world) mustNotFit(m *state.Model, g, kind string) {
	f := w.fleet()
	for _, candidate := range m.Variants {
		_, own := m.Desired.Of(candidate.Name)
		if own != (g == m.Name+":"+candidate.Name) || !own && g != m.Name {
			continue
		}
		candidate, failover := w.usedNow(w.view(), m, candidate)
		_, no := f.Place(placement.Request{Model: m.Name, Variant: &candidate, Failover: failover})
		w.holds(no != nil, "a replica of %s would fit, and there is no %s", g, kind)
	}
	// That a displaced replica does not come back is not said: it is in the model's row.
	w.holds(kind == planner.KindReturn || len(w.decisions(m.Name, kind)) > 0, "%s: there was no %s", g, kind)
}
