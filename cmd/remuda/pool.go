package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"remuda/controller/api"
	"remuda/internal/bytesize"
)

func (p *program) poolVerbs() map[string]verb {
	return map[string]verb{"pool list": p.apiVerb(poolList)}
}

// ownPool is how people call the pool without a name.
const ownPool = "own"

// poolName names a pool for people.
func poolName(name string) string {
	if name == "" {
		return ownPool
	}
	return name
}

var poolList = apiCommand{
	synopsis: "List the capacity pools",
	about: `Lists the controller's own pool and the external capacity pools in the agents' config: their
management and price, the connection to their Nomad, free capacity, and replicas.`,
	show: func(ctx context.Context, c *apiClient, _ []string, q api.QueryOptions) (api.QueryMeta, error) {
		pools, meta, err := c.Pools(ctx, q)
		if err != nil {
			return meta, err
		}
		return meta, c.print(list(pools), func() error { return c.showPools(pools) })
	},
}

func (c *apiClient) showPools(pools []api.Pool) error {
	at := now()
	t := c.table("NAME", "MANAGEMENT", "+PRICE", "NOMAD", "NODES", "GPUS", "GPU MEMORY FREE", "HOT", "WARM", "+DESIRED")
	for _, p := range pools {
		state := "reachable"
		if !p.Known {
			state = "unreachable"
			if !p.LastContactAt.IsZero() {
				state = "lost " + age(p.LastContactAt, at)
			}
		}
		var desired []string
		for _, model := range slices.Sorted(maps.Keys(p.Desired)) {
			desired = append(desired, fmt.Sprintf("%s %d", model, p.Desired[model]))
		}
		t.row(poolName(p.Name), p.Management, p.Price, state, p.Nodes, p.GPUs, bytesize.Text(p.FreeMemory)+" of "+bytesize.Text(p.Memory),
			p.Counts.Hot, p.Counts.Warm, strings.Join(desired, ", "))
	}
	if err := t.flush(); err != nil {
		return err
	}
	for _, p := range pools {
		if p.Error != "" {
			fmt.Fprintf(c.out, "\n%s", wrap("", fmt.Sprintf("Pool %s: %s", poolName(p.Name), p.Error)))
			fmt.Fprintln(c.out)
		}
	}
	return nil
}
