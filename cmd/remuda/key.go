package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"time"

	"remuda/controller/api"
)

func (p *program) keyVerbs() map[string]verb {
	return map[string]verb{
		"key create": p.apiVerb(keyCreate),
		"key update": p.apiVerb(keyUpdate),
		"key list":   p.apiVerb(keyList),
		"key status": p.apiVerb(keyStatus),
		"key rotate": p.apiVerb(keyRotate),
		"key delete": p.apiVerb(keyDelete),
	}
}

// keyFlags are the flags with the limits of a key.
type keyFlags struct {
	given           api.KeyLimits
	models, expires string
}

func (f *keyFlags) declare(fs *flag.FlagSet, created bool) {
	weight, priority, expires := 0.0, 0, ""
	if created {
		weight, priority, expires = 1, 5, "never"
	}
	fs.StringVar(&f.models, "models", "", "the `models` that it may call, separated by commas; \"llama*\" stands for all names that begin so, \"*\" for all models")
	fs.Float64Var(&f.given.Weight, "weight", weight, "its share of a model beside other keys, from 0.001 to 1000")
	fs.IntVar(&f.given.Priority, "priority", priority, "priority of its requests, from 0 to 9; higher goes first")
	fs.IntVar(&f.given.MaxPriority, "max-priority", priority, "highest priority that one of its requests may ask for")
	fs.Int64Var(&f.given.RequestsPerMinute, "rpm", 0, "requests per minute; 0: no limit")
	fs.Int64Var(&f.given.TokensPerMinute, "tpm", 0, "tokens of prompts and answers per minute; 0: no limit")
	fs.Int64Var(&f.given.Concurrency, "concurrency", 0, "requests at a time; 0: no limit")
	fs.Int64Var(&f.given.TokensPerDay, "tokens-per-day", 0, "budget of tokens of a day in UTC; 0: no budget")
	fs.Int64Var(&f.given.TokensPerMonth, "tokens-per-month", 0, "budget of tokens of a calendar month in UTC; 0: no budget")
	fs.StringVar(&f.expires, "expires", expires, "`when` it expires: after a time such as 30d or 12h, on a date such as 2027-01-31 (at 00:00 UTC), at a time such as 2027-01-31T18:00:00Z, or never")
}

// apply changes the limits that flags were given for, and returns whether there are any.
func (f *keyFlags) apply(fs *flag.FlagSet, l *api.KeyLimits) (changed bool, err error) {
	set := map[string]func(){
		"models":           func() { l.Models = parseModels(f.models) },
		"weight":           func() { l.Weight = f.given.Weight },
		"priority":         func() { l.Priority = f.given.Priority },
		"max-priority":     func() { l.MaxPriority = f.given.MaxPriority },
		"rpm":              func() { l.RequestsPerMinute = f.given.RequestsPerMinute },
		"tpm":              func() { l.TokensPerMinute = f.given.TokensPerMinute },
		"concurrency":      func() { l.Concurrency = f.given.Concurrency },
		"tokens-per-day":   func() { l.TokensPerDay = f.given.TokensPerDay },
		"tokens-per-month": func() { l.TokensPerMonth = f.given.TokensPerMonth },
		"expires":          func() { l.ExpiresAt, err = parseExpires(f.expires, now()) },
	}
	fs.Visit(func(one *flag.Flag) {
		if change := set[one.Name]; change != nil {
			change()
			changed = true
		}
	})
	return changed, err
}

// parseModels reads names of models, none for all of them.
func parseModels(text string) []string {
	var models []string
	for m := range strings.SplitSeq(text, ",") {
		if m = strings.TrimSpace(m); m != "" && m != "*" {
			models = append(models, m)
		}
	}
	return models
}

// parseExpires reads when a key expires, zero for never.
func parseExpires(text string, now time.Time) (time.Time, error) {
	if text == "never" {
		return time.Time{}, nil
	}
	for _, layout := range []string{time.DateOnly, time.RFC3339} {
		if t, err := time.Parse(layout, text); err == nil {
			return t.UTC(), nil
		}
	}
	if d, ok := parseDays(text); ok {
		return now.UTC().Add(time.Duration(d) * 24 * time.Hour).Truncate(time.Second), nil
	}
	if d, err := time.ParseDuration(text); err == nil && d > 0 {
		return now.UTC().Add(d).Truncate(time.Second), nil
	}
	return time.Time{}, usagef("-expires is %q: must be a time such as 30d or 12h, a date such as 2027-01-31, a time such as 2027-01-31T18:00:00Z, or never", text)
}

