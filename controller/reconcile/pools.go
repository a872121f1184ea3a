package reconcile

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"remuda/controller/nomad"
	"remuda/controller/planner"
	"remuda/controller/state"
)

// ownPool is the name of the pool of the controller's own Nomad.
const ownPool = ""

// nomads returns the Nomads by the names of their pools.
func (c Config) nomads() map[string]Nomad {
	out := map[string]Nomad{ownPool: c.Nomad}
	maps.Copy(out, c.Pools)
	return out
}

// poolNames returns the names of the pools, ownPool first.
func (c Config) poolNames() []string {
	return append([]string{ownPool}, slices.Sorted(maps.Keys(c.Pools))...)
}

// poolSnapshot is a copy of the cache of one Nomad at one moment.
type poolSnapshot struct {
	nodes      []state.Node
	unread     map[string]error // nodes that could not be read, by ID
	nodesKnown bool
	jobs       map[string]nomad.Job
	nodeJob    *nomad.NodeJob
	// index and began are those of the list of jobs; see nomad.Listing.
	index uint64
	began time.Time
	// jobsKnown means that the jobs are up to date and the nodes were listed at least once.
	jobsKnown bool
	// returnedAt is when the jobs were listed again after an outage.
	returnedAt time.Time
	// loaded means that nodes and jobs were listed at least once; settled means that each was
	// listed, or found to be unreachable.
	loaded, settled bool
}

// job is a replica's job and the pool whose Nomad has it.
type job struct {
	nomad.Job
	pool string
}

// jobs returns the replicas' jobs of all pools by ID. Several pools may list the same job, for
// example two node pools of one Nomad: the job belongs to the pool of its node, or to the first
// pool if it has no node.
func (s snapshot) jobs(view *state.View) map[string]job {
	out := map[string]job{}
	for _, pool := range slices.Sorted(maps.Keys(s.pools)) {
		for id, j := range s.pools[pool].jobs {
			if had, there := out[id]; there && homeOf(view, had.Job) != pool {
				continue
			}
			out[id] = job{j, pool}
		}
	}
	return out
}

// homeOf returns the pool of the node on which a job was placed.
func homeOf(view *state.View, j nomad.Job) string {
	if n := view.Node(nil, j.Placement.Node); n != nil {
		return n.CapacityPool
	}
	return ownPool
}

// listing holds the nodes that the Nomads list.
type listing struct {
	nodes []state.Node
	// unread has the nodes that are listed but could not be read.
	unread map[string]bool
	// known has the pools whose nodes are up to date, configured has all pools.
	known, configured map[string]bool
	// problems describes the problems with the nodes of a pool, by pool: a node also belongs to
	// another pool, or could not be read.
	problems map[string]string
}

// listing collects the nodes of the pools that are up to date. A node that two pools list
// belongs to the first of them.
func (s snapshot) listing() listing {
	out := listing{known: map[string]bool{}, configured: map[string]bool{}, problems: map[string]string{}, unread: map[string]bool{}}
	first := map[string]string{}
	for _, pool := range slices.Sorted(maps.Keys(s.pools)) {
		out.configured[pool] = true
		p := s.pools[pool]
		if !p.nodesKnown {
			continue
		}
		out.known[pool] = true
		for _, n := range p.nodes {
			if other, clash := first[n.ID]; clash {
				out.problems[pool] = fmt.Sprintf("node %s (%s) also belongs to %s and stays there: give each pool its own node_pool", n.ID, n.Name, poolText(other))
				continue
			}
			first[n.ID] = pool
			n.CapacityPool = pool
			n.Unserved = p.nodeJob != nil && !p.nodeJob.Healthy[n.ID]
			out.nodes = append(out.nodes, n)
		}
		for _, id := range slices.Sorted(maps.Keys(p.unread)) {
			if _, clash := first[id]; clash {
				continue
			}
			first[id] = pool
			out.unread[id] = true
			if out.problems[pool] == "" {
				out.problems[pool] = fmt.Sprintf("cannot read %d nodes, which stay as they were last known: %v", len(p.unread), p.unread[id])
			}
		}
	}
	slices.SortFunc(out.nodes, func(a, b state.Node) int { return strings.Compare(a.ID, b.ID) })
	return out
}

// poolText returns the name of a pool for messages.
func poolText(pool string) string {
	if pool == ownPool {
		return "the controller's own pool"
	}
	return fmt.Sprintf("pool %q", pool)
}

// PoolStatus is the status of one pool's Nomad.
type PoolStatus struct {
	// Name is empty for the controller's own Nomad.
	Name        string
	Nodes, Jobs Source
	// Running is the number of actions that run there.
	Running int
	// Problem describes a problem with its nodes, empty if there is none.
	Problem string
}

// Known reports whether the nodes and jobs of the pool are up to date.
func (p PoolStatus) Known() bool { return p.Nodes.Known && p.Jobs.Known }

// LastContactAt is when the pool's Nomad last reported a change.
func (p PoolStatus) LastContactAt() time.Time {
	if p.Jobs.LastContactAt.After(p.Nodes.LastContactAt) {
		return p.Jobs.LastContactAt
	}
	return p.Nodes.LastContactAt
}

// Error returns why the pool is not up to date, or else its Problem.
func (p PoolStatus) Error() string { return cmp.Or(p.Nodes.Error, p.Jobs.Error, p.Problem) }

// viewOf converts a pool's snapshot to the planner's.
func viewOf(p poolSnapshot) planner.PoolView {
	return planner.PoolView{JobsKnown: p.jobsKnown, JobsSince: p.returnedAt}
}
