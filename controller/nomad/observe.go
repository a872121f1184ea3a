package nomad

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"remuda/controller/state"
	"remuda/internal/replica"
)

// Job is a replica's job as Nomad has it.
type Job struct {
	// ID is the job's, Name what its meta says it is.
	ID   string
	Name replica.Name
	// Hash is of the variant that it was made from.
	Hash string
	// Placement is where it was put, as its meta says. Memory holds the GPUs that it uses
	// first.
	Placement state.Placement
	// Generation is that of its engines' fencing tokens, 0 if its meta has none.
	Generation uint64
	// StartsWarm: the engines of a new allocation load and then sleep until they are woken.
	StartsWarm bool
	// ShimPorts are the labels of its shims' ports, by role, where its job file has named
	// them; see Shims.
	ShimPorts map[string]string
	// Problem is why the meta cannot be believed, as after somebody edited it. Name,
	// Hash and Placement are then what could be read.
	Problem string
	// Stopped: it was told to stop, by whomever.
	Stopped bool
	// Index is its JobModifyIndex, which changes with the job's text only.
	Index uint64
	// Allocations, the newest first.
	Allocations []Allocation
}

// Allocation is one run of a job.
type Allocation struct {
	ID, Node string
	// JobVersion is Nomad's, from 0.
	JobVersion uint64
	// Desired is run, stop or evict; Client is pending, running, complete, failed,
	// lost or unknown. Description says more.
	Desired, Client, Description string
	// Seats are the device IDs that Nomad gave to each task.
	Seats map[string][]string
	// Ports are the addresses, host:port, by the labels of the ports.
	Ports   map[string]string
	Tasks   []Task
	Created time.Time
}

// Task is one task of an allocation.
type Task struct {
	Name string
	// State is pending, running or dead.
	State    string
	Failed   bool
	Restarts uint64
	// Started is the latest start, zero before the first.
	Started time.Time
	// Event is the last thing that happened which says why, in Nomad's words.
	Event string
}

// Ended tells whether the allocation holds nothing any more. One that is lost or
// unknown may still run on a node that cannot be reached.
func (a Allocation) Ended() bool {
	return a.Client == api.AllocClientStatusComplete || a.Client == api.AllocClientStatusFailed
}

// Ended tells whether the job is stopped and its allocations have ended.
func (j Job) Ended() bool {
	return j.Stopped && !slices.ContainsFunc(j.Allocations, func(a Allocation) bool { return !a.Ended() })
}

