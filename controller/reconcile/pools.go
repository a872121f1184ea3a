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

// own is the name of the controller's own Nomad among the pools.
const own = ""

// nomads returns the Nomads by the names of their pools.
func (c Config) nomads() map[string]Nomad {
	out := map[string]Nomad{own: c.Nomad}
	maps.Copy(out, c.Pools)
	return out
}

// poolNames returns the names of the pools, the own one first.
func (c Config) poolNames() []string {
	return append([]string{own}, slices.Sorted(maps.Keys(c.Pools))...)
}

// poolSighted is what is known of one Nomad at one moment.
type poolSighted struct {
	nodes      []state.Node
	unread     map[string]error // nodes that could not be read, by ID
	nodesKnown bool
	jobs       map[string]nomad.Job
	// index and began are those of the list of jobs; see nomad.Listing.
	index uint64
	began time.Time
	// jobsKnown: its jobs are up to date, and its nodes were heard at least once.
	jobsKnown bool
	// returned is when its jobs were heard again after an outage.
	returned time.Time
	// begun: it was heard at least once. settled: it was, or it was found out of reach.
	begun, settled bool
}

// job is a replica's job and the pool whose Nomad has it.
type job struct {
	nomad.Job
	pool string
}

// jobs returns the replicas' jobs of all pools by ID. A job that several pools list, as
// two node pools of one Nomad do, belongs to the pool of its node, or without one to the
// first.
func (s sighted) jobs(view *state.View) map[string]job {
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

// homeOf is the pool of the node on which a job was placed.
func homeOf(view *state.View, j nomad.Job) string {
	if n := view.Node(nil, j.Placement.Node); n != nil {
		return n.CapacityPool
	}
	return own
}

// listing is what the Nomads say of their nodes.
type listing struct {
	nodes []state.Node
	// unread has the nodes that are listed but could not be read: nothing is known of them now.
	unread map[string]bool
	// known has the pools whose nodes are up to date, configured all that there are.
	known, configured map[string]bool
	// problems has what is wrong with the nodes of a pool, by pool: another pool has one of
	// them as well, or they could not be read.
	problems map[string]string
}

// listing gathers the nodes of the pools that are up to date. A node that two pools list
// stays in the first of them.
func (s sighted) listing() listing {
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

// poolText names a pool for people.
func poolText(pool string) string {
	if pool == own {
		return "the controller's own pool"
	}
	return fmt.Sprintf("pool %q", pool)
}

// PoolStatus is how one Nomad is seen.
type PoolStatus struct {
	// Name is empty for the controller's own Nomad.
	Name        string
	Nodes, Jobs Source
	// Running is how many actions are being done there.
	Running int
	// Problem says what is wrong with its nodes, empty where nothing is.
	Problem string
}

// Known tells whether what was heard of the pool is up to date.
func (p PoolStatus) Known() bool { return p.Nodes.Known && p.Jobs.Known }

// Heard is when it last said something.
func (p PoolStatus) Heard() time.Time {
	if p.Jobs.Heard.After(p.Nodes.Heard) {
		return p.Jobs.Heard
	}
	return p.Nodes.Heard
}

// Error is why it is not known, or what is wrong with it.
func (p PoolStatus) Error() string { return cmp.Or(p.Nodes.Error, p.Jobs.Error, p.Problem) }

// viewOf is what the planner is told of a pool.
func viewOf(p poolSighted) planner.PoolView {
	return planner.PoolView{JobsKnown: p.jobsKnown, JobsSince: p.returned}
}
