package main

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"

	"remuda/controller/api"
)

var usageBy = []string{api.UsageByKey, api.UsageByModel, api.UsageByDay}

var usage = apiCommand{
	synopsis: "Show the tokens that clients have used",
	about: `Adds up the requests and tokens that all gateways have counted, by key, model or day. Days are in UTC; the
controller keeps 92 of them. Usage is a few seconds behind.

PROMPT contains CACHED, the tokens that engines had in their prefix cache. ESTIMATED are those of PROMPT and
ANSWER that no engine counted, because an answer broke off or the engine does not count.`,
	setup: func(fs *flag.FlagSet) runFunc {
		q := api.UsageQuery{}
		by := fs.String("by", api.UsageByKey, "add up by `what`: "+strings.Join(usageBy, ", "))
		since := fs.String("since", "7d", "of how many `days` until today, from 1d to 92d")
		fs.StringVar(&q.Key, "key", "", "only the usage of this `key`")
		fs.StringVar(&q.Model, "model", "", "only the usage of this `model`")
		return func(ctx context.Context, c *apiClient, _ []string) error {
			if q.By = *by; !slices.Contains(usageBy, q.By) {
				return usagef("-by is %q: must be one of %s", *by, strings.Join(usageBy, ", "))
			}
			var ok bool
			if q.Days, ok = parseDays(*since); !ok || q.Days > api.UsageDays {
				return usagef("-since is %q: must be a number of days from 1d to %dd", *since, api.UsageDays)
			}
			r, _, err := c.Usage(ctx, q, api.QueryOptions{})
			if err != nil {
				return err
			}
			r.Rows = list(r.Rows)
			return c.print(r, func() error { return c.showUsage(r, q.By) })
		}
	},
}

func (c *apiClient) showUsage(r api.UsageReport, by string) error {
	if len(r.Rows) == 0 {
		fmt.Fprintf(c.out, "No usage from %s to %s.\n", r.Since, r.Until)
		return nil
	}
	t := newTable(c.out, strings.ToUpper(by), "REQUESTS", "PROMPT", "CACHED", "ANSWER", "TOKENS", "ESTIMATED")
	row := func(name string, u api.Usage) {
		t.row(name, u.Requests, u.PromptTokens, u.CachedTokens, u.CompletionTokens, u.Tokens(), u.EstimatedTokens)
	}
	for _, one := range r.Rows {
		row(one.Day+one.Key+one.Model, one.Usage) // one of them is set
	}
	if len(r.Rows) > 1 {
		row("total", r.Total)
	}
	return t.flush()
}
