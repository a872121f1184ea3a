package main

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"time"

	"remuda/controller/api"
)

var failover = apiCommand{
	synopsis: "Hand a failover pair over to its standby",
	about: `Has the engine of a failover pair that serves finish its requests and end, so that its standby
takes over, and waits until that serves. New requests wait meanwhile, and none is lost. If requests
still run after -timeout, the engine serves on. Nomad starts the old engine again, as the standby.

With -drill the engine ends at once, as a crash would, and its streams break. A replica is given by
its name, or by a unique prefix of its name or ID. Of a model it is the replica that can fail over and
has not done so for the longest time.`,
	args: []string{"REPLICA|MODEL"},
	setup: func(fs *flag.FlagSet) runFunc {
		drill := fs.Bool("drill", false, "end the engine at once, as a crash would")
		timeout := fs.Duration("timeout", 30*time.Second, "how long the engine may take to finish its requests, at most 5m")
		return func(ctx context.Context, c *apiClient, args []string) error {
			if *timeout <= 0 {
				return usagef("-timeout is %s: must be more than 0s", *timeout)
			}
			found, err := c.findPair(ctx, args[0])
			if err != nil {
				return err
			}
			if *drill {
				c.printf("Ending the engine of %s that serves.\n", found.Name)
			} else {
				c.printf("Draining the engine of %s that serves, for at most %s.\n", found.Name, *timeout)
			}
			f, err := c.Failover(ctx, found.Name, api.FailoverRequest{Drill: *drill, Timeout: api.Duration(*timeout)})
			if err != nil {
				return err
			}
			return c.print(f, func() error {
				how := ""
				if !f.Drill {
					how = fmt.Sprintf(" was drained in %.2f s and", time.Duration(f.Drained).Seconds())
				}
				fmt.Fprintf(c.out, "The %s%s has ended. The %s serves, %.2f s after that.\n", f.From, how, f.To, time.Duration(f.TookOver).Seconds())
				return nil
			})
		}
	},
}

// findPair returns the replica of that name, or of a model of that name the replica that can fail over
// and has not done so for the longest time.
func (c *apiClient) findPair(ctx context.Context, arg string) (api.Replica, error) {
	replicas, _, err := c.Replicas(ctx, "", api.QueryOptions{})
	if err != nil {
		return api.Replica{}, err
	}
	replicas = slices.DeleteFunc(replicas, func(r api.Replica) bool { return r.Model != arg })
	if len(replicas) == 0 {
		return c.findReplica(ctx, arg)
	}
	ready := slices.DeleteFunc(slices.Clone(replicas), func(r api.Replica) bool { return r.Pair == nil || r.Pair.Serves == "" || r.Pair.Degraded != "" })
	if len(ready) == 0 {
		return api.Replica{}, fmt.Errorf("none of the %s of model %s can fail over now: see \"remuda replica list\"", plural(len(replicas), "replica"), arg)
	}
	return slices.MinFunc(ready, func(a, b api.Replica) int { return a.Pair.LastFailover.At.Compare(b.Pair.LastFailover.At) }), nil
}
