package raft

import (
	"testing"

	"remuda/internal/testkit/reference"
)

func TestReferenceMetrics(t *testing.T) {
	c := newCollector(nil)
	reference.Section(t, "metrics.md", "controller raft", "### Raft\n\n"+reference.Metrics(t, c.apply, c))
}
