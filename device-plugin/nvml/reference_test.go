package nvml

import (
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"remuda/device-plugin/health"
	"remuda/internal/testkit/reference"
)

func TestReferenceMetrics(t *testing.T) {
	s, err := New(Config{Logger: hclog.NewNullLogger(), Command: []string{"none"}, Health: health.DefaultConfig(), Rediscover: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	reference.Section(t, "metrics.md", "device nvml", "With GPUs that NVML manages there are these as well:\n\n"+reference.Metrics(t, s.collectors()...))
}
