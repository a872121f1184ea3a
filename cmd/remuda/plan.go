package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"time"

	"remuda/controller/api"
	"remuda/controller/modelfile"
	"remuda/internal/bytesize"
	"remuda/jobs"
)

var plan = apiCommand{
	synopsis: "Show what a change would do, without doing it",
	about: `Shows what the controller would do if a model file were applied, models were scaled or
replicas were evicted, step by step, with estimated times and reasons: which replicas would be
started, stopped or moved to another tier, and what would still wait in the end. Without
arguments it shows what the controller is about to do anyway. Nothing is changed.

The steps are those of the controller's own planner on a copy of its state. They assume that
loading takes what the configured rates say, that the traffic stays as it is and that nothing
fails; the assumptions are printed. Nomad does not check the file's jobs.

Of each model that is named or would change, it shows the standbys that there would be in the
end: the second engines of failover pairs and the WARM replicas, with the seats, the GPU memory
and the host memory that each takes, and how long it would take until it serves.`,
	args: []string{"[FILE|DIR]"},
	setup: func(fs *flag.FlagSet) runFunc {
		var scales []string
		fs.Func("scale", "assume `MODEL=REPLICAS` is scaled; may be repeated", func(s string) error {
			scales = append(scales, s)
			return nil
		})
		evictTarget := fs.String("evict", "", "assume this `REPLICA or MODEL` is evicted")
		to := fs.String("to", "", "with -evict, the target `tier`: warm or cold (default: stop the replica)")
		force := fs.Bool("force", false, "with -evict, also dedicated replicas, and below min")
		return func(ctx context.Context, c *apiClient, args []string) error {
			var r api.PlanRequest
			var err error
			if r.Scale, err = assignments("MODEL=REPLICAS", scales); err != nil {
				return err
			}
			if *evictTarget == "" && (*to != "" || *force) {
				return usagef("-to and -force need -evict")
			}
			if len(args) > 0 {
				source, _, err := modelfile.Load(jobs.Files, args[0])
				if err != nil {
					return err
				}
				r.Files, r.Jobs = sourceFiles(source), source.Jobs
			}
			if *evictTarget != "" {
				e := api.EvictRequest{Force: *force}
				if e.To, err = evictTo(*to); err != nil {
					return err
				}
				if err := c.evictTarget(ctx, *evictTarget, &e); err != nil {
					return err
				}
				r.Evict = &e
			}
			p, err := c.Plan(ctx, r)
			if err != nil {
				return err
			}
			return c.print(p, func() error { c.showPlan(p); return nil })
		}
	},
}

func (c *apiClient) showPlan(p api.PlanResponse) {
	if len(p.Steps) == 0 {
		fmt.Fprintln(c.out, "Nothing would change.")
	} else {
		fmt.Fprintf(c.out, "%s:\n", planTitle(p))
	}
	var at api.Duration
	for i, s := range p.Steps {
		switch {
		case i == 0 && s.After == 0:
			fmt.Fprintln(c.out, "\nAt once:")
		case at == 0 && s.After > 0:
			fmt.Fprintf(c.out, "\nIn about %s:\n", about(s.After))
		case s.After > at:
			fmt.Fprintf(c.out, "\nIn about %s, %s later:\n", about(s.After), about(s.After-at))
		}
		at = s.After
		fmt.Fprintf(c.out, "\n%s\n%s\n", wrap("  ", s.Replica), wrap("    ", stepText(s)))
		if s.Reason != "" {
			fmt.Fprintln(c.out, wrap("    ", sentence(s.Reason)))
		}
	}
	if p.Unfinished != "" {
		fmt.Fprintf(c.out, "\n%s\n", wrap("", sentence("The steps end here: "+p.Unfinished)))
	}
	if len(p.Waits) > 0 {
		fmt.Fprintln(c.out, "\nWould still wait:")
	}
	for _, w := range p.Waits {
		name := w.Model
		if w.Replica != "" {
			name = w.Replica
		}
		fmt.Fprintf(c.out, "\n%s\n%s\n", wrap("  ", name), wrap("    ", sentence(w.Reason)))
	}
	var others []api.Decision // of models
	for _, d := range p.Decisions {
		waits := slices.ContainsFunc(p.Waits, func(w api.PlannedWait) bool { return w.Reason == d.Reason })
		if d.Replica == "" && !waits {
			others = append(others, d)
		}
	}
	if len(others) > 0 {
		fmt.Fprintln(c.out, "\nOther decisions on the way:")
	}
	for _, d := range others {
		fmt.Fprintf(c.out, "\n%s\n%s\n", wrap("  ", strings.TrimSpace(d.Kind+" "+aboutText(d))), wrap("    ", sentence(d.Reason)))
	}
	c.showStandbys(p.Standbys)
	if len(p.Steps) > 0 {
		fmt.Fprintln(c.out, "\nAssumed:")
		for _, a := range p.Assumptions {
			fmt.Fprintln(c.out, wrap("  ", a.Text))
		}
	}
	fmt.Fprintln(c.out, "\nPlan only: nothing was changed.")
}

