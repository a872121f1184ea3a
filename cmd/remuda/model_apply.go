package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"

	"remuda/controller/api"
	"remuda/controller/modelfile"
	"remuda/controller/state"
)

func (p *program) modelApplyVerb() verb {
	return p.asking(question{
		synopsis: "Create or update models from files",
		about: `Reads a model file, or all files *.model.hcl of a directory, and their job files, shows the
changes against the controller's models, lets Nomad check the jobs, and applies all of it or
nothing. Then it watches until the replicas run; -detach returns at once. A file without
changes is not an error. Models that are not in the files are not changed, unless -prune
deletes those that are not in the directory.`,
		args: []string{"FILE|DIR"},
		setup: func(fs *flag.FlagSet) answering {
			var a applying
			fs.BoolVar(&a.dryRun, "dry-run", false, "check the files and show the changes without applying them")
			fs.BoolVar(&a.prune, "prune", false, "stop and delete the models that are not in DIR")
			a.watching.declare(fs, "the replicas run")
			return func(ctx context.Context, c *asker, args []string) error { return a.run(ctx, c, args[0]) }
		},
	})
}

// applying are the options of model apply.
type applying struct {
	dryRun, prune bool
	watching      watching
}

// load reads the models of a file or a directory.
func (a *applying) load(path string) ([]state.Model, error) {
	info, err := os.Stat(path)
	isDir := err == nil && info.IsDir() // Load says what is wrong
	switch {
	case a.prune && a.watching.detach:
		return nil, usagef("-prune waits until the replicas of deleted models have stopped: remove -detach")
	case a.prune && err == nil && !isDir:
		return nil, usagef("-prune is set, and %s is a file: give the directory that has all model files", path)
	case isDir:
		return modelfile.LoadDir(path)
	}
	return modelfile.Load(path)
}

func (a *applying) run(ctx context.Context, c *asker, path string) error {
	models, err := a.load(path)
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
	others, err := a.others(ctx, c, models)
	if err != nil {
		return err
	}
	for _, name := range others {
		c.printf("model %q is not in %s: it is deleted\n", name, path)
	}
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
	applied := plan
	switch {
	case a.dryRun:
		c.printf("Dry run: nothing was changed.\n")
		return c.print(plan, func() error { return nil })
	case len(changed) > 0:
		if applied, err = a.apply(ctx, c, request, changed); err != nil {
			return err
		}
	case len(others) == 0:
		c.printf("Nothing changed.\n")
	}
	for _, name := range others {
		if err := c.deleteModel(ctx, name, &a.watching); err != nil {
			return fmt.Errorf("model %s: %w", name, err)
		}
	}
	return c.print(applied, func() error { return nil })
}

// apply makes the request, and watches the models that it changes.
func (a *applying) apply(ctx context.Context, c *asker, request api.ApplyRequest, changed map[string]bool) (api.ApplyResponse, error) {
	applied, err := c.ApplyModels(ctx, request)
	var refused *api.Error
	if errors.As(err, &refused) && refused.Code == api.CodeConflict {
		return applied, fmt.Errorf("%w: the models have changed since the difference was shown: nothing was applied, apply the file again", err)
	}
	if err != nil {
		return applied, err
	}
	c.printf("Applied at index %d.\n", applied.Index)
	for _, m := range applied.Models {
		if changed[m.Name] && !a.watching.detach {
			c.printf("%s: waiting for %s.\n", m.Name, plural(m.Replicas, "replica"))
			if err := a.watching.follow(ctx, c, m.Name, settled); err != nil {
				return applied, fmt.Errorf("model %s: %w", m.Name, err)
			}
			c.printf("%s: %s running.\n", m.Name, plural(m.Replicas, "replica"))
		}
	}
	return applied, nil
}

// others are the names of the models that -prune deletes.
func (a *applying) others(ctx context.Context, c *asker, models []state.Model) ([]string, error) {
	if !a.prune {
		return nil, nil
	}
	all, _, err := c.Models(ctx, api.QueryOptions{})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, m := range all {
		if !slices.ContainsFunc(models, func(own state.Model) bool { return own.Name == m.Name }) {
			names = append(names, m.Name)
		}
	}
	return names, nil
}

// deleteModel stops a model, waits until its replicas have stopped, and deletes it.
func (c *asker) deleteModel(ctx context.Context, name string, w *watching) error {
	r, err := c.StopModel(ctx, name)
	if err != nil {
		return err
	}
	c.printf("%s is stopping.\n", r.Model)
	if err := w.follow(ctx, c, name, stopped); err != nil {
		return err
	}
	if err := c.DeleteModel(ctx, name, 0); err != nil {
		return err
	}
	c.printf("%s is deleted.\n", name)
	return nil
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