// parseDays reads a number of days, as "7d".
func parseDays(text string) (int, bool) {
	digits, ok := strings.CutSuffix(text, "d")
	n, err := strconv.Atoi(digits)
	const most = 36_500
	return n, ok && err == nil && n > 0 && n <= most
}

const aboutAnonymous = `
The key "` + api.KeyAnonymous + `" has no secret: its limits are those of all requests without a known key, together.`

var keyCreate = apiCommand{
	synopsis: "Create an API key for clients",
	about: `Creates an API key, and prints its secret: clients send it as "Authorization: Bearer SECRET" or "X-Api-Key: SECRET".
Only its hash is stored, so that it is shown only now. Gateways take it within a second.` + "\n" + aboutAnonymous,
	args: []string{"NAME"},
	setup: func(fs *flag.FlagSet) runFunc {
		var f keyFlags
		f.declare(fs, true)
		return func(ctx context.Context, c *apiClient, args []string) error {
			limits := api.KeyLimits{Weight: 1, Priority: 5, MaxPriority: 5}
			if _, err := f.apply(fs, &limits); err != nil {
				return err
			}
			r, err := c.SetKey(ctx, args[0], api.KeyRequest{KeyLimits: limits, CAS: new(uint64)})
			if err != nil {
				return err
			}
			return c.print(r, func() error {
				fmt.Fprintf(c.out, "Key %q created.\n", r.Key.Name)
				c.showSecret(r.Secret)
				return nil
			})
		}
	},
}

// showSecret prints a new secret, if there is one.
func (c *apiClient) showSecret(secret string) {
	if secret != "" {
		fmt.Fprintf(c.out, "Its secret, which is shown only now:\n\n%s\n", secret)
	}
}

var keyUpdate = apiCommand{
	synopsis: "Change the limits of a key",
	about: `Changes the limits that flags are given for; the others and the secrets stay. Gateways take the change
within a second, also for requests that wait.`,
	args: []string{"KEY"},
	setup: func(fs *flag.FlagSet) runFunc {
		var f keyFlags
		f.declare(fs, false)
		return func(ctx context.Context, c *apiClient, args []string) error {
			was, _, err := c.Key(ctx, args[0], api.QueryOptions{})
			if err != nil {
				return err
			}
			limits := was.KeyLimits
			changed, err := f.apply(fs, &limits)
			if err != nil {
				return err
			}
			if !changed {
				return usagef("no limit is given: set at least one flag, see \"remuda key update -h\"")
			}
			r, err := c.SetKey(ctx, args[0], api.KeyRequest{KeyLimits: limits, CAS: &was.ModifyIndex})
			if err != nil {
				return err
			}
			return c.print(r, func() error {
				if r.Changed {
					fmt.Fprintf(c.out, "Key %q updated.\n", r.Key.Name)
				} else {
					fmt.Fprintln(c.out, "Nothing changed.")
				}
				return nil
			})
		}
	},
}

var keyList = apiCommand{
	synopsis: "List the API keys of clients",
	about:    `Lists the keys with their limits. "remuda usage" shows what they have used.`,
	show: func(ctx context.Context, c *apiClient, _ []string, q api.QueryOptions) (api.QueryMeta, error) {
		all, meta, err := c.Keys(ctx, q)
		if err != nil {
			return meta, err
		}
		return meta, c.print(list(all), func() error {
			if len(all) == 0 {
				fmt.Fprintln(c.out, "No keys. Add one with \"remuda key create NAME\".")
				return nil
			}
			t := c.table("NAME", "WEIGHT", "PRIORITY", "+MAX", "REQUESTS/MIN", "TOKENS/MIN", "+CONCURRENCY", "+TOKENS/DAY", "+TOKENS/MONTH", "+SECRETS", "EXPIRES", "MODELS")
			for _, k := range all {
				t.row(k.Name, k.Weight, k.Priority, k.MaxPriority, noLimit(k.RequestsPerMinute), noLimit(k.TokensPerMinute), noLimit(k.Concurrency),
					noLimit(k.TokensPerDay), noLimit(k.TokensPerMonth), len(k.Secrets), c.expiresOn(k.ExpiresAt), modelsText(k.Models))
			}
			return t.flush()
		})
	},
}

func modelsText(models []string) string { return cmp.Or(strings.Join(models, ","), "*") }

// noLimit writes a limit, and a dash for none.
func noLimit(n int64) string {
	if n == 0 {
		return "-"
	}
	return strconv.FormatInt(n, 10)
}

