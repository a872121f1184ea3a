package main

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"time"

	"remuda/controller/api"
)

var decisionList = apiCommand{
	synopsis: "List the latest decisions with their reasons",
	about: `Lists the controller's decisions, newest first, with their reasons. With -verbose it
shows the numbers behind them, too.`,
	setupShow: func(fs *flag.FlagSet) showFunc {
		var f api.DecisionFilter
		fs.StringVar(&f.Model, "model", "", "only decisions about this `model`")
		fs.StringVar(&f.Replica, "replica", "", "only decisions about this `replica`")
		fs.IntVar(&f.Limit, "limit", 50, "maximum number of decisions")
		return func(ctx context.Context, c *apiClient, _ []string, q api.QueryOptions) (api.QueryMeta, error) {
			if f.Limit < 1 {
				return api.QueryMeta{}, usagef("-limit is %d: must be at least 1", f.Limit)
			}
			if f.Replica != "" {
				// The decisions outlive the replica: one that is gone is taken by its word.
				if r, err := c.findReplica(ctx, f.Replica); err == nil {
					f.Replica = r.Name
				}
			}
			decisions, meta, err := c.Decisions(ctx, f, q)
			if err != nil {
				return meta, err
			}
			return meta, c.print(list(decisions), func() error {
				if len(decisions) == 0 {
					fmt.Fprintln(c.out, "No decisions.")
					return nil
				}
				return c.decisionTable(decisions, now())
			})
		}
	},
}

func (c *apiClient) decisionTable(decisions []api.Decision, at time.Time) error {
	var names []string
	for _, d := range decisions {
		names = append(names, aboutText(d))
	}
	name := c.shortNames(names)
	t := c.table("AGE", "+TIME", "KIND", "ABOUT", "REASON", "+NUMBERS")
	for _, d := range decisions {
		t.row(age(d.Time, at), clock(d.Time), d.Kind, name(aboutText(d)), d.Reason, inputsText(d.Details))
	}
	return t.flush()
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
