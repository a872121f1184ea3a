package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"

	"remuda/controller/api"
	"remuda/internal/bytesize"
)

func (p *program) nodeVerbs() map[string]verb {
	return map[string]verb{
		"node list":     p.apiVerb(nodeList),
		"node status":   p.apiVerb(nodeStatus),
		"node cordon":   p.apiVerb(nodeCordon),
		"node uncordon": p.apiVerb(nodeUncordon),
	}
}

var nodeList = apiCommand{
	synopsis: "List the nodes with GPUs",
	about:    `Lists the Nomad nodes with GPUs and their free capacity.`,
	show: func(ctx context.Context, c *apiClient, _ []string, q api.QueryOptions) (api.QueryMeta, error) {
		nodes, meta, err := c.Nodes(ctx, api.NodeFilter{}, q)
		if err != nil {
			return meta, err
		}
		return meta, c.print(list(nodes), func() error {
			if len(nodes) == 0 {
				fmt.Fprintln(c.out, "No nodes with GPUs. Check the device plugin on the nodes, and the controller's connection to Nomad with \"remuda agent health\".")
				return nil
			}
			t := c.table("ID", "NAME", "+DATACENTER", "+POOL", "STATUS", "GPUS", "SEATS FREE", "GPU MEMORY FREE", "+CAPACITY POOL")
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
				t.row(c.shortID(n.ID), n.Name, n.Datacenter, n.Pool, nodeState(n), gpuCount(n.GPUs), fmt.Sprintf("%d of %d", free, seats), bytesize.Text(freeMemory)+" of "+bytesize.Text(memory), poolName(n.CapacityPool))
			}
			return t.flush()
		})
	},
}

// gpuCount is how many GPUs a node has, and how many of them are out of use.
func gpuCount(gpus []api.GPU) string {
	out := 0
	for _, g := range gpus {
		if g.Cordoned || !g.Healthy {
			out++
		}
	}
	if out == 0 {
		return fmt.Sprint(len(gpus))
	}
	return fmt.Sprintf("%d, %d out of use", len(gpus), out)
}

func nodeState(n api.Node) string {
	switch {
	case n.WrittenOff:
		return "gone"
	case !n.DownSince.IsZero():
		return "lost"
	case n.Draining:
		return "draining"
	case !n.Ready:
		return "not ready"
	case len(n.GPUs) > 0 && !slices.ContainsFunc(n.GPUs, func(g api.GPU) bool { return !g.Cordoned }):
		return "cordoned"
	}
	return "ready"
}

var nodeStatus = apiCommand{
	synopsis: "Show a node, its GPUs and their replicas",
	about: `Shows one node, given by its ID, a prefix of the ID, or its name, with a picture of its GPU
and host memory: held by HOT replicas, moving between tiers, held by WARM replicas, and free;
and the replica on each seat. Colours are used on terminals only, and not if NO_COLOR is set.`,
	args: []string{"NODE"},
	show: func(ctx context.Context, c *apiClient, args []string, q api.QueryOptions) (api.QueryMeta, error) {
		s, meta, err := c.Node(ctx, args[0], q)
		if err != nil {
			return meta, err
		}
		return meta, c.print(s, func() error { return c.showNode(s) })
	},
}

func (c *apiClient) showNode(s api.NodeStatus) error {
	n := s.Node
	f := c.fields()
	f.set("ID", n.ID)
	f.set("Name", n.Name)
	f.set("Datacenter", n.Datacenter)
	f.set("Pool", n.Pool)
	f.set("Capacity pool", poolName(n.CapacityPool))
	f.set("Status", nodeState(n))
	f.setIf("Not usable", n.Unusable)
	if !n.DownSince.IsZero() {
		f.set("Down since", clock(n.DownSince))
	}
	f.set("CPU", fmt.Sprintf("%d MHz", n.CPU))
	if err := f.flush(); err != nil {
		return err
	}
	c.terminal.picture(c.out, s)
	return nil
}

func gpuState(g api.GPU) string {
	var states []string
	if g.Cordoned {
		states = append(states, "cordoned")
	}
	if !g.Healthy {
		states = append(states, strings.TrimSuffix("unhealthy: "+g.Reason, ": "))
	}
	return cmp.Or(strings.Join(states, ", "), "healthy")
}

var nodeCordon = apiCommand{
	synopsis: "Take a GPU or a node out of use",
	about: `Cordons a GPU, or all GPUs that a node has now. No new replicas are placed there. Those that
are there move to other GPUs as far as there is room, a few at a time: each is drained when
another one serves in its place. WARM ones go COLD. A GPU is given by its UUID or a prefix of
it; a node by its ID, a prefix of the ID, or its name.`,
	args: []string{"GPU|NODE"},
	setup: func(fs *flag.FlagSet) runFunc {
		reason := fs.String("reason", "", "`text` that the node's status shows as the reason")
		return func(ctx context.Context, c *apiClient, args []string) error {
			return c.cordon(ctx, args[0], true, *reason, "%s is cordoned: nothing new is placed there, and its replicas move where there is room.\n")
		}
	},
}

var nodeUncordon = apiCommand{
	synopsis: "Take a GPU or a node into use again",
	about:    `Ends the cordon of a GPU, or of all GPUs of a node. They are given as to "node cordon".`,
	args:     []string{"GPU|NODE"},
	run: func(ctx context.Context, c *apiClient, args []string) error {
		return c.cordon(ctx, args[0], false, "", "%s is uncordoned.\n")
	},
}

// cordon cordons or uncordons what arg names, and prints done with its name.
func (c *apiClient) cordon(ctx context.Context, arg string, on bool, reason, done string) error {
	nodes, _, err := c.Nodes(ctx, api.NodeFilter{}, api.QueryOptions{})
	if err != nil {
		return err
	}
	at, err := findGPUs(nodes, arg)
	if err != nil {
		return err
	}
	n, err := c.Cordon(ctx, at.node, api.CordonRequest{GPU: at.gpu, On: on, Reason: reason})
	if err != nil {
		return err
	}
	return c.print(n, func() error {
		_, err := fmt.Fprintf(c.out, done, at)
		return err
	})
}

// place is a GPU, or a node with all its GPUs.
type place struct {
	node string // its ID
	gpu  string // a UUID; empty for the node
	name string // of the node
}

// String names the GPU or the node.
func (p place) String() string {
	if p.gpu != "" {
		return p.gpu
	}
	return "Node " + p.name
}

// findGPUs finds the GPU or the node that arg names: exactly, or else as the only one that
// begins so. The GPUs of a node that is gone may be in another one by now.
func findGPUs(nodes []api.Node, arg string) (place, error) {
	var exact, begun []place
	match := func(names []string, at place) {
		switch {
		case slices.Contains(names, arg):
			exact = append(exact, at)
		case strings.HasPrefix(names[0], arg):
			begun = append(begun, at)
		}
	}
	for _, n := range nodes {
		match([]string{n.ID, n.Name}, place{node: n.ID, name: n.Name})
		for _, g := range n.GPUs {
			if !n.WrittenOff {
				match([]string{g.UUID}, place{node: n.ID, gpu: g.UUID, name: n.Name})
			}
		}
	}
	found := exact
	if len(found) == 0 {
		found = begun
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return place{}, fmt.Errorf("no GPU or node %q: see \"remuda node list\" and \"remuda node status NODE\"", arg)
	}
	var all []string
	for _, at := range found {
		all = append(all, cmp.Or(at.gpu, at.node)+" ("+at.name+")")
	}
	return place{}, ambiguous(arg, all)
}
