package server

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/go-memdb"

	"remuda/controller/api"
	"remuda/controller/state"
)

// Models of an overview: how many it has where the caller does not say, and at most.
const (
	defaultOverview = 200
	maxOverview     = 1000
)

// overview answers from the state and from what gateways and shims reported to this server, which
// therefore leads.
func (s *Server) overview(rq *request, v *state.View, _ memdb.WatchSet) (answer, error) {
	of := map[string][]*state.Replica{}
	replicas := v.Replicas(nil)
	for _, r := range replicas {
		of[r.Name.Model] = append(of[r.Name.Model], r)
	}
	var problems []api.Problem
	models, total := s.overviewModels(rq, v, of, func(p api.Problem) { problems = append(problems, p) })
	nodes, cluster := map[string]*state.Node{}, api.ClusterSums{}
	var ofNodes []api.Problem
	uses, warm := s.uses.usesOf(replicas)
	cluster.HostWarmMemory = warm
	for _, n := range v.Nodes(nil) {
		nodes[n.ID] = n
		sumNode(&cluster, n, uses)
		ofNodes = append(ofNodes, nodeProblems(n)...)
	}
	problems = slices.Concat(problems, s.replicaProblems(replicas, nodes), ofNodes)
	for i := range models {
		s.history.fill(&models[i])
	}
	return answer{value: api.Overview{
		Cluster: cluster, Models: models, ModelsTotal: total,
		Problems: append([]api.Problem{}, problems[:min(len(problems), api.MaxProblems)]...), ProblemsTotal: len(problems),
	}}, nil
}

// overviewModels are the models that a request asks for, and how many there are without its limit. All
// models report their problems.
func (s *Server) overviewModels(rq *request, v *state.View, of map[string][]*state.Replica, report func(api.Problem)) ([]api.OverviewModel, int) {
	out := []api.OverviewModel{}
	filter, limits, queues := rq.query.Get("filter"), v.Limits(nil), s.cfg.Loads.Queues()
	for _, m := range v.Models(nil) {
		rs := of[m.Name]
		one := api.OverviewModel{ModelSummary: summaryOf(v, nil, m, limits(m.Name), rs)}
		one.Queue = s.queueOf(queues[m.Name], m, one.Target, rs)
		for _, text := range modelProblems(one) {
			one.Problem = true
			report(api.Problem{Kind: "model", Model: m.Name, Text: text})
		}
		if filter == "" || strings.Contains(m.Name, filter) {
			out = append(out, one)
		}
	}
	slices.SortFunc(out, func(a, b api.OverviewModel) int {
		switch {
		case a.Problem && !b.Problem:
			return -1
		case b.Problem && !a.Problem:
			return 1
		}
		return cmp.Compare(a.Name, b.Name)
	})
	return out[:min(len(out), int(rq.numbers["limit"]))], len(out)
}

func modelProblems(m api.OverviewModel) []string {
	var out []string
	report := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if m.Unplaceable != "" {
		report("a replica gets no place: %s", m.Unplaceable)
	}
	if m.Counts.Failed > 0 {
		report("%s to start", has(m.Counts.Failed, "replica has failed", "replicas have failed"))
	}
	if m.Target > 0 && m.Counts.Hot == 0 && m.Counts.Starting == 0 {
		report("no replica serves; %s should run", plural(m.Target, "replica"))
	}
	if q := m.Queue; q.State == api.QueueLoadFailed || q.State == api.QueueCantPlace {
		report("%s: the queue is %s", has(q.Waiting, "request waits", "requests wait"), q.State)
	}
	for _, variant := range slices.Sorted(maps.Keys(m.Rollouts)) {
		if m.Rollouts[variant] == string(state.RolloutRolledBack) {
			report("the rollout of variant %s was rolled back", variant)
		}
	}
	return out
}

// replicaProblems are pairs without a standby, failing replicas, and those on GPUs out of use.
func (s *Server) replicaProblems(replicas []*state.Replica, nodes map[string]*state.Node) []api.Problem {
	var out []api.Problem
	loads := s.cfg.Loads.Totals()
	for _, r := range replicas {
		name := r.Name.String()
		report := func(format string, args ...any) {
			out = append(out, api.Problem{Kind: "replica", Model: r.Name.Model, Replica: name, Text: fmt.Sprintf(format, args...)})
		}
		if why := s.cfg.Reconciler.Pair(name).Degraded; why != "" {
			report("no other engine could take over: %s", why)
		}
		if n := nodes[r.Placement.Node]; n != nil {
			if why := r.OutOfUse(n); why != "" {
				report("its GPU is out of use: %s", why)
			}
		}
		if failed := loads[name].FailedInARow; failed > 0 {
			report("its last %s", has(int(failed), "request has failed", "requests have failed"))
		}
	}
	return out
}

func nodeProblems(n *state.Node) []api.Problem {
	var out []api.Problem
	if why := n.Usable(); why != "" {
		out = append(out, api.Problem{Kind: "node", Node: n.ID, NodeName: n.Name, Text: why})
	}
	for _, g := range n.GPUs {
		report := func(text string) {
			out = append(out, api.Problem{Kind: "gpu", Node: n.ID, NodeName: n.Name, GPU: g.UUID, Text: text})
		}
		if !g.Healthy {
			report("unhealthy: " + g.Reason)
		}
		if g.Cordoned {
			report("cordoned: " + g.CordonReason)
		}
	}
	return out
}

func sumNode(c *api.ClusterSums, n *state.Node, uses map[string]gpuUse) {
	usable := n.Usable() == ""
	c.Nodes++
	if usable {
		c.NodesUsable++
	}
	c.HostMemory += n.HostMemory
	for _, g := range n.GPUs {
		c.GPUs++
		if usable && g.Healthy && !g.Cordoned {
			c.GPUsUsable++
		}
		c.Memory += g.Memory
		u := uses[g.UUID]
		c.HotMemory += u.hot
		c.MovingMemory += u.moving
		c.WarmMemory += u.warm
		c.FreeMemory += g.Memory - u.sum()
	}
}

// has writes a number with the right words.
func has(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
