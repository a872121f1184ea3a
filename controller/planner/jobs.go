package planner

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"remuda/controller/placement"
	"remuda/controller/state"
)

// recordJobDrift records, once for each change, that a member's job was changed outside remuda.
// Actions registers the job again.
func (b *planBuilder) recordJobDrift(m *model, r *member) {
	if !r.jobKnown || r.removed || r.next.Status.Request() != state.RequestKeep {
		return
	}
	if r.job == nil {
		if r.JobIndex != 0 {
			b.recordOnce(KindJobGone, m.Name, r.name, "job is missing in Nomad: registering it again", inputs{"index": strconv.FormatUint(r.JobIndex, 10)})
		}
		return
	}
	in := inputs{"index": strconv.FormatUint(r.job.Index, 10)}
	switch {
	case r.job.Problem != "":
		b.recordOnce(KindJobProblem, m.Name, r.name, fmt.Sprintf("job was changed outside remuda and is left unchanged: %s", r.job.Problem), in)
	case r.job.Stopped:
		b.recordOnce(KindJobStopped, m.Name, r.name, "job was stopped outside remuda: registering it again", in)
	case len(r.job.Drift) > 0:
		b.recordOnce(KindJobEdited, m.Name, r.name, fmt.Sprintf("job was changed outside remuda (%s): registering it again", strings.Join(r.job.Drift, "; ")), in)
	}
}

// maxUnknownReported bounds the unknown jobs of which a plan reports why they are left unchanged. If
// there were more than the state keeps decisions, they would be recorded again in every plan.
const maxUnknownReported = state.DecisionLimit / 8

// resolveUnknownJobs handles the jobs of which the state has no replica. A job that matches a
// model is adopted. What the other jobs hold is unavailable for placements. While Nomad is
// unreachable, they hold what they held when they were last seen.
func (b *planBuilder) resolveUnknownJobs() {
	reported := 0
	var notAdopted []string
	names := b.unknownJobs()
	// Those that serve first, and those that may only load last: they have the GPUs that others serve on.
	slices.SortStableFunc(names, func(x, y string) int {
		return cmp.Or(cmp.Compare(btoi(b.passing(y)), btoi(b.passing(x))), cmp.Compare(btoi(b.obs.Jobs[x].StartsWarm), btoi(b.obs.Jobs[y].StartsWarm)))
	})
	for _, name := range names {
		j := b.obs.Jobs[name]
		if !b.obs.Pools[j.Pool].JobsKnown || b.full() {
			notAdopted = append(notAdopted, name)
			continue
		}
		why := b.adopt(name, j)
		if why == "" {
			continue
		}
		notAdopted = append(notAdopted, name)
		if j.Stopped {
			continue // it ends by itself
		}
		if reported++; reported > maxUnknownReported {
			continue
		}
		kind := KindOrphan
		if j.Problem != "" {
			kind = KindJobProblem
		}
		what := "is left unchanged"
		if stopsUnknown(b.view, b.obs, name, j) != "" {
			what = "is stopped"
		}
		b.recordOnce(kind, j.Name.Model, name, fmt.Sprintf("job in Nomad matches no known replica and %s: %s", what, why),
			inputs{"index": strconv.FormatUint(j.Index, 10), "node": j.Placement.Node, "seats": strings.Join(j.Placement.Seats, ",")})
	}
	b.holdUnknownJobs(notAdopted)
}

