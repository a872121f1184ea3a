package nvml

import (
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"remuda/device-plugin/health"
	"remuda/internal/testkit/reference"
)

func TestReferenceMetrics(t *testing.T) {
	s, err := New(Config{Logger: hclog.NewNullLogger(), Command: []string{"none"}, Health: health.DefaultConfig(), Rediscover: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	n := uint64(1)
	record, fd, err := newRecord()
	if err != nil {
		t.Fatal(err)
	}
	defer record.close()
	_ = unix.Close(fd)
	record.Enter(0, "nvmlDeviceGetName")
	*record.began(0) -= uint64(longCall)
	exceeded := true
	s.units = []*unit{{
		proc:   &process{record: record},
		device: Device{UUID: "GPU-1", Uncorrected: &n, RemappedCorrectable: &n, RemappedUncorrectable: &n, SRAMExceeded: &exceeded},
		load: map[string]Load{"GPU-1": {EnergyMillijoules: &n, MemoryCelsius: &n, PCIeReplays: &n, PCIeSentBytes: &n,
			PCIeReceivedBytes: &n, NVLinkSentKiB: &n, NVLinkReceivedKiB: &n, Throttle: &n}},
	}}
	registry := prometheus.NewRegistry()
	registry.MustRegister(s)
	reference.Section(t, "metrics.md", "device nvml", "With GPUs that NVML manages there are these as well:\n\n"+
		reference.Metrics(t, append(s.metrics.collectors(), registry)...))
}
