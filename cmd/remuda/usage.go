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
	setupShow: func(fs *flag.FlagSet) showFunc {
		u := api.UsageQuery{}
		by := fs.String("by", api.UsageByKey, "add up by `what`: "+strings.Join(usageBy, ", "))
		since := fs.String("since", "7d", "of how many `days` until today, from 1d to 92d")
		fs.StringVar(&u.Key, "key", "", "only the usage of this `key`")
		fs.StringVar(&u.Model, "model", "", "only the usage of this `model`")
		return func(ctx context.Context, c *apiClient, _ []string, q api.QueryOptions) (api.QueryMeta, error) {
			if u.By = *by; !slices.Contains(usageBy, u.By) {
				return api.QueryMeta{}, usagef("-by is %q: must be one of %s", *by, strings.Join(usageBy, ", "))
			}
			var ok bool
			if u.Days, ok = parseDays(*since); !ok || u.Days > api.UsageDays {
				return api.QueryMeta{}, usagef("-since is %q: must be a number of days from 1d to %dd", *since, api.UsageDays)
			}
			r, meta, err := c.Usage(ctx, u, q)
			if err != nil {
				return meta, err
			}
			r.Rows = list(r.Rows)
			return meta, c.print(r, func() error { return c.showUsage(r, u.By) })
		}
	},
}

func (c *apiClient) showUsage(r api.UsageReport, by string) error {
	if len(r.Rows) == 0 {
		fmt.Fprintf(c.out, "No usage from %s to %s.\n", r.Since, r.Until)
		return nil
	}
	t := c.table(strings.ToUpper(by), "REQUESTS", "PROMPT", "CACHED", "ANSWER", "TOKENS", "ESTIMATED")
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
