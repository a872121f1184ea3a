package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"remuda/controller/api"
	"remuda/internal/bytesize"
)

func (p *program) modelVerbs() map[string]verb {
	return map[string]verb{
		"model apply":   p.modelApplyVerb(),
		"model list":    p.apiVerb(modelList),
		"model status":  p.apiVerb(modelStatus),
		"model init":    p.modelInitVerb(),
		"model render":  p.modelRenderVerb(),
		"model history": p.apiVerb(modelHistory),
		"model revert":  p.apiVerb(modelRevert),
		"model file":    p.apiVerb(modelFile),
		"model stop":    p.apiVerb(modelStop),
		"model start":   p.apiVerb(modelStart),
		"model delete":  p.apiVerb(modelDelete),
	}
}

var modelList = apiCommand{
	synopsis: "List the models",
	about:    `Lists the models with their status and replicas: serving, target, and in between.`,
	show: func(ctx context.Context, c *apiClient, _ []string, q api.QueryOptions) (api.QueryMeta, error) {
		models, meta, err := c.Models(ctx, q)
		if err != nil {
			return meta, err
		}
		return meta, c.print(list(models), func() error {
			if len(models) == 0 {
				fmt.Fprintln(c.out, "No models. Add one with \"remuda model apply FILE\".")
				return nil
			}
			t := c.table("NAME", "STATUS", "HOT", "TARGET", "WARM", "STARTING", "+LEAVING", "+FAILED", "+MIN", "+MAX", "+MANAGEMENT", "+VARIANTS")
			for _, m := range models {
				t.row(m.Name, summaryStatus(m), m.Counts.Hot, m.Target, m.Counts.Warm, m.Counts.Starting, m.Counts.Leaving, m.Counts.Failed, m.Min, m.Max, m.Management, strings.Join(m.Variants, ","))
			}
			return t.flush()
		})
	},
}

// summaryStatus is one word for what a model is at.
func summaryStatus(m api.ModelSummary) string {
	switch {
	case m.Stopped:
		return "stopped"
	case slices.ContainsFunc(values(m.Rollouts), func(s string) bool { return s == "canary" || s == "rolling" }):
		return "rolling"
	case slices.Contains(values(m.Rollouts), "rolled_back"):
		return "rolled-back"
	case m.Counts.Failed > 0:
		return "failing"
	case m.Counts.Hot < m.Target && m.Counts.Starting == 0 && m.Unplaceable != "":
		return "cannot-place"
	case m.Counts.Hot < m.Target:
		return "starting"
	case m.Target == 0:
		return "idle"
	}
	return "running"
}

func values[K comparable, V any](m map[K]V) []V {
	var all []V
	for _, v := range m {
		all = append(all, v)
	}
	return all
}

var modelStatus = apiCommand{
	synopsis: "Show a model, its replicas and its status",
	about: `Shows the target of a model, its variants, rollouts and replicas, and the latest decisions
with their reasons.`,
	args: []string{"MODEL"},
	show: func(ctx context.Context, c *apiClient, args []string, q api.QueryOptions) (api.QueryMeta, error) {
		s, meta, err := c.Model(ctx, args[0], q)
		if err != nil {
			return meta, err
		}
		return meta, c.print(s, func() error { return c.showModel(s) })
	},
}

// desiredText is a model's scale, as "3: 2 of h100, 1 in pool east; the target is 1 (cap)".
func desiredText(m api.Model) string {
	var shares []string
	for _, s := range m.Desired {
		text := fmt.Sprint(s.Replicas)
		if s.Variant != "" {
			text += " of " + s.Variant
		}
		if s.Pool != "" {
			text += " in pool " + s.Pool
		}
		shares = append(shares, text)
	}
	out := plural(m.Replicas, "replica")
	if text := strings.Join(shares, ", "); text != fmt.Sprint(m.Replicas) && text != "" {
		out += ": " + text
	}
	switch m.Bound {
	case "", "stopped":
		return out
	case "displaced":
		return out + "; " + displacedText(m.Displaced)
	case "cap":
		return fmt.Sprintf("%s; capped at %d by switch cap-max-replicas", out, m.Target)
	case "dedicated":
		return fmt.Sprintf("%s; kept at %d by the dedicated set", out, m.Target)
	}
	return fmt.Sprintf("%s; kept at %d by %s in the model file", out, m.Target, m.Bound)
}

// displacedText describes how many displaced replicas come back, and when.
func displacedText(d api.Displaced) string {
	sum := func(shares []api.Share) (n int) {
		for _, s := range shares {
			n += s.Replicas
		}
		return n
	}
	var parts []string
	if n := sum(d.UntilRoom); n > 0 {
		parts = append(parts, fmt.Sprintf("%d not now, until there is room", n))
	}
	if n := sum(d.UntilAsked); n > 0 {
		parts = append(parts, fmt.Sprintf("%d not now, until clients wait", n))
	}
	return strings.Join(parts, ", ")
}

