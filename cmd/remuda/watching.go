package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"time"

	"remuda/controller/api"
)

// watching follows a model after it was changed.
type watching struct {
	detach  bool
	timeout time.Duration
}

func (w *watching) declare(fs *flag.FlagSet, until string) {
	fs.BoolVar(&w.detach, "detach", false, "return at once instead of watching until "+until)
	// Weights of some hundred gigabytes load within it.
	fs.DurationVar(&w.timeout, "timeout", 30*time.Minute, "how long to watch, 0 for no limit; the change continues either way")
}

// goal reports whether a model is where it should be, and with an error that it will not
// get there.
type goal func(api.ModelStatus) (bool, error)

// settled: as many replicas as there should be serve, all of what their variants are
// now, and nothing else is on its way.
func settled(s api.ModelStatus) (bool, error) {
	for variant, r := range s.Model.Rollouts {
		if r.Status == "rolled_back" {
			return false, fmt.Errorf("variant %s was rolled back: %s", variant, dash(r.Reason))
		}
	}
	return scaled(s)
}

// scaled is settled, also after a rollback: the replicas are then of the stable version.
func scaled(s api.ModelStatus) (bool, error) {
	for _, r := range s.Model.Rollouts {
		if r.Status != "rolled_back" {
			return false, nil
		}
	}
	serving := 0
	for _, r := range s.Replicas {
		switch {
		case r.Status == "warm", r.Status == "cold": // at rest
		case r.Status == "serving" && r.Current:
			serving++
		default:
			return false, nil
		}
	}
	return serving == s.Model.Target, nil
}

// stopped: no replica holds anything any more.
func stopped(s api.ModelStatus) (bool, error) {
	for _, r := range s.Replicas {
		if r.Status != "cold" {
			return false, nil
		}
	}
	return true, nil
}

// follow prints the progress of a model until it reaches its goal.
func (w *watching) follow(ctx context.Context, c *apiClient, model string, there goal) error {
	if w.detach {
		return nil
	}
	parent := ctx
	if w.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, w.timeout)
		defer cancel()
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	progress := progressReport{c: c, replicas: map[string]string{}}
	var outcome error
	done := false
	query := func(ctx context.Context, q api.QueryOptions) (api.QueryMeta, error) {
		s, meta, err := c.Model(ctx, model, q)
		var refused *api.Error
		if errors.As(err, &refused) && refused.Status < 500 && refused.Status != 429 {
			done, outcome = true, err // Asking again would not help.
			end()
		}
		if err != nil {
			return meta, err
		}
		progress.report(s)
		if done, outcome = there(s); done || outcome != nil {
			done = true
			end()
		}
		return meta, nil
	}
	err := api.Watch(ctx, api.QueryOptions{}, query, func(err error) { progress.outage(err) })
	switch {
	case done:
		return outcome
	case parent.Err() != nil:
		return fmt.Errorf("interrupted: the change of %s continues, see \"remuda model status %s\"", model, model)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("not finished after %s: the change of %s continues, see \"remuda model status %s\". %s", w.timeout, model, model, progress.why)
	}
	return err
}

// progressReport prints what has changed in a model since its last report.
type progressReport struct {
	c           *apiClient
	replicas    map[string]string
	why         string
	unreachable bool
}

// name shortens the name of a replica.
func (p *progressReport) name(name string) string { return p.c.shortNames(nil)(name) }

func (p *progressReport) outage(err error) {
	if !p.unreachable {
		p.unreachable = true
		p.c.printf("  cannot reach the controller, retrying: %v\n", err)
	}
}

func (p *progressReport) report(s api.ModelStatus) {
	p.unreachable = false
	there, news := map[string]bool{}, false
	say := func(format string, args ...any) {
		news = true
		p.c.printf(format, args...)
	}
	for _, r := range s.Replicas {
		there[r.Name] = true
		line := statusText(r)
		if r.NodeName != "" {
			line += " on " + r.NodeName
		}
		if r.Canary {
			line += ", canary"
		}
		if r.LoadMemory > 0 {
			line += ", loads to become WARM"
		}
		if r.Status == "failed" && r.LastError != "" {
			line += ": " + r.LastError
		}
		if p.replicas[r.Name] != line {
			p.replicas[r.Name] = line
			say("  %s  %s\n", p.name(r.Name), line)
		}
	}
	for name := range p.replicas {
		if !there[name] {
			delete(p.replicas, name)
			say("  %s  gone\n", p.name(name))
		}
	}
	// The description is only of interest if no replica has changed.
	if why := strings.TrimSpace(s.StatusDescription); why != p.why && !news {
		p.c.printf("  %s\n", why)
	}
	p.why = strings.TrimSpace(s.StatusDescription)
}
