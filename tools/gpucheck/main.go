// Command gpu-check checks remuda on a machine with a GPU and measures failovers
// there. `make gpu-check` bundles it with the programs that it runs.
//
//  1. What NVML reports of the GPU agrees with the CUDA driver.
//  2. The conformance suite of the GPU memory service passes on the CUDA driver.
//  3. A failover pair shares its weights: the time from kill -9 of the active engine
//     to the first token of the other one.
//  4. For comparison, a new process loads the same weights from the page cache.
//
// The programs run as on a node and meet over sockets. No process and no file but the
// results is left at the end. With -backend host, no GPU is needed.
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
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(program(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// program returns the exit code: 0 if everything passed, 2 for wrong usage.
func program(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 5 && args[0] == loadVerb {
		return loadMain(args[1], args[2], args[3], args[4], stdout, stderr)
	}
	var cfg config
	fs := flag.NewFlagSet("gpu-check", flag.ContinueOnError)
	fs.SetOutput(stderr)
	cfg.flags(fs)
	err := fs.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case fs.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q: it takes flags only", fs.Arg(0))
	default:
		err = cfg.validate()
	}
	if err != nil {
		fmt.Fprintf(stderr, "gpu-check: %v\n", err)
		return 2
	}
	report, err := check(ctx, cfg, stderr)
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
