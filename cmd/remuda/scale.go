package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"remuda/controller/api"
)

var scale = apiCommand{
	synopsis: "Change how many replicas a model has",
	about: `Sets the number of replicas of a model, or of one of its variants, within the model's min and
max. Then it watches until they run and surplus replicas have drained; -detach returns at
once. Names of models may contain slashes: in MODEL/VARIANT, the longest prefix that is a
model's name is the model.

With -pool, sets how many of the model's replicas should be in an external capacity pool. They
come from the controller's own pool, and go back there; the model's number of replicas rises if
it has too few.`,
	args: []string{"MODEL[/VARIANT]", "REPLICAS"},
	setup: func(fs *flag.FlagSet) runFunc {
		pool := fs.String("pool", "", "set REPLICAS for this external capacity `pool` only")
		var w watching
		w.declare(fs, "the replicas run")
		return func(ctx context.Context, c *apiClient, args []string) error {
			n, err := strconv.Atoi(args[1])
			if err != nil || n < 0 {
				return usagef("REPLICAS is %q: must be a whole number of 0 or more", args[1])
			}
			pooled := false
			fs.Visit(func(f *flag.Flag) { pooled = pooled || f.Name == "pool" })
			if pooled && (*pool == "" || *pool == ownPool) {
				return usagef("-pool is %q: must be the name of an external capacity pool; leave it out to scale the whole model", *pool)
			}
			models, _, err := c.Models(ctx, api.QueryOptions{})
			if err != nil {
				return err
			}
			model, variant, err := modelAndVariant(models, args[0])
			if err != nil {
				return err
			}
			if *pool != "" && variant != "" {
				return usagef("-pool is %q, but %s names a variant: use the model's name alone", *pool, args[0])
			}
			if *pool != "" {
				return c.scalePool(ctx, model, *pool, n, &w)
			}
			r, err := c.Scale(ctx, model, api.ScaleRequest{Replicas: n, Variant: variant, Origin: "operator"})
			if err != nil {
				return err
			}
			of := r.Model
			if r.Variant != "" {
				of += ", variant " + r.Variant
			}
			if m := models[slices.IndexFunc(models, func(m api.ModelSummary) bool { return m.Name == model })]; m.Stopped && r.Target == 0 {
				c.printf("%s is stopped: it will have %s after \"remuda model start %s\".\n", of, plural(n, "replica"), r.Model)
				return c.print(r, func() error { return nil })
			}
			word := "now"
			if !r.Changed {
				word = "already"
			}
			c.printf("%s: the target is %s %s.\n", of, word, plural(r.Target, "replica"))
			if r.Variant == "" && r.Target != n {
				c.printf("%s: %s asked for; see \"remuda model status %s\" for what keeps the target at %d.\n", of, plural(n, "replica"), r.Model, r.Target)
			}
			if err := w.follow(ctx, c, r.Model, scaled); err != nil {
				return err
			}
			return c.print(r, func() error { return nil })
		}
	},
}

// scalePool sets how many replicas of a model should be in a pool.
func (c *apiClient) scalePool(ctx context.Context, model, pool string, n int, w *watching) error {
	r, err := c.ScalePool(ctx, model, pool, api.ScalePoolRequest{Replicas: n})
	if err != nil {
		return err
	}
	word := "now"
	if !r.Changed {
		word = "already"
	}
	c.printf("%s: the target in pool %s is %s %s.\n", r.Model, r.Pool, word, plural(n, "replica"))
	there := func(s api.ModelStatus) (bool, error) {
		// Others may be there that were placed there for lack of room.
		serving := 0
		for _, r := range s.Replicas {
			if r.CapacityPool == pool && r.Status == "serving" {
				serving++
			}
		}
		done, err := scaled(s)
		return done && (serving >= n || s.Model.Stopped), err
	}
	if err := w.follow(ctx, c, r.Model, there); err != nil {
		return err
	}
	return c.print(r, func() error { return nil })
}

// modelAndVariant takes MODEL or MODEL/VARIANT apart. Both may have slashes in them;
// the longest model that exists is meant.
func modelAndVariant(models []api.ModelSummary, arg string) (model, variant string, err error) {
	known := map[string]api.ModelSummary{}
	for _, m := range models {
		known[m.Name] = m
	}
	for model = arg; ; {
		if m, ok := known[model]; ok {
			if variant == "" && model == arg {
				return model, "", nil
			}
			for _, v := range m.Variants {
				if v == variant {
					return model, variant, nil
				}
			}
			return "", "", fmt.Errorf("model %q has no variant %q: it has %s", model, variant, strings.Join(m.Variants, ", "))
		}
		i := strings.LastIndexByte(model, '/')
		if i < 0 {
			return "", "", fmt.Errorf("no model %q%s: see \"remuda model list\"", arg, didYouMean(arg, slices.Collect(maps.Keys(known))))
		}
		model, variant = arg[:i], arg[i+1:]
	}
}
