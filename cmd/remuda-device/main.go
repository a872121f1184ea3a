// Command remuda-device is the Nomad device plugin of the suite. Nomad starts
// it from its plugin_dir; it does nothing when run by hand.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/hashicorp/go-hclog"

	deviceplugin "remuda/device-plugin"
	"remuda/device-plugin/nvml/worker"
	"remuda/internal/version"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet(deviceplugin.Name, flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() { fmt.Fprint(stderr, install) }
	showVersion := fs.Bool("version", false, "print the version and exit")
	nvmlWorker := fs.Bool("nvml-worker", false, "run the NVML worker; the plugin starts it itself")
	gpu := fs.String("nvml-gpu", "", "the PCI bus ID of the GPU that -nvml-worker reads; without it the worker serves the node")
	probe := fs.Bool("probe", false, "print what NVML reports for this node as JSON and exit")
	library := fs.String("nvml-library", "", "the library of -nvml-worker and -probe")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	if fs.NArg() > 0 {
		fmt.Fprintf(stderr, "remuda-device: unexpected argument %q: only flags are allowed\n", fs.Arg(0))
		return 2
	}
	if *showVersion {
		fmt.Fprintln(stdout, version.Long())
		return 0
	}
	if *nvmlWorker {
		return worker.Main(*library, *gpu)
	}
	if *probe {
		return printProbe(*library, stdout, stderr)
	}
	if !deviceplugin.UnderNomad() {
		fmt.Fprint(stderr, install)
		return 1
	}
	// go-plugin reads JSON logs from stderr and Nomad filters them by its own level.
	logger := hclog.New(&hclog.LoggerOptions{Level: hclog.Trace, JSONFormat: true, Output: stderr})
	p, err := deviceplugin.New(deviceplugin.Config{Logger: logger, Open: openSource})
	if err != nil {
		logger.Error("cannot start", "error", err)
		return 1
	}
	deviceplugin.Serve(p, logger)
	return 0
}
