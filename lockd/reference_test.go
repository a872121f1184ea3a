package lockd

import (
	"testing"

	"remuda/internal/testkit/reference"
)

func TestReferenceMetrics(t *testing.T) {
	var r reference.Recorder
	newMetrics(nil, &r)
	reference.Section(t, "metrics.md", "lockd", "## Lock server\n\nAt the address in `remuda lockd -metrics`.\n\n"+reference.Metrics(t, r.Collectors...))
}
