package reconcile

import (
	"testing"

	"remuda/internal/testkit/reference"
)

func TestReferenceMetrics(t *testing.T) {
	m := newMetrics(nil)
	reference.Section(t, "metrics.md", "controller reconcile", "### Reconciliation\n\n"+reference.Metrics(t, append(m.counted(), m)...))
}
