package server

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/go-memdb"

	"remuda/controller/api"
	"remuda/controller/state"
)

func (s *Server) listPools(_ *request, v *state.View, ws memdb.WatchSet) (answer, error) {
	index := v.TableIndex(state.TableNodes, state.TableReplicas, state.TableModels)
	pools := slices.Clone(s.cfg.Reconciler.Pools())
	// at returns the pool of that name; one that only the state knows is listed as well.
	at := func(name string) *api.Pool {
		i := slices.IndexFunc(pools, func(p api.Pool) bool { return p.Name == name })
		if i < 0 {
			i = len(pools)
			pools = append(pools, api.Pool{
				Name: name, Management: string(state.ManagementDisabled), Price: 1,
				Error: "no longer in this server's config: nothing is placed or changed there",
			})
		}
		return &pools[i]
	}
	of := map[string]string{}
	replicas := v.Replicas(ws)
	uses, _ := s.uses.usesOf(replicas)
	for _, n := range v.Nodes(ws) {
		of[n.ID] = n.CapacityPool
		p := at(n.CapacityPool)
		if n.Usable() != "" {
			continue
		}
		p.Nodes++
		for _, g := range n.GPUs {
			if g.Healthy && !g.Cordoned {
				p.GPUs++
				p.Memory += g.Memory
				p.FreeMemory += g.Memory - uses[g.UUID].sum()
			}
		}
	}
	byPool := map[string][]*state.Replica{}
	for _, r := range replicas {
		pool := of[r.Placement.Node]
		byPool[pool] = append(byPool[pool], r)
	}
	for name, rs := range byPool {
		at(name).Counts = countsOf(rs)
	}
	for _, m := range v.Models(ws) {
		for _, name := range m.Desired.External() {
			p := at(name)
			if p.Desired == nil {
				p.Desired = map[string]int{}
			}
			p.Desired[m.Name] = m.Desired.In(name)
		}
	}
	slices.SortStableFunc(pools, func(a, b api.Pool) int { return strings.Compare(a.Name, b.Name) })
	return answer{value: pools, index: index}, nil
}

// scalePool changes how many of a model's replicas should be in an external pool.
func (s *Server) scalePool(rq *request, v *state.View) (answer, error) {
	var body api.ScalePoolRequest
	if err := rq.decode(&body); err != nil {
		return answer{}, err
	}
	name, pool := rq.PathValue("model"), rq.PathValue("pool")
	before := v.Model(nil, name)
	if before == nil {
		return answer{}, noModel(v, name)
	}
	// What should be in a pool that is gone, or disabled, may be taken back.
	if body.Replicas != 0 {
		if err := s.mayScalePool(pool); err != nil {
			return answer{}, err
		}
	}
	was := before.Desired.In(pool)
	ask := &state.ScaleRequest{Model: name, Pool: pool, Replicas: &body.Replicas, Origin: state.OriginOperator, ModifyIndex: body.CAS, Time: s.cfg.Now()}
	res, err := s.propose(rq, ask, state.Decision{Model: name, Kind: "scale",
		Reason:  fmt.Sprintf("%s asked for %s in pool %q (was %d)", by(rq.token), plural(body.Replicas, "replica"), pool, was),
		Details: map[string]string{"asked": strconv.Itoa(body.Replicas), "before": strconv.Itoa(was), "pool": pool}})
	if err != nil {
		return answer{}, err
	}
	after := s.cfg.Raft.Store().View()
	m := after.Model(nil, name)
	if m == nil {
		return answer{}, conflict("model %q was deleted in the meantime", name)
	}
	var there []*state.Replica
	out := api.ScaleResponse{Model: name, Pool: pool, Changed: res.Changed, ModifyIndex: m.ModifyIndex}
	for _, r := range after.ReplicasOf(nil, name) {
		if n := after.Node(nil, r.Placement.Node); n == nil || n.CapacityPool != pool {
			continue
		}
		there = append(there, r)
		if r.Counts() {
			out.Current++
		}
	}
	if !m.Stopped {
		out.Target = m.Active().In(pool)
	}
	out.Replicas = outcomes(there, "")
	return answer{value: out}, nil
}

func (s *Server) mayScalePool(name string) error {
	var names []string
	for _, p := range s.cfg.Reconciler.Pools() {
		switch {
		case p.Name == "":
		case p.Name != name:
			names = append(names, strconv.Quote(p.Name))
		case p.Management == string(state.ManagementDisabled):
			return &api.Error{Status: 403, Code: api.CodeForbidden,
				Message: fmt.Sprintf("pool %q: management is %q: nothing is placed there unless it is %q, %q or %q in the agent config",
					name, p.Management, state.ManagementManual, state.ManagementUpscaling, state.ManagementFull)}
		default:
			return nil
		}
	}
	if len(names) == 0 {
		return notFound("pool %q does not exist: the agent config has no pool blocks", name)
	}
	return notFound("pool %q does not exist: the agent config has %s", name, strings.Join(names, ", "))
}
