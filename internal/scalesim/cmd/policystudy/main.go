// Command policystudy compares scaling policies on the traces in REMUDA_TRACES: see the
// package study. It goes on where it was cut off.
package main

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"remuda/internal/scalesim/policies"
	"remuda/internal/scalesim/study"
)

// options are the flags that are not fields of study.Config yet.
type options struct {
	traces, which, colds, policies string
	scale                          float64
	slots                          int
	report                         bool
}

func main() {
	c, o := flags()
	if err := run(c, o); err != nil {
		fmt.Fprintln(os.Stderr, "policystudy:", err)
		os.Exit(1)
	}
}

func flags() (study.Config, options) {
	c := study.Config{Grid: policies.DefaultGrid(), Log: os.Stderr}
	var o options
	flag.StringVar(&o.traces, "traces", os.Getenv("REMUDA_TRACES"), "folder with the traces")
	flag.StringVar(&o.which, "trace", "azure,servegen", "which traces")
	flag.StringVar(&o.colds, "cold", "30,110,300", "cold starts in seconds")
	flag.StringVar(&o.policies, "policies", strings.Join(policies.Names(), ","), "which policies")
	flag.Float64Var(&o.scale, "scale", 0.0125, "share of ServeGen's requests")
	flag.IntVar(&o.slots, "slots", 8, "slots of a replica with ServeGen")
	flag.BoolVar(&o.report, "report", false, "only report on what is in -dir")
	flag.StringVar(&c.Dir, "dir", "policy-study", "folder for results")
	flag.StringVar(&c.Part, "part", "", "name of this part, where several run at once")
	flag.IntVar(&c.FirstSeed, "first-seed", 1, "first seed that is scored")
	flag.IntVar(&c.Seeds, "seeds", 20, "how many seeds are scored")
	flag.IntVar(&c.TuneSeeds, "tune-seeds", 1, "how many seeds are tuned on")
	flag.IntVar(&c.Clairvoyant, "clairvoyant", 1, "seeds with a clairvoyant plan (54 runs each)")
	flag.BoolVar(&c.Bisect, "bisect", true, "halve the lines of the grid on the second half")
	flag.IntVar(&c.Around, "around", 1, "hindsight settings on each side of the goal")
	flag.IntVar(&c.Parallel, "parallel", 1, "runs at once")
	flag.Float64Var(&c.Goal, "goal", 0.999, "share of requests to start in time")
	flag.Parse()
	c.Policies = strings.Split(o.policies, ",")
	return c, o
}

func run(c study.Config, o options) error {
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
	fmt.Print(text)
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
