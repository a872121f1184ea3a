package usage

import (
	"testing"

	"remuda/internal/testkit/reference"
)

func TestReferenceMetrics(t *testing.T) {
	reference.Section(t, "metrics.md", "controller usage", "### Usage\n\n"+reference.Metrics(t, newMetrics(&Recorder{}).collectors()...))
}
