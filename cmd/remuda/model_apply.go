package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"remuda/controller/api"
	"remuda/controller/modelfile"
	"remuda/controller/state"
	"remuda/jobs"
)

func (p *program) modelApplyVerb() verb {
	return p.apiVerb(apiCommand{
		synopsis: "Create or update models from files",
		about: `Reads model files, of a directory all files *.model.hcl, and their job files, lets Nomad check the
jobs, and applies all of it or nothing. A variant without a job file has the one that comes with
remuda for its engine. It shows what changed and watches until the
replicas run; -detach returns at once. A file without changes is not an error. Models that are
not in the files are not changed, unless -prune deletes those that are not in the directory.
With - in place of files, one model file is read from standard input; its job files are found from
the working directory.`,
		args: []string{"FILE|DIR|-..."},
		setup: func(fs *flag.FlagSet) runFunc {
			a := applying{stdin: p.stdin}
			fs.BoolVar(&a.dryRun, "dry-run", false, "check the files and show the changes without applying them")
			fs.BoolVar(&a.prune, "prune", false, "stop and delete the models that are not in DIR")
			a.watching.declare(fs, "the replicas run")
			return func(ctx context.Context, c *apiClient, args []string) error { return a.run(ctx, c, args) }
		},
	})
}

// applying are the options of model apply.
type applying struct {
	stdin         io.Reader
	dryRun, prune bool
	watching      watching
}

// load reads the models of files and directories.
func (a *applying) load(paths []string) (modelfile.Source, []state.Model, error) {
	path := paths[0]
	info, err := os.Stat(path)
	switch {
	case a.prune && len(paths) > 1:
		return modelfile.Source{}, nil, usagef("-prune is set, and there are %d arguments: give the directory that has all model files", len(paths))
	case a.prune && a.watching.detach:
		return modelfile.Source{}, nil, usagef("-prune waits until the replicas of deleted models have stopped: remove -detach")
	case a.prune && err == nil && !info.IsDir():
		return modelfile.Source{}, nil, usagef("-prune is set, and %s is a file: give the directory that has all model files", path)
	}
	if !slices.Contains(paths, "-") {
		return modelfile.Load(jobs.Files, paths...)
	}
	if len(paths) > 1 || a.prune {
		return modelfile.Source{}, nil, usagef("- stands for one model file on standard input: it goes with neither other files nor -prune")
	}
	text, err := io.ReadAll(a.stdin)
	if err != nil {
		return modelfile.Source{}, nil, fmt.Errorf("read the model file from standard input: %w", err)
	}
	return modelfile.Read([]modelfile.File{{Name: "standard-input", Text: string(text)}}, jobs.Files, modelfile.ReadJob)
}

// sourceFiles are the model files of a request.
func sourceFiles(s modelfile.Source) []api.SourceFile {
	var files []api.SourceFile
	for _, f := range s.Files {
		files = append(files, api.SourceFile(f))
	}
	return files
}

func (a *applying) run(ctx context.Context, c *apiClient, paths []string) error {
	source, models, err := a.load(paths)
	if err != nil {
		return err
	}
	applied, err := c.ApplyModels(ctx, api.ApplyRequest{Files: sourceFiles(source), Jobs: source.Jobs, DryRun: a.dryRun})
	if err != nil {
		return err
	}
	c.showChanges(applied)
	others, err := a.others(ctx, c, models)
	if err != nil {
		return err
	}
	for _, name := range others {
		c.printf("model %q is not in %s: it is deleted\n", name, paths[0])
	}
	switch {
	case a.dryRun:
		c.printf("Dry run: nothing was changed.\n")
		return c.print(applied, func() error { return nil })
	case applied.Index > 0:
		c.printf("Applied at index %d.\n", applied.Index)
	case len(others) == 0:
		c.printf("Nothing changed.\n")
	}
	for _, m := range applied.Models {
		if m.Unchanged || a.watching.detach {
			continue
		}
		c.printf("%s: waiting for %s.\n", m.Name, plural(m.Replicas, "replica"))
		if err := a.watching.follow(ctx, c, m.Name, settled); err != nil {
			return fmt.Errorf("model %s: %w", m.Name, err)
		}
		c.printf("%s: %s running.\n", m.Name, plural(m.Replicas, "replica"))
	}
	for _, name := range others {
		if err := c.deleteModel(ctx, name, &a.watching); err != nil {
			return fmt.Errorf("model %s: %w", name, err)
		}
	}
	return c.print(applied, func() error { return nil })
}

// others are the names of the models that -prune deletes.
func (a *applying) others(ctx context.Context, c *apiClient, models []state.Model) ([]string, error) {
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

// showChanges prints how files differ from the models that the controller had.
func (c *apiClient) showChanges(applied api.ApplyResponse) {
	for _, m := range applied.Models {
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
