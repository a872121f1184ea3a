package main

import (
	"fmt"
	"os"

	"github.com/hashicorp/go-hclog"

	deviceplugin "remuda/device-plugin"
	"remuda/device-plugin/health"
	"remuda/device-plugin/nvml"
	"remuda/internal/sim/gpu"
)

// rediscoverPeriods is how many fingerprint periods a lost GPU waits until NVML
// is initialised anew to look for it: half a minute by default.
const rediscoverPeriods = 6

// openSource chooses where GPUs come from: the simulation where there are
// simulate blocks, NVML otherwise. A node has GPUs of one kind only.
func openSource(s deviceplugin.Settings, logger hclog.Logger) (deviceplugin.Source, error) {
	if len(s.Simulate) > 0 {
		return gpu.New(gpu.Config{
			Logger:       logger,
			Blocks:       s.Simulate,
			DefaultSeats: s.Seats,
			Seed:         s.Seed,
			StateFile:    s.StateFile,
			MemoryDir:    s.SimDir,
		})
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the plugin's own file, which is the NVML worker as well: %w", err)
	}
	judge := health.DefaultConfig()
	judge.Ignored = s.IgnoredXIDs
	// Readings come early when something happens, and for each sample; those do not count.
	judge.Every = s.FingerprintPeriod * 4 / 5
	return nvml.New(nvml.Config{
		Logger:     logger,
		Command:    workerCommand(self, s.NVMLLibrary),
		Health:     judge,
		Period:     s.FingerprintPeriod,
		Ignored:    s.IgnoredGPUs,
		Dir:        s.HealthDir,
		Rediscover: rediscoverPeriods * s.FingerprintPeriod,
	})
}

// workerCommand starts this program as an NVML worker; for one GPU its bus ID is added with -nvml-gpu.
func workerCommand(self, library string) []string {
	return []string{self, "-nvml-worker", "-nvml-library", library}
}
