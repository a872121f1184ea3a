package keeper

import (
	"testing"

	"remuda/internal/testkit/reference"
)

func TestReferenceMetrics(t *testing.T) {
	var r reference.Recorder
	newMetrics(newStore(Limits{}), &r)
	reference.Section(t, "metrics.md", "gms keeper", "## Keeper of the GPU memory service\n\nAt the address in `remuda gms keeper -metrics`.\n\n"+reference.Metrics(t, r.Collectors...))
}
