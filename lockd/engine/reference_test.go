package engine

import (
	"testing"

	"remuda/internal/replica"
	"remuda/internal/testkit/reference"
)

func TestReferenceMetrics(t *testing.T) {
	m := newMetrics(replica.Name{Model: "m", Variant: "v", ID: "1"}, replica.RolePrimary)
	reference.Section(t, "metrics.md", "engine", "## Engine\n\nAt `/metrics` of the address in `remuda engine -listen`. The engine's own metrics are at its own address.\n\n"+reference.Metrics(t, m.registry))
}
