package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"

	"remuda/autoscaler-plugin/hpa"
)

func (p *program) hpaReplayVerb() verb {
	return verb{
		synopsis: "Replay recommendations through the HPA strategy",
		usage:    "[flags] FILE|-",
		anywhere: true,
		about: `
Reads a history of raw recommendations ("-" is standard input) and prints the replica count of
the remuda-hpa strategy at each step as JSON: {"replicas":[7,7]}. It contacts no server.
Example:

  {"behavior": {
     "scale_up":   {"stabilization_window_seconds": 0, "select_policy": "Max",
                    "policies": [{"type": "Pods", "value": 4, "period_seconds": 15}]},
     "scale_down": {"stabilization_window_seconds": 300, "select_policy": "Max",
                    "policies": [{"type": "Percent", "value": 100, "period_seconds": 15}]}},
   "min_replicas": 1, "max_replicas": 20, "initial_replicas": 3,
   "steps": [{"t": 0, "desired": 7}, {"t": 15, "desired": 7}]}

t is in seconds. The count before a step is the previous result, or the step's "current" if
something else scaled in between. Missing fields of behavior get Kubernetes' defaults;
max_gap_seconds and from_zero are allowed in it, as in a policy. Several objects in one file
give one result each.

Exit codes: 0 success, 1 unreadable file or invalid field, 2 wrong usage.`,
		setup: func(fs *flag.FlagSet) func(context.Context, []string) error {
			asJSON := fs.Bool("json", false, "print JSON (the default without -explain)")
			explain := fs.Bool("explain", false, "print each step with its limit and reason; with -json, as \"decisions\" beside \"replicas\"")
			return func(_ context.Context, args []string) error {
				if len(args) != 1 {
					return usagef("expected one FILE, or - for standard input, got %d arguments", len(args))
				}
				scenarios, err := p.readScenarios(args[0])
				if err != nil {
					return err
				}
				for i := range scenarios {
					if *explain && !*asJSON {
						if i > 0 {
							fmt.Fprintln(p.stdout)
						}
						err = explainReplay(p.stdout, &scenarios[i])
					} else {
						err = printReplay(p.stdout, &scenarios[i], *explain)
					}
					if err != nil {
						return fmt.Errorf("print the result: %w", err)
					}
				}
				return nil
			}
		},
	}
}

// readScenarios reads a file, or standard input for "-".
func (p *program) readScenarios(path string) ([]hpa.Scenario, error) {
	name, in := path, p.stdin
	if path == "-" {
		name = "standard input"
	} else {
		f, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("read the scenario: %w", err)
		}
		defer f.Close()
		in = f
	}
	scenarios, err := hpa.Decode(in)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return scenarios, nil
}

// printReplay writes one line of JSON.
func printReplay(out io.Writer, s *hpa.Scenario, explain bool) error {
	answer := struct {
		hpa.Replayed
		Decisions []hpa.Decision `json:"decisions,omitempty"`
	}{Replayed: s.Run()}
	if explain {
		answer.Decisions = s.Decisions()
	}
	return json.NewEncoder(out).Encode(answer)
}

// explainReplay writes a table of the steps.
func explainReplay(out io.Writer, s *hpa.Scenario) error {
	t := newTable(out, "T", "CURRENT", "DESIRED", "STABILIZED", "REPLICAS", "LIMITED BY", "REASON")
	for i, d := range s.Decisions() {
		at := strconv.FormatFloat(s.Steps[i].T.Seconds(), 'f', -1, 64)
		t.row(at, d.Current, d.Desired, d.Stabilized, d.Replicas, string(d.LimitedBy), d.Reason)
	}
	return t.flush()
}