// expiresOn writes on which day something expires, with -verbose when exactly.
func (c *apiClient) expiresOn(t time.Time) string {
	switch {
	case t.IsZero() || c.verbose:
		return expiresText(t)
	case !now().Before(t):
		return "expired"
	}
	return t.Local().Format(time.DateOnly)
}

// expiresText writes when something expires, with a note if that is past.
func expiresText(t time.Time) string {
	switch {
	case t.IsZero():
		return "never"
	case !now().Before(t):
		return clock(t) + " (expired)"
	}
	return clock(t)
}

var keyStatus = apiCommand{
	synopsis: "Show a key, its secrets and what it has used",
	about: `Shows the limits of a key, its secrets by their first characters, and the tokens that it has used today
and this month, in UTC, beside its budgets. Usage is a few seconds behind.`,
	args: []string{"KEY"},
	show: func(ctx context.Context, c *apiClient, args []string, q api.QueryOptions) (api.QueryMeta, error) {
		k, meta, err := c.Key(ctx, args[0], q)
		if err != nil {
			return meta, err
		}
		return meta, c.print(k, func() error { return c.showKey(k) })
	},
}

func (c *apiClient) showKey(k api.KeyStatus) error {
	f := c.fields()
	f.set("Name", k.Name)
	f.set("Models", modelsText(k.Models))
	f.set("Weight", k.Weight)
	f.set("Priority", fmt.Sprintf("%d, at most %d", k.Priority, k.MaxPriority))
	for _, limit := range []struct {
		name string
		n    int64
	}{{"Requests per minute", k.RequestsPerMinute}, {"Tokens per minute", k.TokensPerMinute}, {"Concurrency", k.Concurrency}} {
		if limit.n == 0 {
			f.set(limit.name, "no limit")
		} else {
			f.set(limit.name, limit.n)
		}
	}
	f.set("Tokens today", budgetText(k.Used.Today, k.TokensPerDay))
	f.set("Tokens this month", budgetText(k.Used.ThisMonth, k.TokensPerMonth))
	f.set("Created", clock(k.CreatedAt))
	f.set("Expires", expiresText(k.ExpiresAt))
	if err := f.flush(); err != nil {
		return err
	}
	if len(k.Secrets) == 0 {
		return nil
	}
	fmt.Fprintln(c.out, "\nSecrets")
	t := c.table("BEGINS WITH", "CREATED", "EXPIRES")
	for _, s := range k.Secrets {
		t.row(s.Prefix, clock(s.CreatedAt), expiresText(s.ExpiresAt))
	}
	return t.flush()
}

// budgetText writes what was used of a budget, as "120 of 1000 (12%)".
func budgetText(used, budget int64) string {
	if budget == 0 {
		return fmt.Sprintf("%d, no budget", used)
	}
	return fmt.Sprintf("%d of %d (%.0f%%)", used, budget, 100*float64(used)/float64(budget))
}

var keyRotate = apiCommand{
	synopsis: "Make a new secret for a key",
	about: `Makes a new secret for a key and prints it. The secrets before stay valid for the grace time, so that
clients have the time to change.`,
	args: []string{"KEY"},
	setup: func(fs *flag.FlagSet) runFunc {
		grace := fs.Duration("grace", 24*time.Hour, "how long the secrets before stay valid; 0s: not at all")
		return func(ctx context.Context, c *apiClient, args []string) error {
			if *grace < 0 || *grace > api.MaxKeyGrace {
				return usagef("-grace is %s: must be 0s to %s", *grace, api.MaxKeyGrace)
			}
			r, err := c.RotateKey(ctx, args[0], api.RotateKeyRequest{Grace: api.Duration(*grace)})
			if err != nil {
				return err
			}
			return c.print(r, func() error {
				fmt.Fprintf(c.out, "Key %q has a new secret.", r.Key.Name)
				if len(r.Key.Secrets) > 1 {
					fmt.Fprintf(c.out, " The one before is valid until %s.", clock(r.Key.Secrets[1].ExpiresAt))
				}
				fmt.Fprintln(c.out)
				c.showSecret(r.Secret)
				return nil
			})
		}
	},
}

var keyDelete = apiCommand{
	synopsis: "Delete a key",
	about: `Deletes a key: gateways reject its secrets within a second, or treat them as unknown ones where keys are not
required. Requests in progress finish. Its usage is kept.`,
	args: []string{"KEY"},
	run: func(ctx context.Context, c *apiClient, args []string) error {
		if err := c.DeleteKey(ctx, args[0], nil); err != nil {
			return err
		}
		return c.done("Deleted key %q.\n", args[0])
	},
}
