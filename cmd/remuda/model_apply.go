package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"

	"remuda/controller/api"
	"remuda/controller/modelfile"
)

func (p *program) modelApplyVerb() verb {
	return p.asking(question{
		synopsis: "Create or update models from a file",
		about: `Reads a model file and its job files, shows the changes against the controller's models, lets
Nomad check the jobs, and applies all of it or nothing. Then it watches until the replicas
run; -detach returns at once. A file without changes is not an error. Models that are not in
the file are not changed.`,
		args: []string{"FILE"},
		setup: func(fs *flag.FlagSet) answering {
			dryRun := fs.Bool("dry-run", false, "check the file and show the changes without applying them")
			var w watching
			w.declare(fs, "the replicas run")
			return func(ctx context.Context, c *asker, args []string) error {
				return applyModels(ctx, c, args[0], *dryRun, &w)
			}
		},
	})
}

func applyModels(ctx context.Context, c *asker, path string, dryRun bool, w *watching) error {
	models, err := modelfile.Load(path)
	if err != nil {
		return err
	}
	// The controller gets the job files inside the model file, and each model with its
	// defaults as this program knows them.
	var file strings.Builder
	for i, m := range models {
		if i > 0 {
			file.WriteByte('\n')
		}
		file.WriteString(modelfile.Format(m))
	}
	request := api.ApplyRequest{File: file.String(), Filename: path, DryRun: true}
	plan, err := c.ApplyModels(ctx, request)
	if err != nil {
		return err
	}
	c.showPlan(plan)
	changed := map[string]bool{}
	request.DryRun, request.CAS = false, map[string]uint64{}
	for _, m := range plan.Models {
		// What was shown is what happens, or nothing.
		request.CAS[m.Name] = m.ModifyIndex
		if m.New {
			request.CAS[m.Name] = 0
		}
		if !m.Unchanged {
			changed[m.Name] = true
		}
	}
	if dryRun || len(changed) == 0 {
		return c.print(plan, func() error {
			if dryRun {
				fmt.Fprintln(c.out, "Dry run: nothing was changed.")
			} else {
				fmt.Fprintln(c.out, "Nothing changed.")
			}
			return nil
		})
	}
	applied, err := c.ApplyModels(ctx, request)
	var refused *api.Error
	if errors.As(err, &refused) && refused.Code == api.CodeConflict {
		return fmt.Errorf("%w: the models have changed since the difference was shown: nothing was applied, apply the file again", err)
	}
	if err != nil {
		return err
	}
	c.printf("Applied at index %d.\n", applied.Index)
	for _, m := range applied.Models {
		if changed[m.Name] && !w.detach {
			c.printf("%s: waiting for %s.\n", m.Name, plural(m.Replicas, "replica"))
			if err := w.follow(ctx, c, m.Name, settled); err != nil {
				return fmt.Errorf("model %s: %w", m.Name, err)
			}
			c.printf("%s: %s running.\n", m.Name, plural(m.Replicas, "replica"))
		}
	}
	return c.print(applied, func() error { return nil })
}

// showPlan prints how the file differs from the models that the controller has.
func (c *asker) showPlan(plan api.ApplyResponse) {
	for _, m := range plan.Models {
		switch {
		case m.Unchanged:
			c.printf("model %q is unchanged\n", m.Name)
		case m.New:
			c.printf("model %q is new\n", m.Name)
		default:
			c.printf("model %q changes\n", m.Name)
		}
		for _, change := range m.Changes {
			c.printf("  %s\n", strings.ReplaceAll(change.Text, "\n", "\n  "))
		}
		for _, warning := range m.Warnings {
			c.printf("  warning: %s\n", strings.ReplaceAll(strings.TrimSpace(warning), "\n", "\n  "))
		}
	}
}
