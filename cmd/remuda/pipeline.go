package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"remuda/controller/api"
	"remuda/controller/pipeline"
)

func (p *program) pipelineVerbs() map[string]verb {
	return map[string]verb{
		"pipeline apply":  p.pipelineApplyVerb(),
		"pipeline list":   p.apiVerb(pipelineList),
		"pipeline status": p.apiVerb(pipelineStatus),
		"pipeline delete": p.apiVerb(pipelineDelete),
	}
}

func (p *program) pipelineApplyVerb() verb {
	return p.apiVerb(apiCommand{
		synopsis: "Create or update a pipeline from a file",
		about: `Reads a file ("-" is standard input) with one pipeline, checks it and applies it. A pipeline
is a graph of steps that call models. Clients call it like a model. Example:

  pipeline "support" {
    deadline = "60s"

    step "classify" {
      model      = "small"
      prompt     = "Billing or technical? ${input.text}"
      max_tokens = 5
    }
    step "billing" {
      model  = "billing-llm"
      when   = strcontains(lower(step.classify.text), "billing")
      prompt = input.text
    }
    step "tech" {
      model    = "tech-llm"
      when     = !strcontains(lower(step.classify.text), "billing")
      messages = input.messages
    }
    output = coalesce(step.billing, step.tech)
  }

Steps that do not depend on each other run at the same time. A step with for_each, a list,
runs once for each value, available as each.value, and its result is a list:
join("\n", step.ideas[*].text). Requests in progress finish with the previous definition.`,
		args: []string{"FILE"},
		setup: func(fs *flag.FlagSet) runFunc {
			dryRun := fs.Bool("dry-run", false, "check the file without applying it")
			return func(ctx context.Context, c *apiClient, args []string) error {
				return c.applyPipeline(ctx, args[0], p.stdin, *dryRun)
			}
		},
	})
}

func (c *apiClient) applyPipeline(ctx context.Context, path string, stdin io.Reader, dryRun bool) error {
	name, in := path, stdin
	if path == "-" {
		name = "standard input"
	} else {
		f, err := os.Open(path)
		if err != nil {
			return fmt.Errorf("read the pipeline: %w", err)
		}
		defer f.Close()
		in = f
	}
	raw, err := io.ReadAll(io.LimitReader(in, pipeline.MaxSource+1))
	if err != nil {
		return fmt.Errorf("read the pipeline: %w", err)
	}
	// Report its errors even without a controller.
	parsed, err := pipeline.Parse(name, raw)
	if err != nil {
		return err
	}
	if dryRun {
		return c.done("Pipeline %q is valid. Dry run: nothing was changed.\n", parsed.Name)
	}
	r, err := c.ApplyPipeline(ctx, parsed.Name, api.PipelineRequest{File: string(raw), Filename: name})
	if err != nil {
		return err
	}
	return c.print(r, func() error {
		switch {
		case r.New:
			fmt.Fprintf(c.out, "Pipeline %q created.\n", parsed.Name)
		case r.Changed:
			fmt.Fprintf(c.out, "Pipeline %q updated.\n", parsed.Name)
		default:
			fmt.Fprintln(c.out, "Nothing changed.")
		}
		c.missing(r.Pipeline)
		return nil
	})
}

// missing warns of models that a pipeline calls and that do not exist.
func (c *apiClient) missing(p api.Pipeline) {
	if len(p.Missing) > 0 {
		fmt.Fprintf(c.out, "Warning: steps fail until these models exist: %s.\n", strings.Join(p.Missing, ", "))
	}
}

var pipelineList = apiCommand{
	synopsis: "List the pipelines",
	about:    `Lists the pipelines with the models that their steps call.`,
	show: func(ctx context.Context, c *apiClient, _ []string, q api.QueryOptions) (api.QueryMeta, error) {
		all, meta, err := c.Pipelines(ctx, q)
		if err != nil {
			return meta, err
		}
		return meta, c.print(list(all), func() error {
			if len(all) == 0 {
				fmt.Fprintln(c.out, "No pipelines. Add one with \"remuda pipeline apply FILE\".")
				return nil
			}
			t := c.table("NAME", "MODELS", "MISSING MODELS", "INDEX")
			for _, p := range all {
				t.row(p.Name, strings.Join(p.Models, ","), strings.Join(p.Missing, ","), p.ModifyIndex)
			}
			return t.flush()
		})
	},
}

var pipelineStatus = apiCommand{
	synopsis: "Show a pipeline, its steps and its file",
	about:    `Shows the pipeline's steps with their dependencies, and the file as it was applied.`,
	args:     []string{"PIPELINE"},
	show: func(ctx context.Context, c *apiClient, args []string, q api.QueryOptions) (api.QueryMeta, error) {
		p, meta, err := c.Pipeline(ctx, args[0], q)
		if err != nil {
			return meta, err
		}
		return meta, c.print(p, func() error { return c.showPipeline(p) })
	},
}

func (c *apiClient) showPipeline(p api.Pipeline) error {
	f := c.fields()
	f.set("Name", p.Name)
	f.set("Models", strings.Join(p.Models, ", "))
	f.setIf("Missing", strings.Join(p.Missing, ", "))
	f.set("Changed at", fmt.Sprintf("index %d", p.ModifyIndex))
	parsed, err := pipeline.Parse(p.Name, []byte(p.Source))
	if err != nil { // a controller of another version took it
		f.set("Fault", err)
		return f.flush()
	}
	f.set("Deadline", parsed.Deadline)
	f.set("Output", cmp.Or(strings.Join(parsed.Outputs(), ", or "), "computed"))
	if err := f.flush(); err != nil {
		return err
	}
	fmt.Fprintln(c.out, "\nSteps")
	t := c.table("NAME", "MODEL", "MODEL EXISTS", "AFTER", "RUNS")
	for _, s := range parsed.Steps {
		runs := "once"
		if s.FanOut {
			runs = fmt.Sprintf("for each, %d at once", s.Parallel)
		}
		t.row(s.Name, s.Model, yes(!slices.Contains(p.Missing, s.Model)), strings.Join(s.After, ","), runs)
	}
	if err := t.flush(); err != nil {
		return err
	}
	_, err = fmt.Fprintf(c.out, "\nFile\n%s", p.Source)
	return err
}

var pipelineDelete = apiCommand{
	synopsis: "Delete a pipeline",
	about:    `Deletes the pipeline. Requests in progress finish; the models are not changed.`,
	args:     []string{"PIPELINE"},
	run: func(ctx context.Context, c *apiClient, args []string) error {
		if err := c.DeletePipeline(ctx, args[0], nil); err != nil {
			return err
		}
		return c.done("Deleted pipeline %q.\n", args[0])
	},
}
