// Command remuda-autoscaler is the nomad-autoscaler plugin of the suite: strategies, target
// and APM. nomad-autoscaler starts it from its plugin_dir, once for each plugin block, and
// the block's args say as what.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/hashicorp/go-hclog"

	"remuda/internal/version"
)

func main() { os.Exit(run(os.Args, os.Stdin, os.Stdout, os.Stderr)) }

func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("remuda-autoscaler", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() { fmt.Fprint(stderr, install) }
	showVersion := fs.Bool("version", false, "print the version and exit")
	if err := fs.Parse(args[1:]); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	switch {
	case *showVersion:
		fmt.Fprintln(stdout, version.Long())
		return 0
	case fs.Arg(0) == "replay" || fs.Arg(0) == "input":
		return records(fs.Args(), stdin, stdout, stderr)
	}
	// go-plugin reads JSON logs from stderr and nomad-autoscaler filters them by its own level.
	logger := hclog.New(&hclog.LoggerOptions{Level: hclog.Trace, JSONFormat: true, Output: stderr})
	// nomad-autoscaler compares the name with the block's driver, which is the file's name.
	p, err := face(filepath.Base(args[0]), fs.Args(), logger)
	if err != nil {
		fmt.Fprintf(stderr, "remuda-autoscaler: %v\n", err)
		return 2
	}
	if !underAutoscaler() {
		fmt.Fprint(stderr, install)
		return 1
	}
	serve(p, logger)
	return 0
}
