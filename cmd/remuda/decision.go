package main

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"

	"remuda/controller/api"
)

var decisionList = apiCommand{
	synopsis: "List the latest decisions with their reasons",
	about:    `Lists the controller's decisions, newest first, with their reasons and the numbers behind them.`,
	setup: func(fs *flag.FlagSet) runFunc {
		var f api.DecisionFilter
		fs.StringVar(&f.Model, "model", "", "only decisions about this `model`")
		fs.StringVar(&f.Replica, "replica", "", "only decisions about this `replica`")
		fs.IntVar(&f.Limit, "limit", 50, "maximum number of decisions")
		return func(ctx context.Context, c *apiClient, _ []string) error {
			if f.Limit < 1 {
				return usagef("-limit is %d: must be at least 1", f.Limit)
			}
			if f.Replica != "" {
				// The decisions outlive the replica: one that is gone is taken by its word.
				if r, err := c.findReplica(ctx, f.Replica); err == nil {
					f.Replica = r.Name
				}
			}
			decisions, _, err := c.Decisions(ctx, f, api.QueryOptions{})
			if err != nil {
				return err
			}
			return c.print(list(decisions), func() error {
				if len(decisions) == 0 {
					fmt.Fprintln(c.out, "No decisions.")
					return nil
				}
				t := newTable(c.out, "TIME", "KIND", "ABOUT", "REASON", "NUMBERS")
				for _, d := range decisions {
					t.row(clock(d.Time), d.Kind, aboutText(d), d.Reason, inputsText(d.Details))
				}
				return t.flush()
			})
		}
	},
}

// aboutText is what a decision is about.
func aboutText(d api.Decision) string {
	if d.Replica != "" {
		return d.Replica
	}
	return d.Model
}

func inputsText(inputs map[string]string) string {
	var texts []string
	for name, value := range inputs {
		texts = append(texts, name+"="+value)
	}
	slices.Sort(texts)
	return strings.Join(texts, " ")
}
