// Command policystudy compares scaling policies on the traces in REMUDA_TRACES: see the
// package study. It goes on where it was cut off.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"remuda/tools/policystudy/policies"
	"remuda/tools/policystudy/scalesim"
	"remuda/tools/policystudy/study"
)

// options are the flags that are not fields of study.Config yet.
type options struct {
	traces, which, colds, policies string
	scale                          float64
	slots                          int
	report                         bool
}

func main() {
	c, o, err := flags(os.Args[1:])
	if err == nil {
		err = run(c, o, os.Stdout)
	}
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "policystudy:", err)
		os.Exit(1)
	}
}

func flags(args []string) (study.Config, options, error) {
	c := study.Config{Grid: policies.DefaultGrid(), Log: os.Stderr}
	var o options
	fs := flag.NewFlagSet("policystudy", flag.ContinueOnError)
	fs.StringVar(&o.traces, "traces", os.Getenv("REMUDA_TRACES"), "folder with the traces")
	fs.StringVar(&o.which, "trace", "azure,servegen", "which traces")
	fs.StringVar(&o.colds, "cold", "30,110,300", "cold starts in seconds")
	fs.DurationVar(&c.TargetWait, "target-wait", scalesim.DefaultConfig().TargetWait, "how long a request may wait and still count as started in time")
	fs.StringVar(&o.policies, "policies", strings.Join(policies.Names(), ","), "which policies")
	fs.Float64Var(&o.scale, "scale", 0.0125, "share of ServeGen's requests")
	fs.IntVar(&o.slots, "slots", 8, "slots of a replica with ServeGen")
	fs.BoolVar(&o.report, "report", false, "only report on what is in -dir")
	fs.StringVar(&c.Dir, "dir", "policy-study", "folder for results")
	fs.StringVar(&c.Part, "part", "", "name of this part, where several run at once")
	fs.IntVar(&c.FirstSeed, "first-seed", 1, "first seed that is scored")
	fs.IntVar(&c.Seeds, "seeds", 20, "how many seeds are scored")
	fs.IntVar(&c.TuneSeeds, "tune-seeds", 1, "how many seeds are tuned on")
	fs.IntVar(&c.Clairvoyant, "clairvoyant", 1, "seeds with a clairvoyant plan (54 runs each)")
	fs.BoolVar(&c.Bisect, "bisect", true, "halve the lines of the grid on the second half")
	fs.IntVar(&c.Around, "around", 1, "hindsight settings on each side of the goal")
	fs.IntVar(&c.Parallel, "parallel", 1, "runs at once")
	fs.Float64Var(&c.Goal, "goal", 0.999, "share of requests to start in time")
	if err := fs.Parse(args); err != nil {
		return c, o, err
	}
	if fs.NArg() > 0 {
		return c, o, fmt.Errorf("got the arguments %q: want flags only", fs.Args())
	}
	c.Policies = strings.Split(o.policies, ",")
	return c, o, nil
}

func run(c study.Config, o options, out io.Writer) error {
	for _, s := range strings.Split(o.colds, ",") {
		seconds, err := strconv.Atoi(s)
		if err != nil {
			return fmt.Errorf("-cold is %q: it must be whole seconds, separated by commas", o.colds)
		}
		c.Colds = append(c.Colds, time.Duration(seconds)*time.Second)
	}
	if !o.report {
		for _, name := range strings.Split(o.which, ",") {
			source, err := o.source(name)
			if err != nil {
				return err
			}
			c.Sources = append(c.Sources, source)
		}
		if err := study.Run(c); err != nil {
			return err
		}
	}
	text, err := study.Report(c.Dir, c.Goal, c.TuneSeeds)
	fmt.Fprint(out, text)
	return err
}

func (o *options) source(name string) (study.Source, error) {
	switch name {
	case "servegen":
		return study.ServeGen(o.traces, o.scale, o.slots)
	case "azure":
		return study.Azure(o.traces, 4)
	}
	return study.Source{}, fmt.Errorf("-trace is %q: it must be servegen or azure, or both", o.which)
}
