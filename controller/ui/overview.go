package ui

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"remuda/controller/api"
)

// maxRows is how many rows a table has at most, so that the page of a large cluster stays small.
const maxRows = 200

// overview is what the first page shows.
type overview struct {
	Attention []finding
	Cluster   clusterLine
	Models    []modelRow
	// Total is how many models match Filter; Models has the first maxRows of them.
	Total  int
	Filter string
}

// finding is something that needs a hand.
type finding struct {
	// Kind is model, replica, gpu, node or server.
	Kind string
	// Link is the page that shows it, Name what it is about.
	Link, Name string
	Text       string
}

// clusterLine sums up the nodes.
type clusterLine struct {
	Nodes, NodesUsable, GPUs, GPUsUsable int
	Memory, Hot, Moving, Warm, Free      int64
	HostMemory, HostWarm                 int64
}

// modelRow is a model with its queue.
type modelRow struct {
	api.ModelSummary
	// State is READY, as of the queue, or what the counts say.
	State string
	// Bad: it needs a hand.
	Bad               bool
	InFlight, Waiting int
	Rollout           string
}

func loadOverview(v *visit) (any, error) {
	models, meta, err := v.api.Models(v.ctx, v.watch)
	if err != nil {
		return nil, err
	}
	v.index = meta.Index
	queues, err := v.api.Queues(v.ctx)
	if err != nil {
		return nil, err
	}
	nodes, _, err := v.api.Nodes(v.ctx, api.QueryOptions{})
	if err != nil {
		return nil, err
	}
	replicas, _, err := v.api.Replicas(v.ctx, "", api.QueryOptions{})
	if err != nil {
		return nil, err
	}
	byModel := map[string]api.Queue{}
	for _, q := range queues {
		byModel[q.Model] = q
	}
	o := overview{Filter: strings.TrimSpace(v.query.Get("q")), Cluster: clusterOf(nodes)}
	for _, m := range models {
		row, found := modelRowOf(m, byModel[m.Name])
		o.Attention = append(o.Attention, found...)
		if o.Filter == "" || strings.Contains(m.Name, o.Filter) {
			o.Models = append(o.Models, row)
		}
	}
	o.Attention = append(o.Attention, replicaFindings(replicas)...)
	o.Attention = append(o.Attention, nodeFindings(nodes)...)
	slices.SortStableFunc(o.Models, func(a, b modelRow) int {
		switch {
		case a.Bad != b.Bad && a.Bad:
			return -1
		case a.Bad != b.Bad:
			return 1
		}
		return cmp.Compare(a.Name, b.Name)
	})
	if o.Total = len(o.Models); o.Total > maxRows {
		o.Models = o.Models[:maxRows]
	}
	return o, nil
}

// modelRowOf is the row of a model, and what needs a hand there.
func modelRowOf(m api.ModelSummary, q api.Queue) (modelRow, []finding) {
	row := modelRow{ModelSummary: m, State: q.State, InFlight: q.InFlight, Waiting: q.Waiting}
	var found []finding
	report := func(format string, args ...any) {
		row.Bad = true
		found = append(found, finding{Kind: "model", Link: modelLink(m.Name), Name: m.Name, Text: fmt.Sprintf(format, args...)})
	}
	if m.Unplaceable != "" {
		report("a replica gets no place: %s", m.Unplaceable)
	}
	if m.Counts.Failed > 0 {
		report("%s to start", plural(m.Counts.Failed, "replica has failed", "replicas have failed"))
	}
	if m.Target > 0 && m.Counts.Hot == 0 && m.Counts.Starting == 0 {
		report("no replica serves; %s should run", plural(m.Target, "replica", "replicas"))
	}
	if q.State == api.QueueLoadFailed || q.State == api.QueueCantPlace {
		report("%s: the queue is %s", plural(q.Waiting, "request waits", "requests wait"), q.State)
	}
	var rollouts []string
	for variant, status := range m.Rollouts {
		rollouts = append(rollouts, variant+" "+status)
		if status == "rolled_back" {
			report("the rollout of variant %s was rolled back", variant)
		}
	}
	slices.Sort(rollouts)
	row.Rollout = strings.Join(rollouts, ", ")
	return row, found
}

// replicaFindings are pairs without a standby, failing replicas, and those on GPUs out of use.
func replicaFindings(replicas []api.Replica) []finding {
	var out []finding
	for _, r := range replicas {
		report := func(format string, args ...any) {
			out = append(out, finding{Kind: "replica", Link: modelLink(r.Model), Name: r.Model + " " + short(r.ID), Text: fmt.Sprintf(format, args...)})
		}
		if r.Pair != nil && r.Pair.Degraded != "" {
			report("no other engine could take over: %s", r.Pair.Degraded)
		}
		if r.OutOfUse != "" {
			report("its GPU is out of use: %s", r.OutOfUse)
		}
		if r.Load != nil && r.Load.FailedInARow > 0 {
			report("its last %s", plural(int(r.Load.FailedInARow), "request has failed", "requests have failed"))
		}
	}
	return out
}

func nodeFindings(nodes []api.Node) []finding {
	var out []finding
	for _, n := range nodes {
		link := nodeLink(n.ID)
		if n.Unusable != "" {
			out = append(out, finding{Kind: "node", Link: link, Name: n.Name, Text: n.Unusable})
		}
		for _, g := range n.GPUs {
			if !g.Healthy {
				out = append(out, finding{Kind: "gpu", Link: link, Name: n.Name + " " + g.UUID, Text: "unhealthy: " + g.Reason})
			}
			if g.Cordoned {
				out = append(out, finding{Kind: "gpu", Link: link, Name: n.Name + " " + g.UUID, Text: "cordoned: " + g.CordonReason})
			}
		}
	}
	return out
}

func clusterOf(nodes []api.Node) clusterLine {
	c := clusterLine{Nodes: len(nodes)}
	for _, n := range nodes {
		usable := n.Unusable == ""
		if usable {
			c.NodesUsable++
		}
		c.HostMemory += n.HostMemory
		c.HostWarm += n.WarmMemory
		for _, g := range n.GPUs {
			c.GPUs++
			if usable && g.Healthy && !g.Cordoned {
				c.GPUsUsable++
			}
			c.Memory += g.Memory
			c.Hot += g.HotMemory
			c.Moving += g.MovingMemory
			c.Warm += g.WarmMemory
			c.Free += g.FreeMemory
		}
	}
	return c
}

// plural writes a number with the right word.
func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return count(n) + " " + many
}