func (c *apiClient) showModel(s api.ModelStatus) error {
	m, at := s.Model, now()
	f := c.fields()
	f.set("Name", m.Name)
	f.set("Replicas", fmt.Sprintf("%d of %d hot, %d warm, min %d, max %d", s.Counts.Hot, m.Target, s.Counts.Warm, m.Min, m.Max))
	f.set("Requests", requestsText(s.Queue, at))
	if m.Stopped {
		f.set("Stopped", "yes (start it with \"remuda model start\")")
	}
	f.set("Desired", desiredText(m))
	if m.Version != 0 {
		version := fmt.Sprint(m.Version)
		if m.StableVersion != m.Version {
			version += fmt.Sprintf(", rolling out; stable is %d", m.StableVersion)
		}
		f.set("Version", version)
	}
	f.set("Management", m.Management)
	f.set("Priority", m.Priority)
	f.set("Failover pair", yes(m.Failover))
	switch {
	case m.Dedicated:
		f.set("Dedicated", "yes, by its file")
	case m.DedicatedNow:
		f.set("Dedicated", "yes, by the dedicated set (\"remuda dedicated status\")")
	default:
		f.set("Dedicated", "no")
	}
	if m.KeepWarm > 0 {
		f.set("Kept warm", fmt.Sprintf("%d of %s", min(s.Counts.Warm, m.KeepWarm), plural(m.KeepWarm, "replica")))
	}
	if m.Surge == 0 || m.MinAvailable < m.Target {
		f.set("Rollouts", fmt.Sprintf("surge %d, %d of %d replicas keep serving", m.Surge, m.MinAvailable, m.Target))
	}
	if m.IdleWarm != 0 || m.IdleCold != 0 {
		f.set("Idle", fmt.Sprintf("warm after %s, cold after %s", never(m.IdleWarm), never(m.IdleCold)))
	}
	if m.Continuation {
		f.set("Continuation", "yes: a broken stream goes on at another engine")
	}
	if m.Scaling != nil {
		f.set("Scaling", m.Scaling.Strategy)
	}
	f.set("Why", s.StatusDescription)
	if err := f.flush(); err != nil {
		return err
	}
	fmt.Fprintln(c.out, "\nVariants")
	t := c.table("NAME", "HOT", "WARM", "ENGINE", "GPUS", "GPU", "GPU MEMORY", "+WEIGHTS", "SLOTS", "+COST", "+HASH")
	for _, v := range m.Variants {
		n := s.VariantCounts[v.Name]
		t.row(v.Name, n.Hot, n.Warm, v.Engine, gpusText(v), v.GPUModel, bytesize.Text(v.Memory), sizeDash(v.Weights), zeroDash(v.Slots), v.Cost, short(v.Hash))
	}
	if err := t.flush(); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(s.VariantStarts)) {
		fmt.Fprintf(c.out, "%s: %s\n", name, startText(s.VariantStarts[name]))
	}
	for _, name := range slices.Sorted(maps.Keys(s.Unplaceable)) {
		fmt.Fprintf(c.out, "No room for another replica of %s: %s\n", name, s.Unplaceable[name])
	}
	if len(m.Rollouts) > 0 {
		fmt.Fprintln(c.out, "\nRollouts")
		t := c.table("VARIANT", "STATUS", "VERSION", "STABLE", "SINCE", "REASON")
		for _, v := range m.Variants {
			if r, ok := m.Rollouts[v.Name]; ok {
				t.row(v.Name, r.Status, r.Version, m.StableVersion, age(r.Since, at), r.Reason)
			}
		}
		if err := t.flush(); err != nil {
			return err
		}
	}
	if len(s.Replicas) > 0 {
		fmt.Fprintln(c.out, "\nReplicas")
		if err := c.replicaTable(s.Replicas); err != nil {
			return err
		}
	}
	if len(s.Decisions) > 0 {
		fmt.Fprintln(c.out, "\nDecisions, newest first (details: \"remuda decision list\")")
		return c.decisionTable(s.Decisions, at)
	}
	return nil
}