// unknownJobs returns the names of the jobs that have not ended and of which the state has no
// replica.
func (b *planBuilder) unknownJobs() []string {
	known := 0
	for _, m := range b.models {
		known += m.listed
	}
	if known == len(b.obs.Jobs) {
		return nil
	}
	var names []string
	for name, j := range b.obs.Jobs {
		if !j.Ended && b.byMember[name] == nil && b.view.Replica(nil, name) == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// holdUnknownJobs enters what these jobs hold, according to their meta, into the ledger. The meta says where a
// replica was placed; one with seats on further GPUs may have been woken there, and holds its memory on all of them.
// What a replica holds as well is theirs once the replica is gone. A seat that several jobs name is held by the
// first of them.
func (b *planBuilder) holdUnknownJobs(names []string) {
	type seat struct{ node, id string }
	named := map[seat]bool{}
	for _, name := range names {
		j := b.obs.Jobs[name]
		n := b.byID[j.Placement.Node]
		if n == nil {
			continue
		}
		t := placement.Tenant{Name: "job " + name, Node: n.ID, Model: j.Name.Model, Holds: state.Holding{Memory: maps.Clone(j.Placement.Memory)}}
		if gpus := seatedGPUs(&j.Placement); len(j.Placement.Memory) > 0 && len(gpus) > len(j.Placement.Memory) {
			most := slices.Max(slices.Collect(maps.Values(j.Placement.Memory)))
			for _, gpu := range gpus {
				t.Holds.Memory[gpu] = most
			}
		}
		for _, s := range j.Placement.Seats {
			if at := (seat{n.ID, s}); !named[at] {
				named[at] = true
				t.Holds.Seats = append(t.Holds.Seats, s)
			}
		}
		b.ledger().Put(t)
	}
}

// adopt adds the replica of a job to the state, or returns why that is impossible.
func (b *planBuilder) adopt(name string, j Job) string {
	m := b.byName[j.Name.Model]
	bad := state.CheckReplicaName(name)
	switch {
	case j.Problem != "":
		return j.Problem
	case bad != nil:
		return bad.Error()
	case j.Name.String() != name:
		return fmt.Sprintf("its meta names replica %s", j.Name)
	case j.Stopped:
		return "it is stopped"
	case m == nil:
		return fmt.Sprintf("model %q does not exist", j.Name.Model)
	}
	if j.StartsWarm && !b.obs.EnginesKnown {
		return "Consul is unreachable, and it may only load beside another one"
	}
	if why := loadsBeside(b.obs, name, j); why != "" {
		return why
	}
	version := m.versions.With(j.Name.Variant, j.Hash)
	if version == nil {
		return fmt.Sprintf("no known version of the model has variant %q with hash %q", j.Name.Variant, j.Hash)
	}
	if why := b.mayHold(version, j); why != "" {
		return why
	}
	p := state.Place{Name: j.Name, Version: version.Number, Placement: j.Placement, Adopt: true, JobIndex: j.Index, Status: state.StatusStarting}
	if b.passing(name) && j.Alloc != nil && j.Alloc.Client == clientRunning {
		p.Status = state.StatusServing
	}
	in := inputs{"node": j.Placement.Node, "seats": strings.Join(j.Placement.Seats, ","), "index": strconv.FormatUint(j.Index, 10)}
	p.RestartsBefore = restarts(j.Alloc)
	p.Spilled = b.byID[j.Placement.Node].CapacityPool != "" // the reason is unknown, so it need not leave
	b.record(KindAdopt, m.Name, name, fmt.Sprintf("adopted a running job on node %s as %s", j.Placement.Node, p.Status), in)
	b.admit(m, p)
	return ""
}

// loadsBeside returns why a job does no more than load on the GPUs of another one of its model, which serves or is
// to serve, empty if it may do more.
func loadsBeside(o Observation, name string, j Job) string {
	if !j.StartsWarm || o.passing(name) {
		return ""
	}
	for _, other := range slices.Sorted(maps.Keys(o.Jobs)) {
		k := o.Jobs[other]
		if other == name || k.Stopped || k.Name.Model != j.Name.Model || k.Placement.Node != j.Placement.Node || k.StartsWarm && !o.passing(other) {
			continue
		}
		if slices.ContainsFunc(seatedGPUs(&k.Placement), func(gpu string) bool { return slices.Contains(seatedGPUs(&j.Placement), gpu) }) {
			return fmt.Sprintf("it loads on a GPU of %s, and does not serve", other)
		}
	}
	return ""
}

// stopsUnknown returns why a job without a replica in the state is stopped, empty if it is left alone. A job is
// stopped if it started with REMUDA_START=warm, does not serve, and has no room to serve: its engines would keep
// memory that other replicas are charged for.
func stopsUnknown(v *state.View, o Observation, name string, j Job) string {
	if !j.StartsWarm || j.Stopped || j.Problem != "" || j.Name.String() != name || !o.EnginesKnown || o.passing(name) || o.InFlight[name] || !o.Pools[j.Pool].JobsKnown {
		return ""
	}
	if why := loadsBeside(o, name, j); why != "" {
		return why
	}
	n := v.Node(nil, j.Placement.Node)
	if n == nil {
		return ""
	}
	u := v.Usage(nil, n.ID)
	for _, uuid := range slices.Sorted(maps.Keys(j.Placement.Memory)) {
		if g := n.GPU(uuid); g != nil && j.Placement.Memory[uuid] > u.FreeMemory(g) {
			return fmt.Sprintf("it does not serve, and GPU %s has %d bytes free: needs %d", uuid, max(u.FreeMemory(g), 0), j.Placement.Memory[uuid])
		}
	}
	return ""
}

// mayHold returns why what a job holds cannot be a replica of that version in the current state,
// empty if it can.
func (b *planBuilder) mayHold(version *state.Version, j Job) string {
	v := version.Model.Variant(j.Name.Variant)
	n := b.byID[j.Placement.Node]
	if n == nil {
		return fmt.Sprintf("node %q does not exist", j.Placement.Node)
	}
	u := b.ledger().Usage(n.ID)
	seats := map[string]bool{}
	perGPU := map[string]int{}
	for _, s := range j.Placement.Seats {
		var gpu string
		for i := range n.GPUs {
			if slices.Contains(n.GPUs[i].Seats, s) {
				gpu = n.GPUs[i].UUID
			}
		}
		holder, held := u.Seats[s]
		switch {
		case gpu == "":
			return fmt.Sprintf("node %s has no seat %s", n.Name, s)
		case held:
			return fmt.Sprintf("seat %s is held by %s", s, holder)
		case seats[s]:
			return fmt.Sprintf("duplicate seat %s", s)
		}
		seats[s] = true
		perGPU[gpu]++
	}
	want := 1
	if version.Model.Failover {
		want = 2
	}
	if reach := max(v.Reach, v.GPUs); len(perGPU) != reach || len(j.Placement.Memory) != v.GPUs {
		return fmt.Sprintf("seats on %d GPUs and memory on %d: must be %d and %d", len(perGPU), len(j.Placement.Memory), reach, v.GPUs)
	}
	for _, gpu := range slices.Sorted(maps.Keys(perGPU)) {
		if perGPU[gpu] != want {
			return fmt.Sprintf("%d seats on GPU %s: must be %d", perGPU[gpu], gpu, want)
		}
	}
	for _, gpu := range slices.Sorted(maps.Keys(j.Placement.Memory)) {
		switch bytes := j.Placement.Memory[gpu]; {
		case perGPU[gpu] == 0:
			return fmt.Sprintf("%d bytes of GPU %s without a seat on it", bytes, gpu)
		case bytes < 0:
			return fmt.Sprintf("memory of GPU %s is %d bytes: must not be negative", gpu, bytes)
		case bytes > u.FreeMemory(n.GPU(gpu)):
			return fmt.Sprintf("GPU %s has %d bytes free: needs %d", gpu, max(u.FreeMemory(n.GPU(gpu)), 0), bytes)
		}
	}
	if j.Placement.HostMemory < 0 {
		return fmt.Sprintf("host memory is %d: must not be negative", j.Placement.HostMemory)
	}
	return ""
}
