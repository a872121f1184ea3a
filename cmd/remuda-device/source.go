package main

import (
	"github.com/hashicorp/go-hclog"

	deviceplugin "remuda/device-plugin"
	"remuda/internal/sim/gpu"
)

// openSource chooses where GPUs come from. Without simulate blocks the
// simulation is empty, and the plugin says that it has no GPUs to publish.
func openSource(s deviceplugin.Settings, logger hclog.Logger) (deviceplugin.Source, error) {
	return gpu.New(gpu.Config{
		Logger:       logger,
		Blocks:       s.Simulate,
		DefaultSeats: s.Seats,
		Seed:         s.Seed,
		StateFile:    s.StateFile,
	})
}