// startText says how long starts take.
func startText(s api.Start) string {
	var parts []string
	if s.Cold > 0 {
		parts = append(parts, "a start takes about "+about(s.Cold))
	}
	if s.Warm > 0 {
		parts = append(parts, "a wake takes about "+about(s.Warm))
	}
	return strings.Join(parts, ", ")
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func never(d api.Duration) string {
	if d == 0 {
		return "never"
	}
	return d.String()
}

// gpusText is how many GPUs an engine uses, and of how many where it may choose.
func gpusText(v api.Variant) string {
	if v.Reach > v.GPUs {
		return fmt.Sprintf("%d of %d", v.GPUs, v.Reach)
	}
	return fmt.Sprint(v.GPUs)
}

func sizeDash(n int64) string {
	if n == 0 {
		return "-"
	}
	return bytesize.Text(n)
}

func zeroDash(n int) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

// short returns the beginning of a hash or an ID, enough to distinguish it from others.
func short(id string) string { return id[:min(len(id), 8)] }

// shortID is short, but not with -verbose.
func (c *apiClient) shortID(id string) string {
	if c.verbose {
		return id
	}
	return short(id)
}

var modelFile = apiCommand{
	synopsis: "Print the model file that was applied",
	about: `Prints the model's part of the model file as it was applied, comments included. A file in which
only comments changed is not a new version, so that the older comments are printed. With
-variant it prints the job file of that variant instead.`,
	args: []string{"MODEL"},
	raw:  true,
	setup: func(fs *flag.FlagSet) runFunc {
		version := fs.Int("version", 0, "print version `N`, see \"remuda model history\"; 0 for the current one")
		variant := fs.String("variant", "", "print the job file of this `variant`")
		return func(ctx context.Context, c *apiClient, args []string) error {
			if *version < 0 {
				return usagef("-version is %d: must be 0 or more", *version)
			}
			file, _, err := c.ModelFile(ctx, args[0], *version, *variant, api.QueryOptions{})
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(c.out, file)
			return err
		}
	},
}

var modelStop = apiCommand{
	synopsis: "Stop a model: its replicas drain and stop",
	about: `Drains and stops the model's replicas. The model stays known: "remuda model start" starts it again,
and "remuda model delete" removes it.`,
	args: []string{"MODEL"},
	setup: func(fs *flag.FlagSet) runFunc {
		var w watching
		w.declare(fs, "the replicas have stopped")
		return func(ctx context.Context, c *apiClient, args []string) error {
			r, err := c.stopModel(ctx, args[0], &w)
			if err != nil {
				return err
			}
			return c.print(r, func() error { return nil })
		}
	},
}

// stopModel stops a model and watches until its replicas have stopped.
func (c *apiClient) stopModel(ctx context.Context, name string, w *watching) (api.ScaleResponse, error) {
	r, err := c.StopModel(ctx, name)
	if err != nil {
		return r, err
	}
	c.printf("%s is stopping.\n", r.Model)
	return r, w.follow(ctx, c, r.Model, stopped)
}

var modelDelete = apiCommand{
	synopsis: "Delete a model: its replicas drain and stop, and it is forgotten",
	about: `Drains and stops the model's replicas, waits until they have stopped, and deletes the model with its
versions. What it has used stays in "remuda usage". Until then requests for it are refused as those for a
stopped model. If the waiting is ended, the model is stopped and not deleted: run it again.`,
	args: []string{"MODEL"},
	setup: func(fs *flag.FlagSet) runFunc {
		var w watching
		fs.DurationVar(&w.timeout, "timeout", 30*time.Minute, "how long to wait until the replicas have stopped, 0 for no limit")
		return func(ctx context.Context, c *apiClient, args []string) error {
			return c.deleteModel(ctx, args[0], &w)
		}
	},
}

// deleteModel stops a model, waits until its replicas have stopped, and deletes it.
func (c *apiClient) deleteModel(ctx context.Context, name string, w *watching) error {
	r, err := c.stopModel(ctx, name, w)
	if err != nil {
		return err
	}
	if err := c.DeleteModel(ctx, r.Model, nil); err != nil {
		return err
	}
	c.printf("%s is deleted.\n", r.Model)
	return nil
}

var modelStart = apiCommand{
	synopsis: "Start a stopped model",
	about:    `Starts a stopped model with the number of replicas it had before.`,
	args:     []string{"MODEL"},
	setup: func(fs *flag.FlagSet) runFunc {
		var w watching
		w.declare(fs, "the replicas run")
		return func(ctx context.Context, c *apiClient, args []string) error {
			r, err := c.StartModel(ctx, args[0])
			if err != nil {
				return err
			}
			if r.Target == 0 {
				c.printf("%s is started with a target of 0 replicas: scale it up with \"remuda scale %s N\".\n", r.Model, r.Model)
			} else {
				c.printf("%s is starting: the target is %s.\n", r.Model, plural(r.Target, "replica"))
			}
			if err := w.follow(ctx, c, r.Model, scaled); err != nil {
				return err
			}
			return c.print(r, func() error { return nil })
		}
	},
}
