package planner_test

import (
	"bytes"
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/placement"
	"remuda/controller/planner"
	"remuda/controller/state"
)

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
		_, no := f.Place(placement.Request{
			Model: m.Name, Variant: next, Failover: m.Failover, Weights: state.WeightsOf(m.Name, m.Version, variant),
		})
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
		_, no := f.Place(w.usedNow(w.view(), m, candidate))
		w.holds(no != nil, "a replica of %s would fit, and there is no %s", g, kind)
	}
	// That a displaced replica does not come back is not said: it is in the model's row.
	w.holds(kind == planner.KindReturn || len(w.decisions(m.Name, kind)) > 0, "%s: there was no %s", g, kind)
}
