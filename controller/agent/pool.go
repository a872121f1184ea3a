package agent

import (
	"cmp"
	"net/url"
	"os"
	"slices"
	"strings"

	"remuda/controller/api"
	"remuda/controller/planner"
	"remuda/controller/reconcile"
	"remuda/controller/state"
	"remuda/internal/hclconfig"
	"remuda/internal/hclfault"
)

// Pool is external capacity: a Nomad, or a node pool of one, beside the controller's own.
type Pool struct {
	planner.Pool `hcl:",remain"`
	// Nomad is where it is. Its address must be set, as its token where one is needed:
	// NOMAD_ADDR and its friends are of the own one.
	Nomad Nomad `hcl:"nomad,block"`
}

// DefaultPool returns a pool of that name without the address of its Nomad.
func DefaultPool(name string) Pool {
	return Pool{Pool: planner.DefaultPool(name), Nomad: defaultNomad()}
}

// SetDefaults is for blocks of a config file.
func (p *Pool) SetDefaults(*Config) { *p = DefaultPool("") }

// planner returns the planner's config with the constants of its profile and the pools.
func (c Config) planner() planner.Config {
	out := c.Reconcile.Profiled()
	out.Pools = nil
	for _, p := range c.Pools {
		out.Pools = append(out.Pools, p.Pool)
	}
	return out
}

// poolBlock is the type of a pool's block in a config file.
const poolBlock = "pool"

// poolProblems names what is wrong with the pools.
func (c Config) poolProblems() hclfault.Problems {
	out := planner.PoolProblems(c.planner().Pools)
	for i, p := range c.Pools {
		title := hclconfig.Title(poolBlock, p.Name)
		out.Within(title+".nomad.", p.Nomad.problems(), title)
		if p.Nomad.Address == "" {
			out.Add(title+".nomad.address", "is required: NOMAD_ADDR applies to the controller's own Nomad only")
			out.Blame(title)
			continue
		}
		if other, shared := c.shares(i); shared {
			out.Add(title+".nomad.node_pool", "is %q on the same Nomad as %s, with node_pool %q: must differ, so that each node belongs to one pool", p.Nomad.NodePool, other, c.nodePoolOf(other))
			out.Blame(title)
		}
	}
	return out
}

// ownName is how the own Nomad is called in messages.
const ownName = "the nomad block"

// shares tells with which Nomad before pool i it would share nodes.
func (c Config) shares(i int) (other string, shared bool) {
	n := c.Pools[i].Nomad
	if sameNodes(c.Nomad.place(true), n.place(false)) {
		return ownName, true
	}
	for _, p := range c.Pools[:i] {
		if sameNodes(p.Nomad.place(false), n.place(false)) {
			return hclconfig.Title(poolBlock, p.Name), true
		}
	}
	return "", false
}

func (c Config) nodePoolOf(other string) string {
	for _, p := range c.Pools {
		if other == hclconfig.Title(poolBlock, p.Name) {
			return p.Nomad.NodePool
		}
	}
	return c.Nomad.NodePool
}

// place is which nodes a Nomad block means.
type place struct{ address, region, nodePool string }

// place reads the environment where it counts.
func (n Nomad) place(environment bool) place {
	out := place{n.Address, n.Region, n.NodePool}
	if environment {
		out.address = cmp.Or(out.address, os.Getenv("NOMAD_ADDR"), "http://127.0.0.1:4646")
		out.region = cmp.Or(out.region, os.Getenv("NOMAD_REGION"))
	}
	if u, err := url.Parse(out.address); err == nil {
		out.address = strings.ToLower(u.Host) + u.Path
	}
	out.address = strings.TrimSuffix(out.address, "/")
	return out
}

// sameNodes tells whether two blocks mean the same nodes, as far as that can be seen from
// them. A region that is not named may be the other's.
func sameNodes(a, b place) bool {
	overlap := func(a, b string) bool { return a == b || a == "" || b == "" }
	return a.address == b.address && overlap(a.region, b.region) && overlap(a.nodePool, b.nodePool)
}

// pools says for the API how the pools stand.
func (c Config) pools(s reconcile.Status) []api.Pool {
	ownPlace := c.Nomad.place(true)
	out := []api.Pool{{
		Management: string(state.ManagementFull), Price: 1,
		Address: cmp.Or(c.Nomad.Address, os.Getenv("NOMAD_ADDR"), "http://"+ownPlace.address), Region: ownPlace.region,
		Namespace: cmp.Or(c.Nomad.Namespace, os.Getenv("NOMAD_NAMESPACE")), NodePool: c.Nomad.NodePool,
	}}
	for _, p := range c.Pools {
		out = append(out, api.Pool{
			Name: p.Name, Management: string(p.Management), Price: p.Price, Batch: p.Batch, Interval: api.Duration(p.Interval),
			Address: p.Nomad.Address, Region: p.Nomad.Region, Namespace: p.Nomad.Namespace, NodePool: p.Nomad.NodePool,
		})
	}
	slices.SortStableFunc(out, func(a, b api.Pool) int { return strings.Compare(a.Name, b.Name) })
	status := map[string]reconcile.PoolStatus{}
	for _, p := range s.Pools {
		status[p.Name] = p
	}
	for i := range out {
		if !s.Leading {
			out[i].Error = "this server is not the leader"
			continue
		}
		p := status[out[i].Name]
		out[i].Known, out[i].LastContactAt, out[i].Error = p.Known(), p.LastContactAt(), p.Error()
	}
	return out
}
