package agent

import (
	"cmp"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/zclconf/go-cty/cty"

	"remuda/controller/api"
	"remuda/controller/planner"
	"remuda/controller/reconcile"
	"remuda/controller/state"
	"remuda/internal/hclconfig"
)

// Pool is external capacity: a Nomad, or a node pool of one, beside the controller's own.
type Pool struct {
	// Name is what nodes and replicas there are shown with.
	Name string
	// Nomad is where it is. Its address must be given, as its token where one is wanted:
	// NOMAD_ADDR and its friends are of the own one.
	Nomad Nomad
	// Management says who may place there, and take away: disabled, manual, upscaling or
	// full; see planner.Pool.
	Management state.Management
	// Price is a factor on the cost of a variant.
	Price float64
	// Batch is how many replicas leave it at a time, once in Interval.
	Batch    int
	Interval time.Duration
}

// DefaultPool returns a pool of that name whose Nomad is yet to be told.
func DefaultPool(name string) Pool {
	p := planner.DefaultPool(name)
	return Pool{Name: name, Nomad: defaultNomad(), Management: p.Management, Price: p.Price, Batch: p.Batch, Interval: p.Interval}
}

// poolBlock is the type of a pool's block in a config file.
const poolBlock = "pool"

// poolBlocks are the blocks of the pools.
func poolBlocks() hclconfig.Labelled[Config] {
	return hclconfig.Labelled[Config]{
		Type: poolBlock,
		Open: func(c *Config, name string) { c.Pools = append(slices.Clone(c.Pools), DefaultPool(name)) },
		Settings: func(name string) []setting {
			of := func(c *Config) *Pool {
				return &c.Pools[slices.IndexFunc(c.Pools, func(p Pool) bool { return p.Name == name })]
			}
			return append(nomadSettings(func(c *Config) *Nomad { return &of(c).Nomad }),
				setting{Name: "node_pool", Set: text(func(c *Config) *string { return &of(c).Nomad.NodePool })},
				setting{Name: "management", Set: func(c *Config, v cty.Value) error {
					return hclconfig.Text(func(p *Pool) *string { return (*string)(&p.Management) })(of(c), v)
				}},
				setting{Name: "price", Set: hclconfig.Float(func(c *Config) *float64 { return &of(c).Price })},
				setting{Name: "batch", Set: hclconfig.Count(func(c *Config) *int { return &of(c).Batch })},
				setting{Name: "interval", Set: duration(func(c *Config) *time.Duration { return &of(c).Interval })},
			)
		},
	}
}

// planned is the pool as the planner sees it.
func (p Pool) planned() planner.Pool {
	return planner.Pool{Name: p.Name, Management: p.Management, Price: p.Price, Batch: p.Batch, Interval: p.Interval}
}

// planner returns the planner's config with the pools.
func (c Config) planner() planner.Config {
	out := c.Reconcile
	out.Pools = nil
	for _, p := range c.Pools {
		out.Pools = append(out.Pools, p.planned())
	}
	return out
}

// maxPoolName is as long as the name of a Nomad region may be, about.
const maxPoolName = 64

// poolProblems names what is wrong with the pools.
func (c Config) poolProblems() []hclconfig.Problem {
	var out []hclconfig.Problem
	seen := map[string]bool{}
	for i, p := range c.Pools {
		title := fmt.Sprintf("%s %q", poolBlock, p.Name)
		prefix := title + "."
		bad := func(field, format string, args ...any) {
			out = append(out, hclconfig.Problem{Field: prefix + field, Text: fmt.Sprintf(format, args...), Blame: []string{title}})
		}
		if p.Name == "" || len(p.Name) > maxPoolName || strings.Trim(p.Name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") != "" {
			out = append(out, hclconfig.Problem{Field: title, Text: fmt.Sprintf("is not a valid name: must be 1 to %d letters, digits, '-', '_' and '.'", maxPoolName)})
		}
		if seen[p.Name] {
			out = append(out, hclconfig.Problem{Field: title, Text: "is a duplicate: each pool needs its own name"})
		}
		seen[p.Name] = true
		switch p.Management {
		case state.ManagementDisabled, state.ManagementManual, state.ManagementUpscaling, state.ManagementFull:
		default:
			bad("management", `is %q: must be "disabled", "manual", "upscaling" or "full"`, p.Management)
		}
		if !(p.Price >= 0) {
			bad("price", "is %g: must be 0 or more, a factor on the cost of a variant", p.Price)
		}
		if p.Batch < 1 {
			bad("batch", "is %d: must be at least 1", p.Batch)
		}
		if p.Interval < 0 {
			bad("interval", "is %s: must be 0 or more", p.Interval)
		}
		for _, n := range p.Nomad.problems(prefix + "nomad.") {
			n.Blame = append(n.Blame, title)
			out = append(out, n)
		}
		if p.Nomad.Address == "" {
			bad("nomad.address", "is required: NOMAD_ADDR applies to the controller's own Nomad only")
			continue
		}
		if other, shared := c.shares(i); shared {
			bad("node_pool", "is %q on the same Nomad as %s, with node_pool %q: must differ, so that each node belongs to one pool", p.Nomad.NodePool, other, c.nodePoolOf(other))
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
			return fmt.Sprintf("%s %q", poolBlock, p.Name), true
		}
	}
	return "", false
}

func (c Config) nodePoolOf(other string) string {
	for _, p := range c.Pools {
		if other == fmt.Sprintf("%s %q", poolBlock, p.Name) {
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
		out[i].Known, out[i].Heard, out[i].Error = p.Known(), p.Heard(), p.Error()
	}
	return out
}
