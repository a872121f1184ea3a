package reconcile

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/internal/testkit/reference"
)

func TestReferenceMetrics(t *testing.T) {
	m := newMetrics(nil)
	reference.Section(t, "metrics.md", "controller reconcile", "### Reconciliation\n\n"+reference.Metrics(t, append(m.counted(), m)...))
}

// TestFailoverCauses: the causes whose counters begin with 0 are those of the shims.
func TestFailoverCauses(t *testing.T) {
	var causes []string
	for _, c := range reference.Source(t, "lockd/engine").Constants() {
		if strings.HasPrefix(c.Name, "Cause") {
			causes = append(causes, c.Value)
		}
	}
	require.ElementsMatch(t, causes, failoverCauses)
}
