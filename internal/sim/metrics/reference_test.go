package metrics

import (
	"testing"

	"remuda/internal/sim/batch"
	"remuda/internal/testkit/reference"
)

func TestReferenceMetrics(t *testing.T) {
	m, err := New(Config{
		Model: "m", MaxModelLen: 4096, BlockSize: 16, Blocks: 64, Stats: func() batch.Stats { return batch.Stats{TotalBlocks: 64} },
		SleepState: func() string { return Awake }, Memory: func() (device, host int64) { return 0, 0 }, Faults: func() bool { return false },
	})
	if err != nil {
		t.Fatal(err)
	}
	reference.Section(t, "metrics.md", "sim", "## Simulated engine\n\nAt `/metrics` of `remuda sim`, which has vLLM's names.\n\n"+reference.Metrics(t, m.registry))
}
