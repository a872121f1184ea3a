package server

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/hashicorp/go-memdb"

	"remuda/controller/api"
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
		Weights: v.Weights, SleepMemory: v.SleepMemory, SharedMemory: v.SharedMemory, Reach: v.Reach, Cost: v.Cost, Slots: v.Slots, Engine: v.Engine, Hash: v.Hash,
	}
}

func limitsOf(l state.Limits) api.Limits {
	return api.Limits{Dedicated: l.Dedicated, CapMaxReplicas: l.Cap, ScalingDisabled: l.ScalingDisabled,
		ScaleToZeroDelay: api.Duration(l.ScaleToZeroDelay), KeepLastReplica: l.KeepLast}
}

func sharesOf(s state.Shares) []api.Share {
	return list(s, func(s state.Share) api.Share { return api.Share(s) })
}

func displacedOf(d state.Displaced) (out api.Displaced) {
	if d.UntilRoom != nil {
		out.UntilRoom = sharesOf(d.UntilRoom)
	}
	if d.UntilAsked != nil {
		out.UntilAsked = sharesOf(d.UntilAsked)
	}
	return out
}

func modelOf(m *state.Model, l state.Limits) api.Model {
	target := m.Target(l)
	out := api.Model{
		Name: m.Name, Variants: list(m.Variants, variantOf), Min: m.Min, Max: m.Max, Priority: m.Priority,
		Dedicated: m.Dedicated, DedicatedNow: m.Dedicated || l.Dedicated > 0, Failover: m.Failover, Management: string(m.Management), KeepWarm: m.KeepWarm,
		Continuation: m.Continuation, PassAuthorization: m.PassAuthorization, QueueLength: m.Queue.Length, QueueWait: api.Duration(m.Queue.Wait), FirstByte: api.Duration(m.Queue.FirstByte),
		TTFTP95: api.Duration(m.SLO.TTFT), ITLP95: api.Duration(m.SLO.ITL),
		Surge: m.Surge(), MinAvailable: m.MinAvailable(target.Replicas), IdleWarm: api.Duration(m.IdleWarm), IdleCold: api.Duration(m.IdleCold), Scaling: scalingOf(m), Hash: m.Hash,
		Version: m.Version, StableVersion: m.StableVersion, Stopped: m.Stopped,
		Desired: sharesOf(m.Desired), Displaced: displacedOf(m.Displaced), Replicas: m.Desired.Total(), Target: target.Replicas, Bound: string(target.Bound),
		CreateIndex: m.CreateIndex, ModifyIndex: m.ModifyIndex,
	}
	for name, r := range m.Rollouts {
		if out.Rollouts == nil {
			out.Rollouts = map[string]api.Rollout{}
		}
		out.Rollouts[name] = api.Rollout{Status: string(r.Status), Version: r.Version, Reason: r.Reason, Since: r.Since}
	}
	return out
}

func scalingOf(m *state.Model) *api.Scaling {
	if m.Scaling == nil {
		return nil
	}
	return &api.Scaling{Strategy: m.Scaling.Strategy, Interval: api.Duration(m.Scaling.Interval), Settings: m.Scaling.Settings}
}

func summaryOf(v *state.View, ws memdb.WatchSet, m *state.Model, l state.Limits, replicas []*state.Replica) api.ModelSummary {
	target := m.Target(l)
	out := api.ModelSummary{
		Name: m.Name, Variants: list(m.Variants, func(v state.Variant) string { return v.Name }),
		Min: m.Min, Max: m.Max, Replicas: m.Desired.Total(), Target: target.Replicas, Bound: string(target.Bound), Stopped: m.Stopped,
		Management: string(m.Management), Dedicated: m.Dedicated, DedicatedNow: m.Dedicated || l.Dedicated > 0, Failover: m.Failover, Counts: countsOf(replicas),
		CreateIndex: m.CreateIndex, ModifyIndex: m.ModifyIndex,
	}
	if target.Bound == state.BoundCap && out.Counts.Hot >= target.Replicas {
		out.Unplaceable = fmt.Sprintf("capped at %s by switch %s", plural(target.Replicas, "replica"), cappedBy(v, ws, m.Name, target.Replicas))
	} else if m.Unplaceable != nil {
		out.Unplaceable = m.Unplaceable.Reason
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
		switch {
		case r.Resting():
			c.Warm++
		case r.Status == state.StatusCold:
			c.Cold++
		case r.Leaving():
			c.Leaving++
		case r.Status == state.StatusServing:
			c.Hot++
		case r.Status == state.StatusFailed:
			c.Failed++
		default: // placed, starting or waking
			c.Starting++
		}
	}
	return c
}

