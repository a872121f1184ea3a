// Command policystudy compares scaling policies on traces: see the package study. It goes on
// where it was cut off. Its subcommand judge answers a judge's ticks with decisions of
// remuda-predictive: see the package judge.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"remuda/autoscaler-plugin/predictive"
	"remuda/tools/policystudy/judge"
	"remuda/tools/policystudy/policies"
	"remuda/tools/policystudy/study"
)

func main() {
	var err error
	if len(os.Args) == 2 && os.Args[1] == "judge" {
		err = judge.Run(predictive.DefaultConfig(), os.Stdin, os.Stdout)
	} else {
		err = run(os.Args[1:], os.Stdout, os.Stderr)
	}
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "policystudy:", err)
		os.Exit(1)
	}
}

// durations is a flag of durations, separated by commas.
type durations []time.Duration

// String implements flag.Value.
func (d *durations) String() string { return strings.Trim(fmt.Sprint([]time.Duration(*d)), "[]") }

// Set implements flag.Value.
func (d *durations) Set(text string) error {
	*d = nil
	for _, s := range strings.Split(text, ",") {
		v, err := time.ParseDuration(s)
		if err != nil {
			return err
		}
		*d = append(*d, v)
	}
	return nil
}

func run(args []string, out, log io.Writer) error {
	c := study.Config{Grid: policies.DefaultGrid(), Log: log}
	var (
		colds  = durations{time.Second, 110 * time.Second, 300 * time.Second}
		waits  = durations{time.Second, 2 * time.Second, 5 * time.Second}
		bounds = durations{2 * time.Second}
	)
	fs := flag.NewFlagSet("policystudy", flag.ContinueOnError)
	fs.SetOutput(log)
	which := fs.String("trace", "diurnal", "which traces: synthetic ones ("+strings.Join(names(), ", ")+"), logs of requests (.csv), ServeGen's clients (.tar.gz)")
	phase := fs.String("phase", "train", "train (first half only), test (second half, with what training chose), report, or profile (what remuda-predictive spends on the second half)")
	chosen := fs.String("policies", strings.Join(policies.Names(), ","), "which policies")
	scale := fs.Float64("scale", 0.0125, "share of ServeGen's requests")
	half := fs.Duration("half", 7*24*time.Hour, "how much of ServeGen is the first half; the second is as long")
	slots := fs.Int("slots", 8, "slots of a replica with a CSV file")
	fs.Var(&colds, "cold", "times from a replica's start until it serves; 1s is a WARM replica")
	fs.Var(&waits, "target-wait", "how long a request may wait and still count as started in time")
	fs.Var(&bounds, "bounds", "target waits with a clairvoyant plan and a lower bound")
	fs.Float64Var(&c.Goal, "goal", 0.999, "share of requests to start in time")
	fs.DurationVar(&c.DataAge, "data-age", 5*time.Second, "how old the metrics are when a decision is carried out")
	fs.Float64Var(&c.BatchSlope, "batch-slope", 0.5, "by how much a full batch slows a request down")
	fs.StringVar(&c.Dir, "dir", "policy-study", "folder for results")
	fs.IntVar(&c.Parallel, "parallel", 2, "runs at once")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("got the arguments %q: want flags only", fs.Args())
	}
	c.Colds, c.Waits, c.Bounds, c.Phase, c.Policies = colds, waits, bounds, study.Phase(*phase), strings.Split(*chosen, ",")
	if *phase == "report" {
		text, err := study.Report(c.Dir, c.Waits, c.Goal)
		fmt.Fprint(out, text)
		return err
	}
	for _, name := range strings.Split(*which, ",") {
		synthetic, ok := study.Synthetic()[name]
		switch {
		case ok:
			c.Sources = append(c.Sources, synthetic)
		case strings.HasSuffix(name, ".tar.gz"):
			if !(*scale > 0 && *scale <= 1) {
				return fmt.Errorf("-scale is %v: it must be above 0 and at most 1", *scale)
			}
			c.Sources = append(c.Sources, study.ServeGen(name, *scale, *half))
		case strings.HasSuffix(name, ".csv"):
			c.Sources = append(c.Sources, study.CSV(name, *slots))
		default:
			return fmt.Errorf("-trace is %q: it must be one of %v, or a file that ends in .csv or .tar.gz", name, names())
		}
	}
	if *phase == "profile" {
		return study.Profile(c, out)
	}
	return study.Run(c)
}

func names() []string {
	var out []string
	for _, name := range []string{"diurnal", "bursts", "steps", "flash", "drift", "on-off"} {
		if _, ok := study.Synthetic()[name]; ok {
			out = append(out, name)
		}
	}
	return out
}
