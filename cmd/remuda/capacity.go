package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"remuda/autoscaler-plugin/capacity"
)

// capacityExplainVerb is "remuda capacity explain".
func (p *program) capacityExplainVerb() verb {
	return verb{
		synopsis: "Explain a decision of the capacity analyzer",
		usage:    "FILE|- [flags]",
		about: `Reads what the capacity analyzer sees of a model ("-" is standard input), and prints its
decision with the reason. It contacts no server and changes nothing, so a decision recorded
with its input can be replayed. Several objects in one file give one result each, in order.

  {"model": "llama-70b", "namespace": "prod",
   "config": {"kv_cache_threshold": 0.8, "queue_length_threshold": 5, "kv_spare_trigger": 0.1, "queue_spare_trigger": 3},
   "replicas": [{"replica": "v1-0", "variant": "v1", "accelerator": "A100", "cost": 20,
                 "kv_cache_usage": 0.7, "queue_length": 2}],
   "variants": [{"variant": "v1", "current": 1, "desired": 0}],
   "model_based_targets": {"v1": 5}}

namespace, config and model_based_targets are optional, and so are a replica's metrics. A
replica may also have kv_capacity, age_seconds and draining, and a variant cost, min, max,
pending, draining and unplaceable.

-rules wva accepts what the autoscaler's own analyzer accepts, such as a spare trigger above its
threshold. The result lists each value that -rules safe rejects, and how the analyzer reads it.`,
		anywhere: true,
		setup: func(fs *flag.FlagSet) func(context.Context, []string) error {
			name := fs.String("rules", capacity.Safe.String(), "`RULES`: safe, or wva for the unchanged rules of the workload variant autoscaler")
			asJSON := fs.Bool("json", false, "print JSON, one result per line")
			return func(ctx context.Context, args []string) error {
				rules, err := capacity.ParseRules(*name)
				if err != nil {
					return usagef("-%v", err)
				}
				if err := checkArgs([]string{"FILE"}, args); err != nil {
					return err
				}
				in := p.stdin
				if args[0] != "-" {
					f, err := os.Open(args[0])
					if err != nil {
						return fmt.Errorf("read the input: %w", err)
					}
					defer f.Close()
					in = f
				}
				return explainCapacity(ctx, p.stdout, in, rules, *asJSON)
			}
		},
	}
}

func explainCapacity(ctx context.Context, out io.Writer, text io.Reader, rules capacity.Rules, asJSON bool) error {
	answers := 0
	lines := json.NewEncoder(out)
	lines.SetEscapeHTML(false)
	for in, err := range capacity.Decode(rules, text) {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("read the input: %w", err)
		}
		answer, err := capacity.Explain(rules, in)
		if err != nil {
			return err
		}
		answers++
		switch {
		case asJSON:
			err = lines.Encode(answer)
		default:
			if answers > 1 {
				fmt.Fprintln(out)
			}
			err = showCapacity(out, rules, &in, &answer)
		}
		if err != nil {
			return err
		}
	}
	if answers == 0 {
		return errors.New("read the input: empty: must be a JSON object for each model")
	}
	return nil
}

// showCapacity prints an answer for people.
func showCapacity(out io.Writer, rules capacity.Rules, in *capacity.Input, a *capacity.Answer) error {
	f := newFields(out)
	f.set("Model", in.Model)
	f.setIf("Namespace", in.Namespace)
	f.set("Rules", rules)
	f.set("Replicas", fmt.Sprintf("%d reported, %d not saturated%s", a.TotalReplicas, a.NonSaturated, unknownReplicas(a.UnknownReplicas)))
	if !a.AvgSpareKV.IsZero() {
		f.set("Spare KV cache", fmt.Sprintf("%.3f", a.AvgSpareKV.Or(0)))
	}
	if !a.AvgSpareQueue.IsZero() {
		f.set("Spare queue", fmt.Sprintf("%.1f", a.AvgSpareQueue.Or(0)))
	}
	f.set("Needs more", because(a.ScaleUp, a.ScaleUpReason))
	f.set("May shrink", because(a.ScaleDownSafe, a.ScaleDownHold))
	if err := f.flush(); err != nil {
		return err
	}
	var names []string
	for name := range a.Decisions {
		names = append(names, name)
	}
	slices.Sort(names)
	fmt.Fprintln(out, "\nVariants")
	t := newTable(out, "VARIANT", "CURRENT", "CAPACITY", "MODEL-BASED", "TARGET", "ACTION", "OVERRIDE")
	for _, name := range names {
		d := a.Decisions[name]
		t.row(name, d.Current, countOrDash(a.CapacityTargets, name), countOrDash(in.ModelBasedTargets, name), d.Target, d.Action, yes(d.SafetyOverride))
	}
	if err := t.flush(); err != nil {
		return err
	}
	for _, name := range names {
		fmt.Fprintf(out, "\n%s\n%s\n", wrap("", name), wrap("  ", sentence(a.Decisions[name].Reason)))
	}
	if len(a.Notes) > 0 {
		fmt.Fprintln(out, "\nValues that the rules safe reject")
		for _, n := range a.Notes {
			fmt.Fprintln(out, wrap("  ", sentence(n.Field+" "+n.Problem+". Here "+n.Effect)))
		}
	}
	odd := slices.DeleteFunc(slices.Clone(a.Replicas), func(r capacity.Finding) bool { return r.Reason == "" })
	if len(odd) == 0 {
		return nil
	}
	fmt.Fprintln(out, "\nReplicas not ok")
	t = newTable(out, "VARIANT", "REPLICA", "STATUS", "WHY")
	for _, r := range odd {
		t.row(r.Variant, r.Replica, r.Class, r.Reason)
	}
	return t.flush()
}

func unknownReplicas(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(", load of %s unknown", plural(n, "replica"))
}

// because is yes or no, with the reason where there is one.
func because(b bool, reason string) string {
	return strings.TrimSuffix(yes(b)+": "+reason, ": ")
}

func countOrDash(counts map[string]int, name string) string {
	if n, ok := counts[name]; ok {
		return fmt.Sprint(n)
	}
	return ""
}