// variantCountsOf counts the replicas of each variant: those of the model's, and others that
// are still there.
func variantCountsOf(m *state.Model, replicas []*state.Replica) map[string]api.Counts {
	of := map[string][]*state.Replica{}
	for i := range m.Variants {
		of[m.Variants[i].Name] = nil
	}
	for _, r := range replicas {
		of[r.Name.Variant] = append(of[r.Name.Variant], r)
	}
	out := make(map[string]api.Counts, len(of))
	for variant, rs := range of {
		out[variant] = countsOf(rs)
	}
	return out
}

func variantStartsOf(m *state.Model) map[string]api.Start {
	var out map[string]api.Start
	for i := range m.Variants {
		if s, known := m.Starts[m.Variants[i].Hash]; known {
			if out == nil {
				out = map[string]api.Start{}
			}
			out[m.Variants[i].Name] = api.Start{Cold: api.Duration(s.Cold), Warm: api.Duration(s.Warm)}
		}
	}
	return out
}

// replicas converts replicas of a view, with what gateways and shims said of them.
type replicas struct {
	view       *state.View
	loads      map[string]api.Load
	notServing func(replica string) string
	pair       func(replica string) api.Pair
	// details: include the requests, and the log of the last failover.
	details bool
}

// replicasIn converts replicas of a view, with their details if so.
func (s *Server) replicasIn(v *state.View, details bool) replicas {
	return replicas{view: v, loads: s.cfg.Loads.Loads(), notServing: s.cfg.Reconciler.NotServing, pair: s.cfg.Reconciler.Pair, details: details}
}

func (c replicas) convert(r *state.Replica) api.Replica {
	name := r.Name.String()
	out := api.Replica{
		Name: name, Model: r.Name.Model, Variant: r.Name.Variant, ID: r.Name.ID, Version: r.Version,
		Goal: string(r.Goal), Status: string(r.Status), Tier: string(r.Tier()), Node: r.Placement.Node,
		Seats: list(r.Placement.Seats, func(s string) string { return s }), Memory: map[string]int64{}, HostMemory: r.Placement.HostMemory,
		SleepMemory: r.Placement.SleepMemory, SharedMemory: r.Placement.SharedMemory, LoadMemory: r.Placement.LoadMemory, MakesRoomFor: r.MakesRoomFor, Failures: r.Failures, LastError: r.LastError,
		Since: r.Since, CreatedAt: r.CreatedAt, CreateIndex: r.CreateIndex, ModifyIndex: r.ModifyIndex,
	}
	if r.Status == state.StatusFailed { // others keep it without being tried again
		out.RetryAt = r.RetryAt
	}
	maps.Copy(out.Memory, r.Placement.Memory)
	// The model and the node are looked at, and not watched: they are named beside the
	// replica, which is what was asked for.
	if m := c.view.Model(nil, r.Name.Model); m != nil {
		v, made := m.Variant(r.Name.Variant), c.view.VariantOf(nil, r)
		out.Current = v != nil && made != nil && v.Hash == made.Hash
		out.Canary = r.Canary && out.Current && m.Rollouts[r.Name.Variant].Status == state.RolloutCanary
	}
	if n := c.view.Node(nil, r.Placement.Node); n != nil {
		out.NodeName, out.CapacityPool, out.OutOfUse = n.Name, n.CapacityPool, r.OutOfUse(n)
	}
	if r.Status == state.StatusStarting {
		out.NotServing = c.notServing(name)
	}
	if p := c.pair(name); p != (api.Pair{}) {
		if !c.details {
			p.LastFailover.Log = ""
		}
		out.Pair = &p
	}
	if l, ok := c.loads[name]; ok {
		if !c.details {
			l.Requests = nil
		}
		out.Load = &l
	}
	return out
}

// gpuUse is what replicas hold of a GPU's memory, in bytes.
type gpuUse struct{ hot, moving, warm int64 }

