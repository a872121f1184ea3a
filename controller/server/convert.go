package server

import (
	"cmp"
	"maps"
	"slices"

	"remuda/controller/api"
	"remuda/controller/load"
	"remuda/controller/state"
)

// list converts rows; a list without any is empty and not null.
func list[S, T any](rows []S, convert func(S) T) []T {
	out := make([]T, len(rows))
	for i, r := range rows {
		out[i] = convert(r)
	}
	return out
}

func variantOf(v state.Variant) api.Variant {
	return api.Variant{
		Name: v.Name, GPUModel: v.GPUModel, GPUs: v.GPUs, Memory: v.Memory, HostMemory: v.HostMemory,
		Cost: v.Cost, Slots: v.Slots, Engine: v.Engine, Hash: v.Hash,
	}
}

func modelOf(m *state.Model) api.Model {
	out := api.Model{
		Name: m.Name, Variants: list(m.Variants, variantOf), Min: m.Min, Max: m.Max, Priority: m.Priority,
		Dedicated: m.Dedicated, Failover: m.Failover, Management: string(m.Management),
		IdleWarm: api.Duration(m.IdleWarm), IdleCold: api.Duration(m.IdleCold), Hash: m.Hash,
		Replicas: m.Replicas, Target: m.Target(), Stopped: m.Stopped, Spread: maps.Clone(m.Spread),
		CreateIndex: m.CreateIndex, ModifyIndex: m.ModifyIndex,
	}
	for name, r := range m.Rollouts {
		if out.Rollouts == nil {
			out.Rollouts = map[string]api.Rollout{}
		}
		out.Rollouts[name] = api.Rollout{Status: string(r.Status), OldHash: r.Old.Hash, NewHash: r.NewHash, Reason: r.Reason, Since: r.Since}
	}
	return out
}

func summaryOf(m *state.Model, replicas []*state.Replica) api.ModelSummary {
	out := api.ModelSummary{
		Name: m.Name, Variants: list(m.Variants, func(v state.Variant) string { return v.Name }),
		Min: m.Min, Max: m.Max, Replicas: m.Replicas, Target: m.Target(), Stopped: m.Stopped,
		Management: string(m.Management), Dedicated: m.Dedicated, Failover: m.Failover, Counts: countsOf(replicas),
		CreateIndex: m.CreateIndex, ModifyIndex: m.ModifyIndex,
	}
	for name, r := range m.Rollouts {
		if out.Rollouts == nil {
			out.Rollouts = map[string]string{}
		}
		out.Rollouts[name] = string(r.Status)
	}
	return out
}

func countsOf(replicas []*state.Replica) api.Counts {
	var c api.Counts
	for _, r := range replicas {
		switch r.Phase {
		case state.Running:
			switch r.Tier {
			case state.Hot:
				c.Hot++
			case state.Warm:
				c.Warm++
			case state.Cold:
				c.Cold++
			}
		case state.Placed, state.Starting, state.Waking:
			c.Starting++
		case state.Draining, state.Sleeping, state.Stopping:
			c.Leaving++
		case state.Failed:
			c.Failed++
		}
	}
	return c
}

// replicas converts replicas of a view, with what gateways said of them.
type replicas struct {
	view  *state.View
	loads map[string]load.Load
	// requests are told as well.
	requests bool
}

func (c replicas) convert(r *state.Replica) api.Replica {
	name := r.Name.String()
	out := api.Replica{
		Name: name, Model: r.Name.Model, Variant: r.Name.Variant, ID: r.Name.ID, VariantHash: r.VariantHash,
		Tier: string(r.Tier), Phase: string(r.Phase), Target: string(r.Target), Node: r.Placement.Node,
		Seats: list(r.Placement.Seats, func(s string) string { return s }), Memory: map[string]int64{}, HostMemory: r.Placement.HostMemory,
		Job: r.Job, Canary: r.Canary, Failures: r.Failures, LastError: r.LastError, Retry: r.Retry,
		Since: r.Since, Created: r.Created, CreateIndex: r.CreateIndex, ModifyIndex: r.ModifyIndex,
	}
	maps.Copy(out.Memory, r.Placement.Memory)
	// The model and the node are looked at, and not watched: they are named beside the
	// replica, which is what was asked for.
	if m := c.view.Model(nil, r.Name.Model); m != nil {
		v := m.Variant(r.Name.Variant)
		out.Current = v != nil && v.Hash == r.VariantHash
	}
	if n := c.view.Node(nil, r.Placement.Node); n != nil {
		out.NodeName = n.Name
	}
	if l, ok := c.loads[name]; ok {
		out.Load = &api.Load{InFlight: l.InFlight, Busy: l.InFlight > 0, Oldest: l.Oldest, LastRequest: l.LastRequest}
		if c.requests {
			out.Load.Requests = list(l.Requests, func(q load.Request) api.Request { return api.Request{ID: q.ID, Started: q.Started} })
		}
	}
	return out
}

func nodeOf(n *state.Node, used *state.NodeUsage) api.Node {
	out := api.Node{
		ID: n.ID, Name: n.Name, Datacenter: n.Datacenter, Pool: n.Pool, Ready: n.Ready, Draining: n.Draining, Gone: n.Gone,
		LostSince: n.LostSince, Unusable: n.Usable(), HostMemory: n.HostMemory, FreeHostMemory: n.HostMemory - used.HostMemory,
		CPU: n.CPU, CreateIndex: n.CreateIndex, ModifyIndex: n.ModifyIndex,
	}
	out.GPUs = list(n.GPUs, func(g state.GPU) api.GPU {
		return api.GPU{
			UUID: g.UUID, Model: g.Model, Clique: g.Clique, Memory: g.Memory, FreeMemory: used.FreeMemory(&g),
			Seats:   list(g.Seats, func(id string) api.Seat { return api.Seat{ID: id, Replica: used.Seats[id]} }),
			Healthy: g.Healthy, Reason: g.Reason, Quarantined: g.Quarantined,
		}
	})
	return out
}

func decisionOf(d *state.Decision) api.Decision {
	return api.Decision{ID: d.ID, Time: d.Time, Model: d.Model, Replica: d.Replica, Kind: d.Kind, Reason: d.Reason, Inputs: maps.Clone(d.Inputs)}
}

func switchOf(s *state.Switch) api.Switch {
	return api.Switch{Name: s.Name, Value: s.Value, ModifyIndex: s.ModifyIndex}
}

func tokenOf(t *state.Token) api.Token {
	return api.Token{Accessor: t.Accessor, Name: t.Name, Role: string(t.Role), Created: t.Created, CreateIndex: t.CreateIndex, ModifyIndex: t.ModifyIndex}
}

func outcomes(rs []*state.Replica, variant string) []api.ReplicaOutcome {
	out := []api.ReplicaOutcome{}
	for _, r := range rs {
		if variant == "" || r.Name.Variant == variant {
			out = append(out, api.ReplicaOutcome{Name: r.Name.String(), Tier: string(r.Tier), Phase: string(r.Phase), Error: r.LastError})
		}
	}
	slices.SortFunc(out, func(a, b api.ReplicaOutcome) int { return cmp.Compare(a.Name, b.Name) })
	return out
}
