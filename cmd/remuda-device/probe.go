package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"remuda/device-plugin/nvml"
)

// probeTimeout bounds each call of NVML, on a node whose driver has to wake its GPUs first.
const probeTimeout = time.Minute

// printProbe prints what a worker says of the node.
func printProbe(library string, stdout, stderr io.Writer) int {
	ctx := context.Background()
	self, err := os.Executable()
	if err == nil {
		var report nvml.Report
		if report, err = nvml.Probe(ctx, workerCommand(self, library), probeTimeout); err == nil {
			out := json.NewEncoder(stdout)
			out.SetIndent("", "  ")
			err = out.Encode(report)
		}
	}
	if err != nil {
		fmt.Fprintf(stderr, "remuda-device: %v\n", err)
		return 1
	}
	return 0
}
