package main

import (
	"context"
	"flag"
	"fmt"
	"strings"

	"remuda/controller/api"
	"remuda/internal/bytesize"
)

func (p *program) nodeVerbs() map[string]verb {
	return map[string]verb{
		"node list":       p.asking(nodeList),
		"node status":     p.asking(nodeStatus),
		"node quarantine": p.asking(nodeQuarantine),
	}
}

var nodeList = question{
	synopsis: "List the nodes with GPUs",
	about:    `Lists the Nomad nodes with GPUs and their free capacity.`,
	run: func(ctx context.Context, c *asker, _ []string) error {
		nodes, _, err := c.Nodes(ctx, api.QueryOptions{})
		if err != nil {
			return err
		}
		return c.print(list(nodes), func() error {
			if len(nodes) == 0 {
				fmt.Fprintln(c.out, "No nodes with GPUs. Check the device plugin on the nodes, and the controller's connection to Nomad with \"remuda agent health\".")
				return nil
			}
			t := newTable(c.out, "ID", "NAME", "DATACENTER", "POOL", "STATUS", "GPUS", "SEATS FREE", "GPU MEMORY FREE", "CAPACITY POOL")
			for _, n := range nodes {
				free, seats := 0, 0
				var freeMemory, memory int64
				for _, g := range n.GPUs {
					for _, s := range g.Seats {
						seats++
						if s.Replica == "" {
							free++
						}
					}
					freeMemory, memory = freeMemory+g.FreeMemory, memory+g.Memory
				}
				t.row(short(n.ID), n.Name, n.Datacenter, n.Pool, nodeState(n), len(n.GPUs), fmt.Sprintf("%d of %d", free, seats), bytesize.Text(freeMemory)+" of "+bytesize.Text(memory), poolName(n.CapacityPool))
			}
			return t.flush()
		})
	},
}

func nodeState(n api.Node) string {
	switch {
	case n.Gone:
		return "gone"
	case !n.LostSince.IsZero():
		return "lost"
	case n.Draining:
		return "draining"
	case !n.Ready:
		return "not ready"
	}
	return "ready"
}

var nodeStatus = question{
	synopsis: "Show a node, its GPUs and their replicas",
	about: `Shows one node, given by its ID, a prefix of the ID, or its name, with a picture of its GPU
and host memory: held by HOT replicas, moving between tiers, held by WARM replicas, and free;
and the replica on each seat. Colours are used on terminals only, and not if NO_COLOR is set.`,
	args: []string{"NODE"},
	run: func(ctx context.Context, c *asker, args []string) error {
		s, _, err := c.Node(ctx, args[0], api.QueryOptions{})
		if err != nil {
			return err
		}
		return c.print(s, func() error { return c.showNode(s) })
	},
}

func (c *asker) showNode(s api.NodeStatus) error {
	n := s.Node
	f := newFields(c.out)
	f.set("ID", n.ID)
	f.set("Name", n.Name)
	f.set("Datacenter", n.Datacenter)
	f.set("Pool", n.Pool)
	f.set("Capacity pool", poolName(n.CapacityPool))
	f.set("Status", nodeState(n))
	f.setIf("Not usable", n.Unusable)
	if !n.LostSince.IsZero() {
		f.set("Down since", clock(n.LostSince))
	}
	f.set("CPU", fmt.Sprintf("%d MHz", n.CPU))
	if err := f.flush(); err != nil {
		return err
	}
	c.canvas.picture(c.out, s)
	return nil
}

func gpuState(g api.GPU) string {
	switch {
	case g.Quarantined:
		return "quarantined"
	case !g.Healthy:
		return strings.TrimSpace("unhealthy " + g.Reason)
	}
	return "healthy"
}

var nodeQuarantine = question{
	synopsis: "Stop placements on a GPU, or allow them again",
	about: `Quarantines a GPU: no new replicas are placed on it, and those on it stay. -off ends the
quarantine. The GPU is given by its UUID or a prefix of it.`,
	args: []string{"NODE", "GPU"},
	setup: func(fs *flag.FlagSet) answering {
		off := fs.Bool("off", false, "allow placements again")
		reason := fs.String("reason", "", "`text` that the node's status shows as the reason")
		return func(ctx context.Context, c *asker, args []string) error {
			if *off && *reason != "" {
				return usagef("-reason is %q: must not be set with -off", *reason)
			}
			s, _, err := c.Node(ctx, args[0], api.QueryOptions{})
			if err != nil {
				return err
			}
			uuid, err := findGPU(s.Node, args[1])
			if err != nil {
				return err
			}
			n, err := c.Quarantine(ctx, s.Node.ID, api.QuarantineRequest{GPU: uuid, On: !*off, Reason: *reason})
			if err != nil {
				return err
			}
			return c.print(n, func() error {
				if *off {
					fmt.Fprintf(c.out, "Placements on %s are allowed again.\n", uuid)
				} else {
					fmt.Fprintf(c.out, "%s is quarantined: no new placements.\n", uuid)
				}
				return nil
			})
		}
	},
}

// findGPU finds a node's GPU by the beginning of its UUID.
func findGPU(n api.Node, arg string) (string, error) {
	var found, all []string
	for _, g := range n.GPUs {
		all = append(all, g.UUID)
		if g.UUID == arg {
			return arg, nil
		}
		if strings.HasPrefix(g.UUID, arg) {
			found = append(found, g.UUID)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return "", fmt.Errorf("node %s has no GPU %q: it has %s", n.Name, arg, dash(strings.Join(all, ", ")))
	}
	return "", fmt.Errorf("%q is ambiguous: it matches %s: use a longer prefix", arg, strings.Join(found, ", "))
}
