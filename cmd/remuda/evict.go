package main

import (
	"context"
	"flag"
	"fmt"
	"strings"

	"remuda/controller/api"
	"remuda/internal/bytesize"
)

var evict = question{
	synopsis: "Take replicas off their GPUs",
	about: `Evicts one replica, or all of a model, and lowers the model's scale with them. Running replicas finish their requests
first. -to warm keeps the weights in the node's memory, from where they are back in seconds; -to cold remembers on
which node's disk they are; without -to the replica ends. -force also evicts dedicated replicas and goes below the
model's min. A replica is given by its name, or by the beginning of its name or ID that no other has.`,
	args: []string{"REPLICA|MODEL"},
	setup: func(fs *flag.FlagSet) answering {
		to := fs.String("to", "", "the `tier` to go to: warm or cold (default: the replica ends)")
		force := fs.Bool("force", false, "evict dedicated replicas too, and go below min")
		return func(ctx context.Context, c *asker, args []string) error {
			r := api.EvictRequest{Force: *force}
			var err error
			if r.To, err = evictTo(*to); err != nil {
				return err
			}
			if err := c.evictee(ctx, args[0], &r); err != nil {
				return err
			}
			answer, err := c.Evict(ctx, r)
			if err != nil {
				return err
			}
			err = c.print(answer, func() error {
				if len(answer.Replicas) == 0 {
					fmt.Fprintln(c.out, "No replica is on a GPU.")
					return nil
				}
				drains := false
				t := newTable(c.out, "REPLICA", "NODE", "FROM", "TO", "GPUS FREED", "BYTES FREED", "ERROR")
				for _, e := range answer.Replicas {
					to := e.To
					if to == "" && e.Error == "" {
						to = "end"
					}
					t.row(e.Name, short(e.Node), e.From, to, e.FreedGPUs, bytesize.Text(e.FreedBytes), e.Error)
					drains = drains || e.Error == "" && e.From == "HOT" && e.To != e.From
				}
				if err := t.flush(); err != nil || !drains {
					return err
				}
				fmt.Fprintln(c.out, "\nThey finish their requests first: `remuda replica list` shows how far they are.")
				return nil
			})
			if err != nil {
				return err
			}
			for _, e := range answer.Replicas {
				if e.Error == "" {
					return nil
				}
			}
			if len(answer.Replicas) > 0 {
				return exitError{exitFailed} // The table says why.
			}
			return nil
		}
	},
}

// evictTo reads the tier that something is evicted to.
func evictTo(to string) (string, error) {
	switch t := strings.ToUpper(to); t {
	case "", "WARM", "COLD":
		return t, nil
	}
	return "", usagef("-to is %q: want warm or cold", to)
}

// evictee finds out whether a model or a replica is meant.
func (c *asker) evictee(ctx context.Context, arg string, r *api.EvictRequest) error {
	models, _, err := c.Models(ctx, api.QueryOptions{})
	if err != nil {
		return err
	}
	for _, m := range models {
		if m.Name == arg {
			r.Model = arg
			return nil
		}
	}
	found, err := c.findReplica(ctx, arg)
	if err != nil {
		return fmt.Errorf("there is no model %q, and %w", arg, err)
	}
	r.Replica = found.Name
	return nil
}
