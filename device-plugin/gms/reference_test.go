package gms

import (
	"testing"

	"remuda/internal/testkit/reference"
)

func TestReferenceMetrics(t *testing.T) {
	var r reference.Recorder
	if err := newMetrics().register(&r, nil); err != nil {
		t.Fatal(err)
	}
	reference.Section(t, "metrics.md", "gms", "## GPU memory service\n\nAt the address in `remuda gms -metrics`.\n\n"+reference.Metrics(t, r.Collectors...))
}