// showStandbys prints what each standby costs.
func (c *apiClient) showStandbys(standbys []api.PlannedStandby) {
	if len(standbys) == 0 {
		return
	}
	fmt.Fprintln(c.out, "\nStandbys, and what each costs:")
	guessed := false
	for _, s := range standbys {
		fmt.Fprintf(c.out, "\n%s\n%s\n", wrap("  ", s.Replica), wrap("    ", standbyText(s)))
		guessed = guessed || s.Kind == standbyPair && !s.Measured && s.Takes < s.Cold
	}
	if guessed {
		fmt.Fprintln(c.out, "\n"+wrap("  ", "A second engine with -standby cold keeps no GPU memory, and takes as long as a cold start."))
	}
}

// standbyPair is the kind of a pair's second engine.
const standbyPair = "pair"

// standbyText is a standby and its cost in a line.
func standbyText(s api.PlannedStandby) string {
	what, does := "WARM", "wakes"
	if s.Kind == standbyPair {
		what, does = "second engine", "takes over"
	}
	memory := "GPU memory not known before its first sleep"
	if s.GPUMemory > 0 {
		memory = bytesize.Text(s.GPUMemory) + " of its GPU"
		if s.GPUs > 1 {
			memory = fmt.Sprintf("%s of each of its %d GPUs", bytesize.Text(s.GPUMemory), s.GPUs)
		}
	}
	if s.HostMemory > 0 {
		memory += ", " + bytesize.Text(s.HostMemory) + " of host memory"
	}
	how := "by the configured rates"
	if s.Measured {
		how = "as measured"
	}
	return fmt.Sprintf("%s, on %s: %s, %s; %s in about %s, %s (a cold start: %s).", what, cmp.Or(s.NodeName, short(s.Node)),
		plural(s.Seats, "seat"), memory, does, about(s.Takes), how, about(s.Cold))
}

// planTitle counts the replicas that change, and how long that takes.
func planTitle(p api.PlanResponse) string {
	replicas := map[string]bool{}
	for _, s := range p.Steps {
		replicas[s.Replica] = true
	}
	last := p.Steps[len(p.Steps)-1].After
	title := fmt.Sprintf("%s would change, in %s", plural(len(replicas), "replica"), plural(len(p.Steps), "step"))
	if last > 0 {
		title += " within about " + about(last)
	}
	return title
}

// about rounds an estimate for display.
func about(d api.Duration) string {
	t := time.Duration(d)
	switch {
	case t < 100*time.Millisecond:
		return t.Round(time.Millisecond).String()
	case t < 10*time.Second:
		return t.Round(100 * time.Millisecond).String()
	}
	return t.Round(time.Second).String()
}

// stepText is a step in a line.
func stepText(s api.PlannedStep) string {
	node := s.NodeName
	if node == "" {
		node = short(s.Node)
	}
	text := s.From + " -> " + s.To
	switch {
	case s.From == "":
		text = "new: " + s.To
	case s.To == "":
		text = s.From + " -> removed"
	}
	if node != "" {
		text += ", on " + node
	}
	return text
}

// sentence ends a reason with a full stop.
func sentence(s string) string {
	if s = strings.TrimSpace(oneLine.Replace(s)); s == "" || strings.HasSuffix(s, ".") {
		return s
	}
	return s + "."
}
