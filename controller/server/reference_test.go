package server

import (
	"testing"

	"remuda/internal/testkit/reference"
)

func TestReferenceMetrics(t *testing.T) {
	var r reference.Recorder
	if err := newMetrics().register(&r); err != nil {
		t.Fatal(err)
	}
	reference.Section(t, "metrics.md", "controller api", "## Controller\n\nAt `/metrics` of the API of `remuda agent`.\n\n### API\n\n"+reference.Metrics(t, r.Collectors...))
}
