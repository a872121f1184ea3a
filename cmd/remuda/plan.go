package main

import (
	"context"
	"flag"
	"fmt"
	"strings"

	"remuda/controller/api"
	"remuda/controller/modelfile"
)

var plan = question{
	synopsis: "Show what a change would do, without doing it",
	about: `Shows what the controller would do next if a model file were applied, models were scaled or
replicas were evicted, and why: which replicas would be started, stopped or moved to another
tier, and what would have to wait. Without arguments it shows what the controller is about to
do anyway. Nothing is changed. Later steps, such as those after a drain, are not included, and
Nomad does not check the file's jobs.`,
	args: []string{"[FILE|DIR]"},
	setup: func(fs *flag.FlagSet) answering {
		var scales []string
		fs.Func("scale", "assume `MODEL=REPLICAS` is scaled; may be repeated", func(s string) error {
			scales = append(scales, s)
			return nil
		})
		evictee := fs.String("evict", "", "assume this `REPLICA or MODEL` is evicted")
		to := fs.String("to", "", "with -evict, the target `tier`: warm or cold (default: stop the replica)")
		force := fs.Bool("force", false, "with -evict, also dedicated replicas, and below min")
		return func(ctx context.Context, c *asker, args []string) error {
			var r api.PlanRequest
			var err error
			if r.Scale, err = assignments("MODEL=REPLICAS", scales); err != nil {
				return err
			}
			if *evictee == "" && (*to != "" || *force) {
				return usagef("-to and -force need -evict")
			}
			if len(args) > 0 {
				source, _, err := modelfile.Load(args[0])
				if err != nil {
					return err
				}
				r.Files, r.Jobs = sourceFiles(source), source.Jobs
			}
			if *evictee != "" {
				e := api.EvictRequest{Force: *force}
				if e.To, err = evictTo(*to); err != nil {
					return err
				}
				if err := c.evictee(ctx, *evictee, &e); err != nil {
					return err
				}
				r.Evict = &e
			}
			p, err := c.Plan(ctx, r)
			if err != nil {
				return err
			}
			return c.print(p, func() error { c.showForesight(p); return nil })
		}
	},
}

func (c *asker) showForesight(p api.PlanResponse) {
	if len(p.Changes) == 0 {
		fmt.Fprintln(c.out, "No replicas would change.")
	} else {
		fmt.Fprintf(c.out, "%s would change:\n", plural(len(p.Changes), "replica"))
	}
	for _, change := range p.Changes {
		node := change.NodeName
		if node == "" {
			node = short(change.Node)
		}
		step := ""
		switch {
		case change.From == "":
			step = "new: " + change.To
		case change.To == "":
			step = "removed: " + change.From
		default:
			step = change.From + " -> " + change.To
		}
		if node != "" {
			step += ", on " + node
		}
		fmt.Fprintf(c.out, "\n%s\n%s\n", wrap("  ", change.Replica), wrap("    ", step))
		if change.Why != "" {
			fmt.Fprintln(c.out, wrap("    ", sentence(change.Why)))
		}
	}
	if len(p.Waits) > 0 {
		fmt.Fprintln(c.out, "\nWould wait:")
	}
	for _, w := range p.Waits {
		about := w.Model
		if w.Replica != "" {
			about = w.Replica
		}
		fmt.Fprintf(c.out, "\n%s\n%s\n", wrap("  ", about), wrap("    ", sentence(w.Why)))
	}
	shown := map[string]bool{}
	for _, change := range p.Changes {
		shown[change.Replica] = true
	}
	var others []api.Decision
	for _, d := range p.Decisions {
		waits := false
		for _, w := range p.Waits {
			waits = waits || w.Why == d.Reason
		}
		if !waits && !shown[d.Replica] {
			others = append(others, d)
		}
	}
	if len(others) > 0 {
		fmt.Fprintln(c.out, "\nOther decisions:")
	}
	for _, d := range others {
		fmt.Fprintf(c.out, "\n%s\n%s\n", wrap("  ", strings.TrimSpace(d.Kind+" "+aboutText(d))), wrap("    ", sentence(d.Reason)))
	}
	fmt.Fprintln(c.out, "\nPlan only: nothing was changed.")
}

// sentence ends a reason with a full stop.
func sentence(s string) string {
	if s = strings.TrimSpace(oneLine.Replace(s)); s == "" || strings.HasSuffix(s, ".") {
		return s
	}
	return s + "."
}
