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

var evict = apiCommand{
	synopsis: "Evict replicas from their GPUs",
	about: `Evicts one replica, or all replicas of a model, until clients wait for it or the
model is scaled. Running replicas finish their requests first. With -to warm the weights stay in the
node's memory, ready to serve again in seconds; with -to cold the controller remembers the nodes
that have them on disk; without -to the replica stops. A replica is given by its name, or by a
unique prefix of its name or ID.`,
	args: []string{"REPLICA|MODEL"},
	setup: func(fs *flag.FlagSet) runFunc {
		to := fs.String("to", "", "the target `tier`: warm or cold (default: stop the replica)")
		force := fs.Bool("force", false, "also evict dedicated replicas, and go below min (not with -to warm)")
		return func(ctx context.Context, c *apiClient, args []string) error {
			r := api.EvictRequest{Force: *force}
			var err error
			if r.To, err = evictTo(*to); err != nil {
				return err
			}
			if err := c.evictTarget(ctx, args[0], &r); err != nil {
				return err
			}
			answer, err := c.Evict(ctx, r)
			if err != nil {
				return err
			}
			err = c.print(answer, func() error {
				if len(answer.Replicas) == 0 {
					fmt.Fprintln(c.out, "No replicas on GPUs.")
					return nil
				}
				// What was evicted is told in any case, without the nodes' names if need be.
				nodes, _, _ := c.Nodes(ctx, api.NodeFilter{}, api.QueryOptions{})
				return c.showEvictions(answer.Replicas, nodes)
			})
			if err != nil {
				return err
			}
			for _, e := range answer.Replicas {
				if e.Error == "" || e.To == r.To {
					return nil // evicted, or already in that tier
				}
			}
			if len(answer.Replicas) > 0 {
				return exitError{exitFailed} // The table has the reasons.
			}
			return nil
		}
	},
}

// showEvictions prints what becomes of each replica, and of those that were not evicted why.
func (c *apiClient) showEvictions(replicas []api.Eviction, nodes []api.Node) error {
	var names []string
	for _, e := range replicas {
		names = append(names, e.Name)
	}
	name := c.shortNames(names)
	leave := 0
	t := c.table("REPLICA", "NODE", "FROM", "TO", "FREES", "NOTE")
	for _, e := range replicas {
		node := c.shortID(e.Node)
		if i := slices.IndexFunc(nodes, func(n api.Node) bool { return n.ID == e.Node }); i >= 0 {
			node = nodes[i].Name
		}
		goal, frees, note := cmp.Or(e.To, "stopped"), bytesize.Text(e.FreedBytes), e.Error
		if e.FreedGPUs > 0 {
			frees += fmt.Sprintf(" and %s", plural(e.FreedGPUs, "GPU"))
		}
		switch {
		case e.Error != "":
			goal, frees = "", ""
		case e.From == "HOT" && e.To != e.From:
			note = "finishes its requests first"
		}
		if e.Error == "" {
			leave++
		}
		t.row(name(e.Name), node, e.From, goal, frees, note)
	}
	if err := t.flush(); err != nil || leave == 0 {
		return err
	}
	_, err := fmt.Fprintf(c.out, "\n%s evicted. Progress: \"remuda replica list -watch\"\n", plural(leave, "replica"))
	return err
}

// evictTo parses the value of -to.
func evictTo(to string) (string, error) {
	switch t := strings.ToUpper(to); t {
	case "", "WARM", "COLD":
		return t, nil
	}
	return "", usagef("-to is %q: must be warm or cold", to)
}

// evictTarget sets in r the model or the replica that arg names.
func (c *apiClient) evictTarget(ctx context.Context, arg string, r *api.EvictRequest) error {
	models, _, err := c.Models(ctx, api.QueryOptions{})
	if err != nil {
		return err
	}
	var names []string
	for _, m := range models {
		if m.Name == arg {
			r.Model = arg
			return nil
		}
		names = append(names, m.Name)
	}
	found, err := c.findReplica(ctx, arg)
	if err != nil {
		return fmt.Errorf("no model %q%s, and %w", arg, didYouMean(arg, names), err)
	}
	r.Replica = found.Name
	return nil
}