func (u gpuUse) sum() int64 { return u.hot + u.moving + u.warm }

// usesOf returns what replicas hold of GPUs, by UUID, and of host memory.
func usesOf(rs []*state.Replica) (gpus map[string]gpuUse, host int64) {
	gpus = make(map[string]gpuUse, len(rs))
	counted := map[state.Weights]bool{} // weights that several share
	for _, r := range rs {
		h := r.Holds()
		for uuid, bytes := range h.Memory {
			if counted[h.Weights] {
				bytes -= h.Weights.On(uuid)
			}
			u := gpus[uuid]
			switch r.Status {
			case state.StatusServing:
				u.hot += bytes
			case state.StatusWarm:
				u.warm += bytes
			default:
				u.moving += bytes
			}
			gpus[uuid] = u
		}
		host += h.HostMemory
		if h.Weights.Of != "" {
			counted[h.Weights] = true
		}
	}
	return gpus, host
}

// lastUses has usesOf of all replicas as they were last: open pages ask each second, and mostly nothing
// has changed. Rows of the state do not change, so equal pointers are equal replicas.
type lastUses struct {
	mu   sync.Mutex
	of   []*state.Replica
	gpus map[string]gpuUse
	host int64
}

// usesOf returns what the function usesOf returns, from the last call if the replicas are the same. The map must
// not be changed.
func (l *lastUses) usesOf(rs []*state.Replica) (gpus map[string]gpuUse, host int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gpus == nil || !slices.Equal(l.of, rs) {
		l.of = rs
		l.gpus, l.host = usesOf(rs)
	}
	return l.gpus, l.host
}

func (s *Server) nodeOf(n *state.Node, rs []*state.Replica) api.Node {
	uses, warm := usesOf(rs)
	seats := map[string]string{} // the replica, by the seat's ID
	for _, r := range rs {
		for _, id := range r.Holds().Seats {
			seats[id] = r.Name.String()
		}
	}
	out := api.Node{
		ID: n.ID, Name: n.Name, Datacenter: n.Datacenter, Pool: n.Pool, CapacityPool: n.CapacityPool,
		Ready: n.Ready, Draining: n.Draining, WrittenOff: n.WrittenOff, DownSince: n.DownSince, Unusable: n.Usable(),
		HostMemory: n.HostMemory, FreeHostMemory: n.HostMemory - warm, WarmMemory: warm, WarmBudget: int64(float64(n.HostMemory) * s.cfg.WarmShare),
		CPU: n.CPU, CreateIndex: n.CreateIndex, ModifyIndex: n.ModifyIndex,
	}
	out.GPUs = list(n.GPUs, func(g state.GPU) api.GPU {
		gpu := api.GPU{
			UUID: g.UUID, Model: g.Model, Clique: g.Clique, Memory: g.Memory,
			Seats:   list(g.Seats, func(id string) api.Seat { return api.Seat{ID: id, Replica: seats[id]} }),
			Healthy: g.Healthy, Reason: g.Reason, Cordoned: g.Cordoned, CordonReason: g.CordonReason,
		}
		u := uses[g.UUID]
		gpu.HotMemory, gpu.MovingMemory, gpu.WarmMemory, gpu.FreeMemory = u.hot, u.moving, u.warm, g.Memory-u.sum()
		return gpu
	})
	return out
}

func decisionOf(d *state.Decision) api.Decision { return api.Decision(*d) }

func switchOf(s *state.Switch) api.Switch { return api.Switch(*s) }

func tokenOf(t *state.Token) api.Token {
	return api.Token{Accessor: t.Accessor, Name: t.Name, Role: string(t.Role), CreatedAt: t.CreatedAt, CreateIndex: t.CreateIndex, ModifyIndex: t.ModifyIndex}
}

func outcomes(rs []*state.Replica, variant string) []api.ReplicaOutcome {
	out := []api.ReplicaOutcome{}
	for _, r := range rs {
		if variant == "" || r.Name.Variant == variant {
			out = append(out, api.ReplicaOutcome{Name: r.Name.String(), Tier: string(r.Tier()), Status: string(r.Status), Error: r.LastError})
		}
	}
	slices.SortFunc(out, func(a, b api.ReplicaOutcome) int { return cmp.Compare(a.Name, b.Name) })
	return out
}
