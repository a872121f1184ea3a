package planner_test

import (
	"fmt"

	"remuda/controller/placement"
	"remuda/controller/state"
)

// usedNow asks for a place for a replica of a variant, by the definition from which its replicas are
// made, except for a canary.
func (w *world) usedNow(view *state.View, m *state.Model, v state.Variant) placement.Request {
	r := placement.Request{Model: m.Name, Variant: &v, Failover: m.Failover, Weights: state.WeightsOf(m.Name, m.Version, v.Name)}
	if m.Rollouts[v.Name].Status == state.RolloutCanary {
		stable := view.Versions(nil, m.Name).Get(m.StableVersion)
		r.Variant, r.Failover = stable.Variant(v.Name), stable.Model.Failover
		r.Weights = state.WeightsOf(m.Name, m.StableVersion, v.Name)
	}
	return r
}

// hash is of the definition that a replica was made from.
func (w *world) hash(r *state.Replica) string { return w.view().VariantOf(nil, r).Hash }

func variant(name, hash string, edit ...func(*state.Variant)) state.Variant {
	v := state.Variant{Name: name, GPUs: 1, Memory: 30, HostMemory: 10, Cost: 1, Hash: hash}
	for _, e := range edit {
		e(&v)
	}
	return v
}

func model(name string, replicas int, vs ...state.Variant) state.Model {
	m := state.Model{Name: name, Max: 1000, Priority: 50, Management: state.ManagementFull, Desired: state.Any(replicas), Variants: vs}
	for _, v := range vs {
		m.Hash += v.Hash + " "
	}
	return m
}

func node(id string, gpus int) state.Node {
	n := state.Node{ID: id, Name: id, Datacenter: "dc1", Ready: true, HostMemory: 1000, CPU: 1000}
	for g := range gpus {
		gpu := state.GPU{UUID: fmt.Sprintf("%s-GPU%d", id, g), Model: "H100", Clique: "c", Memory: 80, Healthy: true}
		for s := range 2 {
			gpu.Seats = append(gpu.Seats, fmt.Sprintf("%s#%d", gpu.UUID, s))
		}
		n.GPUs = append(n.GPUs, gpu)
	}
	return n
}
