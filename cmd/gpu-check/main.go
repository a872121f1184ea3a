// Command gpu-check checks remuda on a machine with a real GPU. `make gpu-check`
// bundles it with the programs that it runs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"remuda/internal/gpucheck"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) == 2 && args[0] == gpucheck.ClientVerb {
		if err := gpucheck.Client(ctx, args[1], stdin, stdout); err != nil {
			fmt.Fprintf(stderr, "gpu-check: %v\n", err)
			return 1
		}
		return 0
	}
	cfg := gpucheck.DefaultConfig()
	fs := flag.NewFlagSet("gpu-check", flag.ContinueOnError)
	fs.SetOutput(stderr)
	cfg.Flags(fs)
	switch err := fs.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case fs.NArg() > 0:
		fmt.Fprintf(stderr, "gpu-check: unexpected argument %q: it takes flags only\n", fs.Arg(0))
		return 2
	}
	report, err := gpucheck.Run(ctx, cfg, stderr)
	if err != nil {
		fmt.Fprintf(stderr, "gpu-check: %v\n", err)
		return 1
	}
	fmt.Fprint(stdout, report.Markdown())
	if !report.OK() {
		return 1
	}
	return 0
}
