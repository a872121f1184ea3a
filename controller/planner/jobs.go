package planner

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"remuda/controller/placement"
	"remuda/controller/state"
)

// tellJob says, once each time, that somebody else has changed a member's job. Actions
// writes it anew.
func (d *draft) tellJob(m *model, r *member) {
	if !r.jobKnown || r.removed || r.next.Status.Request() != state.RequestKeep {
		return
	}
	if r.job == nil {
		if r.JobIndex != 0 {
			d.decideOnce(KindJobGone, m.Name, r.name, "job is missing in Nomad: registering it again", inputs{"index": strconv.FormatUint(r.JobIndex, 10)})
		}
		return
	}
	in := inputs{"index": strconv.FormatUint(r.job.Index, 10)}
	switch {
	case r.job.Problem != "":
		d.decideOnce(KindJobProblem, m.Name, r.name, fmt.Sprintf("job was changed outside remuda and is left unchanged: %s", r.job.Problem), in)
	case r.job.Stopped:
		d.decideOnce(KindJobStopped, m.Name, r.name, "job was stopped outside remuda: registering it again", in)
	case len(r.job.Drift) > 0:
		d.decideOnce(KindJobEdited, m.Name, r.name, fmt.Sprintf("job was changed outside remuda (%s): registering it again", strings.Join(r.job.Drift, "; ")), in)
	}
}

// maxTold is of how many strangers it is said why they are left alone. More than are
// kept would be said again and again.
const maxTold = state.DecisionLimit / 8

// orphans looks at the jobs whose replicas the state lacks. One that could be ours is
// taken in; whatever the others hold is not there for anybody else. While Nomad cannot
// be asked what they held when it last could is still theirs.
func (d *draft) orphans() {
	told := 0
	var strangers []string
	for _, name := range d.unknown() {
		j := d.obs.Jobs[name]
		if !d.obs.Pools[j.Pool].JobsKnown || d.full() {
			strangers = append(strangers, name)
			continue
		}
		why := d.adopt(name, j)
		if why == "" {
			continue
		}
		strangers = append(strangers, name)
		if j.Stopped {
			continue // it ends by itself
		}
		if told++; told > maxTold {
			continue
		}
		kind := KindOrphan
		if j.Problem != "" {
			kind = KindJobProblem
		}
		d.decideOnce(kind, j.Name.Model, name, fmt.Sprintf("job in Nomad matches no known replica and is left unchanged: %s", why),
			inputs{"index": strconv.FormatUint(j.Index, 10), "node": j.Placement.Node, "seats": strings.Join(j.Placement.Seats, ",")})
	}
	d.holdStrangers(strangers)
}

// unknown returns the jobs that have not ended and whose replicas the state lacks.
func (d *draft) unknown() []string {
	known := 0
	for _, m := range d.models {
		known += m.listed
	}
	if known == len(d.obs.Jobs) {
		return nil
	}
	var names []string
	for name, j := range d.obs.Jobs {
		if !j.Ended && d.byMember[name] == nil && d.view.Replica(nil, name) == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// holdStrangers keeps others away from what these jobs hold, as far as their meta says it.
// What a replica holds as well is theirs once it has gone. A seat that many of them name
// is held by the first of them.
func (d *draft) holdStrangers(names []string) {
	type seat struct{ node, id string }
	named := map[seat]bool{}
	for _, name := range names {
		j := d.obs.Jobs[name]
		n := d.byID[j.Placement.Node]
		if n == nil {
			continue
		}
		t := placement.Tenant{Name: "job " + name, Node: n.ID, Model: j.Name.Model, Holds: state.Holding{Memory: j.Placement.Memory}}
		for _, s := range j.Placement.Seats {
			if at := (seat{n.ID, s}); !named[at] {
				named[at] = true
				t.Holds.Seats = append(t.Holds.Seats, s)
			}
		}
		d.ledger().Put(t)
	}
}

// adopt takes a job's replica in, or says why not.
func (d *draft) adopt(name string, j Job) string {
	m := d.byName[j.Name.Model]
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
	version := m.versions.With(j.Name.Variant, j.Hash)
	if version == nil {
		return fmt.Sprintf("no known version of the model has variant %q with hash %q", j.Name.Variant, j.Hash)
	}
	if why := d.mayHold(version, j); why != "" {
		return why
	}
	p := state.Place{Name: j.Name, Version: version.Number, Placement: j.Placement, Adopt: true, JobIndex: j.Index, Status: state.StatusStarting}
	if d.passing(name) && j.Alloc != nil && j.Alloc.Client == clientRunning {
		p.Status = state.StatusServing
	}
	in := inputs{"node": j.Placement.Node, "seats": strings.Join(j.Placement.Seats, ","), "index": strconv.FormatUint(j.Index, 10)}
	p.RestartsBefore = restarts(j.Alloc)
	p.Spilled = d.byID[j.Placement.Node].CapacityPool != "" // the reason is unknown, so it need not leave
	d.decide(KindAdopt, m.Name, name, fmt.Sprintf("adopted a running job on node %s as %s", j.Placement.Node, p.Status), in)
	d.admit(m, p)
	return ""
}

// mayHold says why what a job holds cannot be a replica of that version in the state as it
// is, empty where it can.
func (d *draft) mayHold(version *state.Version, j Job) string {
	v := version.Model.Variant(j.Name.Variant)
	n := d.byID[j.Placement.Node]
	if n == nil {
		return fmt.Sprintf("node %q does not exist", j.Placement.Node)
	}
	u := d.ledger().Usage(n.ID)
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
