package planner_test

import (
	"fmt"
	"maps"

	"remuda/controller/planner"
)

// observe returns what is seen; lagging shows Nomad's lists as they were.
func (w *world) observe(lagging bool) planner.Observation {
	if w.listed == nil || !lagging {
		w.relist()
	}
	o := planner.Observation{
		Now: w.now, Jobs: map[string]planner.Job{}, Pools: map[string]planner.PoolView{"": {JobsKnown: !w.nomadOut, JobsSince: w.nomadSince}}, Engines: map[string][]planner.Engine{}, EnginesKnown: !w.consulOut,
		Loads: map[string]planner.Load{}, InFlight: map[string]bool{},
	}
	v := w.view()
	for name, index := range w.wrote {
		o.InFlight[name] = index > w.listedAt
	}
	for _, r := range v.Replicas(nil) {
		if r.JobIndex > w.listedAt {
			o.InFlight[r.Name.String()] = true
		}
	}
	for name, j := range w.listed {
		if r := v.Replica(nil, name); r != nil && r.JobIndex != 0 && j.Index != r.JobIndex {
			j.Drift = append(j.Drift, fmt.Sprintf("index %d, not %d", j.Index, r.JobIndex))
		}
		j.Degraded, j.Takeover, j.WeightsLost = w.degraded[name], w.takeovers[name], w.weightsLost[name]
		o.Jobs[name] = j
	}
	for _, p := range w.conf.Pools {
		o.Pools[p.Name] = planner.PoolView{JobsKnown: !w.poolOut[p.Name]}
	}
	o.PassedAt = w.passedAt
	o.TrafficKnown = w.gateways
	if w.gateways {
		o.GatewaysSince = w.gatewaysSince
	}
	o.Demand = maps.Clone(w.demand)
	for name, j := range w.nomad {
		if j.alloc != nil && j.alloc.Client == "running" {
			o.Engines[name] = []planner.Engine{{Passing: j.serving(w.now)}}
		}
	}
	for _, r := range v.Replicas(nil) {
		name := r.Name.String()
		n := len(w.requests[name])
		l := planner.Load{InFlight: n, LastRequest: w.last[name]}
		l.Recent, l.Row = w.outcomes(name)
		o.Loads[name] = l
	}
	return o
}