// EngineAddresses returns where engines of the job may be, as host:port, sorted: the ports that
// Nomad gave to its allocations on the node, without those of shims. An allocation that has ended has
// none any more: Nomad may give its ports to another job.
func (j Job) EngineAddresses(node string) []string {
	var out []string
	for _, a := range j.Allocations {
		if a.Ended() || a.Node != node {
			continue
		}
		shims := j.Shims(a)
		for _, address := range a.Ports {
			if !slices.ContainsFunc(shims, func(s Shim) bool { return s.Address == address }) {
				out = append(out, address)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Drift says how the job differs from the replica that the controller has in mind:
// stopped, edited, moved, or not its own. Empty means not at all.
func (j Job) Drift(r state.Replica) []string {
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if j.Problem != "" {
		add("meta: %s", j.Problem)
	}
	if j.Name != r.Name && j.Problem == "" {
		add("replica is %s", j.Name)
	}
	if j.Stopped {
		add("stopped")
	}
	if r.JobIndex != 0 && j.Index != r.JobIndex {
		add("index is %d, not %d", j.Index, r.JobIndex)
	}
	seats := slices.Sorted(slices.Values(r.Placement.Seats))
	if had := slices.Sorted(slices.Values(j.Placement.Seats)); j.Problem == "" && (j.Placement.Node != r.Placement.Node || !slices.Equal(had, seats)) {
		add("placed on %s of node %s, not on %s of node %s", strings.Join(had, ","), j.Placement.Node, strings.Join(seats, ","), r.Placement.Node)
	}
	for _, a := range j.Allocations {
		if a.Ended() {
			continue
		}
		if a.Node != r.Placement.Node {
			add("allocation %s is on node %s, not %s", a.ID, a.Node, r.Placement.Node)
			continue
		}
		for task, ids := range a.Seats {
			for _, id := range ids {
				if !slices.Contains(seats, id) {
					add("allocation %s has seat %s for task %s, which does not belong to the replica", a.ID, id, task)
				}
			}
		}
	}
	slices.Sort(out)
	return out
}

func (c *Client) listJobs(q *api.QueryOptions) ([]*api.JobListStub, *api.QueryMeta, error) {
	return c.api.Jobs().ListOptions(&api.JobListOptions{Fields: &api.JobListFields{Meta: true}}, q)
}

func (c *Client) listAllocations(q *api.QueryOptions) ([]*api.AllocationListStub, *api.QueryMeta, error) {
	q.Params = map[string]string{"resources": "true", "task_states": "true"}
	return c.api.Allocations().List(q)
}

// Listing is Nomad's list of the replicas' jobs as of one moment.
type Listing struct {
	// Jobs are the jobs with their allocations, sorted by ID. They must not be changed.
	Jobs []Job
	// Node is the node job, nil where Nomad has none. It must not be changed.
	Node *NodeJob
	// Changed: the jobs are others than those of the last listing, or that one was before an
	// outage. Otherwise only Index or Began are newer.
	Changed bool
	// Index is Nomad's index of the list of jobs: it shows each write of this index or a
	// lower one. Began is when the list was asked for.
	Index uint64
	Began time.Time
}

// NodeJob is the job that runs remuda's daemons on every node with GPUs (jobs/node.nomad.hcl), or several such jobs.
type NodeJob struct {
	// Healthy has the IDs of the nodes on which all of its tasks run.
	Healthy map[string]bool
}

// nodeJob returns what runs of the jobs whose meta has MetaNodeJob, nil if there are none.
func nodeJob(stubs []*api.JobListStub, allocs []*api.AllocationListStub) *NodeJob {
	ours := map[string]bool{}
	for _, s := range stubs {
		if s != nil && s.Meta[MetaNodeJob] != "" {
			ours[s.ID] = true
		}
	}
	if len(ours) == 0 {
		return nil
	}
	out := &NodeJob{Healthy: map[string]bool{}}
	for _, a := range allocs {
		if a == nil || !ours[a.JobID] || a.DesiredStatus != api.AllocDesiredStatusRun {
			continue
		}
		healthy, seen := out.Healthy[a.NodeID]
		out.Healthy[a.NodeID] = (healthy || !seen) && runs(a)
	}
	maps.DeleteFunc(out.Healthy, func(_ string, healthy bool) bool { return !healthy })
	return out
}

// runs reports whether all tasks of an allocation run.
func runs(a *api.AllocationListStub) bool {
	for _, t := range a.TaskStates {
		if t == nil || t.State != "running" {
			return false
		}
	}
	return len(a.TaskStates) > 0
}

// WatchJobs calls update after each answer of Nomad's: with the jobs, once at first and after
// each change, and also when nothing has changed up to a later index. It calls lost when Nomad
// gets out of reach. Both mean what they mean to WatchNodes, and are never called at the same
// time. It returns when ctx ends, with ctx's error.
func (c *Client) WatchJobs(ctx context.Context, update func(Listing), lost func(error)) error {
	w := &jobWatch{have: map[string]bool{}, fresh: true, update: update, lost: lost}
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = c.follow(ctx, "list jobs", func(q *api.QueryOptions, restarted bool) (*api.QueryMeta, error) {
			list := jobList{began: c.now()}
			jobs, meta, err := c.listJobs(q)
			if err != nil || !answered(meta) {
				return meta, err
			}
			// Allocations that are older than the jobs will not do; see Observe.
			allocs, newer, err := c.listAllocations(c.read(q.Context()))
			if err != nil {
				return nil, err
			}
			list.stubs, list.index = jobs, meta.LastIndex
			w.answer("jobs", &list, allocs, newer.LastIndex, restarted)
			return meta, nil
		}, func(err error) { w.outage("jobs", err) })
	})
	wg.Go(func() {
		_ = c.follow(ctx, "list allocations", func(q *api.QueryOptions, restarted bool) (*api.QueryMeta, error) {
			allocs, meta, err := c.listAllocations(q)
			if err == nil && answered(meta) {
				w.answer("allocations", nil, allocs, meta.LastIndex, restarted)
			}
			return meta, err
		}, func(err error) { w.outage("allocations", err) })
	})
	wg.Wait()
	return ctx.Err()
}

// jobList is one answer of Nomad's; see Listing.
type jobList struct {
	stubs []*api.JobListStub
	index uint64
	began time.Time
}

// jobWatch joins the answers of two watches.
type jobWatch struct {
	update func(Listing)
	lost   func(error)

	mu     sync.Mutex // guards what follows, and is held while update and lost run
	jobs   *jobList
	allocs []*api.AllocationListStub
	index  uint64          // of allocs
	have   map[string]bool // which watches are up to date
	last   []Job
	node   *NodeJob
	fresh  bool // the next answer counts as a change
	gone   bool // lost was called
}

// answer takes what a watch has read. Allocations of an earlier index than those at
// hand are old news. A nil list of jobs says nothing of them.
func (w *jobWatch) answer(watch string, jobs *jobList, allocs []*api.AllocationListStub, index uint64, restarted bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if jobs != nil {
		w.jobs = jobs
	}
	if index >= w.index || restarted {
		w.allocs, w.index = allocs, index
	}
	w.have[watch] = true
	if len(w.have) < 2 {
		return
	}
	w.gone = false
	now, node := join(w.jobs.stubs, w.allocs), nodeJob(w.jobs.stubs, w.allocs)
	changed := w.fresh || !reflect.DeepEqual(now, w.last) || !reflect.DeepEqual(node, w.node)
	if changed {
		w.fresh, w.last, w.node = false, now, node
	}
	if changed || jobs != nil {
		w.update(Listing{Jobs: w.last, Node: w.node, Changed: changed, Index: w.jobs.index, Began: w.jobs.began})
	}
}

func (w *jobWatch) outage(watch string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.have, watch)
	w.fresh = true
	if !w.gone {
		w.gone = true
		w.lost(err)
	}
}

// join gives each replica's job its allocations.
func join(stubs []*api.JobListStub, allocs []*api.AllocationListStub) []Job {
	jobs := []Job{}
	at := map[string]int{}
	for _, s := range stubs {
		if s == nil || s.Meta[MetaReplica] == "" {
			continue
		}
		at[s.ID] = len(jobs)
		jobs = append(jobs, jobOf(s))
	}
	for _, a := range allocs {
		if a == nil {
			continue
		}
		if i, ours := at[a.JobID]; ours {
			jobs[i].Allocations = append(jobs[i].Allocations, allocationOf(a))
		}
	}
	for _, j := range jobs {
		slices.SortFunc(j.Allocations, func(a, b Allocation) int {
			return cmp.Or(b.Created.Compare(a.Created), strings.Compare(a.ID, b.ID))
		})
	}
	slices.SortFunc(jobs, func(a, b Job) int { return strings.Compare(a.ID, b.ID) })
	return jobs
}

func jobOf(s *api.JobListStub) Job {
	j := Job{ID: s.ID, Hash: s.Meta[MetaHash], Stopped: s.Stop, Index: s.JobModifyIndex}
	j.Generation, _ = strconv.ParseUint(s.Meta[MetaGeneration], 10, 64)
	var problems []string
	name, err := replica.ParseName(s.Meta[MetaReplica])
	if err != nil {
		problems = append(problems, err.Error())
	} else if j.Name = name; JobID(name) != s.ID {
		problems = append(problems, fmt.Sprintf("%s is %q, but the job's ID is %q", MetaReplica, s.Meta[MetaReplica], s.ID))
	}
	bytes := func(key string) int64 {
		n, err := strconv.ParseInt(s.Meta[key], 10, 64)
		if err != nil || n < 0 {
			problems = append(problems, fmt.Sprintf("%s is %q: must be a number of bytes", key, s.Meta[key]))
			return 0
		}
		return n
	}
	memory := bytes(MetaMemory)
	j.Placement = state.Placement{Node: s.Meta[MetaNode], HostMemory: bytes(MetaHostMemory), Memory: map[string]int64{}}
	j.StartsWarm = s.Meta[MetaStart] == StartWarm
	if s.Meta[MetaSleepMemory] != "" {
		j.Placement.SleepMemory = bytes(MetaSleepMemory)
	}
	if j.Placement.Node == "" {
		problems = append(problems, MetaNode+" is missing")
	}
	for id := range strings.SplitSeq(s.Meta[MetaSeats], ",") {
		uuid, _, ok := splitSeat(id)
		if !ok {
			problems = append(problems, fmt.Sprintf("%s has %q: must be <GPU UUID>#<seat>", MetaSeats, id))
			continue
		}
		j.Placement.Seats = append(j.Placement.Seats, id)
		j.Placement.Memory[uuid] = memory
	}
	if first := s.Meta[MetaGPUs]; first != "" { // jobs of earlier versions use all
		used := map[string]int64{}
		for uuid := range strings.SplitSeq(first, ",") {
			if _, seated := j.Placement.Memory[uuid]; seated {
				used[uuid] = memory
			}
		}
		// Somebody edited the one or the other where they do not fit: it may use all.
		if len(used) == strings.Count(first, ",")+1 {
			j.Placement.Memory = used
		}
	}
	j.ShimPorts = shimsOf(s.Meta[MetaShims])
	j.Problem = strings.Join(problems, "; ")
	return j
}

func allocationOf(a *api.AllocationListStub) Allocation {
	out := Allocation{
		ID: a.ID, Node: a.NodeID, JobVersion: a.JobVersion,
		Desired: a.DesiredStatus, Client: a.ClientStatus, Description: cmp.Or(a.ClientDescription, a.DesiredDescription),
		Created: time.Unix(0, a.CreateTime).UTC(),
	}
	if a.AllocatedResources != nil {
		for task, r := range a.AllocatedResources.Tasks {
			for _, d := range r.Devices {
				if d == nil || d.Vendor != deviceVendor || d.Type != deviceType {
					continue
				}
				if out.Seats == nil {
					out.Seats = map[string][]string{}
				}
				out.Seats[task] = append(out.Seats[task], d.DeviceIDs...)
			}
		}
	}
	out.Ports = portsOf(a.AllocatedResources)
	for name, s := range a.TaskStates {
		if s == nil {
			continue
		}
		t := Task{Name: name, State: s.State, Failed: s.Failed, Restarts: s.Restarts, Started: s.StartedAt.UTC()}
		t.Event = event(s.Events)
		out.Tasks = append(out.Tasks, t)
	}
	slices.SortFunc(out.Tasks, func(a, b Task) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// vague are events that follow from others and do not say why.
var vague = map[string]bool{
	api.TaskNotRestarting: true, api.TaskRestarting: true, api.TaskKilling: true, api.TaskKilled: true,
	api.TaskReceived: true, api.TaskSetup: true, api.TaskStarted: true, api.TaskSiblingFailed: true, api.TaskLeaderDead: true, "Alloc Unhealthy": true,
}

// event returns the last of a task's events that says something, in Nomad's words.
func event(events []*api.TaskEvent) string {
	last := ""
	for _, e := range slices.Backward(events) {
		if e == nil {
			continue
		}
		text := cmp.Or(e.DisplayMessage, e.Type)
		if !vague[e.Type] {
			return text
		}
		last = cmp.Or(last, text)
	}
	return last
}
