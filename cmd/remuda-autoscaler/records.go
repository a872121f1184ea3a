package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"remuda/autoscaler-plugin/plugin"
)

// records is "replay FILE", which makes each decision in a decisions file again and prints
// those that differ, and "input FILE", which prints the inputs of the capacity analyzer for
// `remuda capacity explain`. "-" is standard input. Exit codes: 0 all are the same, 1 some
// differ or a line is unreadable (it is reported and skipped), 2 wrong usage. Decisions whose
// state is in a file that was rotated away are counted. They change the exit code only if no
// decision could be made again.
func records(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) == 2 && (args[1] == "-h" || args[1] == "-help" || args[1] == "--help") {
		fmt.Fprint(stderr, install)
		return 0
	}
	if len(args) != 2 {
		fmt.Fprintf(stderr, "remuda-autoscaler: %s needs exactly one FILE, or - for standard input\n", args[0])
		return 2
	}
	in := stdin
	if args[1] != "-" {
		f, err := os.Open(args[1])
		if err != nil {
			fmt.Fprintf(stderr, "remuda-autoscaler: read decisions: %v\n", err)
			return 1
		}
		defer f.Close()
		in = f
	}
	same, different, without, broken := 0, 0, 0, 0
	var replayer plugin.Replayer
	out := json.NewEncoder(stdout)
	for r, err := range plugin.Records(in) {
		if errors.Is(err, plugin.ErrBrokenLine) {
			fmt.Fprintf(stderr, "remuda-autoscaler: %s: %v\n", args[1], err)
			broken++
			continue
		}
		if err == nil && args[0] == "input" && r.Call.Options.Capacity != nil {
			err = out.Encode(r.Call.CapacityInput())
		}
		if err != nil {
			fmt.Fprintf(stderr, "remuda-autoscaler: %s: %v\n", args[1], err)
			return 1
		}
		if args[0] == "input" {
			continue
		}
		switch err := replayer.Replay(&r); {
		case errors.Is(err, plugin.ErrNoState):
			without++
		case err != nil:
			different++
			fmt.Fprintln(stderr, err)
		default:
			same++
		}
	}
	if args[0] == "replay" {
		fmt.Fprintf(stdout, "%d decisions are the same, %d differ\n", same, different)
		if without > 0 {
			fmt.Fprintf(stdout, "%d more start from a state in an earlier file: replay both files, the older one first: cat FILE.1 FILE | remuda-autoscaler replay -\n", without)
		}
	}
	if different > 0 || broken > 0 || without > 0 && same == 0 {
		return 1
	}
	return 0
}
